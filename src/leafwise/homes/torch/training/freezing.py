"""Freezing: parameters without gradients, and buffers that training no longer changes.

A layer with running statistics updates them in each forward in training mode, and `train()` on the model sets that
mode. An `EvalLock`, which replaces the `train` method of the layer, keeps it in `eval()`. A forward pre-hook would also
work, but not in a compiled model, which does not check for new hooks.
"""

from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.roles.role_table import role_of
from leafwise.homes.torch.parallel.flat_shards import FlatShard
from leafwise.homes.torch.tensors import dtype_name, is_lazy

_STATISTICS = ("norm.mean", "norm.variance", "norm.count")


class EvalLock:
    """Replaces the `train` method of a module: keeps it in `eval()`, and remembers the requested mode. A class, so that
    it is copied and pickled with the module, and can be recognized."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.mode = module.training
        module.training = False

    def __call__(self, mode: bool = True) -> nn.Module:
        self.mode = mode
        self.module.training = False
        for child in self.module.children():
            child.train(mode)
        return self.module


class TorchFreezing(Freezing):
    def cannot_train(self, value: torch.Tensor, trainable: bool) -> str:
        """Why a tensor cannot be frozen or thawed; empty if it can."""
        if isinstance(value, FlatShard):
            return value.owner.cannot_train_alone() if value.requires_grad != trainable else ""
        if not value.is_leaf:
            return "it is computed from other tensors"
        if not is_lazy(value) and value.is_inference():
            return "it was made in inference mode, and has no gradient"
        if not trainable or value.is_floating_point() or value.is_complex():
            return ""
        return f"only floating point can be trained, and it is {dtype_name(value.dtype)}"

    def set_trainable(self, values: list[torch.Tensor], trainable: bool) -> None:
        for value in values:
            value.requires_grad = trainable  # an attribute, because a lazy parameter lacks the method
            if not trainable:
                value.grad = None  # optimizers step every parameter that has a gradient

    def drifts(self, owner: nn.Module, name: str) -> bool:
        """Whether training changes a buffer: running statistics, and the vectors of spectral norm."""
        # Without `get`, which the dicts of a scripted module do not have.
        buffer = owner._buffers[name] if name in owner._buffers else None  # noqa: SIM401
        if buffer is None:
            return False
        ndim = None if is_lazy(buffer) else buffer.dim()
        if type(owner).__name__ == "_SpectralNorm" or role_of(type(owner), name, ndim)[0] in _STATISTICS:
            return True
        return name[-2:] in ("_u", "_v") and f"{name[:-2]}_orig" in owner._parameters

    def is_held(self, owner: Any, name: str) -> bool:
        return isinstance(getattr(owner, "__dict__", {}).get("train"), EvalLock) and self.drifts(owner, name)

    def hold_buffers(self, owner: nn.Module, on: bool) -> None:
        held = owner.__dict__.get("train")
        if on and not isinstance(held, EvalLock):
            owner.__dict__["train"] = EvalLock(owner)
        elif not on and isinstance(held, EvalLock):
            del owner.__dict__["train"]
            owner.training = held.mode
