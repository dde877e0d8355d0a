"""Writing values into the arrays of a live model. See `lw.load`."""

from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from leafwise.core.capabilities import Capability
from leafwise.core.home import Home, Memory, Spec

Order = tuple[int, ...] | None  # of the axes of an array; None is as they are


class Transfer(Protocol):
    """Copies the bytes of files to one device, in any number of threads and in any order."""

    nbytes: int  # of a buffer
    most: int  # buffers

    def takes(self, landing: "Landing") -> bool:
        """Whether it can copy to a landing: for some, it needs memory on the device."""

    def begin(self) -> None:
        """Called before copies are queued, when all arrays have their memory."""

    def buffer(self) -> AbstractContextManager[Any]:
        """Memory of the host, from which the device copies, and which no copy uses any more; its bytes are `view`."""

    def take(self) -> Any:
        """The same, until `give` is called; None if there are `most` buffers, and none is free. May take the time to
        make one."""

    def give(self, buffer: Any) -> None:
        """Gives back a buffer. Copies may still use it."""

    def is_copied(self, buffer: Any) -> bool:
        """Whether all copies from a buffer are done."""

    def copying(self) -> AbstractContextManager[None]:
        """Inside of it, `copy` may be called by this thread."""

    def copy(self, buffer: Any, parts: list[tuple[int, int, Any]]) -> None:
        """Queues copies of parts of a buffer: from `start` to `stop`, into a place given by `Landing.places`."""

    def finish(self) -> None:
        """Waits for all copies. Raises the error of the device, if there was one."""

    def spare(self, landings: "list[Landing]") -> "list[Landing | None]":
        """For each landing, a flat one for the same bytes in spare memory of the device; None if there is too little
        of it. The memory is free again when these landings are, or after `release`."""

    def release(self) -> None:
        """Frees all spare memory. No copy may be under way."""

    def move(self, pairs: "list[tuple[Landing, Landing]]") -> None:
        """Copies values from spare memory to the landings that they were read for, and waits for that."""


class Landing(Protocol):
    """Where bytes of a file go that cannot be read straight into an array, because it is on a device."""

    nbytes: int  # in the file
    itemsize: int  # of an element in the file
    is_flat: bool  # whether any elements that are neighbors in the file can be copied at once

    @property
    def device(self) -> Hashable:
        """All landings on one device use one `Transfer`."""

    def transfer(self) -> Transfer | None:
        """What copies to the device. None if there is no memory for it: then the values are written by `Home.write`."""

    def part(self, start: int, nbytes: int) -> "Landing":
        """A range of the bytes of a flat landing."""

    def places(self, most: int, piece: int) -> Iterator[tuple[int, int, Any]]:
        """Ranges of at most `most` bytes in the file, with the place in the array where each goes. If it is flat, each
        range begins at a multiple of `piece`, which is a multiple of 16."""

    def fits(self) -> bool:
        """Whether all values that were copied are known to be cast exactly as by `leafwise.kernels.casting`. If not,
        the values are cast there and written by `Home.write`. Known only after `Transfer.finish`."""


class Loading(Capability):
    has_defaults = True

    def cannot_write(self, values: list[Any]) -> list[str]:
        """For each array that has memory, why values cannot be written into it; empty if they can."""
        reason = f"{self.home.name} cannot write in place" if type(self.home).write is Home.write else ""
        return [reason] * len(values)

    def writable_bytes(self, values: list[Any]) -> list[memoryview | None]:
        """The memory of each array as writable bytes in C order; None if they are in another order, or on a device."""
        return [None] * len(values)

    def landings(self, values: list[Any], stored: list[tuple[Spec, Order]], only_check: bool) -> list[Landing | None]:
        """For each array, how the values of a stored array, with its axes in an order, are copied to it on its device,
        and cast there. With `only_check`, they are only checked for the cast, and the array is not changed. None if the
        array is not on a device, or if its values must be prepared on the CPU."""
        return [None] * len(values)

    def locations(self, values: list[Any]) -> list[tuple[object, Memory] | None]:
        """Where arrays are in memory, comparable between homes: an address space, and the memory in it, with its offset
        from the start of that space. If the bits in memory are not those of the values, as for a conjugated view, the
        dtype is followed by marks for that. None if it is not known, or if there are no values."""
        return [None] * len(values)

    def mark_written(self, values: list[Any]) -> None:
        """Notifies the framework that the memory of these arrays was written to."""

    def after_load(self, objects: list[Any]) -> None:
        """Called when the nodes have their values: runs the hooks that nodes have for this. The list may contain nodes
        of other homes."""
