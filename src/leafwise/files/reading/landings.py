"""Reads bytes of files to devices, through buffers of the host, which bound the memory.

Local files are read by threads of the C code, which also compute checksums; one thread of Python compares them, and
queues the copies to the device. Threads of Python would wait for its lock longer than they read. Other sources are read
by those: each thread fills a buffer, compares checksums, and queues the copy."""

import threading
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from leafwise.core.capabilities.loading import Landing, Transfer
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import READERS, THREADS, in_threads
from leafwise.errors import FileError
from leafwise.files.arrays.stored import Storage
from leafwise.files.checksums import ChecksumPass
from leafwise.files.reading.checked_reads import Read, ScatteredParts
from leafwise.files.sources.source import LocalSource, Source

if TYPE_CHECKING:  # it imports NumPy, which listing a file must not need
    from leafwise.kernels.reading import ReadRange, ThreadedReader

_ALIGNED = 16  # bytes; the largest elements have as many
_GAP = 4096  # bytes between two arrays that are read, rather than skipped
# Threads of the C code. With one for each core, the thread that queues the copies waits for a core.
_C_READERS = READERS - READERS // 8
# Microseconds to wait for a full buffer: while copies are under way, whose buffers can be filled again when they are
# done; and otherwise, until Python handles signals.
_SHORT, _LONG = 100, 50_000


class Transfers:
    """The transfers of one load, one for each device. Each is opened when it is first needed."""

    def __init__(self) -> None:
        self._by_device: dict[Hashable, Transfer | None] = {}

    def of(self, landing: Landing) -> Transfer | None:
        """What copies to the device of a landing; None if there is no memory for it."""
        if landing.device not in self._by_device:
            self._by_device[landing.device] = landing.transfer()
        transfer = self._by_device[landing.device]
        return transfer if transfer is not None and transfer.takes(landing) else None

    @property
    def _opened(self) -> list[Transfer]:
        return [transfer for transfer in self._by_device.values() if transfer is not None]

    def begin(self) -> None:
        """Called before copies are queued, when all arrays have their memory."""
        for transfer in self._opened:
            transfer.begin()

    def spare(self, landings: list[Landing]) -> list[Landing | None]:
        """For each landing, one in spare memory of its device; None if there is too little."""
        spare: list[Landing | None] = [None] * len(landings)
        for transfer, numbers in self._grouped(landings):
            given = transfer.spare([landings[number] for number in numbers])
            for number, landing in zip(numbers, given, strict=True):
                spare[number] = landing
        return spare

    def release(self) -> None:
        """Frees spare memory, even if an error keeps the landings alive."""
        for transfer in self._opened:
            transfer.release()

    def move(self, pairs: list[tuple[Landing, Landing]]) -> None:
        """Copies values from spare memory to the landings that they were read for."""
        for transfer, numbers in self._grouped([landing for landing, _ in pairs]):
            transfer.move([pairs[number] for number in numbers])

    def _grouped(self, landings: list[Landing]) -> list[tuple[Transfer, list[int]]]:
        groups: dict[Hashable, list[int]] = {}
        for number, landing in enumerate(landings):
            groups.setdefault(landing.device, []).append(number)
        opened = [(self._by_device.get(device), numbers) for device, numbers in groups.items()]
        return [(transfer, numbers) for transfer, numbers in opened if transfer is not None]

    def finish(self) -> None:
        """Waits for all copies. Raises the first error of a device."""
        errors: list[Exception] = []
        for transfer in self._opened:
            try:
                transfer.finish()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


class _BufferPart(NamedTuple):
    """A part of a task: the bytes of a storage from `start` on, at `position` of the buffer."""

    storage: Storage
    start: int
    position: int
    nbytes: int
    place: Any
    checksum_pass: ChecksumPass | None

    @property
    def end(self) -> int:
        return self.position + self.nbytes

    @property
    def lead(self) -> tuple[Source, int]:
        """Equal for parts that one read can fill: the source, and where the buffer begins in it."""
        return self.storage.source, self.storage.start + self.start - self.position


