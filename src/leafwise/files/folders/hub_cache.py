"""A model in the cache of huggingface_hub: `refs/main` names a revision, whose files are links in `snapshots`."""

from leafwise.core.path import listed, shown_file
from leafwise.files.folders.candidate import Candidate, refused
from leafwise.files.sources.folder import Folder, is_bare

_MAIN = "main"
_REVISION_BYTES = 200  # bytes of the name of a revision


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
        f"cannot open {shown_file(folder.path)}: refs/main refers to the revision {name[:_REVISION_BYTES]!a}, which is "
        f"not in the cache; download it again, or open another revision: {others}"
    )
    return [refused(folder.path, reason)]


def without_weights(revision: Folder) -> Candidate:
    """A revision of which only other files were downloaded."""
    there = listed([ascii(name) for name in revision.names]) or "nothing"
    reason = (
        f"cannot open {shown_file(revision.path)}: this revision of the model has no weights in the cache, only "
        f"{there}; is the download complete?"
    )
    return refused(revision.path, reason)
