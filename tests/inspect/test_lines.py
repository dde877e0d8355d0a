"""Duplicate and zero rows and columns: sampling finds the same ones as comparing everything."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.inspect.helpers import levels_and_codes
from torch import nn

import leafwise as lw
from leafwise.inspect.check.duplicate_rows import duplicate_rows
from leafwise.inspect.check.evidence import Evidence
from leafwise.inspect.check.zero_lines import zero_lines


def seen(array: Any) -> Any:
    evidence = Evidence(lw.tree({"w": array}))
    return evidence.leaves[0]


def random(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same_rows(matrix: Any) -> list[list[int]]:
    groups: dict[bytes, list[int]] = {}
    for number, row in enumerate(matrix):
        if row.any():
            groups.setdefault(row.tobytes(), []).append(number)
    return sorted(its for its in groups.values() if len(its) > 1)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("axis", [0, 1])
def test_copies_are_found_wherever_they_are(seed: int, axis: int) -> None:
    pick = np.random.default_rng(seed)
    rows, length = int(pick.integers(2, 400)), int(pick.integers(8, 300))
    matrix = random(rows, length, seed=seed)
    for _ in range(int(pick.integers(0, 6))):
        matrix[pick.integers(rows)] = matrix[pick.integers(rows)]
    array = matrix if axis == 0 else np.ascontiguousarray(matrix.T)
    assert sorted(duplicate_rows(seen(array), axis).same) == same_rows(matrix)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "float8_e4m3fn"])
def test_copies_in_other_dtypes_are_found(dtype: str) -> None:
    values = torch.randn(50, 40, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    values[7] = values[31]
    assert duplicate_rows(seen(values), 0).same == [[7, 31]]


def test_copies_among_rows_with_equal_beginnings_are_found() -> None:
    # A sample of the first numbers is not enough here.
    matrix = random(300, 64)
    matrix[:, :32] = 0
    matrix[200] = matrix[3]
    assert duplicate_rows(seen(matrix), 0).same == [[3, 200]]
    assert duplicate_rows(seen(np.eye(128, dtype=np.float32)), 0) == ([], [])


def test_copies_among_filters_of_convolutions_are_found() -> None:
    filters = random(16, 8, 3, 3)
    filters[5] = filters[2]
    filters[:, 1] = filters[:, 6]
    assert duplicate_rows(seen(filters), 0).same == [[2, 5]]
    assert duplicate_rows(seen(filters), 1).same == [[1, 6]]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_nearly_a_copy_is_found_with_its_distance(seed: int, axis: int) -> None:
    matrix = random(200, 96, seed=seed)
    noise = random(96, seed=seed + 100)
    matrix[150] = matrix[20] + 3e-4 * noise
    expected = np.linalg.norm(matrix[150] - matrix[20]) / np.linalg.norm(matrix[20])
    [(one, other, away)] = duplicate_rows(seen(matrix if axis == 0 else matrix.T.copy()), axis).near
    assert {one, other} == {20, 150}
    assert away == pytest.approx(expected, rel=1e-3)
    matrix[150] = matrix[20] + 3e-2 * noise
    assert duplicate_rows(seen(matrix), 0) == ([], [])


def test_rows_of_very_different_norms_are_compared_relative_to_their_norm() -> None:
    matrix = random(100, 64) * np.logspace(-20, 10, 100, dtype=np.float32)[:, None]
    matrix[60] = matrix[3] * 1.0001
    [(one, other, _)] = duplicate_rows(seen(matrix), 0).near
    assert {one, other} == {3, 60}


def test_short_lines_are_reported_only_if_all_are_the_same() -> None:
    matrix = random(64, 3)
    matrix[1] = matrix[2]
    assert duplicate_rows(seen(matrix), 0).same == []
    assert duplicate_rows(seen(np.repeat(random(1, 3), 64, 0)), 0).same == [list(range(64))]


def test_arrays_larger_than_a_band_are_read_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leafwise.core.capabilities.measuring.BAND", 1000)
    matrix = random(300, 64)
    matrix[299], matrix[:, 9] = matrix[4], matrix[:, 60]
    matrix[299, 9] = matrix[299, 60] = matrix[4, 60]
    matrix[17] = 0
    assert duplicate_rows(seen(matrix), 0).same == [[4, 299]]
    assert duplicate_rows(seen(matrix), 1).same == [[9, 60]]
    assert zero_lines(seen(matrix), 0).nonzero()[0].tolist() == [17]
    matrix[:, 33] = 0
    assert zero_lines(seen(matrix), 1).nonzero()[0].tolist() == [33]


def test_values_that_are_not_finite_do_no_harm() -> None:
    matrix = random(40, 20)
    matrix[3], matrix[4] = np.nan, np.inf
    duplicate_rows(seen(matrix), 0)
    duplicate_rows(seen(matrix), 1)
    assert zero_lines(seen(matrix), 0).sum() == 0


def test_a_near_copy_among_rows_of_few_numbers_is_found() -> None:
    matrix = np.eye(64, dtype=np.float32) * 0.5
    matrix[1] = matrix[0] * 1.0005
    [(one, other, _)] = duplicate_rows(seen(matrix), 0).near
    assert {one, other} == {0, 1}


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_large_and_small_numbers_are_compared_without_a_warning(size: float) -> None:
    layer = nn.Linear(128, 128, bias=False).double()
    layer.weight.data *= size
    layer.weight.data[3] = layer.weight.data[4]
    layer.weight.data[90] = layer.weight.data[91] * 1.0001
    found = lw.check(layer, select=["LW113", "LW114", "LW116"])
    assert [one.code for one in found] == ["LW113", "LW114"]
    layer.weight.data[:] = torch.randn(128, 2).double() @ torch.randn(2, 128).double() * size
    assert levels_and_codes(lw.check(layer, select="LW116")) == [("warning", "LW116")]


def test_a_compressed_array_is_unpacked_only_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.files.sources.source import InflatedSource

    rows = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    rows[100:] = rows[0] * (1 + np.arange(200, dtype=np.float32)[:, None] * 1e-6)
    np.savez_compressed(tmp_path / "a.npz", w=rows)
    unpacked = []
    rewind = InflatedSource._rewind
    monkeypatch.setattr(InflatedSource, "_rewind", lambda self: (unpacked.append(1), rewind(self))[1])
    [one] = lw.check(tmp_path / "a.npz", select="LW114")
    assert "at least 20 pairs of rows" in one.message
    assert len(unpacked) < 10
