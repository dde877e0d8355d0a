"""Copying the bytes of files to tensors on a GPU, through buffers of pinned memory. Casts and other orders of the
elements are made on the device, from a copy of the buffer there."""

import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.loading import Landing
from leafwise.core.dtypes import DTYPES
from leafwise.core.home import Spec
from leafwise.errors import WriteError
from leafwise.homes.torch.gpu.pinned import BUFFER, PinnedBuffer, PinnedPool, pinned_pool
from leafwise.homes.torch.tensors import blocks, cannot_read, dtype_name

LANDING_DEVICES = frozenset({"cuda"})  # the types of devices to which values are copied through pinned memory
BUFFERS = 20  # at most; one for each of fourteen threads that read, and a few that are being copied
_UPLOADING, _LARGE_BYTES = 4, 1 << 20  # buffers for one thread, and bytes of a tensor for which it pays
_SPARE_ALIGNED = 256  # bytes, as PyTorch's own allocations

# Pairs of dtypes for which PyTorch casts, on every device, to the same bits as `leafwise.kernels.casting`, for all
# numbers that fit. Not for nan, and not where PyTorch rounds twice (float64 to 16 bits).
_HALVES = ("float16", "bfloat16")
EXACT_CASTS = frozenset(
    {("float32", half) for half in _HALVES}
    | {(half, wide) for half in _HALVES for wide in ("float32", "float64")}
    | {("float16", "bfloat16"), ("bfloat16", "float16"), ("float32", "float64"), ("float64", "float32")}
)


