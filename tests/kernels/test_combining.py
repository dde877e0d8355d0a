"""Weighted sums by the C code, in every instruction set of this machine, against the reference: the same bits."""

import itertools
from fractions import Fraction
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tests.kernels.cases import FLOATS
from tests.kernels.test_cpu import of_the_library

import leafwise as lw
from leafwise.kernels import casting, combining, cpu, reference

WIDE = ["float64", "float32", "bfloat16", "float16"]
SPECIAL = [
    0.0,
    -0.0,
    np.nan,
    -np.nan,
    np.inf,
    -np.inf,
    1.0,
    -1.0,
    1.5,
    2.0**-24,
    -(2.0**-25),
    3 * 2.0**-26,
    1e-40,
    65504.0,
]


def numbers(dtype: str, size: int, seed: int) -> Any:
    """Numbers of all magnitudes that fit into float16, and special ones."""
    rng = np.random.default_rng(seed)
    values = np.ldexp(rng.uniform(-1, 1, size), rng.integers(-30, 10, size))
    if size:
        places = rng.integers(0, size, size // 5 + 1)
        values[places] = rng.choice(SPECIAL[:-1], places.size)
    with np.errstate(all="ignore"):
        return values.astype(FLOATS[dtype])


def every_result(arrays: list[Any], weights: list[float], dtype: str) -> Any:
    """The bytes of the sums, which are the same in every instruction set; None if they do not fit."""
    names = tuple(array.dtype.name for array in arrays)
    found = []
    library = combining._library()
    for number in range(cpu.instruction_sets()):
        out = np.empty(arrays[0].size, FLOATS[dtype])
        with patch.object(library, "leafwise_instruction_sets", lambda count=number + 1: count):
            outcome = combining._by_library(library, arrays, names, weights, out)
        found.append(None if outcome == combining._DO_NOT_FIT else out.tobytes())
    assert len(set(found)) == 1, "the instruction sets differ"
    return found[0]


@of_the_library
@pytest.mark.parametrize("first", WIDE)
@pytest.mark.parametrize("second", [*WIDE, "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("out", WIDE)
def test_the_bits_are_those_of_the_reference(out: str, first: str, second: str) -> None:
    for size in [*range(101), 1_023, 1_024, 1_025, 5_000]:
        arrays = [numbers(first, size, size), numbers(second, size, size + 1), numbers(out, size, size + 2)]
        for weights in ([0.25, -1.0, 0.3], [1 / 3, 1 / 3, 1 / 3]):
            right = reference.combine(arrays, weights, out)
            assert every_result(arrays, weights, out) == right.tobytes(), size


@of_the_library
@pytest.mark.parametrize("first", [*WIDE, "float8_e4m3fn"])
@pytest.mark.parametrize("out", [*WIDE, "float8_e5m2"])
def test_casts_have_the_same_bits_as_those_of_a_save(out: str, first: str) -> None:
    for size in (0, 1, 7, 1_024, 4_999):
        for values in (
            numbers(first, size, size),
            np.nan_to_num(numbers(first, size, 3).astype(np.float32), posinf=1, neginf=-1),
        ):
            array = values.astype(FLOATS[first]) if values.dtype != FLOATS[first] else values
            made = np.empty(size, FLOATS[out])
            combining.cast(array, made, saturate=True)
            assert made.tobytes() == casting.cast_to(array, out, saturate=True).tobytes()
    with pytest.raises(lw.WriteError, match="some values do not fit into float16"):
        combining.cast(np.full(2_000, 7e4), np.empty(2_000, np.float16))


@of_the_library
@pytest.mark.parametrize("out", WIDE)
def test_arrays_may_begin_at_any_address(out: str) -> None:
    for shift, dtype in itertools.product(range(1, 8), WIDE):
        values = numbers(dtype, 999, shift)
        room = np.empty(values.nbytes + 8, np.uint8)
        room[shift : shift + values.nbytes] = values.view(np.uint8)
        moved = np.frombuffer(room.data[shift : shift + values.nbytes], values.dtype)
        made = np.empty(values.size * np.dtype(FLOATS[out]).itemsize + 8, np.uint8)
        result = np.frombuffer(made.data[shift : made.size - 8 + shift], FLOATS[out])
        combining.combine([moved, values], [0.5, 0.5], result)
        assert result.tobytes() == reference.combine([values, values], [0.5, 0.5], out).tobytes()


@of_the_library
@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("out", WIDE)
def test_special_numbers_propagate_as_in_the_reference(out: str, special: float) -> None:
    for other, at in itertools.product(SPECIAL, (0, 3, 1_050)):
        arrays = [np.zeros(1_100), np.zeros(1_100, np.float32)]
        arrays[0][at], arrays[1][at] = special, other
        right = reference.combine(arrays, [1.0, -0.5], out)
        assert every_result(arrays, [1.0, -0.5], out) == right.tobytes(), (other, at)


@of_the_library
@pytest.mark.parametrize("out", ["bfloat16", "float16"])
def test_sums_are_rounded_once(out: str) -> None:
    """Just above the middle between two numbers: rounded to 32 bits first, it would be the middle, and go to even."""
    unit = 2.0 ** (-7 if out == "bfloat16" else -10)
    for sign, tiny in itertools.product((1.0, -1.0), (2.0**-40, 2.0**-50, -(2.0**-40), -(2.0**-50))):
        arrays = [np.array([sign * (1 + unit / 2)]), np.array([sign * tiny])]
        expected = sign * (1 + unit if tiny > 0 else 1)
        found = np.frombuffer(every_result(arrays, [1.0, 1.0], out), FLOATS[out])
        assert found.astype(float).tolist() == [expected]
        assert reference.combine(arrays, [1.0, 1.0], out).astype(float).tolist() == [expected]


@of_the_library
def test_every_float16_is_the_nearest_to_its_sum() -> None:
    """All float16 numbers and the middles between them, with a little added, against exact fractions."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = (halves[:-1] + halves[1:]) / 2
    for tiny in (0.0, 2.0**-60, -(2.0**-60)):
        found = np.frombuffer(every_result([middles, np.full(middles.size, tiny)], [1.0, 1.0], "float16"), np.float16)
        upper = np.where(tiny > 0, True, np.where(tiny < 0, False, np.arange(middles.size) % 2 == 1))
        # A sum with a tiny number may be rounded to the middle, in float64.
        exact = middles + tiny != middles
        upper = np.where(exact, upper, np.arange(middles.size) % 2 == 1)
        assert np.array_equal(found.astype(np.float64), np.where(upper, halves[1:], halves[:-1]))
    assert Fraction(float(middles[0])) * 2 == Fraction(float(halves[1]))


@of_the_library
@pytest.mark.parametrize(
    ("out", "limit"),
    [("float16", 65520.0), ("bfloat16", (2 - 2.0**-8) * 2.0**127), ("float32", (2 - 2.0**-24) * 2.0**127)],
)
def test_sums_that_do_not_fit_are_an_error_or_the_largest_number(out: str, limit: float) -> None:
    below = np.nextafter(limit, 0)
    made = np.empty(2_000, FLOATS[out])
    for value, fits in [(below, True), (-below, True), (limit, False), (-limit, False)]:
        for at in (0, 1_999):
            arrays = [np.zeros(2_000), np.zeros(2_000, np.float32)]
            arrays[0][at] = value
            if fits:
                combining.combine(arrays, [1.0, 1.0], made)
                assert np.isfinite(made.astype(np.float64)).all()
                continue
            assert every_result(arrays, [1.0, 1.0], out) is None
            with pytest.raises(lw.WriteError, match=f"some values do not fit into {out}"):
                combining.combine(arrays, [1.0, 1.0], made)
            combining.combine(arrays, [1.0, 1.0], made, saturate=True)
            assert float(made[at]) == np.sign(value) * float(reference.combine([np.array([below])], [1.0], out)[0])


def test_a_sum_that_is_larger_than_any_number_is_an_error() -> None:
    large = np.full(3, 1e308)
    for weights in ([1.0, 1.0], [10.0, -10.0]):
        for saturate in (False, True):
            with pytest.raises(lw.WriteError, match="some sums are larger than any number of float64"):
                combining.combine([large, large], weights, np.empty(3), saturate)
    out = np.empty(3, np.float32)
    combining.combine([np.full(3, np.inf), large], [1.0, 1.0], out)
    assert np.isposinf(out).all()


def test_small_dtypes_are_rounded_by_the_reference() -> None:
    x = np.linspace(-3, 3, 1_001)
    for name in ("float8_e4m3fn", "float8_e5m2"):
        out = np.empty(x.size, FLOATS[name])
        combining.combine([x, x], [0.25, 0.5], out)
        assert out.tobytes() == reference.combine([x * 0.75], [1.0], name).tobytes()


def test_without_the_library_sums_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = [numbers("bfloat16", 3_000, 1), numbers("float32", 3_000, 2)]
    made = [np.empty(3_000, FLOATS["bfloat16"]) for _ in range(2)]
    combining.combine(arrays, [0.5, 0.5], made[0])
    monkeypatch.setattr(combining, "_library", lambda: None)
    combining.combine(arrays, [0.5, 0.5], made[1])
    assert made[0].tobytes() == made[1].tobytes()


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "loaded", lambda: type("Old", (), {})())
    with pytest.warns(UserWarning, match="C library is from another version: sums are computed with NumPy"):
        assert combining._library() is None
