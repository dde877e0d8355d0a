"""Comparisons by the Triton kernels, on a GPU or in Triton's interpreter, against the reference."""

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from tests.kernels.cases import FLOATS, WHOLE, cases
from tests.kernels.gpu import DEVICE
from tests.kernels.test_comparing import HARD, assert_close, partner

from leafwise.core.results.comparison import Comparison
from leafwise.kernels import reference, streams
from leafwise.kernels.casting import cast_to
from leafwise.kernels.triton import cuda_comparing
from leafwise.kernels.triton.cuda_comparing import Outcomes, PairColumns

CASES = cases()
CHUNK = 1_024  # so that small arrays have several
Pair = tuple[Any, Any]

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("triton_runs")]


@pytest.fixture(autouse=True)
def quick_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes about as long for a large block as for a small one."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(cuda_comparing, "_BLOCK", CHUNK)
        monkeypatch.setattr(cuda_comparing, "_CAREFUL_BLOCK", 4 * CHUNK)


def started(pairs: list[Pair], with_norms: bool = True, offset: int = 0, chunk: int = CHUNK) -> Callable[[], Outcomes]:
    """The kernels that compare pairs of NumPy arrays, each beginning `offset` bytes behind a multiple of 16."""
    kept = []
    for pair in pairs:
        for array in pair:
            memory = torch.zeros(array.nbytes + offset + 32, dtype=torch.uint8, device=DEVICE)
            place = memory[-memory.data_ptr() % 16 + offset :][: array.nbytes]
            place.copy_(torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)))
            kept.append(place)
    sides = [x.shape[0] if x.ndim == 2 and x.shape == y.shape == x.shape[::-1] else 0 for x, y in pairs]
    dtypes = [[pair[side].dtype.name for pair in pairs] for side in (0, 1)]
    addresses = [[place.data_ptr() for place in kept[side::2]] for side in (0, 1)]
    columns = PairColumns(*addresses, [x.size for x, _ in pairs], *dtypes, sides)
    with np.errstate(all="ignore"):  # the interpreter is NumPy, and warns of what a GPU does in silence
        wait = cuda_comparing.compare(cuda_comparing.table_of(columns, DEVICE, chunk), with_norms)
    return lambda: (kept, wait())[1]


def compare(pairs: list[Pair], **options: Any) -> list[Comparison]:
    return started(pairs, **options)().comparisons


def assert_right(pairs: dict[str, Pair], **options: Any) -> None:
    for (name, (x, y)), found in zip(pairs.items(), compare([*pairs.values()], **options), strict=True):
        try:
            if x.size:
                assert_close(found, reference.compare(x, y))
            else:
                assert found[:4] == (0, 0, 0, 0.0)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def test_arrays_of_every_dtype_are_compared_in_one_launch() -> None:
    pairs = {str(array.dtype): (array[:1_100], partner(array[:1_100])) for array in CASES.values()}
    assert len(pairs) == len(FLOATS) + len(WHOLE)
    assert_right(pairs)


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_all_cases_agree_with_the_reference(dtype: str) -> None:
    arrays = {name: array for name, array in CASES.items() if array.dtype.name == dtype}
    assert_right({name: (array, partner(array)) for name, array in arrays.items()}, chunk=8 * CHUNK)


def test_doubles_of_any_size_are_compared_without_overflow() -> None:
    pairs = {}
    for name, values in HARD.items():
        x, y = (np.array(side) for side in values)
        pairs |= {name: (x, y), f"{name}, turned around": (y, x), f"{name}, negated": (x, y * -0.5)}
    assert_right(pairs)


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE])
def test_one_changed_bit_is_found_wherever_it_is(dtype: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2, 8 * (2 * CHUNK + 9), np.uint8)
    x = bits.view(streams.numpy_dtype(dtype))[: 2 * CHUNK + 9]
    places = (0, 1, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 8)
    pairs = [(x, x.copy())]
    number = [*FLOATS, *WHOLE].index(dtype)
    for place in {places[number % len(places)], places[(number + 3) % len(places)]}:
        y = x.copy()
        y.view(np.uint8)[place * x.itemsize + x.itemsize - 1] ^= 1
        pairs.append((x, y))
    assert [found.changed for found in compare(pairs)] == [0, 1, 1]


def test_signs_of_zero_and_kinds_of_nan_are_bits() -> None:
    x = np.zeros(2 * CHUNK, np.float32)
    x[5], x[6] = np.nan, np.inf
    negative, payload, infinite = x.copy(), x.copy(), x.copy()
    negative[CHUNK + 1] = -0.0
    payload.view(np.uint32)[5] |= 7
    infinite[6] = -np.inf
    assert_right({"zero": (x, negative), "nan": (x, payload), "inf": (x, infinite), "same": (x, x.copy())})
    zero, nan, inf, same = compare([(x, negative), (x, payload), (x, infinite), (x, x.copy())])
    assert [found.changed for found in (zero, nan, inf, same)] == [1, 1, 1, 0]
    assert [found.nonfinite_changed for found in (zero, nan, inf, same)] == [0, 1, 1, 0]
    assert zero.largest == 0
    assert math.isnan(nan.largest)


