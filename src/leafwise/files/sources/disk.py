"""All calls to the local file system, in one place, so that tests can make each of them fail, stall or crash."""

import errno
import mmap
import os
import shutil
import stat
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from leafwise.core.memory import madvise
from leafwise.errors import Unsupported

fcntl: Any
try:
    import fcntl
except ImportError:  # a system without locks; leftovers are then never removed
    fcntl = None

resource: Any
try:
    import resource
except ImportError:  # Windows
    resource = None

# File systems on other machines: reading memory mapped from them stalls or kills the process if they do not answer.
_FAR = ("nfs", "cifs", "smb", "lustre", "9p", "gpfs", "beegfs", "ceph", "gluster", "afs", "fuse")


_LARGE_BYTES = 1 << 26


def _allow_more_files(error: OSError) -> None:
    """Doubles the number of files that this process may have open, which is often 1,024: a checkpoint may have more
    shards. Raises if the system does not allow it."""
    soft = hard = 0
    if resource is not None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        more = 2 * soft if hard == resource.RLIM_INFINITY else min(2 * soft, hard)
        if more > soft:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
                return
    many = f"{soft:,} files" if soft else "so many files"
    raise OSError(errno.EMFILE, f"this process may only have {many} open; allow more, with ulimit -n") from error


class FileMemory:
    """The memory of a file that is in memory (tmpfs), through a mapping. The file must have `length` bytes already, and
    nobody else makes it shorter.

    The system lets only one thread at a time write to a file. Through a mapping, all of them can. Memory that a file
    does not have yet is requested before it is written to: if there is none, that request fails, whereas writing to the
    mapping would end the process.
    """

    def __init__(self, file: int, length: int) -> None:
        import numpy as np

        self._map = mmap.mmap(file, length)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._address = self._bytes.ctypes.data

    def fill(self, data: Any, start: int) -> bool:
        """Writes bytes at an offset. Returns False, and writes nothing, if the system does not provide the memory."""
        import numpy as np

        source = np.frombuffer(data, np.uint8)
        stop = start + source.size
        if stop > self._bytes.size or not madvise.provide(self._address + start, source.size):
            return False
        self._bytes[start:stop] = source
        return True

    def close(self) -> None:
        del self._bytes
        self._map.close()


_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NONBLOCK", 0)  # a pipe in its place is refused


