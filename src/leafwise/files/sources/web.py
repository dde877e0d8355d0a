"""Files on web servers: read in parts, or downloaded to a temporary file if the server can only send whole files."""

import os
import re
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NoReturn

from leafwise.core.path import shown_file
from leafwise.core.work.progress import bar
from leafwise.errors import FileError
from leafwise.files.limits import Limits
from leafwise.files.sources import disk as local
from leafwise.files.sources.remote import BLOCK, RemoteSource, retried, run_async
from leafwise.files.sources.source import LocalSource, Source

SILENCE = 30.0  # seconds that a server may be silent
SLOWEST = 10_000  # bytes per second that a server must send on average, after the first SILENCE seconds
_PIECE_BYTES = 1 << 18  # bytes that are taken from a response at a time
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})", re.ASCII)


def source(url: str, files: Any, path: str, limits: Limits) -> Source:
    """The file behind a URL, from one request for its first bytes. If the server sends all of it instead, it is
    downloaded."""

    async def begin() -> Source:
        async with _request(files, path, {"Range": f"bytes=0-{BLOCK - 1}"}) as answer:
            if answer.status == 416:  # there is no first byte
                return WebSource(url, files, path, 0)
            if answer.status != 206:
                return await _downloaded(answer, url, limits)
            sent = _sent_range(answer)
            if sent is not None and sent[0] == 0:
                start = await _taken(answer, min(BLOCK, sent[1]))
                opened = WebSource(url, files, path, sent[1], start)
                opened.version = _version_sent(answer)
                opened.start = start
                return opened
        async with _request(files, path, {}) as answer:
            return await _downloaded(answer, url, limits)

    return retried(url, lambda: run_async(files, begin()), opening=True)


class WebSource(RemoteSource):
    """A file on a web server that can send parts of it. `start` are its first bytes when it was opened."""

    start = b""

    def request(self, start: int, stop: int) -> bytes:
        async def part() -> bytes:
            async with _request(self.files, self.path, {"Range": f"bytes={start}-{stop - 1}"}) as answer:
                sent = _sent_range(answer) if answer.status == 206 else None
                if sent is None or sent[0] != start:
                    raise self.error(start, "the server did not send the part of the file that was requested")
                if sent[1] != self.size or _version_sent(answer) != self.version:
                    raise self.error(start, "the file on the server has changed since it was opened; open it again")
                return await _taken(answer, stop - start)

        return run_async(self.files, part())

    def was_changed(self) -> bool:
        """Each response was of the version that was opened. If the server does not say what version it sends, the first
        bytes are compared again."""
        return not self.version and bool(self.start) and self.fetch(0, len(self.start)) != self.start


class DownloadedSource(LocalSource):
    """A file that was downloaded to a temporary file, which disappears when it is closed."""

    def __getstate__(self) -> NoReturn:
        raise FileError(
            f"{shown_file(self.name)} was downloaded to a temporary file, so the open file cannot be copied; "
            "download it first, or open it again"
        )


# -- requests ------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _request(files: Any, path: str, headers: dict[str, str]) -> AsyncIterator[Any]:
    """The response to a request. It is made directly, because fsspec would read whatever is sent into memory."""
    from aiohttp import ClientTimeout

    options = dict(files.kwargs)
    options.setdefault("timeout", ClientTimeout(total=None, connect=SILENCE, sock_read=SILENCE))
    # A part of a compressed response would not be a part of the file.
    headers = {**options.pop("headers", {}), "Accept-Encoding": "identity", **headers}
    session = await files.set_session()
    async with session.get(files.encode_url(path), headers=headers, **options) as answer:
        if answer.status != 416 or answer.headers.get("Content-Range") != "bytes */0":  # an empty file has no part
            answer.raise_for_status()
        yield answer


# Headers that differ between versions of a file.
_VERSION = (
    "ETag", "Last-Modified", "Content-MD5", "Digest", "Repr-Digest", "x-goog-generation", "x-goog-hash",
    "x-amz-version-id", "x-ms-version-id",
)  # fmt: skip


def _version_sent(answer: Any) -> str:
    """What a response says about the version of the file; empty if nothing. A time of change that is the time of the
    response says nothing."""
    headers = answer.headers
    validators = [f"{name}: {headers[name]}" for name in _VERSION if headers.get(name)]
    return "; ".join(each for each in validators if each != f"Last-Modified: {headers.get('Date')}")


def _sent_range(answer: Any) -> tuple[int, int] | None:
    """The offset of a part, and the length of the file, from a response with the part. None if they are not known, or
    are those of its compressed form."""
    match = _RANGE.fullmatch(answer.headers.get("Content-Range", ""))
    return None if match is None or _is_compressed(answer) else (int(match[1]), int(match[2]))


def _is_compressed(answer: Any) -> bool:
    return bool(answer.headers.get("Content-Encoding", "identity").lower() != "identity")


async def _pieces(answer: Any) -> AsyncIterator[bytes]:
    """The body of a response, decompressed if necessary. Raises if it comes too slowly."""
    started, received = time.monotonic(), 0
    while piece := await answer.content.read(_PIECE_BYTES):
        received += len(piece)
        yield piece
        seconds = time.monotonic() - started
        if seconds > SILENCE and received < SLOWEST * (seconds - SILENCE):
            raise TimeoutError


async def _taken(answer: Any, length: int) -> bytes:
    """The bytes of a part of a file; a server that sends more is not read to the end."""
    data = bytearray()
    async for piece in _pieces(answer):
        data += piece
        if len(data) > length:
            break
    return bytes(data[:length])


async def _downloaded(answer: Any, url: str, limits: Limits) -> Source:
    """Downloads the body of a response, with a progress bar. Nothing remains of it if this fails."""
    length = None if _is_compressed(answer) else answer.content_length
    if length is not None and length > limits.downloads:
        limits.spend_download(length)
    with tempfile.TemporaryFile(buffering=0) as file, bar(length, "downloading", True) as count:
        received = 0
        async for piece in _pieces(answer):
            limits.spend_download(len(piece))
            received += len(piece)
            try:
                local.disk.write(file.fileno(), piece)
            except OSError as error:
                raise FileError(
                    f"cannot download {shown_file(url)} to {tempfile.gettempdir()!r}: {error.strerror or error}; set "
                    "TMPDIR to a folder with more room"
                ) from error
            count(len(piece))
        if length is not None and received != length:
            raise ConnectionResetError
        return DownloadedSource(url, os.dup(file.fileno()))
