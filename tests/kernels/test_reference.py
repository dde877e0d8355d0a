"""The reference against plain loops and exact sums, without NumPy's own arithmetic."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.kernels.cases import cases

from leafwise.core.results.moments import COUNTS, NUMBERS, Histogram
from leafwise.kernels import reference
from leafwise.kernels.dtypes import smallest_normal

CASES = cases()


def exponent(value: Any) -> int:
    """The power of two that is the largest not above the magnitude."""
    magnitude = Fraction(value).limit_denominator(2**1200) if isinstance(value, int) else Fraction(value)
    magnitude = abs(magnitude)
    guess = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    return guess if Fraction(2) ** guess <= magnitude else guess - 1


@pytest.mark.parametrize("name", CASES)
def test_the_reference_gives_what_plain_loops_give(name: str) -> None:
    array = CASES[name]
    found = reference.measure(array)
    whole = array.dtype.kind in "iub"
    values = [int(one) if whole else float(one) for one in array.reshape(-1)]
    finite = [one for one in values if whole or math.isfinite(one)]
    assert found.count == len(values)
    assert found.finite == len(finite)
    assert found.nan == sum(1 for one in values if one != one)
    assert found.posinf == sum(1 for one in values if one == math.inf)
    assert found.neginf == sum(1 for one in values if one == -math.inf)
    assert found.zeros == sum(1 for one in finite if one == 0)
    tiny = smallest_normal(array.dtype.name)
    assert found.subnormals == sum(1 for one in finite if one != 0 and abs(one) < tiny)
    bins: dict[int, int] = {}
    for one in finite:
        if one:
            at = min(max(exponent(one), -127), 128)
            bins[at] = bins.get(at, 0) + 1
    wanted = Histogram(min(bins), tuple(bins.get(at, 0) for at in range(min(bins), max(bins) + 1))) if bins else None
    assert found.histogram == (wanted or Histogram(0, ()))
    if not finite:
        assert all(math.isnan(one) for one in (found.min, found.max, found.mean, found.std))
        assert (found.l1, found.l2) == (0, 0)
        return
    assert (found.min, found.max) == (min(finite), max(finite))
    exact = [Fraction(one) for one in finite]
    mean = sum(exact) / len(exact)
    magnitudes = sum(map(abs, exact))
    assert math.isclose(found.l1, float_of(magnitudes), rel_tol=1e-14)
    smallest = Fraction(2) ** -1074  # that a float can be
    assert abs(Fraction(found.mean) - mean) <= Fraction(1, 10**14) * magnitudes / len(exact) + smallest
    squares, spread = sum(one * one for one in exact), sum((one - mean) ** 2 for one in exact)
    assert math.isclose(found.l2, root(squares), rel_tol=1e-13)
    # As well as the mean is known.
    size = len(exact)
    assert math.isclose(found.std, root(spread / size), rel_tol=1e-12, abs_tol=1e-16 * root(squares / size))


def test_every_field_is_compared_with_plain_loops() -> None:
    assert set(COUNTS) == {"count", "nan", "posinf", "neginf", "zeros", "subnormals"}
    assert set(NUMBERS) == {"min", "max", "mean", "mean_rest", "std", "l1", "l2"}


def float_of(number: Fraction) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def root(number: Fraction) -> float:
    """The square root, however large or small."""
    if not number:
        return 0.0
    shift = (number.numerator.bit_length() - number.denominator.bit_length()) // 2
    scaled = number / Fraction(4) ** shift
    try:
        return math.ldexp(math.sqrt(float(scaled)), shift)
    except OverflowError:
        return math.inf


def test_the_histogram_can_be_left_out() -> None:
    assert reference.measure(np.ones(3), histogram=False).histogram is None
