"""Reads bytes from files into memory, with several threads, and compares them with their checksums."""

from collections.abc import Iterable, Iterator
from operator import methodcaller
from typing import Any, NamedTuple

from leafwise.core.capabilities.loading import Landing
from leafwise.core.home import Spec
from leafwise.core.path import escape, shown_file
from leafwise.core.work import executor_tasks
from leafwise.core.work.executor_tasks import Workers, run_each
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import CONNECTIONS, READERS, THREADS, in_threads, ranges
from leafwise.errors import ChecksumError, FileError
from leafwise.files.arrays.ranges import scratch
from leafwise.files.arrays.stored import Signed, Storage, Stored, Strided, numpy_dtype
from leafwise.files.arrays.subarrays import Subarray, is_dense, joined, touched
from leafwise.files.checksums import CHUNK, ChecksumPass, Checksums
from leafwise.files.reading.landings import LandingRead, Transfers, fill_landings
from leafwise.files.sources.remote import RemoteSource
from leafwise.files.sources.source import BytesSource, LocalSource, Source

_TASK_BYTES = 16 << 20  # bytes that a thread reads at a time
# Bytes that a thread reads and compares at a time: what fits into its cache. With many threads more, because each call
# waits for Python's lock.
_BUFFER_BYTES = CHUNK if READERS <= 4 else 8 * CHUNK


class ReadRequest(NamedTuple):
    """A request to fill memory with the bytes of a storage from `start` on. Errors refer to the array as `name`."""

    storage: Storage
    start: int
    target: memoryview | Landing
    name: str

    @property
    def nbytes(self) -> int:
        return len(self.target) if isinstance(self.target, memoryview) else self.target.nbytes

    @property
    def whole(self) -> bool:
        return self.start == 0 and self.nbytes == self.storage.nbytes


def empty(spec: Spec) -> tuple[Any, memoryview]:
    """A NumPy array of this shape and dtype, and its memory."""
    import numpy as np

    array = np.empty(spec.shape or (), numpy_dtype(spec.dtype))
    return array, array.reshape(-1).view(np.uint8).data if array.size else memoryview(bytearray())


def verify_storages(storages: Iterable[tuple[str, Storage]], progress: Count, workers: Workers | None = None) -> int:
    """Reads the storages that have checksums, and compares them. Raises an error that lists every damaged array.
    Returns the number of bytes that were compared."""
    tasks = []
    largest = _TASK_BYTES if workers is None else executor_tasks.TASK_BYTES
    passes: list[tuple[str, Storage, ChecksumPass]] = []
    for name, storage in storages:
        if storage.checksums is not None:
            checksum_pass = storage.checksums.new_pass()
            passes.append((name, storage, checksum_pass))
            tasks += [
                (storage, checksum_pass, start, stop)
                for start, stop in ranges(storage.nbytes, storage.checksums.piece, largest)
            ]
    if workers is None:
        _compare(tasks, progress)
    else:
        parts = [_SentRange.of(storage, start, stop) for storage, _, start, stop in tasks]
        states = run_each(workers, _state_of, parts, lambda part: part.stop - part.start, progress)
        for (_, checksum_pass, start, _), state in zip(tasks, states, strict=True):
            checksum_pass.include(start, state)
    raise_damage(passes)
    return sum(stop - start for _, _, start, stop in tasks)


def _compare(tasks: list[tuple[Storage, ChecksumPass, int, int]], progress: Count) -> None:
    """Reads ranges of storages in several threads, and compares them with their checksums."""

    def compare(task: tuple[Storage, ChecksumPass, int, int]) -> None:
        storage, checksum_pass, start, stop = task
        assert storage.checksums is not None
        for first, data in _blocks(storage, start, stop, storage.checksums.piece):
            checksum_pass.add(first, data)
        progress(stop - start)

    in_threads(compare, tasks, _threads_for(storage for storage, *_ in tasks))


class _SentRange(NamedTuple):
    """A range of a storage, with its checksums, which another process compares."""

    storage: Storage
    checksums: Checksums
    start: int
    stop: int

    @classmethod
    def of(cls, storage: Storage, start: int, stop: int) -> "_SentRange":
        assert storage.checksums is not None
        return cls(storage, storage.checksums.part(start, stop), start, stop)


