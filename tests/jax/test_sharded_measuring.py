"""Statistics of sharded JAX arrays, on eight simulated devices: the same figures as of the whole array."""

from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from tests.kernels.cases import assert_agree

import leafwise as lw
from leafwise.core.capabilities.measuring import Measuring
from leafwise.homes.jax.arrays import HOME
from leafwise.kernels import cpu, reference
from leafwise.kernels.xla import device_moments

CPUS = jax.devices("cpu")  # the default device may be a GPU
SPECS = [
    PartitionSpec(), PartitionSpec("rows"), PartitionSpec(None, "columns"), PartitionSpec("rows", "columns"),
    PartitionSpec("columns", "rows"), PartitionSpec(("rows", "columns")), PartitionSpec(None, ("rows", "columns")),
]  # fmt: skip


def values(dtype: Any = np.float32, shape: tuple[int, ...] = (64, 48)) -> Any:
    found = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    found.flat[[5, 700, 2_000]] = np.nan, np.inf, 0
    found.flat[[6, 701]] = 1e-12, -1e9
    return found.astype(dtype)


def sharded(array: Any, spec: PartitionSpec) -> Any:
    mesh = jax.make_mesh((4, 2), ("rows", "columns"), devices=CPUS)
    found = jax.device_put(array, NamedSharding(mesh, spec))
    assert len(found.devices()) == 8
    return found


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_every_sharding_gives_the_same_figures(spec: PartitionSpec) -> None:
    for dtype in (np.float32, ml_dtypes.bfloat16, np.int32):
        with np.errstate(invalid="ignore"):
            array = values(dtype)
        [found] = device_moments.measure_arrays([sharded(array, spec)], True, lambda count: None)()
        assert_agree(found, reference.measure(array), 1e-13)


def test_shards_of_whole_chunks_give_the_same_bits() -> None:
    array = np.random.default_rng(0).normal(1e-3, size=(8 * cpu.CHUNK // 512, 512)).astype(np.float32)
    [whole] = cpu.measure_arrays([array], True, lambda count: None)
    for spec in (PartitionSpec(("rows", "columns")), PartitionSpec("rows"), PartitionSpec()):
        [found] = device_moments.measure_arrays([sharded(array, spec)], True, lambda count: None)()
        assert repr(found) == repr(whole)


def test_shards_are_measured_where_they_are_and_replicas_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    array = sharded(values(), PartitionSpec("rows"))  # each shard is on two devices
    measured: list[Any] = []
    host_chunks = device_moments._host_chunks
    monkeypatch.setattr(
        device_moments,
        "_host_chunks",
        lambda arrays, histogram: measured.extend(arrays) or host_chunks(arrays, histogram),
    )
    counted: list[int] = []
    [found] = device_moments.measure_arrays([array], True, counted.append)()
    assert found.count == array.size
    assert sum(counted) == array.nbytes
    assert [part.shape for part in measured] == [(16, 48)] * 4
    shards = {shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards}
    assert {part.unsafe_buffer_pointer() for part in measured} <= shards


def test_xla_measures_each_shard_on_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    array = sharded(values(), PartitionSpec(("rows", "columns")))
    devices: list[Any] = []
    started = device_moments._started

    def noticing(arrays: tuple[Any, ...], histogram: bool) -> Any:
        results = started(arrays, histogram)
        devices.append((arrays[0].devices(), results.sums.devices()))
        return results

    monkeypatch.setattr(device_moments, "_started", noticing)
    [found] = device_moments.measure_arrays([array], True, lambda count: None, lambda part: True)()
    assert_agree(found, reference.measure(values()), 2e-6)
    assert len(devices) == 8
    assert all(of_array == of_results for of_array, of_results in devices)
    assert {device for of_array, _ in devices for device in of_array} == array.devices()


def test_a_tree_of_whole_and_sharded_arrays_is_measured() -> None:
    array = values()
    one_device = jax.make_mesh((1,), ("x",), devices=CPUS[:1])
    tree = {
        "whole": jnp.asarray(array, device=CPUS[0]), "sharded": sharded(array, PartitionSpec("rows", "columns")),
        "one device of a mesh": jax.device_put(array, NamedSharding(one_device, PartitionSpec("x"))),
        "small": jnp.array([1, -7], jnp.int4), "numpy": array,
    }  # fmt: skip
    found = lw.stats(tree)
    for name in ("whole", "sharded", "one device of a mesh", "numpy"):
        assert found[name].nan == 1
        assert found[name].order_free() == found["numpy"].order_free()
        assert found[name].histogram == found["numpy"].histogram
    assert (found["small"].min, found["small"].max) == (-7, 1)
    assert found.total.count == 4 * array.size + 2


def test_what_has_no_values_is_skipped_with_the_reason() -> None:
    deleted = jnp.ones(3)
    tree = {"deleted": deleted, "complex": jnp.ones(2, jnp.complex64), "good": jnp.ones(2)}
    t = lw.tree(tree)
    deleted.delete()
    measured = lw.stats(t)
    assert list(measured) == ["good"]
    assert measured.skipped["deleted"].startswith("it was deleted, for example because it was donated")
    assert measured.skipped["complex"] == "there are no statistics of complex64"
    measuring = HOME.capability(Measuring)
    with pytest.raises(lw.Unsupported, match="jax cannot measure an array: it was deleted"):
        measuring.measure([deleted], True, lambda count: None)
    reasons: list[str] = []
    jax.jit(lambda x: reasons.append(measuring.cannot_measure(x)) or x)(1.0)
    assert reasons[0].startswith("it is a traced value")


class Elsewhere:
    """An array with shards in another process, which a single process cannot make."""

    dtype = np.dtype(np.float32)
    is_fully_addressable = False


def test_an_array_of_several_processes_is_refused_by_name() -> None:
    with pytest.raises(lw.Unsupported, match="jax cannot measure an array that is sharded over several processes"):
        device_moments.measure_arrays([Elsewhere()], True, lambda count: None)  # type: ignore[list-item]
