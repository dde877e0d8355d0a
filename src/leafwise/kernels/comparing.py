"""Comparing arrays in memory or in local files: with C code if it was built, otherwise with NumPy."""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.memory.runs import Run, UnreadError
from leafwise.core.results.comparison import Comparison, merged_comparisons
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import bundled, ranges
from leafwise.kernels import cpu, reference
from leafwise.kernels.cpu import CHUNK, PER_THREAD, of_dtypes, threads_here
from leafwise.kernels.dtypes import item_bytes, numpy_dtype, unknown_dtype
from leafwise.kernels.library import of_this_version

_BUNDLE = 128 << 20  # bytes of one side that are compared between two reports of progress
_RESULT = np.dtype(
    [
        *((name, np.int64) for name in ("differs", "changed", "nonfinite")),
        *((name, np.float64) for name in ("distance", "norm", "other_norm", "cosine", "largest")),
        *((name, np.int64) for name in ("nonfinite_changed", "distance_power", "norm_power", "other_power")),
    ]
)

Pair = tuple[Run, Run]


class PairPart(NamedTuple):
    """Some elements of a pair: the number of the pair, and where they begin and end."""

    pair: int
    start: int
    stop: int


# Comparisons of parts: one for each chunk of a part, or None for the whole part if both sides are the same.
PartComparisons = list[tuple[PairPart, Comparison | None]]


def compare(
    pairs: Sequence[Pair], count: Count = lambda done: None, *, threads: int | None = None, norms: bool = False
) -> list[Comparison]:
    """Compares the runs of each pair, which have the same dtype and size; the result has the same bits for any number
    of threads. `count` is called with the number of bytes of the first runs that were compared since the last call.
    With `norms`, pairs without changes have norms, too, so that they can be combined with others.

    >>> x, y = np.array([3.0, 4.0], np.float32), np.array([3.0, 0.0], np.float32)
    >>> [comparison] = compare([(cpu.run_of(x), cpu.run_of(y))])
    >>> comparison.changed, comparison.share, comparison.relative_l2, comparison.cosine, comparison.largest
    (1, 0.5, 0.8, 0.6, 4.0)
    """
    comparisons = [Comparison(first.size, 0) for first, _ in pairs]
    open_pairs: dict[int, PartComparisons] = {}
    for bundle in _bundles(pairs):
        for part, chunks in zip(bundle, compare_parts(pairs, bundle, norms, threads), strict=True):
            open_pairs.setdefault(part.pair, []).extend(chunks)
        done = [pair for pair, chunks in open_pairs.items() if chunks[-1][0].stop == pairs[pair][0].size]
        closed = {pair: open_pairs.pop(pair) for pair in done}
        for pair, with_norms in _with_norms(closed, lambda same: compare_parts(pairs, same, True, threads)):
            comparisons[pair] = merged_comparisons(with_norms)
        count(sum((part.stop - part.start) * item_bytes(pairs[part.pair][0].dtype) for part in bundle))
    return comparisons


def compare_chunk(x: Any, y: Any) -> Comparison:
    """Compares two NumPy arrays of one dtype, not longer than a chunk; with norms, even if they are the same."""
    [chunks] = compare_parts([(cpu.run_of(x), cpu.run_of(y))], [PairPart(0, 0, x.size)], True, 1)
    return next((comparison for _, comparison in chunks if comparison is not None), Comparison(0, 0))


def combined(
    sizes: Sequence[int], compared: PartComparisons, norms_of: Callable[[list[PairPart]], list[PartComparisons]]
) -> list[Comparison]:
    """The comparison of each pair, given by its number of elements, from those of its parts, in order. `norms_of`
    compares equal parts again, with norms."""
    by_pair: dict[int, PartComparisons] = {}
    for part, chunk in compared:
        by_pair.setdefault(part.pair, []).append((part, chunk))
    comparisons = [Comparison(size, 0) for size in sizes]
    for pair, with_norms in _with_norms(by_pair, norms_of):
        comparisons[pair] = merged_comparisons(with_norms)
    return comparisons


def _with_norms(
    compared: dict[int, PartComparisons], norms_of: Callable[[list[PairPart]], list[PartComparisons]]
) -> Iterator[tuple[int, list[Comparison]]]:
    """The comparisons of each pair that changed. Equal chunks were skipped at first; their norms are computed now."""
    changed = {pair: parts for pair, parts in compared.items() if any(chunk is not None for _, chunk in parts)}
    same = [part for parts in changed.values() for part, chunk in parts if chunk is None]
    norms = dict(zip(same, norms_of(same), strict=True))
    for pair, parts in changed.items():
        chunks: list[Comparison] = []
        for part, chunk in parts:
            chunks += [chunk] if chunk is not None else [norm for _, norm in norms[part] if norm is not None]
        yield pair, chunks


