"""Uploads a file to a store that speaks S3, in parts. The store takes them in any order, and nothing is visible until
the upload is completed. So the arrays are sent while they are hashed, and the part with the header is sent last.

Memory is bounded: a few parts are being filled, and a limited number is being sent. Each part is sent with its MD5,
which the store compares.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files.sources.remote import forget_cached
from leafwise.files.sources.s3 import Received, S3Object, combined_etag, is_etag
from leafwise.files.sources.source import BytesSource, Source
from leafwise.files.writing.remote_writer import RemoteOutput, written_source

PART = 8 << 20  # bytes of a part, if the file has no more parts than are allowed
MOST_PARTS = 10_000
SENDING = 8  # parts that are being sent at a time


class MultipartUpload(RemoteOutput):
    """A file in a store that is being written."""

    def __init__(self, url: str, files: Any, path: str) -> None:
        self.path = url
        self.at = 0
        self._files, self._inside = files, path
        self._object = S3Object(url, files, path)
        self._size: int | None = None
        self._part_size = PART
        self._parts: dict[int, _PartMemory] = {}  # that are not being sent yet
        self._lock = threading.Lock()
        self._sending = _Sending(SENDING)
        self._received: dict[int, Received] = {}
        self._upload = ""
        self._is_complete = False
        self._header = b""

    def expect(self, stop: int, in_threads: bool = False) -> None:
        self._size = stop
        # All parts but the last have the same size, which some stores require.
        self._part_size = max(PART, -(-stop // MOST_PARTS))

    def write(self, data: Any) -> int:
        length = memoryview(data).nbytes
        self.fill(data, self.at)
        self.at += length
        return length

    def skip(self, length: int) -> None:
        self.at += length

    def fill(self, data: Any, start: int) -> None:
        self._sending.check()
        view = memoryview(data).cast("B")
        if start == 0:
            self._header = bytes(view)
        while view:
            number, offset = divmod(start, self._part_size)
            taken = view[: self._part_size - offset]
            with self._lock:
                part = self._parts.get(number) or self._parts.setdefault(number, _PartMemory(self._length(number)))
            part.fill(taken, offset)  # without the lock: no two threads fill the same bytes
            with self._lock:
                part.filled += len(taken)
                is_complete = part.filled == len(part.memory)
            if is_complete and not self._is_small():
                self._send(number)
            view, start = view[len(taken) :], start + len(taken)

    def _length(self, number: int) -> int:
        """The length of a part. If the size of the file is not known, the last one turns out to be shorter."""
        left = self._part_size if self._size is None else self._size - number * self._part_size
        return min(left, self._part_size)

    def _is_small(self) -> bool:
        """Whether the file is sent by a single request."""
        return self._size is not None and self._size <= self._part_size

    def _send(self, number: int) -> None:
        with self._lock:
            part = self._parts.pop(number)
            if not self._upload:
                self._upload = self._object.write("create_multipart_upload")["UploadId"]

        def send() -> None:
            body = part.taken()
            self._received[number] = self._object.send(
                "upload_part", body, UploadId=self._upload, PartNumber=number + 1
            )

        self._sending.start(send)

    def finish(self) -> None:
        if self._size is None:
            self._size = self.at
        assert all(part.filled == self._length(number) for number, part in self._parts.items()), "there are gaps"
        if self._upload:
            for number, part in list(self._parts.items()):
                part.memory = part.memory[: part.filled]
                self._send(number)
            self._sending.wait()
            self._sending.check()

    def place(self) -> None:
        size = self._size or 0
        if self._upload:
            received = [self._received[number] for number in range(-(-size // self._part_size))]
            self._object.complete(self._upload, received, size)
            self._is_complete = True
            expected = combined_etag(received)
        else:
            part = self._parts.pop(0, None)
            expected = self._object.send("put_object", b"" if part is None else part.taken()[:size]).etag
        self.is_placed = True
        forget_cached(self._files, self._inside)
        self._check_placed(size, expected)

    def arrived(self) -> bool:
        # The header, or the whole index, has the checksums of everything else.
        theirs = written_source(self.path, self._files, self._inside)
        return theirs.size == self._size and bytes(theirs.read(0, len(self._header))) == self._header

    def _check_placed(self, size: int, etag: str) -> None:
        """Compares what the store says about the new object, and its header, with what was sent."""
        there = self._object.head() or {}
        if there.get("ContentLength") != size:
            reason = f"it should have {size:,} bytes, and has {there.get('ContentLength', 0):,}"
        elif not is_etag(there, etag):
            reason = "its ETag is not that of the bytes that were sent"
        elif bytes(self.source().read(0, len(self._header))) != self._header:
            reason = "its header is not the one that was sent"
        else:
            return
        self.differs = True
        raise FileError(
            f"{shown_file(self.path)} was written, but is not what was sent: {reason}; if another program has written "
            "it at the same time, save again"
        )

    def source(self) -> Source:
        if self.is_placed:
            return written_source(self.path, self._files, self._inside)
        return _HeaderSource(self.path, self._header, self._size)

    def discard(self, is_reachable: bool = True) -> str:
        self._sending.stop()
        self._parts.clear()
        left = ""
        if not is_reachable:
            is_begun = self.is_placed or (self._upload and not self._is_complete)
            return f"what was uploaded of {shown_file(self.path)}" if is_begun else ""
        if self._upload and not self._is_complete:  # aborted first: then it cannot be completed any more
            try:
                self._object.write("abort_multipart_upload", UploadId=self._upload)
            except FileError as error:
                if "NoSuchUpload" not in repr(error.__cause__):
                    left = f"what was uploaded of {shown_file(self.path)}"
        if self.is_placed:
            with suppress(FileError):
                self._object.write("delete_object")
                forget_cached(self._files, self._inside)
                return left
            return shown_file(self.path)
        return left


class _PartMemory:
    """A part that is being filled."""

    def __init__(self, length: int) -> None:
        self.memory = bytearray(length)
        self.filled = 0

    def taken(self) -> bytes:
        """The bytes, which are not kept here: several objects can share `bytes`, but not a `bytearray`."""
        body, self.memory = bytes(self.memory), bytearray()
        return body

    def fill(self, view: memoryview, offset: int) -> None:
        import numpy as np

        # NumPy releases the GIL while it copies.
        np.frombuffer(self.memory, np.uint8)[offset : offset + len(view)] = np.frombuffer(view, np.uint8)


class _HeaderSource(BytesSource):
    """The header of a file whose other bytes are not on this machine any more."""

    def __init__(self, url: str, header: bytes, size: int | None) -> None:
        super().__init__(url, header)
        self.size = len(header) if size is None else size


class _Sending:
    """Threads that send parts, one each. They are not taken from a pool of `concurrent.futures`, which does not start
    any when the interpreter is about to exit: a save in the background may still be running then."""

    def __init__(self, most: int) -> None:
        self._most, self._running = most, 0
        self._changed = threading.Condition()
        self._error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Waits until fewer than the allowed number of parts are being sent, then sends another."""
        with self._changed:
            while self._running >= self._most and self._error is None:
                self._changed.wait()
            self.check()
            self._running += 1
        try:
            threading.Thread(target=self._run, args=(work,), daemon=True).start()
        except RuntimeError:  # the system allows no more threads
            self._run(work)

    def _run(self, work: Callable[[], None]) -> None:
        error: BaseException | None = None
        try:
            if self._error is None:
                work()
        except BaseException as problem:
            error = problem
        with self._changed:
            self._error = self._error or error
            self._running -= 1
            self._changed.notify_all()

    def check(self) -> None:
        """Raises if a part could not be sent."""
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        with self._changed:
            while self._running:
                self._changed.wait()

    def stop(self) -> None:
        """Sends nothing more, and waits for what is being sent: parts that arrive after an upload was aborted would be
        left in the store."""
        with self._changed:
            self._error = self._error or FileError("the upload was stopped")
        self.wait()
