"""Copies tensors out of a GPU through pinned memory, for saves."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.saving import Part
from leafwise.core.memory import madvise
from leafwise.core.memory.runs import boxes
from leafwise.core.work.threads import COPIERS, WRITERS, in_order
from leafwise.errors import WalkError
from leafwise.homes.torch.gpu.launching import check_not_capturing
from leafwise.homes.torch.gpu.pinned import BUFFER, PinnedBuffer, PinnedPool, pinned_pool
from leafwise.homes.torch.tensors import cannot_read
from leafwise.homes.torch.values.tensor_values import WORDS

EXTRACTED = frozenset({"cuda"})  # the types of devices whose tensors are copied out through pinned memory
# Bytes of a buffer. Pinning memory takes time, so small models get small buffers, but each takes a part of any array.
_SMALLEST_BUFFER_BYTES = 1 << 20
_TENSORS_AT_ONCE = 1_024  # small tensors that are copied at once
_SMALL_TENSOR_BYTES = 1 << 18  # bytes of a tensor that is copied together with others
# Dtypes that tensors can be concatenated in. Others are concatenated by their bits.
_JOINED = frozenset({
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex128, torch.complex64, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
})  # fmt: skip


class TorchExtraction:
    """Copies tensors of one device into the buffers of a pool, in the pool's own stream; tensors on the CPU, too."""

    def __init__(self, pool: PinnedPool) -> None:
        self._pool = pool
        self.largest = pool.nbytes

    @contextmanager
    def copied(self, parts: Sequence[Part]) -> Iterator[memoryview]:
        """The bytes of parts, one after another, in a buffer."""
        with ExitStack() as taken:
            filled = 0
            try:
                buffer = taken.enter_context(self._pool.buffer())
                # Kernels that prepare a copy run in the stream of the copy: the current stream of a thread is another
                # one. In inference mode, buffers that were made in that mode can be written, too.
                with self._pool.on_stream(), torch.inference_mode():
                    for source in _sources(parts, self._pool.device):
                        self._copy(buffer, filled, source)
                        filled += source.numel()
                if buffer.copied is not None:
                    buffer.copied.synchronize()
            except RuntimeError as error:
                raise device_error(error, self._pool.device) from error
            yield buffer.view[:filled]

    def _copy(self, buffer: PinnedBuffer, start: int, source: torch.Tensor) -> None:
        stop = start + source.numel()
        if source.device == self._pool.device:
            self._pool.copy(buffer.tensor[start:stop], source, buffer)
        else:
            # On the CPU. Not by PyTorch, which would use several threads for each copy.
            buffer.tensor.numpy()[start:stop] = source.numpy()

    def finish(self) -> None:
        try:
            self._pool.finish()
        except RuntimeError as error:
            raise device_error(error, self._pool.device) from error


def device_error(error: RuntimeError, device: torch.device) -> WalkError:
    reason = str(error).partition("\n")[0].rstrip(".")
    return WalkError(f"cannot copy values from {device}: {reason}; nothing was saved")


def extractions(values: list[torch.Tensor], threads: int = WRITERS) -> list[TorchExtraction | None]:
    """For each tensor, how threads copy it out; None if no tensor is on a GPU, or if there is no pinned memory. If some
    are on a GPU, those on the CPU are copied, too: an optimizer has many small ones, between those on the GPU."""
    if not any(value.device.type in EXTRACTED for value in values):
        return [None] * len(values)
    check_not_capturing("save tensors that are on a GPU")
    plain = (torch.Tensor, nn.Parameter)
    devices = [value.device if type(value) in plain and not cannot_read(value) else None for value in values]
    nbytes: dict[torch.device, int] = {}
    for value, device in zip(values, devices, strict=True):
        if device is not None and device.type in EXTRACTED and value.nbytes:
            nbytes[device] = nbytes.get(device, 0) + value.nbytes
    made = {device: _extraction(device, total, threads) for device, total in nbytes.items()}
    if made:
        made.setdefault(torch.device("cpu"), next(iter(made.values())))
    return [None if device is None else made.get(device) for device in devices]


