"""Limits on what opening a file may cost: bytes of memory, and steps of work.

A file of a few hundred bytes can describe gigabytes of values, or a year of work. Its size says little, so the readers
count the bytes that they allocate, and their work in steps of less than a microsecond. With the default limits, any
file of 100 MB takes a few seconds and less than 500 MB of memory; users who trust a file can raise the limits.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from time import thread_time
from typing import Any

from leafwise.core.dotted import MAX_DOTS
from leafwise.errors import QueryError

MAX_BYTES = 400_000_000
MAX_STEPS = 24_000_000
MAX_DOWNLOAD = 5_000_000_000
_SMALL_FILE_STEPS, _STEPS_PER_BYTE = 6_100_000, 2  # a file of 9 MB may take MAX_STEPS
ALLOW_MORE = "if you trust the file, allow more with lw.open(path, max_bytes=…) or --max-bytes"

LISTED = 300  # bytes of memory that the walk needs for an array and its name
GROUP = 400  # bytes of memory that the walk needs for a common prefix of names

# Bytes of memory for what begins with a sign of a JSON text, and for the keys of the rows of safetensors.
_QUOTE, _BRACKET, _BRACE, _COMMA, _KEY = 40, 80, 240, 60, 80
ROW_KEYS = ("dtype", "shape", "data_offsets")

_KEYS_AT_ONCE = 1_000  # keys that are inserted between two readings of the clock
_SLOW = 0.1  # seconds that inserting keys may take in addition to _PER_KEY for each key
_PER_KEY = 3e-6  # seconds; usually it takes a tenth of that


_USUAL = MAX_BYTES, MAX_STEPS, MAX_DOWNLOAD, False
_usual: ContextVar[tuple[int, int, int, bool]] = ContextVar("usual limits", default=_USUAL)


@contextmanager
def allowing(max_bytes: int | None, max_steps: int | None, max_download: int | None, strict: bool) -> Iterator[None]:
    """Sets the limits for files that are opened inside the block without explicit limits."""
    token = _usual.set((max_bytes or MAX_BYTES, max_steps or MAX_STEPS, max_download or MAX_DOWNLOAD, strict))
    try:
        yield
    finally:
        _usual.reset(token)


class LimitError(ValueError):
    """Opening a file takes more than its limits allow. Callers turn this into a FileError that names the file."""


class Limits:
    """The memory and the work that are left for opening a file, and the bytes that may still be downloaded. If it is
    opened strictly, objects of classes that leafwise does not load are refused."""

    __slots__ = (
        "_is_given",
        "_repeated",
        "bytes",
        "downloads",
        "max_bytes",
        "max_download",
        "max_steps",
        "steps",
        "strict",
    )

    def __init__(
        self,
        max_bytes: int | None = None,
        max_steps: int | None = None,
        max_download: int | None = None,
        strict: bool | None = None,
    ) -> None:
        usual_bytes, usual_steps, usual_download, usually_strict = _usual.get()
        given = ("max_bytes", max_bytes), ("max_steps", max_steps), ("max_download", max_download)
        for option, limit in given:
            if limit is not None and (type(limit) is not int or limit < 1):
                raise QueryError(f"{option}= takes a whole number above 0, not {limit!r}")
        self.max_bytes = self.bytes = usual_bytes if max_bytes is None else max_bytes
        self.max_steps = self.steps = usual_steps if max_steps is None else max_steps
        self.max_download = self.downloads = usual_download if max_download is None else max_download
        self.strict = usually_strict if strict is None else strict
        self._is_given = max_steps is not None
        self._repeated = 0

    @classmethod
    def none(cls) -> "Limits":
        """No limits, for files that this process has written itself."""
        return cls(sys.maxsize, sys.maxsize, sys.maxsize)

    def anew(self) -> "Limits":
        """The same limits, with nothing spent yet."""
        limits = Limits(self.max_bytes, self.max_steps, self.max_download, self.strict)
        limits._is_given = self._is_given
        return limits

    def spend_bytes(self, count: int) -> None:
        """Subtracts bytes of memory from what is left. Call it before allocating them."""
        self.bytes -= count
        if self.bytes < 0:
            raise LimitError(f"reading it takes more than {self.max_bytes:,} bytes of memory; {ALLOW_MORE}")

    def fit(self, size: int) -> None:
        """Lowers the default limit of steps for a file of this many bytes: what takes long should at least be large."""
        if self.max_steps == MAX_STEPS and not self._is_given:
            self.max_steps = self.steps = min(MAX_STEPS, _SMALL_FILE_STEPS + _STEPS_PER_BYTE * size)

    def allows_repeats(self, count: int) -> bool:
        """Whether arrays that repeat stored bytes, as expanded ones do, may add `count` bytes. In total they may add a
        quarter of `max_bytes`, since reading the values copies them."""
        allowed = self._repeated + count <= self.max_bytes // 4
        self._repeated += count if allowed else 0
        return allowed

    def spend_repeats(self, count: int) -> None:
        """Raises if repeated references to the same values add more than a sixteenth of `max_bytes`. The limit is lower
        than for arrays, because printing or comparing a value takes longer than listing it."""
        if count > self.max_bytes // 16:
            raise LimitError(
                "it refers to the same values so often that they would expand to "
                f"more than {self.max_bytes // 16:,} bytes; {ALLOW_MORE}"
            )

    def spend_paths(self, count: int) -> None:
        """Raises if the paths of all values take more than a quarter of `max_bytes`: each has the names above it."""
        if count > self.max_bytes // 4:
            raise LimitError(
                "its values are under names so long, or so deeply nested, that their paths take more than "
                f"{self.max_bytes // 4:,} bytes; {ALLOW_MORE}"
            )

    def spend_download(self, count: int) -> None:
        """Subtracts bytes from what may be downloaded from servers that cannot send a part of a file."""
        self.downloads -= count
        if self.downloads < 0:
            raise LimitError(
                "the server cannot send a part of a file, and all of it is more than the "
                f"{self.max_download:,} bytes that leafwise downloads; allow more with lw.open(path, max_download=…) "
                "or --max-download, or download the file first"
            )

    def spend_steps(self, count: int) -> None:
        """Subtracts steps of work from what is left. Call it before doing the work."""
        self.steps -= count
        if self.steps < 0:
            raise LimitError(
                f"reading it takes more than {self.max_steps:,} steps of work; if you trust the file, allow more "
                "with lw.open(path, max_steps=…) or --max-steps"
            )


def json_cost(text: bytes) -> int:
    """A lower bound for the memory of a JSON text and its values, from the number of brackets, quotes and commas."""
    wide = 1 if text.isascii() else 4
    return 2 * wide * len(text) + max(_signs_cost(text), 0)


def _signs_cost(text: bytes) -> int:
    signs = (b'"', _QUOTE), (b"[", _BRACKET), (b"{", _BRACE), (b",", _COMMA)
    # Not counted: keys that repeat, which are allocated once, and escaped quotes, which do not begin a string.
    free = *((f'"{key}":'.encode(), _KEY) for key in ROW_KEYS), (b'\\"', _QUOTE)
    return sum(text.count(sign) * size for sign, size in signs) - sum(text.count(part) * size for part, size in free)


def header_cost(length: int, rows: int, shape_commas: int, metadata: bytes) -> int:
    """What `json_cost` returns for a header of safetensors in which each of the rows has three keys, with a number of
    commas in their shapes. `metadata` is the value of `__metadata__`; empty if there is none."""
    quotes, commas = 10 * rows, 4 * rows - 1 + shape_commas
    signs = quotes * _QUOTE + commas * _COMMA + 2 * rows * _BRACKET + (rows + 1) * _BRACE - len(ROW_KEYS) * rows * _KEY
    if metadata:
        signs += 2 * _QUOTE + _COMMA + _signs_cost(metadata)
    return 2 * length + max(signs, 0)


def names_cost(names: Iterable[str], most: int) -> int:
    """The bytes that the walk needs for arrays with dotted names: a leaf for each name, and a node for each common
    prefix. Stops counting above `most`."""
    prefixes: set[str] = set()
    cost = 0
    for name in names:
        cost += LISTED
        if name.count(".") > MAX_DOTS:
            continue  # names with more dots are not split
        head = name.rpartition(".")[0]
        while head and head not in prefixes and cost <= most:
            cost += GROUP + 2 * len(head)
            prefixes.add(head)
            head = head.rpartition(".")[0]
        if cost > most:
            break
    return cost


class HashClock:
    """Measures the time that it takes to insert keys into dicts and sets.

    Numbers, and tuples of numbers, can be chosen so that all their hashes collide, and each key is compared with all
    keys before it. (This is impossible with text, whose hashes differ from process to process.) The cost depends on the
    table, so it is measured. Keys that were not chosen to collide do not come near the limit.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _SLOW

    def fill(self, add: Callable[[Any], object], items: Sequence[Any]) -> None:
        """Passes the items to `add`, a batch at a time."""
        rest = iter(items)
        while batch := list(islice(rest, _KEYS_AT_ONCE)):
            started = thread_time()
            add(batch)
            self.took(thread_time() - started, len(batch))

    def took(self, seconds: float, keys: int) -> None:
        """Counts the time that it took to insert a number of keys."""
        self.left -= max(0.0, seconds - keys * _PER_KEY)
        if self.left < 0:
            raise LimitError(
                "its keys are numbers that were chosen to have colliding hashes, so that looking them up would take "
                "forever; no checkpoint has such keys by accident"
            )


def filled_set(items: Sequence[Any]) -> set[Any]:
    """A set of the items; raises if their hashes collide too often."""
    filled: set[Any] = set()
    HashClock().fill(filled.update, items)
    return filled


def filled_dict(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """A dict of the pairs; if keys are equal, the last one counts. Raises if their hashes collide too often."""
    filled: dict[Any, Any] = {}
    HashClock().fill(filled.update, pairs)
    return filled
