"""Comparing the values of leaves: in place if they are contiguous in memory or in a file, else a piece at a time."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

from leafwise.core.capabilities.comparing import Comparing, DeviceResult, OtherArray
from leafwise.core.capabilities.saving import Saving
from leafwise.core.comparison import Comparison
from leafwise.core.home import Home
from leafwise.core.pairing import NamedArray
from leafwise.core.reader import reader
from leafwise.core.runs import Run, UnreadError
from leafwise.errors import Error, FileError, Unsupported, WalkError
from leafwise.kernels import streams
from leafwise.kernels.comparing import compare

_SAMPLES = 16  # elements of a square matrix that must agree with its transpose before all are compared

_SAME, _CHANGED = frozenset({"same"}), frozenset({"changed"})

_SEVERAL = 32  # pairs, so that it is worth preparing them in two portions

ByteCounter = Callable[[int], None]
WaitForDevice = Callable[[], list[DeviceResult | None]]


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
    started: list[tuple[list[int], WaitForDevice]] = []
    # In two portions, so that a GPU is at work while the second one is prepared.
    middle = len(pairs) // 2 if len(pairs) >= _SEVERAL else 0
    for portion in (range(middle), range(middle, len(pairs))):
        on_device: dict[Home, list[int]] = {}
        for number, place in zip(portion, _places(pairs, portion), strict=True):
            if place is None:
                in_pieces.append(number)
            elif isinstance(place, Verdict):
                verdicts[number] = place
            elif isinstance(place, tuple):
                runs[number] = place
            else:
                on_device.setdefault(place, []).append(number)
        for home, numbers in on_device.items():
            started.append((numbers, _start_on_device(home, [pairs[number] for number in numbers], count)))
    for numbers, wait in started:
        for number, result in zip(numbers, wait(), strict=True):
            if result is None:
                in_pieces.append(number)
            else:
                verdicts[number] = _verdict_on_device(*pairs[number], result)
    for number, comparison in zip(runs, _compare_runs(pairs, runs, count), strict=True):
        verdicts[number] = _verdict(*pairs[number], comparison)
    for number in in_pieces:
        verdicts[number] = _with_name(pairs[number], lambda first, second: _compare_pieces(first, second, count))
    return [verdicts[number] for number in range(len(pairs))]


def _places(
    pairs: list[tuple[NamedArray, NamedArray]], numbers: range
) -> Iterator[Verdict | Home | tuple[Run, Run] | None]:
    """For each pair, the verdict if it is known already, or where it is compared: on a device by a home, in place, or
    (None) in pieces."""
    compares = cache(lambda home, device: home.capability(Comparing).compares_on(device))
    cannot_compare = cache(lambda home: home.capability(Comparing).cannot_compare)
    for number in numbers:
        first, second = pairs[number]
        spec, partner = first.spec, second.spec
        reason = cannot_compare(first.home)(first.value) or cannot_compare(second.home)(second.value)
        if reason and (spec.size == partner.size or None in (spec.shape, partner.shape)):
            yield Verdict.of("unknown", reason=reason)
        elif spec.size != partner.size:
            yield Verdict.of("reshaped")
        elif compares(first.home, spec.device):
            yield first.home
        elif compares(second.home, partner.device):
            yield second.home
        else:
            yield _as_runs(first, second)


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


def _verdict(
    first: NamedArray,
    second: NamedArray,
    comparison: Comparison,
    is_cast: bool = False,
    may_be_transposed: bool = True,
) -> Verdict:
    """The verdict for values of equal size; `is_cast` is whether casting one of them gives the other."""
    cast = ["cast"] * (first.spec.dtype != second.spec.dtype and is_cast)
    if first.spec.shape != second.spec.shape:
        return Verdict.of("reshaped", *cast, comparison=comparison)
    if not cast and not comparison.changed:
        return Verdict(_SAME, comparison)
    if cast:
        return Verdict.of("cast", comparison=comparison)
    sampled = may_be_transposed and _may_be_transposed(first, second)
    transposed = _with_name((first, second), _transposed) if sampled else None
    return transposed or Verdict(_CHANGED, comparison)


# -- on a device -----------------------------------------------------------------------------------------------------


def _start_on_device(home: Home, pairs: list[tuple[NamedArray, NamedArray]], count: ByteCounter) -> WaitForDevice:
    """Starts comparing pairs where at least one array is on a device, where its home compares it."""
    with ExitStack() as files, _named(pairs):
        own_file = _own_files(files)
        firsts, seconds = ([_on_side(home, pair[side], own_file) for pair in pairs] for side in (0, 1))
        wait = home.capability(Comparing).compare_on_device(firsts, seconds, count)

    def wait_with_names() -> list[DeviceResult | None]:
        with _named(pairs):
            return wait()

    return wait_with_names


@contextmanager
def _named(pairs: list[tuple[NamedArray, NamedArray]]) -> Iterator[None]:
    """Adds the names of leaves to errors."""
    try:
        yield
    except UnreadError as error:
        raise _explained(pairs[error.number][error.side]) from error
    except Error:
        raise
    except Exception as error:
        names = pairs[0][0].name + f" and {len(pairs) - 1:,} more" * (len(pairs) > 1)
        raise _failed(names, error) from error


def _on_side(home: Home, held: NamedArray, own_file: Callable[[Run], Run]) -> Any:
    """An array, as `compare_on_device` of a home takes it."""
    if held.home is home:
        return held.value
    run = held.home.capability(Comparing).contiguous_run(held.value)
    own = None if run is None else own_file(run)
    return OtherArray(held.spec.shape or (), held.spec.dtype, held.spec.size, own, lambda: _pieces(held))


def _verdict_on_device(first: NamedArray, second: NamedArray, result: DeviceResult) -> Verdict:
    if result.comparison is None:
        return Verdict.of("transposed", *["cast"] * result.is_cast)
    return _verdict(first, second, result.comparison, result.is_cast, result.is_transposed is None)


# -- in place -------------------------------------------------------------------------------------------------------


def _compare_runs(
    pairs: list[tuple[NamedArray, NamedArray]], runs: dict[int, tuple[Run, Run]], count: ByteCounter
) -> list[Comparison]:
    with ExitStack() as files:
        own_file = _own_files(files)
        own = [(own_file(first), own_file(second)) for first, second in runs.values()]
        try:
            return compare(own, count)
        except UnreadError as error:
            raise _explained(pairs[list(runs)[error.number]][error.side]) from error


def _own_files(files: ExitStack) -> Callable[[Run], Run]:
    """A function that gives runs descriptors of their own, until the stack is closed. If a tree is closed meanwhile,
    its old number may be reused."""
    opened: dict[int, int] = {}

    def own_file(run: Run) -> Run:
        if run.file < 0:
            return run
        if run.file not in opened:
            opened[run.file] = os.dup(run.file)
            files.callback(os.close, opened[run.file])
        return run._replace(file=opened[run.file])

    return own_file


def _explained(held: NamedArray) -> FileError:
    """The error for a file that could not be read to its end."""
    for _ in held.home.capability(Saving).pieces(held.value):
        pass  # this raises a better error, if the problem persists
    return FileError(f"cannot read {held.name!r} to its end; was the file truncated?")


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
        raise _failed(pair[0].name, error) from error


def _failed(names: str, error: Exception) -> WalkError:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    return WalkError(f"cannot compare the values of {names}: {reason}")
