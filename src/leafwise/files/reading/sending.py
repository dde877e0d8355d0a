"""Sends tasks to other processes. An array is sent without its values: as the place of its bytes in a file, which the
other process opens by itself.

A file is sent as its path or URL, its size and its version: the time when it was last written, or what the server calls
its version. If the other process finds another file there, it raises an error instead of using it.
"""

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any, NamedTuple

from leafwise.core.path import shown_file
from leafwise.core.work.executor_tasks import place
from leafwise.errors import FileError
from leafwise.files.arrays.derived import MeanAlong
from leafwise.files.arrays.pieces import Pieces
from leafwise.files.arrays.stored import InMemory, Placed, Storage, Stored
from leafwise.files.limits import Limits
from leafwise.files.sources.remote import RemoteSource, is_url, remote, remote_source
from leafwise.files.sources.source import BytesSource, LocalSource, Source
from leafwise.files.sources.web import DownloadedSource

_MOST_OPEN = 64  # files that a worker keeps open for its next task


class SentSource(NamedTuple):
    """A file: its path or URL, and how to recognize it."""

    name: str
    size: int
    version: str


def sent_source(source: Source) -> SentSource:
    """The reference by which another process opens a file."""
    if isinstance(source, DownloadedSource):
        raise FileError(
            f"workers cannot read {shown_file(source.name)}: its server can only send whole files; download it first, "
            "and give the path of the copy"
        )
    name = os.path.abspath(source.name) if isinstance(source, LocalSource) else source.name
    return SentSource(name, source.size, source.version)


def dumps(task: Any) -> bytes | None:
    """A task as bytes; None if it cannot be sent."""
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(task)
    except (pickle.PicklingError, TypeError, AttributeError):
        return None
    return buffer.getvalue()


def run(data: bytes) -> Any:
    """Runs a task. Raises if a file that it read was changed meanwhile."""
    unpickler = _Unpickler(io.BytesIO(data))
    result = unpickler.load()()
    for sent, source in unpickler.opened.items():
        if source.was_changed():
            _files.forget(sent)
            raise FileError(f"{shown_file(source.name)} was changed while it was being read; open it again")
    return result


class _Pickler(pickle.Pickler):
    """Replaces files by references, and leaves out what a task does not need, such as the checksums of whole files."""

    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer, pickle.HIGHEST_PROTOCOL)
        self._sent: dict[int, SentSource] = {}

    def persistent_id(self, obj: Any) -> SentSource | None:
        if not isinstance(obj, LocalSource | RemoteSource):
            return None
        if id(obj) not in self._sent:
            self._sent[id(obj)] = sent_source(obj)
        return self._sent[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Storage):
            return Storage, (obj.source, obj.start, obj.nbytes, obj.shared)
        if isinstance(obj, Placed):
            return Placed, (obj.source, obj.spec, obj.start)
        if isinstance(obj, InMemory):
            return InMemory, (obj.spec, _Known(obj.array_of()))
        if isinstance(obj, Pieces):
            pieces = [(position, shape, _Known(open_piece())) for position, shape, open_piece in obj.pieces]
            return _pieces, (obj.spec, pieces)
        if isinstance(obj, MeanAlong):
            return MeanAlong, (*obj.inputs, obj.axis)
        if isinstance(obj, BytesSource):
            return BytesSource, (obj.name, bytes(obj.read(0, obj.size)))
        return NotImplemented


class _Known:
    """A function that returns a value which is known already."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


def _pieces(spec: Any, pieces: "list[tuple[tuple[int, ...], tuple[int, ...], Callable[[], Stored]]]") -> Pieces:
    return Pieces(spec, pieces, Limits.none())  # the process that opened the file has applied its limits


class _Unpickler(pickle.Unpickler):
    def __init__(self, buffer: io.BytesIO) -> None:
        super().__init__(buffer)
        self.opened: dict[SentSource, Source] = {}

    def persistent_load(self, sent: SentSource) -> Source:
        if sent not in self.opened:
            self.opened[sent] = _files.opened(sent)
        return self.opened[sent]


# -- the files of a worker -------------------------------------------------------------------------------------------


class _OpenFiles:
    """The files that tasks of this process have opened. A file stays open for the next task. If it is left out here, it
    is closed when the last task that uses it has ended."""

    def __init__(self) -> None:
        self._entries: OrderedDict[SentSource, _OpenFile] = OrderedDict()
        self._lock = Lock()
        self._process = os.getpid()

    def opened(self, sent: SentSource) -> Source:
        with self._lock:
            if self._process != os.getpid():  # connections cannot be used after a fork
                self._entries.clear()
                self._process = os.getpid()
            entry = self._entries.setdefault(sent, _OpenFile())
            self._entries.move_to_end(sent)
            while len(self._entries) > _MOST_OPEN:
                self._entries.popitem(last=False)
        return entry.source(sent)

    def forget(self, sent: SentSource) -> None:
        """Makes the next task open a file again."""
        with self._lock:
            self._entries.pop(sent, None)


class _OpenFile:
    """A file that is opened when it is first needed, by one of several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._source: Source | None = None

    def source(self, sent: SentSource) -> Source:
        with self._lock:
            # Remote files are only asked about when a task ends: each question is a request.
            if self._source is None or (self._source.is_local and self._source.was_changed()):
                self._source = _opened(sent)
            return self._source


_files = _OpenFiles()


def _opened(sent: SentSource) -> Source:
    try:
        is_remote = is_url(sent.name)
        source = remote_source(sent.name, *remote(sent.name), Limits()) if is_remote else LocalSource(sent.name)
    except FileError as error:
        raise FileError(
            f"{error} (on {place()}); workers must reach every file under the same path: use a shared folder or a URL"
        ) from error
    if (source.size, source.version) != (sent.size, sent.version):
        source.close()
        raise FileError(
            f"{shown_file(sent.name)} on {place()} is not the file that was opened: it has {source.size:,} bytes and "
            f"version {source.version!r} instead of {sent.size:,} and {sent.version!r}; was it changed meanwhile, or "
            "is it a copy?"
        )
    return source
