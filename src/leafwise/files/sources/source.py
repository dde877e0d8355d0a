"""Sources of bytes: a local file, bytes in memory, a range of another source, an unpacked zip entry."""

import io
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files.limits import Limits
from leafwise.files.sources import disk as local

if TYPE_CHECKING:
    from leafwise.files.pickles.pickle_objects import PickleNames

_INFLATED = 1 << 20  # bytes that are unpacked at a time
_MESSAGE_CHARACTERS = 2_000  # characters of an error message; a name in a file may have millions
_CUT_OFF = "the file ends here; it is shorter than when it was opened: it was cut off, or is being written"
_SMALL_RANGE_BYTES = 1 << 16  # bytes; smaller ranges are read rather than mapped


class Source:
    """Bytes with a name. `read` returns exactly the requested range, or raises."""

    name: str
    size: int
    version: str = ""  # changes whenever the file is written
    verify = True  # whether a header that has checksums is checked
    is_local = False  # whether it is on this machine, where it can be read again at any time

    @cached_property
    def pickle_names(self) -> "PickleNames":
        """The classes and functions that the pickles in it refer to, by module and name, and what is done with them."""
        return {}

    @cached_property
    def limits(self) -> Limits:
        """The memory and work that are left for opening the file."""
        return Limits()

    def read(self, start: int, stop: int) -> Any:
        """The bytes from `start` to `stop`. They are read, not mapped: if a mapped file is truncated meanwhile,
        accessing its memory kills the process."""
        self._check_range(start, stop)
        if start == stop:
            return b""
        data = self._read(start, stop)
        if len(data) != stop - start:
            raise self.error(start + len(data), _CUT_OFF)
        return data

    def view(self, start: int, stop: int) -> Any:
        """The bytes from `start` to `stop`, for an array that the user keeps: mapped if possible, so that only the
        parts that are used take up memory."""
        return self.read(start, stop)

    def read_into(self, start: int, view: memoryview) -> None:
        """Fills memory with the bytes from `start` on."""
        import numpy as np

        # NumPy releases the GIL while it copies.
        np.frombuffer(view, np.uint8)[:] = np.frombuffer(self.read(start, start + len(view)), np.uint8)

    def in_file(self, start: int, stop: int) -> tuple[int, int] | None:
        """The open file that contains the bytes from `start` to `stop`, and their offset there; None if they are not
        plain bytes of a file on this machine."""
        return None

    def _check_range(self, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= self.size:
            raise self.error(
                min(max(start, 0), self.size),
                f"bytes {start:,} to {stop:,} are outside of the {self.size:,} that exist",
            )

    def _read(self, start: int, stop: int) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        pass

    def error(self, offset: int, cause: str) -> FileError:
        """An error that names the file and the offset."""
        return FileError(f"{shown_file(self.name)} at byte {offset:,}: {cause[:_MESSAGE_CHARACTERS]}")

    def was_changed(self) -> bool:
        """Whether the file is known to have changed since it was opened."""
        return False

    def is_gone(self) -> bool:
        """Whether the file is known to have been removed, or replaced by another, since it was opened."""
        return False


@contextmanager
def closed_on_error(opened: Iterable[Any]) -> Iterator[None]:
    """Closes what was opened if the block raises. This may be a list that the block fills."""
    try:
        yield
    except BaseException:
        for each in opened:
            each.close()
        raise


class LocalSource(Source):
    """A file on this machine. `file` is its descriptor if it is open already; it is closed with this object."""

    is_local = True

    def __init__(self, path: str, file: int | None = None) -> None:
        self.name = path
        try:
            self.file = local.disk.open(path) if file is None else file
            try:
                status = local.disk.stat(self.file)
                self.size, self._written = status.st_size, status.st_mtime_ns
                self.version = str(self._written)
            except BaseException:
                local.disk.close(self.file)
                raise
        except (OSError, ValueError) as error:  # ValueError: a name with a null character
            reason = getattr(error, "strerror", None) or error
            if isinstance(error, FileNotFoundError) and os.path.islink(path):
                there = shown_file(os.path.realpath(path))
                reason = f"it is a link to {there}, which does not exist; is the download complete?"
            raise FileError(f"cannot open {shown_file(path)}: {reason}") from error
        self._map: Any = None
        self._closed = False

    def __getstate__(self) -> dict[str, Any]:
        # Without the file descriptor: closing the copy would close the original's file.
        state = {key: value for key, value in vars(self).items() if key not in ("file", "_map")}
        return {**state, "_at": os.path.abspath(self.name)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        at = state.pop("_at")
        self._closed = True  # until the file is open again
        if state["_closed"]:
            self.file, self._map = -1, None
            vars(self).update(state)
            return
        opened = LocalSource(at)
        self.file, opened._closed = opened.file, True
        vars(self).update(state, _map=None)
        if (opened.size, opened._written) != (self.size, self._written):
            raise FileError(
                f"{shown_file(self.name)} has changed since it was opened, so the open file cannot be copied"
            )

    def _read(self, start: int, stop: int) -> Any:
        try:
            return local.disk.read(self.descriptor(), start, stop - start)
        except OSError as error:
            raise self.error(start, error.strerror or str(error)) from error

    def view(self, start: int, stop: int) -> Any:
        if stop - start < _SMALL_RANGE_BYTES or self._is_far:
            return self.read(start, stop)
        self._check_range(start, stop)
        try:
            if local.disk.stat(self.descriptor()).st_size < stop:
                raise self.error(start, _CUT_OFF)
            if self._map is None:
                self._map = local.disk.map(self.file, self.size)
            return memoryview(self._map)[start:stop]
        except FileError:  # a ValueError, too
            raise
        except (OSError, ValueError) as error:  # ValueError: a truncated file
            raise self.error(start, getattr(error, "strerror", None) or str(error)) from error

    def read_into(self, start: int, view: memoryview) -> None:
        self._check_range(start, start + len(view))
        try:
            done = local.disk.read_into(self.descriptor(), start, view)
        except OSError as error:
            raise self.error(start, error.strerror or str(error)) from error
        if done < len(view):
            raise self.error(start + done, _CUT_OFF)

    def in_file(self, start: int, stop: int) -> tuple[int, int] | None:
        self._check_range(start, stop)
        return (self.descriptor(), start) if local.disk.may_be_passed_by else None

    def descriptor(self) -> int:
        """The descriptor of the open file."""
        if self._closed:
            raise FileError(f"{shown_file(self.name)} is closed; open it again")
        return self.file

    def was_changed(self) -> bool:
        """Whether the size or the modification time of the file has changed since it was opened."""
        status = local.disk.stat(self.descriptor())
        return (status.st_size, status.st_mtime_ns) != (self.size, self._written)

    def is_gone(self) -> bool:
        try:
            there = os.stat(self.name)
        except OSError:
            return True
        opened = os.fstat(self.descriptor())
        return (there.st_dev, there.st_ino) != (opened.st_dev, opened.st_ino)

    @cached_property
    def _is_far(self) -> bool:
        return local.is_far(self.name)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        local.disk.close(self.file)
        self._map = None  # not closed: arrays may use it, and the last of them frees it

    def __del__(self) -> None:
        try:
            if not self._closed:
                self.close()
        except Exception:
            pass


class BorrowedSource(Source):
    """A file that belongs to another object, which closes it."""

    def __init__(self, name: str, file: int) -> None:
        self.name, self._file = name, file
        self.size = local.disk.stat(file).st_size

    def _read(self, start: int, stop: int) -> Any:
        try:
            return local.disk.read(self._file, start, stop - start)
        except OSError as error:
            raise self.error(start, error.strerror or str(error)) from error


class BytesSource(Source):
    """Bytes in memory, such as an item from another file."""

    def __init__(self, name: str, data: bytes | memoryview) -> None:
        self.name = name
        self.size = len(data)
        self._data = memoryview(data)

    def _read(self, start: int, stop: int) -> Any:
        return self._data[start:stop]


class PartSource(Source):
    """A range of another source; offsets count from its start."""

    def __init__(self, whole: Source, start: int, stop: int) -> None:
        if not 0 <= start <= stop <= whole.size:
            raise whole.error(min(max(start, 0), whole.size), f"bytes {start:,} to {stop:,} are outside of the file")
        self.name = whole.name
        self.size = stop - start
        self.whole, self.start = whole, start
        self.limits = whole.limits.anew()
        self.pickle_names = whole.pickle_names
        self.is_local = whole.is_local

    def _read(self, start: int, stop: int) -> Any:
        return self.whole.read(self.start + start, self.start + stop)

    def view(self, start: int, stop: int) -> Any:
        self._check_range(start, stop)
        return self.whole.view(self.start + start, self.start + stop)

    def read_into(self, start: int, view: memoryview) -> None:
        self._check_range(start, start + len(view))
        self.whole.read_into(self.start + start, view)

    def in_file(self, start: int, stop: int) -> tuple[int, int] | None:
        self._check_range(start, stop)
        return self.whole.in_file(self.start + start, self.start + stop)

    def error(self, offset: int, cause: str) -> FileError:
        return self.whole.error(self.start + offset, cause)

    def was_changed(self) -> bool:
        return self.whole.was_changed()


_LISTING = 8  # bytes of memory for each byte of the directory of a zip


class InflatedSource(Source):
    """The unpacked bytes of a compressed zip entry. They are unpacked from beginning to end, a little at a time:
    reading on from the last position is fast, and going back starts again from the beginning. A read that reaches the
    end compares the checksum before it returns."""

    def __init__(self, whole: Source, start: int, stop: int, size: int, crc: int, entry: str) -> None:
        self.name = whole.name
        self.size = size
        self._packed = PartSource(whole, start, stop)
        self.is_local = whole.is_local
        self._crc, self._entry = crc, entry
        self._lock = Lock()
        self._machine: Any = None
        self._rewind()

    def __reduce__(self) -> tuple[Any, ...]:
        packed = self._packed
        return InflatedSource, (
            packed.whole,
            packed.start,
            packed.start + packed.size,
            self.size,
            self._crc,
            self._entry,
        )

    def _rewind(self) -> None:
        self._machine = zlib.decompressobj(-15)
        self._at = self._taken = self._sum = 0

    def _read(self, start: int, stop: int) -> Any:
        with self._lock:
            if start < self._at:
                self._rewind()
            data = bytearray(stop - start)
            while self._at < stop:
                piece = self._next(min(_INFLATED, (start if self._at < start else stop) - self._at))
                if self._at >= start:
                    data[self._at - start : self._at - start + len(piece)] = piece
                self._at += len(piece)
            if stop == self.size and self._sum != self._crc:
                self._rewind()
                raise self._damaged("its checksum does not match")
            return data

    def _next(self, most: int) -> bytes:
        """Unpacks the next bytes, at most `most` of them."""
        machine = self._machine
        data = machine.unconsumed_tail
        if not data:
            end = min(self._taken + _INFLATED, self._packed.size)
            data = bytes(self._packed.read(self._taken, end))
            self._taken = end
        try:
            piece: bytes = machine.decompress(data, most)
        except zlib.error as error:
            raise self._damaged(str(error)) from error
        if not piece and (machine.eof or (not machine.unconsumed_tail and self._taken == self._packed.size)):
            raise self._damaged("it ends early")
        self._sum = zlib.crc32(piece, self._sum)
        return piece

    def _damaged(self, cause: str) -> FileError:
        return self._packed.error(0, f"the entry {self._entry!a} is damaged: {cause}")

    def error(self, offset: int, cause: str) -> FileError:
        return self._packed.error(0, f"in the entry {self._entry!a}, at byte {offset:,} of its unpacked data: {cause}")

    def was_changed(self) -> bool:
        return self._packed.was_changed()


class SourceStream(io.RawIOBase):
    """A source as a seekable file object, from which `zipfile` reads the directory of a zip."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._source.size}[whence]
        if base + offset < 0:
            raise OSError("sought before the start of the file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        stop = min(self._at + len(buffer), self._source.size)
        if stop <= self._at:
            return 0
        # `zipfile` creates an object for each entry of the directory.
        self._source.limits.spend_bytes(_LISTING * (stop - self._at))
        self._source.limits.spend_steps(stop - self._at)
        data = self._source.read(self._at, stop)
        buffer[: len(data)] = data
        self._at = stop
        return len(data)


class Cursor:
    """Reads a header from beginning to end, in blocks, and keeps track of the offset for error messages."""

    def __init__(self, source: Source, at: int = 0, block: int = 1 << 14) -> None:
        self.source = source
        self.at = at
        self._size = block
        self._block = b""
        self._start = at

    def take(self, length: int) -> bytes:
        self._check(length)
        skip = self.at - self._start
        if skip + length > len(self._block):
            stop = min(self.at + max(length, self._size), self.source.size)
            self._block = bytes(self.source.read(self.at, stop))
            self._start, skip = self.at, 0
        self.at += length
        return self._block[skip : skip + length]

    def skip(self, length: int) -> int:
        """Skips bytes without reading them; returns the offset of the first."""
        self._check(length)
        start, self.at = self.at, self.at + length
        if not self._start <= self.at <= self._start + len(self._block):
            self._start, self._block = self.at, b""
        return start

    def _check(self, length: int) -> None:
        """Raises unless so many bytes follow."""
        if length < 0 or self.at + length > self.source.size:
            raise self.error(
                f"{length:,} bytes should follow, but only {self.source.size - self.at:,} do; was the file cut off?"
            )

    def unsigned(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little")

    def signed(self, length: int) -> int:
        return int.from_bytes(self.take(length), "little", signed=True)

    def text(self) -> str:
        """A text that follows its length, which takes eight bytes."""
        length = self.unsigned(8)
        self.source.limits.spend_bytes(5 * length)
        return str(self.take(length), "utf-8", "backslashreplace")

    def error(self, cause: str) -> FileError:
        return self.source.error(self.at, cause)
