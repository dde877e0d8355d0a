"""Every figure of a comparison against exact fractions: all pairs of dtypes, and numbers at both ends of the range."""

import math
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest

import leafwise as lw
from leafwise.core.results.comparison import Comparison, merged_comparisons
from leafwise.files.arrays.stored import ITEM_BYTES
from leafwise.kernels import comparing, cpu, reference
from leafwise.kernels.dtypes import numpy_dtype
from leafwise.kernels.streams import compare_streams

RELATIVE = 1e-12  # how far a norm, a distance or their ratio may be off
COSINE = 1e-12


def exact(array: Any) -> list[tuple[Fraction, Fraction]]:
    """Each number, with its imaginary part."""
    if array.dtype.kind in "iub":
        return [(Fraction(int(value)), Fraction(0)) for value in array]
    wide = array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)
    return [(Fraction(float(value.real)), Fraction(float(value.imag))) for value in wide]


def root(square: Fraction) -> Fraction:
    """The root of a fraction, to 200 bits and more."""
    if not square:
        return Fraction(0)
    shift = max(0, 200 - (square.numerator.bit_length() - square.denominator.bit_length()) // 2)
    return Fraction(math.isqrt((square.numerator << (2 * shift)) // square.denominator), 1 << shift)


def as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def close(found: float, right: Fraction) -> bool:
    wanted = as_float(right)
    if math.isinf(wanted) or math.isinf(found):
        return found == wanted or abs(right / Fraction(2) ** 1024 - 1) < RELATIVE
    # Below the smallest normal number a float has fewer digits.
    return math.isclose(found, wanted, rel_tol=RELATIVE, abs_tol=5e-324)


def check(found: Comparison, one: Any, other: Any) -> None:
    with np.errstate(all="ignore"):
        finite = np.isfinite(one.astype(np.complex128)) & np.isfinite(other.astype(np.complex128))
    x, y = exact(one[finite]), exact(other[finite])
    apart = [(p - r) ** 2 + (q - s) ** 2 for (p, q), (r, s) in zip(x, y, strict=True)]
    norm, other_norm = (sum((p**2 + q**2 for p, q in side), Fraction(0)) for side in (x, y))
    distance = sum(apart, Fraction(0))
    told = f"{one.dtype} {one.tolist()} {other.dtype} {other.tolist()} {found}"
    assert found.size == one.size, told
    assert found.nonfinite == one.size - np.count_nonzero(finite), told
    assert found.changed >= sum(map(bool, apart)), told
    if not found.changed:
        assert not distance, told
        return
    assert close(found.distance, root(distance)), told
    assert close(found.norm, root(norm)), told
    assert close(found.other_norm, root(other_norm)), told
    if found.nonfinite_changed:
        assert math.isnan(found.relative_l2), told
    else:
        assert close(found.largest, root(max(apart, default=Fraction(0)))), told
        if not distance:
            assert found.relative_l2 == 0, told
        elif norm:
            assert close(found.relative_l2, root(distance / norm)), told
        else:
            assert found.relative_l2 == math.inf, told
    if norm and other_norm:
        dot = sum((p * r + q * s for (p, q), (r, s) in zip(x, y, strict=True)), Fraction(0))
        cosine = float(root(dot**2 / (norm * other_norm)))
        assert found.cosine == pytest.approx(cosine if dot > 0 else -cosine, abs=COSINE), told
    else:
        assert math.isnan(found.cosine), told


def pool(dtype: str) -> Any:
    """Numbers of a dtype that are hard for others."""
    wanted = numpy_dtype(dtype)
    if wanted.kind in "iu":
        ends = np.iinfo(dtype)
        points = [0, 1, 3, 100, 2**24 + 1, 2**53, 2**53 + 1, 2**60 + 1, 2**62 + 2**10, 2**63 - 1, 2**63 + 1, 2**64 - 1]
        points += [2**53 - 1, 2**60, 2**63 - 1025, int(ends.min), int(ends.max)]
        every = {value for point in points for value in (point, -point, point + 2047)}
        return np.array([value for value in every if ends.min <= value <= ends.max], wanted)
    if dtype == "bool":
        return np.array([False, True])
    points = [0, 1, -1, 3, 0.1, 2.0**24, 2.0**53, 2.0**60, -(2.0**63), 2.0**63, 2.0**64, 1e-30, 1e30, 1e-300, 1e300]
    points += [5e-324, -1e-310, 1.7e308, -1.7e308, 448, 65504, 2.0**53 + 2, 1e18 + 0.0, 1 + 2.0**-40, 2.0**63 - 1024]
    points += [np.nan, np.inf, -np.inf] if dtype == "float64" else []
    with np.errstate(all="ignore"):
        found = np.array(points).astype(wanted)
        if wanted.kind == "c":
            found = np.concatenate([found, found * wanted.type(1j), found * wanted.type(1 - 1j)])
        keep = np.isfinite(found.astype(np.complex128)) if dtype != "float64" else np.ones(found.size, bool)
    return found[keep]


@pytest.mark.parametrize(("one", "other"), [*product(ITEM_BYTES, ITEM_BYTES)])
def test_pairs_of_any_two_dtypes_are_compared_exactly(one: str, other: str) -> None:
    rng = np.random.default_rng([*map(ord, one + other)])
    mine, theirs = pool(one), pool(other)
    for _ in range(20):
        size = int(rng.integers(1, 6))
        x, y = rng.choice(mine, size), rng.choice(theirs, size)
        check(compare_streams([x], [y])[0], x, y)


@pytest.mark.parametrize("whole", ["int64", "uint64"])
@pytest.mark.parametrize("dtype", [name for name in ITEM_BYTES if "float" in name or "complex" in name])
def test_large_whole_numbers_are_compared_exactly_with_the_floats_nearest_to_them(whole: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    ends = np.iinfo(whole)
    wanted = numpy_dtype(dtype)
    for _ in range(60):
        size = int(rng.integers(1, 9))
        x = rng.integers(ends.min, ends.max, size, dtype=whole, endpoint=True) >> rng.integers(0, 20, size).astype(
            whole
        )
        with np.errstate(all="ignore"):
            y = x.astype(np.float64).astype(np.float32 if wanted.itemsize < 4 else wanted).astype(wanted)
            y = np.where(np.isfinite(y.astype(np.complex128)), y, wanted.type(1))
        for one, other in ((x, y), (y, x)):
            check(compare_streams([one], [other])[0], one, other)


ENDS = {
    "a norm larger than any number": ([1.7e308, 1.7e308], [1.7e308, 1.6e308]),
    "both norms": ([1.7e308] * 9, [-1.7e308] * 9),
    "one norm": ([1.7e308] * 9, [1.0] * 9),
    "the other norm": ([1.0] * 9, [1.7e308] * 9),
    "the smallest numbers": ([5e-324, 5e-324], [5e-324, 1e-323]),
    "small beside zero": ([5e-324, 5e-324, 0.0], [0.0, 0.0, 5e-324]),
    "subnormals": ([3e-310, -2e-310, 1e-315], [3e-310, 2e-310, 1e-316]),
    "tiny beside the largest": ([5e-324, 5e-324], [1.7e308, 1.7e308]),
    "the largest beside tiny": ([1.7e308, 1.7e308], [5e-324, 5e-324]),
}


def spread(values: list[float], times: int) -> Any:
    return np.array(values * times)


@pytest.mark.parametrize("times", [1, cpu.CHUNK // 2 + 3])
@pytest.mark.parametrize("name", ENDS)
def test_both_ends_of_the_range_are_compared_exactly_in_one_chunk_and_in_several(name: str, times: int) -> None:
    one, other = (spread(values, times) for values in ENDS[name])
    found = [
        comparing.compare([(cpu.run_of(one), cpu.run_of(other))])[0],
        compare_streams([one], [other])[0],
        merged_comparisons(
            reference.compare(one[at : at + cpu.CHUNK], other[at : at + cpu.CHUNK])
            for at in range(0, one.size, cpu.CHUNK)
        ),
    ]
    # The figures of many copies of a few values, from the few.
    few, few_others = (np.array(values) for values in ENDS[name])
    x, y = ([value for value, _ in exact(side)] for side in (few, few_others))
    distance, norm, other_norm = (
        times * sum(value**2 for value in side) for side in ([p - q for p, q in zip(x, y, strict=True)], x, y)
    )
    for one_found in found:
        assert close(one_found.distance, root(Fraction(distance)))
        assert close(one_found.norm, root(Fraction(norm)))
        assert close(one_found.other_norm, root(Fraction(other_norm)))
        assert close(one_found.relative_l2, root(Fraction(distance) / norm))
        dot = times * sum(p * q for p, q in zip(x, y, strict=True))
        cosine = float(root(Fraction(dot) ** 2 / (norm * other_norm)))
        assert one_found.cosine == pytest.approx(cosine if dot > 0 else -cosine, abs=COSINE)


def test_leaves_at_both_ends_of_the_range_are_put_together_exactly() -> None:
    a = {"x": np.array([1.7e308, 1.7e308]), "y": np.array([5e-324, 5e-324]), "z": np.array([3.0])}
    b = {"x": np.array([1.7e308, -1.7e308]), "y": np.array([5e-324, 1e-323]), "z": np.array([3.5])}
    found = lw.diff(a, b)
    for name in a:
        check(found[name].comparison, a[name], b[name])
    whole = merged_comparisons(found[name].comparison for name in a)
    check(whole, np.concatenate([*a.values()]), np.concatenate([*b.values()]))
    assert "scaled" not in found.json()["leaves"][0]["comparison"]
