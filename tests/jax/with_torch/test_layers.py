"""Every row of the table in docs/carrying.md is what the layers of the frameworks have, and is carried."""

import re
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.jax.with_torch.layers import LAYERS, randomized

import leafwise as lw

_PAGE = Path(__file__).parents[3] / "docs" / "carrying.md"
_LINES = [line for line in _PAGE.read_text("utf-8").splitlines() if line.startswith("|")]
_HEAD = next(number for number, line in enumerate(_LINES) if line.startswith("| layer |"))
_FRAMEWORKS = [cell.strip() for cell in _LINES[_HEAD].strip("|").split("|")][2:]
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in _LINES[_HEAD + 2 :]]

# A bias that this cell does not have is refused.
_REFUSED = {("GRU", source, "Flax NNX") for source in ("PyTorch", "Flax Linen", "Equinox")}
_CARRIED = [(layer, source, target) for layer, (_, made) in LAYERS.items() for source, target in permutations(made, 2)]


def _leaves(layer: str, framework: str) -> dict[str, Any]:
    """The leaves of a layer by their names in the table."""
    leaves = {str(path): leaf for path, leaf in lw.tree(LAYERS[layer][1][framework].make()).items()}
    if framework == "Flax Linen" or (layer, framework) == ("BatchNorm", "Equinox"):
        leaves = {name.partition(".")[2]: leaf for name, leaf in leaves.items()}
    return leaves


def _named(cell: str) -> dict[str, tuple[str, ...]]:
    """The names in a cell, with their axes."""
    found = {}
    for names, axes in re.findall(r"([^();]+) \(([^)]*)\)", cell):
        for name in re.findall(r"`([^`]+)`", names):
            found[name] = () if axes == "scalar" else tuple(axes.split(", "))
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]}, {row[1].strip('`')}")
def test_a_row_has_the_names_roles_and_axes_of_the_layers(row: list[str]) -> None:
    layer, roles, *cells = row
    for framework, cell in zip(_FRAMEWORKS, cells, strict=True):
        if framework not in LAYERS[layer][1]:
            assert cell == "–"
            continue
        leaves, named = _leaves(layer, framework), _named(cell)
        assert named
        for name, axes in named.items():
            assert f"`{leaves[name].role}`" in roles
            assert leaves[name].axes == axes


@pytest.mark.parametrize("layer", LAYERS)
def test_the_table_has_every_leaf_of_a_layer(layer: str) -> None:
    rows = [row for row in ROWS if row[0] == layer]
    for framework in LAYERS[layer][1]:
        cells = [row[2 + _FRAMEWORKS.index(framework)] for row in rows]
        leaves = {name for name, leaf in _leaves(layer, framework).items() if leaf.role != "norm.count"}
        assert {name for cell in cells for name in _named(cell)} == leaves


@pytest.mark.parametrize(("layer", "source", "target"), _CARRIED)
def test_a_layer_computes_the_same_with_carried_weights(layer: str, source: str, target: str) -> None:
    x, made = LAYERS[layer]
    original, model = randomized(made[source].make()), made[target].make()
    if (layer, source, target) in _REFUSED:
        with pytest.raises(lw.LoadError, match="unexpected"):
            lw.load(model, original)
        return
    expected = made[source].run(original, x)
    assert not np.allclose(made[target].run(model, x), expected, atol=1e-3)
    model = lw.load(model, original)
    np.testing.assert_allclose(made[target].run(model, x), expected, rtol=2e-5, atol=2e-5)


def test_the_rows_are_those_of_the_layers() -> None:
    assert list(dict.fromkeys(row[0] for row in ROWS)) == list(LAYERS)
