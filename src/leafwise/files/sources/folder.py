"""Folders of files: local ones, and remote ones that can be listed."""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files.limits import Limits
from leafwise.files.sources import disk as local
from leafwise.files.sources.remote import forget_cached, is_url, is_web, parent_url, remote, remote_source, retried
from leafwise.files.sources.source import LocalSource, Source, closed_on_error

INDEX = ".index.json"  # the suffix of the name of an index of shards
MODEL = "model.safetensors"  # the name that Hugging Face looks for in a folder
_VARIANT_INDEX = re.compile(r".+\.index\.[^./]+\.json", re.DOTALL)  # model.safetensors.index.fp16.json
ENOUGH = 1_000  # the most missing files that are listed; an index may name any number


class Folder:
    """A folder. Its files and folders are opened by name only, without a path."""

    def __init__(self, path: str, files: Any = None, inside: str = "", limits: Limits | None = None) -> None:
        self.path = path
        self._files, self._inside = files, inside
        self._names: list[str] | None = None
        self._folders: set[str] | None = None
        self.limits = limits or Limits()  # shared by all files in the folder while they are opened
        self.verify = True  # whether headers that have checksums are checked

    @property
    def names(self) -> list[str]:
        """The names of the files and folders in it."""
        if self._names is None:
            if self._files is None:
                try:
                    self._names = local.disk.names_in(self.path)
                except OSError as error:
                    raise FileError(f"cannot open {shown_file(self.path)}: {error.strerror or error}") from error
            else:
                self.forget()
                listed = retried(self.path, lambda: self._files.ls(self._inside, detail=True))
                paths = {str(entry["name"]).rstrip("/"): entry.get("type") for entry in listed}
                paths.pop(self._inside.rstrip("/"), None)  # some file systems list the folder itself
                kinds = {path.rpartition("/")[2]: kind for path, kind in paths.items()}
                self._names = sorted(kinds)
                self._folders = {name for name, kind in kinds.items() if kind == "directory" and is_bare(name)}
        return self._names

    def forget(self) -> None:
        """Forgets what a remote file system has listed: its files may have been replaced since."""
        if self._files is not None:
            forget_cached(self._files, self._inside)

    @property
    def folders(self) -> set[str]:
        """The names of the folders in it. A link to a folder is a folder."""
        names = self.names
        if self._folders is None:
            self._folders = {name for name in names if os.path.isdir(os.path.join(self.path, name))}
        return self._folders

    @property
    def is_remote(self) -> bool:
        return self._files is not None

    def joined(self, *names: str) -> str:
        """The path or URL of a file or folder in it, as a user types it."""
        return "/".join([self.path.rstrip("/"), *names]) if self.is_remote else os.path.join(self.path, *names)

    def folder(self, name: str) -> "Folder":
        """A folder in this folder; `name` is one of `folders`."""
        if name not in self.folders:
            raise FileError(f"cannot open {ascii(name)[:200]} in {shown_file(self.path)}: it is not a folder in it")
        below = Folder(self.joined(name), self._files, f"{self._inside.rstrip('/')}/{name}", self.limits)
        below.verify = self.verify
        return below

    def text(self, name: str, most: int) -> str:
        """The text of a small file, such as the name of the latest checkpoint."""
        source = self.open(name)
        try:
            if source.size > most:
                raise source.error(0, f"the file has {source.size:,} bytes; leafwise reads at most {most:,}")
            return bytes(source.read(0, source.size)).decode("utf-8", "replace")
        finally:
            source.close()

    def has_changed(self) -> bool:
        """Whether files were added or removed since the folder was listed."""
        before, self._names, self._folders = self._names, None, None
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
            return LocalSource(self.joined(name))
        return remote_source(self.joined(name), self._files, f"{self._inside.rstrip('/')}/{name}", self.limits)

    def open_all(self, names: Iterable[str]) -> tuple[dict[str, Source], list[str]]:
        """Opens the files with these names without reading them. Returns them, and the names of at most `ENOUGH`
        missing files."""
        sources: dict[str, Source] = {}
        missing = []
        with closed_on_error(sources.values()):
            for name in names:
                try:
                    sources[name] = self.open(name)
                except FileError as error:
                    if not isinstance(error.__cause__, FileNotFoundError):
                        raise
                    missing.append(name)
                    if len(missing) == ENOUGH:
                        break
        return sources, missing


class StagedFolder(Folder):
    """A folder as it will be once files that were just written are in place. `staged`: name → function that opens the
    file. With `beside`, it also contains the files that are in place already."""

    def __init__(self, path: str, staged: dict[str, Callable[[], Source]], beside: bool = False) -> None:
        super().__init__(path)
        self._names = sorted({*staged, *(self.names if beside else ())})
        self._staged = staged
        self.limits = Limits.none()

    def _source(self, name: str) -> Source:
        return self._staged[name]() if name in self._staged else super()._source(name)


def is_index(name: str) -> bool:
    """Whether a file is an index of shards, by its name.

    >>> is_index("model.safetensors.index.json"), is_index("model.safetensors.index.fp16.json"), is_index("config.json")
    (True, True, False)
    """
    return name.endswith(INDEX) or _VARIANT_INDEX.fullmatch(name) is not None


def is_bare(name: str) -> bool:
    """Whether a name can only mean a file in the folder itself.

    >>> is_bare("model-00001.safetensors"), is_bare("../model"), is_bare("a/b"), is_bare("")
    (True, False, False, False)
    """
    return bool(name) and name not in (".", "..") and not any(sign in name for sign in "/\\\0") and ":" not in name[:2]


def opened(target: str, limits: Limits, verify: bool) -> "Source | Folder":
    """The file or folder of a path or a URL."""
    location: Source | Folder
    if not is_url(target):
        location = Folder(target) if os.path.isdir(target) else LocalSource(target)
    else:
        files, inside = remote(target)
        location = Folder(target, files, inside)
        if is_web(target) or not retried(target, lambda: bool(files.isdir(inside)), opening=True):
            location = remote_source(target, files, inside, limits)
    location.verify, location.limits = verify, limits
    return location


def folder_of(target: str, limits: Limits, verify: bool) -> Folder:
    """The folder that contains a file."""
    if is_url(target):
        parent = parent_url(target)
        folder = Folder(parent, *remote(parent), limits)
    else:
        folder = Folder(os.path.dirname(target) or ".", limits=limits)
    folder.verify = verify
    return folder
