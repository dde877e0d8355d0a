"""States of optax and typed random keys, exchanged with Orbax in both directions; all of optax in `make optax`."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import orbax.checkpoint as ocp
import pytest
from tests.jax.orbax_folders import standard
from tools import optax_orbax

import leafwise as lw

NAMES = [
    "adamw",
    "chain",
    "two masks",
    "contrib.madgrad",
    "inject_hyperparams",
    "MultiSteps",
    "nnx.Optimizer: two masks",
    "nnx.Optimizer: MultiSteps",
    "key: rbg",
    "key: rbg into unsafe_rbg",
    "key: threefry2x32 into rbg",
]
CASES = {case.name: case for case in optax_orbax.cases()}


@pytest.mark.parametrize("name", NAMES)
def test_a_state_is_the_same_after_orbax_and_leafwise_exchanged_it(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    outcomes = optax_orbax.outcomes(case, tmp_path)
    assert {way: outcome for way, outcome in outcomes.items() if outcome.kind != case.expected} == {}


def state() -> dict[str, Any]:
    params = {"w": jnp.arange(6.0).reshape(2, 3)}
    return {"params": params, "opt_state": optax.chain(optax.clip(1.0), optax.sgd(0.1)).init(params)}


def test_none_in_place_of_something_is_still_unexpected(tmp_path: Path) -> None:
    """Only a node in which nothing is may have been stored as None."""
    standard(
        tmp_path / "run", {"params": {"w": jnp.ones((2, 3)), "nested": {"v": None, "u": None}}, "opt_state": [None]}
    )
    target = state() | {"opt_state": ()}
    assert "the value params.nested" in str(lw.plan(target, tmp_path / "run"))
    standard(tmp_path / "other", {"params": {"w": jnp.ones((2, 3))}, "opt_state": [None, [None, 5]]})
    with pytest.raises(lw.Error, match="1 unexpected"):
        lw.load(state(), tmp_path / "other")


def test_the_implementation_of_a_key_stays_with_it_in_other_formats(tmp_path: Path) -> None:
    standard(tmp_path / "run", {"rng": jax.random.key(1, impl="rbg"), "w": jnp.ones(2)})
    lw.edit(tmp_path / "run", tmp_path / "copy.safetensors")
    target = {"rng": jax.random.key(0, impl="rbg"), "w": jnp.zeros(2)}
    for source in (tmp_path / "run", tmp_path / "copy.safetensors"):
        loaded = lw.load(target, source)
        assert loaded["rng"].dtype == target["rng"].dtype
        with pytest.raises(lw.Error, match="unsafe_rbg"):
            lw.load({**target, "rng": jax.random.key(0, impl="unsafe_rbg")}, source)
    assert not lw.diff(target, tmp_path / "run").same
    changed = lw.diff({**target, "rng": jax.random.key(1, impl="unsafe_rbg")}, tmp_path / "run")
    assert "rbg" in str(changed)


def test_orbax_restores_the_empty_states_without_a_target(tmp_path: Path) -> None:
    lw.save(state(), tmp_path / "run", format="orbax")
    with ocp.StandardCheckpointer() as checkpointer:
        assert checkpointer.restore(tmp_path / "run")["opt_state"] == [None, [None, None]]
