"""`lw.image` of sharded leaves on real ranks, compared with the picture of the whole leaf."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.distributed.models import sharded_models
from tests.distributed.ranks import run_ranks
from tests.distributed.test_stats import full, plant_nonfinite, said
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import leafwise as lw


def same_pictures(count: int) -> int:
    drawn = 0
    for name, model in sharded_models(count).items():
        plant_nonfinite(model)
        for leaf in lw.tree(model):
            if leaf.sharding is None or not leaf.shape:
                continue
            where = (name, str(leaf.path))
            picture, expected = lw.image(model, str(leaf.path)), lw.image({"w": full(leaf.value)})
            styled = lw.image({"w": full(leaf.value)}, style=picture.style)
            assert picture.cells.shape == styled.cells.shape, where
            assert np.array_equal(picture.cells, styled.cells, equal_nan=True), where
            assert picture.grid.notes == styled.grid.notes, where
            assert picture.nonfinite_texts == expected.nonfinite_texts, where
            drawn += 1
    return drawn


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_every_rank_draws_the_picture_of_the_whole_leaf(count: int) -> None:
    results = run_ranks(count, same_pictures, count)
    assert min(results) > 20


def other_pictures() -> None:
    from leafwise.inspect.image import grids

    mesh = init_device_mesh("cpu", (2,))
    convolution = nn.Conv2d(3, 6, 5)
    expected = lw.image(convolution, "weight")
    whole = convolution.weight.detach()
    grids.BAND = 40  # a filter is read in several parts
    for axis in range(3):
        convolution.weight = nn.Parameter(distribute_tensor(whole, mesh, [Shard(axis)]))
        picture = lw.image(convolution, "weight")
        assert picture.style == expected.style == "filters"
        assert np.array_equal(picture.cells, lw.image({"w": whole}, style="filters").cells)
        assert picture.caption.split(" · ")[1:] == expected.caption.split(" · ")[1:]
    # A leaf that is whole is drawn without the other ranks.
    if distributed.get_rank() == 0:
        lw.image(convolution, "bias")
    assert "no gradient" in said(lambda: lw.image(convolution, "weight", of="grad"))
    convolution.weight.grad = distribute_tensor(whole * 2, mesh, [Shard(0)])
    assert lw.image(convolution, "weight", of="grad").limit == pytest.approx(2 * expected.limit)
    pending = DTensor.from_local(torch.ones(3, 3), mesh, [Partial()])
    assert "Partial" in said(lambda: lw.image({"w": pending}))
    size = 64 if distributed.get_rank() else 128
    message = said(lambda: lw.image(convolution, "weight", size=size))
    assert message.startswith("lw.image stopped at weight: rank 1 has 6×3×5×5 float32, shard(2) over 2 ranks"), message
    array: Any = distribute_tensor(torch.eye(8), mesh, [Shard(1)])
    assert np.array_equal(lw.image(array).cells, np.eye(8))


def test_filters_gradients_and_arrays() -> None:
    run_ranks(2, other_pictures)
