"""What a terminal, or whatever text is written to, can show."""

import os
import shutil
from typing import NamedTuple, TextIO


class Terminal(NamedTuple):
    """Color or not, how wide, and whether box-drawing characters can be written."""

    color: bool = False
    width: int | None = None
    ascii: bool = False

    @classmethod
    def of(cls, stream: TextIO | None) -> "Terminal":
        """What a stream can show. Only a terminal gets color, and a width to fit."""
        if stream is None:
            return cls()
        encoding = getattr(stream, "encoding", None) or "utf-8"  # text in memory has none, and holds anything
        try:
            "├─└│→×…·▸▁▂▃▄▅▆▇█".encode(encoding)
            only_ascii = False
        except (UnicodeEncodeError, LookupError):
            only_ascii = True
        try:
            is_terminal = stream.isatty()
        except (AttributeError, ValueError):
            is_terminal = False
        if not is_terminal:
            return cls(ascii=only_ascii)
        # https://no-color.org: any value but an empty one.
        color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(color, shutil.get_terminal_size().columns, only_ascii)
