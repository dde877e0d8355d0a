"""The library that is built from cpu.c. Loading it imports no NumPy, which listing a file must not need."""

import ctypes
import os
import warnings
from functools import cache
from typing import Any

from leafwise.core.path import escape

_TEXT, _POINTER, _LONG, _INT = ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
# What functions return, and what they take.
_SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "leafwise_measure": (_LONG, [_LONG, _LONG, *[_POINTER] * 10, _INT, _INT]),
    "leafwise_compare": (_LONG, [_LONG, _LONG, *[_POINTER] * 10, _INT, _INT, _INT]),
    "leafwise_combine": (_LONG, [_LONG, _LONG, *[_POINTER] * 6, _INT, _INT]),
    "leafwise_hash": (None, [_POINTER, _LONG, _LONG, _INT, _POINTER]),
    "leafwise_list_header": (_LONG, [_TEXT, _LONG, _LONG, _LONG, ctypes.c_uint64, *[_POINTER] * 5]),
    "leafwise_split_names": (_LONG, [_TEXT, _LONG, _LONG, _LONG, ctypes.c_uint64, _POINTER, _POINTER]),
    "leafwise_reader_open": (_POINTER, [_LONG, _POINTER, _POINTER, _POINTER, _LONG, _INT, _INT]),
    "leafwise_reader_add": (_LONG, [_POINTER, _POINTER]),
    "leafwise_reader_give": (None, [_POINTER, _LONG]),
    "leafwise_reader_wait": (_INT, [_POINTER, _LONG, _POINTER]),
    "leafwise_reader_close": (None, [_POINTER]),
}


@cache
def load() -> Any:
    """The library, or None if it was not built."""
    library = _load(ctypes.CDLL)
    for name, (result, arguments) in _SIGNATURES.items():
        if function := getattr(library, name, None):
            function.restype, function.argtypes = result, arguments
    return library


@cache
def load_for_objects() -> Any:
    """The same library, for functions that are given Python objects: Python's lock is held while they run. Callers
    declare the arguments of the functions that they call."""
    return _load(ctypes.PyDLL)


def _load(kind: type[ctypes.CDLL]) -> Any:
    override = os.environ.get("LEAFWISE_CPU_LIBRARY")  # another build, used by tools/fuzz.py
    try:
        return kind(override or os.path.join(os.path.dirname(__file__), "_cpu.shared"))
    except OSError:
        if override:
            raise
        return None


def load_with(function: str) -> Any:
    """The library, or None if it was not built, or is from another version that does not have this function."""
    library = load()
    return library if hasattr(library, function) else None


@cache  # warns once
def of_this_version(library: Any, name: str, nbytes: int | None, slow: str) -> Any:
    """The library, if it has the function of this name, which returns the size of a result unless `nbytes` is None.
    Otherwise None, with a warning of what is slow without it."""
    if library is None:
        return None
    function = getattr(library, name, None)
    if function is not None and (nbytes is None or function() == nbytes):
        return library
    rebuild = "reinstall leafwise to rebuild it (in a clone: pip install -e .)"
    warnings.warn(escape(f"leafwise's C library is from another version: {slow}; {rebuild}"), stacklevel=2)
    return None
