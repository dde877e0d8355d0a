"""Compares the C code with the NumPy reference, for random sizes, dtypes, alignments, chunks and files."""

import math
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import patch

import numpy as np
from tests.kernels.cases import FLOATS, WHOLE, assert_agree
from tests.kernels.test_comparing import assert_close

from leafwise.core.memory.runs import Run, UnreadError
from leafwise.core.results.comparison import merged_comparisons
from leafwise.core.results.moments import merged_moments
from leafwise.kernels import comparing, cpu, reference

# Around the widths of vectors, and around the block sizes of the C code.
_SIZES = [0, 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 129, 1_023, 1_025, 4_095, 4_096, 4_097, 12_289]


def case(rng: np.random.Generator, folder: Path) -> None:
    """Measures and compares some arrays at once, in memory or in a file. Raises AssertionError if a number is wrong."""
    dtype = str(rng.choice([*FLOATS, *WHOLE]))
    count = int(rng.choice([1, 1, 2, 5]))
    chunk = int(rng.choice([cpu.CHUNK, 8_192, 4_096, 1_000, 77]))
    with ExitStack() as changed:
        for module in (cpu, comparing):  # as if arrays were long: many chunks, and several threads
            changed.enter_context(mock.patch.object(module, "CHUNK", chunk))
            changed.enter_context(mock.patch.object(module, "PER_THREAD", 500))
        ones = [_array(rng, dtype) for _ in range(count)]
        others = [_partner(rng, one) for one in ones]
        with _Runs(rng, folder) as runs:
            _measure(rng, ones, [runs.of(one) for one in ones], chunk)
            _compare(rng, ones, others, [(runs.of(a), runs.of(b)) for a, b in zip(ones, others, strict=True)], chunk)
            if runs.file >= 0:
                _unread(rng, runs, ones)
    _strided(rng, dtype)


def _array(rng: np.random.Generator, dtype: str) -> Any:
    """An array that ends where its memory ends, and that may be unaligned."""
    size = int(rng.choice([*_SIZES, *_SIZES, int(rng.integers(0, 20_000))]))
    of = np.dtype(bool) if dtype == "bool" else cpu.numpy_dtype(dtype)
    with np.errstate(all="ignore"):
        if dtype == "bool":
            values = rng.integers(0, 2, size).astype(bool)
        elif rng.random() < 0.5 and dtype != "float8_e8m0fnu":
            scale = 10.0 ** rng.integers(-3, 4) if dtype in FLOATS else 50
            values = (rng.normal(size=size) * scale).astype(of)
        else:  # any bits: subnormals, infinities, NaN
            codes = np.frombuffer(rng.bytes(size * of.itemsize), np.uint8)
            # Floats with fewer than 8 bits: the other bits of the byte are zero.
            values = (codes & {"float4": 15, "float6": 63}.get(dtype.partition("_")[0], 255)).view(of)
    offset = int(rng.integers(0, 9)) if rng.random() < 0.5 else 0
    memory = np.empty(offset + values.nbytes, np.uint8)
    memory[offset:] = values.view(np.uint8).reshape(-1) if values.nbytes else memory[offset:]
    return memory[offset:].view(of)


def _partner(rng: np.random.Generator, one: Any) -> Any:
    other = np.empty(one.nbytes, np.uint8)
    other[:] = one.view(np.uint8)
    if one.size and rng.random() < 0.8:
        changed = other.view(one.dtype)
        places = rng.integers(0, one.size, max(1, one.size // int(rng.choice([1, 3, 1_000]))))
        changed[places] = one[rng.integers(0, one.size)]
    return other.view(one.dtype)


class _Runs:
    """Runs for arrays: in memory as they are, or written to a file at any offset."""

    def __init__(self, rng: np.random.Generator, folder: Path) -> None:
        self.rng, self.path = rng, folder / "arrays"
        self.file = -1

    def __enter__(self) -> "_Runs":
        if self.rng.random() < 0.4:
            self.file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        return self

    def __exit__(self, *_: object) -> None:
        if self.file >= 0:
            os.close(self.file)

    def of(self, array: Any) -> Run:
        if self.file < 0 or self.rng.random() < 0.3:
            return cpu.run_of(array)
        at = os.lseek(self.file, 0, os.SEEK_END) + int(self.rng.integers(0, 9))
        os.pwrite(self.file, array.tobytes(), at)
        return Run(at, array.size, array.dtype.name, None, self.file)


def _measure(rng: np.random.Generator, arrays: list[Any], runs: list[Run], chunk: int) -> None:
    threads = int(rng.integers(1, 5))
    found = None
    library = cpu.loaded()
    for instruction_set in range(cpu.instruction_sets()):
        with patch.object(library, "leafwise_instruction_sets", lambda count=instruction_set + 1: count):
            measured = cpu._by_library(library, runs, True, threads)
        assert found is None or repr(found) == repr(measured), "two instruction sets give different results"
        found = measured
    for array, chunks in zip(arrays, found or [], strict=True):
        right = [reference.measure(array[at : at + chunk]) for at in range(0, array.size, chunk)]
        if array.size and not math.isinf(merged_moments(right).l2):
            assert_agree(merged_moments(chunks), merged_moments(right))


def _compare(
    rng: np.random.Generator, ones: list[Any], others: list[Any], pairs: list[tuple[Run, Run]], chunk: int
) -> None:
    parts = [comparing.PairPart(number, 0, one.size) for number, one in enumerate(ones) if one.size]
    threads = int(rng.integers(1, 5))
    found = None
    library = cpu.loaded()
    for instruction_set in range(cpu.instruction_sets()):
        with patch.object(library, "leafwise_instruction_sets", lambda count=instruction_set + 1: count):
            compared = comparing._by_library(library, pairs, parts, True, threads)
        assert found is None or repr(found) == repr(compared), "two instruction sets give different results"
        found = compared
    for part, chunks in zip(parts, found or [], strict=True):
        one, other = ones[part.pair], others[part.pair]
        right = [reference.compare(one[at : at + chunk], other[at : at + chunk]) for at in range(0, one.size, chunk)]
        for (_, figures), figures_right in zip(chunks, right, strict=True):
            assert figures is not None
            assert_close(figures, figures_right)
        merged_comparisons(figures for _, figures in chunks if figures is not None)


def _unread(rng: np.random.Generator, runs: _Runs, arrays: list[Any]) -> None:
    """Reading an array that extends beyond the end of its file must be an error."""
    array = max(arrays, key=lambda one: one.size)
    if not array.size:
        return
    end = os.lseek(runs.file, 0, os.SEEK_END)
    run = Run(end - int(rng.integers(0, array.nbytes)), array.size, array.dtype.name, None, runs.file)
    for call in (lambda: cpu.measure_chunks([run], True), lambda: comparing.compare([(run, cpu.run_of(array))])):
        try:
            call()
        except UnreadError:
            continue
        raise AssertionError("an array beyond the end of its file was read")


def _strided(rng: np.random.Generator, dtype: str) -> None:
    """A strided, transposed or reversed array must give the same numbers as its copy."""
    array = _array(rng, dtype)
    size = int(array.size**0.5)
    if size < 3:
        return
    view = array[: size * size].reshape(size, size)
    step = int(rng.integers(1, 4))
    view = [view.T, view[::step], view[:, ::-step], view[1:, 1:], view[::-1, ::step].T][int(rng.integers(5))]
    [found] = cpu.measure_arrays([view], True, lambda done: None)
    assert_agree(found, reference.measure(view.copy()), precision=1e-12)
