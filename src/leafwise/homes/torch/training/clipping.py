"""Norms of tensors, and scaling them, many at once."""

import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.memory.runs import Run
from leafwise.homes.torch.checkpoints.loading import cannot_change
from leafwise.homes.torch.checkpoints.unsupported_tensors import is_sharded_type
from leafwise.homes.torch.gpu.launching import (
    check_not_capturing,
    lend_to_current_stream,
    runs_kernels,
    shortage_explained,
    start_kernels,
)
from leafwise.homes.torch.gpu.tables import KeptTables, is_run, run_of
from leafwise.homes.torch.parallel.sharding import whole_tensor
from leafwise.homes.torch.tensors import dtype_name, positions_by_key
from leafwise.kernels.cpu import lies_densely

SMALL = 4096  # elements; so few can be added up in order without losing precision
_PIECE_ELEMENTS = 1 << 20  # elements
_short_of_memory = partial(shortage_explained, "clip gradients", "nothing was changed")
_PLAIN = {torch.Tensor, nn.Parameter}
_DTYPES = {torch.float32, torch.bfloat16, torch.float16, torch.float64}  # that the kernels can scale


class TorchClipping(Clipping):
    def norms(self, values: list[torch.Tensor]) -> list[float]:
        """The norm of each tensor, computed in at least 32 bits."""
        check_not_capturing("clip gradients")
        with torch.no_grad(), _short_of_memory():
            # `lw.clip` passes the parts of DTensors, except for sums over ranks, whose terms do not have their norms.
            if any(map(is_sharded_type, set(map(type, values)))):
                values = [whole_tensor(value) for value in values]
            norms = _norms_of_small(values)
            if norms is None:
                norms = _norms_by_kind(values)
            if all(map(math.isfinite, norms)):
                return norms
            return [
                norm if math.isfinite(norm) else norm_in_full(_elements(value))
                for norm, value in zip(norms, values, strict=True)
            ]

    def clip_together(self, values: list[torch.Tensor], max_norm: float) -> list[float] | None:
        """On a GPU, launches everything before it waits for the first result. On a CPU, that would not be faster."""
        device = values[0].device
        if device.type == "cpu" and not runs_kernels(device):
            return None
        check_not_capturing("clip gradients")
        norms = None
        if runs_kernels(device):
            with suppress(torch.OutOfMemoryError):  # for tables and results; PyTorch's own kernels need less
                norms = _clipped_by_kernels(values, device, max_norm)
        if norms is not None or not _can_scale(values):
            return norms
        with _short_of_memory():
            return _clipped_by_foreach(values, max_norm)

    def scale_many(self, values: list[torch.Tensor], factors: list[float]) -> list[torch.Tensor]:
        if not _can_scale(values):  # before the first is scaled
            raise RuntimeError("several elements of a gradient share memory")
        with torch.no_grad():
            if len(factors) != 1:
                torch._foreach_mul_(values, factors)
                return values
            given, values = values, _distinct(values)
            kinds = set(map(_dtype_and_device, values))
            for dtype, device in kinds:
                # For many small tensors, a factor that is a tensor of their dtype is several times faster.
                wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
                factor = torch.tensor(factors[0], device=device, dtype=wide)
                same_kind = values
                if len(kinds) > 1:
                    same_kind = [value for value in values if _dtype_and_device(value) == (dtype, device)]
                torch._foreach_mul_(same_kind, factor)
        return given


def _clipped_by_kernels(values: list[torch.Tensor], device: torch.device, max_norm: float) -> list[float] | None:
    """None, with nothing changed, if the kernels cannot clip these tensors."""
    prepared = _tables.find(values)
    if prepared is None and not _kernels_can_clip(values, device):
        return None
    return _started(values, lambda: prepared or _tables.get(values, lambda: _prepared(values, device)), max_norm)


def clip_parts(
    vector: torch.Tensor, starts: list[int], sizes: list[int], max_norm: float, tables: KeptTables[Any]
) -> list[float] | None:
    """Clips a vector and returns the norms of its parts; None, with nothing changed, if the kernels cannot. `tables`
    are kept for this vector alone."""
    device, size = vector.device, vector.element_size()
    if not runs_kernels(device) or vector.dtype not in _DTYPES:
        return None

    def prepare() -> Any:
        from leafwise.kernels.triton.cuda_clipping import PreparedClip

        dtype = dtype_name(vector.dtype)
        places = zip(starts, sizes, strict=True)
        return PreparedClip([Run(vector.data_ptr() + start * size, count, dtype) for start, count in places], device)

    return _started([vector], lambda: tables.get([vector], prepare), max_norm)


def _started(values: list[torch.Tensor], prepare: Callable[[], Any], max_norm: float) -> list[float] | None:
    device = values[0].device

    def start() -> list[float] | None:
        prepared = prepare()
        if prepared is None:
            return None
        lend_to_current_stream(values, device)
        torch.autograd.graph.increment_version(values)  # the kernels write where PyTorch does not see it
        norms: list[float] = prepared.clip(max_norm)
        return norms

    return start_kernels(device, start)


def _kernels_can_clip(values: list[torch.Tensor], device: torch.device) -> bool:
    if not set(map(type, values)) <= _PLAIN or set(map(_device_and_layout, values)) != {(device, torch.strided)}:
        return False
    # PyTorch decides what may change inference tensors.
    return set(map(_dtype, values)) <= _DTYPES and all(map(is_run, values)) and not any(map(_is_inference, values))


def _prepared(values: list[torch.Tensor], device: torch.device) -> Any:
    from leafwise.kernels.triton.cuda_clipping import PreparedClip, overlap

    runs = list(map(run_of, values))
    # Tensors that share memory would be scaled once or twice, depending on which program comes first.
    return None if overlap(runs) else PreparedClip(runs, device)


