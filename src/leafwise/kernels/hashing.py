"""The checksums of many pieces of memory, in one call of the C code."""

import ctypes
from functools import cache
from typing import Any

import numpy as np

from leafwise.kernels.library import load

LEAST = 241  # bytes; the C code does not hash fewer


@cache
def _library() -> Any:
    library = load()
    if not hasattr(library, "leafwise_hash"):  # it was not built, or it is from another version
        return None
    long = ctypes.c_int64
    library.leafwise_hash.argtypes = [ctypes.c_void_p, long, long, ctypes.c_int, ctypes.c_void_p]
    library.leafwise_hash.restype = None
    return library, int(library.leafwise_instruction_sets())


def checksums_of(data: Any, piece: int, instruction_set: int | None = None) -> list[int] | None:
    """The XXH3 of each piece of some bytes; the last piece may be shorter. None if the C code cannot compute them."""
    built = _library()
    count, rest = divmod(len(data), piece)
    if built is None or piece < LEAST or 0 < rest < LEAST:
        return None
    library, widest = built
    results = np.empty(count + bool(rest), np.uint64)
    address = np.frombuffer(data, np.uint8).ctypes.data
    library.leafwise_hash(address, len(data), piece, instruction_set or widest, results.ctypes.data)
    return list(map(int, results))
