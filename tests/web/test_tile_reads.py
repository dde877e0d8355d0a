"""Pictures of leaves with many axes: a tile reads about what it shows, and shows what is there."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import leafwise as lw
from leafwise.web import pictures
from leafwise.web.pictures import MatrixLayout, layout_of, layouts_of, tile


class Counted(MatrixLayout):
    """Counts the values that are read."""

    read_values = 0

    def values(self, box: Any) -> Any:
        part = super().values(box)
        self.read_values += part.size
        return part


@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 5), (3, 2, 4, 5), (2, 1, 3, 1, 4), (2, 2, 2, 2, 2, 2)])
def test_parts_of_a_matrix_are_those_of_the_array(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "_SURPLUS", 0)  # cuts wherever it can
    array = np.arange(np.prod(shape), dtype=np.float64).reshape(shape)
    layout = MatrixLayout(lw.tree({"w": array})["w"])
    matrix = np.moveaxis(array, layout.axis, 0).reshape(layout.rows, -1)
    for left in range(layout.columns):
        for right in range(left + 1, layout.columns + 1):
            assert np.array_equal(layout.read(1, 2, left, right), matrix[1:2, left:right]), (left, right)


def test_a_part_on_a_border_of_two_axes_does_not_read_both_sides(tmp_path: Path) -> None:
    shape = (2, 3, 1_000, 1_000)
    layout = Counted(lw.tree({"w": np.zeros(shape, np.float32)})["w"])
    layout.read(0, 2, 999_900, 1_000_100)  # the end of one million values, and the beginning of the next
    assert layout.read_values < 200_000


def test_four_large_axes_are_not_filters(tmp_path: Path) -> None:
    """Layers, experts, inputs and outputs: as filters, each tile would read some of them whole, which are gigabytes."""
    path = tmp_path / "experts.safetensors"
    write_sparse(path, [3, 7, 4_097, 14_337])
    with lw.open(path) as t:
        leaf = t["w"]
        assert layouts_of(leaf) == (["matrix"], "")
        layout = layout_of(leaf, "matrix")
        assert tile(layout, layout.levels - 1, 0, 0).sampled > 1


def test_small_kernels_are_filters() -> None:
    model = torch.nn.Conv2d(3, 8, 5)
    assert layouts_of(lw.tree(model)["weight"]) == (["filters", "matrix"], "")
    assert layouts_of(lw.tree({"w": np.zeros((8, 3, 16, 16))})["w"]) == (["filters", "matrix"], "")


def write_sparse(path: Path, shape: list[int]) -> None:
    """A file with one tensor of bfloat16, all zero, that needs no room on the disk."""
    import json

    size = 2 * int(np.prod(shape, dtype=np.int64))
    header = json.dumps({"w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)
