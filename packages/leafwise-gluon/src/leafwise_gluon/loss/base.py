"""`mxnet.gluon.loss.Loss`: the base class of losses."""

from typing import Any

import torch

from leafwise_gluon import dialect
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.modes import is_np_shape
from leafwise_gluon.ops import reductions


class Loss(HybridBlock):
    """The base class of losses. Users' own implement `forward`, or `hybrid_forward` in MXNet 1.x.

    The losses here implement `compute` over tensors, with the arguments of MXNet's `forward`.
    """

    def __init__(self, weight: float | None, batch_axis: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._weight = weight
        self._batch_axis = batch_axis
        self.has_np_arrays = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_axis={self._batch_axis}, w={self._weight})"

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        if dialect.is_v1() and self._batch_axis != 0 and any(isinstance(value, ndarray) for value in args):
            raise refusal(
                f"{type(self).__name__} with a batch_axis for arrays of np in MXNet 1.x, which ignores it",
                "transpose the arrays, so that the first axis is the batch",
            )
        self.__dict__["has_np_arrays"] = bool(args) and isinstance(args[0], ndarray)
        tensors = [plain(value) for value in args]
        result = self.compute(*tensors, **{name: plain(value) for name, value in kwargs.items()})
        if isinstance(args[0], ArrayValues) and not result.dim() and not is_np_shape():
            result = result.reshape(1)
        return wrap_like(args[0], result)

    def infer_shape(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: a loss has no parameters."""

    def compute(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The loss of each example, as a tensor."""
        raise NotImplementedError

    def weighted(self, loss: torch.Tensor, sample_weight: Any = None, scale: float | None = None) -> torch.Tensor:
        """The loss times `sample_weight` and times the weight of the Loss, or `scale` times it."""
        if sample_weight is not None:
            loss = loss * sample_weight
        weight: Any = self._weight if scale is None else self._weight * scale  # type: ignore[operator]
        if weight is None:
            return loss
        assert isinstance(weight, int | float), "weight must be a number"
        return loss * weight

    def mean_of_examples(self, loss: torch.Tensor) -> torch.Tensor:
        """The mean over every axis but the batch axis. Of arrays of np, it is float32 where `np.mean` is."""
        axes = self._other_axes(loss)
        if self.has_np_arrays:
            return reductions.mean(loss, tuple(axes), None, keepdims=False)
        return loss.mean(dim=axes) if axes else loss

    def sum_of_examples(self, loss: torch.Tensor) -> torch.Tensor:
        """The sum over every axis but the batch axis."""
        axes = self._other_axes(loss)
        return loss.sum(dim=axes) if axes else loss

    def _other_axes(self, loss: torch.Tensor) -> list[int]:
        axes = list(range(loss.dim()))
        del axes[self._batch_axis]
        return axes


def reshaped_like(label: torch.Tensor, pred: torch.Tensor) -> torch.Tensor:
    """A label in the shape of the prediction; both need the same number of elements."""
    if label.numel() != pred.numel():
        raise MXNetError(
            f"cannot reshape a label of shape {tuple(label.shape)} to the shape {tuple(pred.shape)} of the prediction"
        )
    return label.reshape(pred.shape)
