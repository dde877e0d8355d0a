"""Reads bytes from files into memory, with several threads, and compares them with their checksums."""

from collections.abc import Callable, Iterable, Iterator
from math import lcm, prod
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from leafwise.core.capabilities.loading import Landing
from leafwise.core.dtypes import WORDS
from leafwise.core.home import Spec
from leafwise.core.memory.sharding import LocalPart, flat_boxes
from leafwise.core.path import escape, shown_file
from leafwise.core.work import executor_tasks
from leafwise.core.work.executor_tasks import Workers, run_each
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import CONNECTIONS, READERS, THREADS, in_threads, ranges
from leafwise.errors import ChecksumError, FileError
from leafwise.files.arrays.ranges import over, scratch
from leafwise.files.arrays.stored import ITEM_BYTES, Signed, Storage, Stored, Strided, numpy_dtype
from leafwise.files.arrays.subarrays import Subarray, is_dense, joined, touched
from leafwise.files.checksums import CHUNK, ChecksumPass, Checksums
from leafwise.files.sources.remote import RemoteSource
from leafwise.files.sources.source import BytesSource, LocalSource, Source

if TYPE_CHECKING:  # loads into the memory of the host do not need it
    from leafwise.files.reading.landings import Transfers

T = TypeVar("T")
_SMALL_BYTES = 1 << 20  # what is read or compared by this thread alone: starting others takes longer
_TASK_BYTES = 16 << 20  # bytes that a thread reads at a time
# Bytes that a thread reads and compares at a time: what fits into its cache. With many threads more, because each call
# waits for Python's lock.
_BUFFER_BYTES = CHUNK if READERS <= 4 else 8 * CHUNK


class Parts:
    """The parts in memory of an array whose bytes are read in C order: NumPy arrays that together are all of it."""

    def __init__(self, spec: Spec, parts: list[LocalPart]) -> None:
        self._shape, self.item, self._parts = spec.shape or (), ITEM_BYTES[spec.dtype], parts
        self.nbytes = spec.nbytes

    def take(self, start: int, view: memoryview) -> None:
        """Copies the bytes from `start` on, which are whole elements, to the parts that they belong to."""
        # As integers, because NumPy copies these fastest; a complex element may have 16 bytes.
        elements = over(view, WORDS.get(self.item, f"V{self.item}"))
        first = start // self.item
        for box in flat_boxes(self._shape, first, first + len(elements)):
            values = elements[box.local : box.local + prod(box.shape)].reshape(box.shape)
            for part in self._parts:
                overlap = part.overlap(box.first, box.shape)
                if overlap is not None:
                    part.value.view(elements.dtype)[overlap[0]] = values[overlap[1]]


class Read(NamedTuple):
    """Bytes of a storage from `start` on, and where they go: into memory, to the parts of an array, or to a device.
    Errors refer to the array as `name`."""

    storage: Storage
    start: int
    target: memoryview | Parts | Landing
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
            cuts = _cut(storage.nbytes, storage.checksums.piece, largest)
            tasks += [(storage, checksum_pass, start, stop) for start, stop in cuts]
    if workers is None:
        _compare(tasks, progress)
    else:
        parts = [_SentRange.of(storage, start, stop) for storage, _, start, stop in tasks]
        states = run_each(workers, _state_of, parts, lambda part: part.stop - part.start, progress)
        for (_, checksum_pass, start, _), state in zip(tasks, states, strict=True):
            checksum_pass.include(start, state)
    raise_damage(passes)
    return sum(stop - start for _, _, start, stop in tasks)


def _cut(nbytes: int, unit: int, most: int) -> Iterable[tuple[int, int]]:
    """`ranges`, but faster for the many arrays that are one range."""
    return ranges(nbytes, unit, most) if nbytes > most else ((0, nbytes),) if nbytes else ()


def _compare(tasks: list[tuple[Storage, ChecksumPass, int, int]], progress: Count) -> None:
    """Reads ranges of storages in several threads, and compares them with their checksums."""

    def compare(task: tuple[Storage, ChecksumPass, int, int]) -> None:
        storage, checksum_pass, start, stop = task
        assert storage.checksums is not None
        for first, data in _blocks(storage, start, stop, storage.checksums.piece):
            checksum_pass.add(first, data)
        progress(stop - start)

    nbytes = sum(stop - start for *_, start, stop in tasks)
    _in_threads(compare, tasks, [storage for storage, *_ in tasks], nbytes)


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


