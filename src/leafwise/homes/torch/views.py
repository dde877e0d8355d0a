"""Names that are views: a transpose or a slice of somebody's parameter, computed whenever it is read.

By a property of a subclass of the module's own class, so that module code goes on reading `self.weight`. It reads the
parameter where its owner keeps it, so that nothing can leave it behind.
"""

import weakref
from functools import cache
from typing import Any

import torch
from torch import nn

from leafwise.core.memory import Op
from leafwise.errors import TieError, Unsupported
from leafwise.homes.torch.bonds import KEEPER, Bond
from leafwise.homes.torch.keepers import Keeper
from leafwise.homes.torch.values import seen

_VIEWS = "_leafwise_views"


class View:
    """What a name that is a view shows: somebody's parameter, where its owner keeps it, through an op.

    The op is kept as plain parts, which torch.compile can trace.
    """

    def __init__(self, owner: nn.Module, name: str, op: Op, path: str, source: str) -> None:
        self.parameters: dict[str, Any] = owner._parameters
        self.owner: weakref.ref[nn.Module] | None = weakref.ref(owner)
        self.name = name
        self.slices = op.slices
        self.order = op.order
        self.op = op
        self.path = path
        self.source = source

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "owner": None}

    def tensor(self) -> torch.Tensor:
        source = self.parameters.get(self.name)
        if source is None:
            source = self._computed()
        return seen(source, self.slices, self.order)

    def _computed(self) -> Any:
        """Of a source that is no longer a parameter: pruned or parametrized, it is computed, too."""
        owner = None if self.owner is None else self.owner()
        found = getattr(owner, self.name, None) if owner is not None else None
        if not isinstance(found, torch.Tensor):
            raise TieError(
                f"{self.path} is a view of {self.source}, which is gone; "
                f"put it back, or assign another tensor to {self.path}"
            )
        return found

    def shown(self) -> torch.Tensor | None:
        """The view; None where its source is gone."""
        try:
            return self.tensor()
        except TieError:
            return None

    def describe(self) -> str:
        return self.source + self.op.describe()


def attach_view(module: nn.Module, name: str, view: View) -> None:
    """Makes `module.name` the view from now on."""
    base, names = _parts_of(type(module))
    cls = tied_class(base, tuple(sorted({*names, name})))
    module.__dict__.setdefault(_VIEWS, {})[name] = view
    module._parameters[name] = None
    if not names or name not in names:
        module.__class__ = cls


def detach_view(module: nn.Module, name: str) -> None:
    """Gives the module a parameter of its own again, with equal values."""
    view = views_of(module)[name]
    held: Any = module._parameters.get(name)
    if held is None:
        held = view.tensor()
    source = view.parameters.get(view.name)
    copy = held.detach().clone(memory_format=torch.contiguous_format)
    _let_go(module, name, nn.Parameter(copy, requires_grad=source is None or source.requires_grad))


