"""Files behind a URL, read in parts through fsspec."""

from typing import Any

from leafwise.core.path import escape, shown_file, shown_url, without_secrets
from leafwise.errors import FileError
from leafwise.files.limits import LimitError, Limits
from leafwise.files.source import Source

BLOCK = 4_096  # bytes; smaller reads fetch a whole block, so that reading a header takes few requests


def remote_source(url: str, files: Any, path: str, limits: Limits) -> Source:
    """The file behind a URL."""
    if is_web(url):
        from leafwise.files import web

        return web.source(url, files, path, limits)
    with remote_errors(url):
        size = int(files.info(path)["size"] or 0)
    return RemoteSource(url, files, path, size)


class RemoteSource(Source):
    """A file behind a URL, through fsspec. `start` are its first bytes, if they are known already."""

    def __init__(self, url: str, files: Any, path: str, size: int, start: bytes = b"") -> None:
        self.name = url
        self.size = size
        self.files, self.path = files, path
        self._blocks: dict[int, bytes] = {0: start} if len(start) == min(BLOCK, size) else {}

    def _read(self, start: int, stop: int) -> Any:
        if stop - start > BLOCK:
            return self.fetch(start, stop)
        first = start // BLOCK * BLOCK
        data = self._block(first)
        if stop > first + BLOCK:
            data += self._block(first + BLOCK)
        return data[start - first : stop - first]

    def _block(self, start: int) -> bytes:
        if start not in self._blocks:
            if len(self._blocks) >= 64:
                self._blocks.clear()
            self._blocks[start] = self.fetch(start, min(start + BLOCK, self.size))
        return self._blocks[start]

    def fetch(self, start: int, stop: int) -> bytes:
        """Requests a range of the file."""
        with remote_errors(self.name):
            content: bytes = self.files.cat_file(self.path, start=start, end=stop)
        return content


class remote_errors:  # noqa: N801
    """Turns any exception of a remote file system into a FileError that names the URL, without its secrets."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, FileError | LimitError):
            from leafwise.files.remote_reasons import reason  # late: it imports ssl, which is slow

            raw = reason(error) or f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ")
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


def is_web(url: str) -> bool:
    """Whether a URL is on a web server, which has no folders."""
    return url.lower().startswith(("http://", "https://"))


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
