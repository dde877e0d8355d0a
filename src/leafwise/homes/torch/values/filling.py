"""Writing initial values into tensors: immediately, or when a lazy layer gets its shapes."""

import math
from collections.abc import Callable
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.filling import Draw, DrawJob, Filling, WordRange
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.work.progress import Count
from leafwise.homes.torch.checkpoints.loading import cannot_change
from leafwise.homes.torch.checkpoints.unsupported_tensors import is_sharded
from leafwise.homes.torch.gpu.launching import check_not_capturing, runs_kernels, shortage_explained, start_kernels
from leafwise.homes.torch.parallel.flat_shards import FlatShard
from leafwise.homes.torch.parallel.sharding import local_tensor
from leafwise.homes.torch.tensors import as_numpy, dtype_name, holds_nothing, positions_by_key, tensor_over


class TorchFilling(Filling):
    def is_stock(self, owner: Any) -> bool:
        """Whether the layer starts with PyTorch's initial values: its reset method is PyTorch's own."""
        for base in type(owner).__mro__:
            if "reset_parameters" in vars(base) or "_reset_parameters" in vars(base):
                return (base.__module__ + ".").startswith("torch.nn.")
        return False

    def cannot_fill(self, values: list[torch.Tensor]) -> list[str]:
        if any(value.is_cuda for value in values):
            check_not_capturing("initialize")
        return [holds_nothing(value) or self._cannot_change(value) for value in values]

    def _cannot_change(self, value: torch.Tensor) -> str:
        if not is_sharded(value):
            return cannot_change(value)
        if isinstance(value, FlatShard) and (reason := value.owner.cannot_change()):
            return reason
        return self.home.capability(Distributing).cannot_use_parts(value) or cannot_change(local_tensor(value))

    def fill(self, value: torch.Tensor, start: int, rows: Any) -> None:
        """Writes rows of a tensor, cast to its dtype."""
        writable = rows if rows.flags.writeable else rows.copy()  # tensors do not support read-only memory
        _put(value, start, tensor_over(writable))

    def draw(self, value: torch.Tensor, start: int, words: WordRange, draw: Draw) -> bool:
        # Drawn on the device of the tensor, and computed in float64. Not for float64 tensors: their last bits would
        # depend on the device.
        if draw.shape not in ("uniform", "normal"):
            return False  # drawn by `iterate.distributions.numbers`, the reference
        if value.dtype in (torch.float64, torch.complex128) or value.device.type == "mps":
            return False
        with shortage_explained("initialize", "some leaves may have their initial values already"):
            if value.device.type == "cpu":
                drawn = torch.from_numpy(words.words())
            else:
                all_words = philox_words(words.key, words.first, math.prod(words.shape), value.device)
                drawn = all_words.view(words.shape)[(slice(None), *words.inside)]
            x = drawn.double().add_(0.5).mul_(2.0**-31)
            if draw.shape == "normal":
                x.mul_(draw.narrow).erfinv_().mul_(math.sqrt(2))
            _put(value, start, x.mul_(draw.scale).add_(draw.shift))
        return True

    def draw_together(self, jobs: list[DrawJob], count: Count) -> list[bool]:
        """Draws the tensors that kernels can fill; returns which of them."""
        is_drawn = [False] * len(jobs)
        for device, numbers in positions_by_key(job.value.device for job in jobs).items():
            if device.type == "cuda":
                check_not_capturing("initialize")
            if not runs_kernels(device):
                continue
            from leafwise.kernels.triton import cuda_drawing  # imports Triton

            targets = {
                number: target for number in numbers if (target := _target(jobs[number], cuda_drawing)) is not None
            }
            if targets and _draw_with_kernels(list(targets.values()), device, cuda_drawing):
                for number in targets:
                    is_drawn[number] = True
                # Autograd does not notice what kernels write.
                torch.autograd.graph.increment_version([jobs[number].value for number in targets])
                count(sum(jobs[number].value.numel() for number in targets))
        return is_drawn

    def draw_size(self, value: torch.Tensor) -> int:
        return 1 << (18 if value.device.type == "cpu" else 24)  # fits into the caches of a CPU, or keeps a GPU busy

    def as_numpy(self, array: Any) -> Any:
        return as_numpy(array) if isinstance(array, torch.Tensor) else super().as_numpy(array)

    def when_shaped(self, owner: nn.Module, then: Callable[[Any], None]) -> None:
        owner.__dict__[_INITIALIZE] = LazyInitializer(owner, then)


