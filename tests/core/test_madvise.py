"""What a process tells the system about its memory."""

import mmap
import sys

import numpy as np
import pytest

from leafwise.core.memory import madvise


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux provides memory in advance")
def test_memory_is_provided_only_where_there_can_be_some() -> None:
    with mmap.mmap(-1, 1 << 20) as memory:
        array = np.frombuffer(memory, np.uint8)
        array[5] = 7
        if not madvise.provide(array.ctypes.data + 3, 10):
            pytest.skip("this kernel does not provide memory in advance")
        assert madvise.provide(array.ctypes.data + 4_097, 300_000)
        assert array[5] == 7  # values stay
        del array
    assert not madvise.provide(mmap.PAGESIZE, 100)  # nothing is mapped there


def test_huge_pages_keep_values() -> None:
    array = np.arange(3 << 20)
    madvise.use_huge_pages(array.ctypes.data, array.nbytes)
    madvise.use_huge_pages(array.ctypes.data, 100)
    assert np.array_equal(array, np.arange(3 << 20))
