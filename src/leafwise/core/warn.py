"""What users are warned of: warnings that point to their code, and what Ctrl-C leaves behind."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


def warn(warning: Warning | str) -> None:
    """Issues a warning at the line that called leafwise, however many frames of leafwise are in between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "leafwise":
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)


@contextmanager
def interruption_explained(verb: str, repair: str) -> Iterator[None]:
    """Adds to Ctrl-C, and to other exceptions that are not errors, that the model is partly changed."""
    explanation = f"interrupted while lw.{verb} was writing: the model is partly changed; {repair} before you use it"
    try:
        yield
    except KeyboardInterrupt as stop:
        raise KeyboardInterrupt(explanation) from stop
    except BaseException as stop:
        if not isinstance(stop, Exception):
            stop.add_note(explanation)
        raise
