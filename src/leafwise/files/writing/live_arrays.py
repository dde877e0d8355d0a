"""Writes arrays of a live model into a checkpoint: several threads copy parts of them out of a device, hash and write
them, in any order.

As in `streaming`, the place of every byte is known before it is written, and memory is bounded by the parts that the
threads work on. Each byte is copied once, and the copy is hashed and written.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

from leafwise.core.capabilities.saving import Extraction, Part
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import WRITERS, in_order
from leafwise.errors import FileError
from leafwise.files.arrays.ranges import over, scratch
from leafwise.files.arrays.stored import ITEM_BYTES, numpy_dtype
from leafwise.files.casts import cast_into
from leafwise.files.checksums import CHUNK, checksummer, count
from leafwise.files.writing.output import Output
from leafwise.files.writing.writer import WrittenParts

_ARRAYS_AT_ONCE = 1_024  # small arrays that are copied and written at once


class LiveArray(NamedTuple):
    """An array of a live model, how it is copied out, and its own dtype. `saturate` is whether values that do not fit
    into the dtype in the file become the nearest that do. `named` adds the name of the array to errors."""

    value: Any
    extraction: Extraction
    dtype: str
    saturate: bool = False
    named: Callable[[], AbstractContextManager[None]] = nullcontext


class PlacedLive(NamedTuple):
    """A live array, its dtype and number of bytes in the file, and the offset of its first byte there."""

    array: LiveArray
    dtype: str
    nbytes: int
    start: int


def write(output: Output, arrays: list[PlacedLive], progress: Count) -> list[list[str]]:
    """Writes arrays, which are in the order of the file, into gaps. Returns the checksums of the chunks of each."""
    sums = [[""] * count(placed.nbytes, CHUNK) for placed in arrays]
    tasks = list(
        _tasks([_Range(placed, digits, 0, placed.nbytes) for placed, digits in zip(arrays, sums, strict=True)])
    )
    written = WrittenParts(output, progress)

    def work(number: int, task: list[_Range]) -> None:
        _write_together(output, task)
        written.add(number, sum(each.stop - each.start for each in task), task[-1].placed.start + task[-1].stop)

    with ExitStack() as ending:
        for extraction in {id(placed.array.extraction): placed.array.extraction for placed in arrays}.values():
            ending.callback(extraction.finish)
        in_order(work, tasks, WRITERS)
    return sums


class _Range(NamedTuple):
    """A range of the bytes of an array in the file, and where the checksums of the array go."""

    placed: PlacedLive
    sums: list[str]
    start: int
    stop: int

    @property
    def offset(self) -> int:
        return self.placed.start + self.start

    @property
    def extraction(self) -> Extraction:
        return self.placed.array.extraction

    @property
    def is_cast(self) -> bool:
        return self.placed.array.dtype != self.placed.dtype

    def part(self) -> Part:
        """The range of the array itself, before it is cast."""
        array, own, item = self.placed.array, ITEM_BYTES[self.placed.array.dtype], ITEM_BYTES[self.placed.dtype]
        return Part(array.value, self.start // item * own, self.stop // item * own)

    @property
    def largest(self) -> int:
        """The number of bytes, before or after the cast."""
        part = self.part()
        return max(self.stop - self.start, part.stop - part.start)


def _tasks(arrays: list[_Range]) -> Iterator[list[_Range]]:
    """What threads copy and write at once: a part of a large array, or several small arrays."""
    together: list[_Range] = []
    filled = 0
    for array in arrays:
        largest = array.extraction.largest
        fits = filled + array.largest <= largest and len(together) < _ARRAYS_AT_ONCE
        if together and not (fits and together[0].extraction is array.extraction):
            yield together
            together, filled = [], 0
        if array.largest > largest:
            yield from ([part] for part in _cut(array))
        elif array.stop:
            together.append(array)
            filled += array.largest
    if together:
        yield together


def _cut(array: _Range) -> Iterator[_Range]:
    """A large array in parts, which consist of whole chunks with one checksum each."""
    chunk = array._replace(stop=min(CHUNK, array.stop))
    step = CHUNK * max(1, array.extraction.largest // chunk.largest)
    for start in range(0, array.stop, step):
        yield array._replace(start=start, stop=min(start + step, array.stop))


def _write_together(output: Output, ranges: list[_Range]) -> None:
    """Copies ranges at once, and writes them; those that follow one another in the file, at once, too."""
    extraction = ranges[0].extraction
    if not any(each.is_cast for each in ranges):
        with _copied(extraction, [each.part() for each in ranges]) as view:
            _write_hashed(output, view, ranges)
        return
    with scratch([sum(each.stop - each.start for each in ranges)]) as [buffer]:
        filled = 0
        for batch in _copied_at_once(ranges):
            parts = [each.part() for each in batch]
            with _copied(extraction, parts) as view:
                _cast(view, parts, batch, buffer[filled:])
            filled += sum(each.stop - each.start for each in batch)
        _write_hashed(output, buffer, ranges)


@contextmanager
def _copied(extraction: Extraction, parts: list[Part]) -> Iterator[memoryview]:
    expected = sum(part.stop - part.start for part in parts)
    with extraction.copied(parts) as view:
        if len(view) != expected:
            raise FileError(
                f"cannot save an array that was resized meanwhile: {expected:,} bytes were expected but there are "
                f"{len(view):,}; nothing was saved"
            )
        yield view


def _write_hashed(output: Output, view: memoryview, ranges: list[_Range]) -> None:
    checksum = checksummer()
    run_start = taken = 0  # where bytes that follow one another in the file begin in the view, and where they end
    for number, each in enumerate(ranges):
        at = taken - each.start
        for first in range(each.start, each.stop, CHUNK):
            each.sums[first // CHUNK] = checksum(view[at + first : at + min(first + CHUNK, each.stop)])
        taken += each.stop - each.start
        end = each.placed.start + each.stop
        if number + 1 == len(ranges) or ranges[number + 1].offset != end:
            output.fill(view[run_start:taken], end - (taken - run_start))
            run_start = taken


def _copied_at_once(ranges: list[_Range]) -> Iterator[list[_Range]]:
    """The ranges in parts that fit into a buffer: before a cast, a chunk may have several times as many bytes."""
    largest = ranges[0].extraction.largest
    if len(ranges) > 1 or ranges[0].largest <= largest:
        yield ranges
        return
    (whole,) = ranges
    items = ITEM_BYTES[whole.placed.dtype], ITEM_BYTES[whole.placed.array.dtype]
    step = largest // max(items) * items[0]
    for start in range(whole.start, whole.stop, step):
        yield [whole._replace(start=start, stop=min(start + step, whole.stop))]


def _cast(view: memoryview, parts: list[Part], ranges: list[_Range], buffer: memoryview) -> None:
    taken = filled = 0
    for part, each in zip(parts, ranges, strict=True):
        array, length = each.placed.array, each.stop - each.start
        own = over(view[taken : taken + part.stop - part.start], numpy_dtype(array.dtype))
        out = over(buffer[filled : filled + length], numpy_dtype(each.placed.dtype))
        with array.named():
            cast_into(own, out, array.saturate)
        taken, filled = taken + part.stop - part.start, filled + length
