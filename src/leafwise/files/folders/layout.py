"""Which checkpoint a folder is: weights, a distributed checkpoint, a pipeline, or a folder that contains one of these.

A folder is opened only if it is certain what is meant. If there are several checkpoints, the error names each of them.
"""

import os
import re
from typing import NamedTuple

from leafwise.core.path import listed, shown_file
from leafwise.errors import FileError
from leafwise.files.folders import pipeline, rank_files
from leafwise.files.folders.references import deepspeed_states, revisions, without_weights
from leafwise.files.folders.shards import is_shard
from leafwise.files.folders.weight_files import Candidate, WeightFile, expected_suffixes, is_side_file, weight_files
from leafwise.files.formats.format import FORMATS, Format, added_formats
from leafwise.files.orbax import names as orbax_names
from leafwise.files.sources.folder import Folder
from leafwise.files.stored_file import StoredFile

_NAME = 200  # bytes of memory for the name of a file
_MOST_LEVELS = 5  # levels of subfolders: lightning_logs/version_0/checkpoints/last.ckpt/checkpoint
_FOLDERS, _REMOTE_FOLDERS = 1_000, 100  # the most subfolders that are searched; each remote one takes a request
_SHOWN = 8  # names that an error lists


def read(folder: Folder) -> StoredFile:
    """Opens the checkpoint in a folder; only the headers of its files are read."""
    candidates = _candidates(folder, _MOST_LEVELS)
    if not candidates:
        raise _unfinished(folder) or _nothing(folder)
    if len(candidates) > 1:
        raise _several(folder, candidates)
    return candidates[0].open()


class InFolder(NamedTuple):
    """The paths or URLs of the checkpoints in a folder, and whether nothing else below it is a checkpoint."""

    paths: list[str]
    is_whole: bool


def candidates_in(folder: Folder, deep: bool) -> InFolder:
    """The checkpoints in a folder; with `deep`, also those in its subfolders if there is none in itself."""
    is_cache = revisions(folder) is not None
    is_unfinished = orbax_names.unfinished(folder) is not None
    is_whole = is_cache or is_unfinished or any(known.claims("in_folder", folder.names) for known in FORMATS)
    candidates = _candidates(folder, _MOST_LEVELS if deep or is_cache else 0)
    is_whole = is_whole or deep or bool(candidates and deepspeed_states(folder))
    # A distributed checkpoint whose save did not finish must not go unnoticed; opening the folder raises an error.
    is_unfinished = is_unfinished or any(name.endswith(".distcp") for name in folder.names)
    if len(candidates) == 1 or (is_unfinished and not candidates):
        return InFolder([folder.path], is_whole)
    # Shards without an index beside other checkpoints have no name; opening the folder says what to do.
    paths = [folder.path if is_shard(candidate.path) else candidate.path for candidate in candidates]
    return InFolder(list(dict.fromkeys(paths)), is_whole)


def names_of_ranks(files: list[WeightFile]) -> list[str]:
    """The names of the files, if these are the files of several processes that are opened together; otherwise none."""
    names = [file.names[0] for file in files]
    return names if rank_files.is_series(names) and all(file.kind == "file" for file in files) else []


def _candidates(folder: Folder, levels: int) -> list[Candidate]:
    """The checkpoints in a folder. The formats of other packages are looked for only if there is nothing else."""
    found = _Search(folder, FORMATS).candidates(folder, levels)
    return found or _Search(folder, tuple(added_formats())).candidates(folder, levels)


