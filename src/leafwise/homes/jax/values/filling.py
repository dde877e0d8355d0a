"""Initial values of layers of Flax NNX and Equinox: those of PyTorch's layers, so that equal paths get equal values."""

from typing import Any

from leafwise.core.capabilities.filling import Filling

_LIBRARIES = ("flax.nnx.", "equinox.nn.")


class LayerFilling(Filling):
    """Arrays are replaced as a whole, also those in the Variables of Flax NNX."""

    @property
    def by_parts(self) -> bool:
        return False

    def is_stock(self, owner: Any) -> bool:
        """Whether a layer is one of the library's own, or derived from one without another `__init__`."""
        made_by = next((base for base in type(owner).__mro__ if "__init__" in vars(base)), object)
        return made_by.__module__.startswith(_LIBRARIES)
