"""How ties of PyTorch modules are made, and how they survive what PyTorch does to modules.

A **plain tie** is one Parameter in several modules, as PyTorch has it. Whatever replaces the Parameter in one of them
(`to_empty`, a load with `assign=True`, a move to another kind of device) would leave the others behind. A `Keeper` on
each module that holds a tied name stands before the two methods through which PyTorch replaces parameters, and lets
the other names follow. It sits in the instance's `__dict__`: the type of the module, and its forward, stay as they are.

A **view** (a transpose, a slice) is computed whenever it is read, by a property of a subclass of the module's own
class. It reads the Parameter where its owner keeps it, so that nothing can leave it behind.

What is known of a tie is a `Bond`, which the keepers have in common. Copying and pickling take a bond along: each
keeper, when it is made anew, reports to the new bond where its module now keeps its tensors.
"""

import copy
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import nn

from leafwise.core.memory import Op
from leafwise.core.sharing import Declared, Group, Keep, Place
from leafwise.errors import TieError, TieWarning, Unsupported

_KEEPER = "_leafwise_keeper"
_VIEWS = "_leafwise_views"

# Modules that may have keepers; while there are none, no walk looks for declared ties.
_kept: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def seen_through(tensor: torch.Tensor, op: Op) -> torch.Tensor:
    """The tensor as a name with this op sees it."""
    return _seen(tensor, op.slices, op.order)


def _seen(tensor: torch.Tensor, slices: Any, order: tuple[int, ...] | None) -> torch.Tensor:
    if slices is not None:
        tensor = tensor[slices]
    return tensor if order is None else tensor.permute(order)


def _put_through(whole: torch.Tensor, op: Op, part: torch.Tensor) -> None:
    """Writes what a name with this op shows into the whole."""
    seen_through(whole, op).copy_(part)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits; NaN equals the same NaN."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.is_meta or b.is_meta or a is b:
        return True
    if a.layout != torch.strided or type(a) not in (torch.Tensor, nn.Parameter) or a.is_complex():
        return bool(torch.equal(a, b.to(a.device)))
    if a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.device == b.device:
        return True
    if a.dtype == torch.bool:
        return bool(torch.equal(a, b.to(a.device)))
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(torch.equal(a.view(words), b.to(a.device).view(words)))


def fingerprint(value: torch.Tensor) -> tuple[int, bool] | None:
    """The sum of the elements taken as whole numbers, which does not depend on their order; and whether all are one."""
    plain = value.detach()
    if plain.layout != torch.strided or plain.is_quantized or type(plain) not in (torch.Tensor, nn.Parameter):
        return None
    if plain.is_complex():
        plain = torch.view_as_real(plain.resolve_conj())
    if plain.numel() == 0:
        return 0, True
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[plain.element_size()]
    bits = plain.view(words) if plain.dtype != torch.bool else plain.to(torch.uint8)
    return int(bits.sum(dtype=torch.int64)), bool((bits == bits[(0,) * bits.dim()]).all())


# -- the bond ----------------------------------------------------------------------------------------------


class _Slot:
    """Where a module keeps one tensor: in its dict of parameters or of buffers.

    The dicts, not the module: a copy of a module has them before it has anything else.
    """

    __slots__ = ("name", "owner", "tensors")

    def __init__(self, tensors: dict[str, Any], name: str, owner: "weakref.ref[nn.Module]") -> None:
        self.tensors = tensors
        self.name = name
        self.owner = owner

    def held(self) -> Any:
        return self.tensors.get(self.name)

    def put(self, tensor: torch.Tensor) -> None:
        owner = self.owner()
        if owner is None or owner.__dict__.get("_parameters") is None:
            self.tensors[self.name] = tensor
        else:
            setattr(owner, self.name, tensor)  # a recurrent layer keeps a list of its own beside the dict


class _Member:
    """What a bond knows of one name, whether or not its module is there."""

    __slots__ = ("in_buffers", "name", "op", "path", "viewed")

    def __init__(self, place: Place, op: Op, in_buffers: bool, viewed: bool) -> None:
        self.path = place.path
        self.name = place.name
        self.op = op
        self.in_buffers = in_buffers
        self.viewed = viewed  # computed by a property, and not kept in a dict


