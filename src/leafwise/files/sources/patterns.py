"""The checkpoints that match a pattern such as `runs/**` or `s3://bucket/runs/*/model.safetensors`.

A pattern may match anything: checkpoints, their shards, and what training programs store beside them. A folder stands
for the checkpoint that `lw.open` would find in it, or for each of them; a shard stands for its checkpoint.
"""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from leafwise.core.path import shown_file
from leafwise.errors import FileError
from leafwise.files.folders.layout import InFolder, by_number, candidates_in, names_of_ranks
from leafwise.files.folders.weight_files import has_weights_suffix, is_side_file, weight_files
from leafwise.files.limits import LimitError
from leafwise.files.sources.folder import Folder
from leafwise.files.sources.remote import is_url, is_web, remote, remote_errors, retried

_ANY = re.compile(r"[*?\[]")


def is_remote_pattern(url: str) -> bool:
    """Whether a URL with `*`, `?` or `[` is a pattern. What exists is not one, nor is the query of a web address.

    >>> is_remote_pattern("https://host/model.safetensors?download=true"), is_remote_pattern("https://host/*.pt")
    (False, True)
    """
    if not is_url(url):
        return not os.path.lexists(url)
    if is_web(url):
        from urllib.parse import urlsplit

        return any(sign in urlsplit(url).path for sign in "*[")
    files, inside = remote(url)
    with suppress(FileError):  # listing what matches raises the same error, and says what was listed
        return not retried(url, lambda: bool(files.exists(inside)), opening=True)
    return True


def checkpoints(pattern: str) -> list[str]:
    """The paths or URLs of the checkpoints that match a pattern, in the order of their names, with numbers in order."""
    if is_web(pattern):
        raise FileError(f"cannot list {shown_file(pattern)}: web servers do not list their files; give each URL")
    places = _remote_places(pattern) if is_url(pattern) else _local_places(pattern)
    try:
        names = _chosen(pattern, places)
    except LimitError as error:
        raise FileError(f"{shown_file(pattern)}: {error}") from error
    if not names:
        count = len(places.folders) + sum(map(len, places.files.values()))
        beside = f"; it matches {count:,} other files and folders" if count else ""
        raise FileError(f"no checkpoint matches {shown_file(pattern)}{beside}")
    return sorted(names, key=by_number)


class _Places(NamedTuple):
    """What matches a pattern: folders, and the names of files by the folder that they are in."""

    folders: set[str]
    files: dict[str, set[str]]


def _local_places(pattern: str) -> _Places:
    places = _Places(set(), {})
    for path in paths_of(pattern):
        if os.path.isdir(path):
            places.folders.add(path.rstrip(os.sep) or os.sep)
        else:
            places.files.setdefault(os.path.dirname(path), set()).add(os.path.basename(path))
    return places


def paths_of(pattern: str) -> Iterator[str]:
    """The files and folders on this machine that match a pattern; some of them several times. Python's own `**`
    follows links in circles."""
    before, deep, after = _split_deep(pattern)
    if not deep:
        yield from glob.iglob(pattern)
        return
    for top in glob.iglob(before) if before else [""]:
        if not os.path.isdir(top or "."):
            continue
        for folder in _folders(top):
            if after:
                yield from paths_of(os.path.join(glob.escape(folder), after))
                continue
            if folder:
                yield folder
            if not pattern.endswith(os.sep):
                inside = glob.iglob(os.path.join(glob.escape(folder), "*"))
                yield from (path for path in inside if not os.path.isdir(path))


def _split_deep(pattern: str) -> tuple[str, bool, str]:
    """What is before and after the first `**` of a pattern, and whether there is one.

    >>> _split_deep("runs/**/*.pt"), _split_deep("/**"), _split_deep("runs/*")
    (('runs/', True, '*.pt'), ('/', True, ''), ('runs/*', False, ''))
    """
    stars = re.search(r"(?:^|(?<=/))\*\*(?:/+|$)", pattern.replace(os.sep, "/"))
    return (pattern, False, "") if stars is None else (pattern[: stars.start()], True, pattern[stars.end() :])


