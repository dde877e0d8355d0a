"""What NNX and Orbax make of a model, its state, is loaded into the model: an object, a dict, a file or a folder."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests.jax.orbax_folders import WRITERS, standard

import leafwise as lw


class Net(nnx.Module):
    """A layer without a bias, a tie, statistics and random streams."""

    def __init__(self, seed: int, features: int = 3) -> None:
        rngs = nnx.Rngs(seed)
        self.plain = nnx.Linear(3, features, use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(3, use_scale=False, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.again = nnx.Linear(3, features, rngs=rngs)
        self.again.kernel = self.plain.kernel
        self.nothing = nnx.List([nnx.Linear(1, 1, use_bias=False, rngs=rngs)])


def same(one: Any, other: Any) -> bool:
    return lw.diff(one, other).same


# -- None is nothing -------------------------------------------------------------------------------------------------


def test_a_bias_that_is_none_is_not_shown() -> None:
    paths = {str(leaf.path) for leaf in lw.tree(Net(0))}
    assert "plain.kernel" in paths
    assert "plain.bias" not in lw.tree(Net(0))
    assert "norm.scale" not in lw.tree(Net(0))


def test_a_state_loads_into_a_model_with_none_and_back() -> None:
    for source in (nnx.state(Net(1)), nnx.to_pure_dict(nnx.state(Net(1)))):
        model = lw.load(Net(0), source)
        assert same(model, Net(1))
        assert model.plain.bias is None
    state = lw.load(nnx.state(Net(0)), Net(1))
    assert same(state, nnx.state(Net(1)))


def test_a_file_without_a_record_loads_into_a_model_with_none(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{str(leaf.path): leaf.numpy() for leaf in lw.tree(Net(1))})
    assert same(lw.load(Net(0), tmp_path / "x.npz"), Net(1))
    lw.save(Net(1), tmp_path / "x.safetensors")
    assert same(lw.load(Net(0), tmp_path / "x.safetensors"), Net(1))


# -- states that Orbax saved -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
def test_the_state_of_a_model_that_orbax_saved_is_loaded(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "run", nnx.state(Net(1), nnx.Not(nnx.RngKey)))
    folder = tmp_path / "run" / "3" if writer == "CheckpointManager" else tmp_path / "run"
    target = Net(0)
    key = jax.random.key_data(target.drop.rngs.key[...])  # type: ignore[union-attr]
    model = lw.load(target, folder, allow={"missing"})
    assert same(nnx.state(model, nnx.Not(nnx.RngKey)), nnx.state(Net(1), nnx.Not(nnx.RngKey)))
    assert jnp.array_equal(jax.random.key_data(model.drop.rngs.key[...]), key)
    assert model.again.kernel is model.plain.kernel


def test_the_state_with_random_keys_and_that_of_an_optimizer_is_loaded(tmp_path: Path) -> None:
    def run(seed: int) -> dict[str, Any]:
        model = Net(seed)
        optimizer = nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)
        for _ in range(seed):
            optimizer.update(model, jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param)))
        return {"model": model, "optimizer": optimizer}

    standard(tmp_path / "run", nnx.state(run(2)))
    plan = lw.plan(run(0), tmp_path / "run")
    assert plan.holds
    assert "read as Orbax stores it" in str(plan)
    assert "PyTorch" not in str(plan)
    loaded = lw.load(run(0), tmp_path / "run")
    assert same(loaded, run(2))
    assert int(loaded["optimizer"].step[...]) == 2
    assert same(lw.load(nnx.state(run(0)["model"]), lw.tree(tmp_path / "run")["model"]), nnx.state(run(2)["model"]))


def test_a_state_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    standard(tmp_path / "run", nnx.state(Net(1, features=4)))
    with pytest.raises(lw.LoadError, match=r"shape: plain\.kernel is 3×3 in the model but 3×4 in the checkpoint"):
        lw.load(Net(0), tmp_path / "run")


def test_a_variable_may_be_called_value(tmp_path: Path) -> None:
    model, target = nnx.Dict(value=nnx.Param(jnp.ones(2))), nnx.Dict(value=nnx.Param(jnp.zeros(2)))
    standard(tmp_path / "run", nnx.state(model))
    assert same(lw.load(target, tmp_path / "run"), model)
    standard(tmp_path / "plain", {"value": jnp.full(2, 2.0)})
    lw.load(target, tmp_path / "plain")
    assert target["value"][0] == 2
