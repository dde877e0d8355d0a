"""Which layouts a leaf has: filters are offered only if the axes say which numbers belong to a filter."""

import pytest
from torch import nn

import leafwise as lw
from leafwise.web.pictures import layout_of, layouts_of


@pytest.mark.parametrize(
    ("layer", "layouts"),
    [
        (nn.Conv2d(8, 4, 3, groups=2), ["filters", "matrix"]),
        (nn.ConvTranspose2d(8, 4, 3), ["filters", "matrix"]),
        (nn.ConvTranspose2d(8, 4, 3, groups=2), ["matrix"]),
        (nn.Conv1d(3, 4, 5), ["filters", "matrix"]),
        (nn.Linear(3, 4), ["matrix"]),
    ],
    ids=str,
)
def test_a_transposed_convolution_with_groups_is_a_matrix(layer: nn.Module, layouts: list[str]) -> None:
    assert layouts_of(lw.tree(layer)["weight"])[0] == layouts


def test_the_note_counts_filters_and_inputs() -> None:
    assert layout_of(lw.tree(nn.Conv2d(8, 4, 3, groups=2))["weight"], "filters").note == "4 filters × 4 inputs of 3×3"
    assert layout_of(lw.tree(nn.ConvTranspose2d(8, 4, 3))["weight"], "filters").note == "4 filters × 8 inputs of 3×3"
