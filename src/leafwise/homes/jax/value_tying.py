"""Why arrays in a pytree cannot be tied, and how to write a model whose layers share one instead.

In a pytree, arrays are values: JAX differentiates and updates each place by itself. Only code can make two layers use
one array, in Equinox with `eqx.nn.Shared`.
"""

import sys
from typing import Any

from leafwise.core.capabilities.tying import Keep, Place, TiedPlaces, Tying
from leafwise.core.memory.ops import Op
from leafwise.core.path import Path
from leafwise.errors import Unsupported

_VALUES = "arrays in a pytree are values, and the same array at two places gets two gradients"


class ValueTying(Tying):
    def way_to_tie(self, root: Any, target: Path, source: Path, op: Op) -> str:
        if not _is_equinox(root):
            return (
                f"{_VALUES}; leave out {target.code('params')}, and let the code that used it read "
                f"{source.code('params')}{op.describe()}"
            )
        get = source.code("m")
        get = get if op == "same" else f"{get}{op.describe()}"
        return (
            f"{_VALUES}; in __init__, put what contains both into an eqx.nn.Shared: "
            f"self.shared = eqx.nn.Shared(…, where=lambda m: {target.code('m')}, get=lambda m: {get}), "
            "and use the result of self.shared() in __call__"
        )

    def cannot_tie(self, place: Place, value: Any, op: Op) -> str:
        raise Unsupported(self.home.name, f"tie {place.path}", _VALUES)

    def untie(self, root: Any, objects: list[Any], places: list[Place]) -> Any:
        raise Unsupported(
            self.home.name,
            f"untie {places[0].path}",
            "the model calls an eqx.nn.Shared, which puts one array in both places; for independent arrays, store what "
            "this call returns in the model, in place of the eqx.nn.Shared, and do not call it",
        )

    def keep_ties(self, root: Any, objects: list[Any], groups: list[TiedPlaces], keep: Keep | None) -> Any:
        return root  # a tie by `eqx.nn.Shared` cannot come undone

    def release_ties(self, root: Any, objects: list[Any], places: list[Place] | None) -> Any:
        return root


def _is_equinox(root: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(root, equinox.Module)
