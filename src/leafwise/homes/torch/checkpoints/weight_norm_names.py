"""The names of the two parts of a weight with weight norm, which differ between both versions of weight norm."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from leafwise.core.capabilities.converting import Reading
from leafwise.core.roles.recipes import Recipe, Shape, Taken

LIBRARY = "PyTorch's other weight norm"
_PARTS = (("_g", "original0"), ("_v", "original1"))


def has_any(model: nn.Module) -> bool:
    """Whether any layer of a model has weight norm."""
    return any(True for _ in _other_names(model))


def readings(model: nn.Module, stored: Mapping[str, Shape | None]) -> list[Reading]:
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
    return [Reading(LIBRARY, recipes)] if recipes else []


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
