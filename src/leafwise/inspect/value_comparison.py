"""Comparing the values of leaves: in place if they are contiguous in memory or in a file, else a piece at a time."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any, NamedTuple

from leafwise.core.capabilities.comparing import Comparing, DeviceResult, OtherArray
from leafwise.core.capabilities.delegating import Delegating
from leafwise.core.capabilities.measuring import reader
from leafwise.core.capabilities.saving import Saving
from leafwise.core.home import Home, Spec
from leafwise.core.memory.runs import Run, UnreadError
from leafwise.core.pairing.row_pairs import NamedArray, NamedArrays
from leafwise.core.registry import home_of
from leafwise.core.results.comparison import Comparison
from leafwise.core.work.executor_tasks import Workers, run_each
from leafwise.core.work.progress import Count
from leafwise.errors import Error, FileError, Unsupported, WalkError
from leafwise.kernels import streams
from leafwise.kernels.comparing import compare

_SAMPLES = 16  # elements of a square matrix that must agree with its transpose before all are compared

_SAME, _CHANGED = frozenset({"same"}), frozenset({"changed"})

_SEVERAL = 32  # pairs, so that it is worth preparing them in two portions

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


class _Pairs:
    """Pairs of arrays of two sides, by their numbers."""

    def __init__(self, firsts: NamedArrays, seconds: NamedArrays) -> None:
        self.firsts, self.seconds = firsts, seconds

    def __getitem__(self, number: int) -> tuple[NamedArray, NamedArray]:
        return self.firsts[number], self.seconds[number]

    def specs(self, number: int) -> tuple[Spec, Spec]:
        return self.firsts.specs[number], self.seconds.specs[number]


def compare_values(pairs: list[tuple[NamedArray, NamedArray]], count: Count) -> list[Verdict]:
    """`compare_arrays` for a few pairs."""
    firsts, seconds = (NamedArrays.of([pair[side] for pair in pairs]) for side in (0, 1))
    return compare_arrays(firsts, seconds, count)


def compare_arrays(
    firsts: NamedArrays, seconds: NamedArrays, count: Count, workers: Workers | None = None
) -> list[Verdict]:
    """A verdict for each pair; `count` is called with the number of bytes of the first leaf of each pair when done. If
    there are workers, they read the values, which must be in files."""
    pairs = _Pairs(firsts, seconds)
    if workers is not None:
        return _compare_by(workers, pairs, count)
    verdicts: dict[int, Verdict] = {}
    runs: dict[int, tuple[Run, Run]] = {}
    in_pieces: list[int] = []
    started: list[tuple[list[int], WaitForDevice]] = []
    # In two portions, so that a GPU is at work while the second one is prepared.
    middle = len(firsts) // 2 if len(firsts) >= _SEVERAL else 0
    for start, stop in ((0, middle), (middle, len(firsts))):
        for place, numbers in _by_place(pairs, start, stop).items():
            if isinstance(place, Verdict):
                verdicts.update(dict.fromkeys(numbers, place))
            elif isinstance(place, Home):
                started.append((numbers, _start_on_device(place, pairs, numbers, count)))
            else:
                new_runs = _as_runs(pairs, numbers) if place == _IN_PLACE else {}
                runs.update(new_runs)
                in_pieces += [number for number in numbers if number not in new_runs]
    for numbers, wait in started:
        results = wait()
        verdicts.update(_verdicts_on_device(pairs, numbers, results))
        in_pieces += [number for number, result in zip(numbers, results, strict=True) if result is None]
    for number, comparison in zip(runs, _compare_runs(pairs, runs, count), strict=True):
        verdicts[number] = _verdict(pairs, number, comparison)
    for number in in_pieces:
        verdicts[number] = _compare_pieces(pairs, number, count)
    return [verdicts[number] for number in range(len(firsts))]


# Where a pair is compared: on a device by a home, or on the CPU in place or in pieces; or its verdict, if it is known.
_Place = Verdict | Home | str
_IN_PLACE, _IN_PIECES = "in place", "in pieces"


def _by_place(pairs: _Pairs, start: int, stop: int) -> dict[_Place, list[int]]:
    """The numbers of the pairs of a portion, by where they are compared."""
    firsts, seconds = pairs.firsts[start:stop], pairs.seconds[start:stop]
    # Models repeat a few specs thousands of times, so that there are few groups of pairs with the same place.
    columns = firsts.homes, firsts.specs, seconds.homes, seconds.specs
    reasons, other_reasons = _reasons(firsts), _reasons(seconds)
    keys = list(zip(*(map(id, column) for column in columns), reasons, other_reasons, strict=True))
    compares = cache(lambda home, device: home.capability(Comparing).compares_on(device))
    place_of = {
        key: _place(*pairs[number], key[-2] or key[-1], compares)
        for key, number in dict(zip(keys, range(start, stop), strict=True)).items()
    }
    if len(set(place_of.values())) == 1:
        return {place_of[keys[0]]: list(range(start, stop))}
    places: defaultdict[_Place, list[int]] = defaultdict(list)
    for number, key in enumerate(keys, start):
        places[place_of[key]].append(number)
    return dict(places)


def _reasons(arrays: NamedArrays) -> list[str]:
    """Why each array cannot be compared; empty if it can."""
    homes = set(arrays.homes)
    if len(homes) == 1:
        return homes.pop().capability(Comparing).cannot_compare_each(arrays.values)
    cannot_compare = {home: home.capability(Comparing).cannot_compare for home in homes}
    return [cannot_compare[home](value) for home, value in zip(arrays.homes, arrays.values, strict=True)]


def verdict_without_values(spec: Spec, partner: Spec, reason: str) -> Verdict | None:
    """The verdict if it does not depend on the values; `reason` is why they cannot be compared."""
    if reason and (spec.size == partner.size or None in (spec.shape, partner.shape)):
        return Verdict.of("unknown", reason=reason)
    return Verdict.of("reshaped") if spec.size != partner.size else None


def _place(first: NamedArray, second: NamedArray, reason: str, compares: Callable[[Home, str], bool]) -> _Place:
    spec, partner = first.spec, second.spec
    if (verdict := verdict_without_values(spec, partner, reason)) is not None:
        return verdict
    if compares(first.home, spec.device):
        return first.home
    if compares(second.home, partner.device):
        return second.home
    is_bitwise = (
        spec.dtype == partner.dtype and not _has_transposed_shape(spec, partner) and streams.is_numpy_dtype(spec.dtype)
    )
    return _IN_PLACE if is_bitwise else _IN_PIECES


def _has_transposed_shape(spec: Spec, partner: Spec) -> bool:
    """Whether the first is a matrix with the transposed shape of the second, and the shapes differ."""
    shape, transposed = spec.shape, partner.shape
    return shape is not None and len(shape) == 2 and shape != transposed and shape[::-1] == transposed


def _as_runs(pairs: _Pairs, numbers: list[int]) -> dict[int, tuple[Run, Run]]:
    """The pairs of which both sides are contiguous runs."""
    run_of = cache(lambda home: home.capability(Comparing).contiguous_run)
    runs: dict[int, tuple[Run, Run]] = {}
    firsts, seconds = pairs.firsts, pairs.seconds
    for number in numbers:
        run, partner = (run_of(side.homes[number])(side.values[number]) for side in (firsts, seconds))
        if run is not None and partner is not None:
            runs[number] = run, partner
    return runs


def _verdict(
    pairs: _Pairs, number: int, comparison: Comparison, is_cast: bool = False, may_be_transposed: bool = True
) -> Verdict:
    """The verdict for values of equal size; `is_cast` is whether casting one of them gives the other."""
    verdict = verdict_by_elements(*pairs.specs(number), comparison, is_cast)
    if verdict.kinds != _CHANGED or not may_be_transposed:
        return verdict
    return _transposed_by_samples(pairs, number) or verdict


def verdict_by_elements(spec: Spec, partner: Spec, comparison: Comparison, is_cast: bool) -> Verdict:
    """The verdict for values of equal size, unless one is the other transposed."""
    cast = ["cast"] * (spec.dtype != partner.dtype and is_cast)
    if spec.shape != partner.shape:
        return Verdict.of("reshaped", *cast, comparison=comparison)
    if cast:
        return Verdict.of("cast", comparison=comparison)
    return Verdict(_CHANGED if comparison.changed else _SAME, comparison)


# -- on a device -----------------------------------------------------------------------------------------------------


def _start_on_device(home: Home, pairs: _Pairs, numbers: list[int], count: Count) -> WaitForDevice:
    """Starts comparing pairs where at least one array is on a device, where its home compares it."""
    with ExitStack() as files, _named(pairs, numbers):
        own_file = own_files(files)
        firsts, seconds = (
            [
                side.values[number] if side.homes[number] is home else _other_array(side[number], own_file)
                for number in numbers
            ]
            for side in (pairs.firsts, pairs.seconds)
        )
        wait = home.capability(Comparing).compare_on_device(firsts, seconds, count)

    def wait_with_names() -> list[DeviceResult | None]:
        with _named(pairs, numbers):
            return wait()

    return wait_with_names


@contextmanager
def _named(pairs: _Pairs, numbers: list[int]) -> Iterator[None]:
    """Adds the names of leaves to errors."""
    try:
        yield
    except UnreadError as error:
        raise unread_error(pairs[numbers[error.number]][error.side]) from error
    except Error:
        raise
    except Exception as error:
        names = pairs[numbers[0]][0].name + f" and {len(numbers) - 1:,} more" * (len(numbers) > 1)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise WalkError(f"cannot compare the values of {names}: {reason}") from error


def _other_array(held: NamedArray, own_file: Callable[[Run], Run]) -> OtherArray:
    """An array of another home, as `compare_on_device` takes it."""
    run = held.home.capability(Comparing).contiguous_run(held.value)
    own = None if run is None else own_file(run)
    return OtherArray(held.spec.shape or (), held.spec.dtype, held.spec.size, own, lambda: _pieces(held))


def _verdicts_on_device(
    pairs: _Pairs, numbers: list[int], results: list[DeviceResult | None]
) -> Iterator[tuple[int, Verdict]]:
    """The number and the verdict of each pair that has a result. Pairs without changes share a few results."""
    specs, partners = pairs.firsts.specs, pairs.seconds.specs
    known = [(number, result) for number, result in zip(numbers, results, strict=True) if result is not None]
    keys = [(id(specs[number]), id(partners[number]), id(result)) for number, result in known]
    verdicts = {key: _verdict_on_device(pairs, *pair) for key, pair in dict(zip(keys, known, strict=True)).items()}
    return zip((number for number, _ in known), map(verdicts.__getitem__, keys), strict=True)


def _verdict_on_device(pairs: _Pairs, number: int, result: DeviceResult) -> Verdict:
    if result.comparison is None:
        return Verdict.of("transposed", *["cast"] * result.is_cast)
    return _verdict(pairs, number, result.comparison, result.is_cast, result.is_transposed is None)


# -- in place -------------------------------------------------------------------------------------------------------


def _compare_runs(pairs: _Pairs, runs: dict[int, tuple[Run, Run]], count: Count) -> list[Comparison]:
    with ExitStack() as files:
        own_file = own_files(files)
        own = [(own_file(first), own_file(second)) for first, second in runs.values()]
        try:
            return compare(own, count)
        except UnreadError as error:
            raise unread_error(pairs[list(runs)[error.number]][error.side]) from error


def own_files(files: ExitStack) -> Callable[[Run], Run]:
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


def unread_error(held: NamedArray) -> FileError:
    """The error for a file that could not be read to its end."""
    for _ in held.home.capability(Saving).pieces(held.value):
        pass  # this raises a better error, if the problem persists
    return FileError(f"cannot read {held.name!r} to its end; was the file truncated?")


# -- by workers ------------------------------------------------------------------------------------------------------


def _compare_by(workers: Workers, pairs: _Pairs, count: Count) -> list[Verdict]:
    """`compare_arrays`, where workers read the values."""
    verdicts: dict[int, Verdict] = {}
    in_place: list[int] = []
    in_pieces: list[int] = []
    for place, numbers in _by_place(pairs, 0, len(pairs.firsts)).items():
        if isinstance(place, Verdict):
            verdicts.update(dict.fromkeys(numbers, place))
        elif place == _IN_PLACE:
            in_place += numbers
        else:
            in_pieces += numbers
    values = [(pairs.firsts.values[number], pairs.seconds.values[number]) for number in in_place]
    delegating = pairs.firsts.homes[in_place[0]].capability(Delegating) if in_place else None
    comparisons = [] if delegating is None else delegating.compare(workers, values, count)
    suspects = []  # which may be transposed
    for number, comparison in zip(in_place, comparisons, strict=True):
        if comparison is None:
            in_pieces.append(number)
            continue
        verdicts[number] = _verdict(pairs, number, comparison, may_be_transposed=False)
        if verdicts[number].kinds == _CHANGED:
            suspects.append(number)
    turned = run_each(workers, _sent_transposed, _sent(pairs, suspects), _sent_bytes, lambda nbytes: None)
    verdicts |= {number: verdict for number, verdict in zip(suspects, turned, strict=True) if verdict is not None}
    in_pieces.sort()
    compared = run_each(workers, _sent_verdict, _sent(pairs, in_pieces), _sent_bytes, count)
    verdicts |= zip(in_pieces, compared, strict=True)
    return [verdicts[number] for number in range(len(pairs.firsts))]


_SentArray = tuple[Any, Spec, str]  # an array, its spec, and its name


def _sent(pairs: _Pairs, numbers: list[int]) -> list[tuple[_SentArray, _SentArray]]:
    sides = pairs.firsts, pairs.seconds
    sent = [[(side.values[number], side.specs[number], side.names[number]) for side in sides] for number in numbers]
    return [(first, second) for first, second in sent]


def _sent_bytes(pair: tuple[_SentArray, _SentArray]) -> int:
    return pair[0][1].nbytes


def _received(pair: tuple[_SentArray, _SentArray]) -> _Pairs:
    firsts, seconds = (NamedArrays.of([NamedArray(0, home_of(value), value, spec, name)]) for value, spec, name in pair)
    return _Pairs(firsts, seconds)


def _sent_verdict(pair: tuple[_SentArray, _SentArray]) -> Verdict:
    """The verdict on a pair, in a worker."""
    received = _received(pair)
    [verdict] = compare_arrays(received.firsts, received.seconds, lambda count: None)
    return verdict


def _sent_transposed(pair: tuple[_SentArray, _SentArray]) -> Verdict | None:
    """The verdict on a pair that has changed, in a worker, if one is the other transposed."""
    return _transposed_by_samples(_received(pair), 0)


# -- a piece at a time -----------------------------------------------------------------------------------------------


def _compare_pieces(pairs: _Pairs, number: int, count: Count) -> Verdict:
    first, second = pairs[number]
    with _named(pairs, [number]):
        try:
            return _compare_numbers(pairs, number, count)
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


def _compare_numbers(pairs: _Pairs, number: int, count: Count) -> Verdict:
    first, second = pairs[number]
    if _has_transposed_shape(first.spec, second.spec):
        transposed = _transposed(first, second)
        if transposed is not None:
            count(first.spec.nbytes)
            return transposed
    comparison, is_cast = streams.compare_streams(_arrays(first), _arrays(second), count)
    return _verdict(pairs, number, comparison, is_cast)


def _arrays(held: NamedArray) -> Iterator[Any]:
    """The values in C order as NumPy arrays: in pieces, or as a whole if only the home can read the dtype."""
    parts = streams.arrays_of(_pieces(held), held.spec.dtype)
    return iter([held.home.read(held.value, ())]) if parts is None else parts


def _pieces(held: NamedArray) -> Iterator[Any]:
    return held.home.capability(Saving).pieces(held.value)


def _transposed_by_samples(pairs: _Pairs, number: int) -> Verdict | None:
    """The verdict if a square matrix is the transposed second one, judged by a sample first; None if it is not."""
    first, second = pairs[number]
    boxes = sampled_boxes(first.spec.shape)
    if not boxes:
        return None
    read, read_second = reader(first.home, first.value), reader(second.home, second.value)
    if not all(streams.agree(read(box), read_second(box[::-1])) for box in boxes):
        return None
    with _named(pairs, [number]):
        return _transposed(first, second)


def sampled_boxes(shape: tuple[int, ...] | None) -> list[tuple[slice, slice]]:
    """A few elements of a square matrix that show whether it may be another one transposed; none for other arrays."""
    if shape is None or len(shape) != 2 or shape[0] != shape[1] or shape[0] < 2:
        return []
    last = shape[0] - 1
    places = [(number * last // _SAMPLES, last - number * last // (2 * _SAMPLES)) for number in range(_SAMPLES)]
    return [(slice(row, row + 1), slice(column, column + 1)) for row, column in places]


def _transposed(first: NamedArray, second: NamedArray) -> Verdict | None:
    """The verdict if the first matrix is the transposed second one; None if it is not."""
    assert first.spec.shape is not None
    kind = streams.transposed(reader(first.home, first.value), reader(second.home, second.value), first.spec.shape)
    return None if kind is None else Verdict.of("transposed", *["cast"] * (kind == "cast"))
