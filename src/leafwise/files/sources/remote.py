"""Files behind a URL, read in parts through fsspec. Requests that fail for a reason that may pass are repeated."""

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from leafwise.core.path import escape, shown_file, shown_url, without_secrets
from leafwise.errors import FileError
from leafwise.files.limits import LimitError, Limits
from leafwise.files.sources.source import Source

T = TypeVar("T")
BLOCK = 4_096  # bytes; smaller reads fetch a whole block, so that reading a header takes few requests

TRIES = 5
PATIENCE = 60.0  # seconds after which no further attempt begins; the libraries below have retries of their own
FIRST_PAUSE = 0.5  # seconds; each pause is twice as long as the one before, and shortened at random
_LONGEST_PAUSE = 15.0


def remote_source(url: str, files: Any, path: str, limits: Limits) -> Source:
    """The file behind a URL."""
    if is_web(url):
        from leafwise.files.sources import web

        return web.source(url, files, path, limits)

    def opened() -> Source:
        facts = files.info(path)
        if is_s3(files):
            from leafwise.files.sources.s3 import S3Source

            return S3Source(url, files, path, facts)
        return RemoteSource(url, files, path, int(facts["size"] or 0), facts=facts)

    return retried(url, opened, opening=True)


class RemoteSource(Source):
    """A file behind a URL, through fsspec. `start` are its first bytes, if they are known already, and `facts` are what
    the file system says about the file."""

    def __init__(
        self, url: str, files: Any, path: str, size: int, start: bytes = b"", facts: Mapping[str, Any] | None = None
    ) -> None:
        self.name = url
        self.size = size
        self.files, self.path = files, path
        self._stamp = stamp_of(facts or {})
        self.version = _version_of(self._stamp)
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
        """Requests a range of the file. Requests that fail for a reason that may pass are repeated."""

        def part() -> bytes:
            content = self.request(start, stop)
            if len(content) != stop - start:
                raise CutOffError(
                    f"{len(content):,} of the {stop - start:,} bytes from byte {start:,} on were sent; was the file "
                    "replaced, or is it being written?"
                )
            return content

        return retried(self.name, part)

    def request(self, start: int, stop: int) -> bytes:
        """Requests a range of the file once."""
        content: bytes = self.files.cat_file(self.path, start=start, end=stop)
        return content

    def was_changed(self) -> bool:
        """Whether the file system says something else about the file than when it was opened."""
        if not self._stamp:
            return False
        forget_cached(self.files, self.path)
        return retried(self.name, lambda: stamp_of(self.files.info(self.path))) != self._stamp


# What file systems call the version of a file, or the time when it was written; what identifies it best comes first.
_VERSION_KEYS = (
    "ETag", "etag", "generation", "md5Hash", "content_md5", "LastModified", "last_modified", "updated", "mtime",
    "modified", "created",
)  # fmt: skip


def stamp_of(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What differs between versions of a file; empty if the file system does not say."""
    version = {key: facts[key] for key in _VERSION_KEYS if facts.get(key) is not None}
    return {**version, "size": facts.get("size")} if version else {}


def _version_of(stamp: Mapping[str, Any]) -> str:
    """The version of a file, for other processes. Only what identifies it best counts: a process that has listed the
    folder may know the time of the file more exactly than one that has asked for the file alone."""
    return str(next(iter(stamp.values()), "")).strip('"')


def forget_cached(files: Any, path: str) -> None:
    """Makes a file system forget what it has listed: other programs may have written since."""
    files.invalidate_cache(path)


def is_s3(files: Any) -> bool:
    """Whether a file system is that of s3fs, and reads the latest versions. It is recognized without an import."""
    is_one = any(cls.__name__ == "S3FileSystem" and cls.__module__ == "s3fs.core" for cls in type(files).__mro__)
    return is_one and not files.version_aware


def run_async(files: Any, work: "Coroutine[Any, Any, T]") -> "T":
    """Runs a coroutine in the thread of fsspec, and stops it if this thread is interrupted."""
    import asyncio  # late: this import is slow

    future = asyncio.run_coroutine_threadsafe(work, files.loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


class remote_errors:  # noqa: N801
    """Turns any exception of a remote file system into a FileError that names the URL, without its secrets."""

    def __init__(self, url: str, verb: str = "read") -> None:
        self.url, self.verb = url, verb
        self.attempts = 0  # if there were several, the message says so

    def __enter__(self) -> "remote_errors":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, FileError | LimitError):
            from leafwise.files.sources.remote_reasons import reason  # late: it imports ssl, which is slow

            raw = reason(error) or f"{type(error).__name__}: {str(error).strip()}".removesuffix(": ").rstrip(".")
            message = without_secrets(raw, self.url)
            after = f" ({self.attempts} attempts failed)" if self.attempts > 1 else ""
            # The original error is not chained if its text has secrets, which a traceback would show.
            shows_none = message == raw and shown_url(self.url) == self.url
            cause = error if shows_none else FileNotFoundError() if isinstance(error, FileNotFoundError) else None
            failure = FileError(f"cannot {self.verb} {shown_file(self.url)}: {escape(message)[:500]}{after}")
            try:
                raise failure from cause
            finally:
                failure.__context__ = cause  # not what was handled here: tools that report errors print that, too


class CutOffError(ConnectionError):
    """Fewer bytes arrived than were requested, or others than were sent."""


def retried(url: str, work: Callable[[], T], verb: str = "read", opening: bool = False) -> T:
    """Calls `work`, again and again as long as it fails for a reason that may pass. Any exception becomes a FileError
    that names the URL and the number of attempts. With `opening`, a server that cannot be reached is an error at once:
    the address may be wrong."""
    with remote_errors(url, verb) as errors:
        began = time.monotonic()
        while True:
            errors.attempts += 1
            try:
                return work()
            except Exception as error:
                from leafwise.files.sources.remote_reasons import is_transient  # late: it imports ssl, which is slow

                is_last = errors.attempts >= TRIES or time.monotonic() - began > PATIENCE
                if is_last or not is_transient(error, opening):
                    raise
            import random  # late: most requests succeed

            pause = min(FIRST_PAUSE * 2 ** (errors.attempts - 1), _LONGEST_PAUSE)
            time.sleep(pause * random.uniform(0.5, 1))


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


def parent_url(url: str) -> str:
    """The URL of the folder that contains a file.

    >>> parent_url("s3://bucket/run/model.pt"), parent_url("memory://model.pt")
    ('s3://bucket/run', 'memory://')
    """
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.rpartition('/')[0]}"


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
        forget_cached(files, path)
    return files, path
