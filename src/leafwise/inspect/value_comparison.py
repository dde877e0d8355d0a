"""Comparing the values of leaves: in place if they are contiguous in memory or in a file, else a piece at a time."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.saving import Saving
from leafwise.core.comparison import Comparison
from leafwise.core.pairing import NamedArray
from leafwise.core.reader import reader
from leafwise.core.runs import Run, UnreadError
from leafwise.errors import Error, FileError, Unsupported, WalkError
from leafwise.kernels import streams
from leafwise.kernels.comparing import compare

_SAMPLES = 16  # elements of a square matrix that must agree with its transpose before all are compared

ByteCounter = Callable[[int], None]


class Verdict(NamedTuple):
    """How the values of two leaves compare: the kinds of change, the figures, and the reason if they cannot be
    compared."""

    kinds: frozenset[str]
    comparison: Comparison | None = None
    reason: str = ""

    @classmethod
    def of(cls, *kinds: str, comparison: Comparison | None = None, reason: str = "") -> "Verdict":
        return cls(frozenset(kinds), comparison, reason)


def compare_values(pairs: list[tuple[NamedArray, NamedArray]], count: ByteCounter) -> list[Verdict]:
    """A verdict for each pair; `count` is called with the number of bytes of the first leaf of each pair when done."""
    verdicts: dict[int, Verdict] = {}
    runs: dict[int, tuple[Run, Run]] = {}
    in_pieces: list[int] = []
    for number, (first, second) in enumerate(pairs):
        reason = _cannot_compare(first) or _cannot_compare(second)
        if reason and (first.spec.size == second.spec.size or None in (first.spec.shape, second.spec.shape)):
            verdicts[number] = Verdict.of("unknown", reason=reason)
        elif first.spec.size != second.spec.size:
            verdicts[number] = Verdict.of("reshaped")
        elif (both_runs := _as_runs(first, second)) is not None:
            runs[number] = both_runs
        else:
            in_pieces.append(number)
    for number, comparison in zip(runs, _compare_runs(pairs, runs, count), strict=True):
        verdicts[number] = _verdict(*pairs[number], comparison)
    for number in in_pieces:
        verdicts[number] = _with_name(pairs[number], lambda first, second: _compare_pieces(first, second, count))
    return [verdicts[number] for number in range(len(pairs))]


def _cannot_compare(held: NamedArray) -> str:
    return held.home.capability(Comparing).cannot_compare(held.value)


def _has_transposed_shape(first: NamedArray, second: NamedArray) -> bool:
    """Whether the first is a matrix with the transposed shape of the second, and the shapes differ."""
    shape, transposed = first.spec.shape, second.spec.shape
    return shape is not None and len(shape) == 2 and shape != transposed and shape[::-1] == transposed


def _as_runs(first: NamedArray, second: NamedArray) -> tuple[Run, Run] | None:
    """Both as contiguous runs that can be compared bit by bit; None if they are not."""
    if (
        first.spec.dtype != second.spec.dtype
        or _has_transposed_shape(first, second)
        or not streams.knows(first.spec.dtype)
    ):
        return None
    run, partner = (held.home.capability(Comparing).contiguous_run(held.value) for held in (first, second))
    return None if run is None or partner is None else (run, partner)


def _verdict(first: NamedArray, second: NamedArray, comparison: Comparison, is_cast: bool = False) -> Verdict:
    """The verdict for values of equal size; `is_cast` is whether casting one of them gives the other."""
    cast = ["cast"] * (first.spec.dtype != second.spec.dtype and is_cast)
    if first.spec.shape != second.spec.shape:
        return Verdict.of("reshaped", *cast, comparison=comparison)
    if cast or not comparison.changed:
        return Verdict.of(*cast or ["same"], comparison=comparison)
    transposed = _with_name((first, second), _transposed) if _may_be_transposed(first, second) else None
    return transposed or Verdict.of("changed", comparison=comparison)


# -- in place -------------------------------------------------------------------------------------------------------


def _compare_runs(
    pairs: list[tuple[NamedArray, NamedArray]], runs: dict[int, tuple[Run, Run]], count: ByteCounter
) -> list[Comparison]:
    numbers = list(runs)
    with ExitStack() as files:
        # Each file gets a descriptor of its own here: if the tree is closed meanwhile, the old number may be reused.
        opened = {file: os.dup(file) for file in {run.file for pair in runs.values() for run in pair if run.file >= 0}}
        for file in opened.values():
            files.callback(os.close, file)
        own = [
            (first._replace(file=opened.get(first.file, -1)), second._replace(file=opened.get(second.file, -1)))
            for first, second in runs.values()
        ]
        try:
            return compare(own, count)
        except UnreadError as error:
            held = pairs[numbers[error.number]][error.side]
            for _ in held.home.capability(Saving).pieces(held.value):
                pass  # this raises a better error, if the problem persists
            raise FileError(f"cannot read {held.name!r} to its end; was the file truncated?") from error


# -- a piece at a time -----------------------------------------------------------------------------------------------


def _compare_pieces(first: NamedArray, second: NamedArray, count: ByteCounter) -> Verdict:
    try:
        return _compare_numbers(first, second, count)
    except Unsupported as error:
        count(first.spec.nbytes)
        return _compare_bytes(first, second, str(error))


def _compare_bytes(first: NamedArray, second: NamedArray, reason: str) -> Verdict:
    """A verdict by bytes, for a dtype whose numbers cannot be read."""
    if (first.spec.dtype, first.spec.shape) != (second.spec.dtype, second.spec.shape):
        return Verdict.of("unknown", reason=reason)
    if streams.same_bytes(_pieces(first), _pieces(second)):
        return Verdict.of("same", comparison=Comparison(first.spec.size, 0))
    return Verdict.of("changed", reason=f"how much it changed is not known: {reason}")


def _compare_numbers(first: NamedArray, second: NamedArray, count: ByteCounter) -> Verdict:
    if _has_transposed_shape(first, second):
        transposed = _transposed(first, second)
        if transposed is not None:
            count(first.spec.nbytes)
            return transposed
    comparison, is_cast = streams.compare_streams(_arrays(first), _arrays(second), count)
    return _verdict(first, second, comparison, is_cast)


def _arrays(held: NamedArray) -> Iterator[Any]:
    """The values in C order as NumPy arrays: in pieces, or as a whole if only the home can read the dtype."""
    parts = streams.arrays_of(_pieces(held), held.spec.dtype)
    return iter([held.home.read(held.value, ())]) if parts is None else parts


def _pieces(held: NamedArray) -> Iterator[Any]:
    return held.home.capability(Saving).pieces(held.value)


def _may_be_transposed(first: NamedArray, second: NamedArray) -> bool:
    """Whether a sample of a square matrix agrees with the second one transposed."""
    shape = first.spec.shape
    if shape is None or len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2:
        return False
    last = shape[0] - 1
    places = [(number * last // _SAMPLES, last - number * last // (2 * _SAMPLES)) for number in range(_SAMPLES)]
    read, read_second = reader(first.home, first.value), reader(second.home, second.value)
    boxes = ((slice(row, row + 1), slice(column, column + 1)) for row, column in places)
    return all(streams.agree(read(box), read_second(box[::-1])) for box in boxes)


def _transposed(first: NamedArray, second: NamedArray) -> Verdict | None:
    """The verdict if the first matrix is the transposed second one; None if it is not."""
    assert first.spec.shape is not None
    kind = streams.transposed(reader(first.home, first.value), reader(second.home, second.value), first.spec.shape)
    return None if kind is None else Verdict.of("transposed", *["cast"] * (kind == "cast"))


def _with_name(pair: tuple[NamedArray, NamedArray], compare_pair: Callable[[NamedArray, NamedArray], Any]) -> Any:
    """Compares two leaves; adds the name of the leaf to error messages."""
    try:
        return compare_pair(*pair)
    except Error:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise WalkError(f"cannot compare the values of {pair[0].name}: {reason}") from error
