"""Which layers are those of Flax and of Equinox, so that weights can be carried to and from other frameworks."""

import sys

from leafwise.core.capabilities.converting import Converting


class NnxConverting(Converting):
    def framework(self, cls: type) -> str:
        return "Flax NNX"


class PytreeConverting(Converting):
    def framework(self, cls: type) -> str:
        equinox = sys.modules.get("equinox")
        return "Equinox" if equinox is not None and issubclass(cls, (equinox.Module, equinox.nn.State)) else ""
