"""`lw.image` of transposed convolutions with groups."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.inspect.image import grids


def by_hand(layer: nn.ConvTranspose2d) -> torch.Tensor:
    """The filters of a transposed convolution: for each output, what leads to it from the inputs of its group."""
    ins, outs = layer.in_channels // layer.groups, layer.out_channels // layer.groups
    weight = layer.weight.detach()
    return torch.stack(
        [weight[group * ins : (group + 1) * ins, out] for group in range(layer.groups) for out in range(outs)]
    )


def grouped() -> nn.ConvTranspose2d:
    layer = nn.ConvTranspose2d(8, 16, 3, groups=4)
    layer.weight.data[2:4, 1] = 0  # the second group's second output
    return layer


def test_a_transposed_convolution_with_groups_is_drawn_filter_by_filter() -> None:
    layer = grouped()
    picture = lw.image(layer, "weight")
    assert "weight 8×4×3×3 float32 · 16 filters of 3×3, 2 inputs each · 1 filter all zero (5) · " in picture.caption
    plain = nn.Conv2d(2, 16, 3)
    plain.weight.data = by_hand(layer)
    np.testing.assert_array_equal(picture.cells, lw.image(plain, "weight").cells)
    assert "1 row all zero (5)" in lw.image(layer, "weight", style="norms").caption
    matrix = lw.image(layer, "weight", style="matrix")
    np.testing.assert_array_equal(matrix.cells, by_hand(layer).flatten(1).numpy())
    assert "16 rows, 18 columns ('out' down, the other axes flattened across)" in matrix.caption
    np.testing.assert_array_equal(
        lw.image(layer, "weight", style="strip").cells, layer.weight.detach().reshape(1, -1).numpy()
    )


@pytest.mark.parametrize("band", [1, 7, 20, 100])
def test_groups_are_read_in_bands(band: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = grouped()
    wanted = {style: lw.image(layer, "weight", style=style).cells for style in ("filters", "matrix", "norms")}
    monkeypatch.setattr(grids, "BAND", band)
    for style, cells in wanted.items():
        np.testing.assert_allclose(lw.image(layer, "weight", style=style).cells, cells)  # type: ignore[arg-type]


def test_groups_are_drawn_by_their_norms_and_depthwise_filters_alone() -> None:
    layer = nn.ConvTranspose2d(32, 64, 3, groups=4)
    norms = lw.image(layer, "weight", size=64)
    np.testing.assert_allclose(norms.cells, by_hand(layer).double().flatten(2).norm(dim=2).numpy())
    depthwise = lw.image(nn.ConvTranspose2d(6, 6, 3, groups=6), "weight")
    assert "6 filters of 3×3 · " in depthwise.caption
    one = nn.ConvTranspose2d(8, 12, 1, groups=2)
    np.testing.assert_array_equal(lw.image(one, "weight").cells, by_hand(one).flatten(1).numpy())


def test_a_file_that_does_not_know_its_groups_says_so(tmp_path: Path) -> None:
    path = lw.save(grouped(), tmp_path / "net.safetensors")
    assert "(drawn as one group, as their number is not known)" in lw.image(path, "weight").caption
    assert "group" not in lw.image(nn.ConvTranspose2d(8, 4, 3), "weight").caption
    assert "group" not in lw.image(lw.save(nn.Conv2d(8, 4, 3), tmp_path / "conv.safetensors"), "weight").caption
