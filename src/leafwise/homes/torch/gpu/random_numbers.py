"""Initial values of many tensors on a GPU, drawn by a few kernel launches."""

from itertools import accumulate
from operator import mul
from typing import Any

import torch

from leafwise.core.capabilities.filling import DrawJob
from leafwise.core.work.progress import Count
from leafwise.homes.torch.gpu.launching import check_not_capturing, runs_kernels, shortage_explained, start_kernels
from leafwise.homes.torch.tensors import dtype_name

_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})  # those of the kernels


def draw_with_kernels(jobs: list[DrawJob], count: Count) -> list[bool]:
    """Draws the tensors that kernels can fill; returns which of them."""
    is_drawn = [False] * len(jobs)
    numbers_by_device: dict[torch.device, list[int]] = {}
    for number, job in enumerate(jobs):
        numbers_by_device.setdefault(job.value.device, []).append(number)
    for device, numbers in numbers_by_device.items():
        if device.type == "cuda":
            check_not_capturing("initialize")
        if not runs_kernels(device):
            continue
        from leafwise.kernels.triton import cuda_drawing  # imports Triton

        targets = {number: target for number in numbers if (target := _target(jobs[number], cuda_drawing)) is not None}
        if targets and _draw(list(targets.values()), device, cuda_drawing):
            for number in targets:
                is_drawn[number] = True
            # Autograd does not notice what kernels write.
            torch.autograd.graph.increment_version([jobs[number].value for number in targets])
            count(sum(jobs[number].value.numel() for number in targets))
    return is_drawn


def _draw(targets: list[Any], device: torch.device, kernels: Any) -> bool:
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
