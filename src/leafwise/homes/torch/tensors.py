"""Converting tensors to NumPy arrays, and NumPy arrays to tensors."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from leafwise.core.dtypes import DTYPES
from leafwise.errors import Unsupported, WriteError
from leafwise.homes.torch.checkpoints.unsupported_tensors import not_understood
from leafwise.homes.torch.gpu.launching import check_not_capturing
from leafwise.homes.torch.values.tensor_values import WORDS

K = TypeVar("K")


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """The plain name of a dtype."""
    return str(dtype).removeprefix("torch.")


def is_lazy(value: torch.Tensor) -> bool:
    # Called for every leaf in a picture; almost all of them are plain parameters or tensors.
    plain = (nn.Parameter, torch.Tensor)
    return type(value) not in plain and isinstance(value, UninitializedParameter | UninitializedBuffer)


def holds_nothing(value: torch.Tensor) -> str:
    """Why a tensor has no values to read or to replace; empty if it has."""
    if is_lazy(value):
        return "a lazy layer gets its shape in the first forward; run one first"
    return "a meta tensor has a shape but no values; load or initialize the model first" if value.is_meta else ""


def cannot_read(value: torch.Tensor) -> str:
    """Why the values of a tensor cannot be read from its bytes; empty if they can."""
    if reason := not_understood(value) or holds_nothing(value):
        return reason
    if value.is_quantized:
        return "it is quantized: its values cannot be read without their scales, which are not in the tree"
    if value.layout != torch.strided or value.is_nested:
        return "a nested or sparse tensor has no plain memory; convert it to a dense tensor first"
    return ""


def as_numpy(value: torch.Tensor) -> Any:
    """A tensor as a NumPy array, over the same memory where possible."""
    if reason := not_understood(value) or holds_nothing(value):
        raise Unsupported("torch", "convert to a NumPy array", reason)
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        kind = "nested" if value.is_nested else "quantized" if value.is_quantized else str(value.layout)
        raise Unsupported("torch", f"convert a {kind} tensor to a NumPy array")
    if value.is_cuda:
        check_not_capturing("read values")
    plain = value.detach().cpu().resolve_conj().resolve_neg()
    if plain.dtype in _BY_BITS:
        import ml_dtypes

        return plain.view(_BY_BITS[plain.dtype]).numpy().view(getattr(ml_dtypes, dtype_name(plain.dtype)))
    try:
        return plain.numpy()
    except (TypeError, RuntimeError) as error:
        raise Unsupported("torch", "convert to a NumPy array", str(error)) from error


def is_elsewhere(value: torch.Tensor) -> bool:
    """Whether reading copies the values to the CPU. If not, a part is read as a view of the whole."""
    return value.device.type not in ("cpu", "meta")


def has_no_memory(value: torch.Tensor) -> str:
    """Why the memory at the address of a tensor cannot be read; empty if it can."""
    if not value.numel() or value.device.type not in ("cpu", "cuda"):  # addresses on other devices cannot be used here
        return ""
    try:
        last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
        end = (value.storage_offset() + last + 1) * value.element_size()
        if value.data_ptr() and value.untyped_storage().nbytes() >= end:
            return ""
    except (RuntimeError, NotImplementedError):  # raised by tensors that only represent other tensors
        pass
    return "it has no memory of its own: it is fake, wraps another tensor, or its memory was freed"


def blocks(tensor: torch.Tensor, itemsize: int, most: int, at: int = 0) -> Iterator[tuple[int, torch.Tensor]]:
    """The parts of a tensor in C order, cut along its first axes until each has at most `most` bytes, with the first
    byte of each. `itemsize` is the size of an element where these bytes are counted."""
    if not tensor.dim() or tensor.numel() * itemsize <= most:
        yield at, tensor
        return
    row = itemsize * (tensor.numel() // len(tensor))
    if row <= most:
        for start in range(0, len(tensor), most // row):
            yield at + start * row, tensor[start : start + most // row]
    else:
        for number, part in enumerate(tensor):
            yield from blocks(part, itemsize, most, at + number * row)


def is_expanded(value: torch.Tensor) -> bool:
    """Whether several elements of a tensor share memory."""
    strides = value.stride()
    return not all(strides) and any(size > 1 and not step for size, step in zip(value.shape, strides, strict=True))


def positions_by_key(keys: Iterable[K]) -> dict[K, list[int]]:
    """The positions of each key.

    >>> positions_by_key("abca")
    {'a': [0, 3], 'b': [1], 'c': [2]}
    """
    positions: dict[K, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return positions


def tensor_over(array: Any) -> torch.Tensor:
    """A NumPy array as a tensor over the same memory; bfloat16 and the float8 kinds by their bits."""
    dtype = array.dtype
    if dtype.type.__module__ == "ml_dtypes":
        words = {1: "uint8", 2: "int16"}[dtype.itemsize]
        bits: torch.Tensor = torch.from_numpy(array.view(words))
        return bits.view(getattr(torch, dtype.name))
    return torch.from_numpy(array)


# Dtypes that NumPy has through ml_dtypes (bfloat16 and the float8 kinds), and integers with as many bits.
_BY_BITS = {
    getattr(torch, name): WORDS[dtype.itemsize]
    for name, dtype in DTYPES.items()
    if dtype.is_stored and not dtype.is_native and hasattr(torch, name)
}


def tensor_to_write(array: Any, like: torch.Tensor) -> torch.Tensor:
    """The values to write, as a tensor. Python numbers are cast to the dtype of `like`; an array keeps its dtype."""
    if isinstance(array, torch.Tensor):
        return array
    dtype = getattr(array, "dtype", None)
    try:
        if dtype is None:
            return _without_loss(_wide(array), like)
        import numpy as np

        source = np.asarray(array)
        # Tensors support neither read-only memory nor negative strides.
        return tensor_over(source if source.flags.writeable and source.flags.c_contiguous else np.array(source))
    except WriteError:
        raise
    except (TypeError, ValueError, RuntimeError, KeyError, AttributeError) as error:
        reason = str(error).rstrip(".")
        raise WriteError(f"cannot write {type(array).__name__}: {reason}") from error


def _wide(numbers: Any) -> torch.Tensor:
    """Python numbers as a tensor in full precision; PyTorch's default for fractions is float32."""
    tensor = torch.as_tensor(numbers)
    if tensor.is_complex() or tensor.is_floating_point():
        return torch.as_tensor(numbers, dtype=torch.complex128 if tensor.is_complex() else torch.float64)
    return tensor


def _without_loss(numbers: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Python numbers in the dtype of the leaf: rounded to its precision, but never cast to another kind of number."""
    cast = numbers.to(like.dtype)
    exact = numbers.is_floating_point() or numbers.is_complex() or torch.equal(cast.to(numbers.dtype), numbers)
    if not (numbers.numel() == 0 or (torch.can_cast(numbers.dtype, like.dtype) and exact)):
        raise WriteError(f"cannot write {dtype_name(numbers.dtype)} values into {dtype_name(like.dtype)} without loss")
    if like.is_floating_point() or like.is_complex():
        from leafwise.kernels.casting import cast_numbers

        cast = tensor_over(cast_numbers(numbers.numpy(), dtype_name(like.dtype)))
    return cast.to(like.device)
