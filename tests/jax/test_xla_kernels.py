"""Statistics by XLA, on the CPU, against the reference. Subnormal numbers are zero in XLA's arithmetic there."""

import gc
import math
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from tests.kernels.cases import assert_agree, cases

import leafwise as lw
from leafwise.core.results.moments import NOTHING, Moments
from leafwise.kernels import cpu, reference
from leafwise.kernels.xla import device_moments, passes

PRECISION = 2e-6  # as for other GPU kernels
SIX_BITS = ("float6_e2m3fn", "float6_e3m2fn")  # of these, JAX has no arrays
NEVER = {"by_xla": lambda array: False}
ALWAYS = {"by_xla": lambda array: True}
CPUS = jax.devices("cpu")  # the default device may be a GPU


@pytest.fixture(autouse=True)
def _one_array_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Because XLA takes long to compile functions of many arrays."""
    monkeypatch.setattr(device_moments, "_ARRAYS_AT_ONCE", 1)


def on_jax(array: Any, device: Any = None) -> Any:
    with jax.enable_x64(True):
        found = jnp.asarray(array, device=device)
    assert found.dtype == array.dtype
    return found


def measure(arrays: Sequence[Any], histogram: bool = True, **options: Any) -> list[Moments]:
    return device_moments.measure_arrays(list(arrays), histogram, lambda count: None, **(options or ALWAYS))()


def few_shapes(name: str, array: Any) -> Any:
    """The values of a case, repeated up to a common length: XLA compiles each shape, which takes long."""
    return array if not array.size or name in ("1 elements", "17 elements") else np.resize(array, 9_001)


CASES = {name: few_shapes(name, array) for name, array in cases().items() if not name.endswith(SIX_BITS)}
CASES |= {
    f"all of {name}": np.resize(np.arange(256, dtype=np.uint8).view(getattr(ml_dtypes, name)), 9_001)
    for name in ("float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e5m2fnuz")
}


def test_all_cases_agree_with_the_reference() -> None:
    arrays = [on_jax(array) for array in CASES.values()]
    for (name, array), found in zip(CASES.items(), measure(arrays), strict=True):
        try:
            assert_agree(found, reference.measure(array), PRECISION)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


def test_on_a_cpu_the_c_code_measures_the_memory_of_jax() -> None:
    arrays = [array for array in CASES.values() if array.flags.c_contiguous]
    by_c = cpu.measure_arrays(arrays, True, lambda count: None)
    on_cpu = [on_jax(array, CPUS[0]) for array in arrays]
    assert repr(measure(on_cpu, by_xla=device_moments.runs_passes)) == repr(by_c)
    values = jnp.arange(1000.0, device=CPUS[0])
    assert np.shares_memory(device_moments._host_values(values), np.asarray(values))


@pytest.mark.parametrize("size", [passes.SMALL, passes.SMALL + 1, 200_003, 8 * 8192])
def test_small_and_large_arrays_with_and_without_a_rest(size: int) -> None:
    rng = np.random.default_rng(size)
    healthy = rng.normal(size=size).astype(np.float32)
    sparse = np.where(rng.uniform(size=size) < 0.3, 0, healthy).astype(np.float32)
    sick = healthy.copy()
    sick[[0, size // 2, size - 1]] = np.nan, np.inf, -np.inf
    arrays = [healthy, sparse, sick, healthy * 1e-3 + 1e5, np.full(size, 0.1, np.float32)]
    for array, found in zip(arrays, measure(map(on_jax, arrays)), strict=True):
        assert_agree(found, reference.measure(array.astype(np.float32)), PRECISION)


def test_all_values_of_a_row_have_one_exponent() -> None:
    for size in (passes.SMALL, 2 * passes.SMALL):
        values = np.full(size, 1.5, np.float32)
        values[::2] *= -1
        [found] = measure([on_jax(values)])
        assert found.histogram == (0, (size,))


def test_what_lies_outside_of_the_window_is_counted_too() -> None:
    for size in (9_001, 2 * passes.SMALL):
        values = np.random.default_rng(1).normal(size=size).astype(np.float32)
        values[[17, 18, 19, 20]] = 1e-30, 1e10, 1e-40, 0
        [found] = measure([on_jax(values)])
        assert found.histogram == reference.measure(values).histogram


def test_every_value_of_floats_of_16_bits() -> None:
    for dtype in (np.float16, ml_dtypes.bfloat16):
        values = np.arange(1 << 16, dtype=np.uint16).view(dtype)
        [found] = measure([on_jax(values)])
        assert_agree(found, reference.measure(values), PRECISION)


def test_integers_of_less_than_a_byte() -> None:
    numbers = np.array([-8, 7, 0, 1, -1, 3, 3, 0])
    for options in (NEVER, ALWAYS):
        [found] = measure([jnp.array(numbers, jnp.int4)], **options)
        assert_agree(found, reference.measure(numbers.astype(np.int8)), 1e-13)
        [found] = measure([jnp.array(abs(numbers) * 2 - 1, jnp.uint4)], **options)
        assert found.max == 15


def test_one_subnormal_among_ordinary_values_is_the_least() -> None:
    values = np.abs(np.random.default_rng(3).normal(size=9_001)).astype(np.float32)
    values[77] = 1e-39
    for dtype in (np.float32, ml_dtypes.bfloat16):
        [found] = measure([on_jax(values.astype(dtype))])
        assert_agree(found, reference.measure(values.astype(dtype)), PRECISION)
        assert found.min == float(values[77].astype(dtype)) > 0
        assert found.subnormals == 1


def test_many_arrays_of_few_shapes_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_moments, "_ARRAYS_AT_ONCE", 3)
    rng = np.random.default_rng(5)
    shapes = [(3, 5), (7,), (), (200, 201), (0, 4)]
    arrays = [np.asarray(rng.normal(size=shapes[number % 5]), np.float32) for number in range(30)]
    counted: list[int] = []
    wait = device_moments.measure_arrays(list(map(on_jax, arrays)), True, counted.append, **ALWAYS)
    for array, found in zip(arrays, wait(), strict=True):
        assert_agree(found, reference.measure(array), PRECISION)
    assert sum(counted) == sum(array.nbytes for array in arrays)
    assert wait() == wait()
    assert measure([]) == []


def test_without_a_histogram() -> None:
    [normal, sick, empty] = measure(
        [on_jax(CASES[name]) for name in ("normal float32", "mixed float32", "empty")], False
    )
    assert normal.histogram is sick.histogram is empty.histogram is None
    assert_agree(sick, reference.measure(CASES["mixed float32"], False), PRECISION)


def test_two_runs_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_moments, "_ARRAYS_AT_ONCE", 8)
    arrays = [on_jax(CASES[name]) for name in ("normal float32", "mixed float32", "far from zero")]
    assert repr(measure(arrays)) == repr(measure(arrays)) == repr([measure([array])[0] for array in arrays])


def test_settings_of_the_caller_neither_matter_nor_change() -> None:
    sick = on_jax(CASES["mixed float32"])
    right = repr(measure([sick]))
    with jax.debug_nans(True), jax.debug_infs(True), jax.transfer_guard("disallow"):
        assert repr(measure([sick])) == right
        assert jnp.result_type(float) == jnp.float32
    mesh = jax.make_mesh((8,), ("all",), devices=CPUS)
    with jax.set_mesh(mesh):
        assert repr(measure([sick])) == right
        assert jax.sharding.get_abstract_mesh() == mesh.abstract_mesh

    @jax.jit
    def traced(x: Any) -> Any:
        assert repr(measure([sick])) == right
        return x

    traced(1.0)


def test_the_values_are_not_kept_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        device_moments, "_is_on_cpu", lambda array: False
    )  # then JAX would copy them, and keep the copy
    made: list[Any] = []
    make = jax.make_array_from_single_device_arrays
    monkeypatch.setattr(
        jax, "make_array_from_single_device_arrays", lambda *arguments: made.append(make(*arguments)) or made[-1]
    )
    values = jnp.arange(5.0)
    [found] = measure([values], **NEVER)
    assert (found.max, len(made)) == (4.0, 1)
    assert made[0] is not values


def test_what_cannot_be_measured_is_refused() -> None:
    for array in (jnp.ones(3, jnp.complex64), jax.random.key(0)):
        with pytest.raises(TypeError, match="there are no statistics of"):
            measure([array])
    deleted = jnp.ones(3)
    deleted.delete()
    for options in (NEVER, ALWAYS):
        with pytest.raises(RuntimeError, match="deleted"):
            measure([deleted], **options)


def test_an_array_that_is_donated_before_its_statistics_are_read() -> None:
    healthy, sick = jnp.arange(9.0) - 4, jnp.array([1.0, math.nan])
    wait = device_moments.measure_arrays([healthy], True, lambda count: None, **ALWAYS)
    healthy.delete()
    assert wait()[0].l1 == 20
    wait = device_moments.measure_arrays([sick], True, lambda count: None, **ALWAYS)
    sick.delete()
    with pytest.raises(lw.Unsupported, match="read its statistics before it is donated"):
        wait()


@pytest.mark.parametrize("options", [NEVER, ALWAYS], ids=["in C", "by XLA"])
def test_statistics_do_not_keep_arrays_alive(options: Any) -> None:
    array = jnp.array([1.0, math.nan])
    alive = weakref.ref(array)
    wait = device_moments.measure_arrays([array], True, lambda count: None, **options)
    assert wait()[0].nan == 1
    del array
    gc.collect()
    assert alive() is None
    assert wait()[0].nan == 1


def test_nothing_is_known_of_an_array_without_elements() -> None:
    [found] = measure([jnp.zeros((0, 3))])
    assert (found.count, found.histogram) == (0, NOTHING)
    assert math.isnan(found.mean)