class _Search:
    """Looks for checkpoints of some formats in a folder and its subfolders, in a limited number of them."""

    def __init__(self, top: Folder, formats: tuple[Format, ...]) -> None:
        self._top, self._formats = top, formats
        self._most = _REMOTE_FOLDERS if top.is_remote else _FOLDERS
        self._visited: set[str] = set()

    def candidates(self, folder: Folder, levels: int) -> list[Candidate]:
        """The checkpoints in a folder. It is searched in the order of what other programs look for."""
        folder.limits.spend_bytes(_NAME * len(folder.names))
        whole = next((known for known in self._formats if known.claims("in_folder", folder.names)), None)
        if whole is not None:
            return [Candidate(folder.path, lambda: whole.opened(folder))]
        if files := weight_files(folder, self._formats):
            if names := names_of_ranks(files):
                return [Candidate(folder.path, lambda: rank_files.read_folder(folder, names))]
            return [file.candidate(folder) for file in files]
        if states := deepspeed_states(folder):
            return states
        cached = revisions(folder)
        if cached is None:
            return self._in_subfolders(folder, levels)
        return [candidate for revision in cached for candidate in self._in_revision(revision, levels)]

    def _in_revision(self, revision: "Folder | Candidate", levels: int) -> list[Candidate]:
        if isinstance(revision, Candidate):
            return [revision]
        inside = self.candidates(revision, levels - 1) or _candidates(revision, levels - 1)
        if len(inside) == 1:
            return [inside[0]._replace(path=revision.path)]
        return inside or [without_weights(revision)]

    def _in_subfolders(self, folder: Folder, levels: int) -> list[Candidate]:
        candidates: list[Candidate] = []
        for name in sorted(folder.folders, key=by_number) if levels else ():
            if (
                name.startswith((".", "__"))
                or re.fullmatch(r"optimizer(_\d+)?", name)
                or orbax_names.is_being_written(name)
            ):
                continue
            below = folder.folder(name)
            if not self._enter(below):
                continue
            inside = self.candidates(below, levels - 1)
            # A folder that contains one checkpoint is opened by its own name.
            candidates += [inside[0]._replace(path=below.path)] if len(inside) == 1 else inside
        return candidates

    def _enter(self, folder: Folder) -> bool:
        """Whether a folder is new to the search, by any name. Raises if there are too many."""
        place = folder.path if folder.is_remote else os.path.realpath(folder.path)
        if place in self._visited:
            return False
        self._visited.add(place)
        if len(self._visited) > self._most:
            raise FileError(
                f"cannot open {shown_file(self._top.path)}: it has more than {self._most:,} subfolders, and "
                "leafwise does not search all of them; give the path of the checkpoint itself"
            )
        return True


def _unfinished(folder: Folder) -> FileError | None:
    """The error for a folder in which a checkpoint is not complete; None if there is none."""
    from leafwise.files.dcp import record as dcp_record

    return dcp_record.unfinished(folder) or orbax_names.unfinished(folder) or orbax_names.only_unfinished(folder)


def by_number(name: str) -> list[tuple[int, str]]:
    """A key by which `checkpoint-500` comes before `checkpoint-1000`."""
    return [(int(part), "") if part.isascii() and part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _several(folder: Folder, candidates: list[Candidate]) -> FileError:
    candidates = sorted(candidates, key=lambda candidate: by_number(candidate.path))
    names = [f"{shown_file(candidate.path)}{candidate.note}" for candidate in candidates]
    shown = ", ".join(names[-_SHOWN:]) + (f" (and {len(names) - _SHOWN:,} before these)" if len(names) > _SHOWN else "")
    return FileError(
        f"cannot open {shown_file(folder.path)}: it contains {len(candidates):,} checkpoints; open one of them: {shown}"
    )


def _nothing(folder: Folder) -> FileError:
    """What is there, and what was expected."""
    formats = f"a file that ends in {expected_suffixes()}, a .metadata (distributed checkpoint), "
    formats += f"a _METADATA (Orbax), or a {pipeline.INDEX} (diffusers)"
    expected = f"expected {formats}"
    names = [ascii(name + "/" * (name in folder.folders)) for name in folder.names]
    contain = "it and its subfolders contain" if folder.folders else "it contains"
    reason = f"{contain} no checkpoint, only {listed(names, _SHOWN)}" if names else "it is empty"
    if side_files := [shown_file(folder.joined(name)) for name in folder.names if is_side_file(name)]:
        reason = f"{contain} no weights, only what is stored beside them"
        expected = f"to open that, give its path: {listed(side_files, _SHOWN)}"
    return FileError(f"cannot open {shown_file(folder.path)}: {reason}; {expected}")
