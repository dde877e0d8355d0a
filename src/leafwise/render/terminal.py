"""What a terminal or another text stream can display."""

import os
from typing import NamedTuple, TextIO


class Terminal(NamedTuple):
    """Whether there is color, the width, whether only ASCII can be written, and whether hints on what to type are
    options of the command line."""

    color: bool = False
    width: int | None = None
    ascii: bool = False
    shell: bool = False

    @classmethod
    def of(cls, stream: TextIO | None, *, shell: bool = False) -> "Terminal":
        """What a stream can display. Only a terminal has color and a width, unless FORCE_COLOR or COLUMNS is set."""
        if stream is None:
            return cls(shell=shell)
        encoding = getattr(stream, "encoding", None) or "utf-8"  # a stream in memory has none and accepts anything
        try:
            "├─└│→←×…·▸▁▂▃▄▅▆▇█".encode(encoding)
            only_ascii = False
        except (UnicodeEncodeError, LookupError):
            only_ascii = True
        try:
            is_terminal = stream.isatty()
        except (AttributeError, ValueError):
            is_terminal = False
        return cls(_has_color(is_terminal), _width(is_terminal), only_ascii, shell)


def _has_color(is_terminal: bool) -> bool:
    # https://no-color.org and https://force-color.org: any value except an empty one.
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (is_terminal and os.environ.get("TERM") != "dumb")


def _width(is_terminal: bool) -> int | None:
    columns = os.environ.get("COLUMNS", "")
    if columns.isascii() and columns.isdecimal() and int(columns):
        return int(columns)
    if not is_terminal:
        return None
    import shutil  # only here, because it imports the modules of compressed archives

    return shutil.get_terminal_size().columns
