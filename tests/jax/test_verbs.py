"""Every verb over every home of JAX: it works, or is refused by `lw.Unsupported`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec
from tests.jax.models import EquinoxNet, TiedNnx, linen_variables

import leafwise as lw
from leafwise.testing.verbs import VERBS, assert_same_values, values_of


def _pytree() -> dict[str, Any]:
    keys = jax.random.split(jax.random.key(0), 3)
    return {
        "embed": jax.random.normal(keys[0], (4, 8)),
        "blocks": [{"w": jax.random.normal(key, (8, 8)), "b": jnp.full(8, 0.1)} for key in keys[1:]],
    }


def _sharded() -> dict[str, Any]:
    mesh = jax.make_mesh((8,), ("data",), devices=jax.devices("cpu"))
    return jax.device_put(_pytree(), NamedSharding(mesh, PartitionSpec(None)))


HOMES: dict[str, Callable[[], Any]] = {
    "Flax NNX": TiedNnx,
    "a state of Flax NNX": lambda: nnx.state(TiedNnx(), nnx.Param),
    "Equinox": EquinoxNet,
    "Flax Linen": linen_variables,
    "a pytree": _pytree,
    "a sharded pytree": _sharded,
}

_BY_VALUE = ("Equinox", "Flax Linen", "a pytree", "a sharded pytree")
REFUSED = {
    *((home, "flat") for home in HOMES),
    *(("a state of Flax NNX", verb) for verb in ("tie", "untie")),
    *((home, verb) for home in _BY_VALUE for verb in ("tie", "untie", "freeze")),
}


# What has gradients of each model, for lw.clip: a tree like the model, or the part of it that is trained.
GRADIENTS: dict[str, Callable[[], Any]] = {
    **HOMES,
    "Flax NNX": lambda: nnx.state(TiedNnx(), nnx.Param),
    "Flax Linen": lambda: linen_variables()["params"],
    "Equinox": lambda: eqx.filter(EquinoxNet(), eqx.is_inexact_array),
}


def _norm(values: dict[str, Any]) -> float:
    return float(np.sqrt(sum((array.astype(np.float64) ** 2).sum() for array in values.values())))


@pytest.mark.parametrize("home", HOMES)
def test_gradients_are_clipped(home: str) -> None:
    gradients = GRADIENTS[home]()
    before = values_of(gradients)
    norms = lw.clip(gradients, 0.01)
    clipped = values_of(norms.clipped)
    assert norms.total == pytest.approx(_norm(before), rel=1e-5)
    assert _norm(clipped) == pytest.approx(0.01, rel=1e-4)
    assert clipped.keys() == before.keys()
    assert_same_values(values_of(gradients), before)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("home", HOMES)
def test_a_verb_works_or_is_refused(home: str, verb: str, tmp_path: Path) -> None:
    if (home, verb) not in REFUSED:
        VERBS[verb](HOMES[home], tmp_path)
        return
    with pytest.raises(lw.Unsupported) as refused:
        VERBS[verb](HOMES[home], tmp_path)
    assert ":" in str(refused.value)  # the reason, and what to do instead
