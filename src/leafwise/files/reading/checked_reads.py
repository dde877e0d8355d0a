"""Reads bytes from files into memory, with several threads, and compares them with their checksums."""

from collections.abc import Iterable
from math import lcm, prod
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

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

_SMALL_BYTES = 1 << 20  # what is read or compared by this thread alone: starting others takes longer
_TASK_BYTES = 16 << 20  # bytes that a thread reads at a time
# Ranges of at most so many bytes are read together, if there are few bytes between them.
_FEW_BYTES, _GAP, _BUNDLE_BYTES = 1 << 16, 1 << 12, 1 << 20
# Bytes that a thread reads and compares at a time: what fits into its cache. With many threads more, because each call
# waits for Python's lock.
_BUFFER_BYTES = CHUNK if READERS <= 4 else 8 * CHUNK


class ScatteredParts:
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
    target: memoryview | ScatteredParts | Landing
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
    tasks: list[_ReadTask] = []
    largest = _TASK_BYTES if workers is None else executor_tasks.TASK_BYTES
    passes: list[tuple[str, Storage, ChecksumPass]] = []
    for name, storage in storages:
        if storage.checksums is not None:
            checksum_pass = storage.checksums.new_pass()
            passes.append((name, storage, checksum_pass))
            cuts = _cut(storage.nbytes, storage.checksums.piece, largest)
            tasks += [_ReadTask(storage, start, stop, checksum_pass) for start, stop in cuts]
    if workers is None:
        _carry_out(tasks, progress)
    else:
        parts = [_SentRange.of(task.storage, task.start, task.stop) for task in tasks]
        states = run_each(workers, _state_of, parts, lambda part: part.stop - part.start, progress)
        for task, state in zip(tasks, states, strict=True):
            assert task.checksum_pass is not None
            task.checksum_pass.include(task.start, state)
    raise_damage(passes)
    return sum(task.stop - task.start for task in tasks)


def _cut(nbytes: int, unit: int, most: int) -> Iterable[tuple[int, int]]:
    """`ranges`, but faster for the many arrays that are one range."""
    return ranges(nbytes, unit, most) if nbytes > most else ((0, nbytes),) if nbytes else ()


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
    # A file that was sent to another process has no checksums.
    _read(_ReadTask(part.storage, part.start, part.stop, checksum_pass, None, part.start), part.checksums.piece)
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
            tasks += [_ReadTask(storage, first + start, first + stop, checksum_pass) for start, stop in cuts]
    _carry_out(tasks, lambda count: None)
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
        (here if isinstance(target, memoryview | ScatteredParts) else on_devices).append((read, checksum_pass))
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
    if isinstance(target, memoryview | ScatteredParts) or not read.whole or sums is None:
        return read.whole
    assert transfers is not None
    transfer = transfers.of(target)
    return transfer is not None and target.is_flat and sums.piece <= transfer.nbytes and sums.piece % 16 == 0


def _fill_memory(reads: list[tuple[Read, ChecksumPass | None]], progress: Count) -> None:
    tasks: list[_ReadTask] = []
    for read, checksum_pass in reads:
        storage, origin, target, _ = read
        assert isinstance(target, memoryview | ScatteredParts)
        nbytes = len(target) if isinstance(target, memoryview) else target.nbytes
        cuts = _cut(nbytes, 1 if nbytes <= _TASK_BYTES else _unbroken(storage, target), _TASK_BYTES)
        tasks += [
            _ReadTask(storage, origin + start, origin + stop, checksum_pass, target, origin) for start, stop in cuts
        ]
    _carry_out(tasks, progress)


class _ReadTask(NamedTuple):
    """A range of a storage that is compared with its checksums, or copied to where it goes, or both. The pass and the
    target begin at the byte `origin` of the storage."""

    storage: Storage
    start: int
    stop: int
    checksum_pass: ChecksumPass | None
    target: memoryview | ScatteredParts | None = None
    origin: int = 0


