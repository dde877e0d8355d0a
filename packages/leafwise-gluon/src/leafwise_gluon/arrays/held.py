"""Whether anyone could see that a gradient is replaced by another tensor, instead of being overwritten."""

import sys
from typing import Any

import torch


def is_held(leaf: Any) -> bool:
    """Whether anything but the leaf refers to its gradient, or to memory of it. If not, a new gradient may take its
    place, which saves a copy."""
    return _references(leaf.grad) != _UNHELD


def _references(gradient: torch.Tensor) -> tuple[int, int]:
    """The number of references to the tensor, and to its memory, which views refer to as well."""
    return sys.getrefcount(gradient), torch._C._storage_Use_Count(gradient.untyped_storage()._cdata)


def _references_to_a_new_gradient() -> tuple[int, int]:
    leaf = torch.zeros(1, requires_grad=True)
    leaf.grad = torch.zeros(1)
    return _references(leaf.grad)


_UNHELD = _references_to_a_new_gradient()
