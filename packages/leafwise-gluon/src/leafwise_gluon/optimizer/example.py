"""The optimizer that MXNet's own tests use."""

from typing import Any

import torch

from leafwise_gluon.optimizer.base import register
from leafwise_gluon.optimizer.formula import FormulaOptimizer


@register
class Test(FormulaOptimizer):
    """Adds the gradient in MXNet 1.x; descends along it, with weight decay, in 2.x."""

    is_fused = False
    __test__ = False  # not a test class of pytest

    def create_state(self, index: Any, weight: Any) -> Any:
        return self.zeros_like(weight, torch.float32)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        if self.is_v1:
            changed = weight + grad * float(self.rescale_grad)
            state.copy_(changed)
            return changed
        lr, wd, _ = self.counted(index)
        return weight - lr * (float(self.rescale_grad) * grad + wd * weight)