class _BufferTask(NamedTuple):
    transfer: Transfer
    parts: list[_BufferPart]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    @property
    def copies(self) -> list[tuple[int, int, Any]]:
        return [(part.position, part.end, part.place) for part in self.parts]


def fill_landings(reads: list[tuple[Read, ChecksumPass | None]], transfers: Transfers, progress: Count) -> None:
    """Reads every range to its device, and adds it to the pass that compares its checksums, if there is one. When this
    returns or raises, no copy is under way."""

    def work(task: _BufferTask) -> None:
        with task.transfer.buffer() as buffer:
            _read(task.parts, buffer.view)
            with task.transfer.copying():
                task.transfer.copy(buffer, task.copies)
        progress(task.nbytes)

    is_local = all(isinstance(read.storage.source, LocalSource) for read, _ in reads)
    tasks = _tasks(reads, transfers)
    transfers.begin()
    try:
        others = _fill_in_c(tasks, progress)
        in_threads(work, others, READERS if is_local else THREADS)
    except BaseException:
        with suppress(Exception):  # the first error says more
            transfers.finish()
        raise
    transfers.finish()


def _fill_in_c(tasks: list[_BufferTask], progress: Count) -> list[_BufferTask]:
    """Does the tasks that the C code can read; returns the others."""
    from leafwise.kernels.reading import can_read

    others: list[_BufferTask] = []
    by_transfer: dict[int, list[tuple[_BufferTask, list[ReadRange]]]] = {}
    for task in tasks:
        ranges = _ranges(task.parts) if can_read() else None
        if ranges is None:
            others.append(task)
        else:
            by_transfer.setdefault(id(task.transfer), []).append((task, ranges))
    for group in by_transfer.values():
        _fill_from_reader(group, progress)
    return others


def _fill_from_reader(group: list[tuple[_BufferTask, list["ReadRange"]]], progress: Count) -> None:
    from leafwise.kernels.reading import ThreadedReader

    transfer = group[0][0].transfer
    most = min(transfer.most, len(group))
    copied: deque[tuple[int, Any]] = deque()  # buffers with copies that may be under way, in the order of the copies
    left = len(group)
    with (
        ThreadedReader([ranges for _, ranges in group], most, min(_C_READERS, left)) as reader,
        _lent(transfer, reader, most) as buffers,
        transfer.copying(),
    ):
        while left:
            while copied and transfer.is_copied(copied[0][1]):
                reader.give(copied.popleft()[0])
            filled = reader.wait(_SHORT if copied else _LONG)
            if filled is None:
                continue
            number, buffer_number, is_read = filled
            task, buffer = group[number][0], buffers[buffer_number]
            if is_read:
                _compare(task.parts, reader, number, buffer.view)
            else:
                _read(task.parts, buffer.view)  # raises the reason
            transfer.copy(buffer, task.copies)
            copied.append((buffer_number, buffer))
            progress(task.nbytes)
            left -= 1


@contextmanager
def _lent(transfer: Transfer, reader: "ThreadedReader", most: int) -> Iterator[list[Any]]:
    """Buffers of a transfer, by the numbers that they have in a reader. Another thread makes most of them: pinning
    takes time, in which the first ones are filled and copied."""
    buffers: list[Any] = []
    is_done = threading.Event()

    def add() -> bool:
        buffer = transfer.take()
        if buffer is not None:
            buffers.append(buffer)  # first: the reader may return it at once
            reader.add(buffer.view)
        return buffer is not None

    def add_others() -> None:
        while len(buffers) < most and not is_done.is_set() and add():
            pass

    others = threading.Thread(target=add_others, daemon=True)
    try:
        add()
        if most > 1:
            others.start()
        yield buffers
    finally:
        is_done.set()
        if others.ident is not None:
            others.join()
        reader.close()  # before the buffers are used for anything else
        for buffer in buffers:
            transfer.give(buffer)


