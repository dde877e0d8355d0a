"""Functions that MXNet keeps private and that users' own losses import all the same."""

from typing import Any

from leafwise_gluon.base_types import numeric_types


def apply_weighting(loss: Any, weight: Any = None, sample_weight: Any = None) -> Any:
    """The loss times the weight of each example and times one number for all of them: `_apply_weighting` of 2.x."""
    if sample_weight is not None:
        loss = loss * sample_weight
    if weight is not None:
        assert isinstance(weight, numeric_types), "weight must be a number"
        loss = loss * weight
    return loss


def apply_weighting_with(operations: Any, loss: Any, weight: Any = None, sample_weight: Any = None) -> Any:
    """`_apply_weighting` of 1.x, whose first argument is the module of operations."""
    return apply_weighting(loss, weight, sample_weight)


def reshape_like(operations: Any, x: Any, y: Any) -> Any:
    """`x` in the shape of `y`: `_reshape_like` of 1.x."""
    return x.reshape(y.shape)


def batch_mean(loss: Any, batch_axis: int) -> Any:
    """The mean over every axis but the batch axis: `_batch_mean` of 2.x."""
    return loss.mean(axis=_other_axes(loss, batch_axis))


def batch_sum(loss: Any, batch_axis: int) -> Any:
    """The sum over every axis but the batch axis: `_batch_sum` of 2.x."""
    return loss.sum(axis=_other_axes(loss, batch_axis))


def _other_axes(loss: Any, batch_axis: int) -> tuple[int, ...]:
    axes = list(range(loss.ndim))
    del axes[batch_axis]
    return tuple(axes)
