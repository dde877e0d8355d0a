"""What is known of a tie of PyTorch modules: a `Bond`, which the keepers of its modules have in common.

Copying and pickling take a bond along: each keeper, when it is made anew, reports to the new bond where its module now
keeps its tensors.
"""

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.tying import Keep, Place
from leafwise.core.memory import Op
from leafwise.errors import TieWarning
from leafwise.homes.torch.values import seen_through

KEEPER = "_leafwise_keeper"  # the attribute of a module that has one; see `torch_keepers`


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
            keeper: Any = None if module is None else module.__dict__.get(KEEPER)
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
            TieWarning(
                f"copied {there} without {lost}, to which it is tied: the copy is independent; "
                "copy a module that holds both to keep the tie"
            ),
            stacklevel=2,
        )


def _same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.is_meta or b.is_meta:
        return a.is_meta and b.is_meta and a.shape == b.shape
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()


class Settled:
    """Dies when a copy is complete: nobody but the memo of the copier, or of the unpickler, refers to it."""

    def __init__(self, bonds: list[Bond]) -> None:
        self.bonds = bonds

    def __del__(self) -> None:
        for bond in getattr(self, "bonds", ()):
            bond.tell_of_missing()
