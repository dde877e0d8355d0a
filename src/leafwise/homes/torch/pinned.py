"""Buffers of pinned memory, through which threads copy values to and from a GPU.

Copies from pageable memory are several times slower, and wait until they are done. A pool has a few buffers, a stream
of its own, and an event for each buffer: a thread that takes a buffer gets it when the last copy from or to it is done.
"""

import queue
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

BUFFER = 8 << 20  # bytes; a copy of this size runs at the full speed of the bus


class PinnedBuffer:
    """Memory of the host that a GPU can read and write directly."""

    __slots__ = ("copied", "tensor", "view")

    def __init__(self, tensor: torch.Tensor, copied: Any) -> None:
        self.tensor = tensor
        self.view: memoryview = tensor.numpy().data
        self.copied = copied  # the event that the last copy from or to it is done; None if there are no events


class PinnedPool:
    """Some buffers for copies between the host and one device, which any number of threads may use."""

    def __init__(self, device: torch.device, tensors: list[torch.Tensor]) -> None:
        self.device = device
        self.is_cuda = device.type == "cuda"
        self.nbytes = tensors[0].numel()  # of a buffer
        cuda: Any = torch.cuda
        self.stream: Any = None
        self.buffers = [PinnedBuffer(tensor, cuda.Event() if self.is_cuda else None) for tensor in tensors]
        self._free: queue.SimpleQueue[PinnedBuffer] = queue.SimpleQueue()
        for buffer in self.buffers:
            self._free.put(buffer)
        if self.is_cuda:
            self.stream = cuda.Stream(device)
            # What the program has queued so far may still read or write the same tensors.
            self.stream.wait_stream(cuda.current_stream(device))

    @contextmanager
    def buffer(self) -> Iterator[PinnedBuffer]:
        """A buffer that no copy uses any more. Copies that are queued in the meantime may still use it afterwards."""
        buffer = self._free.get()
        try:
            if buffer.copied is not None:
                buffer.copied.synchronize()
            yield buffer
        finally:
            self._free.put(buffer)

    def copy(self, target: torch.Tensor, source: torch.Tensor, buffer: PinnedBuffer) -> None:
        """Queues a copy between a part of a buffer and a tensor on the device."""
        with self.copying(buffer):
            target.copy_(source, non_blocking=True)

    @contextmanager
    def copying(self, buffer: PinnedBuffer) -> Iterator[None]:
        """What is done inside is queued on the stream of the pool, and the buffer is in use until it is done."""
        with self.on_stream(), torch.no_grad():
            try:
                yield
            finally:
                if buffer.copied is not None:  # even after an error: other copies may have been queued before
                    buffer.copied.record(self.stream)

    def on_stream(self) -> AbstractContextManager[object]:
        """Queues the work of this thread on the stream of the pool."""
        return torch.cuda.stream(self.stream) if self.is_cuda else nullcontext()

    def finish(self) -> None:
        """Waits for all copies. Raises the error of the device, if there was one."""
        if self.is_cuda:
            self.stream.synchronize()


def pinned_pool(device: torch.device, buffers: int, nbytes: int = BUFFER) -> PinnedPool | None:
    """A pool for copies to or from a device; None if the system refuses pinned memory. It may have fewer buffers than
    asked for, but at least two. PyTorch keeps pinned memory for the next pool."""
    tensors = []
    try:
        for _ in range(buffers):
            # The device is given, because it may be another one by default: inside `with torch.device("cuda"):`.
            made = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=device.type == "cuda")
            tensors.append(made)
    except RuntimeError:  # for example, because the limit for locked memory is reached
        if len(tensors) < 2:
            return None
    return PinnedPool(device, tensors)
