"""Where a checkpoint is written: a folder on this machine, or a place behind a URL. What was written there is read back
before it replaces the old checkpoint, so that an unreadable file never replaces a good one."""

import errno
import os
from collections.abc import Callable, Set
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files.folders import shards
from leafwise.files.folders.shard_names import is_index_text, listed_shards, own_shards
from leafwise.files.formats import detect
from leafwise.files.sources import disk as local
from leafwise.files.sources.folder import INDEX, StagedFolder
from leafwise.files.sources.remote import is_url
from leafwise.files.stored_file import StoredFile
from leafwise.files.writing.output import Output
from leafwise.files.writing.writer import FileTransaction, StagedCheck, remove_abandoned


class Transaction(Protocol):
    """Files that become visible together, or not at all. The last one makes the others visible."""

    def open(self, path: str, like: str = "") -> Output:
        """Opens a file to write. Behind a URL, it must be complete before the next one is opened."""


class Destination:
    """The name under which a checkpoint is written, and what is there already. `whole` is its final path or URL, and
    `name` is its name without the folder."""

    whole: str
    name: str

    def joined(self, file_name: str) -> str:
        """The path or URL of a file in the same folder."""
        raise NotImplementedError

    def transaction(
        self, in_shards: bool | None, check_staged: StagedCheck, reads_back: bool
    ) -> AbstractContextManager[Transaction]:
        """The files of the checkpoint. Before the last one makes them visible, `check_staged` is called. Afterwards,
        an earlier checkpoint in the other layout is removed, and so are shards that no index refers to; but nothing is
        if `in_shards` is None: then the format has no shards. `reads_back` is whether the writer reads bytes that it
        has written."""
        raise NotImplementedError

    def like(self, in_shards: bool) -> str:
        """The file whose mode new files get, if they replace none."""
        return ""

    def longest_name(self) -> int:
        """The longest name, in bytes, that a file may have there."""
        raise NotImplementedError

    def index_text(self) -> bytes | None:
        """The text of the file that has the name of the checkpoint's index; None if there is none."""
        raise NotImplementedError

    def written(self, in_shards: bool) -> str:
        """The path or URL that was written, as the caller knows it."""
        return self.whole + INDEX if in_shards else self.whole

    def check_shards(self, names: list[str]) -> None:
        """Raises unless shards with these names, and their index, can be written."""
        longest = self.longest_name()
        for file_name in (self.name + INDEX, names[-1]):
            if len(os.fsencode(file_name)) > longest:
                raise FileError(
                    f"cannot write {shown_file(self.written(False))} in shards: the file name {shown_file(file_name)} "
                    f"would be longer than the {longest} bytes that are allowed there; use a shorter name"
                )
        text = self.index_text()
        if text is not None and not is_index_text(text):
            raise FileError(
                f"cannot write {shown_file(self.whole + INDEX)}: a file of that name exists and is not an index of "
                "shards; save under another name, or move that file away"
            )


def destination(path: str) -> Destination:
    """Where a checkpoint with this path or URL is written."""
    if is_url(path):
        from leafwise.files.writing.remote_destination import RemoteDestination

        return RemoteDestination(path)
    return LocalDestination(path)


class LocalDestination(Destination):
    """A place on this machine."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.whole = os.path.realpath(path)
        self.folder, self.name = os.path.split(self.whole)

    def joined(self, file_name: str) -> str:
        return os.path.join(self.folder, file_name)

    def transaction(self, in_shards: bool | None, check_staged: StagedCheck, reads_back: bool) -> FileTransaction:
        tidy = None if in_shards is None else lambda: self._remove_earlier(bool(in_shards))
        return FileTransaction(self.name, check_staged, tidy)

    def like(self, in_shards: bool) -> str:
        if not in_shards:
            return self._path + INDEX
        return self.whole + INDEX if os.path.exists(self.whole + INDEX) else self.whole

    def longest_name(self) -> int:
        return local.disk.longest_name(self.folder)

    def index_text(self) -> bytes | None:
        return _index_text(self.whole + INDEX) if os.path.lexists(self.whole + INDEX) else None

    def written(self, in_shards: bool) -> str:
        if not in_shards:
            return self._path
        return self.whole + INDEX if os.path.islink(self._path) else self._path + INDEX

    # -- leftovers of earlier saves ------------------------------------------------------------------------

    def _remove_earlier(self, in_shards: bool) -> None:
        with suppress(OSError):
            if in_shards or is_index_text(_index_text(self.whole + INDEX)):
                local.disk.remove(self.whole if in_shards else self.whole + INDEX)
        remove_abandoned(self.folder, lambda names: own_shards(self.name, names), self._in_use)

    def _in_use(self) -> set[str]:
        """The shards that any index in the folder refers to; somebody may have copied an index."""
        names = local.disk.names_in(self.folder)
        texts = (_index_text(self.joined(name)) for name in names if name.endswith(INDEX))
        return {shard for text in texts for shard in listed_shards(text, names)}


def _index_text(path: str) -> bytes:
    """The content of a file that has the name of an index; empty if it is missing or not a regular file. Raises if it
    cannot be read or is too large, because then the shards that it refers to are unknown."""
    try:
        file = local.disk.open(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINVAL, errno.ELOOP, errno.ENXIO):
            return b""
        raise
    try:
        size = local.disk.stat(file).st_size
        if size > shards.MAX_INDEX:
            raise OSError(errno.EFBIG, "the index is too large")
        return local.disk.read(file, 0, size)
    finally:
        local.disk.close(file)


def check_readable(path: str, staged: dict[str, Output], arrays: Set[str], values: Set[str] = frozenset()) -> None:
    """Raises unless the new files can be opened as users will open them, and contain arrays and plain values with
    exactly these names. `staged` maps the final paths to the files; `path` is the one to open."""
    files = {os.path.basename(output.path): output.source for output in staged.values()}
    folder = StagedFolder(os.path.dirname(path), files)
    name = os.path.basename(path)

    def read() -> StoredFile:
        if path in staged:
            return detect.read(folder.open(name))
        return shards.read_index(folder.open(name + INDEX), folder)

    check_names(path, "file", read, arrays, values)


def check_names(path: str, what: str, read: Callable[[], StoredFile], arrays: Set[str], values: Set[str]) -> None:
    """Raises unless `read` opens the new file or checkpoint (`what`), and it contains arrays and plain values with
    exactly these names."""
    try:
        opened = read()
    except FileError as error:
        raise FileError(f"the new {what} cannot be read back, so nothing was replaced: {error}") from error
    try:
        plain_names = opened.record.scalars.keys() if opened.record is not None else frozenset()
        if opened.content.keys() != arrays or plain_names != values:
            raise FileError(
                f"cannot write {shown_file(path)}: the new {what} has the wrong names; nothing was replaced"
            )
    finally:
        opened.close()
