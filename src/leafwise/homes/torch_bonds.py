"""How ties of PyTorch modules survive what PyTorch does to modules.

A **plain tie** is one Parameter in several modules, as PyTorch has it. Whatever replaces the Parameter in one of them
(`to_empty`, a load with `assign=True`, a move to another kind of device) would leave the others behind. A `Keeper` on
each module that holds a tied name stands before the two methods through which PyTorch replaces parameters, and lets
the other names follow. It sits in the instance's `__dict__`: the type of the module, and its forward, stay as they are.

What is known of a tie is a `Bond`, which the keepers have in common. Copying and pickling take a bond along: each
keeper, when it is made anew, reports to the new bond where its module now keeps its tensors.
"""

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from leafwise.core.memory import Op
from leafwise.core.sharing import Declared, Keep, Place
from leafwise.errors import TieError, TieWarning

KEEPER = "_leafwise_keeper"

# Modules that have keepers, by their identity; while there are none, no walk looks for declared ties.
_kept: "weakref.WeakValueDictionary[int, nn.Module]" = weakref.WeakValueDictionary()


# -- values ------------------------------------------------------------------------------------------------


def seen_through(tensor: torch.Tensor, op: Op) -> torch.Tensor:
    """The tensor as a name with this op sees it."""
    return seen(tensor, op.slices, op.order)


def seen(tensor: torch.Tensor, slices: Any, order: tuple[int, ...] | None) -> torch.Tensor:
    if slices is not None:
        tensor = tensor[slices]
    return tensor if order is None else tensor.permute(order)


def put_through(whole: torch.Tensor, op: Op, part: torch.Tensor) -> None:
    """Writes what a name with this op shows into the whole."""
    seen_through(whole, op).copy_(part)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype hold the same bits; NaN equals the same NaN."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a is b or (a.is_meta and b.is_meta):
        return True
    if a.is_meta or b.is_meta:
        return False
    if a.layout != torch.strided or type(a) not in (torch.Tensor, nn.Parameter) or a.is_complex():
        return bool(torch.equal(a, b.to(a.device)))
    if a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.device == b.device:
        return True
    if a.dtype == torch.bool:
        return bool(torch.equal(a, b.to(a.device)))
    words = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool(torch.equal(a.view(words), b.to(a.device).view(words)))


def choose(source: torch.Tensor, targets: list[tuple[torch.Tensor, Op]], keep: Keep | None) -> torch.Tensor:
    """The values that `keep` chooses for the source, as a tensor of their own unless they are those of the source."""
    with torch.no_grad():
        if keep == "target":
            chosen = source.detach().clone()
            for target, op in targets:
                put_through(chosen, op, target)
            return chosen
        if keep == "mean":
            total = source.detach().to(torch.float64, copy=True)
            count = torch.ones_like(total)
            for target, op in targets:
                seen_through(total, op).add_(target.detach())
                seen_through(count, op).add_(1)
            return (total / count).to(source.dtype)
    return source


# -- the bond ----------------------------------------------------------------------------------------------


class Slot:
    """Where a module keeps one tensor: in its dict of parameters or of buffers.

    The dict, not only the module: a copy of a module has them before it has anything else.
    """

    __slots__ = ("_tensors", "in_buffers", "name", "owner")

    def __init__(self, tensors: dict[str, Any], in_buffers: bool, name: str, owner: "weakref.ref[nn.Module]") -> None:
        self._tensors = tensors
        self.in_buffers = in_buffers
        self.name = name
        self.owner = owner

    @property
    def tensors(self) -> dict[str, Any]:
        owner = self.owner()
        found: dict[str, Any] | None = None
        if owner is not None:
            found = owner.__dict__.get("_buffers" if self.in_buffers else "_parameters")
        return self._tensors if found is None else found

    def held(self) -> Any:
        return self.tensors.get(self.name)

    def put(self, tensor: torch.Tensor) -> None:
        owner = self.owner()
        if owner is None or owner.__dict__.get("_parameters") is None:
            self.tensors[self.name] = tensor
        else:
            setattr(owner, self.name, tensor)  # a recurrent layer keeps a list of its own beside the dict