def fill(reads: list[Read], verify: bool, progress: Count, transfers: "Transfers | None" = None) -> None:
    """Reads bytes to where they go; to devices through `transfers`. With `verify`, compares the checksums of storages
    that have them: while reading if the storage is read whole, otherwise before. Raises an error that lists every
    damaged array."""
    passes: list[tuple[str, Storage, ChecksumPass]] = []
    before: dict[int, tuple[str, Storage]] = {}
    here: list[tuple[Read, ChecksumPass | None]] = []
    on_devices: list[tuple[Read, ChecksumPass | None]] = []
    for read in reads:
        storage, name, target = read.storage, read.name, read.target
        checksum_pass = None
        if verify and (sums := storage.checksums) is not None:
            if _compares_on_the_way(read, transfers):
                checksum_pass = sums.new_pass()
                passes.append((name, storage, checksum_pass))
            else:
                before[id(storage)] = name, storage
        (here if isinstance(target, memoryview | Parts) else on_devices).append((read, checksum_pass))
    if before:
        verify_storages(before.values(), lambda count: None)
    _fill_memory(here, progress)
    if on_devices:
        from leafwise.files.reading.landings import fill_landings

        assert transfers is not None
        fill_landings(on_devices, transfers, progress)
    raise_damage(passes)


def _compares_on_the_way(read: Read, transfers: "Transfers | None") -> bool:
    """Whether the threads that read a storage see each part of it that has a checksum as a whole."""
    target, sums = read.target, read.storage.checksums
    if isinstance(target, memoryview | Parts) or not read.whole or sums is None:
        return read.whole
    assert transfers is not None
    transfer = transfers.of(target)
    return transfer is not None and target.is_flat and sums.piece <= transfer.nbytes and sums.piece % 16 == 0


def _fill_memory(reads: list[tuple[Read, ChecksumPass | None]], progress: Count) -> None:
    tasks: list[tuple[Read, ChecksumPass | None, int, int]] = []
    for read, checksum_pass in reads:
        nbytes = read.nbytes
        cuts = _cut(nbytes, 1 if nbytes <= _TASK_BYTES else _unbroken(read), _TASK_BYTES)
        tasks += [(read, checksum_pass, start, stop) for start, stop in cuts]

    def work(task: tuple[Read, ChecksumPass | None, int, int]) -> None:
        _fill_range(*task)
        progress(task[3] - task[2])

    _in_threads(work, tasks, [read.storage for read, _ in reads], sum(stop - start for *_, start, stop in tasks))


def _unbroken(read: Read) -> int:
    """Bytes of which a thread must see a multiple: those that share a checksum, and those of an element."""
    sums = read.storage.checksums
    unbroken = 1 if sums is None else sums.piece
    return lcm(unbroken, read.target.item) if isinstance(read.target, Parts) else unbroken


def _fill_range(read: Read, checksum_pass: ChecksumPass | None, start: int, stop: int) -> None:
    storage, first, target = read.storage, read.start, read.target
    if isinstance(target, Parts):
        unbroken = _unbroken(read)
        step = max(_BUFFER_BYTES // unbroken, 1) * unbroken
        with scratch([min(step, stop - start)]) as [buffer]:
            for at in range(start, stop, step):
                view = buffer[: min(step, stop - at)]
                storage.read_into(first + at, view)
                if checksum_pass is not None:
                    checksum_pass.add(at, view)
                target.take(at, view)
        return
    assert isinstance(target, memoryview)
    if checksum_pass is None:
        storage.read_into(first + start, target[start:stop])
        return
    is_local = isinstance(storage.source, LocalSource)  # then it is compared while it is still in the cache
    if not is_local:
        storage.read_into(first + start, target[start:stop])
    piece = _unbroken(read)
    step = max(_BUFFER_BYTES // piece, 1) * piece
    for at in range(start, stop, step):
        view = target[at : min(at + step, stop)]
        if is_local:
            storage.read_into(at, view)
        checksum_pass.add(at, view)


def _in_threads(work: Callable[[T], None], tasks: list[T], storages: Iterable[Storage], nbytes: int) -> None:
    """Does tasks that read storages in several threads, if that is faster."""
    in_threads(work, tasks, 1 if nbytes <= _SMALL_BYTES and _all_local(storages) else _threads_for(storages))


def _all_local(storages: Iterable[Storage]) -> bool:
    return all(isinstance(storage.source, LocalSource) for storage in storages)


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
