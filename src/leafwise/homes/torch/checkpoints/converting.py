"""The names and layouts under which libraries store PyTorch models."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.converting import Converting, Reading
from leafwise.core.roles.recipes import Recipe, Shape, Taken


class TorchConverting(Converting):
    def framework(self, cls: type) -> str:
        return "PyTorch" if issubclass(cls, nn.Module | torch.Tensor) else ""

    def may_convert(self, cls: type) -> bool:
        return issubclass(cls, nn.Module)

    def converts(self, obj: Any) -> bool:
        model = self._unwrapped(obj)
        return _is_adapted(model) or _is_pretrained(model) or any(_other_names(model))

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
        return _weight_norm_readings(model, stored)

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


# -- weight norm, whose two versions give different names to the two parts of a weight ---------------------

_OTHER_WEIGHT_NORM = "PyTorch's other weight norm"
_PARTS = (("_g", "original0"), ("_v", "original1"))


def _weight_norm_readings(model: nn.Module, stored: Mapping[str, Shape | None]) -> list[Reading]:
    """`conv.weight_g` and `conv.weight_v` as `conv.parametrizations.weight.original0` and `.original1`, or the other
    way round, if the model has weight norm in the other version."""
    other_names = dict(_other_names(model))
    recipes: dict[str, Recipe] = {}
    for name, shape in stored.items() if other_names else ():
        entries = name.split(".")
        # A wrapper may have added entries at the beginning.
        ends = (".".join(entries[start:]) for start in range(len(entries)))
        end = next((end for end in ends if end in other_names), None)
        if end is not None and shape is not None:
            recipes[name.removesuffix(end) + other_names[end]] = Taken(name, shape)
    return [Reading(_OTHER_WEIGHT_NORM, recipes)] if recipes else []


def _other_names(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The names that the other version would have, with those in the model."""
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for tensor in _parametrized(module):
            for old, new in _PARTS:
                yield f"{prefix}{tensor}{old}", f"{prefix}parametrizations.{tensor}.{new}"
        for tensor in _hooked(module):
            for old, new in _PARTS:
                yield f"{prefix}parametrizations.{tensor}.{new}", f"{prefix}{tensor}{old}"


def _parametrized(module: Any) -> list[str]:
    """The tensors of a module with weight norm as a parametrization."""
    lists = module._modules.get("parametrizations") or {}
    return [name for name, made in lists.items() if len(made) == 1 and type(made[0]).__name__ == "_WeightNorm"]


def _hooked(module: nn.Module) -> list[str]:
    """The tensors of a module with weight norm as a hook."""
    hooks = module._forward_pre_hooks.values()
    return [hook.name for hook in hooks if type(hook).__name__ == "WeightNorm" and hasattr(hook, "name")]