class Member:
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
        self.members: dict[int, Member] = {}
        self.slots: dict[int, Slot] = {}
        self.gone: set[int] = set()  # members whose module was no longer there when this was copied
        self.waiting: list[Callable[[], None]] = []  # views that were copied before their source
        self.checkers: list[weakref.ref[nn.Module]] = []  # modules that look at state dicts for it

    def __getstate__(self) -> dict[str, Any]:
        dead = {number for number, slot in self.slots.items() if slot.owner() is None}
        return {
            "keep": self.keep,
            "source": self.source,
            "members": dict(self.members),
            "gone": self.gone | dead,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.keep, self.source = state["keep"], state["source"]
        self.members, self.gone = state["members"], state["gone"]
        self.slots, self.waiting, self.checkers = {}, [], []

    def add(self, member: Member, slot: Slot) -> int:
        number = max(self.members, default=-1) + 1
        self.members[number] = member
        self.slots[number] = slot
        return number

    def join(self, number: int, slot: Slot) -> None:
        """A keeper that was copied or unpickled reports its slot."""
        self.slots[number] = slot
        if number == self.source:
            for attach in self.waiting:
                attach()
            self.waiting.clear()
        if self.slots.keys() | self.gone == self.members.keys() | self.gone:
            self.renew_buffer_views([n for n in self.slots if self.is_buffer_view(n)])

    def number_of(self, owner: nn.Module, name: str) -> int | None:
        for number, slot in self.slots.items():
            if slot.owner() is owner and slot.name == name:
                return number
        return None

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
        if slot is None or source is None or slot.owner() is None:
            return False
        held = slot.held()
        if self.members[number].viewed:
            return held is None
        if self.members[number].op == "same":
            return held is source
        if held is None or held.dtype != source.dtype or held.device != source.device:
            return False
        return _same_view(held, seen_through(source.detach(), self.members[number].op))

    def others(self, number: int) -> list[int]:
        """The other names of this tie, as far as they still are."""
        return [n for n in self.members if n != number and self.intact(n) and self.intact(number)]

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

    def renew_buffer_views(self, numbers: list[int]) -> None:
        source = self.source_tensor()
        for number in numbers:
            slot = self.slots.get(number)
            if slot is not None and source is not None:
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

    def dissolve(self) -> None:
        """Lets everybody go."""
        concerned = [slot.owner() for slot in self.slots.values()] + [checker() for checker in self.checkers]
        self.slots.clear()
        self.members.clear()
        for module in concerned:
            keeper: Keeper | None = None if module is None else module.__dict__.get(KEEPER)
            if keeper is not None:
                keeper.bonds = [(bond, number) for bond, number in keeper.bonds if bond is not self]
                keeper.checks = [check for check in keeper.checks if check.bond is not self]
                keeper.remove_if_idle()

    def tell_of_missing(self) -> None:
        """After a copy is complete: whoever did not come along is lost, and that is said."""
        missing = [number for number in self.members if number not in self.slots and number not in self.gone]
        if len(self.slots) == 1 and not missing and not self.checkers and len(self.members) > 1:
            self.dissolve()  # the others were gone before; nobody is left to be tied to
        if not self.slots or not missing:
            return
        there = ", ".join(self.members[number].path for number in self.slots)
        lost = ", ".join(self.members[number].path + self.members[number].op.describe() for number in missing)
        for number in missing:
            self.remove(number)
        if len(self.members) < 2:
            self.dissolve()
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


# -- what a state dict says --------------------------------------------------------------------------------


class Check:
    """That a state dict, seen from a module above several names of a tie, tells one story about them.

    `keys` are the names: the number of the member, the key that leads to it, and its op. A check is `complete` where
    it has all names of the tie.
    """

    def __init__(self, bond: Bond, keys: list[tuple[int, str, Op]], complete: bool) -> None:
        self.bond = bond
        self.keys = keys
        self.complete = complete

    def reconcile(self, module: nn.Module, state: dict[str, Any], prefix: str, loading: list[str]) -> list[str]:
        """Checks that the names which are given agree, and gives those which are not, which it lists. Changes nothing
        but `state`."""
        bond = self.bond
        source = bond.source_tensor()
        if source is None or nn.parameter.is_lazy(source):
            return []
        keys = [
            (number, prefix + key)
            for number, key, _ in self.keys
            if bond.intact(number)
            and _holds_at(module, key, bond.slots[number])
            and isinstance(state.get(prefix + key, source), torch.Tensor)  # PyTorch says what is no tensor
        ]
        given = [(number, key) for number, key in keys if key in state]
        given = [one for one in given if not state[one[1]].is_meta] or given
        if not given:
            return []
        if any(state[key].shape != seen_through(source, bond.members[n].op).shape for n, key in given):
            return []  # PyTorch says what has the wrong shape
        whole, covers = self._whole(source, given, state)
        plain = [key for number, key in keys if not bond.members[number].viewed]
        if not covers or not plain:
            # Nobody but the views themselves can load what is given; where they differed, they load what was chosen.
            for number, key in given:
                state[key] = seen_through(whole, bond.members[number].op)
            if not covers:
                return []
        filled = [key for _, key in keys if key not in state]
        for number, key in keys:
            if not bond.members[number].viewed:
                state[key] = seen_through(whole, bond.members[number].op)
            elif plain or key in filled:
                owner: Any = bond.slots[number].owner()
                keeper_of(owner).agreed[bond.slots[number].name] = loading
        return filled

    def _whole(
        self, source: torch.Tensor, given: list[tuple[int, str]], state: dict[str, Any]
    ) -> tuple[torch.Tensor, bool]:
        """The value of the source that the names which are given agree on, and whether they tell all of it."""
        ops = {number: self.bond.members[number].op for number, _ in given}
        plain = [state[key] for number, key in given if ops[number] == "same"]
        covers = True
        if plain:
            whole: torch.Tensor = plain[0]
        else:
            example = state[given[0][1]]
            whole = torch.empty(source.shape, dtype=example.dtype, device=example.device)
            covered = torch.zeros(source.shape, dtype=torch.bool)
            for number, key in reversed(given):
                put_through(whole, ops[number], state[key].detach())
                put_through(covered, ops[number], torch.ones((), dtype=torch.bool))
            covers = bool(covered.all())
        odd = [one for one in given if not _agree(seen_through(whole, ops[one[0]]), state[one[1]], source)]
        return (self._settle(whole, given, odd, state) if odd else whole), covers

    def _settle(
        self,
        whole: torch.Tensor,
        given: list[tuple[int, str]],
        odd: list[tuple[int, str]],
        state: dict[str, Any],
    ) -> torch.Tensor:
        bond = self.bond
        names = ", ".join(key for _, key in given)
        if bond.keep is None:
            even = next((key for number, key in given if (number, key) not in odd), given[0][1])
            raise TieError(
                f"the state dict gives tied names different values: {even} and {odd[0][1]} (tied are {names}); they "
                'were left as they are. lw.keep_ties(model, keep="source") takes the value of the first, keep="target" '
                'of the other, keep="mean" their mean; lw.untie(model, …) lets them differ'
            )
        values = [(state[key].detach(), bond.members[number].op) for number, key in given]
        first = next((at for at, (number, _) in enumerate(given) if number == bond.source), None)
        if bond.keep == "mean":
            total = torch.zeros(whole.shape, dtype=torch.float64, device=whole.device)
            count = torch.zeros_like(total)
            for value, op in values:
                seen_through(total, op).add_(value)
                seen_through(count, op).add_(1)
            return torch.where(count > 0, total / count.clamp(min=1), whole.detach().to(torch.float64)).to(whole.dtype)
        if bond.keep == "source":
            return whole if first is None else values[first][0]
        targets = [one for at, one in enumerate(values) if at != first]
        chosen = choose(whole, targets, "target")
        if not all(same_bits(seen_through(chosen, op), value) for value, op in targets):
            raise TieError(f'keep="target" cannot choose: the targets among {names} differ; they were left as they are')
        return chosen


def _agree(a: torch.Tensor, b: torch.Tensor, like: torch.Tensor) -> bool:
    """Whether two values end up as the same bits in the model."""
    if a.dtype != b.dtype:
        a, b = a.to(like.dtype), b.to(like.dtype)
    return same_bits(a, b)


def _holds_at(module: nn.Module, key: str, slot: Slot) -> bool:
    """Whether a key still leads to this slot, and state dicts have it."""
    here: nn.Module | None = module
    for step in key.split(".")[:-1]:
        here = None if here is None else here._modules.get(step)
    return here is not None and here is slot.owner() and slot.name not in here._non_persistent_buffers_set


# -- the keeper --------------------------------------------------------------------------------------------

_REPLACED = {"_apply": "apply", "_load_from_state_dict": "load", "load_state_dict": "load_state_dict"}


class Keeper:
    """Stands before the methods that replace the tensors of one module."""

    def __init__(self, owner: nn.Module) -> None:
        self.owner = weakref.ref(owner)
        self.parameters: dict[str, Any] = owner._parameters
        self.buffers: dict[str, Any] = owner._buffers
        self.bonds: list[tuple[Bond, int]] = []
        self.checks: list[Check] = []
        self.before: dict[str, Any] = {}  # what somebody else had put before the same methods
        self.agreed: dict[str, list[str]] = {}  # view → the load in which it was found to agree with its source
        self._filled: tuple[Any, list[str]] = (None, [])  # a load, and the names that were given in it though missing

    def __getstate__(self) -> dict[str, Any]:
        state = {name: getattr(self, name) for name in ("parameters", "buffers", "bonds", "checks", "before")}
        return {**state, "owner": self.owner(), "settled": _Settled([bond for bond, _ in self.bonds])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        owner = state["owner"]
        self.owner = weakref.ref(owner)
        self.parameters, self.buffers = state["parameters"], state["buffers"]
        self.bonds, self.checks, self.before = state["bonds"], state["checks"], state["before"]
        self.agreed, self._filled = {}, (None, [])
        _kept[id(owner)] = owner
        for check in self.checks:
            check.bond.checkers.append(self.owner)
        for bond, number in self.bonds:
            if number in bond.members:
                bond.join(number, self.slot(bond.members[number]))

    def slot(self, member: Member) -> Slot:
        tensors = self.buffers if member.in_buffers else self.parameters
        return Slot(tensors, member.in_buffers, member.name, self.owner)

    def install(self) -> None:
        owner: Any = self.owner()
        owner.__dict__[KEEPER] = self
        for theirs, mine in _REPLACED.items():
            if theirs in owner.__dict__:
                self.before[theirs] = owner.__dict__[theirs]
            owner.__dict__[theirs] = getattr(self, mine)
        _kept[id(owner)] = owner

    def remove_if_idle(self) -> None:
        owner = self.owner()
        if owner is None or self.bonds or self.checks or owner.__dict__.get(KEEPER) is not self:
            return
        del owner.__dict__[KEEPER]
        for name in _REPLACED:
            owner.__dict__.pop(name, None)
        owner.__dict__.update(self.before)
        _kept.pop(id(owner), None)

    def _behind(self, name: str) -> Callable[..., Any]:
        """The method that this stands before."""
        if name in self.before:
            found: Callable[..., Any] = self.before[name]
            return found
        owner = self.owner()
        if owner is None:
            raise TieError(
                "this is a shallow copy of a module whose ties are kept, and the module itself is gone; "
                "use copy.deepcopy, or let go first: lw.keep_ties(model, False)"
            )
        bound: Callable[..., Any] = getattr(type(owner), name).__get__(owner)
        return bound

    def apply(self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        """`Module._apply`: moves and casts."""
        with self._following():
            result = self._behind("_apply")(fn, *args, **kwargs)
            for bond, number in self.bonds:
                if number in bond.members and bond.is_buffer_view(number) and bond.source in bond.slots:
                    bond.apply_to_source(fn)
        return result

    def load(
        self, state: dict[str, Any], prefix: str, metadata: Any, strict: bool, missing: list[str], *rest: Any
    ) -> None:
        """`Module._load_from_state_dict`: every load, of this module or of one above it."""
        owner: Any = self.owner()
        load = self._behind("_load_from_state_dict")

        def reconcile(state: dict[str, Any], prefix: str, *_: Any) -> None:
            filled = [key for check in self.checks for key in check.reconcile(owner, state, prefix, missing)]
            self._filled = missing, filled

        # As the last of the hooks, since others may rename keys.
        hooks = owner._load_state_dict_pre_hooks
        hooks[KEEPER] = reconcile
        try:
            with self._following():
                load(state, prefix, metadata, strict, missing, *rest)
        finally:
            hooks.pop(KEEPER, None)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """`Module.load_state_dict`, of this module itself, whatever arguments its class has given it."""
        result = self._behind("load_state_dict")(*args, **kwargs)
        missing = getattr(result, "missing_keys", None)
        strict = kwargs.get("strict", args[1] if len(args) > 1 else True)
        if not strict and isinstance(missing, list) and self._filled[0] is missing:
            # A name that was not given is missing, for whoever asks; only a strict load has no quarrel with it.
            missing.extend(key for key in self._filled[1] if key not in missing)
        return result

    @contextmanager
    def _following(self) -> Iterator[None]:
        before = []
        for bond, number in self.bonds:
            if number in bond.slots:
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


def keeper_of(module: nn.Module) -> Keeper:
    """The keeper of a module, which is made where there is none."""
    keeper: Keeper | None = module.__dict__.get(KEEPER)
    if keeper is None or keeper.owner() is not module:
        keeper = Keeper(module)
        keeper.install()
    return keeper


def keepers(objects: list[Any]) -> list[Keeper]:
    """The keepers that there are, each once."""
    found = (obj.__dict__.get(KEEPER) for obj in objects if isinstance(obj, nn.Module))
    return list({id(keeper): keeper for keeper in found if keeper is not None}.values())


def bonds_at(owner: nn.Module, name: str) -> list[tuple[Bond, int]]:
    """The bonds that a name of a module belongs to."""
    keeper: Keeper | None = owner.__dict__.get(KEEPER)
    held = keeper.bonds if keeper is not None else []
    return [(bond, n) for bond, n in held if n in bond.slots and bond.slots[n].name == name]


def declared(objects: list[Any]) -> list[tuple[int, Declared]]:
    """The ties that are kept, by the number of a module that has all their names below it."""
    if not _kept:
        return []
    found = []
    for number, obj in enumerate(objects):
        keeper = obj.__dict__.get(KEEPER) if isinstance(obj, nn.Module) else None
        complete = [check for check in keeper.checks if check.complete] if keeper is not None else []
        for check in complete:
            keys = tuple((key, op) for which, key, op in check.keys if which in check.bond.members)
            found.append((number, Declared(keys)))
    return found