def _state_of(part: _SentRange) -> Any:
    """What a pass over a range found out."""
    checksum_pass = part.checksums.new_pass()
    for first, data in _blocks(part.storage, part.start, part.stop, part.checksums.piece):
        checksum_pass.add(first - part.start, data)
    return checksum_pass.state()


def verify_arrays(
    arrays: Iterable[tuple[str, Stored]], progress: Count = lambda count: None, workers: Workers | None = None
) -> int:
    """Does the same for all storages of these arrays, each once, and reads the arrays that check themselves."""
    storages: dict[int, tuple[str, Storage]] = {}
    alone: list[Stored] = []  # arrays that check themselves
    for name, array in arrays:
        if array.checks_itself:
            alone.append(array)
        for storage in array.storages():
            storages.setdefault(id(storage), (name, storage))
    compared = verify_storages(storages.values(), progress, workers)

    def check(array: Stored) -> None:
        array.check()
        progress(array.spec.nbytes)

    if workers is None:
        in_threads(check, alone)
    else:
        run_each(workers, methodcaller("check"), alone, lambda array: array.spec.nbytes, progress)
    return compared + sum(array.spec.nbytes for array in alone)


def verify_subarrays(subarrays: Iterable[tuple[str, Stored]]) -> None:
    """Compares the checksums of parts of arrays, and of as little else as possible: each checksum that covers a byte of
    a part, once. Raises an error that lists every damaged array."""
    used: dict[int, list[tuple[int, int]]] = {}
    passes: dict[int, tuple[str, Storage, ChecksumPass]] = {}
    alone: dict[int, Stored] = {}
    for name, array in subarrays:
        if array.checks_itself:
            alone[id(array.of if isinstance(array, Subarray) and not array.checks_parts else array)] = array
        for storage, start, stop in touched(array):
            assert storage.checksums is not None
            used.setdefault(id(storage), []).append((start, stop))
            passes.setdefault(id(storage), (name, storage, storage.checksums.new_pass()))
    tasks = []
    for key, (_, storage, checksum_pass) in passes.items():
        assert storage.checksums is not None
        for first, last in joined(used[key]):
            cuts = ranges(last - first, storage.checksums.piece, _TASK_BYTES)
            tasks += [(storage, checksum_pass, first + start, first + stop) for start, stop in cuts]
    _compare(tasks, lambda count: None)
    raise_damage(list(passes.values()))
    in_threads(lambda array: array.check(), list(alone.values()))


def checked_subarray(name: str, array: Stored) -> Any:
    """The values of a part of an array, compared with their checksums. If they are close together, nothing is read
    twice, which matters for files on other machines."""
    storages = array.storages()
    sums = storages[0].checksums if len(storages) == 1 and array.spec.size else None
    if sums is None or not isinstance(array, Strided) or array.checks_itself or not is_dense(array):
        verify_subarrays([(name, array)])
        return array.read().copy()
    ((storage, start, stop),) = touched(array)
    data = storage.read(start, stop)
    checksum_pass = sums.new_pass()
    checksum_pass.add(start, data)
    raise_damage([(name, storage, checksum_pass)])
    copied = Storage(BytesSource(storage.source.name, data), 0, stop - start)
    over: Strided
    if isinstance(array, Signed):
        over = Signed(array.spec, copied, array.offset - start, array.memory().strides, array.signs)
    else:
        over = Strided(array.spec, copied, array.offset - start, array.memory().strides, array.big_endian)
    return over.read().copy()


def fill(requests: list[ReadRequest], verify: bool, progress: Count, transfers: Transfers | None = None) -> None:
    """Reads the bytes for each request into its memory; what is on devices, through `transfers`. With `verify`,
    compares the checksums of storages that have them: while reading if the storage is read whole, otherwise before.
    Raises an error that lists every damaged array."""
    transfers = transfers or Transfers()
    passes: list[tuple[str, Storage, ChecksumPass]] = []
    before: list[tuple[str, Storage]] = []
    in_memory: list[tuple[ReadRequest, ChecksumPass | None]] = []
    on_devices: list[LandingRead] = []
    for request in requests:
        checksum_pass = None
        if verify and request.storage.checksums is not None:
            if _compares_on_the_way(request, transfers):
                checksum_pass = request.storage.checksums.new_pass()
                passes.append((request.name, request.storage, checksum_pass))
            else:
                before.append((request.name, request.storage))
        if isinstance(request.target, memoryview):
            in_memory.append((request, checksum_pass))
        else:
            on_devices.append(LandingRead(request.storage, request.start, request.target, checksum_pass))
    if before:
        verify_storages({id(storage): (name, storage) for name, storage in before}.values(), lambda count: None)
    _fill_memory(in_memory, progress)
    if on_devices:
        fill_landings(on_devices, transfers, progress)
    raise_damage(passes)


