"""How far the values of leaves are apart: where they lie if that can be, a piece at a time elsewhere."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.saving import Saving
from leafwise.core.comparing import Comparison
from leafwise.core.pairing import NamedArray
from leafwise.core.reading import reader
from leafwise.core.runs import Run, UnreadError
from leafwise.errors import Error, FileError, Unsupported, WalkError
from leafwise.kernels import streams
from leafwise.kernels.comparing import compare

_SAMPLES = 16  # elements of a square matrix that must agree with its transpose before all are compared

Counted = Callable[[int], None]


class Verdict(NamedTuple):
    """What the values of two leaves say: kinds of change, how far apart they are, and why they cannot be compared."""

    kinds: frozenset[str]
    comparison: Comparison | None = None
    reason: str = ""

    @classmethod
    def of(cls, *kinds: str, comparison: Comparison | None = None, reason: str = "") -> "Verdict":
        return cls(frozenset(kinds), comparison, reason)


def compare_values(pairs: list[tuple[NamedArray, NamedArray]], count: Counted) -> list[Verdict]:
    """What the values of each pair say; `count` is told how many bytes of the first ones are done."""
    verdicts: dict[int, Verdict] = {}
    runs: dict[int, tuple[Run, Run]] = {}
    others: list[int] = []
    for number, (one, other) in enumerate(pairs):
        reason = one.home.capability(Comparing).cannot_compare(one.value) or other.home.capability(
            Comparing
        ).cannot_compare(other.value)
        if reason and (one.spec.size == other.spec.size or None in (one.spec.shape, other.spec.shape)):
            verdicts[number] = Verdict.of("unknown", reason=reason)
        elif one.spec.size != other.spec.size:
            verdicts[number] = Verdict.of("reshaped")
        elif (lying := _lying(one, other)) is not None:
            runs[number] = lying
        else:
            others.append(number)
    for number, found in zip(runs, _of_runs(pairs, runs, count), strict=True):
        verdicts[number] = _verdict(*pairs[number], found)
    for number in others:
        verdicts[number] = _told(pairs[number], lambda one, other: _of_pieces(one, other, count))
    return [verdicts[number] for number in range(len(pairs))]


def _is_turned(one: NamedArray, other: NamedArray) -> bool:
    """Whether the shape of a matrix is that of another one turned."""
    shape, turned = one.spec.shape, other.spec.shape
    return shape is not None and len(shape) == 2 and shape != turned and shape[::-1] == turned


def _lying(one: NamedArray, other: NamedArray) -> tuple[Run, Run] | None:
    """Where both lie as runs that can be compared bit by bit."""
    if one.spec.dtype != other.spec.dtype or _is_turned(one, other) or not streams.knows(one.spec.dtype):
        return None
    run, partner = (held.home.capability(Comparing).contiguous_run(held.value) for held in (one, other))
    return None if run is None or partner is None else (run, partner)


def _verdict(one: NamedArray, other: NamedArray, found: Comparison, is_cast: bool = False) -> Verdict:
    """`is_cast` is whether casting one of them gives the other."""
    cast = ["cast"] * (one.spec.dtype != other.spec.dtype and is_cast)
    if one.spec.shape != other.spec.shape:
        return Verdict.of("reshaped", *cast, comparison=found)
    if cast or not found.changed:
        return Verdict.of(*cast or ["same"], comparison=found)
    turned = _told((one, other), _turned) if _may_be_turned(one, other) else None
    return turned or Verdict.of("changed", comparison=found)


# -- where they lie --------------------------------------------------------------------------------------------------


def _of_runs(
    pairs: list[tuple[NamedArray, NamedArray]], runs: dict[int, tuple[Run, Run]], count: Counted
) -> list[Comparison]:
    numbers = list(runs)
    with ExitStack() as files:
        # Of each file a descriptor of our own: whoever closes the tree meanwhile frees the number of the other.
        opened = {file: os.dup(file) for file in {run.file for pair in runs.values() for run in pair if run.file >= 0}}
        for file in opened.values():
            files.callback(os.close, file)
        own = [
            (one._replace(file=opened.get(one.file, -1)), other._replace(file=opened.get(other.file, -1)))
            for one, other in runs.values()
        ]
        try:
            return compare(own, count)
        except UnreadError as error:
            held = pairs[numbers[error.number]][error.side]
            for _ in held.home.capability(Saving).pieces(held.value):
                pass  # which says what is wrong, if it still is
            raise FileError(f"{held.name!r} cannot be read to its end; was the file cut off?") from error


# -- a piece at a time -----------------------------------------------------------------------------------------------


def _of_pieces(one: NamedArray, other: NamedArray, count: Counted) -> Verdict:
    try:
        return _of_numbers(one, other, count)
    except Unsupported as error:
        count(one.spec.nbytes)
        return _of_bytes(one, other, str(error))


def _of_bytes(one: NamedArray, other: NamedArray, reason: str) -> Verdict:
    """What bytes say, where nobody can tell which numbers they are."""
    if (one.spec.dtype, one.spec.shape) != (other.spec.dtype, other.spec.shape):
        return Verdict.of("unknown", reason=reason)
    if streams.same_bytes(_pieces(one), _pieces(other)):
        return Verdict.of("same", comparison=Comparison(one.spec.size, 0))
    return Verdict.of("changed", reason=f"by how much is not known: {reason}")


def _of_numbers(one: NamedArray, other: NamedArray, count: Counted) -> Verdict:
    if _is_turned(one, other):
        turned = _turned(one, other)
        if turned is not None:
            count(one.spec.nbytes)
            return turned
    found, is_cast = streams.compare_streams(_arrays(one), _arrays(other), count)
    return _verdict(one, other, found, is_cast)


def _arrays(held: NamedArray) -> Iterator[Any]:
    """The values in C order as NumPy arrays: in pieces, or whole where only its home knows the dtype."""
    parts = streams.arrays_of(_pieces(held), held.spec.dtype)
    return iter([held.home.read(held.value, ())]) if parts is None else parts


def _pieces(held: NamedArray) -> Iterator[Any]:
    return held.home.capability(Saving).pieces(held.value)


def _may_be_turned(one: NamedArray, other: NamedArray) -> bool:
    """Whether some elements of a square matrix are those of the other one turned."""
    shape = one.spec.shape
    if shape is None or len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2:
        return False
    last = shape[0] - 1
    places = [(number * last // _SAMPLES, last - number * last // (2 * _SAMPLES)) for number in range(_SAMPLES)]
    read, read_other = reader(one.home, one.value), reader(other.home, other.value)
    boxes = ((slice(row, row + 1), slice(column, column + 1)) for row, column in places)
    return all(streams.agree(read(box), read_other(box[::-1])) for box in boxes)


def _turned(one: NamedArray, other: NamedArray) -> Verdict | None:
    """Whether a matrix is the other one turned; None where it is not."""
    assert one.spec.shape is not None
    found = streams.transposed(reader(one.home, one.value), reader(other.home, other.value), one.spec.shape)
    return None if found is None else Verdict.of("transposed", *["cast"] * (found == "cast"))


def _told(pair: tuple[NamedArray, NamedArray], look: Callable[[NamedArray, NamedArray], Any]) -> Any:
    """What a look at two leaves gives; what goes wrong there is told with the name."""
    try:
        return look(*pair)
    except Error:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        raise WalkError(f"could not compare the values of {pair[0].name}: {said}") from error
