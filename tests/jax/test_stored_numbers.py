"""Plain numbers of a model that the checkpoint has as arrays, as the step of a training run."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax.training.train_state import TrainState

import leafwise as lw


def _state() -> TrainState:
    return TrainState.create(apply_fn=None, params={"w": jnp.ones(2)}, tx=optax.sgd(0.1, 0.9))


def test_a_fresh_train_state_gets_the_step_of_a_compiled_one(tmp_path: Path) -> None:
    trained = jax.jit(lambda state: state.apply_gradients(grads=state.params))(_state())
    assert isinstance(trained.step, jax.Array)
    lw.save({"state": trained}, tmp_path / "run.safetensors")
    fresh = _state()
    loaded = lw.load({"state": fresh}, tmp_path / "run.safetensors")["state"]
    assert type(loaded.step) is int
    assert (loaded.step, fresh.step) == (1, 0)
    assert lw.load(fresh, trained).step == 1


@pytest.mark.parametrize(
    ("now", "stored", "expected"),
    [
        (0, jnp.int32(7), 7),
        (0, jnp.uint8(7), 7),
        (0.0, jnp.float32(0.1), float(jnp.float32(0.1))),
        (0.5, jnp.bfloat16(3), 3.0),
        (False, jnp.array(True), True),
    ],
    ids=["int", "unsigned", "float", "bfloat16", "bool"],
)
def test_a_number_of_the_same_kind_is_loaded_exactly(tmp_path: Path, now: Any, stored: Any, expected: Any) -> None:
    lw.save({"w": jnp.ones(2), "n": stored}, tmp_path / "file.safetensors")
    loaded = lw.load({"w": jnp.zeros(2), "n": now}, tmp_path / "file.safetensors")
    assert type(loaded["n"]) is type(now)
    assert loaded["n"] == expected


@pytest.mark.parametrize(
    ("now", "stored", "kind"),
    [(0, jnp.float32(7), "an int"), (0.5, jnp.int32(7), "a float"), (False, jnp.int32(1), "a bool")],
)
def test_another_kind_of_number_is_refused(now: Any, stored: Any, kind: str) -> None:
    model = {"w": jnp.zeros(2), "n": now}
    with pytest.raises(lw.LoadError, match=f"n is {kind} in the model but an array"):
        lw.load(model, {"w": jnp.ones(2), "n": stored})


def test_an_array_of_numbers_is_not_a_number() -> None:
    with pytest.raises(lw.LoadError, match="n is an int in the model but an array"):
        lw.load({"w": jnp.zeros(2), "n": 3}, {"w": jnp.ones(2), "n": jnp.arange(2)})


def test_a_renamed_number_is_found() -> None:
    source = {"w": jnp.ones(2), "count": jnp.int32(7)}
    assert lw.load({"w": jnp.zeros(2), "step": 0}, source, rename={"count": "step"})["step"] == 7
