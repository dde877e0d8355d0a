"""The record of one tie between PyTorch modules: a `Bond`, which the keepers of all modules in the tie share.

A bond is copied and pickled together with its modules. Each copied keeper then registers the tensors of its module with
the new bond.
"""

import warnings
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from leafwise.core.capabilities.tying import Keep
from leafwise.core.memory.ops import Op
from leafwise.errors import TieWarning
from leafwise.homes.torch.values.tensor_values import same_memory, seen_through

KEEPER = "_leafwise_keeper"  # the attribute of a module for its `keepers.TieKeeper`


class TensorSlot:
    """Where a module stores one tensor: in its dict of parameters or of buffers.

    It refers to the dict, not only to the module, because the dicts of a module are copied before the module exists.
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
        current: dict[str, Any] | None = None
        if owner is not None:
            current = owner.__dict__.get("_buffers" if self.in_buffers else "_parameters")
        return self._tensors if current is None else current

    def held(self) -> Any:
        return self.tensors.get(self.name)

    def put(self, tensor: torch.Tensor) -> None:
        owner = self.owner()
        if owner is None or owner.__dict__.get("_parameters") is None:
            self.tensors[self.name] = tensor
        else:
            setattr(owner, self.name, tensor)  # a recurrent layer also has its own list of weights


class BondMember(NamedTuple):
    """What a bond knows about one name, even while its module does not exist."""

    path: str
    name: str
    op: Op
    in_buffers: bool
    viewed: bool  # a `tied_views.ParameterView`, computed by a property and not kept in a dict


class Bond:
    """One tie: its names, and where each of them stores the tensor. Names are numbered."""

    def __init__(self) -> None:
        self.keep: Keep | None = None
        self.source = 0
        self.members: dict[int, BondMember] = {}
        self.slots: dict[int, TensorSlot] = {}
        self.gone: set[int] = set()  # members whose module no longer existed when this was copied
        self.waiting: list[Callable[[], None]] = []  # views that were copied before their source
        self.checkers: list[weakref.ref[nn.Module]] = []  # modules whose keepers check state dicts for this tie

    def __getstate__(self) -> dict[str, Any]:
        dead = {number for number, slot in self.slots.items() if slot.owner() is None}
        return {"keep": self.keep, "source": self.source, "members": dict(self.members), "gone": self.gone | dead}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.keep, self.source = state["keep"], state["source"]
        self.members, self.gone = state["members"], state["gone"]
        self.slots, self.waiting, self.checkers = {}, [], []

    def add(self, member: BondMember, slot: TensorSlot) -> int:
        number = max(self.members, default=-1) + 1
        self.members[number] = member
        self.slots[number] = slot
        return number

    def join(self, number: int, slot: TensorSlot) -> None:
        """Called by a keeper that was copied or unpickled, with its slot."""
        self.slots[number] = slot
        if number == self.source:
            for attach in self.waiting:
                attach()
            self.waiting.clear()
        if self.slots.keys() | self.gone == self.members.keys() | self.gone:
            self.renew_buffer_views([member for member in self.slots if self.is_buffer_view(member)])

    def number_of(self, owner: nn.Module, name: str) -> int | None:
        slots = self.slots.items()
        return next((number for number, slot in slots if slot.owner() is owner and slot.name == name), None)

    def remove(self, number: int) -> None:
        self.members.pop(number, None)
        self.slots.pop(number, None)
        if number == self.source:
            self.source = next(filter(self.is_plain, self.members), -1)

    def is_plain(self, number: int) -> bool:
        """Whether the name has the source tensor itself, not a view."""
        member = self.members[number]
        return not member.viewed and member.op == "same"

    def is_buffer_view(self, number: int) -> bool:
        """Whether the name is a buffer with a view of the source."""
        member = self.members[number]
        return not member.viewed and member.op != "same"

    def source_tensor(self) -> Any:
        slot = self.slots.get(self.source)
        return None if slot is None else slot.held()

    def intact(self, number: int) -> bool:
        """Whether the name is still tied as declared."""
        slot, source = self.slots.get(number), self.source_tensor()
        if slot is None or source is None or slot.owner() is None:
            return False
        held = slot.held()
        if self.members[number].viewed:
            return held is None
        if self.members[number].op == "same":
            return held is source
        return held is not None and same_memory(held, seen_through(source.detach(), self.members[number].op))

    def tied_to(self, number: int) -> list[int]:
        """The other names of this tie that are still intact."""
        return [member for member in self.members if member != number and self.intact(member) and self.intact(number)]

    def holders(self, tensor: Any) -> list[int]:
        """The plain names that have this tensor."""
        return [number for number, slot in self.slots.items() if self.is_plain(number) and slot.held() is tensor]

    def follow(self, number: int, holders: list[int]) -> None:
        """Called when the tensor of one name was replaced: the names that had the old tensor get the new one, too."""
        new = self.slots[number].held()
        for holder in holders:
            if new is not None and holder in self.slots and self.slots[holder].held() is not new:
                self.slots[holder].put(new)

    def buffer_views(self) -> list[int]:
        """The buffers that still are views of the source."""
        return [number for number in self.slots if self.is_buffer_view(number) and self.intact(number)]

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
        """Applies `fn` to the source, as `Module._apply` does to all parameters and buffers."""
        slot = self.slots.get(self.source)
        tensor = None if slot is None else slot.held()
        if slot is None or tensor is None:
            return
        views = self.buffer_views()
        holder: Any = nn.Module()
        tensors = holder._parameters if isinstance(tensor, nn.Parameter) else holder._buffers
        tensors[slot.name] = tensor
        holder._apply(fn)
        if tensors[slot.name] is not tensor:
            self.replace_source(tensors[slot.name])
        self.renew_buffer_views(views)

    def dissolve(self) -> None:
        """Ends the tie: all members leave, and their keepers forget it."""
        modules = [slot.owner() for slot in self.slots.values()] + [checker() for checker in self.checkers]
        self.slots.clear()
        self.members.clear()
        for module in modules:
            keeper: Any = None if module is None else module.__dict__.get(KEEPER)
            if keeper is not None:
                keeper.bonds = [(bond, number) for bond, number in keeper.bonds if bond is not self]
                keeper.checks = [check for check in keeper.checks if check.bond is not self]
                keeper.remove_if_idle()

    def warn_of_missing(self) -> None:
        """Called when a copy is complete: warns about names that were not copied, and removes them from the tie."""
        missing = [number for number in self.members if number not in self.slots and number not in self.gone]
        if len(self.slots) == 1 and not missing and not self.checkers and len(self.members) > 1:
            self.dissolve()  # the other names no longer existed before the copy; nothing is left to be tied to
        if not self.slots or not missing:
            return
        copied = ", ".join(self.members[number].path for number in self.slots)
        lost = ", ".join(self.members[number].path + self.members[number].op.describe() for number in missing)
        for number in missing:
            self.remove(number)
        if len(self.members) < 2:
            self.dissolve()
        warnings.warn(
            TieWarning(
                f"copied {copied} without {lost}, to which it is tied: the copy is not tied; "
                "to keep the tie, copy a module that contains both"
            ),
            stacklevel=2,
        )


class CopyCompletion:
    """Notices the end of a copy. Only the memo of `copy.deepcopy`, or of the unpickler, refers to it, so it is deleted
    when the copy is complete."""

    def __init__(self, bonds: list[Bond]) -> None:
        self.bonds = bonds

    def __del__(self) -> None:
        for bond in getattr(self, "bonds", ()):
            bond.warn_of_missing()
