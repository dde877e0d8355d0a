"""Conversion between NumPy's dtypes, which MXNet uses, and PyTorch's."""

from typing import Any

import numpy
import torch

from leafwise.core.dtypes import DTYPES
from leafwise_gluon.base import MXNetError


def numpy_dtype(dtype: torch.dtype) -> Any:
    name = dtype_name(dtype)
    known = DTYPES.get(name)
    if known is not None and not known.is_native:
        import ml_dtypes

        return numpy.dtype(getattr(ml_dtypes, name))
    return numpy.dtype(name)


def dtype_name(dtype: torch.dtype) -> str:
    """The name that MXNet uses in messages: float32, not torch.float32."""
    return str(dtype).removeprefix("torch.")


def torch_dtype(dtype: Any) -> torch.dtype:
    """The torch.dtype for a name, a NumPy type or a torch.dtype; float32 for None."""
    if dtype is None:
        return torch.float32
    if isinstance(dtype, torch.dtype):
        return dtype
    name = dtype if isinstance(dtype, str) else numpy.dtype(dtype).name
    torch_type = getattr(torch, name, None)
    if not isinstance(torch_type, torch.dtype):
        raise MXNetError(f"unknown dtype {dtype!r}")
    return torch_type


def check_finite(name: str, values: Any, target: torch.dtype) -> None:
    """Raises if numbers that are to become integers are NaN or infinite."""
    if not target.is_floating_point and target != torch.bool and not numpy.isfinite(values).all():
        raise TypeError(f"{name}: cannot convert NaN or infinity to {dtype_name(target)}")


def asked(dtype: Any) -> torch.dtype | None:
    return None if dtype is None else torch_dtype(dtype)