class Disk:
    """The local file system. Reads take offsets, so that threads can share a file."""

    # -- reading -----------------------------------------------------------------------------------------

    def open(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Opens an existing file. Raises for anything else, which might never answer."""
        flags |= getattr(os, "O_BINARY", 0)
        flags |= getattr(os, "O_NONBLOCK", 0)  # otherwise opening a pipe waits for a writer
        while True:
            try:
                file = os.open(path, flags)
                break
            except OSError as error:
                if error.errno != errno.EMFILE:
                    raise
                _allow_more_files(error)
        if not stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise OSError(errno.EINVAL, "it is not a file, but a pipe, a device or a folder")
        return file

    def content(self, path: str, most: int) -> bytes:
        """The bytes of a small file. Raises if there are more than `most` of them."""
        file = self.open(path)
        try:
            data = self.read(file, 0, most + 1)
        finally:
            self.close(file)
        if len(data) > most:
            raise OSError(errno.EFBIG, "it is too large")
        return data

    def stat(self, file: int) -> os.stat_result:
        return os.fstat(file)

    def read(self, file: int, start: int, length: int) -> bytes:
        parts = []
        while length:
            part = os.pread(file, min(length, 1 << 30), start)
            if not part:
                break
            parts.append(part)
            start += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_into(self, file: int, start: int, view: memoryview) -> int:
        """Fills memory with the bytes from an offset on; returns how many bytes there were."""
        filled = 0
        while filled < len(view):
            done = os.preadv(file, [view[filled:]], start + filled)
            if not done:
                break
            filled += done
        return filled

    @property
    def may_be_passed_by(self) -> bool:
        """Whether C code may read files itself: not if a subclass has its own way to read."""
        return type(self).read_into is Disk.read_into

    def map(self, file: int, length: int) -> mmap.mmap:
        return mmap.mmap(file, length, access=mmap.ACCESS_READ)

    def longest_name(self, folder: str) -> int:
        """The longest name, in bytes, that a file in this folder may have."""
        try:
            return os.pathconf(folder, "PC_NAME_MAX")
        except (OSError, ValueError, AttributeError):
            return 255

    def names_in(self, folder: str) -> list[str]:
        return sorted(os.listdir(folder))

    # -- writing -----------------------------------------------------------------------------------------

    def create(self, path: str, mode: int = 0o666) -> int:
        """Creates a file, which must not exist yet, with a mode from which the umask is taken away."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)

    def make_folder(self, path: str) -> None:
        """Creates a folder, and makes its name durable."""
        os.mkdir(path)
        self.sync_folder(os.path.dirname(path))

    def remove_folder(self, path: str) -> None:
        """Removes a folder, which must be empty."""
        os.rmdir(path)

    def open_to_fill(self, path: str) -> int:
        """Opens a file that another process is writing, for `write_at`."""
        return self.open(path, os.O_WRONLY)

    def set_mode(self, file: int, mode: int) -> None:
        os.fchmod(file, mode)

    def write(self, file: int, data: Any) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[os.write(file, view[: 1 << 30]) :]

    def write_at(self, file: int, data: Any, start: int) -> None:
        """Writes at an offset, without moving the position of `write`."""
        view = memoryview(data).cast("B")
        while view:
            done = os.pwrite(file, view, start)
            view, start = view[done:], start + done

    def map_to_fill(self, file: int, length: int) -> FileMemory | None:
        """Gives a file its final length, and maps it for `fill_mapped`; None if it cannot be mapped."""
        os.ftruncate(file, length)
        try:
            return FileMemory(file, length)
        except (OSError, ValueError):  # for example, because the address space of the process is limited
            return None

    def fill_mapped(self, memory: FileMemory, file: int, data: Any, start: int) -> None:
        """Does what `write_at` does, for a file that is mapped."""
        if not memory.fill(data, start):
            self.write_at(file, data, start)  # which raises the reason: the disk is full, for example

    def skip(self, file: int, length: int) -> None:
        """Leaves a gap of `length` bytes, to be filled by `write_at`."""
        os.lseek(file, length, os.SEEK_CUR)

    def lock(self, file: int) -> None:
        """Locks a file that is being written, until it is closed or its process ends."""
        if fcntl is not None:
            with suppress(OSError):  # a file system without locks; leftovers are then never removed
                fcntl.flock(file, fcntl.LOCK_EX)

    def lock_folder(self, folder: str) -> int | None:
        """Waits for the lock on a folder, which writers hold while they rename files into it, until they `unlock` it.
        Returns None if folders cannot be locked."""
        with suppress(OSError):
            return _locked(os.open(folder, _FOLDER), wait=True)
        return None

    def open_abandoned(self, path: str) -> int | None:
        """Opens and locks a file that nobody is writing any more; returns None if somebody may still be writing it."""
        return _locked(self.open(path, os.O_RDWR), wait=False)

    def unlock(self, file: int) -> None:
        """Releases a lock, and closes the file. Closing alone is not enough: a process that was forked meanwhile, such
        as a worker that loads data, has the file open, too, and would keep the lock."""
        if fcntl is not None:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)
        self.close(file)

    def start_writing(self, file: int, start: int, length: int) -> None:
        """Tells the system to begin writing a range of a file to the disk, so that the final sync is short, and to
        drop from memory what it has written."""
        if length and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file, start, length, os.POSIX_FADV_DONTNEED)

    def sync(self, file: int) -> None:
        os.fsync(file)

    def close(self, file: int) -> None:
        os.close(file)

    def rename(self, old: str, new: str) -> None:
        """Moves a file into place. If it replaces a large file, that file is kept open meanwhile and closed in a
        thread: freeing its blocks takes a third as long as writing them, and the caller need not wait for it."""
        held = None
        with suppress(OSError):
            if os.stat(new).st_size >= _LARGE_BYTES:
                held = self.open(new)
        try:
            os.replace(old, new)
        finally:
            if held is not None:
                threading.Thread(target=os.close, args=(held,), daemon=True).start()

    def exchange_folders(self, first: str, second: str) -> int:
        """Gives two folders each other's name, in one step. Returns 0, or the number of the error: that of `ENOSYS` or
        `EINVAL` on systems where it is not possible."""
        import ctypes

        exchange = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
        here, flag = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
        if exchange is None:
            return errno.ENOSYS
        failed = exchange(here, os.fsencode(first), here, os.fsencode(second), flag)
        return ctypes.get_errno() if failed else 0

    def remove_tree(self, folder: str) -> None:
        """Removes a folder with everything in it, if it exists."""
        if os.path.lexists(folder):
            shutil.rmtree(folder)

    def remove(self, path: str) -> None:
        os.remove(path)

    def sync_folder(self, folder: str) -> None:
        """Makes renames into a folder durable. Does nothing on systems where a folder cannot be opened."""
        try:
            file = os.open(folder, _FOLDER)
        except OSError:
            return
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _locked(file: int, wait: bool) -> int | None:
    """The file, locked. Closes it and returns None if it cannot be locked."""
    with suppress(OSError):
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
    os.close(file)
    return None


def check_byte_order() -> None:
    """Raises on a big-endian machine: the readers use the little-endian numbers in files without conversion."""
    if sys.byteorder != "little":
        raise Unsupported("leafwise", "read or write files here", "this machine is big-endian")


_MOUNTS = "/proc/mounts"


def is_far(path: str, mounts: Sequence[str] | None = None) -> bool:
    """Whether a path is on the file system of another machine, according to the list of mounts.

    >>> is_far("/data/model", ["host:/x /data nfs4 rw 0 0", "/dev/sda / ext4 rw 0 0"])
    True
    """
    return _file_system(path, mounts).startswith(_FAR)


def is_in_memory(path: str, mounts: Sequence[str] | None = None) -> bool:
    """Whether the files at a path are in memory, according to the list of mounts.

    >>> is_in_memory("/dev/shm/model", ["tmpfs /dev/shm tmpfs rw 0 0", "/dev/sda / ext4 rw 0 0"])
    True
    """
    return _file_system(path, mounts) == "tmpfs"


def _file_system(path: str, mounts: Sequence[str] | None) -> str:
    """The type of the file system that a path is on; empty if it is not known."""
    if mounts is None:
        try:
            with open(_MOUNTS, "rb") as file:
                # Folder names are arbitrary bytes, whatever the locale.
                mounts = [os.fsdecode(line) for line in file]
        except OSError:
            return ""
    path = os.path.realpath(path)
    best, kind = "", ""
    for line in mounts:
        _, point, mount_kind, *_ = [*line.split(" "), "", "", ""]
        point = point.replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, mount_kind
    return kind


def mode_for(path: str) -> int | None:
    """The mode of the file that is about to be replaced; None if it does not exist, so that the umask decides. Raises
    if it is not a regular file, because nothing else may be replaced."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a file, but a folder, a pipe or a device")
    return stat.S_IMODE(mode)


disk = Disk()
