"""The one table of what the front end does not have, and of what differs from MXNet. docs/gluon.md is made from it.

A name that is in no row behaves as in MXNet. The paths are those at which MXNet defines a name: `mxnet.ndarray.ndarray`
for `mx.nd.NDArray`. A row for `mxnet.ndarray.*` covers what no row before it does.
"""

import functools
from fnmatch import fnmatchcase
from typing import Literal, NamedTuple

from leafwise.gluon.dialect import Version
from leafwise.gluon.names.differences import DIFFERENT
from leafwise.gluon.names.missing_names import MISSING


class Row(NamedTuple):
    paths: tuple[str, ...]  # or patterns: mxnet.symbol.*
    status: Literal["different", "missing"]
    note: str  # how it differs, or what to use instead
    versions: tuple[Version, ...] = (1, 2)

    def covers(self, path: str, version: Version) -> bool:
        return version in self.versions and any(fnmatchcase(path, pattern) for pattern in self.paths)


TABLE = (
    *(Row(tuple(paths.split()), "different", note) for paths, note in DIFFERENT),
    *(Row(tuple(paths.split()), "missing", note) for paths, note in MISSING),
)


@functools.cache
def missing_row(path: str, version: Version) -> Row | None:
    """The first row for a name that the front end does not have."""
    return next((row for row in TABLE if row.status == "missing" and row.covers(path, version)), None)


def instead_of(path: str, version: Version) -> str:
    """What to use instead of a name that the front end does not have."""
    row = missing_row(path, version)
    return "it has no row in the table of names; please report it" if row is None else row.note