def _carry_out(tasks: list[_ReadTask], progress: Count) -> None:
    """Reads ranges of storages: in several threads, if that is faster, and small neighbors in a local file at once."""

    def work(bundle: list[_ReadTask]) -> None:
        nbytes = sum(task.stop - task.start for task in bundle)
        if len(bundle) == 1:
            _read(bundle[0], _unbroken(bundle[0].storage, bundle[0].target))
        else:
            _read_together(bundle)
        progress(nbytes)

    sources = {id(task.storage.source): task.storage.source for task in tasks}.values()
    is_local = all(isinstance(source, LocalSource) for source in sources)
    is_small = is_local and sum(task.stop - task.start for task in tasks) <= _SMALL_BYTES
    in_threads(work, _bundles(tasks), 1 if is_small else _threads_for(sources))


def _bundles(tasks: list[_ReadTask]) -> list[list[_ReadTask]]:
    """Tasks that one read serves: small ranges of a local file that are close together. Any other task is alone."""
    alone = [[task] for task in tasks if not _is_small(task)]
    if len(alone) == len(tasks):
        return alone
    placed = [(id(task.storage.source), task.storage.start, task) for task in tasks if _is_small(task)]
    placed.sort(key=lambda place: (place[0], place[1] + place[2].start))
    bundles: list[list[_ReadTask]] = []
    key = began = end = 0
    for source, at, task in placed:
        start, stop = at + task.start, at + task.stop
        if bundles and source == key and start <= end + _GAP and stop <= began + _BUNDLE_BYTES:
            bundles[-1].append(task)
            end = max(end, stop)
        else:
            bundles.append([task])
            key, began, end = source, start, stop
    return alone + bundles


def _is_small(task: _ReadTask) -> bool:
    return (
        task.stop - task.start <= _FEW_BYTES
        and isinstance(task.storage.source, LocalSource)
        and not isinstance(task.target, ScatteredParts)
    )


def _read_together(bundle: list[_ReadTask]) -> None:
    """Does tasks that are neighbors in a file, in their order there."""
    source = bundle[0].storage.source
    starts = [task.storage.start + task.start for task in bundle]
    ends = [start + task.stop - task.start for start, task in zip(starts, bundle, strict=True)]
    data = memoryview(source.read(starts[0], max(ends)))
    for (_, start, stop, checksum_pass, target, origin), at in zip(bundle, starts, strict=True):
        view = data[at - starts[0] : at - starts[0] + stop - start]
        if checksum_pass is not None:
            checksum_pass.add(start - origin, view)
        if target is not None:
            assert isinstance(target, memoryview)
            target[start - origin : stop - origin] = view


def _unbroken(storage: Storage, target: "memoryview | ScatteredParts | Landing | None") -> int:
    """Bytes of which a thread must see a multiple: those that share a checksum, and those of an element."""
    unbroken = 1 if storage.checksums is None else storage.checksums.piece
    return lcm(unbroken, target.item) if isinstance(target, ScatteredParts) else unbroken


def _read(task: _ReadTask, unbroken: int) -> None:
    """Does one task, in multiples of the bytes that must not be cut. Local files are read a little at a time, because
    what is compared, or copied once more, should still be in the cache."""
    storage, start, stop, checksum_pass, target, origin = task
    is_local = isinstance(storage.source, LocalSource)
    if isinstance(target, memoryview):
        view = target[start - origin : stop - origin]
        if checksum_pass is None or not is_local:
            storage.read_into(start, view)
        if checksum_pass is None:
            return
    elif not is_local:
        view = memoryview(storage.read(start, stop))
    step = max(_BUFFER_BYTES // unbroken, 1) * unbroken
    size = 0 if not is_local or isinstance(target, memoryview) else max(min(step, stop - start), CHUNK)
    with scratch([size] if size else []) as buffers:
        for at in range(start, stop, step):
            last = min(at + step, stop)
            part = buffers[0][: last - at] if buffers else view[at - start : last - start]
            if is_local:
                storage.read_into(at, part)
            if checksum_pass is not None:
                checksum_pass.add(at - origin, part)
            if isinstance(target, ScatteredParts):
                target.take(at - origin, part)


def _threads_for(sources: Iterable[Source]) -> int:
    """How many threads read these sources: all cores, unless each thread needs a connection."""
    if all(isinstance(source, LocalSource) for source in sources):
        return READERS
    return CONNECTIONS if all(isinstance(source, RemoteSource) for source in sources) else THREADS


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