def _bundles(pairs: Sequence[Pair]) -> Iterator[list[PairPart]]:
    """Parts of pairs, in bundles of about `_BUNDLE` bytes."""
    itemsizes = []
    for first, second in pairs:
        assert (first.size, first.dtype) == (second.size, second.dtype)
        itemsizes.append(item_bytes(first.dtype))
    parts = (
        PairPart(number, start, stop)
        for number, (first, _) in enumerate(pairs)
        for start, stop in ranges(first.size, CHUNK, _BUNDLE // itemsizes[number])
    )
    return bundled(parts, lambda part: (part.stop - part.start) * itemsizes[part.pair], _BUNDLE)


def compare_parts(
    pairs: Sequence[Pair], parts: list[PairPart], always: bool, threads: int | None = None
) -> list[PartComparisons]:
    """Compares the sides of each part. If they are the same, norms are computed only with `always`."""
    library = _library()
    if library is None:
        cpu.check_subnormals()
    known = [] if library is None else [part for part in parts if not unknown_dtype(pairs[part.pair][0].dtype)]
    by_part = dict(zip(known, _by_library(library, pairs, known, always, threads or threads_here()), strict=True))
    return [by_part[part] if part in by_part else _by_reference(pairs, part, always) for part in parts]


def _library() -> Any:
    """The library that was built from cpu.c; None if there is none, or if it was built from another version."""
    slow = "values are compared with NumPy, which is slower"
    return of_this_version(cpu.loaded(), "leafwise_comparison_bytes", _RESULT.itemsize, slow)


def _by_library(
    library: Any, pairs: Sequence[Pair], parts: list[PairPart], always: bool, threads: int
) -> list[PartComparisons]:
    if not parts:
        return []
    count = len(parts)
    sides = [[pairs[part.pair][side] for part in parts] for side in (0, 1)]
    dtypes = [run.dtype for run in sides[0]]
    starts = np.fromiter(
        (part.start * item_bytes(run.dtype) for part, run in zip(parts, sides[0], strict=True)), np.int64, count
    )
    addresses = [np.fromiter((run.address for run in runs), np.int64, count) + starts for runs in sides]
    files = [np.fromiter((run.file for run in runs), np.int32, count) for runs in sides]
    sizes = np.fromiter((part.stop - part.start for part in parts), np.int64, count)
    first_chunks = np.zeros(count + 1, np.int64)
    np.cumsum((sizes + CHUNK - 1) // CHUNK, out=first_chunks[1:])
    results = np.empty(int(first_chunks[-1]), _RESULT)
    kinds, values_of, values, _ = of_dtypes(dtypes)
    arguments = (*addresses, sizes, first_chunks, *files, kinds, values_of, values, results)
    failed = library.leafwise_compare(
        count,
        CHUNK,
        *(array.ctypes.data for array in arguments),
        always,
        max(1, min(threads, int(sizes.sum()) // PER_THREAD)),
        library.leafwise_instruction_sets() - 1,
    )
    if failed > 0:
        raise UnreadError(parts[(failed - 1) // 2].pair, (failed - 1) % 2)
    if failed:
        raise MemoryError("not enough memory for a block of values")
    differing = np.concatenate([[0], np.cumsum(results["differs"])])[first_chunks]
    any_differ = (differing[1:] > differing[:-1]).tolist()
    firsts = first_chunks.tolist()
    return [
        _chunks(part, results[firsts[number] : firsts[number + 1]].tolist(), always)
        if always or any_differ[number]
        else [(part, None)]
        for number, part in enumerate(parts)
    ]


def _chunks(part: PairPart, rows: list[Any], always: bool) -> PartComparisons:
    chunks: PartComparisons = []
    for start, row in zip(range(part.start, part.stop, CHUNK), rows, strict=True):
        chunk = PairPart(part.pair, start, min(start + CHUNK, part.stop))
        chunks.append((chunk, _of_row(chunk.stop - start, row) if row[0] or always else None))
    return chunks


def _of_row(size: int, row: Any) -> Comparison:
    _, changed, nonfinite, distance, norm, other_norm, cosine, largest, lost, *powers = row
    norms = (distance, powers[0]), (norm, powers[1]), (other_norm, powers[2])
    return Comparison.of((size, changed, nonfinite), norms, cosine, largest, lost)


def _by_reference(pairs: Sequence[Pair], part: PairPart, always: bool) -> PartComparisons:
    chunks: PartComparisons = []
    for start in range(part.start, part.stop, CHUNK):
        chunk = PairPart(part.pair, start, min(start + CHUNK, part.stop))
        x, y = (_array(pairs[part.pair][side], chunk, side) for side in (0, 1))
        same = x.tobytes() == y.tobytes()
        chunks.append((chunk, reference.compare(x, y) if always or not same else None))
    return chunks


def _array(run: Run, part: PairPart, side: int) -> Any:
    dtype = numpy_dtype(run.dtype)
    start, nbytes = run.address + part.start * dtype.itemsize, (part.stop - part.start) * dtype.itemsize
    if run.file < 0:
        return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(start), dtype)
    data = os.pread(run.file, nbytes, start)
    if len(data) < nbytes:
        raise UnreadError(part.pair, side)
    return np.frombuffer(data, dtype)