def _folders(top: str) -> Iterator[str]:
    """A folder and all folders below it that are not hidden, each once: a link to one of them, or to a folder that
    they are in, is not followed."""
    begin = os.path.realpath(top or ".")
    seen: set[str] = set()
    links = [top]
    while links:
        pending = [links.pop(0)]
        while pending:
            folder = pending.pop()
            real = os.path.realpath(folder or ".")
            if real in seen or begin.startswith(real.rstrip(os.sep) + os.sep):
                continue
            seen.add(real)
            yield folder
            with suppress(OSError), os.scandir(folder or ".") as entries:  # opening the folder raises the error
                for entry in sorted(entries, key=lambda entry: entry.name):
                    if not entry.name.startswith(".") and entry.is_dir():
                        (links if entry.is_symlink() else pending).append(os.path.join(folder, entry.name))


def _remote_places(pattern: str) -> _Places:
    places = _Places(set(), {})
    files, inside = remote(pattern)
    # What precedes the path in the file system: the protocol, and perhaps a user.
    before = pattern[: len(pattern) - len(inside)] if pattern.endswith(inside) else ""
    with remote_errors(pattern):
        matches = files.glob(inside, detail=True)

    def url_of(path: str) -> str:
        return before + path if before else str(files.unstrip_protocol(path))

    for path, info in matches.items():
        above, _, name = path.rstrip("/").rpartition("/")
        if info.get("type") == "directory":
            places.folders.add(url_of(path.rstrip("/")))
        elif path.rstrip("/"):
            places.files.setdefault(url_of(above), set()).add(name)
    return places


def _folder(path: str) -> Folder:
    return Folder(path, *remote(path)) if is_url(path) else Folder(path or ".")


def _chosen(pattern: str, places: _Places) -> list[str]:
    """The checkpoints among what matches."""
    names: dict[str, None] = {}  # as an ordered set
    listed = {above for path in (*places.folders, *places.files) for above in _above(path)} | set(places.files)
    is_deep = re.split(r"[/\\]+", pattern.rstrip("/\\"))[-1] == "**"
    whole: set[str] = set()  # folders that are one checkpoint with everything below them
    for path in sorted(places.folders, key=len):
        if whole.isdisjoint(_above(path)):
            # Unless the pattern also matches what is inside, a folder stands for the checkpoints anywhere below it.
            try:
                inside = candidates_in(_folder(path), deep=not is_deep and path not in listed)
            except FileError:
                inside = InFolder([path], True)  # opening it raises the error, and does not stop the others
            names.update(dict.fromkeys(inside.paths))
            if inside.is_whole:
                whole.add(path)
    last = re.split(r"[/\\]", pattern)[-1]
    for path, files in places.files.items():
        if path not in places.folders and whole.isdisjoint([path, *_above(path)]):
            names.update(dict.fromkeys(_of_files(_folder(path), files, last)))
    return list(names)


def _above(path: str) -> list[str]:
    """The folders that a path is in.

    >>> _above("s3://bucket/runs/a"), _above("a")
    (['s3://bucket/runs', 's3://bucket'], [])
    """
    above = []
    while (path := path.rpartition("/")[0]) and not path.endswith("/"):
        above.append(path)
    return above


def _of_files(folder: Folder, files: set[str], last: str) -> list[str]:
    """The checkpoints that some files of a folder belong to. `last` is the last component of the pattern. If it has a
    suffix, as in `*.bin`, files with this suffix are checkpoints even if there are better ones; and if it is a name,
    as in `*/optimizer.pt`, even if they are only stored beside the weights. The files of several processes are one
    checkpoint, unless the pattern names one of them, as in `*/rank0.pt`."""
    names = []
    left = set(files)
    is_named = not _ANY.search(last)
    checkpoints = weight_files(folder)
    ranks = {*names_of_ranks(checkpoints)}
    if left & ranks and not is_named:
        names.append(folder.path)
        left -= ranks
    for checkpoint in checkpoints:
        members = {*checkpoint.names, *checkpoint.shards(folder)}
        if left & members:
            # Shards without an index have no name of their own. If the folder has other checkpoints, opening it says
            # what to do.
            names.append(folder.path if checkpoint.kind == "series" else folder.joined(checkpoint.names[0]))
            left -= members
    if not _ANY.search(last.rpartition(".")[2]) and "." in last:
        further = [name for name in left if has_weights_suffix(name) and (is_named or not is_side_file(name))]
        names += [folder.joined(name) for name in further]
    return names
