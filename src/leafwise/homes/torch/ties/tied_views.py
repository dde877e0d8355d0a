"""Parameters that are views: a transpose or a slice of another module's parameter, computed whenever they are read.

The class of the module becomes a subclass of its own class, with a property for each view, so that its code can still
read `self.weight`. The property looks up the source in the dict of its owner, so that it is right even after the source
was replaced.
"""

import weakref
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.memory.ops import Op
from leafwise.errors import TieError, Unsupported
from leafwise.homes.torch.ties.bonds import KEEPER, Bond
from leafwise.homes.torch.ties.keepers import TieKeeper
from leafwise.homes.torch.values.tensor_values import seen, seen_through

_VIEWS = "_leafwise_views"


class ParameterView:
    """A view of a parameter of another module, which is looked up in the dict of that module.

    The parts of the op are separate attributes, because torch.compile can trace these.
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
        """The source, if it is no longer a parameter: after pruning or parametrization it is computed, too."""
        owner = None if self.owner is None else self.owner()
        source = getattr(owner, self.name, None) if owner is not None else None
        if not isinstance(source, torch.Tensor):
            raise TieError(
                f"{self.path} is a view of {self.source}, which no longer exists; "
                f"assign it again, or assign another tensor to {self.path}"
            )
        return source

    def shown(self) -> torch.Tensor | None:
        """The view; None if its source no longer exists."""
        try:
            return self.tensor()
        except TieError:
            return None


def attach_view(module: nn.Module, name: str, view: ParameterView) -> None:
    """Makes `module.name` a view from now on."""
    cls = class_with_view(type(module), name)
    module.__dict__.setdefault(_VIEWS, {})[name] = view
    module._parameters[name] = None
    module.__class__ = cls


def detach_view(module: nn.Module, name: str) -> None:
    """Gives the module an independent parameter again, with equal values."""
    view = views_of(module)[name]
    held: Any = module._parameters.get(name)
    if held is None:
        held = view.tensor()
    source = view.parameters.get(view.name)
    copy = held.detach().clone(memory_format=torch.contiguous_format)
    _end_view(module, name, nn.Parameter(copy, requires_grad=source is None or source.requires_grad))


def _end_view(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
    """Ends a view. If other code has subclassed our class since, it stays, and its property returns the parameter."""
    del module.__dict__[_VIEWS][name]
    module._parameters[name] = parameter
    base, names = _parts_of(type(module))
    left = tuple(view_name for view_name in names if view_name != name)
    if "_leafwise_base" in vars(type(module)):
        module.__class__ = tied_class(base, left) if left else base
    if not module.__dict__[_VIEWS]:
        del module.__dict__[_VIEWS]


def views_of(module: nn.Module) -> dict[str, ParameterView]:
    views: dict[str, ParameterView] = module.__dict__.get(_VIEWS, {})
    return views


def is_view(owner: nn.Module, name: str) -> bool:
    return name in views_of(owner)


def view_names(cls: type) -> frozenset[str]:
    return frozenset(getattr(cls, "_leafwise_names", ()))


# Classes that PyTorch adds to the class of a module: `fully_shard` makes a Linear an FSDPLinear.
_ADDED = {"FSDPModule": "FSDP", "ReplicateModule": "Replicate", "DDP": "DDP"}


def plain_class(cls: type) -> type:
    """The module's own class, without the subclasses that leafwise makes for views, and PyTorch for sharding."""
    while True:
        if "_leafwise_base" in vars(cls):
            cls = _parts_of(cls)[0]
        elif len(cls.__bases__) == 2 and _is_wrapped_class(cls):
            cls = cls.__bases__[1]
        else:
            return cls


def _is_wrapped_class(cls: type) -> bool:
    added, own = cls.__bases__
    prefix = _ADDED.get(added.__name__)
    is_torch = added.__module__.startswith("torch.distributed.")
    return prefix is not None and is_torch and cls.__name__ == prefix + own.__name__


def class_with_view(cls: type, name: str) -> type:
    """The class, or its subclass, with this name as a view. Raises if the class cannot be subclassed."""
    base, names = _parts_of(cls)
    return cls if name in names else tied_class(base, tuple(sorted((*names, name))))


def _parts_of(cls: type) -> tuple[type, tuple[str, ...]]:
    return getattr(cls, "_leafwise_base", cls), getattr(cls, "_leafwise_names", ())


@cache
def tied_class(base: Any, names: tuple[str, ...]) -> type:
    """A subclass of a module's class in which some parameters are views, read through properties."""

    def reader(name: str) -> property:
        def read(self: Any) -> Any:
            held = self._parameters[name]  # None, except inside a torch.func.functional_call that replaces it
            return self._leafwise_views[name].tensor() if held is None else held

        return property(read)

    body = {name: reader(name) for name in names}
    return type(
        f"Tied{base.__name__}",
        (_ModuleWithViews, base),
        {**body, "_leafwise_base": base, "_leafwise_names": names, "__module__": base.__module__},
    )


