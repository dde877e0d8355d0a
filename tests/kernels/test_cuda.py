"""Statistics by the Triton kernels, on a GPU or in Triton's interpreter, against the reference."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.cases import assert_agree, cases
from tests.kernels.gpu import CHUNK, measure, waiting

from leafwise.core.results.moments import Moments
from leafwise.kernels import reference
from leafwise.kernels.cpu import run_of
from leafwise.kernels.triton import cuda

CASES = cases()
PRECISION = 2e-6  # of sums in 32 bits, over runs of 64 or 128

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("triton_runs")]


def test_all_cases_agree_with_the_reference_in_one_launch() -> None:
    for (name, array), found in zip(CASES.items(), measure(list(CASES.values())), strict=True):
        try:
            assert_agree(found, reference.measure(array), PRECISION)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def test_a_table_of_one_kind_has_a_kernel_of_its_own() -> None:
    for name in ("normal float32", "normal bfloat16", "mixed bfloat16", "sparse float32", "far from zero"):
        [found] = measure([CASES[name]])
        assert_agree(found, reference.measure(CASES[name]), PRECISION)


def test_healthy_whole_chunks_are_not_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[int] = []
    moments = cuda._moments

    def noticing(table: Any, results: Any, histogram: bool) -> list[Moments]:
        listed.append(int(results[cuda.FIELDS * len(table.runs)]))
        return moments(table, results, histogram)

    monkeypatch.setattr(cuda, "_moments", noticing)
    rng = np.random.default_rng(0)
    healthy = [rng.normal(size=3 * CHUNK).astype(np.float32) * scale for scale in (1e-8, 1e-3, 1, 1e4)]
    table = cuda.table_of([run_of(array) for array in healthy], torch.device("cpu"), CHUNK)
    assert (table.whole_count, table.careful_count) == (12, 0)
    measure(healthy)
    sick = healthy[1].copy()
    sick[CHUNK + 5] = np.inf
    measure([sick, sick[: CHUNK + 1]])
    assert listed == [0, 1]


def test_what_lies_outside_of_the_window_is_counted_too() -> None:
    values = np.random.default_rng(1).normal(size=CHUNK).astype(np.float32)
    values[17], values[18] = 1e-30, 1e10
    [found] = measure([values])
    assert found.histogram == reference.measure(values).histogram


def test_very_many_values_of_one_magnitude_do_not_overflow_their_field() -> None:
    values = np.full(cuda.CHUNK, 0.75, np.float32)
    values[::2] *= -1
    [found] = measure([values], chunk=cuda.CHUNK)
    assert_agree(found, reference.measure(values), PRECISION)


def test_remainders_odd_addresses_and_empty_arrays_are_measured() -> None:
    values = np.random.default_rng(2).normal(size=2 * CHUNK + 77).astype(np.float32)
    arrays = [values[:0], values, values[1:], values[3 : CHUNK + 3], values[:0], values[:1]]
    for array, found in zip(arrays, measure(arrays), strict=True):
        assert_agree(found, reference.measure(array), PRECISION)
    assert measure([]) == []
    assert measure([values[:0]])[0].count == 0


def test_many_small_arrays_are_measured() -> None:
    values = np.random.default_rng(3).normal(size=(40, 48)).astype(np.float32)
    for row, found in zip(values, measure(list(values)), strict=True):
        assert_agree(found, reference.measure(row), PRECISION)


def test_without_a_histogram_two_runs_give_the_same() -> None:
    values = CASES["mixed float32"]
    [one], [other] = measure([values], histogram=False), measure([values], histogram=False)
    assert one.histogram is None
    assert repr(one) == repr(other)
    assert_agree(one, reference.measure(values, histogram=False), PRECISION)


def test_waiting_twice_gives_the_same() -> None:
    values = CASES["normal float32"]
    wait = waiting([values])
    assert wait() == wait()


def test_what_no_kernel_knows_is_refused() -> None:
    device = torch.device("cpu")
    with pytest.raises(TypeError, match="no statistics of complex64"):
        cuda.table_of([run_of(np.ones(3, np.complex64))], device, CHUNK)
    with pytest.raises(ValueError, match="multiple of eight blocks"):
        cuda.table_of([], device, 4_096)
