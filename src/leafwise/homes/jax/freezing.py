"""Which arrays of a pytree are trained: a mask, because the arrays cannot record it."""

from typing import Any

from leafwise.core.capabilities.freezing import Freezing
from leafwise.errors import Unsupported
from leafwise.homes.jax.flat_leaves import mapped


class JaxFreezing(Freezing):
    def cannot_train(self, value: Any, trainable: bool) -> str:
        raise Unsupported(
            self.home.name,
            "thaw" if trainable else "freeze",
            "an array of JAX does not record whether it is trained; lw.Rule(…, frozen=True) freezes leaves in "
            "groups.optax, and lw.trainable(params, frozen=…) makes a mask for eqx.partition",
        )

    def trainable_part(self, root: Any, trained: frozenset[str], frozen: frozenset[tuple[str, ...]]) -> Any:
        # A place that eqx.nn.Shared fills has no array of its own.
        return mapped(root, lambda path, leaf: path in trained and hasattr(leaf, "dtype"))
