"""Optimizers of optax and NNX: they do not hold the parameters that they step."""

import sys
from typing import Any

from leafwise.core.capabilities.stepping import Stepping
from leafwise.errors import Unsupported
from leafwise.homes.jax.pytrees import is_optax_state


class JaxStepping(Stepping):
    def why_unknown(self, obj: Any) -> str:
        nnx = sys.modules.get("flax.nnx")
        if not is_optax_state(type(obj)) and (nnx is None or not isinstance(obj, nnx.Optimizer)):
            return ""
        return "an optimizer of JAX has only its own state, and gets the parameters with each update; omit optimizer="

    def held_by(self, optimizer: Any) -> list[tuple[str, Any]]:
        raise Unsupported(self.home.name, self.action)
