"""The one table of what the front end does not have, and of what differs from MXNet. docs/gluon.md is made from it.

A name that is in no row behaves as in MXNet. The paths are those at which MXNet defines a name: `mxnet.ndarray.ndarray`
for `mx.nd.NDArray`. Of the rows that cover a name, the first counts.
"""

import functools
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from leafwise_gluon.dialect import Version
from leafwise_gluon.names.different import DIFFERENT
from leafwise_gluon.names.missing import MISSING, OTHERS

Status = Literal["same", "different", "missing"]


class NameRow(NamedTuple):
    """What is to be said about some names of MXNet."""

    paths: tuple[str, ...]  # or patterns: mxnet.symbol.*
    status: Status
    note: str  # how it differs, or what to use instead
    is_rest: bool = False  # whether it is for the missing names of modules that exist in part

    def covers(self, path: str) -> bool:
        return any(fnmatchcase(path, pattern) for pattern in self.paths)


TABLE = (
    *(NameRow(tuple(paths.split()), "different", note) for paths, note in DIFFERENT),
    *(NameRow(tuple(paths.split()), "missing", note) for paths, note in MISSING),
    *(NameRow(tuple(paths.split()), "missing", note, is_rest=True) for paths, note in OTHERS),
)


@functools.cache
def missing_row(path: str) -> NameRow | None:
    """The row for a name that the front end does not have."""
    return next((row for row in TABLE if row.status == "missing" and row.covers(path)), None)


def status(path: str, version: Version) -> Status:
    """Whether a public name of MXNet is the same here, different or missing.

    >>> from leafwise_gluon.names.table import status
    >>> status("mxnet.gluon.nn.basic_layers.Flatten", 2), status("mxnet.symbol.symbol.Symbol", 2)
    ('same', 'missing')
    """
    from leafwise_gluon.names.implementations import is_implemented

    if not is_implemented(version, path):
        return "missing"
    return "different" if any(row.covers(path) for row in TABLE if row.status == "different") else "same"


def instead_of(path: str) -> str:
    """What to use instead of a name that the front end does not have."""
    row = missing_row(path)
    return "it has no row in the table of names; please report it" if row is None else row.note
