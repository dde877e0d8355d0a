"""A checkpoint in a folder: how it is called, and how it is opened."""

from collections.abc import Callable
from typing import NamedTuple, NoReturn

from leafwise.errors import FileError
from leafwise.files.stored_file import StoredFile


class Candidate(NamedTuple):
    """A checkpoint in a folder."""

    path: str  # what to type to open it
    open: Callable[[], StoredFile]
    note: str = ""  # what to know about it, for a list of several


def refused(path: str, reason: str) -> Candidate:
    """A checkpoint that is there but cannot be opened. The error is raised only if it is the one that is meant."""

    def refuse() -> NoReturn:
        raise FileError(reason)

    return Candidate(path, refuse)
