"""Roles and axes in the variable dicts of Flax Linen, which have no layers, only names that Linen gives to leaves."""

from collections.abc import Callable, Mapping
from typing import Any

from leafwise.core.home import Axes
from leafwise.core.roles.layer_parts import role_by_structure
from leafwise.homes.jax.roles import role_in_state

_SPACE = ("d", "h", "w")
_FEW = 64  # attention and recurrent cells have fewer layers inside them


def role_in_container(
    owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
) -> tuple[str | None, Axes]:
    """The role and the axes of an array in a dict, if its name is one that the layers of Linen use, or in a tuple of
    the state of an Equinox model."""
    above = lineage()
    ndim = len(value.shape)
    if not isinstance(owner, Mapping):
        return role_in_state(above, name, ndim) if isinstance(owner, tuple) and len(above) > 1 else (None, None)
    if len(above) > 1 and isinstance(above[1], Mapping) and len(above[1]) <= _FEW:
        child = next((str(key) for key, layer in above[1].items() if layer is owner), "")
        known = role_by_structure(map(str, above[1]), child, name, ndim)
        if known[0] is not None:
            return known
    if name == "kernel" and ndim == 2:
        return "linear.weight", ("in", "out")
    if name == "negative_slope" and ndim == 0:
        return "activation.slope", ()
    if name == "kernel" and 3 <= ndim <= 5 and _is_convolution(owner, value):
        return "conv.weight", (*_SPACE[5 - ndim :], "in", "out")
    if name == "embedding" and ndim == 2:
        return "embedding.table", ("vocab", "features")
    if ndim == 1:
        return _role_of_vector(owner, name)
    return (_role_of_stack(owner, name, ndim) if ndim > 1 else None), None


def _role_of_stack(owner: Mapping[str, Any], name: str, ndim: int) -> str | None:
    """The role of a bias or a scale with several axes: those of layers that `nn.scan` or `nn.vmap` stacked, of a linear
    layer over several axes, or of a norm over several. Which of these it is, and so what its axes are, is not known."""
    kernel = owner.get("kernel")
    if name == "bias" and kernel is not None:
        return "bias" if len(getattr(kernel, "shape", ())) > ndim else None
    if "scale" in owner and owner.keys() <= {"scale", "bias"}:
        return {"scale": "norm.scale", "bias": "norm.bias"}[name]
    return None


def _is_convolution(owner: Mapping[str, Any], kernel: Any) -> bool:
    """Whether a kernel is that of a convolution, whose bias has one number for each filter. The layers of attention
    have kernels of three axes, too, and biases of two, or none."""
    bias = owner.get("bias")
    if bias is None:
        return len(kernel.shape) > 3
    return tuple(bias.shape) == tuple(kernel.shape[-1:])


def _role_of_vector(owner: Mapping[str, Any], name: str) -> tuple[str | None, Axes]:
    if name == "scale":
        return "norm.scale", ("features",)
    if name == "bias" and "kernel" in owner:
        return "bias", ("out",)
    if name == "bias" and ("scale" in owner or len(owner) == 1):  # other dicts are not those of a layer of Linen
        return "norm.bias", ("features",)
    statistics = {"mean": "norm.mean", "var": "norm.variance"}
    if name in statistics and statistics.keys() <= owner.keys():
        return statistics[name], ("features",)
    return None, None
