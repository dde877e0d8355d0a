"""The remote writer: whatever happens, a reader finds either the old checkpoint or the new one, complete.

All files but the last get names that are not in use yet. The last one, an index that lists them or the only file, is
made visible when everything else is in place. If anything fails, what was uploaded is removed.

Remote file systems cannot go back in a file, but the header comes first and contains the checksums, which are known
last. Stores that speak S3 take the parts of a file in any order (see `multipart`). For other file systems, a file is
first written to the folder for temporary files, one file of the checkpoint at a time.
"""

import os
import secrets
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from types import TracebackType
from typing import Any

from leafwise.core.path import shown_file
from leafwise.core.work.progress import Count
from leafwise.errors import FileError
from leafwise.files.limits import Limits
from leafwise.files.sources.remote import forget_cached, remote_source, retried
from leafwise.files.sources.remote_reasons import is_transient
from leafwise.files.sources.source import Source
from leafwise.files.writing.output import Output
from leafwise.files.writing.writer import LocalOutput, StagedCheck, remove_unfinished, staged_prefix

# Stores in which a file appears only when all of it was sent. In other file systems, it is sent under another name and
# then moved. A move in these stores is a copy, which may still be going on when the move has returned.
_COMPARED = 16 << 20  # bytes at either end of a file
_COMPLETE_ONLY = {"gs", "gcs", "abfs", "abfss", "az"}


class RemoteOutput(Output):
    """A file behind a URL that is being written. `finish` sends what is left, `place` makes the file visible."""

    is_placed = False
    differs = False  # whether what is visible now is not what was sent

    def finish(self) -> None:
        raise NotImplementedError

    def place(self) -> None:
        raise NotImplementedError

    def arrived(self) -> bool:
        """Whether the file is there, though `place` has failed: only the response may have been lost."""
        raise NotImplementedError

    def discard(self, is_reachable: bool = True) -> str:
        """Removes everything that was sent. Returns what could not be removed; empty if nothing is left. If the store
        cannot be reached, it is not asked again."""
        raise NotImplementedError


class StagedUpload(RemoteOutput):
    """A file that is written on this machine first, and then sent through fsspec."""

    def __init__(self, url: str, files: Any, path: str) -> None:
        self.path = url
        self._files, self._inside = files, path
        self._progress: Count = lambda count: None
        self._is_settled = False  # whether all of it is there, so that the file on this machine was removed
        name = path.rpartition("/")[2]
        here = os.path.join(tempfile.gettempdir(), staged_prefix(url) + "upload")
        with _on_this_machine(url):
            remove_unfinished(here)
            self._here = LocalOutput(here, private=True)
        protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
        self._temporary = ""
        if protocols.isdisjoint(_COMPLETE_ONLY):
            self._temporary = f"{path[: len(path) - len(name)]}{staged_prefix(name)}{secrets.token_hex(8)}.part"

    @property
    def at(self) -> int:  # type: ignore[override]
        return self._here.at

    def write(self, data: Any) -> int:
        with _on_this_machine(self.path):
            return self._here.write(data)

    def skip(self, length: int) -> None:
        self._here.skip(length)

    def fill(self, data: Any, start: int) -> None:
        with _on_this_machine(self.path):
            self._here.fill(data, start)

    def counted(self, progress: Count) -> Count:
        self._progress = progress  # sending takes longer than writing
        return lambda count: None

    def source(self) -> Source:
        if self._is_settled:
            return written_source(self.path, self._files, self._inside)
        source = self._here.source()
        source.name = self.path
        return source

    def finish(self) -> None:
        if self._temporary:
            self._send(self._temporary)

    def place(self) -> None:
        if self._temporary:
            retried(self.path, self._move, "write")
        else:
            self._send(self._inside)
        self._check_placed(os.path.getsize(self._here.staged))
        self.is_placed = self._is_settled = True
        self._here.discard()

    def _check_placed(self, size: int) -> None:
        facts = retried(self.path, lambda: self._files.info(self._inside), "write")
        if facts.get("type") == "directory" or facts["size"] != size:
            self.is_placed = self.differs = True
            raise FileError(
                f"{shown_file(self.path)} was written, but is not what was sent: it should be a file of {size:,} "
                "bytes; if another program has written it at the same time, save again"
            )

    def _move(self) -> None:
        try:
            self._rename()
        except FileNotFoundError:
            if not self.arrived():  # an earlier attempt may have moved it, and its response was lost
                raise
        finally:
            forget_cached(self._files, self._inside)

    def _rename(self) -> None:
        from fsspec import AbstractFileSystem

        is_general = type(self._files).mv is AbstractFileSystem.mv
        if is_general and any(sign in self._temporary for sign in "*?["):
            # That method would take the name for a pattern, and the new name for a folder.
            self._files.cp_file(self._temporary, self._inside)
            self._files.rm_file(self._temporary)
        else:
            self._files.mv(self._temporary, self._inside)

    def arrived(self) -> bool:
        ours, theirs = self.source(), written_source(self.path, self._files, self._inside)
        # What is not compared has checksums there: at the beginning of a safetensors file, and at the end of a zip.
        begin, end = min(_COMPARED, ours.size), max(ours.size - _COMPARED, 0)
        has_arrived = theirs.size == ours.size and all(
            bytes(theirs.read(start, stop)) == bytes(ours.read(start, stop))
            for start, stop in ((0, begin), (end, ours.size))
        )
        if has_arrived:
            _removed(self.path, self._files, self._temporary)
        return has_arrived

    def _send(self, inside: str) -> None:
        here, size = self._here.staged, os.path.getsize(self._here.staged)
        counter = _counter(self._progress)

        def attempt() -> None:
            counter.begin()
            self._files.put_file(here, inside, callback=counter)
            forget_cached(self._files, inside)
            received = self._files.info(inside)["size"]
            if received != size:
                raise ConnectionResetError(f"{received:,} of {size:,} bytes were received")

        retried(self.path, attempt, "write")

    def discard(self, is_reachable: bool = True) -> str:
        self._here.discard()
        paths = [self._inside] if self.is_placed else []
        if self._temporary and not self._is_settled:  # it may not have been moved
            paths.append(self._temporary)
        if not is_reachable:
            return ", ".join(map(shown_file, paths))
        return ", ".join(filter(None, (_removed(self.path, self._files, path) for path in paths)))