def _compares_on_the_way(request: ReadRequest, transfers: Transfers) -> bool:
    """Whether the threads that read a storage see each part of it that has a checksum as a whole."""
    landing, sums = request.target, request.storage.checksums
    if isinstance(landing, memoryview) or not request.whole or sums is None:
        return request.whole
    transfer = transfers.of(landing)
    return transfer is not None and landing.is_flat and sums.piece <= transfer.nbytes and sums.piece % 16 == 0


def _fill_memory(requests: list[tuple[ReadRequest, ChecksumPass | None]], progress: Count) -> None:
    tasks = []
    for request, checksum_pass in requests:
        piece = 1 if request.storage.checksums is None else request.storage.checksums.piece
        tasks += [(request, checksum_pass, start, stop) for start, stop in ranges(request.nbytes, piece, _TASK_BYTES)]

    def read(task: tuple[ReadRequest, ChecksumPass | None, int, int]) -> None:
        request, checksum_pass, start, stop = task
        assert isinstance(request.target, memoryview)
        if checksum_pass is None or not isinstance(request.storage.source, LocalSource):
            request.storage.read_into(request.start + start, request.target[start:stop])
        if checksum_pass is not None:
            assert request.storage.checksums is not None
            piece = request.storage.checksums.piece
            step = max(_BUFFER_BYTES // piece, 1) * piece
            for first in range(start, stop, step):
                part = request.target[first : min(first + step, stop)]
                if isinstance(request.storage.source, LocalSource):  # compared while it is still in the cache
                    request.storage.read_into(first, part)
                checksum_pass.add(first, part)
        progress(stop - start)

    in_threads(read, tasks, _threads_for(request.storage for request, _ in requests))


def _threads_for(storages: Iterable[Storage]) -> int:
    """How many threads read these storages: all cores, unless each thread needs a connection."""
    sources = {id(storage.source): storage.source for storage in storages}.values()
    if all(isinstance(source, LocalSource) for source in sources):
        return READERS
    return CONNECTIONS if all(isinstance(source, RemoteSource) for source in sources) else THREADS


def _blocks(storage: Storage, start: int, stop: int, piece: int) -> Iterator[tuple[int, Any]]:
    """The bytes from `start` to `stop`, in multiples of the bytes that have one checksum. Local files are read through
    one buffer per thread, which is small enough to stay in the cache."""
    if not isinstance(storage.source, LocalSource):
        yield start, memoryview(storage.read(start, stop))
        return
    step = max(_BUFFER_BYTES // piece, 1) * piece
    with scratch([max(min(step, stop - start), CHUNK)]) as [buffer]:
        for at in range(start, stop, step):
            part = buffer[: min(step, stop - at)]
            storage.read_into(at, part)
            yield at, part


def raise_damage(passes: list[tuple[str, Storage, ChecksumPass]]) -> None:
    """Raises an error that lists every damaged array, by its name, if a pass that is complete found damage."""
    damaged = [
        (name, storage.source, storage.start + offset)
        for name, storage, checksum_pass in passes
        for offset in checksum_pass.damaged()
    ]
    if not damaged:
        return
    damaged.sort(key=lambda damage: (damage[1].name, damage[2]))
    name, source, offset = damaged[0]
    leaves = list(dict.fromkeys(name for name, _, _ in damaged))
    also = f"; also damaged: {', '.join(map(escape, leaves[1:9]))}" if len(leaves) > 1 else ""
    also += f" and {len(leaves) - 9:,} more" if len(leaves) > 9 else ""
    where = f"{shown_file(source.name)} at byte {offset:,}"
    raise ChecksumError(f"{where}: {escape(name)} is damaged: its checksum does not match{also}", tuple(leaves))


def unchanged(sources: Iterable[Source]) -> None:
    """Raises if a file was changed since it was opened. Each is asked once, however often it is given."""
    for source in {id(source): source for source in sources}.values():
        if source.was_changed():
            raise FileError(f"{shown_file(source.name)} was changed while it was being read; open it again")