def _compare(parts: list[_BufferPart], reader: "ThreadedReader", task: int, view: memoryview) -> None:
    """Compares the checksums that a reader computed, and those of pieces that are too short for it."""
    for number, part in enumerate(parts, -len(parts)):  # their ranges are the last ones of the task
        if part.checksum_pass is not None:
            piece = _piece(part)
            checksums = reader.checksums(task, number, part.nbytes, piece)
            part.checksum_pass.add_checksums(part.start, checksums)
            done = min(len(checksums) * piece, part.nbytes)
            if done < part.nbytes:
                part.checksum_pass.add(part.start + done, view[part.position + done : part.end])


def _piece(part: _BufferPart) -> int:
    assert part.storage.checksums is not None
    return part.storage.checksums.piece


def _ranges(parts: list[_BufferPart]) -> list["ReadRange"] | None:
    """What the C code reads for the parts of a task: neighbors in a file together, then a range for each part. None if
    it cannot: there is an error to raise, or bytes are not in a local file, or checksums are of another kind."""
    from leafwise.kernels.reading import ReadRange

    together, ranges = [], []
    for run in _runs(parts):
        source, lead = run[0].lead
        begin, end = run[0].position, run[-1].end
        try:
            place = source.in_file(lead + begin, lead + end)
        except FileError:
            return None
        if place is None or not all(
            part.checksum_pass is None or part.checksum_pass.add_checksums(0, []) for part in run
        ):
            return None
        file, offset = place
        if len(run) > 1:
            together.append(ReadRange(file, offset, begin, end - begin))
            file = -1
        for part in run:
            piece = 0 if part.checksum_pass is None else _piece(part)
            ranges.append(ReadRange(file, offset, part.position, part.nbytes, piece))
    return [*together, *ranges]


def _runs(parts: list[_BufferPart]) -> Iterator[list[_BufferPart]]:
    """ScatteredParts that one read can fill."""
    first = 0
    for number, part in enumerate(parts):
        if number + 1 == len(parts) or parts[number + 1].lead != part.lead:
            yield parts[first : number + 1]
            first = number + 1


def _read(parts: list[_BufferPart], view: memoryview) -> None:
    """Fills a buffer, with one read for parts that are neighbors in a file, and compares checksums."""
    for run in _runs(parts):
        begin, end = run[0].position, run[-1].end
        source, lead = run[0].lead
        source.read_into(lead + begin, view[begin:end])
    for part in parts:
        if part.checksum_pass is not None:
            part.checksum_pass.add(part.start, view[part.position : part.end])


def _tasks(reads: list[tuple[Read, ChecksumPass | None]], transfers: Transfers) -> list[_BufferTask]:
    """Divides what is to be read into tasks of at most one buffer. Small arrays share a task, in the order in which
    they are in their files."""
    tasks: list[_BufferTask] = []
    open_tasks: dict[int, _BufferTask] = {}  # by transfer, the one that the next array may be added to
    in_order = sorted(reads, key=lambda pair: (id(pair[0].storage.source), pair[0].storage.start + pair[0].start))
    for (storage, first, landing, _), checksum_pass in in_order:
        assert not isinstance(landing, memoryview | ScatteredParts)
        transfer = transfers.of(landing)
        assert transfer is not None
        piece = _ALIGNED if checksum_pass is None or storage.checksums is None else storage.checksums.piece
        for start, stop, place in landing.places(transfer.nbytes, piece):
            part = _BufferPart(storage, first + start, 0, stop - start, place, checksum_pass)
            task = open_tasks.get(id(transfer))
            position = None if task is None else _position(task, part, landing)
            if task is None or position is None:
                task, position = _BufferTask(transfer, []), 0
                tasks.append(task)
                open_tasks[id(transfer)] = task
            task.parts.append(part._replace(position=position) if position else part)
    return tasks


def _position(task: _BufferTask, part: _BufferPart, landing: Landing) -> int | None:
    """Where a part goes in the buffer of a task; None if there is no room for it."""
    last = task.parts[-1]
    end = last.end
    source, lead = last.lead
    position = part.storage.start + part.start - lead
    is_near = part.storage.source is source and end <= position <= end + _GAP and position % landing.itemsize == 0
    if not is_near:
        position = -(-end // _ALIGNED) * _ALIGNED
    return position if position + part.nbytes <= task.transfer.nbytes else None
