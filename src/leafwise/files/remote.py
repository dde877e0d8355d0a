"""Files behind a URL, read with range requests through fsspec."""

from typing import Any

from leafwise.core.path import escape, shown_file, shown_url, without_secrets
from leafwise.errors import FileError
from leafwise.files.source import Source

_BLOCK = 4_096  # bytes; smaller reads fetch a whole block, so that reading a header takes few requests


class RemoteSource(Source):
    """A file behind a URL, through fsspec."""

    def __init__(self, url: str, files: Any, path: str) -> None:
        self.name = url
        self._files, self._path = files, path
        with remote_errors(url):
            self.size = int(files.info(path)["size"] or 0)
        self._blocks: dict[int, bytes] = {}

    def _read(self, start: int, stop: int) -> Any:
        if stop - start > _BLOCK:
            return self._fetch(start, stop)
        first = start // _BLOCK * _BLOCK
        data = self._block(first)
        if stop > first + _BLOCK:
            data += self._block(first + _BLOCK)
        return data[start - first : stop - first]

    def _block(self, start: int) -> bytes:
        if start not in self._blocks:
            if len(self._blocks) >= 64:
                self._blocks.clear()
            self._blocks[start] = self._fetch(start, min(start + _BLOCK, self.size))
        return self._blocks[start]

    def _fetch(self, start: int, stop: int) -> bytes:
        with remote_errors(self.name):
            data: bytes | None = ranged(self._files, self._path, start, stop)
        if data is None or len(data) > stop - start:
            raise self.error(start, "the server does not support range requests; download the file first")
        return data


def ranged(files: Any, path: str, start: int, stop: int) -> bytes | None:
    """A range of a remote file; None if the server would send the whole file. Requests to web servers are made
    directly, because fsspec would read whatever they send into memory."""
    from fsspec.asyn import sync

    if not {"http", "https"} & {*([files.protocol] if isinstance(files.protocol, str) else files.protocol)}:
        content: bytes = files.cat_file(path, start=start, end=stop)
        return content

    async def ask() -> bytes | None:
        options = dict(files.kwargs)
        headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}"}
        session = await files.set_session()
        async with session.get(files.encode_url(path), headers=headers, **options) as answer:
            if answer.status == 404:
                raise FileNotFoundError(path)
            answer.raise_for_status()
            if answer.status != 206 and not (start == 0 and answer.content_length == stop):
                return None
            data = b""
            while len(data) <= stop - start and (chunk := await answer.content.read(stop - start + 1 - len(data))):
                data += chunk
            return data

    answered: bytes | None = sync(files.loop, ask)
    return answered


class remote_errors:  # noqa: N801
    """Turns any exception of a remote file system into a FileError that names the URL, without its secrets."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, FileError):
            status = getattr(error, "status", None)
            kind_of = f"{type(error).__name__}{f' {status}' if isinstance(status, int) else ''}"
            raw = f"{kind_of}: {str(error).strip()}".removesuffix(": ")
            message = without_secrets(raw, self.url)
            # The original error is not chained if its text has secrets, which a traceback would show.
            shows_none = message == raw and shown_url(self.url) == self.url
            raise FileError(f"cannot read {shown_file(self.url)}: {escape(message)[:500]}") from (
                error if shows_none else None
            )


def is_url(target: str) -> bool:
    """Whether a target is a URL rather than a path.

    >>> is_url("s3://bucket/model.pt"), is_url("C:/model.pt"), is_url("model.pt")
    (True, False, False)
    """
    scheme, separator, _ = target.partition("://")
    return bool(separator) and len(scheme) > 1 and scheme.replace("+", "").replace("-", "").isalnum()


def remote(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise FileError(
            f"cannot open {shown_file(url)}: fsspec is not installed; pip install 'leafwise[remote]'"
        ) from error
    with remote_errors(url):
        files, path = fsspec.core.url_to_fs(url)
    return files, path
