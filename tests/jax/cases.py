"""The models of the contract suite over JAX."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct
from flax.core import freeze
from tests.jax.models import EquinoxNet, TiedNnx, linen_variables

from leafwise.testing import Case

_NNX_LEAVES = {
    "embed.embedding": [("head.kernel", "same")],
    "block.kernel": [("again.kernel", "same")],
    "block.bias": [("again.bias", "same")],
    "norm.mean": [],
    "norm.var": [],
    "norm.scale": [],
    "norm.bias": [],
    "drop.rngs.key": [],
    "drop.rngs.count": [],
}


# NNX sorts the attributes of modules when it merges them.
_SORTED_LEAVES = {
    "again.bias": [("block.bias", "same")],
    "again.kernel": [("block.kernel", "same")],
    "drop.rngs.count": [],
    "drop.rngs.key": [],
    "embed.embedding": [("head.kernel", "same")],
    "norm.bias": [],
    "norm.scale": [],
    "norm.mean": [],
    "norm.var": [],
}


class Layer(NamedTuple):
    kernel: Any
    bias: Any


@struct.dataclass
class TrainState:
    params: Any
    step: Any
    name: str = struct.field(pytree_node=False, default="run")


@jax.tree_util.register_pytree_node_class
class Pair:
    """A node without names for its children, as older code registers it."""

    def __init__(self, first: Any, second: Any) -> None:
        self.first, self.second = first, second

    def tree_flatten(self) -> tuple[tuple[Any, Any], None]:
        return (self.first, self.second), None

    @classmethod
    def tree_unflatten(cls, structure: None, children: tuple[Any, Any]) -> "Pair":
        return cls(*children)


def _twice() -> dict[str, Any]:
    """The same array and the same dict at two places, which are two leaves each: JAX computes two gradients."""
    array = jnp.arange(4.0)
    layer = {"kernel": array}
    return {"a": layer, "b": layer, "c": array}


def _pytree_of_every_container() -> dict[str, Any]:
    return {
        "list": [jnp.ones((2, 3)), jnp.zeros(3)],
        "named": Layer(jnp.ones((3, 2)), jnp.zeros(2)),
        "tuple": (jnp.full((2,), 2.0),),
        "frozen": freeze({"scale": jnp.ones(2)}),
        "nothing": None,
        "pair": Pair(jnp.ones(2), [jnp.zeros(1)]),
        "state": TrainState({"w": jnp.ones(3)}, jnp.zeros((), jnp.int32)),
        3: jnp.ones(1),
        "flags": jnp.array([True, False]),
    }


def _without_ties(*paths: str) -> dict[str, list[tuple[str, str]]]:
    return {path: [] for path in paths}


_LAYERS = ("layers.0.weight", "layers.0.bias", "layers.1.weight", "layers.1.bias")

CASES = {
    "Flax NNX": Case(TiedNnx, _NNX_LEAVES, 15 + 12 + 6),
    "Flax NNX in a dict": Case(
        lambda: {"model": TiedNnx(), "step": 3},
        {f"model.{path}": [(f"model.{other}", op) for other, op in names] for path, names in _NNX_LEAVES.items()},
        33,
    ),
    "Flax NNX after split and merge": Case(lambda: nnx.merge(*nnx.split(TiedNnx())), _SORTED_LEAVES, 33),
    "a state of Flax NNX": Case(
        lambda: nnx.state(nnx.Linear(2, 3, rngs=nnx.Rngs(0))), _without_ties("bias", "kernel"), 9
    ),
    "Flax NNX without values": Case(lambda: nnx.eval_shape(TiedNnx), _SORTED_LEAVES, 33, holds_values=False),
    "Equinox": Case(EquinoxNet, _without_ties(*_LAYERS, "norm.weight", "norm.bias", "scale"), 34, mutable=False),
    "the arrays of Equinox": Case(
        lambda: eqx.filter(EquinoxNet(), eqx.is_array),
        _without_ties(*_LAYERS, "norm.weight", "norm.bias", "scale"),
        34,
        mutable=False,
    ),
    "Flax Linen": Case(
        linen_variables,
        _without_ties(
            "params.conv.kernel",
            "params.conv.bias",
            "params.norm.scale",
            "params.norm.bias",
            "params.dense.kernel",
            "params.dense.bias",
            "batch_stats.norm.mean",
            "batch_stats.norm.var",
        ),
        3 * 3 * 3 * 4 + 4 + 8 + 4 * 2 + 2,
        mutable=False,
    ),
    "every container": Case(
        _pytree_of_every_container,
        _without_ties(
            "list.0",
            "list.1",
            "named.kernel",
            "named.bias",
            "tuple.0",
            "frozen.scale",
            "pair.0",
            "pair.1.0",
            "state.params.w",
            "state.step",
            "flags",
            "3",
        ),
        6 + 3 + 6 + 2 + 2 + 2 + 2 + 1 + 3 + 1,
        mutable=False,
    ),
    "one array at three places": Case(_twice, _without_ties("a.kernel", "b.kernel", "c"), 12, mutable=False),
    "a flat dict": Case(
        lambda: {"block.kernel": jnp.ones((2, 2)), "block.bias": jnp.zeros(2)},
        _without_ties("block.kernel", "block.bias"),
        6,
        mutable=False,
    ),
    "an optimizer state": Case(
        lambda: optax.adam(1e-3).init({"w": jnp.ones(3)}),
        _without_ties("0.count", "0.mu.w", "0.nu.w"),
        0,
        mutable=False,
    ),
    "without values": Case(
        lambda: jax.eval_shape(lambda: {"w": jnp.ones((2, 3)), "b": jnp.zeros(3)}),
        _without_ties("b", "w"),
        9,
        mutable=False,
        holds_values=False,
    ),
    "random keys": Case(
        lambda: {"key": jax.random.key(3), "keys": jax.random.split(jax.random.key(1), 4), "w": jnp.ones(2)},
        _without_ties("key", "keys", "w"),
        2,
        mutable=False,
    ),
}
