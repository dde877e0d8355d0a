"""Arrays of JAX cannot become views of a vector; says what to do instead."""

from typing import Any

from leafwise.core.capabilities.packing import Packing
from leafwise.errors import Unsupported


class JaxPacking(Packing):
    def cannot_pack(self, value: Any) -> str:
        raise Unsupported(
            self.home.name,
            "flatten",
            "an array of JAX cannot become a view of a vector; jax.flatten_util.ravel_pytree(params) returns a vector, "
            "and a function that makes a tree of it",
        )
