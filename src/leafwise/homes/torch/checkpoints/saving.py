"""The bytes of tensors, for writing them into a file."""

from collections.abc import Iterator

import torch

from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.saving import Extraction, Saving
from leafwise.errors import Unsupported
from leafwise.homes.torch.gpu import extraction
from leafwise.homes.torch.gpu.launching import check_not_capturing
from leafwise.homes.torch.tensors import blocks, cannot_read

_PIECE_BYTES = 8 << 20  # bytes copied at a time, if the memory of a tensor cannot be written as it is


class TorchSaving(Saving):
    def pieces(self, value: torch.Tensor) -> Iterator[memoryview]:
        """The values as bytes in C order: the memory itself where possible, else copied piece by piece."""
        if reason := cannot_read(value):
            raise Unsupported("torch", "be saved", reason)
        bytes_of = self.home.capability(Loading).writable_bytes
        (whole,) = bytes_of([value])
        if whole is not None:
            yield whole
            return
        if value.is_cuda:
            check_not_capturing("read values")
        # One buffer for all pieces: the caller has finished with a piece when it asks for the next.
        buffer = torch.empty(_PIECE_BYTES // value.element_size(), dtype=value.dtype, device="cpu")
        for _, part in blocks(value.detach(), value.element_size(), _PIECE_BYTES):
            copied = buffer[: part.numel()].view(part.shape).copy_(part)
            (piece,) = bytes_of([copied])
            assert piece is not None
            yield piece

    def axis_order(self, value: torch.Tensor) -> tuple[int, ...] | None:
        """The order of axes in which a tensor is contiguous; None if that is C order, or if it is not contiguous."""
        if cannot_read(value) or value.is_contiguous():
            return None
        strides = value.stride()
        order = tuple(sorted(range(value.dim()), key=lambda axis: -strides[axis]))
        return order if value.permute(order).is_contiguous() else None

    def extractions(self, values: list[torch.Tensor]) -> list[Extraction | None]:
        return list(extraction.extractions(values))

    def snapshot(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        """Copies on the CPU."""
        for value in values:
            if reason := cannot_read(value):
                raise Unsupported("torch", "be saved", reason)
        return extraction.copies(values)
