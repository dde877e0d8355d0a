"""Tensors as views of one vector, with their gradients in another."""

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from operator import attrgetter, getitem, is_
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.packing import DictSlot, PackedPart, Packing
from leafwise.homes.torch.gpu.launching import check_not_capturing
from leafwise.homes.torch.gpu.tables import KeptTables
from leafwise.homes.torch.tensors import cannot_read, positions_by_key
from leafwise.homes.torch.training.clipping import SMALL, clip_parts, foreach_norms, norm_in_full, segment_norms
from leafwise.kernels.cpu import lies_densely

# Up to `_ALL` tensors are checked each time the vectors are used; with more, only a window of `_WINDOW` tensors.
_ALL, _WINDOW = 1024, 128
_ALIGNED = 16  # bytes; matrix products on GPUs are slow with less
_grad = attrgetter("grad")
_trained = attrgetter("requires_grad")
_pointer = torch.Tensor.data_ptr


class PackedTensors:
    """The tensors of one dtype on one device, in two vectors: their values, and their gradients.

    `order` is the order of the tensors in the vectors: tensors whose size keeps the next one aligned come first.
    `slots` are the dicts and names under which modules store the tensors, and under which parents store the modules.
    """

    def __init__(self, tensors: list[torch.Tensor], slots: list[DictSlot]) -> None:
        itemsize = tensors[0].element_size()
        self.order = sorted(range(len(tensors)), key=lambda number: tensors[number].numel() * itemsize % _ALIGNED != 0)
        self._tensors = [tensors[number] for number in self.order]
        self.sizes = [tensor.numel() for tensor in self._tensors]
        self.starts = [0, *accumulate(self.sizes[:-1])]
        self._values = torch.empty(sum(self.sizes), dtype=tensors[0].dtype, device=tensors[0].device)
        self._grads = torch.zeros_like(self._values)
        self.views: list[torch.Tensor] = []
        with torch.no_grad():
            for tensor, start in zip(self._tensors, self.starts, strict=True):
                place = self._place(self._values, tensor, start)
                place.copy_(tensor)
                view = self._place(self._grads, tensor, start)
                if tensor.grad is not None:
                    view.copy_(_dense(tensor.grad))
                tensor.data = place
                tensor.grad = view
                self.views.append(view)
        self._at = {id(view): number for number, view in enumerate(self.views)}
        self._holders, self._names, self._held = ([slot[part] for slot in slots] for part in range(3))
        self._pointers = list(map(_pointer, self._tensors))
        self._grad_pointers = list(map(_pointer, self.views))
        self._turns = {"values": 0, "grads": 0}
        self._tables: KeptTables[Any] = KeptTables()

    @staticmethod
    def _place(vector: torch.Tensor, tensor: torch.Tensor, start: int) -> torch.Tensor:
        """The place of a tensor in a vector, with its axes in the same order in memory as before."""
        is_dense = lies_densely(tensor.shape, tensor.stride())
        strides = tensor.stride() if is_dense else torch.empty(tensor.shape, device="meta").stride()
        return vector.as_strided(tensor.shape, strides, start)

    @property
    def dtype(self) -> torch.dtype:
        return self._values.dtype

    # -- checking that everything is in its place ----------------------------------------------------------

    def _window(self, vector: str, count: int, full: bool) -> list[slice]:
        """What to check now: everything, or, if that is too much, both ends and a window that moves each time."""
        if full or count <= _ALL:
            return [slice(0, count)]
        start = self._turns[vector] % count
        return [slice(0, 1), slice(start, start + _WINDOW), slice(count - 1, count)]

    def _gone(self, vector: str, full: bool) -> int | None:
        """The number of a checked tensor that is no longer in the model."""
        for part in self._window(vector, len(self._held), full):
            try:
                if all(map(is_, map(getitem, self._holders[part], self._names[part]), self._held[part])):
                    continue
            except KeyError:
                pass
            return self._of_slot(part)
        return None

    def _moved(self, vector: str, full: bool) -> int | None:
        """The number of a checked tensor that is no longer in the vector, or no longer trained."""
        for part in self._window(vector, len(self._tensors), full):
            tensors = self._tensors[part]
            if list(map(_pointer, tensors)) != self._pointers[part] or not all(map(_trained, tensors)):
                pairs = enumerate(zip(tensors, self._pointers[part], strict=True), part.start or 0)
                wrong = next(at for at, (tensor, ptr) in pairs if _pointer(tensor) != ptr or not _trained(tensor))
                return self.order[wrong]
        return None

    def _of_slot(self, part: slice) -> int:
        """The first tensor that is no longer in the model, because something else is in a slot of this part."""
        for holder, name, held in zip(self._holders[part], self._names[part], self._held[part], strict=True):
            if holder.get(name) is not held:
                gone = set(map(id, held.parameters() if isinstance(held, nn.Module) else [held]))
                return next(
                    (self.order[at] for at, lost in enumerate(self._tensors) if id(lost) in gone), self.order[0]
                )
        raise AssertionError("no slot has changed")

    def values(self, moved: Callable[[int], Exception], full: bool = False) -> torch.Tensor:
        """The values. If a tensor is no longer in the vector or no longer trained, raises `moved(number)`."""
        wrong = self._gone("values", full)
        wrong = self._moved("values", full) if wrong is None else wrong
        self._turns["values"] += _WINDOW
        if wrong is not None:
            raise moved(wrong)
        return self._values

    def grads(self, moved: Callable[[int], Exception], full: bool = False) -> torch.Tensor:
        """The gradients. Gradients that were replaced since, for example after `zero_grad`, are first copied back."""
        wrong = self._gone("grads", full)
        if wrong is not None:
            raise moved(wrong)
        for part in self._window("grads", len(self._tensors), full):
            views = self.views[part]
            if (
                not all(map(is_, map(_grad, self._tensors[part]), views))
                or list(map(_pointer, views)) != self._grad_pointers[part]
            ):
                # A gradient is not in the vector, perhaps because its tensor is not.
                wrong = self._moved("grads", full=True)
                if wrong is not None:
                    raise moved(wrong)
                self._fetch_back()
                break
        self._turns["grads"] += _WINDOW
        return self._grads

    def _fetch_back(self) -> None:
        with torch.no_grad():
            for number, (tensor, start) in enumerate(zip(self._tensors, self.starts, strict=True)):
                grad, view = tensor.grad, self.views[number]
                if grad is view and view.data_ptr() == self._grad_pointers[number]:
                    continue
                if grad is view:  # the memory of the view itself was replaced, as by `.data =`
                    del self._at[id(view)]
                    view = self.views[number] = self._place(self._grads, tensor, start)
                    self._at[id(view)] = number
                if grad is None:
                    view.zero_()
                else:
                    view.copy_(_dense(grad))
                tensor.grad = view

    def is_intact(self) -> bool:
        return (
            self._gone("grads", full=True) is None
            and self._moved("grads", full=True) is None
            and all(map(is_, map(_grad, self._tensors), self.views))
            and list(map(_pointer, self.views)) == self._grad_pointers
        )

    def holds(self, gradients: list[torch.Tensor]) -> bool:
        """Whether these are all the gradients, in the order of the tensors, and are in the vector."""
        if len(gradients) != len(self.order):
            return False
        places = [self._at.get(id(gradient)) for gradient in gradients]
        expected = sorted(range(len(self.order)), key=self.order.__getitem__)
        return places == expected and list(map(_pointer, self.views)) == self._grad_pointers

    # -- arithmetic on the gradients -----------------------------------------------------------------------

    def clip_together(self, max_norm: float) -> list[float] | None:
        """On a GPU, clips the vector of gradients, unless its norm is not finite, and returns the norms before."""
        check_not_capturing("clip gradients")
        norms = clip_parts(self._grads, self.starts, self.sizes, max_norm, self._tables)
        return None if norms is None else self._in_given_order(norms)

    def norms(self) -> list[float]:
        """The norm of the gradient of each tensor, in the order in which they were given."""
        small = max(self.sizes) <= SMALL
        norms = segment_norms(self._grads, self.sizes) if small else foreach_norms(self.views)
        pairs = zip(norms, self.views, strict=True)
        return self._in_given_order([norm if math.isfinite(norm) else norm_in_full(view) for norm, view in pairs])

    def _in_given_order(self, norms: list[float]) -> list[float]:
        norm_of = dict(zip(self.order, norms, strict=True))
        return [norm_of[number] for number in range(len(norms))]

    def scale(self, factors: Sequence[float]) -> None:
        """Multiplies the gradient of each tensor by its factor; a single factor is used for all."""
        if len(factors) == 1:
            self._grads.mul_(factors[0])
        else:
            torch._foreach_mul_(self.views, [factors[number] for number in self.order])

    def undo(self) -> None:
        """Gives every tensor and every gradient its own memory again."""
        with torch.no_grad():
            for tensor in self._tensors:
                tensor.data = tensor.data.clone(memory_format=torch.preserve_format)
                if tensor.grad is not None:
                    tensor.grad = tensor.grad.clone(memory_format=torch.preserve_format)