class _ModuleWithViews(nn.Module):
    """The methods that modules with views override."""

    _leafwise_names: tuple[str, ...]

    def __setattr__(self, name: str, value: Any) -> None:
        if self._is_ordinary(name):
            super().__setattr__(name, value)
        else:
            setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        if self._is_ordinary(name):
            super().__delattr__(name)
        else:
            delattr(self, name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        if self._is_ordinary(name):
            super().register_parameter(name, param)
        else:
            self.register_parameter(name, param)

    def _is_ordinary(self, name: str) -> bool:
        """Whether `name` is not a view, and can be handled as usual. Refuses to change a view, but ends a view whose
        source no longer exists; this may change the class of the module."""
        view = views_of(self).get(name) if name in self._leafwise_names else None
        if view is None:
            return True
        if view.shown() is None:
            _end_view(self, name, None)
            return False
        raise TieError(
            f"{view.path} is {view.source}{view.op.describe()}: write in place to change both, "
            f'or untie it first: lw.untie(model, "{view.path}")'
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # PyTorch converts a tied parameter with every module that has it; this does the same for the source of a view.
        for bond in {id(bond): bond for bond in self._bonds().values()}.values():
            bond.apply_to_source(fn)
        return self

    def _bonds(self) -> dict[str, Bond]:
        """The bonds of the views, by name."""
        keeper: TieKeeper | None = self.__dict__.get(KEEPER)
        bonds = keeper.bonds if keeper is not None else []
        members = [(bond, bond.members[number]) for bond, number in bonds if number in bond.members]
        bonds_by_name = {member.name: bond for bond, member in members if member.viewed}
        return {name: bonds_by_name[name] for name in views_of(self) if name in bonds_by_name}

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        saved: dict[str, Any] = {}
        super()._save_to_state_dict(saved, prefix, keep_vars)
        views = views_of(self)
        for name in self._parameters:  # in the order of a module without views
            view = views.get(name) if self._parameters[name] is None else None
            tensor = None if view is None else view.shown()
            if tensor is not None:
                destination[prefix + name] = tensor if keep_vars else tensor.detach()
            elif prefix + name in saved:
                destination[prefix + name] = saved.pop(prefix + name)
        destination.update(saved)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        # The last hook: other hooks may rename keys, and the hook of the keeper must have compared the values before.
        hooks: Any = self._load_state_dict_pre_hooks
        hooks[_VIEWS] = self._load_views
        try:
            super()._load_from_state_dict(*args, **kwargs)
        finally:
            hooks.pop(_VIEWS, None)

    def _load_views(
        self, state: Any, prefix: str, metadata: Any, strict: bool, missing: list[str], _: Any, errors: list[str]
    ) -> None:
        keeper: TieKeeper | None = self.__dict__.get(KEEPER)
        for name in [name for name in views_of(self) if self._parameters[name] is None]:
            value = state.pop(prefix + name, None)
            if keeper is not None and keeper.agreed.get(name) is missing:
                continue  # its value agrees with that of its source, which is loaded anyway
            if value is None:
                missing.extend([prefix + name] if strict else [])
                continue
            problem = self._take_in(name, value, metadata)
            if problem:
                errors.append(f"{problem} for {prefix}{name}")

    def _take_in(self, name: str, value: Any, metadata: dict[str, Any]) -> str:
        """Loads the value of a view into its source; returns the reason if it cannot."""
        view = views_of(self)[name]
        if not isinstance(value, torch.Tensor):
            return f"expected a tensor, received {type(value).__name__}"
        shown = view.tensor()
        if value.shape != shown.shape:
            return f"size mismatch: {tuple(value.shape)} in the checkpoint, {tuple(shown.shape)} in the model,"
        source = view.parameters.get(view.name)
        if source is None:  # pruned or parametrized: a computed tensor cannot be loaded
            same = value.is_meta or torch.allclose(shown.to(value.dtype), value.to(shown.device), equal_nan=True)
            return (
                "" if same else f"the model computes {view.source} from other tensors, and its values differ from those"
            )
        if source.is_meta and view.slices is not None and not value.is_meta:
            return f"cannot assign a part of {view.source}, which has no values yet; load {view.source} itself,"
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
        # Independent until the source is copied, too. A view whose source was copied first stays a view.
        for name, bond in self._bonds().items():
            view = views_of(self)[name]
            slot = bond.slots.get(bond.source)
            if slot is not None:
                view.owner = slot.owner
                continue
            if view.parameters.get(view.name) is not None:
                detach_view(self, name)
            bond.waiting.append(partial(_attach_again, weakref.ref(self), name, view, bond))


def _attach_again(reference: "weakref.ref[nn.Module]", name: str, view: ParameterView, bond: Bond) -> None:
    """Makes a name a view again, when its source has been copied, too."""
    module = reference()
    if module is not None:
        view.owner = bond.slots[bond.source].owner
        attach_view(module, name, view)


def _new_tied(base: Any, names: tuple[str, ...]) -> Any:
    cls: Any = tied_class(base, names)
    return cls.__new__(cls)


class TorchViewing(Viewing):
    def seen_through(self, value: torch.Tensor, op: Op) -> torch.Tensor:
        return seen_through(value, op)

    def view_names(self, cls: type) -> frozenset[str]:
        return view_names(cls)

    def view_source(self, owner: Any, name: str) -> tuple[Any, Op] | None:
        view = views_of(owner).get(name)
        if view is None or owner._parameters.get(name) is not None or view.parameters.get(view.name) is None:
            return None  # it was replaced, or its source no longer exists
        return view.parameters[view.name], view.op
