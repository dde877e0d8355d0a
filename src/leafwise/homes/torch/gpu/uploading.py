"""Values in files or in memory of the host, copied to a device by several threads, through pinned memory."""

import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from leafwise.core.capabilities.comparing import OtherArray
from leafwise.core.memory.runs import Run, UnreadError
from leafwise.homes.torch.gpu.pinned import BUFFER, PinnedPool, pinned_pool
from leafwise.kernels.cpu import threads_here

_MOST_THREADS = 16


class RunSource:
    """A run, which is read in any order. `number` and `side` are for the error if it cannot be read."""

    in_order = False  # whether it can only be read in order, by one thread

    def __init__(self, run: Run, number: int, side: int) -> None:
        self._run, self._number, self._side = run, number, side

    def read_into(self, start: int, view: memoryview) -> None:
        at = self._run.address + start
        if self._run.file < 0:
            np.copyto(np.frombuffer(view, np.uint8), _memory(at, len(view)))
            return
        done = 0
        while done < len(view):
            try:
                count = os.preadv(self._run.file, [view[done:]], at + done)
            except OSError as error:
                raise UnreadError(self._number, self._side) from error
            if not count:
                raise UnreadError(self._number, self._side)
            done += count


def _memory(address: int, nbytes: int) -> Any:
    """Memory of this process as a NumPy array."""
    interface = {"data": (address, True), "shape": (nbytes,), "typestr": "|u1", "version": 3}
    return np.asarray(type("Memory", (), {"__array_interface__": interface})())


class PieceSource:
    """Bytes that come in pieces of any length, one after the other."""

    in_order = True

    def __init__(self, pieces: Iterable[Any]) -> None:
        self._pieces: Iterator[Any] = iter(pieces)
        self._left = np.zeros(0, np.uint8)  # the rest of the last piece

    def read_into(self, start: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            if not len(self._left):
                piece = next(self._pieces, None)
                if piece is None:
                    raise ValueError("there are fewer values than the shape says")
                self._left = np.frombuffer(piece, np.uint8)
            count = min(len(self._left), len(view) - done)
            view[done : done + count] = self._left[:count].data
            self._left = self._left[count:]
            done += count

    def check_end(self) -> None:
        """Raises if there are values that were not read."""
        if len(self._left) or any(memoryview(piece).nbytes for piece in self._pieces):
            raise ValueError("there are more values than the shape says")


def source_of(array: OtherArray, number: int, side: int) -> RunSource | PieceSource:
    if array.run is None or (array.run.file >= 0 and not hasattr(os, "preadv")):  # which Windows does not have
        return PieceSource(array.pieces())
    return RunSource(array.run, number, side)


class Segment(NamedTuple):
    """Bytes to copy: from a source, beginning at `start`, to the place `at` in the memory of the device."""

    source: RunSource | PieceSource
    start: int
    at: int
    nbytes: int


class Uploader:
    """Copies bytes to a device. Use it in a `with` statement, which waits for all copies. `pool` is None if the system
    refuses pinned memory; nothing can be copied then."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        threads = min(threads_here(), _MOST_THREADS, nbytes // BUFFER + 1)
        self.pool: PinnedPool | None = pinned_pool(device, threads + 2)
        self._threads = ThreadPoolExecutor(threads)

    def __enter__(self) -> "Uploader":
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        if self.pool is not None:
            self.pool.finish()

    def start(self, target: torch.Tensor, segments: list[Segment]) -> list["Future[None]"]:
        """Starts copying segments, in ascending order of their places, to a tensor of bytes. The copies are queued on
        the stream of the pool when the results are there. A source that must be read in order is read at once."""
        futures = []
        for base, slab in _slabs(segments):
            if any(segment.source.in_order for segment in slab):
                self._copy(target, base, slab)
            else:
                futures.append(self._threads.submit(self._copy, target, base, slab))
        return futures

    def _copy(self, target: torch.Tensor, base: int, slab: list[Segment]) -> None:
        assert self.pool is not None
        with self.pool.buffer() as buffer:
            for source, start, at, nbytes in slab:
                source.read_into(start, buffer.view[at - base : at - base + nbytes])
            end = slab[-1].at + slab[-1].nbytes - base
            self.pool.copy(target[base : base + end], buffer.tensor[:end], buffer)


def _slabs(segments: list[Segment]) -> Iterator[tuple[int, list[Segment]]]:
    """Segments, cut so that each group fits into a buffer, with the place of the first."""
    slab: list[Segment] = []
    for source, start, at, nbytes in segments:
        done = 0
        while done < nbytes:
            if slab and at + done - slab[0].at >= BUFFER:
                yield slab[0].at, slab
                slab = []
            base = slab[0].at if slab else at + done
            count = min(nbytes - done, base + BUFFER - at - done)
            slab.append(Segment(source, start + done, at + done, count))
            done += count
    if slab:
        yield slab[0].at, slab
