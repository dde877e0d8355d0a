"""NumPy arrays beside arrays of JAX: the caller's tree stays as it was, and the new tree has new arrays."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import leafwise as lw


def _mixed(value: float) -> dict[str, Any]:
    return {
        "plain": np.full(2, value, np.float32),
        "inner": {"deep": np.full(2, value, np.float32), "step": int(value)},
        "config": {"size": int(value)},
        "array": jnp.full(2, value),
    }


def _values(tree: dict[str, Any]) -> list[float]:
    arrays = (tree["plain"], tree["inner"]["deep"], tree["array"])
    return [*(float(array[1]) for array in arrays), tree["inner"]["step"], tree["config"]["size"]]


def test_an_average_is_applied_to_new_arrays() -> None:
    average = lw.Average(_mixed(1.0), decay=0.5)
    average.update(_mixed(1.0))
    current = _mixed(3.0)
    average.update(current)
    with average.applied(current) as averaged:
        assert _values(averaged)[:3] == [2, 2, 2]
        assert _values(current) == [3, 3, 3, 3, 3]
    assert _values(current) == [3, 3, 3, 3, 3]
    assert _values(averaged)[:3] == [2, 2, 2]


def test_variables_beside_arrays_get_their_own_values_again() -> None:
    model = {"layer": nnx.Linear(1, 1, rngs=nnx.Rngs(0)), "array": jnp.zeros(1)}
    average = lw.Average(model, decay=0.5)
    model["layer"].kernel[...] = jnp.full((1, 1), 1.0)
    average.update(model)
    model["layer"].kernel[...] = jnp.full((1, 1), 3.0)
    average.update(model)
    with average.applied(model) as averaged:
        assert averaged["layer"].kernel[...] == 2
    assert model["layer"].kernel[...] == 3


@pytest.mark.parametrize("from_file", [False, True])
def test_a_load_returns_new_arrays_and_containers(tmp_path: Path, from_file: bool) -> None:
    source: Any = _mixed(5.0)
    if from_file:
        lw.save(source, tmp_path / "mixed.safetensors")
        source = tmp_path / "mixed.safetensors"
    before = _mixed(1.0)
    loaded = lw.load(before, source)
    assert _values(before) == [1, 1, 1, 1, 1]
    assert _values(loaded) == [5, 5, 5, 5, 5]
    assert type(loaded["plain"]) is np.ndarray
    loaded["plain"][:] = 9  # it is not the memory of the source
    assert float(_mixed(5.0)["plain"][0]) == 5


def test_tied_numpy_arrays_stay_tied_in_the_new_tree() -> None:
    shared = np.ones(2)
    loaded = lw.load({"a": shared, "b": [shared], "j": jnp.ones(2)}, {"a": np.zeros(2), "j": jnp.zeros(2)})
    assert loaded["a"] is loaded["b"][0]
    assert (loaded["a"] == 0).all()
    assert (shared == 1).all()


@pytest.mark.parametrize("init", ["ones", lambda leaf, others: np.full(leaf.shape, 7.0, leaf.dtype)])
def test_initial_values_go_into_new_arrays(init: Any) -> None:
    before = _mixed(3.0)
    new = lw.initialize(before, [lw.Rule("**", init=init)])
    expected = 1 if init == "ones" else 7
    assert _values(before)[:3] == [3, 3, 3]
    assert _values(new)[:3] == [expected] * 3


def test_only_numpy_arrays_change_in_place() -> None:
    before = {"a": np.ones(2)}
    assert lw.load(before, {"a": np.zeros(2)}) is before
    assert (before["a"] == 0).all()


def test_a_view_that_a_new_tree_would_not_have_is_refused() -> None:
    whole = np.ones(2)
    model = {"whole": whole, "part": whole[:1], "array": jnp.ones(1)}
    with pytest.raises(lw.LoadError, match=r"part is a view of whole.*nothing was changed.*\.copy\(\)"):
        lw.load(model, {"whole": np.zeros(2), "part": np.zeros(1), "array": jnp.zeros(1)})
    average = lw.Average(model)
    average.update(model)
    with pytest.raises(lw.WriteError, match="part is a view of whole"), average.applied(model):
        pass


def test_files_for_parts_leave_the_tree_of_the_caller_as_it_was(tmp_path: Path) -> None:
    path = lw.save({"w": jnp.ones(2)}, tmp_path / "a.safetensors")
    tree = {"part": {"w": jnp.zeros(2)}, "other": [{"w": jnp.zeros(2)}]}
    loaded = lw.load(tree, {"part": path, "other.0": path})
    assert float(tree["part"]["w"].sum()) == float(tree["other"][0]["w"].sum()) == 0
    assert float(loaded["part"]["w"].sum()) == float(loaded["other"][0]["w"].sum()) == 2


def test_a_numpy_array_in_the_other_byte_order_is_saved_with_its_values(tmp_path: Path) -> None:
    numbers = np.arange(4.0, dtype=">f8")
    path = lw.save({"w": nnx.Variable(numbers)}, tmp_path / "a.safetensors")
    assert lw.open(path)["w"].numpy().tolist() == numbers.tolist()
    assert lw.diff({"w": nnx.Variable(numbers)}, path).same
    assert not lw.diff({"w": nnx.Variable(numbers + 1)}, path).same
