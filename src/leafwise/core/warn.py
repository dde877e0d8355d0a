"""Warnings that point to the user's code."""

import sys
import warnings


def warn(warning: Warning | str) -> None:
    """Issues a warning at the line that called leafwise, however many frames of leafwise are in between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "leafwise":
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)
