"""What a process can tell the system about its memory."""

import mmap
from functools import cache
from typing import Any

_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14
_HUGE = 1 << 21  # bytes of a huge page


def provide(address: int, nbytes: int) -> bool:
    """Asks for the memory of a range of addresses, before anything is written there. Returns whether it is there."""
    first = address - address % mmap.PAGESIZE
    return _madvise(first, address + nbytes - first, _POPULATE_WRITE)


def use_huge_pages(address: int, nbytes: int) -> None:
    """Lets the system use huge pages for a range of addresses: new memory can be written several times faster then.
    Does nothing where the system has none."""
    first, last = -(-address // _HUGE) * _HUGE, (address + nbytes) // _HUGE * _HUGE
    if first < last and hasattr(mmap, "MADV_HUGEPAGE"):
        _madvise(first, last - first, mmap.MADV_HUGEPAGE)


def _madvise(address: int, nbytes: int, advice: int) -> bool:
    function = _function()
    return function is not None and function(address, nbytes, advice) == 0


@cache
def _function() -> Any:
    # The method of the same name of `mmap.mmap` would stop all other threads meanwhile.
    import ctypes  # only here, because every command of leafwise imports this file

    try:
        function = ctypes.CDLL(None).madvise
    except (OSError, TypeError, AttributeError):  # a system without it
        return None
    function.argtypes, function.restype = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int], ctypes.c_int
    return function
