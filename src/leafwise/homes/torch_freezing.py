"""Tensors that training leaves as they are: parameters without gradients, and buffers that stand still.

Layers that keep running statistics update them in their own forward whenever they are in training mode, and `train()`
on the model puts them there. So a hook before their forward takes them out of it again, each time.
"""

from typing import Any

import torch
from torch import nn

from leafwise.homes.roles import role_of

_STATISTICS = ("norm.mean", "norm.variance", "norm.count")


class StandStill:
    """Runs before the forward of a module, and has it run as in `eval()`. A class, so that it can be pickled and found
    again."""

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        module.training = False


def cannot_train(value: torch.Tensor, trainable: bool) -> str:
    """Why a tensor cannot be frozen or thawed; empty where it can."""
    if not value.is_leaf:
        return "it is computed from other tensors"
    if not trainable or value.is_floating_point() or value.is_complex():
        return ""
    return f"only floating point can be trained, and it is {str(value.dtype).removeprefix('torch.')}"


def set_trainable(values: list[torch.Tensor], trainable: bool) -> None:
    for value in values:
        value.requires_grad_(trainable)
        if not trainable:
            value.grad = None  # an optimizer steps whatever has one


def drifts(owner: nn.Module, name: str) -> bool:
    """Whether a buffer changes in training: running statistics, and the vectors of spectral norm."""
    buffer = owner._buffers.get(name)
    if buffer is None:
        return False
    if type(owner).__name__ == "_SpectralNorm" or role_of(type(owner), name, buffer.dim())[0] in _STATISTICS:
        return True
    return name[-2:] in ("_u", "_v") and f"{name[:-2]}_orig" in owner._parameters


def is_held(owner: Any, name: str) -> bool:
    return bool(_hooks(owner)) and drifts(owner, name)


def _hooks(owner: Any) -> list[int]:
    hooks = getattr(owner, "_forward_pre_hooks", None)
    return [key for key, hook in hooks.items() if isinstance(hook, StandStill)] if hooks else []


def hold_still(owner: nn.Module, root: Any, on: bool) -> None:
    if on and not _hooks(owner):
        # First of all hooks, since the older spectral norm works in one.
        owner.register_forward_pre_hook(StandStill(), prepend=True)
        owner.training = False
    elif not on:
        for key in _hooks(owner):
            del owner._forward_pre_hooks[key]
            owner.training = getattr(root, "training", True)