def _extraction(device: torch.device, nbytes: int, threads: int) -> TorchExtraction | None:
    """Buffers for copies of this many bytes: as many as there are threads, or fewer for a small model."""
    size = min(max(_SMALLEST_BUFFER_BYTES, 1 << (nbytes - 1).bit_length()), BUFFER)
    try:
        pool = pinned_pool(device, max(2, min(threads, -(-nbytes // size))), size)
    except RuntimeError as error:  # for example, because the device is gone
        raise device_error(error, device) from error
    return None if pool is None else TorchExtraction(pool)


# -- the bytes of tensors, on their device -------------------------------------------------------------------


def _sources(parts: Sequence[Part], device: torch.device) -> Iterator[torch.Tensor]:
    """The bytes of parts, in order, as flat tensors. Whole tensors of one dtype on the device are joined: a copy of
    each would take longer than the copy of all of them."""
    for (dtype, place), group in groupby(parts, lambda part: (part.value.dtype, part.value.device)):
        together = list(group)
        if len(together) > 1 and place == device:
            joined = _joined(together, dtype)
            if joined is not None:
                yield joined
                continue
        for part in together:
            yield from _bytes(part)


def _joined(parts: list[Part], dtype: torch.dtype) -> torch.Tensor | None:
    """Whole tensors of a dtype as one; None if the device has no memory for it."""
    values = [part.value for part in parts]
    assert all((part.start, part.stop) == (0, part.value.nbytes) for part in parts), "only whole tensors are joined"
    if dtype not in _JOINED:
        values = [value.view(WORDS[dtype.itemsize]) for value in values]
    try:
        return torch.cat([value.reshape(-1) for value in values]).view(torch.uint8)
    except torch.OutOfMemoryError:
        return None


def _bytes(part: Part) -> Iterator[torch.Tensor]:
    value, item = part.value.detach(), part.value.element_size()
    if value.is_contiguous() and not value.is_conj() and not value.is_neg():
        # A tensor with one element is contiguous, whatever its strides, but `view` checks them.
        yield value.as_strided((value.numel(),), (1,)).view(torch.uint8)[part.start : part.stop]
        return
    for index in boxes(value.shape, part.start // item, part.stop // item):
        box = value[index].resolve_conj().resolve_neg().contiguous()
        yield box.as_strided((box.numel(),), (1,)).view(torch.uint8)


# -- copies on the CPU -----------------------------------------------------------------------------------------


def _copy_parts(extraction: TorchExtraction, parts: list[Part], target: Any) -> None:
    # By NumPy, because each copy by PyTorch would use several threads.
    with extraction.copied(parts) as view:
        target[:] = view


def copies(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of tensors on the CPU, in C order. They are complete when this returns, so nothing that is done to the
    tensors afterwards changes them, in whatever stream."""
    extraction_of = [
        extraction if value.device.type in EXTRACTED else None
        for value, extraction in zip(values, extractions(values, COPIERS), strict=True)
    ]
    copied: list[Any] = [None] * len(values)
    tasks: list[Callable[[], None]] = []
    with torch.no_grad(), ExitStack() as ending:
        for used in {id(used): used for used in extraction_of if used is not None}.values():
            ending.callback(used.finish)
        for extraction, positions in _bundles(values, extraction_of):
            bundle = [values[position] for position in positions]
            nbytes = sum(value.nbytes for value in bundle)
            if extraction is None:
                with _shortage_explained(nbytes):
                    contiguous = torch.contiguous_format
                    targets = [value.detach().to("cpu", copy=True, memory_format=contiguous) for value in bundle]
            else:
                with _shortage_explained(nbytes):
                    flat = torch.empty(nbytes // bundle[0].itemsize, dtype=bundle[0].dtype, device="cpu")
                madvise.use_huge_pages(flat.data_ptr(), flat.nbytes)
                tasks += _tasks(extraction, bundle, flat.view(torch.uint8).numpy())
                parts = torch.split(flat, [value.numel() for value in bundle])
                targets = [part.view(value.shape) for part, value in zip(parts, bundle, strict=True)]
            for position, target in zip(positions, targets, strict=True):
                copied[position] = target
        in_order(lambda _, task: task(), tasks, COPIERS)
    return copied


def _bundles(
    values: list[torch.Tensor], extraction_of: list[TorchExtraction | None]
) -> Iterator[tuple[TorchExtraction | None, list[int]]]:
    """The positions of tensors that are copied together: small ones of one device and dtype."""
    pending: dict[tuple[int, torch.dtype], list[int]] = {}
    pending_bytes: dict[tuple[int, torch.dtype], int] = {}
    by_id = {id(extraction): extraction for extraction in extraction_of}
    for position, (value, extraction) in enumerate(zip(values, extraction_of, strict=True)):
        if extraction is None or value.nbytes > min(_SMALL_TENSOR_BYTES, extraction.largest):
            yield extraction, [position]
            continue
        key = id(extraction), value.dtype
        positions = pending.setdefault(key, [])
        if len(positions) == _TENSORS_AT_ONCE or pending_bytes.get(key, 0) + value.nbytes > extraction.largest:
            yield extraction, positions
            positions = pending[key] = []
            pending_bytes[key] = 0
        positions.append(position)
        pending_bytes[key] = pending_bytes.get(key, 0) + value.nbytes
    for (identity, _), positions in pending.items():
        yield by_id[identity], positions


def _tasks(extraction: TorchExtraction, values: list[torch.Tensor], target: Any) -> Iterator[Callable[[], None]]:
    if len(values) > 1:
        yield partial(_copy_parts, extraction, [Part(value, 0, value.nbytes) for value in values], target)
        return
    step = extraction.largest
    for start in range(0, values[0].nbytes, step):
        stop = min(start + step, values[0].nbytes)
        yield partial(_copy_parts, extraction, [Part(values[0], start, stop)], target[start:stop])


@contextmanager
def _shortage_explained(nbytes: int) -> Iterator[None]:
    """Raises an error of leafwise if there is no memory for this many bytes."""
    try:
        yield
    except RuntimeError as error:
        if "DefaultCPUAllocator" not in str(error):
            raise
        raise WalkError(
            f"cannot copy the values before they are saved: there is no memory for another {nbytes:,} bytes, and "
            "nothing was saved; save without background=True"
        ) from error
