"""The names and layouts under which libraries store PyTorch models."""

import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.converting import Converting, Reading
from leafwise.core.roles.recipes import Shape
from leafwise.homes.torch.checkpoints import weight_norm_names


class TorchConverting(Converting):
    def framework(self, cls: type) -> str:
        return "PyTorch" if issubclass(cls, nn.Module | torch.Tensor) else ""

    def may_convert(self, cls: type) -> bool:
        return issubclass(cls, nn.Module)

    def converts(self, obj: Any) -> bool:
        model = self._unwrapped(obj)
        return _is_adapted(model) or _is_pretrained(model) or weight_norm_names.has_any(model)

    def readings(
        self, obj: Any, stored: Mapping[str, Shape | None], wanted: Mapping[str, Shape | None]
    ) -> list[Reading]:
        model = self._unwrapped(obj)
        if _is_adapted(model):
            from leafwise.homes.torch.checkpoints import adapters

            return adapters.readings(model, stored, wanted)
        if _is_pretrained(model):
            from leafwise.homes.torch.checkpoints import transformers_layouts

            return transformers_layouts.readings(model, stored, wanted)
        return weight_norm_names.readings(model, stored)

    def _unwrapped(self, obj: Any) -> Any:
        """The model inside wrappers such as DistributedDataParallel."""
        while (child := self.home.wrapped_child(type(obj))) is not None:
            obj = getattr(obj, child)
        return obj


def _is_adapted(model: Any) -> bool:
    """Whether PEFT has added adapters to a model."""
    return "peft" in sys.modules and bool(getattr(model, "peft_config", None))


def _is_pretrained(model: Any) -> bool:
    """Whether a model is one of transformers, if the program has imported it."""
    cls = getattr(sys.modules.get("transformers.modeling_utils"), "PreTrainedModel", None)
    return cls is not None and isinstance(model, cls)
