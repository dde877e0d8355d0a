"""Tensors as views of one vector, with their gradients in another."""

from collections.abc import Callable, Sequence
from operator import attrgetter, is_
from typing import Any

import torch

from leafwise.homes.torch_filling import cannot_read, cannot_write

_WINDOW = 1024  # tensors that are looked at whenever the vectors are asked for
_ALIGNED = 16  # bytes; below that, matrix products on GPUs are slow
_grad = attrgetter("grad")


def cannot_pack(value: torch.Tensor) -> str:
    """Why a tensor cannot become a view of a vector; empty where it can."""
    return cannot_read(value) or cannot_write(value) or ("" if value.is_leaf else "it is computed from other tensors")


class Part:
    """The tensors of one dtype on one device, in two vectors: their values, and their gradients.

    `order` says which tensor stands at which place: those whose size keeps the next one aligned come first.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        itemsize = tensors[0].element_size()
        self.order = sorted(range(len(tensors)), key=lambda one: tensors[one].numel() * itemsize % _ALIGNED != 0)
        self._tensors = [tensors[one] for one in self.order]
        self.sizes = [tensor.numel() for tensor in self._tensors]
        self.starts = [0]
        for size in self.sizes[:-1]:
            self.starts.append(self.starts[-1] + size)
        self._values = torch.empty(sum(self.sizes), dtype=tensors[0].dtype, device=tensors[0].device)
        self._grads = torch.zeros_like(self._values)
        self._next = 0
        self._views: list[torch.Tensor] = []
        with torch.no_grad():
            for tensor, start in zip(self._tensors, self.starts, strict=True):
                place = self._place(self._values, tensor, start)
                place.copy_(tensor)
                view = self._place(self._grads, tensor, start)
                if tensor.grad is not None:
                    view.copy_(_dense(tensor.grad))
                tensor.data = place
                tensor.grad = view
                self._views.append(view)
        self._pointers = list(map(torch.Tensor.data_ptr, self._tensors))

    @staticmethod
    def _place(vector: torch.Tensor, tensor: torch.Tensor, start: int) -> torch.Tensor:
        """Where a tensor lies in a vector; with its axes in the order in which they lay before."""
        strides = tensor.stride() if _is_dense(tensor) else torch.empty(tensor.shape, device="meta").stride()
        return vector.as_strided(tensor.shape, strides, start)

    @property
    def dtype(self) -> torch.dtype:
        return self._values.dtype

    def values(self, moved: Callable[[int], Exception]) -> torch.Tensor:
        """The values; raises what `moved` makes of the first tensor that lies elsewhere by now."""
        for start, stop in self._windows():
            found = list(map(torch.Tensor.data_ptr, self._tensors[start:stop]))
            if found != self._pointers[start:stop]:
                wrong = next(at for at in range(start, stop) if found[at - start] != self._pointers[at])
                raise moved(self.order[wrong])
        return self._values

    def grads(self) -> torch.Tensor:
        """The gradients; where some were replaced since, as `zero_grad` does, they are fetched back."""
        for start, stop in self._windows():
            if not all(map(is_, map(_grad, self._tensors[start:stop]), self._views[start:stop])):
                self._fetch_back()
                break
        self._next = (self._next + _WINDOW) % max(1, len(self._tensors))
        return self._grads

    def _windows(self) -> list[tuple[int, int]]:
        """What is looked at now: everything, or of very many tensors the ends and each time another stretch."""
        count = len(self._tensors)
        if count <= _WINDOW:
            return [(0, count)]
        return [(0, 1), (self._next, min(self._next + _WINDOW, count)), (count - 1, count)]

    def _fetch_back(self) -> None:
        with torch.no_grad():
            for tensor, view in zip(self._tensors, self._views, strict=True):
                grad = tensor.grad
                if grad is view:
                    continue
                if grad is None:
                    view.zero_()
                else:
                    view.copy_(_dense(grad))
                tensor.grad = view

    def norms(self) -> list[float]:
        """The norm of the gradient of each tensor, in the order in which they were given."""
        found = [0.0] * len(self.order)
        for one, norm in zip(self.order, segment_norms(self.grads(), self.sizes), strict=True):
            found[one] = norm
        return found

    def scale(self, factors: Sequence[float]) -> None:
        """Multiplies the gradient of each tensor; by one factor, where there is only one."""
        grads = self.grads()
        if len(factors) == 1:
            grads.mul_(factors[0])
        else:
            each = torch.tensor([factors[one] for one in self.order], device=grads.device, dtype=grads.dtype)
            grads.mul_(each.repeat_interleave(torch.tensor(self.sizes, device=grads.device)))

    def undo(self) -> None:
        """Gives every tensor, and its gradient, memory of its own again."""
        grads = self.grads()
        del grads
        with torch.no_grad():
            for tensor in self._tensors:
                tensor.data = tensor.data.clone(memory_format=torch.preserve_format)
                assert tensor.grad is not None
                tensor.grad = tensor.grad.clone(memory_format=torch.preserve_format)


def segment_norms(vector: torch.Tensor, sizes: list[int]) -> list[float]:
    """The norm of each stretch of a vector, the stretches one after another."""
    wide = vector if vector.element_size() >= 4 else vector.float()
    if len(set(sizes)) == 1:
        found: list[float] = torch.linalg.vector_norm(wide.view(len(sizes), -1), dim=1).tolist()
        return found
    squares = (wide.abs() if wide.is_complex() else wide).square()
    lengths = torch.tensor(sizes, device=vector.device)
    sums: list[float] = torch.segment_reduce(squares, "sum", lengths=lengths, unsafe=True).sqrt().tolist()
    return sums


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a tensor fill their memory without gaps, in whatever order of axes."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_dense() if grad.layout != torch.strided else grad


def pack(values: list[torch.Tensor]) -> list[tuple[list[int], Part]]:
    """The tensors in as few vectors as they have dtypes and devices, each with the numbers of its tensors."""
    members: dict[Any, list[int]] = {}
    for number, value in enumerate(values):
        members.setdefault((value.dtype, value.device), []).append(number)
    return [(numbers, Part([values[number] for number in numbers])) for numbers in members.values()]
