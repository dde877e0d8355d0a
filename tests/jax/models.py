"""Small models of each JAX library, with the facts that tests compare."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from flax import nnx


class TiedNnx(nnx.Module):
    """An embedding whose table is also the kernel of the head, a batch norm, and dropout with its random state."""

    def __init__(self, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.embed = nnx.Embed(5, 3, rngs=rngs)
        self.block = nnx.Linear(3, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.again = self.block
        self.head = nnx.Linear(5, 3, use_bias=False, rngs=rngs)
        self.head.kernel = self.embed.embedding


class EquinoxNet(eqx.Module):
    """Layers in a tuple, a static field and an activation, which are not leaves."""

    layers: tuple[eqx.nn.Linear, ...]
    norm: eqx.nn.LayerNorm
    scale: jax.Array
    width: int = eqx.field(static=True)
    activation: Any

    def __init__(self, seed: int = 0) -> None:
        first, second = jax.random.split(jax.random.key(seed))
        self.layers = (eqx.nn.Linear(2, 4, key=first), eqx.nn.Linear(4, 3, key=second))
        self.norm = eqx.nn.LayerNorm(3)
        self.scale = jnp.full((), 0.5)
        self.width = 4
        self.activation = jax.nn.relu


def linen_variables(seed: int = 0) -> dict[str, Any]:
    """The variables of a Linen model with a dense layer, a convolution and a batch norm."""
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.Conv(4, (3, 3), name="conv")(x)
            x = linen.BatchNorm(use_running_average=True, name="norm")(x)
            return linen.Dense(2, name="dense")(x.mean(axis=(1, 2)))

    variables: dict[str, Any] = Net().init(jax.random.key(seed), jnp.ones((1, 8, 8, 3)))
    return variables
