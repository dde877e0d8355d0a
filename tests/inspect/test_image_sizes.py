"""How large the pictures of `lw.image` are, and what is binned to make them fit."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.inspect.image import grids


@pytest.mark.slow
def test_tiles_that_are_few_but_large_are_binned() -> None:
    mask = lw.image(torch.ones(1, 1, 4096, 4096).tril())
    assert mask.cells.shape == (2048, 2048)
    np.testing.assert_array_equal(mask.cells, np.tril(np.ones((2048, 2048))))
    assert "1 filter of 4096×4096 · each cell shows the largest magnitude of 2×2 · " in mask.caption
    several = torch.zeros(3, 3, 600, 500)
    several[2, 1, 599, 499] = -7
    several[0, 0, 0, 0] = 1
    picture = lw.image(several, size=512)
    assert max(picture.width, picture.height) <= 512
    assert (picture.cells == -7).sum() == (picture.cells == 1).sum() == 1
    assert "1 filter all zero (1)" in picture.caption
    assert "too many" not in picture.caption
    assert "too many to draw" in lw.image(torch.ones(64, 64, 20, 20), size=512).caption


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(2, 3, 70, 90), (1, 7, 40, 33), (3, 2, 5, 40, 50), (2, 2, 400)])
@pytest.mark.parametrize("band", [1, 50, 999])
def test_the_size_of_bands_changes_nothing_in_binned_tiles(shape: tuple[int, ...], band: int, monkeypatch: Any) -> None:
    array = np.random.default_rng(0).normal(size=shape)
    if band == 1 and array.size > 10_000:
        array = array[:, :1]
    whole = lw.image(array, style="filters", size=256)
    monkeypatch.setattr(grids, "BAND", band)
    cut = lw.image(array, style="filters", size=256)
    np.testing.assert_array_equal(cut.cells, whole.cells)
    assert cut.caption == whole.caption
    assert abs(whole.cells).max() == abs(array).max()


def test_a_table_in_a_batch_of_one_is_a_matrix() -> None:
    table = torch.randn(1, 400, 96)
    picture = lw.image(table)
    np.testing.assert_array_equal(picture.cells, table[0].numpy())
    assert "400 rows, 96 columns · " in picture.caption


@pytest.mark.parametrize("shape", [(100_000, 8), (2, 360), (360, 2), (30, 5, 6, 1), (5, 30, 1, 60), (3, 4000)])
@pytest.mark.parametrize("size", [None, 16, 100, 333])
def test_every_picture_is_wide_and_high_enough_to_see(shape: tuple[int, ...], size: int | None) -> None:
    picture = lw.image(np.ones(shape, np.float32), size=size)
    short, long = sorted((picture.width, picture.height))
    assert short >= min(48, long // 4)
    assert long <= (size or 2048)
    header = picture.png(bare=True)[16:24]
    assert (int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")) == (picture.width, picture.height)


def test_filters_in_three_dimensions_are_not_mostly_gaps() -> None:
    picture = lw.image(nn.Conv3d(2, 60, 3), "weight")
    (down, across), zoom = picture.gaps, picture.zoom[0]
    assert across <= down <= 3 * across
    assert down <= max(1, zoom // 2)
    assert down < (3 * zoom + down) / 5 or zoom == 1