def _clipped_by_foreach(values: list[torch.Tensor], max_norm: float) -> list[float] | None:
    first = values[0]
    if first.device.type != "cuda" or type(first) not in _PLAIN or first.layout != torch.strided:
        return None
    if len(set(map(_kind, values))) != 1:
        return None
    with torch.no_grad():
        norms = torch.stack(torch._foreach_norm(values, 2, dtype=_wide_of(first)))
        total = torch.linalg.vector_norm(norms.double())  # in 32 bits, the squares of finite norms may overflow
        factor = torch.where(total.isfinite(), (max_norm / total).clamp(max=1), 1)
        try:
            torch._foreach_mul_(_distinct(values), factor)
        except RuntimeError:  # before it scales the first, for example because one is a negated view
            return None
        norms_as_numbers: list[float] = norms.tolist()
    return norms_as_numbers


def _can_scale(values: list[torch.Tensor]) -> bool:
    """Whether PyTorch can multiply tensors in place: it stops at one whose elements share memory, when it has
    multiplied others."""
    try:
        if all(map(torch.Tensor.is_contiguous, values)):  # as most are, and quick
            return True
    except RuntimeError:  # sparse tensors do not know
        pass
    dense = [value for value in values if value.layout == torch.strided]
    return all(value.is_contiguous() or not cannot_change(value) for value in dense)


def _distinct(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors, each once: if two parameters have the same gradient, it is scaled once."""
    return list(dict(zip(map(id, values), values, strict=True)).values())


def _norms_of_small(values: list[torch.Tensor]) -> list[float] | None:
    """The norms of many small tensors on the CPU, joined into one, because one call for each takes longer. None if they
    are not all small, or not all on the CPU."""
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
        if joined.dim() == 1:  # then all of them have one axis, without checking each
            return joined
    except RuntimeError:
        pass
    return torch.cat([value.reshape(-1) for value in values])


def _norms_by_kind(values: list[torch.Tensor]) -> list[float]:
    norms = [0.0] * len(values)
    kinds: list[Any] = [
        (value.dtype, value.device) if type(value) in _PLAIN and value.layout == torch.strided else number
        for number, value in enumerate(values)
    ]
    for kind, numbers in positions_by_key(kinds).items():
        same_kind = [values[number] for number in numbers]
        if not isinstance(kind, tuple):
            (value,) = same_kind
            norms[numbers[0]] = float(torch.linalg.vector_norm(_elements(value), dtype=_wide_of(value)))
            continue
        for number, norm in zip(numbers, foreach_norms(same_kind), strict=True):
            norms[number] = norm
    return norms


def _elements(value: torch.Tensor) -> torch.Tensor:
    """The elements that a tensor stores. Duplicates in a sparse tensor are added up."""
    if value.layout == torch.strided:
        return value
    return value.coalesce().values() if value.layout == torch.sparse_coo else value.values()


# -- norms in enough precision -------------------------------------------------------------------------------


def norm_in_full(value: torch.Tensor) -> float:
    """Computes a norm again if it was not finite: in 64 bits and scaled by the largest element, because squares
    overflow long before the norm does."""
    wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
    largest = wide.abs().max()
    if not largest.isfinite():
        return float(largest)
    return float(torch.linalg.vector_norm(wide / largest) * largest)


def foreach_norms(tensors: list[torch.Tensor]) -> list[float]:
    """The norms of tensors with the same dtype and device, computed in at least 32 bits."""
    if tensors[0].device.type == "cpu" and not tensors[0].is_complex():
        return [_norm_by_pieces(tensor) for tensor in tensors]
    norms: list[float] = torch.stack(torch._foreach_norm(tensors, 2, dtype=_wide_of(tensors[0]))).tolist()
    return norms


def _norm_by_pieces(tensor: torch.Tensor) -> float:
    """The norm of a tensor on the CPU. A dot product is twice as fast as PyTorch's norm, and taken piece by piece it
    does not lose precision on millions of elements, as that norm does."""
    plain, is_dense = tensor.detach(), lies_densely(tensor.shape, tensor.stride())
    flat = plain.as_strided((plain.numel(),), (1,)) if is_dense else plain.reshape(-1)
    wide = _wide_of(tensor)
    pieces = (flat[start : start + _PIECE_ELEMENTS].to(wide) for start in range(0, len(flat), _PIECE_ELEMENTS))
    return math.sqrt(math.fsum(torch.dot(piece, piece).item() for piece in pieces))


def _wide_of(tensor: torch.Tensor) -> torch.dtype:
    """The dtype in which the norm of a tensor is computed; PyTorch needs a complex one for complex numbers."""
    if tensor.is_complex():
        return torch.complex128 if tensor.dtype == torch.complex128 else torch.complex64
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def segment_norms(vector: torch.Tensor, sizes: list[int]) -> list[float]:
    """The norm of each segment of a vector, given the sizes of consecutive segments."""
    wide = vector if vector.element_size() >= 4 else vector.float()
    if len(set(sizes)) == 1:
        norms: list[float] = torch.linalg.vector_norm(wide.view(len(sizes), sizes[0]), dim=1).tolist()
        return norms
    squares = (wide.abs() if wide.is_complex() else wide).square()
    lengths = torch.tensor(sizes, device=vector.device)
    sums: list[float] = torch.segment_reduce(squares, "sum", lengths=lengths, unsafe=True).sqrt().tolist()
    return sums


_kind = attrgetter("__class__", "dtype", "device", "layout")
_dtype = attrgetter("dtype")
_dtype_and_device = attrgetter("dtype", "device")
_device_and_layout = attrgetter("device", "layout")
_is_inference = torch.Tensor.is_inference
_tables: KeptTables[Any] = KeptTables()
