"""Statistics by the C code, in every instruction set of this machine, against the reference."""

import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.kernels.cases import assert_agree, cases

import leafwise as lw
from leafwise.core.memory.runs import Run
from leafwise.core.results.moments import Moments, merged_moments
from leafwise.kernels import comparing, cpu, reference

CASES = cases()

# Where there is a compiler, the library must have been built; elsewhere there is none to be tested.
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]
of_the_library = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C compiler here")


def by_library(runs: list[Run], instruction_set: int, threads: int = 1) -> list[Moments]:
    library = cpu.loaded()
    with patch.object(library, "leafwise_instruction_sets", lambda: instruction_set + 1):
        return list(map(merged_moments, cpu._by_library(library, runs, True, threads)))


@of_the_library
def test_the_library_was_built() -> None:
    assert cpu.loaded() is not None
    assert cpu.instruction_sets() >= 1


@pytest.mark.slow
@of_the_library
def test_the_library_compiles_without_a_warning(tmp_path: Path) -> None:
    source = Path(cpu.__file__).with_name("c") / "cpu.c"
    options = [
        "-O1",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wno-psabi",
        "-Wno-unused-command-line-argument",
        "-fPIC",
        "-shared",
    ]
    for compiler in filter(shutil.which, ("gcc", "clang")):
        command = [compiler, *options, str(source), "-o", str(tmp_path / "cpu"), "-lm", "-pthread"]
        done = subprocess.run(command, capture_output=True, encoding="utf-8")
        assert done.returncode == 0, done.stderr


@of_the_library
def test_the_library_agrees_with_the_reference() -> None:
    right = {name: reference.measure(array) for name, array in CASES.items()}
    for instruction_set in range(cpu.instruction_sets()):
        found = by_library([cpu.run_of(array) for array in CASES.values()], instruction_set, threads=2)
        for name, moments in zip(CASES, found, strict=True):
            try:
                assert_agree(moments, right[name])
            except AssertionError as error:
                raise AssertionError(f"{name}, instruction set {instruction_set}: {error}") from error


@of_the_library
def test_every_instruction_set_gives_the_same_bits() -> None:
    runs = [cpu.run_of(array) for array in CASES.values()]
    narrow = by_library(runs, 0)
    for instruction_set in range(1, cpu.instruction_sets()):
        for name, one, other in zip(CASES, narrow, by_library(runs, instruction_set), strict=True):
            assert repr(one) == repr(other), name


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int16"])
def test_any_number_of_threads_gives_the_same_bits(dtype: str) -> None:
    array = (np.random.default_rng(0).normal(size=3 * cpu.CHUNK + 1_234) * 100).astype(cpu.numpy_dtype(dtype))
    runs = [cpu.run_of(array), cpu.run_of(array[5:-7])]
    one = cpu.measure(runs, threads=1)
    assert_agree(one[0], reference.measure(array))
    for threads in (2, 3, 8, 100):
        assert repr(cpu.measure(runs, threads=threads)) == repr(one)
    assert repr(cpu.measure(runs[::-1], threads=2)[::-1]) == repr(one)  # nor does it matter beside what it stands


def test_memory_at_any_address_is_measured() -> None:
    raw = np.random.default_rng(1).integers(0, 256, 40_000, np.uint8)
    for offset in (1, 2, 3, 5):
        for dtype in ("float32", "float64", "float16", "int64"):
            item = np.dtype(dtype).itemsize
            some = raw[offset : offset + 4_099 * item]
            array = np.frombuffer(some.tobytes(), dtype)
            run = Run(some.__array_interface__["data"][0], 4_099, dtype, some)
            with np.errstate(all="ignore"):
                assert_agree(cpu.measure([run])[0], reference.measure(array))


def test_empty_arrays_between_full_ones_are_measured() -> None:
    full, empty = np.ones(10, np.float32), np.zeros(0, np.float32)
    found = cpu.measure([cpu.run_of(array) for array in (empty, full, empty, empty, full, empty)])
    assert [moments.count for moments in found] == [0, 10, 0, 0, 10, 0]
    assert [moments.l1 for moments in found] == [0, 10, 0, 0, 10, 0]
    assert cpu.measure([]) == []


def test_twenty_thousand_small_arrays_are_measured_at_once() -> None:
    values = np.random.default_rng(2).normal(size=(20_000, 48)).astype(np.float32)
    found = cpu.measure([cpu.run_of(row) for row in values])
    for number in (0, 1, 4_095, 4_096, 19_999):
        assert_agree(found[number], reference.measure(values[number]))
    assert_agree(merged_moments(found), reference.measure(values), 1e-12)


