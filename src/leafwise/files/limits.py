"""How much a file may ask for while it is opened: bytes of memory, and steps of work.

A file of some hundred bytes can describe gigabytes, or work for a year. Counting what it holds does not help: the
readers count what they make of it, in bytes, and what they do, in steps of less than a microsecond. The limits are such
that whatever a file of 100 MB says takes some seconds and less than 500 MB; whoever trusts a file can raise them.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from time import thread_time
from typing import Any

from leafwise.core.flat import MAX_DOTS
from leafwise.errors import QueryError

MAX_BYTES = 400_000_000
MAX_STEPS = 24_000_000

LISTED = 300  # bytes that the walk needs for an array and its names
GROUP = 400  # bytes that the walk needs for a common front of names

_BATCH = 1_000  # keys that are put into a table between two looks at the clock
_SLOW = 0.1  # seconds that tables may take beyond what keys take that do not collide
_PER_KEY = 3e-6  # seconds; usually a tenth of that


_usual: ContextVar[tuple[int, int]] = ContextVar("usual limits", default=(MAX_BYTES, MAX_STEPS))


@contextmanager
def allowing(max_bytes: int | None, max_steps: int | None) -> Iterator[None]:
    """Other limits for all files that are opened meanwhile and are not given any."""
    token = _usual.set((max_bytes or MAX_BYTES, max_steps or MAX_STEPS))
    try:
        yield
    finally:
        _usual.reset(token)


class LimitError(ValueError):
    """A file asks for more than it may; turned into a FileError that names the file."""


class Limits:
    """What a file that is being opened may still ask for."""

    __slots__ = ("_repeated", "bytes", "max_bytes", "max_steps", "steps")

    def __init__(self, max_bytes: int | None = None, max_steps: int | None = None) -> None:
        usual_bytes, usual_steps = _usual.get()
        for option, limit in (("max_bytes", max_bytes), ("max_steps", max_steps)):
            if limit is not None and (type(limit) is not int or limit < 1):
                raise QueryError(f"{option}= takes a whole number above 0, not {limit!r}")
        self.max_bytes = self.bytes = usual_bytes if max_bytes is None else max_bytes
        self.max_steps = self.steps = usual_steps if max_steps is None else max_steps
        self._repeated = 0

    @classmethod
    def none(cls) -> "Limits":
        """No limits, for what this process has written itself."""
        return cls(sys.maxsize, sys.maxsize)

    def anew(self) -> "Limits":
        """The same limits, with nothing used up."""
        return Limits(self.max_bytes, self.max_steps)

    def spend_bytes(self, count: int) -> None:
        """Says that so many bytes of memory are about to be taken."""
        self.bytes -= count
        if self.bytes < 0:
            raise LimitError(
                f"it asks for more than {self.max_bytes:,} bytes of memory; if you trust the file, allow more with "
                "lw.open(path, max_bytes=…) or --max-bytes"
            )

    def allows_repeats(self, count: int) -> bool:
        """Whether arrays that show stored bytes again and again may add so many to what they hold: a quarter of what
        may be made, since who looks at values makes copies of them."""
        allowed = self._repeated + count <= self.max_bytes // 4
        self._repeated += count if allowed else 0
        return allowed

    def spend_repeats(self, count: int) -> None:
        """Says that values that are referred to again and again add so many bytes to those that are there once. A
        sixteenth of what may be made: to print or compare a value takes longer than to list it."""
        if count > self.max_bytes // 16:
            raise LimitError(
                "a few values in it are referred to so often that they stand for "
                f"more than {self.max_bytes // 16:,} bytes of others; if you trust the file, allow more with "
                "lw.open(path, max_bytes=…) or --max-bytes"
            )

    def spend_steps(self, count: int) -> None:
        """Says that so many steps are about to be taken."""
        self.steps -= count
        if self.steps < 0:
            raise LimitError(
                f"it asks for more than {self.max_steps:,} steps of work; if you trust the file, allow more with "
                "lw.open(path, max_steps=…) or --max-steps"
            )


def json_cost(text: bytes) -> int:
    """A lower bound of the bytes that a JSON text and its values take in memory: counts brackets, quotes and commas."""
    wide = 1 if text.isascii() else 4
    signs = (b'"', 40), (b"[", 80), (b"{", 240), (b",", 60)
    # Keys that come again are made once, and what is escaped begins no text.
    free = (b'"dtype":', 80), (b'"shape":', 80), (b'"data_offsets":', 80), (b'\\"', 40)
    cost = sum(text.count(sign) * size for sign, size in signs) - sum(text.count(part) * size for part, size in free)
    return 2 * wide * len(text) + max(cost, 0)


def names_cost(names: Iterable[str], most: int) -> int:
    """The bytes that the walk makes of arrays under dotted names: a leaf for each, and a node for each common front.
    Does not count on when they are more than `most`."""
    fronts: set[str] = set()
    cost = 0
    for name in names:
        cost += LISTED
        if name.count(".") > MAX_DOTS:
            continue  # it is left whole
        head = name.rpartition(".")[0]
        while head and head not in fronts and cost <= most:
            cost += GROUP + 2 * len(head)
            fronts.add(head)
            head = head.rpartition(".")[0]
        if cost > most:
            break
    return cost


class HashClock:
    """Watches the time that keys take to get into tables.

    Numbers, and tuples of them, can be chosen so that all land in one place of a table, where each one is compared with
    all before it. (Text cannot: its hash differs from process to process.) What that costs depends on the table, so it
    is measured: no keys that were not chosen for it come near the limit.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _SLOW

    def fill(self, add: Callable[[Any], object], items: Sequence[Any]) -> None:
        """Hands the items to `add`, some at a time."""
        rest = iter(items)
        while batch := list(islice(rest, _BATCH)):
            started = thread_time()
            add(batch)
            self.took(thread_time() - started, len(batch))

    def took(self, seconds: float, keys: int) -> None:
        """Says how long some keys took."""
        self.left -= max(0.0, seconds - keys * _PER_KEY)
        if self.left < 0:
            raise LimitError(
                "its keys are numbers that were chosen to have the same place in a table, so that to look one up takes "
                "for ever; no checkpoint has such keys by chance"
            )


def filled_set(items: Sequence[Any]) -> set[Any]:
    """A set of these."""
    filled: set[Any] = set()
    HashClock().fill(filled.update, items)
    return filled


def filled_dict(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict of these; of a key that comes twice, the last one."""
    filled: dict[Any, Any] = {}
    HashClock().fill(filled.update, pairs)
    return filled
