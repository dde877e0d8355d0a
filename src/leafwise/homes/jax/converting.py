"""Which layers are those of Flax and of Equinox, so that weights can be carried to and from other frameworks, and what
Orbax calls the Variables of NNX."""

import sys
from collections.abc import Mapping
from typing import Any

from leafwise.core.capabilities.converting import Converting, Reading
from leafwise.core.roles.recipes import Recipe, Shape, Taken

_IN_VARIABLE = ".value"  # ends the names of arrays in an `nnx.State` that Orbax saved: it flattens Variables, too


class NnxConverting(Converting):
    only_renames = True

    def framework(self, cls: type) -> str:
        return "Flax NNX"

    def may_convert(self, cls: type) -> bool:
        return True

    def converts(self, obj: Any) -> bool:
        return True

    def readings(
        self, obj: Any, stored: Mapping[str, Shape | None], wanted: Mapping[str, Shape | None]
    ) -> list[Reading]:
        recipes: dict[str, Recipe] = {}
        for name, shape in stored.items():
            variable = name.removesuffix(_IN_VARIABLE)
            if variable != name and variable not in stored and shape is not None:
                recipes[variable] = Taken(name, shape)
        return [Reading("Orbax", recipes)] if recipes else []


class PytreeConverting(Converting):
    def framework(self, cls: type) -> str:
        equinox = sys.modules.get("equinox")
        return "Equinox" if equinox is not None and issubclass(cls, (equinox.Module, equinox.nn.State)) else ""
