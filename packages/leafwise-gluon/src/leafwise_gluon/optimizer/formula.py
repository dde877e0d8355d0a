"""Optimizers with a formula: they update each weight on its own."""

from typing import Any, ClassVar

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.arrays.legacy import NDArray, wrap_legacy
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.optimizer.base import Optimizer, Scales


class FormulaOptimizer(Optimizer):
    """An optimizer that updates each weight on its own, by a formula: subclasses implement `new_weight`."""

    versions: ClassVar[tuple[int, ...]] = (1, 2)  # the versions of MXNet that have it
    is_fused: ClassVar[bool] = True  # whether MXNet 2.x has it as one operation, unlike as operations in Python

    def __init__(self, **kwargs: Any) -> None:
        if dialect.version() not in self.versions:
            raise refusal(f"{type(self).__name__} in MXNet {dialect.version()}.x, which does not have it", "use Adam")
        fused = kwargs.pop("use_fused_step", None)
        if dialect.is_v1():
            super().__init__(**kwargs)
            return
        if fused is not None and bool(fused) != self.is_fused and type(self).step is FormulaOptimizer.step:
            raise refusal(f"{type(self).__name__}(use_fused_step={fused})", "leave it out; the weights are the same")
        super().__init__(use_fused_step=self.is_fused if fused is None else fused, **kwargs)

    def new_weight(self, index: Any, weight: torch.Tensor, grad: torch.Tensor, state: Any) -> Any:
        """The new values of a weight; changes the tensors in `state` in place."""
        raise NotImplementedError

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        if not self.is_v1:
            super().update(*_lists(index, weight, grad, state))
        else:
            self.step(*_lists(index, weight, grad, state))

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        super().update_multi_precision(*_lists(index, weight, grad, state))

    def step(self, indices: Any, weights: Any, grads: Any, states: Any) -> None:
        for index, weight, grad, state in zip(indices, weights, grads, states, strict=True):
            self._update_one(index, weight, grad, state)

    def fused_step(self, indices: Any, weights: Any, grads: Any, states: Any) -> None:
        for index, weight, grad, state in zip(indices, weights, grads, states, strict=True):
            self._update_one(index, weight, grad, state)

    def _update_one(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        assert isinstance(weight, NDArray)
        assert isinstance(grad, NDArray)
        self._check_dtypes(weight, grad, state)
        with torch.no_grad():
            target = weight.tensor.detach()
            target.copy_(self.new_weight(index, target, grad.tensor.detach(), _tensors(state)))

    def _check_dtypes(self, weight: Any, grad: Any, state: Any) -> None:
        for array in (grad, *_flat(state)):
            if array.tensor.dtype != weight.tensor.dtype:
                ours, theirs = dtype_name(weight.tensor.dtype), dtype_name(array.tensor.dtype)
                raise MXNetError(
                    f"{type(self).__name__} cannot update a weight of dtype {ours} with a gradient or a state of dtype "
                    f"{theirs}; cast the weight to {theirs}, or use multi_precision=True"
                )

    def zeros_like(self, weight: Any, dtype: Any = None) -> Any:
        """Zeros of the shape and, unless `dtype` is given, the dtype of a weight, for a state."""
        return wrap_legacy(torch.zeros_like(weight.tensor.detach(), dtype=dtype), weight.ctx)

    @property
    def fused_clip(self) -> float | None:
        """The limit of gradients in MXNet's fused updates, where 0 means none."""
        return self.clip_gradient or None

    def scaled_in_place(self, grad: torch.Tensor, weight: torch.Tensor, wd: float) -> torch.Tensor:
        """The gradient, rescaled, clipped and with weight decay. As in MXNet's updates in Python, the gradient
        itself is changed: it stays rescaled and, if it is not clipped, has the weight decay."""
        grad.mul_(float(self.rescale_grad))
        if self.clip_gradient is not None:
            grad = grad.clamp(-self.clip_gradient, self.clip_gradient)
        return grad.add_(weight, alpha=wd)

    def scaled_copy(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient, rescaled and clipped, as a new tensor."""
        grad = grad * float(self.rescale_grad)
        return grad if self.clip_gradient is None else grad.clamp(-self.clip_gradient, self.clip_gradient)

    def fused(self, scales: Scales) -> dict[str, Any]:
        """The arguments that all of MXNet's fused updates have."""
        return {
            "lr": scales.lr,
            "wd": scales.wd,
            "rescale_grad": float(self.rescale_grad),
            "clip_gradient": self.fused_clip,
        }


def _lists(index: Any, *rest: Any) -> tuple[Any, ...]:
    """Lists, also for an update of a single weight."""
    return (index, *rest) if isinstance(index, list | tuple) else ([index], *([value] for value in rest))


def _tensors(state: Any) -> Any:
    if isinstance(state, list | tuple):
        return tuple(_tensors(item) for item in state)
    return state.tensor.detach() if isinstance(state, ArrayValues) else state


def _flat(state: Any) -> list[Any]:
    if isinstance(state, list | tuple):
        return [inner for item in state for inner in _flat(item)]
    return [state] if isinstance(state, ArrayValues) else []
