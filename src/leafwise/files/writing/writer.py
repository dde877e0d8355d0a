"""The durable writer: whatever happens, a reader finds either the old file or the new one, complete.

A file is written in the same folder under a temporary name, synced, and then renamed; the folder is synced, too.
Several files become visible together: all but the last get names that are not in use yet, and the last one, an index
that lists them, makes them visible.

While a file is being written it is locked, and the system releases the lock when the process ends. So a later writer
can distinguish leftovers from files that are still being written. Only leafwise uses these temporary names, and all
have the same length: no other program's file is mistaken for a leftover, and a file can be saved under every name that
the file system allows.
"""

import errno
import hashlib
import os
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any

from leafwise.core.path import shown_file
from leafwise.core.work.executor_tasks import place
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import WRITERS
from leafwise.errors import FileError
from leafwise.files.sources import disk as local
from leafwise.files.sources.disk import FileMemory
from leafwise.files.sources.source import BorrowedSource, Source
from leafwise.files.writing.output import Output

# A file in memory is mapped if it has at least this many bytes, and if there are enough threads: two of them are not
# faster through a mapping.
_MAPPED = 1 << 26
_MAPPING_THREADS = 4
_AHEAD = 1 << 25  # bytes that are written before the system is asked to begin writing them to the disk


def staged_prefix(name: str) -> str:
    """The prefix of the temporary names of files that will become the file with this name, or a part of it."""
    return f".leafwise-{hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()}-"


def unfinished_of(name: str, names: list[str]) -> list[str]:
    """Which of these are temporary names of files that should have become the file with this name, or a part of it."""
    is_unfinished = re.compile(re.escape(staged_prefix(name)) + r"[0-9a-f]{16}\.part").fullmatch
    return list(filter(is_unfinished, names))


class LocalOutput(Output):
    """A file on this machine that is being written. `of` is the name of its checkpoint, if that has several files. Only
    the user can read a `private` one."""

    def __init__(self, path: str, like: str = "", of: str = "", private: bool = False) -> None:
        local.check_byte_order()
        # A link stays a link: its target is replaced.
        self.path = os.path.realpath(path)
        folder, name = os.path.split(self.path)
        self.folder = folder
        self.at = 0
        self._memory: FileMemory | None = None
        self._started = 0  # offset up to which the system was asked to begin writing
        mode = local.mode_for(self.path)
        if mode is None and like:
            mode = _mode_like(like)
        self._file: int | None = self._create(staged_prefix(of or name), private)
        try:
            if mode is not None:
                local.disk.set_mode(self._file, mode)
        except OSError:
            self.discard()
            raise

    def _create(self, prefix: str, private: bool) -> int:
        while True:
            self.staged = os.path.join(self.folder, f"{prefix}{secrets.token_hex(8)}.part")
            file = local.disk.create(self.staged, *([0o600] if private else []))
            local.disk.lock(file)
            if local.disk.stat(file).st_nlink:
                return file
            local.disk.close(file)  # removed as a leftover before it was locked

    def write(self, data: Any) -> int:
        assert self._file is not None
        local.disk.write(self._file, data)
        length = memoryview(data).nbytes
        self.at += length
        self.start_writing(self.at)
        return length

    def skip(self, length: int) -> None:
        assert self._file is not None
        local.disk.skip(self._file, length)
        self.at += length

    def expect(self, stop: int, in_threads: bool = False) -> None:
        assert self._file is not None
        is_worth_it = in_threads and WRITERS >= _MAPPING_THREADS and stop >= _MAPPED
        if self._memory is None and is_worth_it and local.is_in_memory(self.staged):
            self._memory = local.disk.map_to_fill(self._file, stop)

    def fill(self, data: Any, start: int) -> None:
        assert self._file is not None
        if self._memory is None:
            local.disk.write_at(self._file, data, start)
        else:
            local.disk.fill_mapped(self._memory, self._file, data, start)

    def source(self) -> Source:
        # It shares the open file, because the number of open files is limited.
        assert self._file is not None
        return BorrowedSource(self.path, self._file)

    def start_writing(self, stop: int) -> None:
        # Lets the system begin to write to the disk.
        if stop - self._started >= _AHEAD:
            assert self._file is not None
            local.disk.start_writing(self._file, self._started, stop - self._started)
            self._started = stop
            # Bytes that are on the disk by now need not stay in memory: a save should not evict other programs' pages,
            # and memory that was just freed is the fastest to reuse.
            local.disk.start_writing(self._file, 0, max(stop - 3 * _AHEAD, 0))

    def finish(self) -> None:
        """Makes the file durable."""
        assert self._file is not None
        local.disk.sync(self._file)
        if not hasattr(os, "fchmod"):  # a system where open files cannot be renamed
            self.close()

    def close(self) -> None:
        if self._memory is not None:
            memory, self._memory = self._memory, None
            memory.close()
        if self._file is not None:
            file, self._file = self._file, None
            local.disk.unlock(file)

    def discard(self) -> None:
        self.close()
        with suppress(OSError):
            local.disk.remove(self.staged)


