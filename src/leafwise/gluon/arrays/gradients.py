"""Backward with MXNet's rules: gradients are overwritten, in place, unless `grad_req` is 'add'."""

from collections.abc import Iterable
from typing import Any

import torch

from leafwise.gluon.arrays.held import is_held
from leafwise.gluon.arrays.values import ArrayValues
from leafwise.gluon.base import MXNetError

_GRAD_REQS = ("write", "add", "null")


def check_grad_req(grad_req: str) -> None:
    assert grad_req in _GRAD_REQS, f"grad_req must be one of 'write', 'add', or 'null', but got '{grad_req}'"


def backward(heads: Iterable[Any], head_grads: Any = None, retain_graph: bool = False) -> None:
    """Runs backward from arrays. Gradients are overwritten, except where `grad_req` is 'add'."""
    tensors = [_beneath(head) for head in heads]
    if not all(tensor.requires_grad for tensor in tensors):
        raise MXNetError(
            "Cannot differentiate node because it is not in a computational graph. You need to use autograd.record() "
            "to save computational graphs for backward. If you want to differentiate the same graph twice, you need "
            "to pass retain_graph=True to backward."
        )
    grads = [None] * len(tensors) if head_grads is None else list(head_grads)
    ones = [torch.ones_like(t) if g is None else _beneath(g) for t, g in zip(tensors, grads, strict=True)]
    overwritten = []
    for leaf in _leaves_of(tensors):
        if getattr(leaf, "grad_req", "add") == "write":
            if leaf.grad is not None:
                if is_held(leaf):
                    overwritten.append((leaf, leaf.grad))
                leaf.grad = None
    try:
        torch.autograd.backward(tensors, ones, retain_graph=retain_graph)
    finally:
        for leaf, before in overwritten:
            _write_gradient(leaf, before)


def keep_gradient(tensor: Any, grad_req: str) -> None:
    """Makes each backward through a computed tensor store its gradient as well, in memory that stays the same."""
    if hasattr(tensor, "grad_req"):
        forget_gradient(tensor)
    gradient = torch.zeros_like(tensor, requires_grad=False)
    store = gradient.copy_ if grad_req == "write" else gradient.add_

    def store_gradient(incoming: torch.Tensor) -> None:
        with torch.no_grad():
            store(incoming)

    tensor.kept_gradient, tensor.gradient_hook = gradient, tensor.register_hook(store_gradient)


def kept_gradient(tensor: Any) -> torch.Tensor:
    return tensor.kept_gradient  # type: ignore[no-any-return]


def forget_gradient(tensor: Any) -> None:
    """Undoes `keep_gradient`."""
    tensor.gradient_hook.remove()
    del tensor.kept_gradient, tensor.gradient_hook, tensor.grad_req


def _write_gradient(leaf: Any, before: Any) -> None:
    """Writes a new gradient into the memory of the previous one, because the user may have a reference to it."""
    after = leaf.grad
    if after is not None and before.dtype != after.dtype:
        return
    if after is not None:
        with torch.no_grad():
            _beneath(before).copy_(_beneath(after))
    leaf.grad = before


def _beneath(array: Any) -> Any:
    """The tensor of an array, in the same graph."""
    return array.tensor if isinstance(array, ArrayValues) else array


def _leaves_of(tensors: list[torch.Tensor]) -> list[Any]:
    """The leaf tensors that a backward from these tensors would compute gradients for."""
    leaves: list[Any] = [tensor for tensor in tensors if tensor.grad_fn is None]
    seen = set()
    stack = [tensor.grad_fn for tensor in tensors]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            leaves.append(node.variable)
        stack.extend(following for following, _ in node.next_functions)
    return leaves
