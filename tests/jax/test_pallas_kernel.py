"""The Pallas kernel for statistics, interpreted on the CPU, against the reference."""

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.kernels.cases import assert_agree, cases

from leafwise.core.results.moments import Moments
from leafwise.kernels import reference
from leafwise.kernels.xla import device_moments, pallas_passes
from leafwise.kernels.xla.pallas_passes import Tiling

PRECISION = 2e-6
CPU = jax.devices("cpu")[0]
DTYPES = (np.float32, ml_dtypes.bfloat16, np.float16)
SIZE = 9_001  # two chunks, and a rest
TILING = Tiling(4096, 256, 8, 4)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """With small chunks, and one array at a time, because interpreted kernels take long to compile. The arrays that the
    kernel measured."""
    measured: list[Any] = []
    first_pass = pallas_passes.first_pass
    monkeypatch.setattr(
        pallas_passes, "first_pass", lambda arrays, histogram: measured.extend(arrays) or first_pass(arrays, histogram)
    )
    monkeypatch.setattr(device_moments, "runs_kernel", lambda array: array.size >= 4096 and array.dtype in DTYPES)
    monkeypatch.setattr(device_moments, "_ARRAYS_AT_ONCE", 1)
    monkeypatch.setattr(pallas_passes, "TILING", TILING)
    monkeypatch.setattr(pallas_passes, "TILING_WITH_HISTOGRAM", TILING)
    monkeypatch.setattr(device_moments, "_kernel_errors", [])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield measured


def measure(arrays: list[Any], histogram: bool = True) -> list[Moments]:
    on_cpu = [jax.device_put(array, CPU) for array in arrays]
    return device_moments.measure_arrays(on_cpu, histogram, lambda count: None, lambda array: True)()


def sample() -> dict[str, Any]:
    normal = np.random.default_rng(2).normal(size=SIZE).astype(np.float32)
    sparse, sick, subnormal, positive, padded = normal.copy(), normal.copy(), normal.copy(), abs(normal), normal.copy()
    sparse[::3] = 0
    padded[:1500] = 0
    sick[[0, 5_000, 9_000]] = np.nan, np.inf, -np.inf
    subnormal[[3, 4_000, 8_999]] = 1e-40, -1e-42, 1e-45
    positive[[4_000, 8_999]] = 1e-40, 1e-42
    wide = np.ldexp(normal, np.random.default_rng(3).integers(-70, 70, SIZE)).astype(np.float32)
    return {
        "normal": normal, "sparse": sparse, "zeros at first": padded, "not finite": sick, "some subnormals": subnormal,
        "least is subnormal": positive, "many magnitudes": wide, "far from zero": normal + 1000, "zeros": normal * 0,
        "huge": normal * np.float32(1e30), "tiny": normal * np.float32(1e-30),
        "constant": np.full(SIZE, 0.1, np.float32),
        "two exponents": np.where(np.arange(SIZE) % 2, 1.0, 2.0**-37).astype(np.float32),
        "one exponent": np.full(SIZE, -1.5, np.float32), "all nan": np.full(SIZE, np.nan, np.float32),
    }  # fmt: skip


def check(found: Moments, array: Any, name: str) -> None:
    try:
        assert_agree(found, reference.measure(array), PRECISION)
    except AssertionError as error:
        raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_all_cases_agree_with_the_reference(kernel: list[Any], dtype: Any) -> None:
    arrays = {name: np.resize(array, SIZE) for name, array in cases().items() if array.size and array.dtype == dtype}
    with np.errstate(over="ignore"):
        arrays |= {name: array.astype(dtype) for name, array in sample().items()}
    for (name, array), found in zip(arrays.items(), measure(list(arrays.values())), strict=True):
        check(found, array, name)
    assert len(kernel) == len(arrays) >= 25


def test_several_arrays_without_a_rest(kernel: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_moments, "_ARRAYS_AT_ONCE", 64)
    arrays = [array[:8192].reshape(64, 128) for array in sample().values()][:3]
    for array, found in zip(arrays, measure(arrays, False), strict=True):
        assert_agree(found, reference.measure(array, False), PRECISION)
    assert len(kernel) == 3


def test_ordinary_arrays_are_measured_only_once(kernel: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = sample()
    again: list[Any] = []
    with_care, all_windows = device_moments._with_care, device_moments._all_windows
    monkeypatch.setattr(device_moments, "_with_care", lambda *given: again.append(given[0]) or with_care(*given))
    monkeypatch.setattr(device_moments, "_all_windows", lambda *given: again.append(given[0]) or all_windows(*given))
    ordinary = ("normal", "sparse", "zeros at first", "some subnormals", "zeros", "constant", "one exponent")
    measure([arrays[name] for name in ordinary])
    assert again == []
    measure([arrays["not finite"]])
    assert len(again) == 2


def test_while_a_function_is_traced_and_whatever_is_set(kernel: list[Any]) -> None:
    array = jax.device_put(sample()["not finite"], CPU)

    def measured() -> str:
        return repr(device_moments.measure_arrays([array], True, lambda count: None, lambda array: True)())

    right = measured()

    @jax.jit
    def traced(x: Any) -> Any:
        assert measured() == right
        return x

    with jax.debug_nans(True):
        traced(1.0)
    assert len(kernel) == 2


def test_where_the_kernel_does_not_work_xla_measures(kernel: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Any] = []

    def fails(arrays: Any, histogram: bool) -> Any:
        tries.append(arrays)
        raise NotImplementedError("no such primitive")

    monkeypatch.setattr(pallas_passes, "first_pass", fails)
    array = sample()["normal"]
    with pytest.warns(UserWarning, match="the kernel for statistics does not work here .*no such primitive"):
        [found] = measure([array])
    check(found, array, "normal")
    [found] = measure([array])
    check(found, array, "normal")
    assert len(tries) == 1
    assert len(device_moments._kernel_errors) == 1


def test_a_deleted_array_is_not_a_failure_of_the_kernel(kernel: list[Any]) -> None:
    deleted = jax.device_put(np.ones(SIZE, np.float32), CPU)
    deleted.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        device_moments.measure_arrays([deleted], True, lambda count: None, lambda array: True)
    assert device_moments._kernel_errors == []


def test_the_kernel_measures_large_floats_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    size = 1 << 16
    assert not device_moments.runs_kernel(jnp.ones(size, device=CPU))
    monkeypatch.setattr(device_moments, "runs_passes", lambda array: True)
    assert all(device_moments.runs_kernel(jnp.ones(size, dtype, device=CPU)) for dtype in DTYPES)
    assert not device_moments.runs_kernel(jnp.ones(size, jnp.int32, device=CPU))
    assert not device_moments.runs_kernel(jnp.ones(size - 1, device=CPU))
    assert max(pallas_passes.TILING.chunk, pallas_passes.TILING_WITH_HISTOGRAM.chunk) <= size
