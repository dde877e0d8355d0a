"""`lw.diff` of arrays: which values differ and by how much, across dtypes and at the ends of their ranges."""

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspect.helpers import kinds

import leafwise as lw


def test_whole_numbers_of_two_dtypes_are_compared_exactly() -> None:
    ids = torch.arange(4) + 2**60
    assert kinds(lw.diff({"ids": ids}, {"ids": ids.to(torch.uint64)})) == {"ids": ("cast",)}
    for one, other in ((ids, (ids + 1).to(torch.uint64)), ((ids + 1).to(torch.uint64), ids)):
        found = lw.diff({"ids": one}, {"ids": other})["ids"]
        assert found.kinds == ("changed",)
        assert (found.comparison.changed, found.comparison.largest, found.comparison.distance) == (4, 1, 2)


def test_numbers_that_are_equal_only_after_wrapping_differ() -> None:
    one, other = np.array([-1, 5, -3], np.int64), np.array([2**64 - 1, 5, 2], np.uint64)
    found = lw.diff({"a": one}, {"a": other})["a"]
    assert found.kinds == ("changed",)
    assert (found.comparison.size, found.comparison.changed, found.comparison.largest) == (3, 2, 2.0**64)
    wide = lw.diff({"a": one.astype(np.int32)}, {"a": np.array([2**32 - 1, 5, 2], np.uint32)})["a"]
    assert (wide.kinds, wide.comparison.changed, wide.comparison.largest) == (("changed",), 2, 2.0**32)


def test_dtypes_without_a_reader_are_compared_as_bytes(tmp_path: Path) -> None:
    one = torch.arange(8, dtype=torch.uint8)
    other = one.flip(0)
    packed = [value.view(torch.float4_e2m1fn_x2) for value in (one, one.clone(), other)]
    assert lw.diff({"p": packed[0]}, {"p": packed[1]}).same
    found = lw.diff({"p": packed[0]}, {"p": packed[2]})["p"]
    assert (found.kinds, found.comparison) == (("changed",), None)
    assert "how much it changed is not known" in found.notes[0]
    assert lw.diff({"p": packed[0], "w": one}, {"p": one, "w": one})["p"].kinds == ("unknown",)


def test_a_huge_value_on_one_side_leaves_the_norm_of_the_other() -> None:
    a = torch.ones(1000, dtype=torch.float64)
    b = a.clone()
    b[7] = 1e200
    found = lw.diff({"a": a}, {"a": b})["a"].comparison
    assert found.norm == pytest.approx(1000**0.5)
    assert found.relative_l2 == pytest.approx(1e200 / 1000**0.5)
    assert found.cosine == pytest.approx(1000**-0.5)


@pytest.mark.parametrize(
    ("a", "b", "distance", "relative"),
    [
        ([1e300, 1e-20], [1e300, 1.0], 1.0, 1e-300),
        ([1.0, 1e-200], [1.0, 2e-200], 1e-200, 1e-200),
        ([1.7e308], [-1.7e308], math.inf, 2.0),
    ],
)
def test_small_differences_beside_large_values_are_not_lost(a: Any, b: Any, distance: float, relative: float) -> None:
    one, other = (torch.tensor(values, dtype=torch.float64) for values in (a, b))
    found = lw.diff({"a": one}, {"a": other})["a"].comparison
    assert found.distance == pytest.approx(distance)
    assert found.relative_l2 == pytest.approx(relative)


def test_values_that_became_nan_are_counted_and_not_averaged_away() -> None:
    a = {"m": {"w": torch.ones(4), "v": torch.ones(3)}, "z": torch.tensor([1.0, math.inf])}
    b = {"m": {"w": torch.full((4,), math.nan), "v": torch.zeros(3)}, "z": torch.tensor([2.0, math.inf])}
    found = lw.diff(a, b)
    change = found["m.w"]
    assert math.isnan(change.comparison.relative_l2)
    assert math.isnan(change.comparison.largest)
    expected = "4 of the changed values not finite"
    assert expected in repr(change)
    shown = found.text()
    assert shown.count(expected) == 2  # in its line, and in the line for all changed leaves
    assert "1 not finite" in shown
    assert expected in found.text(depth=1).splitlines()[1]
    data = json.loads(json.dumps(found.json()))
    figures = next(leaf["comparison"] for leaf in data["leaves"] if leaf["path"] == "m.w")
    assert (figures["relative_l2"], figures["largest"], figures["nonfinite_changed"]) == (None, None, 4)
    assert found["z"].comparison.largest == 1


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz]
)
def test_casts_by_torch_are_recognized(dtype: torch.dtype) -> None:
    # A number just above the middle between two float16 numbers, which float32 rounds to the middle.
    wide = torch.randn(2000, dtype=torch.float64) * 100
    wide[:4] = torch.tensor([1 + 2**-11 + 2**-40, 1000.0, -5e4, 5.0], dtype=torch.float64)
    for one in (wide, wide.float()):
        assert lw.diff({"a": one}, {"a": one.to(dtype)})["a"].kinds == ("cast",)
    changed = wide.to(dtype)
    changed[3] = -wide[3]
    assert lw.diff({"a": wide}, {"a": changed})["a"].kinds == ("changed",)


@pytest.mark.parametrize("shape", [(5, 5), (5, 7)])
def test_a_leaf_that_is_transposed_and_cast_either_way_is_recognized(shape: tuple[int, int]) -> None:
    w = torch.randn(shape)
    assert lw.diff({"w": w}, {"w": w.T.contiguous().half()})["w"].kinds == ("transposed", "cast")
    assert lw.diff({"w": w.half()}, {"w": w.T.contiguous()})["w"].kinds == ("transposed", "cast")


def test_complex_and_real_numbers_are_compared_without_a_warning() -> None:
    w = torch.randn(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert lw.diff({"w": w}, {"w": w.to(torch.complex64)})["w"].kinds == ("cast",)
        assert lw.diff({"w": w.to(torch.complex64)}, {"w": w})["w"].kinds == ("cast",)
        assert lw.diff({"w": w + 1j}, {"w": w})["w"].kinds == ("changed",)


@pytest.mark.parametrize("other", [torch.float16, torch.float32, torch.float64])
def test_a_signaling_nan_is_compared_without_a_warning(other: torch.dtype) -> None:
    narrow = torch.tensor([0x7F81, 0x3F80], dtype=torch.int16).view(torch.bfloat16)
    for a, b in ((narrow, narrow.to(other)), (narrow.to(other), narrow)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert lw.diff({"x": a}, {"x": b})["x"].kind == "cast"
