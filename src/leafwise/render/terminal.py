"""What a terminal or another text stream can display."""

import os
from typing import NamedTuple, TextIO


class Terminal(NamedTuple):
    """Whether there is color, the width, and whether only ASCII can be written."""

    color: bool = False
    width: int | None = None
    ascii: bool = False

    @classmethod
    def of(cls, stream: TextIO | None) -> "Terminal":
        """What a stream can display. Only a terminal has color and a width."""
        if stream is None:
            return cls()
        encoding = getattr(stream, "encoding", None) or "utf-8"  # a stream in memory has none and accepts anything
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
        import shutil  # only here, because it imports the modules of compressed archives

        # https://no-color.org: any value except an empty one.
        color = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        return cls(color, shutil.get_terminal_size().columns, only_ascii)