class _DeviceErrors:
    """A context in which errors of a device are raised as errors of leafwise. A class, because it is entered for each
    buffer, which is faster than with a generator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if isinstance(error, RuntimeError):
            reason = str(error).strip().partition("\n")[0].rstrip(".")
            raise WriteError(f"copying values to {self._device} failed: {reason}") from error


class TorchTransfer:
    """Copies to one device through pinned buffers. For casts, each has a copy on the device."""

    def __init__(self, pool: PinnedPool) -> None:
        self._pool, self._errors = pool, _DeviceErrors(pool.device)
        self._scratch: torch.Tensor | None = None  # a row for each buffer
        self._spare: weakref.WeakSet[TorchLanding] = weakref.WeakSet()  # in spare memory
        self.nbytes, self.most = pool.nbytes, pool.most

    def takes(self, landing: Landing) -> bool:
        assert isinstance(landing, TorchLanding)
        if self._scratch is None and not landing.is_plain:
            # On the current stream, whose memory PyTorch uses again. The stream of the pool is done when it is freed.
            with suppress(torch.OutOfMemoryError):
                self._scratch = torch.empty(self._pool.most, self.nbytes, dtype=torch.uint8, device=landing.device)
                self._pool.wait_for_program()
        return landing.is_plain or self._scratch is not None

    def begin(self) -> None:
        self._pool.wait_for_program()

    @contextmanager
    def buffer(self) -> Iterator[PinnedBuffer]:
        with ExitStack() as taken:
            with self._errors:
                buffer = taken.enter_context(self._pool.buffer())
            yield buffer

    def take(self) -> PinnedBuffer | None:
        with self._errors:
            return self._pool.take()

    def give(self, buffer: PinnedBuffer) -> None:
        self._pool.give(buffer)

    def is_copied(self, buffer: PinnedBuffer) -> bool:
        with self._errors:
            return self._pool.is_copied(buffer)

    @contextmanager
    def copying(self) -> Iterator[None]:
        # If the program is in inference mode, the places are inference tensors; the mode of a thread is its own.
        with self._pool.on_stream(), torch.inference_mode():
            yield

    def copy(self, buffer: PinnedBuffer, parts: list[tuple[int, int, Any]]) -> None:
        with self._errors:
            try:
                for start, stop, place in parts:
                    # Even a slice takes time.
                    part = buffer.tensor if stop - start == self.nbytes else buffer.tensor[start:stop]
                    if isinstance(place, torch.Tensor):
                        place.copy_(part, non_blocking=True)
                    else:
                        assert self._scratch is not None
                        place(self._scratch[buffer.number, start:stop].copy_(part, non_blocking=True))
            finally:
                self._pool.record(buffer)  # even after an error: other copies may have been queued before

    def finish(self) -> None:
        with self._errors:
            self._pool.finish()

    def spare(self, landings: list[Landing]) -> list[Landing | None]:
        device = self._pool.device
        left, end = spare_bytes(device), 0
        starts: list[int | None] = []
        for landing in landings:
            size = -(-landing.nbytes // _SPARE_ALIGNED) * _SPARE_ALIGNED
            fits = end + size <= left
            starts.append(end if fits else None)
            end += size * fits
        try:
            memory = torch.empty(end, dtype=torch.uint8, device=device)
        except torch.OutOfMemoryError:  # another thread or process was faster
            return [None] * len(landings)
        spare: list[Landing | None] = []
        for landing, start in zip(landings, starts, strict=True):
            assert isinstance(landing, TorchLanding)
            if start is None:
                spare.append(None)
                continue
            part = memory[start : start + landing.nbytes].view(landing.dtype)
            spare.append(there := TorchLanding(part, device, landing.dtype, False))
            self._spare.add(there)
        return spare

    def release(self) -> None:
        for landing in list(self._spare):
            assert landing.tensor is not None
            with suppress(RuntimeError):  # of a device that has failed; the error that is being raised says more
                landing.tensor.untyped_storage().resize_(0)

    def move(self, pairs: list[tuple[Landing, Landing]]) -> None:
        # On the current stream, as the program's own writes; copies to the spare memory are done.
        device = self._pool.device
        small: tuple[list[torch.Tensor], list[torch.Tensor]] = [], []
        with self._errors, torch.inference_mode():  # as in `copy`
            for landing, spare in pairs:
                assert isinstance(landing, TorchLanding)
                assert isinstance(spare, TorchLanding)
                assert landing.tensor is not None
                assert spare.tensor is not None
                if landing.is_flat and landing.nbytes < _LARGE_BYTES:
                    small[0].append(landing.tensor.view(torch.uint8))
                    small[1].append(spare.tensor.view(torch.uint8))
                else:
                    landing.tensor.copy_(spare.tensor.view(landing.tensor.shape))
            if small[0]:
                torch._foreach_copy_(*small)  # one launch for many
            if device.type == "cuda":
                torch.cuda.current_stream(device).synchronize()


def spare_bytes(device: torch.device) -> int:
    """How much memory of a device may be used for a short time: half of what no program uses, so that others find some,
    too. What PyTorch keeps for itself does not count, because it may be in small parts."""
    return torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else 0


class TorchLanding:
    """A tensor on a device that gets the values of a stored array."""

    def __init__(self, tensor: torch.Tensor | None, device: torch.device, stored: torch.dtype, is_cast: bool) -> None:
        self.tensor, self.dtype, self.device = tensor, stored, device
        self.itemsize = stored.itemsize
        self.is_cast = is_cast
        self.is_flat = tensor is None or (tensor.dim() == 1 and tensor.is_contiguous())
        self.is_plain = self.is_flat and not is_cast and tensor is not None
        self.nbytes = 0 if tensor is None else tensor.numel() * stored.itemsize
        self.limit = float("inf")
        self.extremes: list[Any] = []  # the smallest and the largest value of each part

    def transfer(self) -> TorchTransfer | None:
        pool = pinned_pool(self.device, 2, BUFFER, most=BUFFERS)
        return None if pool is None else TorchTransfer(pool)

    def part(self, start: int, nbytes: int) -> "TorchLanding":
        assert self.is_flat
        part = TorchLanding(self._elements(start, start + nbytes), self.device, self.dtype, self.is_cast)
        part.nbytes, part.limit, part.extremes = nbytes, self.limit, self.extremes
        return part

    def places(self, most: int, piece: int) -> Iterator[tuple[int, int, Any]]:
        if not self.is_flat:
            assert self.tensor is not None
            for start, part in blocks(self.tensor, self.itemsize, most):
                yield start, start + part.numel() * self.itemsize, partial(self._take, part)
            return
        step = max(most // piece, 1) * piece
        for start in range(0, self.nbytes, step):
            stop = min(start + step, self.nbytes)
            elements = self._elements(start, stop)
            as_they_are = elements is not None and not self.is_cast
            yield start, stop, elements.view(torch.uint8) if as_they_are else partial(self._take, elements)

    def _take(self, part: torch.Tensor | None, raw: torch.Tensor) -> None:
        """Takes bytes of the file, which are on the device, for a part of the tensor that has another dtype or order.
        Without a part, they are only checked."""
        values = raw.view(self.dtype)
        if self.is_cast:
            self.extremes.append(torch.aminmax(values))
        if part is not None:
            part.copy_(values.view(part.shape))

    def _elements(self, start: int, stop: int) -> Any:
        """The elements for a range of bytes in the file; None if they are only checked."""
        return None if self.tensor is None else self.tensor[start // self.itemsize : stop // self.itemsize]

    def fits(self) -> bool:
        extremes, self.extremes = self.extremes, []
        if not extremes:
            return True
        with _DeviceErrors(self.device):
            least, largest = [torch.stack(values).double() for values in zip(*extremes, strict=True)]
            # False if there is a nan.
            return bool(((least > -self.limit) & (largest < self.limit)).all())


class Uploads:
    """Copies tensors of the host to devices, through pinned memory if they are large."""

    def __init__(self) -> None:
        self._pools: dict[torch.device, PinnedPool | None] = {}

    def to(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """The tensor on a device. Its values are there after `finish`."""
        is_large = tensor.nbytes >= _LARGE_BYTES and tensor.is_contiguous()
        pool = self._pool(device) if is_large and device.type in LANDING_DEVICES else None
        if pool is None:
            return tensor.to(device)
        there = torch.empty_like(tensor, device=device)
        pool.wait_for_program()
        source, target = [side.view(-1).view(torch.uint8) for side in (tensor, there)]
        for start in range(0, tensor.nbytes, pool.nbytes):
            part = source[start : start + pool.nbytes]
            with pool.buffer() as buffer:
                pinned = buffer.tensor[: len(part)].copy_(part)  # by several threads of PyTorch
                pool.copy(target[start : start + pool.nbytes], pinned, buffer)
        return there

    def finish(self) -> None:
        """Waits for all copies."""
        for pool in self._pools.values():
            if pool is not None:
                pool.finish()

    def _pool(self, device: torch.device) -> PinnedPool | None:
        if device not in self._pools:
            self._pools[device] = pinned_pool(device, 2, BUFFER, most=_UPLOADING)
        return self._pools[device]


def has_landings(value: torch.Tensor) -> bool:
    """Whether values are copied to a tensor through pinned memory, if nothing else prevents it."""
    # Threads are not in inference mode, in which only the calling thread may write to such a tensor.
    return (
        value.device.type in LANDING_DEVICES
        and type(value) in (torch.Tensor, nn.Parameter)
        and not (value.is_inference() or value.is_conj() or value.is_neg() or cannot_read(value))
        and value.numel() > 0
    )


def landing_of(
    value: torch.Tensor, stored: Spec, order: tuple[int, ...] | None, only_check: bool
) -> TorchLanding | None:
    """The landing for a tensor; None if its values must be prepared on the CPU."""
    wanted = dtype_name(value.dtype)
    is_cast = stored.dtype != wanted
    dtype = getattr(torch, stored.dtype, None)
    if not isinstance(dtype, torch.dtype) or (is_cast and (stored.dtype, wanted) not in EXACT_CASTS):
        return None
    if stored.nbytes != value.numel() * dtype.itemsize:
        return None
    tensor = value.detach()
    if order is not None:
        tensor = tensor.permute([order.index(axis) for axis in range(len(order))])
    if tuple(tensor.shape) != stored.shape:
        return None
    if tensor.is_contiguous():
        tensor = tensor.as_strided((tensor.numel(),), (1,))  # `view` would check the strides of axes of size one
    landing = TorchLanding(None if only_check else tensor, value.device, dtype, is_cast)
    landing.nbytes = stored.nbytes
    if is_cast and (range_ := DTYPES[wanted].range) is not None:
        landing.limit = range_.limit
    return landing
