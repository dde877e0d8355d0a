"""Arrays that are sharded over several processes, and the ranks that share them."""

from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import accumulate
from typing import Any

from leafwise.core.capabilities import Capability
from leafwise.core.memory.sharding import LocalPart, Sharding

_UNEVEN = 3  # `overlay` sends the data about twice
_SMALL_MESSAGE_BYTES = 1 << 16  # bytes that a rank may receive for nothing


class Messages:
    """Messages between the ranks of a team that do not use its process groups: a background thread may send them while
    the process trains, and a rank that has died is noticed. A context manager; every rank must leave it."""

    def meet(self, data: bytes, answer: Callable[[list[bytes]], list[bytes]]) -> bytes:
        """Sends the data of every rank, of any number of bytes, to the first rank of the team. There, `answer` is
        called with all of them, in the order of the ranks, and returns a reply to each rank. If a rank has died or has
        left, or if `answer` raises, every rank raises `RankError`; but the first raises what `answer` raised."""
        raise NotImplementedError

    def __enter__(self) -> "Messages":
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        pass


class Team:
    """The ranks over which some arrays are sharded.

    `ranks` has their numbers in the whole job, and `rank` is the position of this process among them. Every rank must
    call the same methods in the same order.
    """

    def __init__(self, rank: int, ranks: tuple[int, ...]) -> None:
        self.rank, self.ranks = rank, ranks

    @property
    def size(self) -> int:
        return len(self.ranks)

    def start_gather(self, data: bytes) -> Callable[[], list[bytes]]:
        """Starts to collect the data of every rank, of which each has the same number of bytes. The result waits for
        them, and returns them in the order of `ranks`. Raises `RankError` if a rank cannot be reached."""
        raise NotImplementedError

    def exchange(self, pieces: list[bytes]) -> list[bytes]:
        """Sends a piece of any length to each rank, in the order of `ranks`, and returns the pieces that they sent to
        this one, in the same order. Raises `RankError` if a rank cannot be reached."""
        raise NotImplementedError

    def overlay(self, data: bytes) -> bytes:
        """Combines the data of all ranks, of which each has the same number of bytes. At each place, at most one rank
        may have a byte other than 0. Raises `RankError` if a rank cannot be reached."""
        raise NotImplementedError

    def messages(self) -> Messages:
        """A way to send messages that does not use process groups; making it does."""
        raise NotImplementedError

    def gather(self, data: Any) -> list[Any]:
        """Collects the data of every rank, in the order of `ranks`: bytes of the same length, or NumPy arrays of the
        same shape and dtype."""
        if isinstance(data, bytes):
            return list(self.start_gather(data)())
        np = import_module("numpy")
        gathered = self.start_gather(data.tobytes())()
        return [np.frombuffer(piece, data.dtype).reshape(data.shape).copy() for piece in gathered]

    def gather_any(self, data: bytes) -> list[bytes]:
        """Collects the bytes of every rank, of which each may have another number."""
        lengths = [int.from_bytes(length, "big") for length in self.gather(len(data).to_bytes(8, "big"))]
        longest, total = max(lengths), sum(lengths)
        if self.size * longest > max(_UNEVEN * total, _SMALL_MESSAGE_BYTES):
            # Few ranks have much: if all sent as much as these, every rank would receive many times what there is.
            ends = list(accumulate(lengths))
            before = ends[self.rank] - len(data)
            joined = self.overlay(bytes(before) + data + bytes(total - ends[self.rank]))
            return [joined[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        pieces = self.gather(data.ljust(longest, b"\0"))
        return [piece[:length] for piece, length in zip(pieces, lengths, strict=True)]


class Distributing(Capability):
    """By default, every array is whole, and there is only this process.

    `Spec.sharding` is how an array is sharded, and its shape and size are those of the whole array. Nothing here
    communicates, except the methods of a `Team`."""

    has_defaults = True

    def may_shard(self, types: Iterable[type]) -> bool:
        """Whether arrays of these types may be sharded; a fast check."""
        return False

    def sharding(self, value: Any) -> Sharding | None:
        """How an array is sharded; None if it is whole."""
        return self.home.spec(value).sharding

    def local(self, value: Any) -> Any:
        """The framework's own array of the elements in this process, never a copy; the array itself if it is whole."""
        return self.home.value(value)

    def cannot_use_parts(self, value: Any) -> str:
        """Why `parts` are not the values of an array; empty if they are."""
        return ""

    def parts(self, value: Any) -> list[LocalPart]:
        """The parts of an array that are in this process: none, one, or several if it is not one box. They are over the
        memory of the array. Raises `Unsupported` if `cannot_use_parts` has a reason."""
        shape = self.home.spec(value).shape or ()
        return [LocalPart(value, (0,) * len(shape), shape)]

    def empty_like(self, value: Any, dtype: str) -> Any:
        """A new array of another dtype that is sharded in the same way, with arbitrary values; only for sharded
        arrays. It is on the same device, or on that of the mesh if `value` has no memory."""
        raise self.missing("make a sharded array")

    def counts_here(self, value: Any, team: Team) -> bool:
        """Whether the parts of an array count on this rank in a sum over a team: if several ranks have copies of the
        same elements, only the first of them counts. Of a whole array, every rank has a copy."""
        return team.rank == 0

    def loaded_together(self, values: list[Any]) -> list[Any]:
        """Those of these arrays that are whole, but into which all ranks of their `team` must load together, because
        each rank also has a part of a copy of them."""
        return []

    def team(self, values: list[Any]) -> Team | None:
        """The ranks over which these arrays are sharded; None if all of them are whole. Raises `RankError` if no mesh
        of this process contains all of these ranks."""
        return None

    def cannot_be_unit(self, obj: Any) -> str:
        """Why the arrays of a node cannot be sharded and gathered together; empty if they can. See `lw.shard_units`."""
        return f"{self.home.name} does not shard models unit by unit"

    def drop_gathered(self, objects: list[Any]) -> None:
        """Makes nodes use their own arrays again, if a forward has left gathered copies of them. The copies would
        otherwise be used by the next forward, whatever the arrays are then."""

    def gathered(self, objects: list[Any]) -> dict[int, str]:
        """Nodes whose arrays are not their own at the moment, because a forward uses gathered copies: the reason, by
        number. The list may contain objects of other homes."""
        return {}
