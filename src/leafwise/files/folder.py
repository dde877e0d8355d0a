"""Folders of files: local ones, and remote ones that can be listed."""

import os
from collections.abc import Callable, Iterable
from typing import Any

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files import disk as local
from leafwise.files.limits import Limits
from leafwise.files.remote import RemoteSource, is_url, remote, remote_errors
from leafwise.files.source import LocalSource, Source

INDEX = ".index.json"  # the suffix of the name of an index of shards
ENOUGH = 1_000  # the most missing files that are listed; an index may name any number


class Folder:
    """A folder. Its files are opened by name only, without a path."""

    def __init__(self, path: str, files: Any = None, inside: str = "") -> None:
        self.path = path
        self._files, self._inside = files, inside
        self._names: list[str] | None = None
        self.limits = Limits()  # shared by all files in the folder while they are opened
        self.verify = True  # whether headers that have checksums are checked

    @property
    def names(self) -> list[str]:
        if self._names is None:
            if self._files is None:
                try:
                    self._names = local.disk.names_in(self.path)
                except OSError as error:
                    raise FileError(f"cannot open {shown_file(self.path)}: {error.strerror or error}") from error
            else:
                with remote_errors(self.path):
                    listed = self._files.ls(self._inside, detail=False)
                self._names = sorted(str(path).rstrip("/").rpartition("/")[2] for path in listed)
        return self._names

    def has_changed(self) -> bool:
        """Whether files were added or removed since the folder was listed."""
        before, self._names = self._names, None
        return before is not None and self.names != before

    def open(self, name: str) -> Source:
        """Opens a file in the folder. A name that contains a path could lead anywhere, so it is refused; but a name
        that the system lists for the folder is always a file in it, whatever it looks like."""
        if not is_bare(name) and (self._files is not None or name not in self.names):
            raise FileError(
                f"cannot open {ascii(name)[:200]} in {shown_file(self.path)}: only files directly in it are opened"
            )
        source = self._source(name)
        source.verify, source.limits = self.verify, self.limits
        return source

    def _source(self, name: str) -> Source:
        if self._files is None:
            return LocalSource(os.path.join(self.path, name))
        return RemoteSource(f"{self.path.rstrip('/')}/{name}", self._files, f"{self._inside.rstrip('/')}/{name}")

    def open_all(self, names: Iterable[str]) -> tuple[dict[str, Source], list[str]]:
        """Opens the files with these names without reading them. Returns them, and the names of at most `ENOUGH`
        missing files."""
        sources: dict[str, Source] = {}
        missing = []
        try:
            for name in names:
                try:
                    sources[name] = self.open(name)
                except FileError as error:
                    if not isinstance(error.__cause__, FileNotFoundError):
                        raise
                    missing.append(name)
                    if len(missing) == ENOUGH:
                        break
        except BaseException:
            for source in sources.values():
                source.close()
            raise
        return sources, missing


class StagedFolder(Folder):
    """A folder as it will be once files that were just written are in place. `staged`: name → function that opens the
    file."""

    def __init__(self, path: str, staged: dict[str, Callable[[], Source]]) -> None:
        super().__init__(path)
        self._names = sorted(staged)
        self._staged = staged
        self.limits = Limits.none()

    def _source(self, name: str) -> Source:
        return self._staged[name]()


def is_bare(name: str) -> bool:
    """Whether a name can only mean a file in the folder itself.

    >>> is_bare("model-00001.safetensors"), is_bare("../model"), is_bare("a/b"), is_bare("")
    (True, False, False, False)
    """
    return bool(name) and name not in (".", "..") and not any(sign in name for sign in "/\\\0") and ":" not in name[:2]


def opened(target: str) -> "Source | Folder":
    """The file or folder of a path or a URL."""
    if not is_url(target):
        return Folder(target) if os.path.isdir(target) else LocalSource(target)
    files, inside = remote(target)
    if not target.startswith(("http:", "https:")):  # HTTP has no folders
        with remote_errors(target):
            if files.isdir(inside):
                return Folder(target, files, inside)
    return RemoteSource(target, files, inside)
