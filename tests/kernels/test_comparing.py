"""Comparisons of arrays by the C code, in every instruction set of this machine, against the reference."""

import math
import os
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from tests.kernels.cases import FLOATS, WHOLE, cases, same
from tests.kernels.test_cpu import of_the_library

from leafwise.core.memory.runs import Run, UnreadError
from leafwise.core.results.comparison import Comparison, merged_comparisons
from leafwise.kernels import comparing, cpu, reference

CASES = cases()


def partner(array: Any) -> Any:
    """The same array with some values put elsewhere."""
    rng = np.random.default_rng(1)
    other = array.copy()
    if array.size:
        other[rng.integers(0, array.size, max(1, array.size // 3))] = array[rng.integers(0, array.size)]
    return other


def compare(one: Any, other: Any, **more: Any) -> Comparison:
    return comparing.compare([(cpu.run_of(one), cpu.run_of(other))], **more)[0]


def assert_close(found: Comparison, right: Comparison) -> None:
    assert found[:3] == right[:3]
    assert found.nonfinite_changed == right.nonfinite_changed
    for name in ("distance", "norm", "other_norm", "largest"):
        if name == "largest" and right.nonfinite_changed:
            assert math.isnan(found.largest)
            continue
        assert math.isclose(getattr(found, name), getattr(right, name), rel_tol=1e-12), name
    assert same(found.cosine, right.cosine) or math.isclose(found.cosine, right.cosine, rel_tol=1e-12, abs_tol=1e-13)


@of_the_library
@pytest.mark.parametrize("name", CASES)
def test_every_instruction_set_agrees_with_the_reference_and_gives_the_same_bits(name: str) -> None:
    one, other = CASES[name], partner(CASES[name])
    pairs = [(cpu.run_of(one), cpu.run_of(other))]
    parts = [comparing.PairPart(0, 0, one.size)] if one.size else []
    library, every = cpu.loaded(), []
    for number in range(cpu.instruction_sets()):
        with patch.object(library, "leafwise_instruction_sets", lambda count=number + 1: count):
            every.append(comparing._by_library(library, pairs, parts, True, 1))
    assert len(set(map(repr, every))) == 1
    for looked in every[0]:
        [(_, found)] = looked
        assert found is not None
        assert_close(found, reference.compare(one, other))


@pytest.mark.parametrize("dtype", [*FLOATS, *WHOLE, "complex64"])
def test_what_is_the_same_in_every_bit_is_the_same(dtype: str) -> None:
    bits = np.random.default_rng(0).integers(0, 2, 16 * (cpu.CHUNK + 5), np.uint8)
    one = bits.view(cpu.numpy_dtype(dtype))[: cpu.CHUNK + 5]
    assert compare(one, one.copy())[:4] == (one.size, 0, 0, 0.0)
    other = one.copy()
    other.view(np.uint8)[-1] ^= 1
    assert compare(one, other).changed == 1


def test_signs_of_zero_and_kinds_of_nan_are_bits() -> None:
    one = np.array([0.0, 1.0, np.nan, np.inf], np.float32)
    other = one.copy()
    other[0] = -0.0
    found = compare(one, other)
    assert (found.changed, found.distance, found.relative_l2, found.largest) == (1, 0, 0, 0)
    assert found.nonfinite == 2
    payload = one.copy()
    payload.view(np.uint32)[2] |= 7
    assert compare(one, payload).changed == 1
    assert compare(one, one.copy()).changed == 0


def test_values_that_are_not_finite_count_as_changed_by_an_unknown_distance() -> None:
    one = np.array([3.0, 4.0, np.inf, 1.0, np.nan], np.float64)
    other = np.array([3.0, 4.5, 1.0, np.nan, np.nan], np.float64)
    found = compare(one, other)
    assert (found.changed, found.nonfinite, found.distance, found.norm) == (3, 3, 0.5, 5.0)
    assert found.nonfinite_changed == 2
    assert math.isnan(found.largest)
    assert math.isnan(found.relative_l2)
    other[2:4] = one[2:4]
    found = compare(one, other)
    assert (found.nonfinite, found.nonfinite_changed, found.largest, found.relative_l2) == (2, 0, 0.5, 0.5 / found.norm)
    both = merged_comparisons([compare(one, np.full(5, np.nan)), found])
    assert both.nonfinite_changed == 4
    assert math.isnan(both.largest)


HARD = {
    "one huge value": ([1.0] * 1000, [1.0] * 7 + [1e200] + [1.0] * 992),
    "small beside large": ([1e300, 1e-20], [1e300, 1.0]),
    "tiny beside one": ([1.0, 1e-200], [1.0, 2e-200]),
    "further apart than any number": ([1.7e308], [-1.7e308]),
    "further apart, and more": ([1.7e308, 3.0, 5e-324], [-1.7e308, 4.0, 0.0]),
    "subnormals beside the largest": ([1.7e308, 5e-324], [1.7e308, 0.0]),
    "tiny and huge": ([1e-300, 2e-300], [1e300, -3e300]),
    "zeros and huge": ([0.0, 0.0], [1e300, -3e300]),
    "huge in another block": ([1e-250] * 5000 + [1e250], [2e-250] * 4999 + [1e250, 3e250]),
    "tiny differences in another block": ([1e250] * 4096 + [1.0] * 9, [1e250] * 4096 + [1.0] * 8 + [1.0 + 1e-10]),
}


@of_the_library
@pytest.mark.parametrize("name", HARD)
def test_doubles_of_any_size_are_compared_without_overflow(name: str) -> None:
    one, other = (np.array(values) for values in HARD[name])
    for a, b in ((one, other), (other, one), (one, other * -0.5)):
        found = compare(a, b)
        assert_close(found, reference.compare(a, b))
        x, y = ([Fraction(value) for value in side.tolist()] for side in (a, b))
        apart = [p - q for p, q in zip(x, y, strict=True)]
        distance, norm, other_norm = (sum(value**2 for value in values) for values in (apart, x, y))
        assert found.largest == pytest.approx(_double(max(map(abs, apart))), rel=1e-12)
        if norm and math.isfinite(found.relative_l2):
            smallest = Fraction(2.0**-1022) ** 2  # a smaller one cannot be told
            if distance / norm > smallest:
                assert float(Fraction(found.relative_l2) ** 2 * norm / distance) == pytest.approx(1, rel=1e-11)
        else:
            assert not norm or distance / norm > Fraction(1e308) ** 2
        dot = sum(p * q for p, q in zip(x, y, strict=True))
        if norm and other_norm:
            cosine = float(dot**2 / (norm * other_norm)) ** 0.5
            assert found.cosine == pytest.approx(cosine if dot > 0 else -cosine, abs=1e-12)


def _double(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def test_differences_of_large_whole_numbers_are_exact() -> None:
    one = np.array([2**60, -(2**63), 5], np.int64)
    assert compare(one, one + np.array([1, 0, 0])).largest == 1
    found = compare(one, np.array([2**60, 2**63 - 1, 5], np.int64))
    assert found.largest == 2.0**64
    assert compare(np.array([2**64 - 1], np.uint64), np.array([2**64 - 2], np.uint64)).largest == 1


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int16"])
def test_any_number_of_threads_and_any_cut_gives_the_same_bits(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = (np.random.default_rng(0).normal(size=5 * cpu.CHUNK + 1_234) * 100).astype(cpu.numpy_dtype(dtype))
    other = one.copy()
    other[cpu.CHUNK + 7 : 2 * cpu.CHUNK + 3] = one[5]  # the first chunk and the last ones are the same
    found = compare(one, other, threads=1)
    assert_close(found, reference.compare(one, other))
    for threads in (2, 3, 100):
        assert compare(one, other, threads=threads) == found
    monkeypatch.setattr(comparing, "_BUNDLE", 1)
    done: list[int] = []
    assert compare(one, other, count=done.append) == found
    assert (sum(done), len(done)) == (one.nbytes, 6)


def test_a_change_anywhere_is_found() -> None:
    one = np.zeros(2 * cpu.CHUNK + 3, np.uint8)
    for place in (0, 65_535, 65_536, cpu.CHUNK - 1, cpu.CHUNK, len(one) - 1):
        other = one.copy()
        other[place] = 1
        found = compare(one, other)
        assert (found.changed, found.largest, found.distance) == (1, 1, 1)


def test_files_and_memory_at_any_offset_are_compared(tmp_path: Path) -> None:
    one = np.random.default_rng(2).normal(size=cpu.CHUNK + 77).astype(np.float32)
    other = one.copy()
    other[100_000:] *= 1.5
    (tmp_path / "one").write_bytes(b"abc" + one.tobytes())
    (tmp_path / "other").write_bytes(b"abcde" + other.tobytes())
    files = [os.open(tmp_path / name, os.O_RDONLY) for name in ("one", "other")]
    in_files = [Run(at, one.size, "float32", None, file) for at, file in zip((3, 5), files, strict=True)]
    in_memory = [cpu.run_of(one), cpu.run_of(other)]
    right = comparing.compare([(in_memory[0], in_memory[1])])
    for first in (in_files[0], in_memory[0]):
        for second in (in_files[1], in_memory[1]):
            assert comparing.compare([(first, second)]) == right
    os.truncate(tmp_path / "other", 1_000)
    with pytest.raises(UnreadError) as raised:
        comparing.compare([(in_memory[0], in_memory[0]), (in_memory[0], in_files[1])])
    assert (raised.value.number, raised.value.side) == (1, 1)
    for file in files:
        os.close(file)


def test_a_library_of_another_version_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = np.arange(5.0), np.arange(5.0) * 2
    right = reference.compare(one, other)
    for library in (type("Older", (), {})(), type("Other", (), {"leafwise_comparison_bytes": lambda self: 72})()):
        monkeypatch.setattr(cpu, "loaded", lambda library=library: library)
        with pytest.warns(UserWarning, match="C library is from another version: values are compared with NumPy"):
            assert compare(one, other) == right
        assert compare(one, other) == right  # said once


def test_without_the_library_the_reference_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = np.random.default_rng(3).normal(size=3 * cpu.CHUNK + 5).astype(np.float32)
    other = one.copy()
    other[cpu.CHUNK :] += 1
    right = compare(one, other)
    monkeypatch.setattr(cpu, "loaded", lambda: None)
    assert_close(compare(one, other), right)
    assert compare(one, one.copy()).changed == 0
    (tmp_path / "one").write_bytes(one.tobytes())
    file = os.open(tmp_path / "one", os.O_RDONLY)
    run = Run(0, one.size, "float32", None, file)
    assert comparing.compare([(run, cpu.run_of(other))])[0] == compare(one, other)
    os.truncate(tmp_path / "one", 10)
    with pytest.raises(UnreadError):
        comparing.compare([(run, cpu.run_of(other))])
    os.close(file)


def test_many_pairs_and_empty_ones_between_are_compared_at_once() -> None:
    rng = np.random.default_rng(4)
    ones = [rng.normal(size=size) for size in (0, 5, 0, 1, 4_097, 0)]
    others = [array + (number % 2) for number, array in enumerate(ones)]
    found = comparing.compare([(cpu.run_of(a), cpu.run_of(b)) for a, b in zip(ones, others, strict=True)])
    assert [one.changed for one in found] == [0, 5, 0, 1, 0, 0]
    assert comparing.compare([]) == []
    assert found[0].share == 0


def test_figures_relative_to_zero_are_infinite() -> None:
    zeros = np.zeros(4, np.float32)
    found = compare(zeros, np.array([0, 0, 3, 4], np.float32))
    assert (found.relative_l2, found.share, found.other_norm) == (math.inf, 0.5, 5.0)
    assert merged_comparisons([]) == Comparison(0, 0)


def test_parts_together_are_the_whole() -> None:
    one = np.random.default_rng(5).normal(size=9_000)
    other = one * 1.01 + 0.1
    parts = [compare(one[at : at + 999], other[at : at + 999]) for at in range(0, 9_000, 999)]
    assert_close(merged_comparisons(parts), reference.compare(one, other))
    huge = merged_comparisons([compare(one[:10] * 1e300, other[:10] * 1e300), compare(one[10:20], other[10:20])])
    assert math.isfinite(huge.cosine)
    assert math.isfinite(huge.relative_l2)
