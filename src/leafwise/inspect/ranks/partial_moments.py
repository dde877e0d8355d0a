"""The statistics of the parts of each rank, as bytes of a fixed size, and how they are combined."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from leafwise.core.results.moments import (
    COUNTS,
    HIGHEST,
    LOWEST,
    NOTHING,
    NUMBERS,
    Histogram,
    Moments,
    merged_moments,
    nothing,
)

_BINS = HIGHEST - LOWEST + 1
_EXTREMES = NUMBERS.index("min"), NUMBERS.index("max")
_FLOAT, _SIGNED, _UNSIGNED = range(3)  # what the extremes are: those of integers may have more digits than a float
_WORD = 1 << 64


def _row(histogram: bool) -> Any:
    fields: list[Any] = [
        ("counts", np.int64, (len(COUNTS),)),
        ("numbers", np.float64, (len(NUMBERS),)),
        ("kind", np.int64),
        ("extremes", np.uint64, (2,)),
    ]
    return np.dtype(fields + [("bins", np.int64, (_BINS,))] * histogram)


def packed_size(count: int, histogram: bool) -> int:
    """The number of bytes of the statistics of so many leaves."""
    return count * int(_row(histogram).itemsize)


def pack(moments: Sequence[Moments | None], histogram: bool) -> bytes:
    """The statistics of the part of each leaf that is on this rank; None if there is none."""
    rows = np.zeros(len(moments), _row(histogram))
    present = [number for number, part in enumerate(moments) if part is not None]
    parts = [part for part in moments if part is not None]
    if not parts:
        return rows.tobytes()
    rows["counts"][present] = [[getattr(part, name) for name in COUNTS] for part in parts]
    rows["numbers"][present] = [[getattr(part, name) for name in NUMBERS] for part in parts]
    for number, part in zip(present, parts, strict=True):
        if type(part.min) is int and type(part.max) is int:
            rows["kind"][number] = _SIGNED if part.max < _WORD // 2 else _UNSIGNED
            rows["extremes"][number] = part.min % _WORD, part.max % _WORD
        if histogram and part.histogram is not None and part.histogram.counts:
            first = part.histogram.lowest - LOWEST
            rows["bins"][number, first : first + len(part.histogram.counts)] = part.histogram.counts
    return rows.tobytes()


def merged(results: Sequence[bytes], histogram: bool) -> list[Moments]:
    """The statistics of each leaf from those of all ranks: with the same bits on every rank, as the order is fixed."""
    rows = np.stack([np.frombuffer(result, _row(histogram)) for result in results])
    parts: list[list[Moments]] = [[] for _ in range(rows.shape[1])]
    for rank_rows in rows:
        has_values = rank_rows["counts"][:, 0] > 0
        counts, numbers = rank_rows["counts"].tolist(), rank_rows["numbers"].tolist()
        kinds, extremes = rank_rows["kind"].tolist(), rank_rows["extremes"].tolist()
        for leaf in np.flatnonzero(has_values).tolist():
            if kinds[leaf] != _FLOAT:
                for place, word in zip(_EXTREMES, extremes[leaf], strict=True):
                    numbers[leaf][place] = word - _WORD * (kinds[leaf] == _SIGNED and word >= _WORD // 2)
            parts[leaf].append(Moments.of(counts[leaf], numbers[leaf], None))
    wholes = [merged_moments(of_leaf) if of_leaf else nothing(None) for of_leaf in parts]
    if histogram:
        for whole, bins in zip(wholes, _histograms(rows["bins"].sum(0)), strict=True):
            whole.histogram = bins
    return wholes


def _histograms(bins: Any) -> list[Histogram]:
    used = bins != 0
    firsts = used.argmax(1).tolist()
    ends = (_BINS - used[:, ::-1].argmax(1)).tolist()
    return [
        Histogram(LOWEST + first, tuple(counts[first:end].tolist())) if any_used else NOTHING
        for counts, first, end, any_used in zip(bins, firsts, ends, used.any(1).tolist(), strict=True)
    ]
