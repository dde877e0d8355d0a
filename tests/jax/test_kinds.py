"""Which arrays of JAX are parameters, and which are running statistics, caches or constants."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.training import train_state

import leafwise as lw


class _TrainState(train_state.TrainState):
    batch_stats: Any


class _Run(NamedTuple):
    params: Any
    batch_stats: Any


def _kinds(model: Any) -> dict[str, str]:
    return {str(leaf.path): leaf.kind for leaf in lw.tree(model)}


def _section(value: float = 1.0) -> dict[str, Any]:
    return {"layer": {"value": jnp.full(2, value)}}


def _train_state(value: float) -> _TrainState:
    return _TrainState.create(
        apply_fn=None, params=_section(value), tx=optax.sgd(0.1, 0.9), batch_stats=_section(value)
    )


@pytest.mark.parametrize(
    "model",
    [
        _train_state(1.0),
        _Run(_section(), _section()),
        {"a": {"params": _section(), "batch_stats": _section()}},
        {"batch_stats": _section()},
        {"nets": [_Run(_section(), jnp.ones(2))]},
    ],
    ids=["train state", "named tuple", "nested", "alone", "one array"],
)
def test_batch_statistics_are_buffers(model: Any) -> None:
    kinds = _kinds(model)
    statistics = {kind for path, kind in kinds.items() if "batch_stats" in path}
    assert statistics == {"buffer"}
    assert {kind for path, kind in kinds.items() if path.startswith("params")} <= {"parameter"}


def test_batch_stats_without_params_may_be_a_layer() -> None:
    assert _kinds({"batch_stats": _section(), "other": _section()}) == {
        "batch_stats.layer.value": "parameter",
        "other.layer.value": "parameter",
    }


def test_the_names_of_a_flat_state_dict_have_no_meaning() -> None:
    flat = {"params.w": jnp.ones(2), "batch_stats.m": jnp.ones(2)}
    assert set(_kinds(flat).values()) == {"parameter"}


def test_an_average_copies_the_statistics_of_a_train_state() -> None:
    average = lw.Average(_train_state(1.0), decay=0.5)
    average.update(_train_state(1.0))
    average.update(_train_state(3.0))
    with average.applied(_train_state(3.0)) as averaged:
        assert float(averaged.params["layer"]["value"][0]) == 2
        assert float(averaged.batch_stats["layer"]["value"][0]) == 3


def test_the_state_of_equinox_layers_has_no_parameters() -> None:
    norm, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(3, "batch", mode="batch")
    assert set(_kinds(state).values()) == {"buffer"}
    both = _kinds({"model": norm, "state": state})
    assert {kind for path, kind in both.items() if path.startswith("state")} == {"buffer"}
    assert both["model.weight"] == "parameter"


class _Sowing(nnx.Module):
    def __init__(self) -> None:
        self.layer = nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        self.table = nnx.data(jnp.ones(3))
        self.constants = nnx.data({"a": jnp.ones(3), "b": np.ones(3)})
        self.several = nnx.List([jnp.ones(3)])
        self.pair = nnx.Param({"first": jnp.ones(3)})
        self.statistics = nnx.BatchStat((jnp.ones(3),))

    def __call__(self, x: Any) -> Any:
        self.seen = nnx.Intermediate((x,))  # as `sow` does
        return self.layer(x)


def test_what_nnx_does_not_train_is_not_a_parameter() -> None:
    model = _Sowing()
    model(jnp.ones((1, 2)))
    assert _kinds(model) == {
        "layer.kernel": "parameter",
        "layer.bias": "parameter",
        "table": "buffer",
        "constants.a": "buffer",
        "constants.b": "buffer",
        "several.0": "buffer",
        "pair.first": "parameter",
        "statistics.0": "buffer",
        "seen.0": "buffer",
    }
    assert [str(leaf.path) for leaf in lw.tree(model) if not leaf.persistent] == ["seen.0"]


def test_an_average_of_an_nnx_module_leaves_out_what_was_sown() -> None:
    model = _Sowing()
    average = lw.Average(model, decay=0.5)
    average.update(model)
    model(jnp.ones((1, 2)))
    model.table = jnp.full(3, 5.0)
    average.update(model)
    with average.applied(model) as averaged:
        assert (averaged.table == 5).all()
    assert "seen.0" not in average.state_dict()["values"]


def test_a_table_of_an_nnx_module_is_loaded() -> None:
    source, target = _Sowing(), _Sowing()
    source.table = jnp.full(3, 5.0)
    source.constants["a"] = jnp.full(3, 6.0)
    loaded = lw.load(target, source)
    assert loaded is target
    assert isinstance(target.table, jax.Array)
    assert (target.table == 5).all()
    assert (target.constants["a"] == 6).all()
