"""Reads bytes of files to devices, in several threads: each fills a buffer of the host, compares checksums, and queues
the copy to the device, while other threads read. Memory is bounded by the buffers."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, NamedTuple

from leafwise.core.capabilities.loading import Landing, Transfer
from leafwise.core.threads import READERS, THREADS, in_threads
from leafwise.files.arrays import Storage
from leafwise.files.checksums import ChecksumPass
from leafwise.files.source import LocalSource, Source

_ALIGNED = 16  # bytes; the largest elements have as many
_GAP = 4096  # bytes between two arrays that are read, rather than skipped


class LandingRead(NamedTuple):
    """A range of a storage that goes to a device, and the pass that compares its checksums, if any."""

    storage: Storage
    start: int
    landing: Landing
    checksum_pass: ChecksumPass | None


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

    def begin(self) -> None:
        """Called before copies are queued, when all arrays have their memory."""
        for transfer in self._by_device.values():
            if transfer is not None:
                transfer.begin()

    def finish(self) -> None:
        """Waits for all copies. Raises the first error of a device."""
        errors: list[Exception] = []
        for transfer in self._by_device.values():
            try:
                if transfer is not None:
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


def fill_landings(reads: list[LandingRead], transfers: Transfers, progress: Callable[[int], None]) -> None:
    """Reads every range to its device. When this returns or raises, no copy is under way."""

    def work(task: _BufferTask) -> None:
        with task.transfer.buffer() as buffer:
            _read(task.parts, buffer.view)
            task.transfer.copy(buffer, [(part.position, part.end, part.place) for part in task.parts])
        progress(sum(part.nbytes for part in task.parts))

    is_local = all(isinstance(read.storage.source, LocalSource) for read in reads)
    tasks = _tasks(reads, transfers)
    transfers.begin()
    try:
        in_threads(work, tasks, READERS if is_local else THREADS)
    except BaseException:
        with suppress(Exception):  # the first error says more
            transfers.finish()
        raise
    transfers.finish()


def _read(parts: list[_BufferPart], view: memoryview) -> None:
    """Fills a buffer, with one read for parts that are neighbors in a file, and compares checksums."""
    first = 0
    for number, part in enumerate(parts):
        if number + 1 < len(parts) and parts[number + 1].lead == part.lead:
            continue
        begin, end = parts[first].position, part.end
        source, lead = part.lead
        source.read_into(lead + begin, view[begin:end])
        first = number + 1
    for part in parts:
        if part.checksum_pass is not None:
            part.checksum_pass.add(part.start, view[part.position : part.end])


def _tasks(reads: list[LandingRead], transfers: Transfers) -> list[_BufferTask]:
    """Divides what is to be read into tasks of at most one buffer. Small arrays share a task, in the order in which
    they are in their files."""
    tasks: list[_BufferTask] = []
    open_tasks: dict[int, _BufferTask] = {}  # by transfer, the one that the next array may be added to
    in_order = sorted(reads, key=lambda read: (id(read.storage.source), read.storage.start + read.start))
    for storage, first, landing, checksum_pass in in_order:
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
            task.parts.append(part._replace(position=position))
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
