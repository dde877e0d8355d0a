"""Buffers of pinned memory, through which threads copy values to and from a GPU.

Copies from pageable memory are several times slower, and wait until they are done. A pool has a few buffers, a stream
of its own, and an event for each buffer: a thread that takes a buffer gets it when the last copy from or to it is done.
"""

import queue
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import torch

# Bytes; a copy of this size runs at the full speed of the bus. For each buffer, Python needs some time, in which the
# bus copies a megabyte or two.
BUFFER = 8 << 20


class PinnedBuffer:
    """Memory of the host that a GPU can read and write directly."""

    __slots__ = ("copied", "number", "tensor", "view")

    def __init__(self, number: int, tensor: torch.Tensor, copied: Any) -> None:
        self.number = number  # in its pool
        self.tensor = tensor
        self.view: memoryview = tensor.numpy().data
        self.copied = copied  # the event that the last copy from or to it is done; None if there are no events


class PinnedPool:
    """Some buffers for copies between the host and one device, which any number of threads may use. If none is free, a
    thread makes another one, as long as there are fewer than `most`: pinning takes time, in which others work."""

    def __init__(self, device: torch.device, tensors: list[torch.Tensor], most: int = 0) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.nbytes = tensors[0].numel()  # of a buffer
        self.most = max(most, len(tensors))
        cuda: Any = torch.cuda
        self.stream: Any = None
        self._free: queue.SimpleQueue[PinnedBuffer] = queue.SimpleQueue()
        for number, tensor in enumerate(tensors):
            self._free.put(self._made(number, tensor))
        self._numbers = iter(range(len(tensors), self.most))  # of buffers that may still be made
        if self.is_cuda:
            self.stream = cuda.Stream(device)
            self.wait_for_program()

    def wait_for_program(self) -> None:
        """Copies that are queued from now on wait for what the program has queued so far in its current stream, which
        may still read or write the same memory. Call it after allocating memory that is copied to: PyTorch may have
        queued a fill of it, or other work may still be using it."""
        if self.is_cuda:
            self.stream.wait_stream(torch.cuda.current_stream(self.device))

    @contextmanager
    def buffer(self) -> Iterator[PinnedBuffer]:
        """A buffer that no copy uses any more. Copies that are queued in the meantime may still use it afterwards."""
        buffer = self._free_or_new() or self._free.get()
        try:
            self._wait_for_copies(buffer)
            yield buffer
        finally:
            self.give(buffer)

    def take(self) -> PinnedBuffer | None:
        """The same, until `give` is called; None if no buffer is free, and no other can be made."""
        buffer = self._free_or_new()
        if buffer is not None:
            self._wait_for_copies(buffer)
        return buffer

    def give(self, buffer: PinnedBuffer) -> None:
        """Gives back a buffer. Copies may still use it."""
        self._free.put(buffer)

    def is_copied(self, buffer: PinnedBuffer) -> bool:
        """Whether all copies from or to a buffer are done."""
        return buffer.copied is None or bool(buffer.copied.query())

    def _wait_for_copies(self, buffer: PinnedBuffer) -> None:
        # Waiting releases Python's lock, which other threads then take: it is done only if there is a reason.
        if not self.is_copied(buffer):
            buffer.copied.synchronize()

    def _free_or_new(self) -> PinnedBuffer | None:
        with suppress(queue.Empty):
            return self._free.get_nowait()
        number = next(self._numbers, None)
        if number is not None:
            with suppress(RuntimeError):
                return self._made(number, _pinned(self.device, self.nbytes))
        return None

    def _made(self, number: int, tensor: torch.Tensor) -> PinnedBuffer:
        cuda: Any = torch.cuda
        return PinnedBuffer(number, tensor, cuda.Event() if self.is_cuda else None)

    def copy(self, target: torch.Tensor, source: torch.Tensor, buffer: PinnedBuffer) -> None:
        """Queues a copy between a part of a buffer and a tensor on the device."""
        with self.on_stream(), torch.no_grad():
            try:
                target.copy_(source, non_blocking=True)
            finally:
                self.record(buffer)  # even after an error: other copies may have been queued before

    def record(self, buffer: PinnedBuffer) -> None:
        """A buffer is in use until everything is done that has been queued so far."""
        if buffer.copied is not None:
            buffer.copied.record(self.stream)

    def on_stream(self) -> AbstractContextManager[object]:
        """Queues the work of this thread on the stream of the pool."""
        return torch.cuda.stream(self.stream) if self.is_cuda else nullcontext()

    def finish(self) -> None:
        """Waits for all copies. Raises the error of the device, if there was one."""
        if self.is_cuda:
            self.stream.synchronize()


def pinned_pool(device: torch.device, buffers: int, nbytes: int = BUFFER, most: int = 0) -> PinnedPool | None:
    """A pool for copies to or from a device, with `buffers` buffers to begin with, and more when threads need them, up
    to `most`; None if the system refuses pinned memory. It may have fewer buffers than asked for, but at least two.
    PyTorch keeps pinned memory for the next pool."""
    tensors = []
    try:
        for _ in range(buffers):
            tensors.append(_pinned(device, nbytes))  # noqa: PERF401
    except RuntimeError:  # for example, because the limit for locked memory is reached
        if len(tensors) < 2:
            return None
    return PinnedPool(device, tensors, most)


def _pinned(device: torch.device, nbytes: int) -> torch.Tensor:
    # The host is named, because the default may be another device: inside `with torch.device("cuda"):`.
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
