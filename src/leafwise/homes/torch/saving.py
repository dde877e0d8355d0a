"""Bytes of tensors, on their way into a file."""

from collections.abc import Iterator

import torch

from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.saving import Saving
from leafwise.errors import Unsupported
from leafwise.homes.torch.tensors import cannot_read

_PIECE = 8 << 20  # how many bytes are copied at a time where memory cannot be read as it lies


class TorchSaving(Saving):
    def pieces(self, value: torch.Tensor) -> Iterator[memoryview]:
        """The values as bytes in C order; as they lie where that is possible, else copied piece by piece."""
        if reason := cannot_read(value):
            raise Unsupported("torch", "be saved", reason)
        bytes_of = self.home.capability(Loading).writable_bytes
        whole = bytes_of(value)
        if whole is not None:
            yield whole
            return
        # One room for all pieces: whoever takes one is done with it before the next.
        room = torch.empty(_PIECE // value.element_size(), dtype=value.dtype)
        for part in _parts(value.detach()):
            copied = room[: part.numel()].view(part.shape).copy_(part)
            piece = bytes_of(copied)
            assert piece is not None
            yield piece

    def axis_order(self, value: torch.Tensor) -> tuple[int, ...] | None:
        """The order of axes in which a tensor lies densely; None where that is C order, or none."""
        if cannot_read(value) or value.is_contiguous():
            return None
        strides = value.stride()
        order = tuple(sorted(range(value.dim()), key=lambda axis: -strides[axis]))
        return order if value.permute(order).is_contiguous() else None

    def snapshot(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copies in the memory of this machine."""
        for value in values:
            if reason := cannot_read(value):
                raise Unsupported("torch", "be saved", reason)
        with torch.no_grad():
            return [value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for value in values]


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
