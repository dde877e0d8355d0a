"""What a small home can do: with four methods, with `write` in addition, and what is refused."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.contract.grids import Grid, Layer, ReadOnlyHome, WritableHome

import leafwise as lw
from leafwise.core import registry
from leafwise.core.capabilities import Capability
from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.tying import Place, Tying
from leafwise.core.home import Capabilities, Spec
from leafwise.core.memory.ops import Op
from leafwise.testing import registered

FOLDER = Path(__file__).parent


def model(factor: float = 1.0) -> Layer:
    table = Grid([[0.0, 1.0, 2.0], [factor * 3.0, 4.0, 5.0]])
    return Layer(embed=Layer(weight=table), head=Layer(weight=table, bias=Grid([[0.5, -0.5]])))


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
def test_a_home_with_four_methods_can_be_shown_and_queried() -> None:
    tree = lw.tree(model())
    assert [str(path) for path, _ in tree.items()] == ["embed.weight", "head.bias"]
    assert [str(path) for path in tree["embed.weight"].paths] == ["embed.weight", "head.weight"]
    assert tree.counts.parameters == 8
    assert "head" in tree.text()
    assert [str(leaf.path) for leaf in tree.select("**.bias")] == ["head.bias"]
    np.testing.assert_array_equal(tree["head.bias"].numpy((0, slice(1))), [0.5])


@pytest.mark.usefixtures("either_home")
def test_a_home_with_four_methods_can_be_measured_checked_compared_and_drawn() -> None:
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
def test_a_home_with_four_methods_can_be_saved_with_its_ties(tmp_path: Path, background: bool) -> None:
    saved: Any = lw.save(model(), tmp_path / "a.safetensors", background=background)
    with lw.open(saved.wait() if background else saved) as file:
        np.testing.assert_array_equal(file["head.weight"].numpy(), [[0, 1, 2], [3, 4, 5]])
        assert len(file.ties) == 1


@pytest.mark.usefixtures("writable_home")
def test_a_home_that_writes_can_be_loaded_and_initialized(tmp_path: Path) -> None:
    path = lw.save(model(), tmp_path / "a.safetensors")
    target = lw.load(model(factor=7.0), path)
    assert lw.diff(target, model()).same
    assert target.parts["embed"].parts["weight"] is target.parts["head"].parts["weight"]
    lw.initialize(target, [lw.Rule("**", init="ones")])
    assert target.parts["embed"].parts["weight"].rows == [[1.0] * 3] * 2


@pytest.mark.usefixtures("read_only_home")
def test_loading_into_a_home_that_only_reads_is_an_error_and_changes_nothing(tmp_path: Path) -> None:
    path = lw.save(model(), tmp_path / "a.safetensors")
    target = model(factor=7.0)
    with pytest.raises(lw.LoadError, match=r"embed.weight: grids cannot write in place; nothing was changed"):
        lw.load(target, path)
    assert target.parts["embed"].parts["weight"].rows[1][0] == 21.0
    with pytest.raises(lw.Unsupported, match=r"grids cannot write in place"):
        lw.tree(target)["embed.weight"].write(np.zeros((2, 3), np.float32))


@pytest.mark.usefixtures("either_home")
def test_a_capability_that_a_home_lacks_is_refused_by_name() -> None:
    with pytest.raises(lw.Unsupported, match=r"grids cannot freeze: its arrays do not record whether"):
        lw.freeze(model(), "**")
    with pytest.raises(lw.Unsupported, match=r"grids cannot untie"):
        lw.untie(model(), "head.weight")
    with pytest.raises(lw.Unsupported, match=r"grids cannot keep ties"):
        lw.keep_ties(model())


class GridRebuilding(Rebuilding):
    def from_numpy(self, value: Grid, array: Any) -> Grid:
        return Grid(np.asarray(array).tolist())


class TrainedHome(WritableHome):
    """Arrays that change in place and have gradients, and a way to make new arrays."""

    capabilities: ClassVar[Capabilities] = {Rebuilding: GridRebuilding}

    def grads(self, values: list[Grid]) -> list[Any]:
        return [getattr(value, "grad", None) for value in values]


def test_defaults_change_arrays_in_place() -> None:
    with registered(TrainedHome()):
        weight = Grid([[0.0, 0.0]])
        net = Layer(weight=weight)
        average = lw.Average(net, decay=0.5)
        average.update(net)
        weight.rows[0][:] = [4.0, 8.0]
        average.update(net)
        assert weight.rows == [[4.0, 8.0]]
        with average.applied(net):
            assert weight.rows == [[2.0, 4.0]]
        assert weight.rows == [[4.0, 8.0]]
        weight.grad = Grid([[3.0, 4.0]])  # type: ignore[attr-defined]
        assert lw.clip(net, 1.0).total == pytest.approx(5)
        assert weight.grad.rows == [pytest.approx([0.6, 0.8])]  # type: ignore[attr-defined]


def test_gradients_may_be_arrays_of_another_home() -> None:
    with registered(TrainedHome()):
        weight = Grid([[0.0, 0.0]])
        weight.grad = np.array([[3.0, 4.0]], np.float32)  # type: ignore[attr-defined]
        net = Layer(weight=weight)
        assert lw.stats(net, of="grad")["weight"].max == 4
        lw.check(net)
        lw.clip(net, 1.0)
        np.testing.assert_allclose(weight.grad, [[0.6, 0.8]], rtol=1e-6)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("writable_home")
def test_loading_plain_values_that_a_home_cannot_change_is_refused(tmp_path: Path) -> None:
    path = lw.save(Layer(step=1, weight=Grid([[1.0]])), tmp_path / "a.safetensors")
    target = Layer(step=7, weight=Grid([[2.0]]))
    with pytest.raises(
        lw.LoadError, match=r"step is 7 in the model but 1 in the checkpoint; grids cannot change plain values"
    ):
        lw.load(target, path)
    assert target.parts["weight"].rows == [[2.0]]
    same = lw.load(Layer(step=1, weight=Grid([[2.0]])), path)
    assert same.parts["weight"].rows == [[1.0]]


def test_a_home_whose_arrays_do_not_have_the_dtype_it_states_is_refused(tmp_path: Path) -> None:
    class PositHome(WritableHome):
        def spec(self, value: Grid) -> Spec:
            return super().spec(value)._replace(dtype="posit16")

    with registered(PositHome()):
        message = r"its spec\(\) says posit16 .*, but its read\(\) returns float32"
        with pytest.raises(lw.Unsupported, match=message):
            lw.stats(model())
        with pytest.raises(lw.Error, match=r"posit16"):
            lw.save(model(), tmp_path / "a.safetensors")


def test_a_home_whose_arrays_do_not_have_the_shape_it_states_is_refused(tmp_path: Path) -> None:
    class TurningHome(WritableHome):
        def read(self, value: Grid, index: Any = ()) -> Any:
            return super().read(value, index).T

    with registered(TurningHome()), pytest.raises(lw.Error, match=r"its read\(\) returns"):
        lw.save({"weight": Grid([[1.0, 2.0]])}, tmp_path / "a.safetensors")


def test_arrays_in_the_other_byte_order_are_saved_with_their_values(tmp_path: Path) -> None:
    class BigEndianHome(WritableHome):
        def read(self, value: Grid, index: Any = ()) -> Any:
            return super().read(value, index).astype(">f4")

    with registered(BigEndianHome()):
        path = lw.save({"weight": Grid([[1.0, 2.0]])}, tmp_path / "a.safetensors")
    assert lw.open(path)["weight"].numpy().tolist() == [[1.0, 2.0]]


class HalfTying(Tying):
    def cannot_tie(self, place: Place, value: Any, op: Op) -> str:
        return ""


def test_the_error_of_an_incomplete_capability_names_its_class() -> None:
    class HalfHome(WritableHome):
        capabilities: ClassVar[Capabilities] = {Tying: HalfTying}

    with registered(HalfHome()):
        net = Layer(a=Layer(weight=Grid([[1.0]])), b=Layer(weight=Grid([[1.0]])))
        with pytest.raises(lw.Unsupported, match=r"grids cannot tie: HalfTying does not implement it"):
            lw.tie(net, "b.weight", to="a.weight")


def test_a_capability_is_given_or_refused_in_one_place() -> None:
    home = ReadOnlyHome()
    assert home.capability(Measuring) is home.capability(Measuring)
    with pytest.raises(lw.Unsupported, match=r"^grids cannot freeze: its arrays do not record whether"):
        home.capability(Freezing)


def test_a_home_with_four_methods_takes_at_most_40_lines_and_a_whole_one_120() -> None:
    grids, toy = ((FOLDER / name).read_text("utf-8") for name in ("grids.py", "toy.py"))
    read_only = next(node for node in ast.parse(grids).body if getattr(node, "name", "") == "ReadOnlyHome")
    assert isinstance(read_only, ast.ClassDef)
    assert (read_only.end_lineno or 0) <= 40  # including its imports and the classes of the framework
    assert len(toy.splitlines()) <= 120


def test_every_capability_that_a_home_lists_has_the_right_class() -> None:

    for home in registry.homes():
        for kind in home.capabilities:
            offered = home.capability(kind)
            assert isinstance(offered, kind)
            assert isinstance(offered, Capability)
            assert offered.home is home
