"""The names and layouts under which libraries store PyTorch models."""

import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from leafwise.core.capabilities.converting import Converting, Reading
from leafwise.core.recipes import Shape


class TorchConverting(Converting):
    def is_converted(self, cls: type) -> bool:
        return issubclass(cls, nn.Module)

    def readings(
        self, obj: Any, stored: Mapping[str, Shape | None], wanted: Mapping[str, Shape | None]
    ) -> list[Reading]:
        from leafwise.homes.torch import transformers_layouts

        model = self._unwrapped(obj)
        if _is_a(model, "transformers.modeling_utils", "PreTrainedModel"):
            return transformers_layouts.readings(model, stored, wanted)
        return []

    def _unwrapped(self, obj: Any) -> Any:
        """The model inside wrappers such as DistributedDataParallel."""
        while (child := self.home.wrapped_child(type(obj))) is not None:
            obj = getattr(obj, child)
        return obj


def _is_a(obj: Any, module: str, name: str) -> bool:
    """Whether an object is of a class of a library that the program has imported."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(obj, cls)
