"""Arrays that behave like MXNet's `nd.NDArray`, the arrays of MXNet 1.x, which 2.x has, too."""

from abc import ABCMeta

import torch

from leafwise.gluon.arrays.differentiable import DifferentiableArray
from leafwise.gluon.arrays.ndarray import ndarray
from leafwise.gluon.arrays.values import wrapped
from leafwise.gluon.context import Context


class NDArray(DifferentiableArray, metaclass=ABCMeta):
    """An array like `mxnet.nd.NDArray`. `tensor` is the underlying `torch.Tensor`."""

    __slots__ = ()


NDArray.register(ndarray)  # as in MXNet, an np.ndarray is an NDArray; but it does not inherit its methods


def wrap_legacy(tensor: torch.Tensor, ctx: Context | None = None) -> NDArray:
    """The same tensor as an NDArray, in the same graph."""
    return wrapped(NDArray, tensor, ctx)  # type: ignore[no-any-return]