class Bond:
    """One tie: who belongs to it, and where each of them keeps the tensor."""

    def __init__(self, keep: Keep | None) -> None:
        self.keep = keep
        self.source = 0
        self.members: dict[int, _Member] = {}
        self.slots: dict[int, _Slot] = {}
        self.waiting: dict[int, tuple[weakref.ref[nn.Module], str, View]] = {}

    def __getstate__(self) -> dict[str, Any]:
        self.forget_the_dead()
        return {"keep": self.keep, "source": self.source, "members": dict(self.members)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["keep"])  # type: ignore[misc]
        self.source, self.members = state["source"], state["members"]

    def add(self, member: _Member, slot: _Slot) -> int:
        number = max(self.members, default=-1) + 1
        self.members[number] = member
        self.slots[number] = slot
        return number

    def join(self, number: int, slot: _Slot) -> None:
        """A keeper that was copied or unpickled reports its slot."""
        self.slots[number] = slot
        if number == self.source:
            for module, name, view in self.waiting.values():
                there = module()
                if there is not None:
                    attach_view(there, name, view)
            self.waiting.clear()
        if self.slots.keys() == self.members.keys():
            self.renew_buffer_views()

    def number_of(self, tensors: dict[str, Any], name: str) -> int | None:
        for number, slot in self.slots.items():
            if slot.tensors is tensors and slot.name == name:
                return number
        return None

    def forget_the_dead(self) -> None:
        for number, slot in list(self.slots.items()):
            if slot.owner() is None:
                self.remove(number)

    def remove(self, number: int) -> None:
        self.members.pop(number, None)
        self.slots.pop(number, None)
        if number == self.source:
            plain = [other for other in self.members if self.is_plain(other)]
            self.source = plain[0] if plain else -1

    def is_plain(self, number: int) -> bool:
        member = self.members[number]
        return not member.viewed and member.op == "same"

    def is_buffer_view(self, number: int) -> bool:
        member = self.members[number]
        return not member.viewed and member.op != "same"

    def source_tensor(self) -> Any:
        slot = self.slots.get(self.source)
        return None if slot is None else slot.held()

    def intact(self, number: int) -> bool:
        """Whether the name still is what it was declared to be."""
        slot, source = self.slots.get(number), self.source_tensor()
        if slot is None or source is None:
            return False
        if self.members[number].viewed:
            return slot.held() is None
        held = slot.held()
        if self.members[number].op == "same":
            return held is source
        if held is None or held.dtype != source.dtype or held.device != source.device:
            return False
        return _same_view(held, seen_through(source.detach(), self.members[number].op))

    def holders(self, tensor: Any) -> list[int]:
        """The plain names that hold this very tensor."""
        return [n for n, slot in self.slots.items() if self.is_plain(n) and slot.held() is tensor]

    def follow(self, number: int, holders: list[int]) -> None:
        """The tensor of one name was replaced; those that held the same take the new one too."""
        new = self.slots[number].held()
        for other in holders:
            if new is not None and other in self.slots and self.slots[other].held() is not new:
                self.slots[other].put(new)

    def buffer_views(self) -> list[int]:
        """The buffers that are views of the source, as far as they still are."""
        return [n for n in self.slots if self.is_buffer_view(n) and self.intact(n)]

    def renew_buffer_views(self, numbers: list[int] | None = None) -> None:
        source = self.source_tensor()
        if source is None:
            return
        chosen = [n for n in self.slots if self.is_buffer_view(n)] if numbers is None else numbers
        for number in chosen:
            slot = self.slots.get(number)
            if slot is not None:
                slot.tensors[slot.name] = seen_through(source.detach(), self.members[number].op)

    def replace_source(self, new: torch.Tensor) -> None:
        slot = self.slots[self.source]
        holders = self.holders(slot.held())
        views = self.buffer_views()
        slot.put(new)
        self.follow(self.source, holders)
        self.renew_buffer_views(views)

    def apply_to_source(self, fn: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """What `Module._apply` does to a parameter or buffer, to the source alone."""
        slot = self.slots.get(self.source)
        tensor = None if slot is None else slot.held()
        if slot is None or tensor is None:
            return
        views = self.buffer_views()
        holder: Any = nn.Module()
        mine = holder._parameters if isinstance(tensor, nn.Parameter) else holder._buffers
        mine[slot.name] = tensor
        holder._apply(fn)
        if mine[slot.name] is not tensor:
            self.replace_source(mine[slot.name])
        self.renew_buffer_views(views)

    def tell_of_missing(self) -> None:
        """After a copy is complete: whoever did not come along is lost, and that is said."""
        missing = [number for number in self.members if number not in self.slots]
        if not self.slots or not missing:
            return
        there = ", ".join(self.members[number].path for number in self.slots)
        lost = ", ".join(self.members[number].path + self.members[number].op.describe() for number in missing)
        for number in missing:
            self.remove(number)
        warnings.warn(
            f"copied {there} without {lost}, to which it is tied: the copy is independent; "
            "copy a module that holds both to keep the tie",
            TieWarning,
            stacklevel=2,
        )


def _same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_meta or b.is_meta:
        return a.is_meta and b.is_meta and a.shape == b.shape
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


class _Settled:
    """Dies when a copy is complete: nobody but the memo of the copier, or of the unpickler, refers to it."""

    def __init__(self, bonds: list[Bond]) -> None:
        self.bonds = bonds

    def __del__(self) -> None:
        for bond in getattr(self, "bonds", ()):
            bond.tell_of_missing()


# -- the keeper --------------------------------------------------------------------------------------------


class _Check:
    """That a state dict, seen from a module above all names of a tie, tells one story about it."""

    def __init__(self, bond: Bond, keys: list[tuple[int, str]]) -> None:
        self.bond = bond
        self.keys = keys

    def reconcile(self, module: nn.Module, state: dict[str, Any], prefix: str, loading: list[str]) -> None:
        """Checks that the names which are given agree, and gives those which are not. Changes nothing but `state`."""
        bond = self.bond
        source = bond.source_tensor()
        keys = [
            (number, prefix + key)
            for number, key in self.keys
            if bond.intact(number) and _holds_at(module, key, bond.slots[number])
        ]
        given = [(number, key) for number, key in keys if isinstance(state.get(key), torch.Tensor)]
        if source is None or not given or nn.parameter.is_lazy(source):
            return
        if any(state[key].shape != seen_through(source, bond.members[n].op).shape for n, key in given):
            return  # PyTorch says what has the wrong shape
        whole = self._whole(source, given, state)
        if whole is None:
            return  # a part of the source; the names that are given load into it
        for number, key in keys:
            if not bond.members[number].viewed:
                state[key] = seen_through(whole, bond.members[number].op)
            else:
                owner = bond.slots[number].owner()
                if owner is not None:
                    _keeper_of(owner).agreed[bond.slots[number].name] = loading

    def _whole(self, source: torch.Tensor, given: list[tuple[int, str]], state: dict[str, Any]) -> torch.Tensor | None:
        """The value of the source that the names which are given agree on; None where they tell only a part of it."""
        ops = {number: self.bond.members[number].op for number, _ in given}
        plain = [(number, state[key]) for number, key in given if ops[number] == "same"]
        if plain:
            whole: torch.Tensor = plain[0][1]
        else:
            example = state[given[0][1]]
            whole = torch.empty(source.shape, dtype=example.dtype, device=example.device)
            covered = torch.zeros(source.shape, dtype=torch.bool)
            for number, key in reversed(given):
                _put_through(whole, ops[number], state[key])
                _put_through(covered, ops[number], torch.ones((), dtype=torch.bool))
            if not covered.all():
                return None
        with torch.no_grad():
            odd = [
                (number, key)
                for number, key in given
                if not _agree(seen_through(whole, ops[number]), state[key], source)
            ]
            return self._settle(whole, given, odd, state) if odd else whole

    def _settle(
        self,
        whole: torch.Tensor,
        given: list[tuple[int, str]],
        odd: list[tuple[int, str]],
        state: dict[str, Any],
    ) -> torch.Tensor:
        bond = self.bond
        names = [key for _, key in given]
        if bond.keep is None:
            listed = ", ".join(names)
            differ = f"{next(key for number, key in given if (number, key) not in odd)} and {odd[0][1]}"
            raise TieError(
                f"the state dict gives tied names different values: {differ} (tied are {listed}); nothing was loaded. "
                'lw.keep_ties(model, keep="source") takes the value of the first, keep="target" of the other, '
                'keep="mean" their mean; lw.untie(model, …) lets them differ'
            )
        sources = [state[key] for number, key in given if number == bond.source]
        targets = [(state[key], bond.members[number].op) for number, key in given if number != bond.source]
        chosen = (sources[0] if sources else whole).clone()
        _reconcile(chosen, targets, bond.keep)
        if bond.keep == "target" and not all(same_bits(seen_through(chosen, op), value) for value, op in targets):
            raise TieError(f'keep="target" cannot choose: the targets of {", ".join(names)} differ; nothing was loaded')
        return chosen


def _agree(a: torch.Tensor, b: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether two values end up as the same bits in the model."""
    if a.dtype != b.dtype:
        a, b = a.to(like.dtype), b.to(like.dtype)
    return same_bits(a, b)


def _holds_at(module: nn.Module, key: str, slot: _Slot) -> bool:
    """Whether a key still leads to this slot, and state dicts have it."""
    here: nn.Module | None = module
    for step in key.split(".")[:-1]:
        here = None if here is None else here._modules.get(step)
    return here is not None and here is slot.owner() and slot.name not in here._non_persistent_buffers_set


class Keeper:
    """Stands before the methods that replace the tensors of one module."""

    def __init__(self, owner: nn.Module) -> None:
        self.owner = weakref.ref(owner)
        self.parameters: dict[str, Any] = owner._parameters
        self.buffers: dict[str, Any] = owner._buffers
        self.bonds: list[tuple[Bond, int]] = []
        self.checks: list[_Check] = []
        self.agreed: dict[str, list[str]] = {}  # view → the load in which it was found to agree with its source

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in ("parameters", "buffers", "bonds", "checks")}
        return {**state, "owner": self.owner(), "settled": _Settled([bond for bond, _ in self.bonds])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        owner = state["owner"]
        self.owner = weakref.ref(owner)
        self.parameters, self.buffers = state["parameters"], state["buffers"]
        self.bonds, self.checks = state["bonds"], state["checks"]
        self.agreed = {}
        _kept.add(owner)
        for bond, number in self.bonds:
            bond.join(number, self.slot(bond.members[number]))

    def slot(self, member: _Member) -> _Slot:
        return _Slot(self.buffers if member.in_buffers else self.parameters, member.name, self.owner)

    def install(self) -> None:
        owner = self.owner()
        assert owner is not None
        owner.__dict__[_KEEPER] = self
        owner.__dict__["_apply"] = self.apply
        owner.__dict__["_load_from_state_dict"] = self.load
        _kept.add(owner)

    def remove_if_idle(self) -> None:
        owner = self.owner()
        if owner is not None and not self.bonds and not self.checks:
            for name in (_KEEPER, "_apply", "_load_from_state_dict"):
                owner.__dict__.pop(name, None)
            _kept.discard(owner)

    def apply(self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """`Module._apply`: moves and casts."""
        owner: Any = self.owner()
        with self._following():
            result = type(owner)._apply(owner, fn, *args, **kwargs)
            for bond, number in self.bonds:
                if bond.is_buffer_view(number) and bond.source in bond.slots:
                    bond.apply_to_source(fn)
        return result

    def load(
        self,
        state: dict[str, Any],
        prefix: str,
        metadata: dict[str, Any],
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """`Module._load_from_state_dict`: every load, of this module or of one above it."""
        owner: Any = self.owner()
        for check in self.checks:
            check.reconcile(owner, state, prefix, missing)
        with self._following():
            type(owner)._load_from_state_dict(owner, state, prefix, metadata, strict, missing, unexpected, errors)

    @contextmanager
    def _following(self) -> Iterator[None]:
        before = []
        for bond, number in self.bonds:
            held = bond.slots[number].held()
            before.append((bond, number, held, bond.holders(held), bond.buffer_views()))
        try:
            yield
        finally:
            for bond, number, held, holders, views in before:
                # Those that held it before: one module may hold several names, and replace each.
                if number in holders and number in bond.slots and bond.slots[number].held() is not held:
                    bond.follow(number, holders)
                bond.renew_buffer_views(views)


def _keeper_of(module: nn.Module) -> Keeper:
    keeper: Keeper | None = module.__dict__.get(_KEEPER)
    if keeper is None:
        keeper = Keeper(module)
        keeper.install()
    return keeper


def declared(objects: list[Any]) -> list[tuple[int, Declared]]:
    """The ties that are kept, by the number of the module that has all their names below it."""
    if not _kept:
        return []
    found = []
    for number, obj in enumerate(objects):
        keeper = obj.__dict__.get(_KEEPER) if isinstance(obj, nn.Module) else None
        for check in keeper.checks if keeper is not None else ():
            members = check.bond.members
            keys = tuple((key, members[which].op) for which, key in check.keys if which in members)
            found.append((number, Declared(keys)))
    return found


# -- views -------------------------------------------------------------------------------------------------


class View:
    """What a name that is a view shows: somebody's parameter, where its owner keeps it, through an op.

    The op is kept as plain parts, which torch.compile can trace.
    """

    def __init__(self, parameters: dict[str, Any], name: str, op: Op, path: str, source: str) -> None:
        self.parameters = parameters
        self.name = name
        self.slices = op.slices
        self.order = op.order
        self.op = op
        self.path = path
        self.source = source

    def tensor(self) -> torch.Tensor:
        source = self.parameters.get(self.name)
        if source is None:
            raise TieError(
                f"{self.path} is a view of {self.source}, which is gone; put it back, or assign {self.path} "
                f'after lw.untie(model, "{self.path}")'
            )
        return _seen(source, self.slices, self.order)

    def describe(self) -> str:
        return self.source + self.op.describe()


def attach_view(module: nn.Module, name: str, view: View) -> None:
    """Makes `module.name` the view from now on."""
    base, names = _parts_of(type(module))
    module.__dict__.setdefault(_VIEWS, {})[name] = view
    module._parameters[name] = None
    module.__class__ = _tied_class(base, tuple(sorted({*names, name})))


def detach_view(module: nn.Module, name: str) -> View:
    """Gives the module a parameter of its own again, with equal values."""
    base, names = _parts_of(type(module))
    view: View = module.__dict__[_VIEWS].pop(name)
    held: Any = module._parameters[name]
    if held is None:
        held = view.tensor()
    trains = view.parameters[view.name].requires_grad
    left = tuple(other for other in names if other != name)
    module.__class__ = _tied_class(base, left) if left else base
    if not left:
        del module.__dict__[_VIEWS]
    copy = held.detach().clone(memory_format=torch.contiguous_format)
    module._parameters[name] = nn.Parameter(copy, requires_grad=trains)
    return view


def view_names(cls: type) -> frozenset[str]:
    return frozenset(getattr(cls, "_leafwise_names", ()))


def view_source(owner: nn.Module, name: str) -> tuple[Any, Op] | None:
    """The parameter that a view shows, unless something else was put in its place."""
    view = owner.__dict__[_VIEWS][name]
    if owner._parameters[name] is not None or view.parameters.get(view.name) is None:
        return None
    return view.parameters[view.name], view.op


def plain_class(cls: type) -> type:
    """The module's own class, without what leafwise put before it."""
    return _parts_of(cls)[0]


def _parts_of(cls: type) -> tuple[type, tuple[str, ...]]:
    return getattr(cls, "_leafwise_base", cls), getattr(cls, "_leafwise_names", ())


@cache
def _tied_class(base: Any, names: tuple[str, ...]) -> type:
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
    _leafwise_views: dict[str, View]

    def __setattr__(self, name: str, value: Any) -> None:
        self._refuse(name)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        self._refuse(name)
        super().__delattr__(name)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        self._refuse(name)
        super().register_parameter(name, param)

    def _refuse(self, name: str) -> None:
        if name in self._leafwise_names:
            view = self.__dict__[_VIEWS][name]
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
        keeper: Keeper = self.__dict__[_KEEPER]
        found = {bond.slots[n].name: bond for bond, n in keeper.bonds if bond.members[n].viewed}
        return {name: found[name] for name in self._leafwise_names if name in found}

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """Has the views stand among the parameters, for methods of PyTorch that look there."""
        held = {name: self._parameters[name] for name in self._leafwise_names}
        for name, tensor in held.items():
            if tensor is None:
                self._parameters[name] = self._leafwise_views[name].tensor()  # type: ignore[assignment]
        try:
            yield
        finally:
            self._parameters.update(held)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        with self._shown():
            super()._save_to_state_dict(destination, prefix, keep_vars)

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
        agreed = self.__dict__[_KEEPER].agreed
        replacing = (
            local_metadata.get("assign_to_params_buffers") or torch.__future__.get_swap_module_params_on_conversion()
        )
        state = dict(state_dict)
        skipped = {name for name in self._leafwise_names if agreed.get(name) is missing_keys}
        for name in self._leafwise_names:
            key = prefix + name
            value = state.get(key)
            if name in skipped or value is None:
                if name not in skipped and strict:
                    missing_keys.append(key)
            elif replacing:
                problem = self._assign(name, value)
                if problem:
                    error_msgs.append(f"{key}: {problem}")
            else:
                continue  # copied in place, below
            state.pop(key, None)
            skipped.add(name)
        with self._shown():
            for name in skipped:
                self._parameters[name] = None
            super()._load_from_state_dict(
                state, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
            )

    def _assign(self, name: str, value: torch.Tensor) -> str:
        """Takes the place of what is there, as `assign=True` asks, for the source too; says why it cannot."""
        view, bond = self._leafwise_views[name], self._bonds()[name]
        source = view.parameters[view.name]
        if value.shape != view.tensor().shape:
            return f"size mismatch: {tuple(value.shape)} in the state dict, {tuple(view.tensor().shape)} in the model"
        if view.slices is not None:
            if source.is_meta:
                return f"a part cannot be assigned to {view.source}, which has no values yet; load {view.source} itself"
            with torch.no_grad():
                view.tensor().copy_(value)
            return ""
        order = view.order or tuple(range(value.dim()))
        back = tuple(order.index(axis) for axis in range(len(order)))
        whole = value.detach().permute(back).contiguous()
        bond.replace_source(nn.Parameter(whole, requires_grad=source.requires_grad))
        return ""

    def _replicate_for_data_parallel(self) -> Any:
        view = next(iter(self._leafwise_views.values()))
        raise Unsupported(
            "torch.nn.DataParallel", f"replicate {view.path}, a view of {view.source}", "use DistributedDataParallel"
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _new_tied, _parts_of(type(self)), self.__getstate__()  # type: ignore[no-untyped-call]

    def __setstate__(self, state: Any) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        # Independent, until the source reports that it was copied too. Views whose source came first stay.
        for name, bond in self._bonds().items():
            if bond.source not in bond.slots:
                number = next(n for other, n in self.__dict__[_KEEPER].bonds if other is bond)
                view = detach_view(self, name)
                bond.waiting[number] = weakref.ref(self), name, view


def _new_tied(base: Any, names: tuple[str, ...]) -> Any:
    cls: Any = _tied_class(base, names)
    return cls.__new__(cls)


# -- the verbs ---------------------------------------------------------------------------------------------


def guard(objects: list[Any], groups: list[Group], keep: Keep | None) -> None:
    """Keeps each tie from now on. One that is kept already is kept on, with what has come to it since."""
    keepers = _keepers(objects)
    for group in groups:
        bond = _bond_of(group) or Bond(keep)
        if keep is not None:
            bond.keep = keep
        for keeper in keepers:
            keeper.checks = [check for check in keeper.checks if check.bond is not bond]
        numbers = [_enter(bond, place, op) for place, op in zip(group.places, group.ops, strict=True)]
        bond.source = numbers[0]
        for above, keys in group.above:
            if isinstance(above, nn.Module):
                named = [(numbers[which], key) for which, key in zip(group.names, keys, strict=True)]
                _keeper_of(above).checks.append(_Check(bond, named))
    _tidy(objects)


def _keepers(objects: list[Any]) -> list[Keeper]:
    found = (obj.__dict__.get(_KEEPER) for obj in objects if isinstance(obj, nn.Module))
    return list({id(keeper): keeper for keeper in found if keeper is not None}.values())


def _tidy(objects: list[Any]) -> None:
    """Drops what has become of no use: checks of names that are gone, bonds of one, keepers with nothing to do."""
    for keeper in _keepers(objects):
        for check in keeper.checks:
            check.keys = [(number, key) for number, key in check.keys if number in check.bond.members]
        keeper.checks = [check for check in keeper.checks if len(check.keys) > 1]
    checked = {id(check.bond) for keeper in _keepers(objects) for check in keeper.checks}
    for keeper in _keepers(objects):
        for bond, _ in list(keeper.bonds):
            if len(bond.members) < 2 and id(bond) not in checked:
                _dissolve(bond)
        keeper.remove_if_idle()


def _bond_of(group: Group) -> Bond | None:
    """The bond that holds some of the places already; where two do, one that takes in the other."""
    found: list[Bond] = []
    for place in group.places:
        keeper: Keeper | None = place.owner.__dict__.get(_KEEPER)
        for bond, number in keeper.bonds if keeper is not None else ():
            if bond.slots[number].name == place.name and bond not in found:
                found.append(bond)
    for other in found[1:]:
        _dissolve(other)
    return found[0] if found else None


def _dissolve(bond: Bond) -> None:
    """Takes every place out of a bond. Checks that knew it find nothing in it, and go with the next release."""
    for number, slot in list(bond.slots.items()):
        owner = slot.owner()
        if owner is not None:
            keeper = _keeper_of(owner)
            keeper.bonds.remove((bond, number))
            keeper.remove_if_idle()
    bond.slots.clear()
    bond.members.clear()


def _enter(bond: Bond, place: Place, op: Op) -> int:
    owner, name = place.owner, place.name
    keeper = _keeper_of(owner)
    member = _Member(place, op, in_buffers=name in owner._buffers, viewed=name in view_names(type(owner)))
    slot = keeper.slot(member)
    number = bond.number_of(slot.tensors, name)
    if number is None:
        number = bond.add(member, slot)
        keeper.bonds.append((bond, number))
    bond.members[number] = member
    return number


def release(objects: list[Any]) -> None:
    """Lets go of plain ties among these modules. A view is a view until it is untied."""
    for keeper in _keepers(objects):
        keeper.checks = [check for check in keeper.checks if _has_views(check.bond)]
        for bond, _ in list(keeper.bonds):
            if not _has_views(bond):
                _dissolve(bond)
    _tidy(objects)


def _has_views(bond: Bond) -> bool:
    return any(member.viewed for member in bond.members.values())


def cannot_tie(place: Place, value: torch.Tensor, op: Op) -> str:
    """Why what stands here cannot be tied; an empty string where it can."""
    owner = place.owner
    if nn.parameter.is_lazy(value):
        return "has no shape until the first forward of its lazy layer; run one, then tie"
    if value.is_quantized or hasattr(value, "quant_state") or hasattr(value, "SCB"):
        return "is quantised: its values mean nothing without their scales; tie before quantising"
    if type(owner).__name__ == "ParametrizationList":
        layer, _, rest = place.path.rpartition(".parametrizations.")
        return (
            "is inside a parametrization; remove it first: "
            f'torch.nn.utils.parametrize.remove_parametrizations(model.{layer}, "{rest.partition(".")[0]}")'
        )
    if op == "same":
        return ""
    if isinstance(owner, nn.RNNBase):
        return (
            f"belongs to a {type(owner).__name__}, which hands its weights over as a list; only a plain tie can be made"
        )
    if isinstance(owner, nn.ParameterList | nn.ParameterDict):
        return f"belongs to a {type(owner).__name__}, which looks into its own dict; only a plain tie can be made"
    if type(value) not in (nn.Parameter, torch.Tensor):
        return f"is a {type(value).__name__}, of which no view can be made"
    return ""


def rebind(groups: list[Group], keep: Keep | None) -> None:
    """Makes the further places of each group names of its source."""
    for group in groups:
        source, *targets = group.places
        tensor = _held(source)
        with torch.no_grad():
            _reconcile(tensor, [(_held(place), op) for place, op in zip(targets, group.ops[1:], strict=True)], keep)
        for place, op in zip(targets, group.ops[1:], strict=True):
            _leave_bonds(place)
            if op == "same":
                setattr(place.owner, place.name, tensor)
            elif place.name in place.owner._buffers:
                place.owner._buffers[place.name] = seen_through(tensor.detach(), op)
            else:
                view = View(source.owner._parameters, source.name, op, place.path, source.path)
                attach_view(place.owner, place.name, view)


def _held(place: Place) -> Any:
    held = place.owner._parameters.get(place.name)
    return place.owner._buffers[place.name] if held is None else held


def _reconcile(source: torch.Tensor, targets: list[tuple[torch.Tensor, Op]], keep: Keep | None) -> None:
    """Brings the source to the values that `keep` chooses."""
    if keep == "target":
        for target, op in targets:
            _put_through(source, op, target)
    elif keep == "mean":
        total = source.to(torch.float64)
        count = torch.ones_like(total)
        for target, op in targets:
            seen_through(total, op).add_(target)
            seen_through(count, op).add_(1)
        source.copy_(total / count)


def unbind(objects: list[Any], places: list[Place]) -> None:
    """Gives each place an independent tensor with equal values."""
    for place in places:
        owner, name = place.owner, place.name
        if name in view_names(type(owner)):
            _leave_bonds(place)
            detach_view(owner, name)
        elif not _views_became_independent(place) and _leave_bonds(place):
            held = _held(place)
            copy = held.detach().clone(memory_format=torch.preserve_format)
            setattr(owner, name, nn.Parameter(copy, held.requires_grad) if isinstance(held, nn.Parameter) else copy)
    _tidy(objects)


def _views_became_independent(place: Place) -> bool:
    """Before a source leaves: its views see another plain name of the same leaf; where there is none, they become
    independent, which leaves the source alone as well."""
    keeper: Keeper | None = place.owner.__dict__.get(_KEEPER)
    independent = False
    for bond, number in list(keeper.bonds) if keeper is not None else ():
        if number != bond.source or bond.slots[number].name != place.name:
            continue
        heirs = [n for n in bond.slots if n != number and bond.is_plain(n) and bond.intact(n)]
        for other, member in list(bond.members.items()):
            module = bond.slots[other].owner() if other in bond.slots else None
            if not member.viewed or module is None:
                continue
            if heirs:
                heir = bond.slots[heirs[0]]
                view = module.__dict__[_VIEWS][member.name]
                view.parameters, view.name, view.source = heir.tensors, heir.name, bond.members[heirs[0]].path
            else:
                _leave_bonds(Place(module, member.name, member.path))
                detach_view(module, member.name)
                independent = True
    return independent


def _leave_bonds(place: Place) -> bool:
    """Takes a place out of every bond; one that is left alone is let go. Says whether the tie still held."""
    keeper: Keeper | None = place.owner.__dict__.get(_KEEPER)
    held = True
    for bond, number in list(keeper.bonds) if keeper is not None else ():
        if number in bond.slots and bond.slots[number].name == place.name:
            held = bond.intact(number)
            keeper.bonds.remove((bond, number))  # type: ignore[union-attr]
            bond.remove(number)
            if len(bond.members) < 2 or bond.source < 0:
                _dissolve(bond)
    return held


def separate(objects: list[Any], places: list[Place]) -> None:
    """Gives each place, which holds a module that is used elsewhere too, a copy of it."""
    for owner, name, _ in places:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TieWarning)  # to be untied is what was asked for
            owner._modules[name] = copy.deepcopy(owner._modules[name])
        for keeper in _keepers(objects):
            for check in keeper.checks:
                check.keys = [(n, key) for n, key in check.keys if not _leads_through(keeper, key, owner, name)]
    _tidy(objects)


def _leads_through(keeper: Keeper, key: str, owner: nn.Module, name: str) -> bool:
    """Whether a key, followed from the keeper's module, takes the step `name` from `owner`."""
    here: Any = keeper.owner()
    for step in key.split(".")[:-1]:
        if here is owner and step == name:
            return True
        here = here._modules.get(step)
        if here is None:
            return False
    return False
