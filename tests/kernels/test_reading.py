"""Threads of the C code read files into buffers, and compute checksums."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import xxhash

from leafwise.kernels.reading import ReadRange, ThreadedReader, can_read

LONG = 300_000_000  # microseconds


@pytest.fixture(autouse=True)
def built() -> None:
    if not can_read():
        pytest.skip("leafwise was installed without a C compiler")


@pytest.fixture
def file(tmp_path: Path) -> Iterator[tuple[int, bytes]]:
    """A file and its bytes."""
    data = os.urandom(300_000)
    path = tmp_path / "data"
    path.write_bytes(data)
    opened = os.open(path, os.O_RDONLY)
    yield opened, data
    os.close(opened)


@pytest.mark.parametrize("threads", [1, 3, 20])
@pytest.mark.parametrize("buffers", [1, 2, 7])
def test_every_task_is_read_whatever_the_number_of_threads(threads: int, buffers: int, file: tuple[int, bytes]) -> None:
    opened, data = file
    tasks = [[ReadRange(opened, start, 5, 1000), ReadRange(opened, 7, 2000, 3)] for start in range(0, 299_000, 1000)]
    views = [memoryview(bytearray(2003)) for _ in range(buffers)]
    read = set()
    with ThreadedReader(tasks, buffers, threads) as reader:
        assert [reader.add(view) for view in views] == list(range(buffers))
        for _ in tasks:
            filled = reader.wait(LONG)
            assert filled is not None
            task, buffer, is_read = filled
            assert is_read
            assert views[buffer][5:1005] == data[task * 1000 : task * 1000 + 1000]
            assert views[buffer][2000:] == data[7:10]
            read.add(task)
            reader.give(buffer)
        assert reader.wait(0) is None
    assert read == set(range(len(tasks)))


@pytest.mark.parametrize("nbytes", [241, 4096, 10_000, 8192 + 240, 8192 + 241])
def test_checksums_are_those_of_the_pieces(nbytes: int, file: tuple[int, bytes]) -> None:
    opened, data = file
    together = [ReadRange(opened, 100, 0, 20_000), ReadRange(-1, 0, 50, nbytes, 4096), ReadRange(-1, 0, 3, 500, 4096)]
    tasks = [[ReadRange(opened, 9, 1, nbytes, 4096)], together]
    with ThreadedReader(tasks, 2, 2) as reader:
        for _ in tasks:
            reader.add(memoryview(bytearray(20_000)))
            assert reader.wait(LONG) is not None

        def expected(start: int, size: int) -> list[int]:
            pieces = [data[start : start + size][at : at + 4096] for at in range(0, size, 4096)]
            return [xxhash.xxh3_64_intdigest(piece) for piece in pieces if len(piece) > 240]

        assert reader.checksums(0, 0, nbytes, 4096) == expected(9, nbytes)
        assert reader.checksums(1, -2, nbytes, 4096) == expected(150, nbytes)
        assert reader.checksums(1, -1, 500, 4096) == expected(103, 500)


def test_a_task_that_cannot_be_read_does_not_stop_the_others(file: tuple[int, bytes], tmp_path: Path) -> None:
    opened, data = file
    closed = os.open(tmp_path, os.O_RDONLY)  # a folder, which cannot be read
    tasks = [
        [ReadRange(opened, 299_999, 0, 2)],
        [ReadRange(closed, 0, 0, 2)],
        [ReadRange(opened, 299_998, 0, 2)],
    ]
    view = memoryview(bytearray(2))
    results = {}
    with ThreadedReader(tasks, 1, 2) as reader:
        reader.add(view)
        for _ in tasks:
            filled = reader.wait(LONG)
            assert filled is not None
            results[filled[0]] = filled[2]
            reader.give(filled[1])
    os.close(closed)
    assert results == {0: False, 1: False, 2: True}
    assert view == data[-2:]


def test_a_reader_ends_its_threads_whether_they_read_or_wait(file: tuple[int, bytes]) -> None:
    opened, _ = file
    tasks = [[ReadRange(opened, 0, 0, 300_000)]] * 100
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("the system does not list threads")
    before = _threads()
    for buffers in (0, 1, 5):
        with ThreadedReader(tasks, 5, 8) as reader:
            for _ in range(buffers):
                reader.add(memoryview(bytearray(300_000)))
            assert _threads() == before + 8
        assert _ends_with(before)
        reader.close()  # again
    unfinished = ThreadedReader(tasks, 5, 8)
    unfinished.__enter__()
    del unfinished
    assert _ends_with(before)


def test_more_buffers_than_announced_are_refused(file: tuple[int, bytes]) -> None:
    with ThreadedReader([[ReadRange(file[0], 0, 0, 1)]], 1, 1) as reader:
        assert reader.add(memoryview(bytearray(1))) == 0
        assert reader.add(memoryview(bytearray(1))) == -1


def _threads() -> int:
    """The number of threads of this process, also of those that Python does not know."""
    return len(os.listdir("/proc/self/task"))


def _ends_with(threads: int) -> bool:
    """Whether so many threads are left. The system may list a thread for a moment after it has ended."""
    for _ in range(60_000):
        if _threads() == threads:
            return True
        time.sleep(0.005)
    return False
