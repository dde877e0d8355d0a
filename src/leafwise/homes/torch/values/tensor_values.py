"""Values of tied tensors: viewed through an op, compared bit by bit, and chosen if names differ."""

from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.tying import Keep
from leafwise.core.memory.ops import Op
from leafwise.homes.torch.gpu.launching import check_not_capturing

# The dtypes of integers by their size in bytes, for the bits of elements of other dtypes.
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def seen_through(tensor: torch.Tensor, op: Op) -> torch.Tensor:
    """The view of a tensor under a name with this op."""
    return seen(tensor, op.slices, op.order)


def seen(tensor: torch.Tensor, slices: Any, order: tuple[int, ...] | None) -> torch.Tensor:
    """`seen_through` with the parts of an op, which torch.compile can trace."""
    if slices is not None:
        tensor = tensor[slices]
    return tensor if order is None else tensor.permute(order)


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors of one shape and dtype have the same bits; NaN equals the same NaN."""
    a, b = a.detach(), b.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a is b or (a.is_meta and b.is_meta):
        return True
    if a.is_meta or b.is_meta:
        return False
    if a.is_cuda or b.is_cuda:
        check_not_capturing("compare values")
    if a.layout != torch.strided or type(a) not in (torch.Tensor, nn.Parameter):
        return bool(torch.equal(a, b.to(a.device)))
    is_marked = any(tensor.is_conj() or tensor.is_neg() for tensor in (a, b))
    if a.data_ptr() == b.data_ptr() and a.stride() == b.stride() and a.device == b.device and not is_marked:
        return True
    return bool(torch.equal(words_of(a), words_of(b.to(a.device))))


def same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of the same memory; on meta, where there is none, whether they look
    so."""
    if (a.shape, a.dtype, a.device) != (b.shape, b.dtype, b.device):
        return False
    return a.is_meta or (a.data_ptr() == b.data_ptr() and a.stride() == b.stride())


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of the elements of a tensor as integers; a complex element is two, along an axis of its own."""
    plain = tensor.resolve_conj().resolve_neg()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    if plain.dtype == torch.bool:
        return plain.to(torch.uint8)
    return plain.view(WORDS[plain.element_size()])


def choose(source: torch.Tensor, targets: list[tuple[torch.Tensor, Op]], keep: Keep | None) -> torch.Tensor:
    """The values that `keep` chooses for the source: a new tensor, or the source itself."""
    with torch.no_grad():
        if keep == "target":
            chosen = source.detach().clone()
            for target, op in targets:
                seen_through(chosen, op).copy_(target)
            return chosen
        if keep == "mean":
            total = source.detach().to(torch.float64, copy=True)
            count = torch.ones_like(total)
            for target, op in targets:
                seen_through(total, op).add_(target.detach())
                seen_through(count, op).add_(1)
            return (total / count).to(source.dtype)
    return source
