"""Which version of MXNet the front end behaves like. One switch: nothing else decides between the two dialects.

The dialects contradict each other in the names of parameters, the keys of `collect_params()`, texts and files, so
there is no mixture: code that differs asks `is_v1()`.
"""

from typing import Literal

Version = Literal[1, 2]


class _Dialect:
    version: Version = 2


_CURRENT = _Dialect()


def version() -> Version:
    """The version of MXNet that the front end behaves like now: 1 (MXNet 1.9.1) or 2 (MXNet 2.0.0b1)."""
    return _CURRENT.version


def is_v1() -> bool:
    return _CURRENT.version == 1


def use_version(version: Version) -> None:
    """Switches the dialect. Blocks keep the dialect in which they were made."""
    if version not in (1, 2):
        raise ValueError(f"the Gluon front end has the dialects of MXNet 1 and 2, not {version!r}")
    _CURRENT.version = version
