"""The codes of `npx.reshape`."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from leafwise_gluon.base import MXNetError


def reshaped(data: torch.Tensor, newshape: Any, reverse: bool = False, order: str = "C") -> torch.Tensor:
    """`npx.reshape`: sizes, and the codes -1 (infer), -2 (copy this axis), -3 (drop an axis of size 1), -4 (copy all
    remaining axes), -5 (merge two axes) and -6 (split an axis into the two sizes that follow)."""
    if order != "C":
        raise MXNetError(f"npx.reshape: only order 'C' is supported, not {order!r}")
    codes = [newshape] if isinstance(newshape, int) else [int(code) for code in newshape]
    sizes = list(data.shape)
    # With `reverse`, the codes are read from the right.
    target = _decoded(codes[::-1], sizes[::-1])[::-1] if reverse else _decoded(codes, sizes)
    known = math.prod(size for size in target if size != -1)
    if -1 in target:
        if target.count(-1) > 1 or not known or data.numel() % known:
            raise MXNetError(f"npx.reshape: cannot reshape {tuple(data.shape)} to {tuple(codes)}")
        target[target.index(-1)] = data.numel() // known
    if math.prod(target) != data.numel():
        raise MXNetError(f"npx.reshape: cannot reshape {tuple(data.shape)} to {tuple(codes)}")
    return data.reshape(target).clone()


def _decoded(codes: Sequence[int], sizes: Sequence[int]) -> list[int]:
    """The sizes that the codes stand for; -1 stays, for the size that is inferred."""
    coming, left = list(codes), list(sizes)
    target: list[int] = []
    while coming:
        target += _next_sizes(coming, left)
    return target


def _next_sizes(coming: list[int], left: list[int]) -> list[int]:
    """The sizes for the next code, which is taken from `coming`, as the axes that it stands for are from `left`."""
    code = coming.pop(0)
    if code >= -1:
        del left[:1]
        return [code]
    if code == -4:
        rest = left.copy()
        left.clear()
        return rest
    if code < -6 or len(left) < (2 if code == -5 else 1):
        raise MXNetError(f"npx.reshape: there is no axis for the code {code}")
    size = left.pop(0)
    if code == -5:
        return [size * left.pop(0)]
    if code == -6:
        return _split(size, coming.pop(0), coming.pop(0))
    if code == -3 and size != 1:
        raise MXNetError(f"npx.reshape: -3 drops an axis of size 1, not of size {size}")
    return [] if code == -3 else [size]


def _split(size: int, first: int, second: int) -> list[int]:
    first = size // second if first == -1 else first
    second = size // first if second == -1 else second
    if first * second != size:
        raise MXNetError(f"npx.reshape: cannot split an axis of size {size} into {first} and {second}")
    return [first, second]
