"""The graph that a backward pass goes through, and whether it has been released.

In MXNet, an array that was computed in a released graph counts as a constant from then on. PyTorch keeps it connected,
and may compute a gradient through the released part again, without an error.
"""

from typing import Any

import torch

_MARK = "leafwise_gluon: the last pass"  # in the metadata of a node: the last Pass that went through it
_ACCUMULATES = type(torch.zeros(1, requires_grad=True).view(1).grad_fn.next_functions[0][0])  # type: ignore[union-attr]


class Pass:
    """A backward pass from some tensors: the leaves that get gradients, and whether a part was released before.

    `release` releases all of its graph at once, because every node refers to this object.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.leaves: list[Any] = [tensor for tensor in tensors if tensor.grad_fn is None]
        self.is_stale = False
        self.is_released = False
        leaves: set[Any] = set()
        stack: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        while stack:
            node = stack.pop()
            if type(node) is _ACCUMULATES:
                leaves.add(node)
                continue
            metadata = node.metadata
            before = metadata.get(_MARK)
            if before is self:
                continue
            if before is not None and before.is_released:
                self.is_stale = True
                continue
            metadata[_MARK] = self
            for following, _ in node.next_functions:
                if following is not None:
                    stack.append(following)
        self.leaves += [node.variable for node in leaves]

    def release(self) -> None:
        self.is_released = True


def is_released(tensor: torch.Tensor) -> bool:
    node: Any = tensor.grad_fn
    if node is None:
        return False
    before = node.metadata.get(_MARK)
    return before is not None and before.is_released
