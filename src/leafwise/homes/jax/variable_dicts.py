"""Roles and axes in the variable dicts of Flax Linen, which have no layers, only names that Linen gives to leaves."""

from collections.abc import Mapping
from typing import Any

from leafwise.core.home import Axes

_SPACE = ("d", "h", "w")


def role_in_dict(owner: Any, name: str, value: Any) -> tuple[str | None, Axes]:
    """The role and the axes of an array in a dict, if its name is one that the layers of Linen use."""
    if not isinstance(owner, Mapping):
        return None, None
    ndim = len(value.shape)
    if name == "kernel" and ndim == 2:
        return "linear.weight", ("in", "out")
    if name == "kernel" and 3 <= ndim <= 5 and _is_convolution(owner, value):
        return "conv.weight", (*_SPACE[5 - ndim :], "in", "out")
    if name == "embedding" and ndim == 2:
        return "embedding.table", ("vocab", "features")
    if ndim == 1:
        return _role_of_vector(owner, name)
    return None, None


def _is_convolution(owner: Mapping[str, Any], kernel: Any) -> bool:
    """Whether a kernel is that of a convolution, whose bias has one number for each filter; the layers of attention
    have kernels of three axes, too, and biases of two."""
    bias = owner.get("bias")
    return bias is not None and tuple(bias.shape) == tuple(kernel.shape[-1:])


def _role_of_vector(owner: Mapping[str, Any], name: str) -> tuple[str | None, Axes]:
    if name == "scale":
        return "norm.scale", ("features",)
    if name == "bias":
        return ("bias", ("out",)) if "kernel" in owner else ("norm.bias", ("features",))
    statistics = {"mean": "norm.mean", "var": "norm.variance"}
    if name in statistics and statistics.keys() <= owner.keys():
        return statistics[name], ("features",)
    return None, None