class RemoteTransaction(AbstractContextManager["RemoteTransaction"]):
    """A context manager for files that become visible together, or not at all; see `FileTransaction`."""

    def __init__(
        self,
        open_output: Callable[[str], RemoteOutput],
        check_staged: StagedCheck,
        tidy: Callable[[], None] | None = None,
    ) -> None:
        self._outputs: list[RemoteOutput] = []
        self._open_output, self._check_staged, self._tidy = open_output, check_staged, tidy
        self._stays = False  # whether the last file may be visible, which needs the others

    def open(self, path: str, like: str = "") -> Output:
        """Opens a file to write. The one before must be complete: it is sent, so that memory and disk are free again.
        No index lists it yet, so it is as good as invisible."""
        if self._outputs:
            last = self._outputs[-1]
            last.finish()
            try:
                last.place()
            except BaseException as problem:
                # Then it has to be removed. No other save uses its name.
                last.is_placed = last.is_placed or _may_arrive(problem) or _has_arrived(last)
                raise
        self._outputs.append(self._open_output(path))
        return self._outputs[-1]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._check_staged({output.path: output for output in self._outputs})
                self._outputs[-1].finish()
                self._place_last(self._outputs[-1])
        except BaseException as problem:
            self._discard(problem)
            raise
        if error is not None:
            self._discard(error)
            if isinstance(error, OSError) and self._outputs:
                path = self._outputs[-1].path
                raise FileError(f"cannot write {shown_file(path)}: {error.strerror or error}") from error
        elif self._tidy is not None:
            with suppress(FileError):  # the new checkpoint is in place; the next save removes what is left
                self._tidy()

    def _place_last(self, last: RemoteOutput) -> None:
        """Makes everything visible. If that fails, it may have happened nevertheless, or may still happen: a request
        whose response was lost can be on its way. The other files are removed only if it is certain that no such
        request was or will be carried out."""
        self._stays = True
        try:
            last.place()
        except BaseException as problem:
            if not last.is_placed:
                last.is_placed = _has_arrived(last)
            if not last.is_placed:
                self._stays = _may_arrive(problem)
                raise
            if last.differs or not isinstance(problem, FileError):  # an interrupt
                raise

    def _discard(self, problem: BaseException) -> None:
        if not self._outputs or (self._stays and self._outputs[-1].is_placed):
            return  # everything is visible
        if self._stays:
            left = [shown_file(output.path) for output in self._outputs[:-1]]
            left += [what] if (what := self._outputs[-1].discard()) else []
        else:
            left = []
            for output in self._outputs:  # each request has minutes: the first that fails for good is the last
                left += [what] if (what := output.discard(is_reachable=not left)) else []
        if left:
            problem.add_note(f"{', '.join(left)} could not be removed; the next save there removes it after a day")


def _may_arrive(problem: BaseException) -> bool:
    """Whether nobody knows if the last request was handled, or will be: it was interrupted, or its response lost."""
    cause = problem.__cause__
    return cause is None or is_transient(cause)


def _has_arrived(output: RemoteOutput) -> bool:
    with suppress(FileError):
        return output.arrived()
    return False


def written_source(url: str, files: Any, path: str) -> Source:
    forget_cached(files, path)
    return remote_source(url, files, path, Limits.none())


def remove(url: str, files: Any, path: str) -> None:
    """Removes a file if it is there."""

    def attempt() -> None:
        with suppress(FileNotFoundError):
            files.rm_file(path)
        forget_cached(files, path)

    retried(url, attempt, "write")


def _removed(url: str, files: Any, path: str) -> str:
    """Removes a file if it is there. Returns its name if that is not possible."""
    try:
        remove(url, files, path)
    except FileError:
        return shown_file(path)
    return ""


def _counter(progress: Count) -> Any:
    """A callback of fsspec that counts bytes. What was sent by a failed attempt is counted once."""
    from fsspec.callbacks import Callback

    class Counter(Callback):  # type: ignore[misc]
        most = 0

        def begin(self) -> None:
            self.value = 0

        def call(self, *_: Any, **__: Any) -> None:
            if self.value > self.most:
                progress(self.value - self.most)
                self.most = self.value

    return Counter()


@contextmanager
def _on_this_machine(url: str) -> Iterator[None]:
    """Turns errors of the folder for temporary files into a FileError that says what to do."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"cannot write {shown_file(url)}: it is first written to {tempfile.gettempdir()!r}, and there: "
            f"{error.strerror or error}; set TMPDIR to a folder with more room, or use shard_size="
        ) from error