class SharedOutput(AbstractContextManager["SharedOutput"]):
    """A file that another process is writing, some gaps of which this process fills. Its name and its lock belong to
    the other process."""

    def __init__(self, staged: str) -> None:
        self._staged = staged
        try:
            self._file = local.disk.open_to_fill(staged)
        except OSError as error:
            raise FileError(
                f"cannot write {shown_file(staged)} on {place()}: {error.strerror or error}; workers must reach the "
                "folder of the new checkpoint under the same path"
            ) from error

    def fill(self, data: Any, start: int) -> None:
        try:
            local.disk.write_at(self._file, data, start)
        except OSError as error:
            raise self._failed(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                local.disk.sync(self._file)  # what another machine wrote is not durable before
        except OSError as problem:
            raise self._failed(problem) from problem
        finally:
            local.disk.close(self._file)

    def _failed(self, error: OSError) -> FileError:
        return FileError(f"cannot write {shown_file(self._staged)} on {place()}: {error.strerror or error}")


class WrittenParts:
    """The parts of a file that threads have written, in any order: counts bytes, and lets the system begin to write to
    the disk what is complete."""

    def __init__(self, output: Output, progress: Count) -> None:
        self._output, self._progress = output, progress
        self._lock, self._starting = threading.Lock(), threading.Lock()
        self._ends: dict[int, int] = {}  # number of a part → where it ends in the file
        self._next = self._complete = 0

    def add(self, number: int, length: int, end: int) -> None:
        """Adds a part: its number in the order of the file, its length, and where it ends."""
        with self._lock:
            self._progress(length)
            self._ends[number] = end
            while self._next in self._ends:
                self._complete = self._ends.pop(self._next)
                self._next += 1
        if self._starting.acquire(blocking=False):  # otherwise another thread is at it
            try:
                self._output.start_writing(self._complete)
            finally:
                self._starting.release()


StagedCheck = Callable[[dict[str, Output]], None]


class FileTransaction(AbstractContextManager["FileTransaction"]):
    """A context manager for files that become visible together, or not at all.

    When the block ends without an error, the files are renamed into place in the order in which they were opened.
    Before that, `check_staged` is called with the files by their paths; if it raises, nothing is replaced. `tidy` is
    called once all files are in place; if it is given, the folder is locked until it returns, so that no other
    transaction moves files into place meanwhile. `of` is the name of the checkpoint, if its files have other names.
    """

    def __init__(
        self,
        of: str = "",
        check_staged: StagedCheck | None = None,
        tidy: Callable[[], None] | None = None,
    ) -> None:
        self._outputs: list[LocalOutput] = []
        self._of, self._check_staged, self._tidy = of, check_staged, tidy

    def open(self, path: str, like: str = "") -> LocalOutput:
        """Opens a file to write. It gets the mode of the file it replaces, or of the file `like`."""
        with write_errors(path):
            if not self._outputs:
                remove_unfinished(os.path.realpath(path), self._of)
            self._outputs.append(LocalOutput(path, like, self._of))
        return self._outputs[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        locked = local.disk.lock_folder(self._outputs[-1].folder) if self._tidy and error is None else None
        try:
            self._end(error)
        finally:
            if locked is not None:
                local.disk.unlock(locked)

    def _end(self, error: BaseException | None) -> None:
        placed = 0
        try:
            if error is None:
                self._check_names()
                if self._check_staged is not None:
                    self._check_staged({output.path: output for output in self._outputs})
                for output in self._outputs:
                    output.finish()
                for output in self._outputs:
                    local.disk.rename(output.staged, output.path)
                    placed += 1
                    if placed >= len(self._outputs) - 1:  # before the switch, and after it
                        local.disk.sync_folder(output.folder)
                if self._tidy is not None:
                    self._tidy()
        except OSError as problem:
            path = self._outputs[min(placed, len(self._outputs) - 1)].path
            raise FileError(f"cannot write {shown_file(path)}: {problem.strerror or problem}") from problem
        finally:
            for output in self._outputs[placed:]:
                output.discard()
            for output in self._outputs[:placed]:
                output.close()
        if isinstance(error, OSError) and self._outputs:
            path = self._outputs[-1].path
            raise FileError(f"cannot write {shown_file(path)}: {error.strerror or error}") from error

    def _check_names(self) -> None:
        """Raises unless all files except the last are new: a crash after replacing one of several would leave a
        mixture."""
        for output in self._outputs[:-1]:
            if os.path.lexists(output.path):
                raise FileError(
                    f"cannot write {shown_file(output.path)}: it exists; only the last of several files may replace one"
                )


@contextmanager
def write_errors(path: str) -> Iterator[None]:
    """Turns an error of the file system into one that names what should be written."""
    try:
        yield
    except OSError as error:
        raise FileError(f"cannot write {shown_file(path)}: {error.strerror or error}") from error


def _mode_like(path: str) -> int | None:
    try:
        return local.mode_for(path)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # such a file cannot exist
            return None
        raise


def remove_unfinished(path: str, of: str = "") -> None:
    """Removes unfinished files that earlier writers of this file left behind."""
    folder, name = os.path.split(path)
    remove_abandoned(folder, lambda names: unfinished_of(of or name, names))


def remove_abandoned(
    folder: str, leftovers_in: Callable[[list[str]], list[str]], in_use: Callable[[], set[str]] = lambda: set()
) -> None:
    """Removes leftovers in a folder that nobody is writing any more: `leftovers_in` selects them from the names of the
    files. `in_use` returns names that must stay. It is called while the leftovers are locked, so that nobody can begin
    to use them after it has returned."""
    with suppress(OSError):
        leftovers = leftovers_in(local.disk.names_in(folder))
        held: dict[str, int] = {}
        try:
            for name in leftovers:
                with suppress(OSError):
                    file = local.disk.open_abandoned(os.path.join(folder, name))
                    if file is not None:
                        held[name] = file
            used = in_use() if held else set()
            for name in held.keys() - used:
                with suppress(OSError):
                    local.disk.remove(os.path.join(folder, name))
        finally:
            for file in held.values():
                local.disk.unlock(file)
