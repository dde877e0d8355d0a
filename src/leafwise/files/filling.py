"""Bytes of files into memory that is there already, by several threads, checked on the way."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from leafwise.core.home import Spec
from leafwise.core.path import escape
from leafwise.errors import ChecksumError, FileError
from leafwise.files.arrays import Storage, numpy_dtype
from leafwise.files.checksums import checksummer
from leafwise.files.source import LocalSource, Source

_TASK = 16 << 20  # how many bytes a thread takes at a time
_THREADS = min(8, os.cpu_count() or 1)

Progress = Callable[[int], None]


class Run(NamedTuple):
    """Bytes of a storage, from `start` on, that shall fill some memory; and whose they are, to tell of damage."""

    storage: Storage
    start: int
    view: memoryview
    name: str

    @property
    def whole(self) -> bool:
        return self.start == 0 and len(self.view) == self.storage.nbytes


def empty(spec: Spec) -> tuple[Any, memoryview]:
    """A NumPy array of this shape and dtype, and its memory."""
    import numpy as np

    array = np.empty(spec.shape or (), numpy_dtype(spec.dtype))
    return array, array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def prove(storages: Iterable[tuple[str, Storage]], progress: Progress) -> int:
    """Reads storages that have checksums, and compares; raises with every one that is damaged. Says how many bytes it
    compared."""
    tasks = []
    for name, storage in storages:
        if storage.sums is not None:
            step = max(_TASK // storage.sums.chunk, 1) * storage.sums.chunk
            tasks += [
                (name, storage, start, min(start + step, storage.nbytes)) for start in range(0, storage.nbytes, step)
            ]
    damaged: list[tuple[str, Source, int]] = []
    checksum = checksummer()

    def compare(task: tuple[str, Storage, int, int]) -> None:
        name, storage, start, stop = task
        assert storage.sums is not None
        data = memoryview(storage.read(start, stop))
        for first, last, wanted in storage.sums.chunks(start, stop):
            if checksum(data[first - start : last - start]) != wanted:
                damaged.append((name, storage.source, storage.start + first))
        progress(stop - start)

    in_threads(compare, tasks)
    if damaged:
        raise _damage(damaged)
    return sum(stop - start for _, _, start, stop in tasks)


def fill(runs: list[Run], verify: bool, progress: Progress, proven: bool = False) -> None:
    """Reads each run into its memory. With `verify`, storages that have checksums are compared with them: those that
    are read whole as they come, others before; raises with every one that is damaged. `proven` is whether `prove` has
    just read all of it."""
    tasks = []
    if verify:
        prove([(run.name, run.storage) for run in runs if not run.whole], lambda count: None)
    for run in runs:
        chunk = run.storage.sums.chunk if run.storage.sums is not None else 1
        step = max(_TASK // chunk, 1) * chunk
        tasks += [(run, start, min(start + step, len(run.view))) for start in range(0, len(run.view), step)]
    damaged: list[tuple[str, Source, int]] = []

    def read(task: tuple[Run, int, int]) -> None:
        run, start, stop = task
        sums = run.storage.sums if verify and run.whole else None
        if sums is None:
            was_read = proven and run.storage.sums is not None
            _read_into(run.storage, run.start + start, run.view[start:stop], was_read)
        else:
            checksum = checksummer()
            for first, last, wanted in sums.chunks(start, stop):
                part = run.view[first:last]
                _read_into(run.storage, first, part)
                if checksum(part) != wanted:
                    damaged.append((run.name, run.storage.source, run.storage.start + first))
        progress(stop - start)

    in_threads(read, tasks)
    if damaged:
        raise _damage(damaged)


def _read_into(storage: Storage, start: int, view: memoryview, mapped: bool = False) -> None:
    import numpy as np

    source = storage.source
    # Through the map only where all of it is mapped already, because it was compared: else to map costs more than a
    # copy saves, and what is mapped counts as memory of this process.
    if isinstance(source, LocalSource) and not mapped:
        source.read_into(storage.start + start, view)
    else:
        # NumPy lets other threads work while it copies.
        np.frombuffer(view, np.uint8)[:] = np.frombuffer(storage.read(start, start + len(view)), np.uint8)


def in_threads(work: Callable[[Any], None], tasks: list[Any]) -> None:
    """Does some work for each task."""
    if len(tasks) < 2 or _THREADS < 2:
        for task in tasks:
            work(task)
        return
    # Small tasks go to a thread many at a time: handing one over costs as much as reading some kilobytes.
    size = max(1, min(64, len(tasks) // (4 * _THREADS)))
    bundles = [tasks[start : start + size] for start in range(0, len(tasks), size)]

    def do(bundle: list[Any]) -> None:
        for task in bundle:
            work(task)

    with ThreadPoolExecutor(_THREADS) as pool:
        futures = [pool.submit(do, bundle) for bundle in bundles]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _damage(damaged: list[tuple[str, Source, int]]) -> ChecksumError:
    damaged.sort(key=lambda one: (one[1].name, one[2]))
    name, source, offset = damaged[0]
    leaves = list(dict.fromkeys(name for name, _, _ in damaged))
    also = f"; also damaged: {', '.join(map(escape, leaves[1:9]))}" if len(leaves) > 1 else ""
    also += f" and {len(leaves) - 9:,} more" if len(leaves) > 9 else ""
    where = f"{escape(repr(source.name))} at byte {offset:,}"
    return ChecksumError(f"{where}: {escape(name)} is damaged: its checksum does not match{also}", tuple(leaves))


def unchanged(sources: Iterable[Source]) -> None:
    """Raises where a file was written to since it was opened."""
    for source in sources:
        if source.was_changed():
            raise FileError(f"{escape(repr(source.name))} was changed while it was being read; open it again")