def _dense(grad: torch.Tensor) -> torch.Tensor:
    return grad.to_dense() if grad.layout != torch.strided else grad


class TorchPacking(Packing):
    def cannot_pack(self, value: torch.Tensor) -> str:
        """Why a tensor cannot become a view of a vector; empty if it can."""
        reason = cannot_read(value) or self.home.capability(Loading).cannot_write([value])[0]
        return reason or ("" if value.is_leaf else "it is computed from other tensors")

    def pack(self, values: list[torch.Tensor], slots: list[list[DictSlot]]) -> list[tuple[list[int], PackedPart]]:
        # One vector for each dtype and device.
        parts: list[tuple[list[int], PackedPart]] = []
        for numbers in positions_by_key((value.dtype, value.device) for value in values).values():
            # Tensors of one module share slots.
            distinct = {(id(slot[0]), slot[1]): slot for number in numbers for slot in slots[number]}
            parts.append((numbers, PackedTensors([values[number] for number in numbers], list(distinct.values()))))
        return parts

    def slot(self, owner: Any, name: str) -> DictSlot | None:
        for holder in (owner._parameters, owner._buffers, owner._modules):
            if name in holder:
                return holder, name, holder[name]
        return None

    def repoint(self, value: torch.Tensor, view: torch.Tensor) -> None:
        value.data = view.detach()