def _put(value: torch.Tensor, start: int, rows: torch.Tensor) -> None:
    with torch.no_grad():
        plain = value.detach()
        plain = plain if plain.dim() else plain.view(1)
        plain[start : start + len(rows)].copy_(rows)


# -- drawn on a GPU, many tensors by a few kernel launches -------------------------------------------------

_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})  # those of the kernels


def _draw_with_kernels(targets: list[Any], device: torch.device, kernels: Any) -> bool:
    """Returns False, and warns once, if Triton cannot run."""
    action, instead = "initial values of tensors on a GPU are drawn", "by PyTorch operations, which is slower"
    with shortage_explained("initialize", "some leaves may have their initial values already"):
        return start_kernels(device, lambda: kernels.draw_all(targets, device), action, instead) is not None


def _target(job: DrawJob, kernels: Any) -> Any:
    """The description of a tensor for kernels; None if they cannot fill it."""
    plain = job.value.detach()
    if type(plain) is not torch.Tensor or plain.dtype not in _DTYPES or plain.is_neg() or plain.is_inference():
        return None
    first_word = 0
    if job.shape == job.whole and plain.is_contiguous():
        axes = kernels.one_run(plain.numel())
    else:
        word_strides = list(accumulate((1, *job.whole[:0:-1]), mul))[::-1]
        first_word = sum(map(mul, job.first, word_strides))
        axes = kernels.merged(map(kernels.Axis, job.shape, word_strides, plain.stride() or (1,)))
        if axes is None:
            return None
    return kernels.Target(plain.data_ptr(), dtype_name(plain.dtype), job.key, job.draw, first_word, axes)


# -- random words on any device ----------------------------------------------------------------------------

# Philox4x64-10 in signed 64-bit integers, because PyTorch does not compute with unsigned ones. Products wrap around as
# they should; their high halves are computed from 32-bit halves.
_HALF = (1 << 32) - 1
_MULTIPLIERS = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
_WEYL = (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)


def philox_words(key: tuple[int, int], first: int, count: int, device: torch.device) -> torch.Tensor:
    """The words from number `first` on, computed on the device; the same bits as on a CPU."""
    block, skipped = divmod(first, 8)
    blocks = -(-(skipped + count) // 8)
    counters = [torch.arange(block + 1, block + 1 + blocks, device=device), *(torch.zeros((), dtype=torch.int64),) * 3]
    counters = [counter.to(device) for counter in counters]
    for turn in range(10):
        keys = [_signed(half + turn * step) for half, step in zip(key, _WEYL, strict=True)]
        (high0, low0), (high2, low2) = (_product(*pair) for pair in zip(_MULTIPLIERS, counters[::2], strict=True))
        counters = [high2 ^ counters[1] ^ keys[0], low2, high0 ^ counters[3] ^ keys[1], low0]
    return torch.stack(counters, dim=1).view(torch.int32).flatten()[skipped : skipped + count]


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def _product(a: int, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and the low half of the product of two 64-bit integers."""
    a_high, a_low = a >> 32, a & _HALF
    b_high, b_low = _high(b), b & _HALF
    high_low, low_high = a_high * b_low, a_low * b_high
    carried = _high(a_low * b_low) + (high_low & _HALF) + (low_high & _HALF)
    return a_high * b_high + _high(high_low) + _high(low_high) + _high(carried), b * _signed(a)


def _high(number: torch.Tensor) -> torch.Tensor:
    return (number >> 32) & _HALF


# -- lazy layers -------------------------------------------------------------------------------------------

_INITIALIZE = "initialize_parameters"  # what a lazy layer calls when it sees its first input


class LazyInitializer:
    """Replaces the method by which a lazy layer gets its shapes: calls that method, and then `then`. Does not call
    `then` if the layer already got its shapes from a load. A class, so that it can be copied and pickled."""

    def __init__(self, module: nn.Module, then: Callable[[Any], None]) -> None:
        self.module, self.then = module, then
        self.is_due = False

    def __call__(self, *inputs: Any, **named: Any) -> None:
        module: Any = self.module
        self.is_due |= module.has_uninitialized_params()
        getattr(type(module), _INITIALIZE)(module, *inputs, **named)
        if self.is_due:
            self.then(module)  # if it fails, it is called again at the next forward
        module.__dict__.pop(_INITIALIZE, None)
