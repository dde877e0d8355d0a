"""Backward with MXNet's rules: gradients are overwritten, in place, unless `grad_req` is 'add'."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.held import is_held
from leafwise_gluon.arrays.released import Pass
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import MXNetError

_GRAD_REQS = ("write", "add", "null")


def check_grad_req(grad_req: str) -> None:
    assert grad_req in _GRAD_REQS, f"grad_req must be one of 'write', 'add', or 'null', but got '{grad_req}'"


def backward(heads: Any, head_grads: Any = None, retain_graph: bool = False, train_mode: bool = True) -> None:
    """Runs backward from one array or several. Gradients are overwritten, except where `grad_req` is 'add'."""
    tensors, ones, graph = _prepared(heads, head_grads)
    overwritten = []
    for leaf in graph.leaves:
        if getattr(leaf, "grad_req", "add") == "write":
            if leaf.grad is not None:
                if is_held(leaf):
                    overwritten.append((leaf, leaf.grad))
                leaf.grad = None
    try:
        with _modes(train_mode):
            torch.autograd.backward(tensors, ones, retain_graph=retain_graph)
    finally:
        for leaf, before in overwritten:
            _write_gradient(leaf, before)
        if not retain_graph:
            graph.release()
    for leaf in graph.leaves:
        leaf.is_fresh = True  # until a Trainer has used the gradient


def gradients(
    heads: Any, variables: list[Any], head_grads: Any, retain_graph: bool, create_graph: bool, train_mode: bool
) -> list[torch.Tensor]:
    """The gradients with respect to arrays that have `attach_grad`, without changing their `grad`."""
    tensors, ones, graph = _prepared(heads, head_grads)
    for number, variable in enumerate(variables, 1):
        if not hasattr(variable.tensor, "grad_req") or not variable.tensor.requires_grad:
            raise MXNetError(
                f"Cannot differentiate with respect to the {number}-th variable because it does not require gradient."
            )
    with _modes(train_mode):
        computed = torch.autograd.grad(
            tensors,
            [variable.tensor for variable in variables],
            ones,
            retain_graph=retain_graph,
            create_graph=create_graph,
            allow_unused=True,
        )
    if not retain_graph:
        graph.release()
    for number, gradient in enumerate(computed, 1):
        if gradient is None:
            raise MXNetError(
                f"Cannot differentiate with respect to the {number}-th variable because it is unreachable from the "
                "outputs."
            )
    return list(computed)


def _prepared(heads: Any, head_grads: Any) -> tuple[list[torch.Tensor], list[torch.Tensor], Pass]:
    """The tensors to start from, each once, their own gradients, and the graph below them."""
    listed = [heads] if isinstance(heads, ArrayValues | torch.Tensor) else list(heads)
    if head_grads is None:
        given: list[Any] = [None] * len(listed)
    else:
        given = [head_grads] if isinstance(head_grads, ArrayValues | torch.Tensor) else list(head_grads)
    assert len(listed) == len(given), (
        f"heads and head_grads must be lists of the same length: {len(listed)} vs. {len(given)}"
    )
    by_id = {id(_beneath(head)): (_beneath(head), _beneath(grad)) for head, grad in zip(listed, given, strict=True)}
    tensors = [tensor for tensor, _ in by_id.values()]
    graph = Pass(tensors)
    if graph.is_stale or not all(tensor.requires_grad for tensor in tensors):
        raise MXNetError(
            "Cannot differentiate node because it is not in a computational graph. You need to use autograd.record() "
            "to save computational graphs for backward. If you want to differentiate the same graph twice, you need "
            "to pass retain_graph=True to backward."
        )
    return tensors, [torch.ones_like(tensor) if grad is None else grad for tensor, grad in by_id.values()], graph


@contextmanager
def _modes(training: bool) -> Iterator[None]:
    """What code of the user's own sees during backward: nothing is recorded, and layers are in training mode."""
    before = STATE.recording, STATE.training, STATE.backward_trains
    STATE.recording, STATE.training, STATE.backward_trains = False, training, training
    try:
        yield
    finally:
        STATE.recording, STATE.training, STATE.backward_trains = before


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
