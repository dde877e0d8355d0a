"""Checks and conversions that operations share."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from leafwise_gluon.arrays.dtypes import dtype_name
from leafwise_gluon.base import MXNetError, refusal


def spatial(value: Any, dimensions: int, default: int) -> tuple[int, ...]:
    """An argument such as `stride` as one number per spatial dimension."""
    if value is None or (isinstance(value, tuple | list) and not value):
        return (default,) * dimensions
    sizes = (value,) * dimensions if isinstance(value, int) else tuple(int(size) for size in value)
    if len(sizes) != dimensions:
        raise MXNetError(f"expected one number for each of {dimensions} spatial dimensions, not {value!r}")
    return sizes


def check_shape(name: str, what: str, provided: Iterable[int], inferred: Iterable[int]) -> None:
    """Raises MXNet's error if a parameter does not have the shape that the other arguments require."""
    given, needed = tuple(provided), tuple(inferred)
    if given != needed:
        text = ",".join(map(str, given))
        raise MXNetError(
            f"Shape inconsistent, Provided = [{text}], inferred shape=({','.join(map(str, needed))}): {name} needs "
            f"{what} of shape {needed}, not {given}"
        )


def check_dtype(name: str, data: torch.Tensor, *others: torch.Tensor | None) -> None:
    """Raises if a parameter has another dtype than the data, because MXNet does not convert."""
    for other in others:
        if other is not None and other.dtype != data.dtype:
            raise MXNetError(
                f"{name}: Incompatible attr: expected {dtype_name(data.dtype)}, got {dtype_name(other.dtype)}; "
                "use .astype() or net.cast()"
            )


def check_count(name: str, argument: str, given: int | None, arrays: Sequence[Any]) -> None:
    """Raises if the number of arrays is given, and is another one. MXNet counts them itself if it is not given."""
    if given is not None and given != len(arrays):
        raise MXNetError(f"{name}: {argument}={given}, but there are {len(arrays)} arrays; leave it out")


def floating(name: str, data: torch.Tensor) -> torch.Tensor:
    if not data.dtype.is_floating_point:
        raise refusal(f"{name} of {dtype_name(data.dtype)}", "use .astype('float32') first")
    return data


def one_of(name: str, argument: str, value: Any, choices: Iterable[str]) -> None:
    options = sorted(choices)
    if value not in options:
        raise MXNetError(f"Invalid Input: {value!r}, valid values are: {options}, in argument {argument} of {name}")


def axis_of(name: str, axis: Any, ndim: int) -> int:
    """An axis as a number from 0."""
    if isinstance(axis, bool) or not isinstance(axis, int) or not -ndim <= axis < ndim:
        raise MXNetError(f"{name}: axis {axis} is out of bounds for array of dimension {ndim}")
    return axis % ndim
