"""The library that is built from cpu.c. Loading it imports no NumPy, which listing a file must not need."""

import ctypes
import os
from functools import cache
from typing import Any


@cache
def load() -> Any:
    """The library, or None if it was not built. Callers declare the arguments of the functions that they call."""
    return _load(ctypes.CDLL)


@cache
def load_for_objects() -> Any:
    """The same library, for functions that are given Python objects: Python's lock is held while they run."""
    return _load(ctypes.PyDLL)


def _load(kind: type[ctypes.CDLL]) -> Any:
    override = os.environ.get("LEAFWISE_CPU_LIBRARY")  # another build, used by tools/fuzz.py
    try:
        return kind(override or os.path.join(os.path.dirname(__file__), "_cpu.shared"))
    except OSError:
        if override:
            raise
        return None