def _let_go(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    """Ends a view. Where somebody has put a class of theirs on top of ours, ours stays, and shows the parameter."""
    del module.__dict__[_VIEWS][name]
    module._parameters[name] = parameter
    base, names = _parts_of(type(module))
    left = tuple(other for other in names if other != name)
    if "_leafwise_base" in vars(type(module)):
        module.__class__ = tied_class(base, left) if left else base
    if not module.__dict__[_VIEWS]:
        del module.__dict__[_VIEWS]


def views_of(module: nn.Module) -> dict[str, View]:
    found: dict[str, View] = module.__dict__.get(_VIEWS, {})
    return found


def is_view(owner: nn.Module, name: str) -> bool:
    return name in views_of(owner)


def view_names(cls: type) -> frozenset[str]:
    return frozenset(getattr(cls, "_leafwise_names", ()))


def view_source(owner: nn.Module, name: str) -> tuple[Any, Op] | None:
    """The parameter that a view shows, unless something else was put in its place."""
    view = views_of(owner).get(name)
    if view is None or owner._parameters.get(name) is not None or view.parameters.get(view.name) is None:
        return None
    return view.parameters[view.name], view.op


def plain_class(cls: type) -> type:
    """The module's own class, without what leafwise put before it."""
    return _parts_of(cls)[0] if "_leafwise_base" in vars(cls) else cls


def can_be_tied(cls: type, name: str) -> None:
    """Raises where no subclass with this name as a view can be made."""
    base, names = _parts_of(cls)
    tied_class(base, tuple(sorted({*names, name})))


def _parts_of(cls: type) -> tuple[type, tuple[str, ...]]:
    return getattr(cls, "_leafwise_base", cls), getattr(cls, "_leafwise_names", ())


@cache
def tied_class(base: Any, names: tuple[str, ...]) -> type:
    """A subclass of a module's class in which some parameters are views, read through properties."""

    def reader(name: str) -> property:
        def read(self: Any) -> Any:
            held = self._parameters[name]  # None, but for the time of a torch.func.functional_call that gives it
            return self._leafwise_views[name].tensor() if held is None else held

        return property(read)

    body = {name: reader(name) for name in names}
    return type(
        f"Tied{base.__name__}",
        (_TiedMethods, base),
        {**body, "_leafwise_base": base, "_leafwise_names": names, "__module__": base.__module__},
    )


class _TiedMethods(nn.Module):
    """What a module with views does otherwise than its own class."""

    _leafwise_names: tuple[str, ...]

    def __setattr__(self, name: str, value: Any) -> None:
        if self._must_stay(name):
            super().__setattr__(name, value)
        else:
            setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        if self._must_stay(name):
            super().__delattr__(name)
        else:
            delattr(self, name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if self._must_stay(name):
            super().register_parameter(name, param)
        else:
            self.register_parameter(name, param)

    def _must_stay(self, name: str) -> bool:
        """Refuses to change a view. One with nothing left to be a view of ends, and with it, perhaps, this class."""
        view = views_of(self).get(name) if name in self._leafwise_names else None
        if view is None:
            return True
        if view.shown() is None:
            _let_go(self, name, None)
            return False
        raise TieError(
            f"{view.path} is {view.describe()}: write in place to change both, "
            f'or untie it first: lw.untie(model, "{view.path}")'
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # A plainly tied parameter is converted with any module that holds it; so is the source of a view.
        for bond in {id(bond): bond for bond in self._bonds().values()}.values():
            bond.apply_to_source(fn)
        return self

    def _bonds(self) -> dict[str, Bond]:
        keeper: Keeper | None = self.__dict__.get(KEEPER)
        bonds = keeper.bonds if keeper is not None else []
        found = {bond.members[n].name: bond for bond, n in bonds if n in bond.members and bond.members[n].viewed}
        return {name: found[name] for name in views_of(self) if name in found}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        saved: dict[str, Any] = {}
        super()._save_to_state_dict(saved, prefix, keep_vars)
        views = views_of(self)
        for name in self._parameters:  # every name in the place where it would stand without views
            view = views.get(name) if self._parameters[name] is None else None
            tensor = None if view is None else view.shown()
            if tensor is not None:
                destination[prefix + name] = tensor if keep_vars else tensor.detach()
            elif prefix + name in saved:
                destination[prefix + name] = saved.pop(prefix + name)
        destination.update(saved)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        # As the last of the hooks, since others may rename keys, and the keeper's looks for what disagrees.
        hooks: Any = self._load_state_dict_pre_hooks
        hooks[_VIEWS] = self._load_views
        try:
            super()._load_from_state_dict(
                state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )
        finally:
            hooks.pop(_VIEWS, None)

    def _load_views(
        self,
        state: dict[str, Any],
        prefix: str,
        metadata: dict[str, Any],
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        keeper: Keeper | None = self.__dict__.get(KEEPER)
        for name in [name for name in views_of(self) if self._parameters[name] is None]:
            value = state.pop(prefix + name, None)
            if keeper is not None and keeper.agreed.get(name) is missing:
                continue  # what it says was found to agree with what its source loads
            if value is None:
                missing.extend([prefix + name] if strict else [])
                continue
            problem = self._take_in(name, value, metadata)
            if problem:
                errors.append(f"{problem} for {prefix}{name}")

    def _take_in(self, name: str, value: Any, metadata: dict[str, Any]) -> str:
        """Loads what is given for a view alone into its source; says why it cannot."""
        view = views_of(self)[name]
        if not isinstance(value, torch.Tensor):
            return f"expected a tensor, received {type(value).__name__}"
        shown = view.tensor()
        if value.shape != shown.shape:
            return f"size mismatch: {tuple(value.shape)} in the checkpoint, {tuple(shown.shape)} in the model,"
        source = view.parameters.get(view.name)
        if source is None:  # pruned or parametrized: what is computed cannot be loaded
            same = value.is_meta or torch.allclose(shown.to(value.dtype), value.to(shown.device), equal_nan=True)
            return (
                "" if same else f"{view.source}, of which it is a view, is computed, and gives other values than those"
            )
        if source.is_meta and view.slices is not None and not value.is_meta:
            return f"a part cannot be assigned to {view.source}, which has no values yet; load {view.source} itself,"
        replacing = metadata.get("assign_to_params_buffers") or torch.__future__.get_swap_module_params_on_conversion()
        bond = self._bonds().get(name)
        if not replacing or view.slices is not None or bond is None:
            with torch.no_grad():
                shown.copy_(value)
            return ""
        order = view.order or tuple(range(value.dim()))
        back = tuple(order.index(axis) for axis in range(len(order)))
        whole = value.detach().permute(back).contiguous()
        bond.replace_source(nn.Parameter(whole, requires_grad=source.requires_grad))
        return ""

    def _replicate_for_data_parallel(self) -> Any:
        for view in views_of(self).values():
            raise Unsupported(
                "torch.nn.DataParallel",
                f"replicate {view.path}, a view of {view.source}",
                "use DistributedDataParallel",
            )
        return super()._replicate_for_data_parallel()  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        if "_leafwise_base" not in vars(type(self)):
            return super().__reduce_ex__(protocol)
        return _new_tied, _parts_of(type(self)), self.__getstate__()  # type: ignore[no-untyped-call]

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        # Independent, until the source reports that it was copied too. Views whose source came first stay.
        for name, bond in self._bonds().items():
            view = views_of(self)[name]
            slot = bond.slots.get(bond.source)
            if slot is not None:
                view.owner = slot.owner
                continue
            if view.parameters.get(view.name) is not None:
                detach_view(self, name)
            bond.waiting.append(_Attach(self, name, view, bond))


class _Attach:
    """Makes a view again, once its source is there."""

    def __init__(self, module: nn.Module, name: str, view: View, bond: Bond) -> None:
        self.module = weakref.ref(module)
        self.name, self.view, self.bond = name, view, bond

    def __call__(self) -> None:
        module = self.module()
        if module is not None:
            self.view.owner = self.bond.slots[self.bond.source].owner
            attach_view(module, self.name, self.view)


def _new_tied(base: Any, names: tuple[str, ...]) -> Any:
    cls: Any = tied_class(base, names)
    return cls.__new__(cls)
