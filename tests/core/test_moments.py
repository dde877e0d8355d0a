"""Moments of several arrays are put together to those of one."""

import math
import random
import sys
from dataclasses import replace

import numpy as np
import pytest
from tests.kernels.cases import assert_agree

from leafwise.core.results.moments import Histogram, Moments, merged_moments, nothing
from leafwise.kernels import reference

LARGEST = sys.float_info.max


def moments(*values: float) -> Moments:
    return reference.measure(np.array(values))


def test_any_cut_gives_what_the_whole_gives() -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=10_000) * 10.0 ** generator.integers(-5, 5, 10_000)
    values[17], values[99] = math.nan, math.inf
    whole = reference.measure(values)
    for cuts in ([1], [5_000], [0, 3, 3, 9_999], sorted(generator.integers(0, 10_000, 40).tolist())):
        parts = [reference.measure(part) for part in np.split(values, cuts)]
        assert_agree(merged_moments(parts), whole, 1e-12)
        random.Random(0).shuffle(parts)
        assert_agree(merged_moments(parts), whole, 1e-12)


def test_moments_at_the_ends_of_the_range_stay_finite() -> None:
    ends = merged_moments([moments(LARGEST), moments(-LARGEST)])
    assert (ends.mean, ends.std) == (0, pytest.approx(LARGEST))
    ends = merged_moments([moments(*[LARGEST] * size) for size in (160, 1_781, 1_909)])
    assert (ends.min, ends.max, ends.mean, ends.mean_rest) == (LARGEST, LARGEST, LARGEST, 0)
    tiny = merged_moments([moments(0.0) if number % 2 else moments(1e-322) for number in range(1_000)])
    assert tiny.mean == 5e-323
    assert merged_moments([moments(5e-324)] * 100 + [moments(1e-323)]).mean == 5e-324


def test_far_from_zero_distances_are_not_rough() -> None:
    values = np.random.default_rng(1).normal(size=40_000) + 1e12
    exact = reference.measure(values)
    found = merged_moments([reference.measure(part) for part in np.split(values, 100)])
    assert found.std == pytest.approx(exact.std, rel=1e-11)


def test_moments_of_nothing_and_of_no_finite_value_add_up() -> None:
    assert merged_moments([]) == nothing(Histogram(0, ())) or math.isnan(merged_moments([]).mean)
    assert merged_moments([]).count == 0
    none = merged_moments([moments(math.nan), moments(math.inf, -math.inf)])
    assert (none.count, none.nan, none.posinf, none.neginf, none.finite, none.l1) == (3, 1, 1, 1, 0, 0)
    some = merged_moments([moments(math.nan), moments(2.0), moments()])
    assert (some.count, some.mean, some.min, some.std) == (2, 2, 2, 0)


def test_histograms_add_up() -> None:
    found = merged_moments([moments(1.0, 0.25), moments(4.0, 0.0)])
    assert found.histogram == Histogram(-2, (1, 0, 1, 0, 1))
    assert merged_moments([replace(moments(1.0), histogram=None), moments(2.0)]).histogram is None
