"""Folders in which a small file names the folder that is meant.

DeepSpeed's `latest` names the folder of the last step, which has the states of the model and, for each process, a part
of the optimizer's state. In the cache of huggingface_hub, `refs/main` names a revision, whose files are links in
`snapshots`.
"""

import re
from typing import NoReturn

from leafwise.core.path import listed, shown_file
from leafwise.errors import FileError
from leafwise.files.folders.weight_files import Candidate
from leafwise.files.formats import detect
from leafwise.files.sources.folder import Folder, is_bare
from leafwise.files.stored_file import StoredFile

_LATEST = "latest"
_NAME_BYTES = 1_000  # bytes of the name of a folder
_MODEL = re.compile(r"mp_rank_\d+_model_states\.pt", re.ASCII)
# Weights that are split: by ZeRO stage 3, by pipeline stages, and by experts.
_SPLIT = re.compile(r"(zero_pp_rank_\d+_mp_rank_\d+|layer_.*)[-_]model_states\.pt", re.ASCII | re.DOTALL)
_OPTIMIZER = re.compile(r".*_optim_states\.pt", re.ASCII | re.DOTALL)
_MAIN = "main"
_REVISION_BYTES = 200  # bytes of the name of a revision


def _refused(folder: Folder, reason: str) -> Candidate:
    """A checkpoint that is there but cannot be opened. The error is raised only if it is the one that is meant."""

    def refuse() -> NoReturn:
        raise FileError(f"cannot open {shown_file(folder.path)}: {reason}")

    return Candidate(folder.path, refuse)


# -- DeepSpeed -------------------------------------------------------------------------------------------------


def deepspeed_states(folder: Folder) -> list[Candidate]:
    """The states of a model in a folder that DeepSpeed wrote: the folder of one step, or the one above it."""
    if _LATEST not in folder.names or _LATEST in folder.folders:
        return _of_step(folder)
    name = folder.text(_LATEST, _NAME_BYTES).strip()
    if is_bare(name) and name in folder.folders:
        return _of_step(folder.folder(name))
    steps = [step for step in sorted(folder.folders) if _of_step(folder.folder(step))]
    if not steps:
        return []
    others = listed([shown_file(folder.joined(step)) for step in steps])
    reason = (
        f"its file 'latest' refers to the folder {name[:200]!a}, which is not in it; open one of those that are: "
        f"{others}"
    )
    return [_refused(folder, reason)]


def _of_step(folder: Folder) -> list[Candidate]:
    split = [name for name in folder.names if _SPLIT.fullmatch(name)]
    if split:
        there = listed([ascii(name) for name in split])
        reason = (
            f"its weights are split into {len(split):,} files, which leafwise does not put together: {there}; run "
            "DeepSpeed's zero_to_fp32.py, and open the file that it writes"
        )
        return [_refused(folder, reason)]
    names = [name for name in folder.names if _MODEL.fullmatch(name)]
    return [Candidate(folder.joined(name), lambda name=name: _read(folder, name)) for name in names]  # type: ignore[misc]


def _read(folder: Folder, name: str) -> StoredFile:
    stored = detect.read(folder.open(name))
    parts = sum(_OPTIMIZER.fullmatch(other) is not None for other in folder.names)
    if parts:
        stored.format = f"DeepSpeed; the optimizer's {parts:,} {'files are' if parts > 1 else 'file is'} not opened"
    return stored


# -- the cache of huggingface_hub ------------------------------------------------------------------------------


def revisions(folder: Folder) -> "list[Folder | Candidate] | None":
    """The revisions that a folder of the cache may mean: the one that `main` refers to, otherwise all of them. None if
    the folder is not one of the cache."""
    if not {"snapshots", "blobs"} <= folder.folders and not {"snapshots", "refs"} <= folder.folders:
        return None
    snapshots = folder.folder("snapshots")
    refs = folder.folder("refs") if "refs" in folder.folders else None
    if refs is None or _MAIN not in refs.names:
        return [snapshots.folder(name) for name in sorted(snapshots.folders)]
    name = refs.text(_MAIN, _REVISION_BYTES).strip()
    if is_bare(name) and name in snapshots.folders:
        return [snapshots.folder(name)]
    others = listed([shown_file(snapshots.joined(other)) for other in sorted(snapshots.folders)]) or "none"
    reason = (
        f"refs/main refers to the revision {name[:_REVISION_BYTES]!a}, which is not in the cache; download it again, "
        f"or open another revision: {others}"
    )
    return [_refused(folder, reason)]


def without_weights(revision: Folder) -> Candidate:
    """A revision of which only other files were downloaded."""
    there = listed([ascii(name) for name in revision.names]) or "nothing"
    reason = f"this revision of the model has no weights in the cache, only {there}; is the download complete?"
    return _refused(revision, reason)
