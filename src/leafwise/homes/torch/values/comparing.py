"""Comparing the values of tensors, bit by bit."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.comparing import Comparing, DeviceResult, OtherArray
from leafwise.core.capabilities.saving import Saving
from leafwise.core.memory.runs import Run
from leafwise.core.work.progress import Count
from leafwise.homes.torch.gpu.launching import check_not_capturing, runs_kernels, shortage_explained
from leafwise.homes.torch.gpu.snapshots import are_marked, have_plain_memory
from leafwise.homes.torch.gpu.tables import KeptTables
from leafwise.homes.torch.tensors import cannot_read, dtype_name, has_no_memory, is_elsewhere
from leafwise.homes.torch.values.tensor_values import same_bits, words_of

# Tensors on a GPU that were compared, which are compared again. Memory at the same address is not measured again:
# PyTorch moves it when it is resized.
_plain: KeptTables[bool] = KeptTables()


class TorchComparing(Comparing):
    def cannot_compare(self, value: torch.Tensor) -> str:
        return cannot_read(value) or has_no_memory(value)

    def cannot_compare_each(self, values: list[torch.Tensor]) -> list[str]:
        if not are_marked(values) and _plain.find(values, may_be_negated=True) is not None:
            return [""] * len(values)
        if not have_plain_memory(values):
            return super().cannot_compare_each(values)
        if values and values[0].is_cuda:
            _plain.get(values, lambda: True)
        return [""] * len(values)

    def contiguous_run(self, value: torch.Tensor) -> Run | None:
        """The elements of a tensor, if they are contiguous, in C order and on the CPU; otherwise None."""
        if value.device.type != "cpu" or not value.is_contiguous() or value.is_neg() or value.is_conj():
            return None
        return Run(value.data_ptr(), value.numel(), dtype_name(value.dtype), value)

    def compares_on(self, device: str) -> bool:
        return runs_kernels(torch.device(device))

    def compare_on_device(
        self, firsts: list[Any], seconds: list[Any], count: Count
    ) -> Callable[[], list[DeviceResult | None]]:
        from leafwise.homes.torch.gpu.device_comparing import start_comparing

        return start_comparing(firsts, seconds, self._other_array, count)

    def _other_array(self, value: torch.Tensor) -> OtherArray:
        pieces = self.home.capability(Saving).pieces
        shape, dtype = tuple(value.shape), dtype_name(value.dtype)
        return OtherArray(shape, dtype, value.numel(), self.contiguous_run(value), lambda: pieces(value))

    def same_bits(self, first: torch.Tensor, second: torch.Tensor) -> bool:
        return same_bits(first, second)

    def fingerprint(self, value: torch.Tensor) -> tuple[int, bool] | None:
        # The sum of the bits as integers does not depend on the order of the elements.
        if cannot_read(value) or not value.numel():
            return None
        plain = value.detach()
        if type(plain) not in (torch.Tensor, nn.Parameter):
            return None
        if plain.is_cuda:
            check_not_capturing("compare values")
        with shortage_explained("compare values", "nothing was changed"):
            words = words_of(plain)
            numbers = [words.sum(dtype=torch.int64), (words == words[(0,) * plain.dim()]).all()]
            if words.dtype != torch.uint8:  # which has no sign
                numbers.append((words < 0).sum())
        # From a device, all of them are copied at once.
        total, is_constant, *negative = torch.stack(numbers).tolist() if is_elsewhere(plain) else map(int, numbers)
        return (total + (sum(negative) << 8 * words.element_size())) % 2**64, bool(is_constant)
