"""Tensors as NumPy arrays, and NumPy arrays into tensors."""

from functools import cache
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from leafwise.core.dtypes import DTYPES
from leafwise.errors import Unsupported, WriteError
from leafwise.homes.torch.foreign import not_understood


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """The plain name of a dtype."""
    return str(dtype).removeprefix("torch.")


def is_lazy(value: torch.Tensor) -> bool:
    # Asked for every leaf that is drawn, and almost all of them are plain parameters.
    return type(value) is not nn.Parameter and isinstance(value, UninitializedParameter | UninitializedBuffer)


def holds_nothing(value: torch.Tensor) -> str:
    """Why there are no values to read or to replace; empty where there are."""
    if is_lazy(value):
        return "a lazy layer gets its shape at the first forward"
    return "a meta tensor has a shape and no values; materialise the model first" if value.is_meta else ""


def cannot_read(value: torch.Tensor) -> str:
    """Why the bytes of a tensor are not all there is to it; empty where they are."""
    if reason := not_understood(value) or holds_nothing(value):
        return reason
    if value.is_quantized:
        return "it is quantised: its values mean nothing without their scales, which are not in the tree"
    if value.layout != torch.strided or value.is_nested:
        return "a nested or sparse tensor has no plain memory; make it dense first"
    return ""


def as_numpy(value: torch.Tensor) -> Any:
    """A tensor as a NumPy array: over the same memory where it can be."""
    if reason := not_understood(value) or holds_nothing(value):
        raise Unsupported("torch", "give a NumPy array", reason)
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else str(value.layout)
        raise Unsupported("torch", "give a NumPy array", f"of a {kind} tensor")
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype in _BY_BITS:
        return _numpy_by_bits(plain)
    try:
        return plain.numpy()
    except (TypeError, RuntimeError) as error:
        raise Unsupported("torch", "give a NumPy array", str(error)) from error


def is_elsewhere(value: torch.Tensor) -> bool:
    """Whether reading copies values to this machine; where it does not, a part is a view of the whole."""
    return value.device.type not in ("cpu", "meta")


def read(value: torch.Tensor, index: Any) -> Any:
    """A part of a tensor as a NumPy array; of what is elsewhere only that is copied, where PyTorch has the index."""
    parts = index if isinstance(index, tuple) else (index,)
    has_index = all(isinstance(part, slice) and (part.step or 1) > 0 for part in parts)
    if parts and has_index and is_elsewhere(value) and not cannot_read(value):
        return as_numpy(value.detach()[parts])
    return as_numpy(value)[index] if parts else as_numpy(value)


def has_no_memory(value: torch.Tensor) -> str:
    """Why there is nothing to look at where a tensor says it lies; empty where there is."""
    if not value.numel() or value.device.type not in ("cpu", "cuda"):  # others have addresses that say nothing
        return ""
    try:
        last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        end = (value.storage_offset() + last + 1) * value.element_size()
        if value.data_ptr() and value.untyped_storage().nbytes() >= end:
            return ""
    except (RuntimeError, NotImplementedError):  # as those say that only stand for others
        pass
    return "it has no memory of its own now: it is fake, wraps another tensor, or was set free"


def write(value: torch.Tensor, array: Any) -> None:
    """Writes values into a tensor: all of it, and nothing that would be lost."""
    if reason := holds_nothing(value):
        raise WriteError(f"cannot write: {reason}")
    given = _tensor_of(array, value)
    # By name and by plain tuple, because a subclass may have its own manners about both.
    theirs, ours = [(dtype_name(t.dtype), tuple(t.shape)) for t in (given, value)]
    if theirs != ours:
        raise WriteError(f"cannot write {theirs[0]} of shape {theirs[1]} into {ours[0]} of shape {ours[1]}")
    try:
        with torch.no_grad():
            value.copy_(given)
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        raise WriteError(f"cannot write: {error}") from error


def tensor_over(array: Any) -> torch.Tensor:
    """A NumPy array as a tensor over the same memory; bfloat16 and the float8 kinds by their bits."""
    dtype = array.dtype
    if dtype.type.__module__ == "ml_dtypes":
        words = {1: "uint8", 2: "int16"}[dtype.itemsize]
        bits: torch.Tensor = torch.from_numpy(array.view(words))
        return bits.view(getattr(torch, dtype.name))
    return torch.from_numpy(array)


# What NumPy knows through ml_dtypes, and the words that have as many bits.
_BY_BITS = {
    getattr(torch, name): {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    for name, dtype in DTYPES.items()
    if dtype.is_stored and not dtype.is_native and hasattr(torch, name)
}


def _numpy_by_bits(plain: torch.Tensor) -> Any:
    """bfloat16 and the float8 kinds."""
    import ml_dtypes

    return plain.view(_BY_BITS[plain.dtype]).numpy().view(getattr(ml_dtypes, dtype_name(plain.dtype)))


def _tensor_of(array: Any, like: torch.Tensor) -> torch.Tensor:
    """What is to be written, as a tensor. Only what has no dtype of its own takes that of the leaf."""
    if isinstance(array, torch.Tensor):
        return array
    dtype = getattr(array, "dtype", None)
    try:
        if dtype is None:
            return _without_loss(_wide(array), like)
        import numpy as np

        given = np.asarray(array)
        # Tensors do not know read-only memory, nor strides that run backwards.
        return tensor_over(given if given.flags.writeable and given.flags.c_contiguous else np.array(given))
    except WriteError:
        raise
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        raise WriteError(f"cannot write {type(array).__name__}: {error}") from error


def _wide(numbers: Any) -> torch.Tensor:
    """Python numbers as a tensor that holds all of each: by itself PyTorch would take float32 for a fraction."""
    given = torch.as_tensor(numbers)
    if given.is_complex() or given.is_floating_point():
        return torch.as_tensor(numbers, dtype=torch.complex128 if given.is_complex() else torch.float64)
    return given


def _without_loss(given: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Python numbers in the dtype of the leaf: rounded to its precision, but never to another kind of number."""
    cast = given.to(like.dtype)
    exact = given.is_floating_point() or given.is_complex() or torch.equal(cast.to(given.dtype), given)
    if not (given.numel() == 0 or (torch.can_cast(given.dtype, like.dtype) and exact)):
        raise WriteError(f"cannot write {dtype_name(given.dtype)} values into {dtype_name(like.dtype)} without loss")
    if like.is_floating_point() or like.is_complex():
        from leafwise.kernels.casting import cast_numbers

        cast = tensor_over(cast_numbers(given.numpy(), dtype_name(like.dtype)))
    return cast.to(like.device)
