"""Reads arrays of files whose parts go to different memory, as those of an array on several devices.

Each byte is read once, a little at a time, by several threads; it is compared with its checksum, and copied from there
to the part that it belongs to.
"""

from math import lcm, prod
from typing import NamedTuple

from leafwise.core.dtypes import WORDS
from leafwise.core.memory.sharding import LocalPart, flat_boxes
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import READERS, in_threads
from leafwise.files.arrays.ranges import over, scratch
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored
from leafwise.files.checksums import ChecksumPass
from leafwise.files.reading.checked_reads import raise_damage
from leafwise.files.sources.source import LocalSource

_TASK_BYTES = 1 << 20  # bytes that a thread reads at a time; few enough for its cache


class ScatteredArray(NamedTuple):
    """An array that is in one piece in a local file, and the parts that it is copied to: NumPy arrays of the same dtype
    that together are all of it. Errors refer to it as `name`."""

    name: str
    array: Stored
    parts: list[LocalPart]


def can_scatter(array: Stored) -> bool:
    """Whether an array is all of what its checksums cover, and in C order in a local file."""
    run = array.plain_run()
    if run is None or not isinstance(run[0].source, LocalSource):
        return False
    return run[1:] == (0, run[0].nbytes)


def scatter(arrays: list[ScatteredArray], verify: bool, progress: Count) -> None:
    """Reads arrays into their parts. With `verify`, raises an error that lists every damaged array."""
    passes: list[tuple[str, Storage, ChecksumPass]] = []
    tasks = []
    for scattered in arrays:
        run = scattered.array.plain_run()
        assert run is not None
        storage, checksum_pass = run[0], None
        step = ITEM_BYTES[scattered.array.spec.dtype]
        if verify and storage.checksums is not None:
            checksum_pass = storage.checksums.new_pass()
            passes.append((scattered.name, storage, checksum_pass))
            step = lcm(step, storage.checksums.piece)
        step *= max(1, _TASK_BYTES // step)
        tasks += [
            _ScatteredRange(scattered, storage, checksum_pass, start, min(start + step, storage.nbytes))
            for start in range(0, storage.nbytes, step)
        ]

    def work(task: _ScatteredRange) -> None:
        task.read()
        progress(task.stop - task.start)

    in_threads(work, tasks, READERS)
    raise_damage(passes)


class _ScatteredRange(NamedTuple):
    """A range of the bytes of an array."""

    scattered: ScatteredArray
    storage: Storage
    checksum_pass: ChecksumPass | None
    start: int
    stop: int

    def read(self) -> None:
        with scratch([self.stop - self.start]) as [view]:
            self.storage.read_into(self.start, view)
            if self.checksum_pass is not None:
                self.checksum_pass.add(self.start, view)
            self._copy(view)

    def _copy(self, view: memoryview) -> None:
        shape, item = self.scattered.array.spec.shape or (), ITEM_BYTES[self.scattered.array.spec.dtype]
        # As integers, because NumPy copies these fastest; a complex element may have 16 bytes.
        elements = over(view, WORDS.get(item, f"V{item}"))
        for box in flat_boxes(shape, self.start // item, self.stop // item):
            values = elements[box.local : box.local + prod(box.shape)].reshape(box.shape)
            for part in self.scattered.parts:
                overlap = part.overlap(box.first, box.shape)
                if overlap is not None:
                    part.value.view(elements.dtype)[overlap[0]] = values[overlap[1]]
