"""Bytes of tensors, out and in: what saving reads and loading fills."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from leafwise.errors import Unsupported
from leafwise.homes.torch_foreign import cannot_be_changed, not_understood
from leafwise.homes.torch_keepers import bonds_at

_PIECE = 8 << 20  # how many bytes are copied at a time where memory cannot be read as it lies


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


def cannot_write(value: torch.Tensor) -> str:
    """Why values cannot be written into a tensor; empty where they can."""
    if reason := not_understood(value) or cannot_be_changed(value):
        return reason
    if value.is_inference() and not torch.is_inference_mode_enabled():
        return "it was made in inference mode, outside of which it cannot be written; load inside of it"
    if value.layout != torch.strided or value.is_nested or value.is_quantized:
        return "it is sparse, nested or quantised, and values cannot be written into it"
    if any(size > 1 and not stride for size, stride in zip(value.shape, value.stride(), strict=True)):
        return "it is expanded: several of its elements lie in one place; give it memory of its own with .contiguous()"
    return ""


def buffer(value: torch.Tensor) -> memoryview | None:
    """The memory of a tensor as writable bytes in C order; None where it lies otherwise, or elsewhere."""
    if cannot_read(value) or value.device.type != "cpu" or not value.is_contiguous():
        return None
    plain = value.detach()
    if plain.is_conj() or plain.is_neg():
        return None
    if not plain.numel():
        return memoryview(bytearray())
    # By its strides: a tensor of one element may have any.
    flat = plain.as_strided((plain.numel(),), (1,))
    return flat.view(torch.uint8).numpy().data


def axis_order(value: torch.Tensor) -> tuple[int, ...] | None:
    """The order of axes in which a tensor lies densely; None where that is C order, or none."""
    if cannot_read(value) or value.is_contiguous():
        return None
    strides = value.stride()
    order = tuple(sorted(range(value.dim()), key=lambda axis: -strides[axis]))
    return order if value.permute(order).is_contiguous() else None


def pieces(value: torch.Tensor) -> Iterator[memoryview]:
    """The values as bytes in C order; as they lie where that is possible, else copied piece by piece."""
    if reason := cannot_read(value):
        raise Unsupported("torch", "be saved", reason)
    whole = buffer(value)
    if whole is not None:
        yield whole
        return
    # One room for all pieces: whoever takes one is done with it before the next.
    room = torch.empty(_PIECE // value.element_size(), dtype=value.dtype)
    for part in _parts(value.detach()):
        copied = room[: part.numel()].view(part.shape).copy_(part)
        found = buffer(copied)
        assert found is not None
        yield found


def _parts(value: torch.Tensor) -> Iterator[torch.Tensor]:
    """A tensor in C order, cut along its first axes until each part is small."""
    nbytes = value.numel() * value.element_size()
    if nbytes <= _PIECE or not value.dim():
        yield value
        return
    rows = max(1, _PIECE * value.shape[0] // nbytes)
    for start in range(0, value.shape[0], rows):
        part = value[start : start + rows]
        yield from _parts(part[0]) if rows == 1 else (part,)


def snapshot(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies in the memory of this machine."""
    for value in values:
        if reason := cannot_read(value):
            raise Unsupported("torch", "be saved", reason)
    with torch.no_grad():
        return [value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for value in values]


def blank(value: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor with memory, in place of one that has none; on the device that PyTorch would choose now."""
    if reason := not_understood(value):
        raise Unsupported("torch", "be given memory", reason)
    made = torch.empty(shape, dtype=value.dtype)
    if isinstance(value, nn.Parameter):
        made = nn.Parameter(made, requires_grad=value.requires_grad)
        made.__dict__.update(value.__dict__)  # what others wrote down about it
    return made


def put(owner: nn.Module, name: str, new: torch.Tensor) -> None:
    """Lets a tensor take the place of one that had no memory, with everybody who is kept tied to it."""
    held: Any = owner._parameters.get(name)
    if held is None:
        held = owner._buffers.get(name)
    if held is new:
        return
    if held is not None and nn.parameter.is_lazy(held):
        held.materialize(new.shape, device=new.device, dtype=new.dtype)
        held.data = new.detach()
        return
    for bond, number in bonds_at(owner, name):
        if number == bond.source:
            bond.replace_source(new)
            return
    setattr(owner, name, new)


def tensor_over(array: Any) -> torch.Tensor:
    """A NumPy array as a tensor over the same memory; bfloat16 and the float8 kinds by their bits."""
    dtype = array.dtype
    if dtype.type.__module__ == "ml_dtypes":
        words = {1: "uint8", 2: "int16"}[dtype.itemsize]
        bits: torch.Tensor = torch.from_numpy(array.view(words))
        return bits.view(getattr(torch, dtype.name))
    return torch.from_numpy(array)


def wrote(values: list[torch.Tensor]) -> None:
    """Tells autograd that tensors were written to, as it would notice by itself if PyTorch had done it."""
    changed = [value for value in values if not value.is_inference()]
    torch.autograd.graph.increment_version(changed)
