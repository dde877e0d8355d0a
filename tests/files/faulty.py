"""A disk that crashes or fails at any chosen call that modifies it."""

import os
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.long import count

from leafwise.files.sources import disk as local
from leafwise.files.sources.disk import Disk, FileMemory


class Crash(BaseException):
    """The machine stops."""


class FailingDisk(Disk):
    """Counts the calls that modify the disk, and stops the machine, or fails, at one of them.

    Bytes that were not synced, and renames in a folder that was not synced, may be lost in a power failure:
    `lose_power` undoes all of them. `die` does what the system does when a process ends: it closes the open files.
    """

    def __init__(self, stop_at: int, problem: Callable[[], BaseException]) -> None:
        self.stop_at, self.problem = stop_at, problem
        self.calls = 0
        self.unsynced: dict[int, str] = {}
        self.renamed: list[tuple[str, str, bytes | None]] = []
        self.open_files: set[int] = set()
        self.broken = False

    def _step(self) -> None:
        self.calls += 1
        if self.calls == self.stop_at:
            self.broken = True
            raise self.problem()
        if self.broken and isinstance(self.problem(), Crash):
            raise Crash  # a machine that has stopped does nothing more

    def create(self, path: str) -> int:
        self._step()
        file = super().create(path)
        self.unsynced[file] = path
        self.open_files.add(file)
        return file

    def remove_folder(self, path: str) -> None:
        self._step()
        super().remove_folder(path)

    def lock_folder(self, folder: str) -> int | None:
        file = super().lock_folder(folder)
        if file is not None:
            self.open_files.add(file)
        return file

    def set_mode(self, file: int, mode: int) -> None:
        self._step()
        super().set_mode(file, mode)

    def write(self, file: int, data: Any) -> None:
        half = memoryview(data).cast("B")[: memoryview(data).nbytes // 2]
        if self.calls + 1 == self.stop_at:
            super().write(file, half)
        self._step()
        super().write(file, data)

    def write_at(self, file: int, data: Any, start: int) -> None:
        if self.calls + 1 == self.stop_at:
            super().write_at(file, memoryview(data)[: len(data) // 2], start)
        self._step()
        super().write_at(file, data, start)

    def map_to_fill(self, file: int, length: int) -> FileMemory | None:
        self._step()
        return super().map_to_fill(file, length)

    def fill_mapped(self, memory: FileMemory, file: int, data: Any, start: int) -> None:
        if self.calls + 1 == self.stop_at:
            super().fill_mapped(memory, file, memoryview(data)[: len(data) // 2], start)
        self._step()
        super().fill_mapped(memory, file, data, start)

    def skip(self, file: int, length: int) -> None:
        self._step()
        super().skip(file, length)

    def sync(self, file: int) -> None:
        self._step()
        super().sync(file)
        self.unsynced.pop(file, None)

    def close(self, file: int) -> None:
        self.open_files.discard(file)
        self.unsynced.pop(file, None) if not self.broken else None
        super().close(file)

    def rename(self, old: str, new: str) -> None:
        self._step()
        before = Path(new).read_bytes() if os.path.exists(new) else None
        super().rename(old, new)
        self.renamed.append((old, new, before))

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)

    def sync_folder(self, folder: str) -> None:
        self._step()
        super().sync_folder(folder)
        self.renamed = [one for one in self.renamed if os.path.dirname(one[1]) != folder]

    def die(self) -> None:
        for file in list(self.open_files):
            with suppress(OSError):
                os.close(file)
        self.open_files.clear()

    def lose_power(self) -> None:
        for path in self.unsynced.values():
            if os.path.exists(path):
                os.truncate(path, 0)
        for _, new, before in reversed(self.renamed):
            if before is None:
                with suppress(FileNotFoundError):
                    os.remove(new)
            else:
                Path(new).write_bytes(before)


def steps_of(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of calls in some work that modify the disk."""
    counting = FailingDisk(-1, Crash)
    with monkeypatch.context() as patched:
        patched.setattr(local, "disk", counting)
        work()
    return counting.calls


def crashing(work: Callable[[], object], stop_at: int, power: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Does some work on a machine that stops at a call; with `power`, everything that was not synced is lost."""
    count("crashes")
    disk = FailingDisk(stop_at, Crash)
    with monkeypatch.context() as patched:
        patched.setattr(local, "disk", disk)
        with suppress(Crash):
            work()
    disk.die()
    if power:
        disk.lose_power()


class _AnnouncingDisk(FailingDisk):
    """Writes a byte to a pipe before each call that modifies the disk."""

    def __init__(self, pipe: int) -> None:
        super().__init__(-1, Crash)
        self._pipe = pipe

    def _step(self) -> None:
        os.write(self._pipe, b".")


def killed_after(calls: int, work: Callable[[], object]) -> None:
    """Does some work again and again in another process, and kills that when it has begun so many calls that modify the
    disk, or a little later. By then, it has done as much on a slow machine as on a fast one."""
    count("saves killed")
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            local.disk = _AnnouncingDisk(writing)
            while True:
                work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        for _ in range(calls):
            assert os.read(reading, 1), "the other process has failed"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)


class DiskCalls:
    """Calls `at_call`, with its number, before each call of the disk that a save in the background makes, in the thread
    of the save."""

    NAMES = ("create", "lock", "write", "write_at", "lock_folder", "sync", "rename", "sync_folder", "remove", "close")

    def __init__(self, at_call: Callable[[int], None], patched: pytest.MonkeyPatch) -> None:
        self.made = [0]
        for name in self.NAMES:
            patched.setattr(Disk, name, self._announced(getattr(Disk, name), at_call))

    def _announced(self, call: Callable[..., Any], at_call: Callable[[int], None]) -> Callable[..., Any]:
        def announced(*args: Any) -> Any:
            if threading.current_thread().name == "leafwise save":
                self.made[0] += 1
                at_call(self.made[0])
            return call(*args)

        return announced