def test_the_histogram_can_be_left_out() -> None:
    [found] = cpu.measure([cpu.run_of(np.ones(5))], histogram=False)
    assert found.histogram is None
    assert found.l1 == 5
    assert cpu.measure([cpu.run_of(np.zeros(0))], histogram=False)[0].histogram is None


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0).reshape(4, 6).T,
        np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2),
        np.arange(24.0)[::2],
        np.arange(24.0)[::-1],
        np.arange(24.0).reshape(4, 6)[:, 1:3],
        np.broadcast_to(np.arange(3.0), (5, 3)),
        np.asfortranarray(np.arange(24.0).reshape(4, 6)),
        np.arange(24.0).astype(">f8"),
        np.arange(24, dtype=">i4"),
        np.array(3.5),
        np.zeros((3, 0, 2)),
    ],
)
def test_arrays_of_any_layout_are_measured(array: Any) -> None:
    [found] = cpu.measure_arrays([array], True, lambda count: None)
    assert_agree(found, reference.measure(np.ascontiguousarray(array, array.dtype.newbyteorder("="))))


def test_pieces_are_cut_where_it_does_not_matter() -> None:
    array = np.random.default_rng(3).normal(size=2 * (cpu.PIECE + cpu.CHUNK + 77)).astype(np.float32)[::2]
    pieces = cpu.measure_arrays([array], True, lambda count: None)
    assert repr(pieces) == repr(cpu.measure([cpu.run_of(np.ascontiguousarray(array))]))


def test_without_the_library_a_thread_that_takes_subnormals_for_zeros_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "load", lambda: None)
    array = np.full(5_000, 1e-40, np.float32)
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(lw.Unsupported, match=r"torch.set_flush_denormal\(False\)"):
            cpu.measure([cpu.run_of(array)])
        with pytest.raises(lw.Unsupported, match=r"torch.set_flush_denormal\(False\)"):
            comparing.compare([(cpu.run_of(array), cpu.run_of(array * 2))])
    finally:
        torch.set_flush_denormal(False)
    assert cpu.measure([cpu.run_of(array)])[0].subnormals == 5_000


@of_the_library
def test_subnormals_count_where_the_thread_takes_them_for_zeros() -> None:
    array = np.full(5_000, 1e-40, np.float32)
    before = cpu.measure([cpu.run_of(array)])
    torch.set_flush_denormal(True)
    try:
        assert cpu.measure([cpu.run_of(array)]) == before
        assert torch.tensor([1e-40]) * 1 == 0  # and the thread has what it was set to
    finally:
        torch.set_flush_denormal(False)
    assert before[0].subnormals == 5_000
    assert before[0].l1 > 0


def test_several_threads_may_measure_at_once() -> None:
    array = np.random.default_rng(4).normal(size=cpu.CHUNK * 2).astype(np.float32)
    wanted = repr(cpu.measure([cpu.run_of(array)]))
    with ThreadPoolExecutor(8) as pool:
        assert {repr(found) for found in pool.map(lambda _: cpu.measure([cpu.run_of(array)]), range(32))} == {wanted}


def test_without_the_library_the_reference_is_used_and_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "load", lambda: None)
    cpu._warn_not_built.cache_clear()
    array = np.random.default_rng(5).normal(size=cpu.CHUNK + 5).astype(np.float32)
    with pytest.warns(UserWarning, match="without a C compiler") as warned:  # noqa: PT031 — once, for both
        [found] = cpu.measure([cpu.run_of(array)])
        cpu.measure([cpu.run_of(array[:0])], histogram=False)
    assert len(warned) == 1
    assert_agree(found, reference.measure(array))
    monkeypatch.undo()
    assert_agree(cpu.measure([cpu.run_of(array)])[0], found)
    cpu._warn_not_built.cache_clear()


def test_the_number_of_threads_is_that_of_the_environment() -> None:
    script = "from leafwise.kernels import cpu; print(cpu.threads_here())"
    for asked, wanted in (("3", "3"), ("1", "1")):
        environment = {"OMP_NUM_THREADS": asked, "PATH": ""}
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", env=environment)
        assert found.stdout.strip() == wanted, found.stderr


@pytest.mark.parametrize("has_library", [True, False])
@pytest.mark.parametrize("dtype", ["complex64", "complex128", "timedelta64[s]"])
def test_what_no_kernel_knows_is_refused(dtype: str, has_library: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_library:
        monkeypatch.setattr(cpu, "load", lambda: None)
    with pytest.raises(TypeError, match="there are no statistics of"):
        cpu.measure([cpu.run_of(np.zeros(3, dtype))])