@pytest.mark.parametrize("dtype", ["int64", "uint64"])
def test_differences_of_large_integers_are_exact(dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([limits.max, limits.min, 2**53 + 1, 7], dtype)
    y = np.array([limits.max - 1, limits.min + 3, 2**53, 7], dtype)
    [found] = compare([(x, y)])
    assert (found.changed, found.largest, found.distance) == (3, 3.0, math.sqrt(1 + 9 + 1))
    [found] = compare([(x[:1], x[1:2])])
    assert found.largest == float(2**64 - 1)


def test_remainders_odd_addresses_and_empty_arrays_are_compared() -> None:
    x = np.random.default_rng(2).normal(size=2 * CHUNK + 77).astype(np.float32)
    for offset in (0, 4):
        pairs = {f"{size}": (x[:size], x[::-1][:size].copy()) for size in (0, 1, CHUNK, CHUNK + 1, x.size)}
        assert_right(pairs, offset=offset)
    assert compare([]) == []
    assert compare([(x[:0], x[:0])]) == [Comparison(0, 0)]


def test_what_is_the_same_has_no_norms_unless_they_are_asked_for() -> None:
    x = CASES["normal bfloat16"]
    assert compare([(x, x.copy())], with_norms=False) == [Comparison(x.size, 0)]
    [found] = compare([(x, x.copy())])
    assert_close(found, reference.compare(x, x))


def test_two_runs_give_the_same_bits() -> None:
    x = CASES["mixed bfloat16"][: 3 * CHUNK]
    pairs = [(x, partner(x))]
    assert repr(compare(pairs)) == repr(compare(pairs))
    wait = started(pairs)
    one, again = wait(), wait()
    assert repr(one.comparisons) == repr(again.comparisons)
    assert (one.forth, one.back, one.transposed) == (again.forth, again.back, again.transposed)


# -- different dtypes ----------------------------------------------------------------------------------------------

CASTABLE = {name: FLOATS[name] for name in ("float64", "float32", "float16", "bfloat16")}


def wide_values() -> dict[str, Any]:
    """Values that casts may get wrong: of all sizes, and halfway between two numbers."""
    rng = np.random.default_rng(5)
    size = CHUNK + 100
    sizes = np.ldexp(rng.normal(size=size), rng.integers(-160, 130, size))
    sizes[[5, 6, 7, 8]] = np.nan, np.inf, -np.inf, -0.0
    halfway = np.ones(size)
    halfway[::2] += 2.0**-8 + 2.0**-40
    halfway[1::2] += 2.0**-11 + 2.0**-40
    return {"sizes": sizes, "halfway": halfway, "plain": rng.normal(size=size)}


@np.errstate(all="ignore")
def test_casts_are_recognized_as_by_the_reference() -> None:
    pairs: dict[str, Pair] = {}
    for name, values in wide_values().items():
        for dtype, numpy_type in CASTABLE.items():
            x = values.astype(numpy_type)
            for other, other_type in CASTABLE.items():
                if other != dtype:
                    y = x.astype(np.float32).astype(other_type) if other != "float64" else x.astype(np.float64)
                    pairs[f"{name}: {dtype} as {other}"] = x, y
                    if name == "plain":
                        changed = y.copy()
                        changed[7 if dtype < other else -1] = other_type(1.5)
                        pairs[f"{name}: {dtype} as {other}, one changed"] = x, changed
        for other in ("float32", "float16", "bfloat16"):
            pairs[f"{name}: saturated {other}"] = values, cast_to(values, other, saturate=True)
            pairs[f"{name}: {other} by NumPy"] = values, values.astype(CASTABLE[other])
    found = started([*pairs.values()])()
    for number, (name, (x, y)) in enumerate(pairs.items()):
        comparison, is_cast = streams.compare_streams([x], [y])
        assert (found.forth[number] or found.back[number]) == is_cast, name
        assert found.comparisons[number].changed == comparison.changed, name
        if comparison.changed:
            assert_close(found.comparisons[number], comparison)


def test_nan_of_different_dtypes_are_compared_by_their_bits() -> None:
    x = np.array([0x7FC1, 0x7FC0, 0xFFC0], np.uint16).view(ml_dtypes.bfloat16)
    y = x.astype(np.float32)
    other = y.copy()
    other.view(np.uint32)[0] |= 1
    same, payload = compare([(x, y), (x, other)])
    assert (same.changed, payload.changed) == (0, 1)


def test_a_sample_shows_whether_a_square_matrix_may_be_transposed() -> None:
    x = np.random.default_rng(3).normal(size=(40, 40)).astype(np.float32)
    half = x.astype(np.float16)
    pairs = [(x, x.T.copy()), (x, x.T + 1), (x, half.T.copy()), (half, x.T.copy()), (x[:, :3], x[:, :3] + 1)]
    pairs.append((x, x.T.astype(ml_dtypes.bfloat16) + 1))
    assert started(pairs)().transposed == [True, False, True, True, False, False]


def test_dtypes_that_kernels_do_not_compare_are_refused() -> None:
    assert not cuda_comparing.can_compare("complex64", "complex64")
    assert not cuda_comparing.can_compare("float32", "int32")
    with pytest.raises(TypeError, match="no statistics of complex64"):
        compare([(np.ones(3, np.complex64), np.ones(3, np.complex64))])
    with pytest.raises(ValueError, match="a chunk is a multiple of a block"):
        compare([], chunk=1_000)
    with pytest.raises(TypeError, match="kernels do not compare float32 with int32"):
        compare([(np.ones(3, np.float32), np.ones(3, np.int32))])
