"""Padding, over plain tensors."""

from typing import Any

import numpy
import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1

_BY_NUMPY = ("edge", "reflect", "symmetric", "maximum", "minimum")


def padded(tensor: torch.Tensor, pad_width: Any, mode: str, **options: Any) -> torch.Tensor:
    """The array with elements added at its edges. Each new element is a copy of one of the old ones, or a constant."""
    if isinstance(pad_width, int):
        raise TypeError("np.pad needs a tuple as pad_width, such as ((1, 1), (2, 2)), not one integer")
    if mode not in ("constant", *_BY_NUMPY):
        raise ValueError(f"the Gluon front end does not support np.pad with mode {mode!r}; use 'constant' or 'edge'")
    allowed = {"constant": {"constant_values"}, "reflect": {"reflect_type"}, "symmetric": {"reflect_type"}}
    unknown = set(options) - allowed.get(mode, set())
    if unknown:
        raise ValueError(f"unsupported keyword arguments for mode {mode!r}: {', '.join(sorted(unknown))}")
    if options.get("reflect_type", "even") != "even":
        raise refusal("np.pad with reflect_type='odd'", "leave it out")
    value = options.get("constant_values", 0)
    if not isinstance(value, int | float):
        raise TypeError("np.pad: constant_values must be one number")
    if value and is_v1():
        raise refusal("np.pad with constant_values, which MXNet 1.x ignores", "add the value afterwards")
    # NumPy's padding, applied to positions, says which element goes where; -1 stands for the constant.
    positions = numpy.arange(tensor.numel()).reshape(tuple(tensor.shape))
    if mode in ("maximum", "minimum"):
        return _with_extremes(tensor, pad_width, mode)
    pad: Any = numpy.pad
    keywords = {"constant_values": -1} if mode == "constant" else {}
    at = torch.from_numpy(pad(positions, pad_width, mode=mode, **keywords)).to(tensor.device)
    if not tensor.numel():
        raise MXNetError("np.pad is not defined for an empty array")
    taken = tensor.reshape(-1)[at.clamp(min=0)]
    return taken.masked_fill(at < 0, value) if mode == "constant" else taken


def _with_extremes(tensor: torch.Tensor, pad_width: Any, mode: str) -> torch.Tensor:
    if tensor.requires_grad:
        raise refusal(f"the gradient of np.pad with mode {mode!r}", "use x.detach() if you need no gradient")
    return torch.from_numpy(numpy.pad(tensor.cpu().numpy(), pad_width, mode=mode)).to(tensor.device)  # type: ignore[call-overload]
