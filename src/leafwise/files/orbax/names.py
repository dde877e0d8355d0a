"""Which folders are Orbax checkpoints, and which of them Orbax has not finished, by the names of their files."""

import os

from leafwise.core.path import listed, shown_file
from leafwise.errors import FileError
from leafwise.files.orbax.metadata import METADATA, json_in
from leafwise.files.sources.folder import Folder

STEP = "_CHECKPOINT_METADATA"  # in the folder of a step, and of a checkpoint that is not part of one
COMMITTED = "commit_success.txt"
UNFINISHED = ".orbax-checkpoint-tmp"  # in the name of a folder that is being written
PROCESS = "ocdbt.process_"  # begins the names of folders with what one process wrote


def is_being_written(name: str) -> bool:
    """Whether Orbax has not finished writing a folder of this name."""
    return UNFINISHED in name


def unfinished(folder: Folder) -> FileError | None:
    """The error for a checkpoint that Orbax did not finish; None for any other folder."""
    above, name = os.path.split(os.path.abspath(folder.path))
    if is_being_written(name) or is_being_written(os.path.basename(above)):
        return unfinished_error(
            folder, "Orbax renames a folder when it is complete, and this one still has its first name"
        )
    if METADATA not in folder.names and any(name.startswith(PROCESS) for name in folder.names):
        return unfinished_error(folder, f"it has no {METADATA}")
    if STEP in folder.names and COMMITTED not in folder.names:
        described = json_in(folder, STEP)
        if isinstance(described, dict) and described.get("commit_timestamp_nsecs", 0) is None:
            return unfinished_error(folder, f"{STEP} has no commit_timestamp_nsecs")
    return None


def only_unfinished(folder: Folder) -> FileError | None:
    """The error for a folder without a checkpoint, if Orbax began one in a folder in it."""
    names = [ascii(name) for name in sorted(folder.folders) if is_being_written(name)]
    return unfinished_error(folder, f"there is only {listed(names)}") if names else None


def unfinished_error(folder: Folder, reason: str) -> FileError:
    return FileError(
        f"cannot open {shown_file(folder.path)}: the Orbax checkpoint was not saved completely, or is being saved: "
        f"{reason}; wait for the save, or open an earlier checkpoint"
    )
