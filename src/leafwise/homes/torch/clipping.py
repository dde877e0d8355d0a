"""Norms of tensors, and scaling them, many at once."""

import math
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.clipping import Clipping
from leafwise.homes.torch.norms import SMALL, foreach_norms, norm_in_full, segment_norms, wide_of

_PLAIN = {torch.Tensor, nn.Parameter}


class TorchClipping(Clipping):
    def norms(self, values: list[torch.Tensor]) -> list[float]:
        """The norm of each tensor, computed in at least 32 bits."""
        with torch.no_grad():
            found = _norms_of_small(values)
            if found is None:
                found = _norms_by_kind(values)
            if all(map(math.isfinite, found)):
                return found
            return [
                norm if math.isfinite(norm) or hasattr(value, "full_tensor") else norm_in_full(_elements(value))
                for norm, value in zip(found, values, strict=True)
            ]

    def clip_together(self, values: list[torch.Tensor], max_norm: float) -> list[float] | None:
        """On a GPU, all of it is asked for before anything is waited for; elsewhere there is nothing to wait for."""
        if values[0].device.type != "cuda" or len(set(map(_kind, values))) != 1 or type(values[0]) not in _PLAIN:
            return None
        if values[0].layout != torch.strided:
            return None
        with torch.no_grad():
            norms = torch.stack(torch._foreach_norm(values, 2, dtype=wide_of(values[0])))
            total = torch.linalg.vector_norm(norms)
            factor = torch.where(total.isfinite(), (max_norm / total).clamp(max=1), 1)
            torch._foreach_mul_(values, factor)
            found: list[float] = norms.tolist()
        return found

    def scale_many(self, values: list[torch.Tensor], factors: list[float]) -> list[torch.Tensor]:
        with torch.no_grad():
            if len(factors) != 1:
                torch._foreach_mul_(values, factors)
                return values
            kinds = set(map(_dtype_and_device, values))
            for dtype, device in kinds:
                # A factor that is a tensor is several times as fast for many small tensors, if it is of their dtype.
                wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
                factor = torch.tensor(factors[0], device=device, dtype=wide)
                its = [one for one in values if _dtype_and_device(one) == (dtype, device)] if len(kinds) > 1 else values
                torch._foreach_mul_(its, factor)
        return values


def _norms_of_small(values: list[torch.Tensor]) -> list[float] | None:
    """The norms of many small tensors in the memory of this machine: joined, since asking each costs more."""
    sizes = list(map(torch.Tensor.numel, values))
    if len(values) < 2 or max(sizes) > SMALL or not set(map(type, values)) <= _PLAIN:
        return None
    try:
        joined = _joined(values)
    except RuntimeError:
        return None  # on several devices, or some of them sparse
    return segment_norms(joined, sizes) if joined.device.type == "cpu" and joined.layout == torch.strided else None


def _joined(values: list[torch.Tensor]) -> torch.Tensor:
    try:
        joined = torch.cat(values)
        if joined.dim() == 1:  # as all of them were, which is not asked of each
            return joined
    except RuntimeError:
        pass
    return torch.cat([value.reshape(-1) for value in values])


def _norms_by_kind(values: list[torch.Tensor]) -> list[float]:
    found = [0.0] * len(values)
    alike: dict[Any, list[int]] = {}
    for number, value in enumerate(values):
        plain = type(value) in _PLAIN and value.layout == torch.strided
        alike.setdefault((value.dtype, value.device) if plain else number, []).append(number)
    for kind, numbers in alike.items():
        its = [values[one] for one in numbers]
        if not isinstance(kind, tuple):
            found[numbers[0]] = _one_norm(its[0])
            continue
        for number, norm in zip(numbers, foreach_norms(its), strict=True):
            found[number] = norm
    return found


def _elements(value: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor that are stored; of a sparse one, each place once."""
    if value.layout == torch.strided:
        return value
    return value.coalesce().values() if value.layout == torch.sparse_coo else value.values()


def _one_norm(value: torch.Tensor) -> float:
    value = _elements(value)
    wide = value.dtype if value.element_size() >= 4 else torch.float32
    norm = torch.linalg.vector_norm(value, dtype=wide)
    # Of a tensor that is spread over several processes, the norm of all of it.
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


_kind = attrgetter("__class__", "dtype", "device", "layout")
_dtype_and_device = attrgetter("dtype", "device")
