"""Statistics of arrays at rest: read once, by several threads, a piece at a time."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.moments import Moments, together
from leafwise.files.arrays import ITEM_BYTES, Coded, Storage, Stored
from leafwise.files.filling import in_threads, unchanged
from leafwise.kernels import cpu
from leafwise.kernels.cpu import PIECE, Run
from leafwise.kernels.dtypes import unknown_dtype

_BUNDLE = 8 << 20  # how many bytes a thread takes at a time


class _Part(NamedTuple):
    """A piece of an array that lies in a storage as a run of bytes."""

    array: int
    dtype: str
    storage: Storage
    start: int
    stop: int


def cannot_measure(value: Stored) -> str:
    # What a code stands for is known when it was read.
    return "" if isinstance(value, Coded) else unknown_dtype(value.spec.dtype)


def measure(values: list[Stored], histogram: bool, count: Callable[[int], None]) -> list[Moments]:
    """The moments of each array; the same bits as if it were in memory, in C order."""
    found: dict[tuple[int, int], list[Moments]] = {}

    def look(parts: list[_Part]) -> None:
        runs = []
        for part in parts:
            data = np.frombuffer(part.storage.read(part.start, part.stop), np.uint8)
            size = len(data) // ITEM_BYTES[part.dtype]
            runs.append(Run(data.__array_interface__["data"][0], size, part.dtype, data))
        for part, chunks in zip(parts, cpu.look(runs, histogram, threads=1), strict=True):
            found[part.array, part.start] = chunks
            # What is mapped counts as memory of this process, however little of it is looked at.
            part.storage.source.let_go(part.storage.start + part.start, part.storage.start + part.stop)
        count(sum(part.stop - part.start for part in parts))

    runs = [value.plain_run() for value in values]
    plain = {number: run for number, run in enumerate(runs) if run is not None and values[number].spec.size}
    in_threads(look, list(_bundles(values, plain)))
    unchanged({id(run[0].source): run[0].source for run in plain.values()}.values())
    pieces: dict[int, list[Moments]] = {}
    for number, start in sorted(found):
        pieces.setdefault(number, []).extend(found[number, start])
    return [
        together(pieces[number]) if number in pieces else _of_parts(value, histogram, count)
        for number, value in enumerate(values)
    ]


def _bundles(values: list[Stored], plain: dict[int, tuple[Storage, int, int]]) -> Iterator[list[_Part]]:
    """Pieces of arrays, and of small arrays as many as make a piece."""
    bundle: list[_Part] = []
    held = 0
    for number, (storage, start, stop) in plain.items():
        dtype = values[number].spec.dtype
        step = PIECE * ITEM_BYTES[dtype]
        for at in range(start, stop, step):
            part = _Part(number, dtype, storage, at, min(at + step, stop))
            if held and held + part.stop - part.start > _BUNDLE:
                yield bundle
                bundle, held = [], 0
            bundle.append(part)
            held += part.stop - part.start
    if bundle:
        yield bundle


def _of_parts(value: Stored, histogram: bool, count: Callable[[int], None]) -> Moments:
    """Of an array whose bytes must be put in order, or worked out."""
    pieces = _regrouped(value.parts())
    found = together([chunk for piece in pieces for chunk in cpu.look([cpu.run_of(piece)], histogram)[0]])
    count(value.spec.nbytes)
    return found


def _regrouped(parts: Iterator[Any]) -> Iterator[Any]:
    """The same values in pieces of one length, so that it does not matter how they were cut."""
    kept: list[Any] = []
    size = 0
    for part in parts:
        kept.append(np.ascontiguousarray(part, part.dtype.newbyteorder("=")).reshape(-1))
        size += part.size
        if size >= PIECE:
            joined = np.concatenate(kept) if len(kept) > 1 else kept[0]
            whole = size // PIECE * PIECE
            yield from (joined[at : at + PIECE] for at in range(0, whole, PIECE))
            kept, size = [joined[whole:]], size - whole
    if size or kept:
        yield np.concatenate(kept)
