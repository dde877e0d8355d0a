"""What a home can do from its first day: with four methods, with a write beside them, and what it is refused."""

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.grids import Grid, Layer, ReadOnlyHome, WritableHome

import leafwise as lw
from leafwise.core import registry
from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.home import Home

FOLDER = Path(__file__).parent


def model(factor: float = 1.0) -> Layer:
    table = Grid([[0.0, 1.0, 2.0], [factor * 3.0, 4.0, 5.0]])
    return Layer(embed=Layer(weight=table), head=Layer(weight=table, bias=Grid([[0.5, -0.5]])))


@contextmanager
def registered(home: Home) -> Iterator[None]:
    registry.register(home)
    try:
        yield
    finally:
        registry.unregister(home)


@pytest.fixture(params=[ReadOnlyHome, WritableHome])
def either_home(request: pytest.FixtureRequest) -> Iterator[None]:
    with registered(request.param()):
        yield


@pytest.fixture
def writable_home() -> Iterator[None]:
    with registered(WritableHome()):
        yield


@pytest.fixture
def read_only_home() -> Iterator[None]:
    with registered(ReadOnlyHome()):
        yield


@pytest.mark.usefixtures("either_home")
def test_a_home_of_four_methods_is_shown_and_selected() -> None:
    tree = lw.tree(model())
    assert [str(path) for path, _ in tree.items()] == ["embed.weight", "head.bias"]
    assert [str(path) for path in tree["embed.weight"].paths] == ["embed.weight", "head.weight"]
    assert tree.counts.parameters == 8
    assert "head" in tree.text()
    assert [str(leaf.path) for leaf in tree.select("**.bias")] == ["head.bias"]
    np.testing.assert_array_equal(tree["head.bias"].numpy((0, slice(1))), [0.5])


@pytest.mark.usefixtures("either_home")
def test_it_is_measured_checked_compared_and_drawn() -> None:
    stats = lw.stats(model())
    assert stats["embed.weight"].max == 5
    assert stats.total.count == 8
    assert not [finding for finding in lw.check(model()) if finding.level == "error"]
    assert lw.diff(model(), model()).same
    assert not lw.diff(model(), model(factor=2.0)).same
    assert lw.image(lw.tree(model())["embed.weight"]).cells.shape == (2, 3)
    assert len(lw.ties(model(), equal_untied=True)) == 1


@pytest.mark.usefixtures("either_home")
@pytest.mark.parametrize("background", [False, True])
def test_it_is_saved_with_its_ties(tmp_path: Path, background: bool) -> None:
    saved: Any = lw.save(model(), tmp_path / "a.safetensors", background=background)
    with lw.open(saved.wait() if background else saved) as file:
        np.testing.assert_array_equal(file["head.weight"].numpy(), [[0, 1, 2], [3, 4, 5]])
        assert len(file.ties) == 1


@pytest.mark.usefixtures("writable_home")
def test_a_home_that_writes_is_loaded_and_initialized(tmp_path: Path) -> None:
    path = lw.save(model(), tmp_path / "a.safetensors")
    target = lw.load(model(factor=7.0), path)
    assert lw.diff(target, model()).same
    assert target.parts["embed"].parts["weight"] is target.parts["head"].parts["weight"]
    lw.initialize(target, [lw.Rule("**", init="ones")])
    assert target.parts["embed"].parts["weight"].rows == [[1.0] * 3] * 2


@pytest.mark.usefixtures("read_only_home")
def test_a_home_that_only_reads_is_not_loaded_and_keeps_its_values(tmp_path: Path) -> None:
    path = lw.save(model(), tmp_path / "a.safetensors")
    target = model(factor=7.0)
    with pytest.raises(lw.LoadError, match=r"embed.weight: grids cannot write in place; nothing was changed"):
        lw.load(target, path)
    assert target.parts["embed"].parts["weight"].rows[1][0] == 21.0
    with pytest.raises(lw.Unsupported, match=r"grids cannot write in place"):
        lw.tree(target)["embed.weight"].write(np.zeros((2, 3), np.float32))


@pytest.mark.usefixtures("either_home")
def test_what_it_does_not_offer_is_refused_by_name() -> None:
    with pytest.raises(lw.Unsupported, match=r"grids cannot freeze: nothing in its arrays says"):
        lw.freeze(model(), "**")
    with pytest.raises(lw.Unsupported, match=r"grids cannot untie"):
        lw.untie(model(), "head.weight")
    with pytest.raises(lw.Unsupported, match=r"grids cannot keep ties"):
        lw.keep_ties(model())


def test_a_capability_is_given_or_refused_in_one_place() -> None:
    home = ReadOnlyHome()
    assert home.capability(Measuring) is home.capability(Measuring)
    with pytest.raises(lw.Unsupported, match=r"^grids cannot freeze: nothing in its arrays says"):
        home.capability(Freezing)


def test_a_home_with_four_methods_takes_at_most_40_lines_and_a_whole_one_120() -> None:
    grids, toy = ((FOLDER / name).read_text("utf-8") for name in ("grids.py", "toy.py"))
    read_only = next(node for node in ast.parse(grids).body if getattr(node, "name", "") == "ReadOnlyHome")
    assert isinstance(read_only, ast.ClassDef)
    assert (read_only.end_lineno or 0) <= 40  # its imports and the framework's classes included
    assert len(toy.splitlines()) <= 120


def test_every_capability_that_a_home_lists_is_of_its_kind() -> None:
    import leafwise.files
    import leafwise.gluon  # noqa: F401

    for home in registry.homes():
        for kind in home.capabilities:
            offered = home.capability(kind)
            assert isinstance(offered, kind)
            assert isinstance(offered, Capability)
            assert offered.home is home
