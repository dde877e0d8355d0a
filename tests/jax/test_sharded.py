"""Arrays that are sharded over eight devices: shown as they are, saved and loaded shard by shard, to the same bytes."""

import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax._src.sharding_impls import GSPMDSharding  # what jit returns for a sharding without names
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

import leafwise as lw
from leafwise.core.memory.sharding import Sharding
from leafwise.homes.jax import arrays
from leafwise.homes.jax.values import reading
from leafwise.homes.jax.values.host_memory import host_shards, read_shards
from leafwise.homes.jax.values.placing import JaxRebuilding

P = PartitionSpec
CPUS = jax.devices("cpu")  # the default device may be a GPU
MESH = Mesh(np.array(CPUS).reshape(2, 4), ("dp", "tp"))
SPECS = [
    P(),
    P("dp"),
    P(None, "tp"),
    P("dp", "tp"),
    P("tp", "dp"),
    P(("dp", "tp")),
    P(("tp", "dp")),
    P(None, ("tp", "dp")),
    P(("dp", "tp"), None),
]


def matrix(seed: int = 0, dtype: str = "float32") -> jax.Array:
    return jax.random.normal(jax.random.key(seed), (16, 24)).astype(dtype)


def on_mesh(array: Any, spec: PartitionSpec) -> Any:
    return jax.device_put(array, NamedSharding(MESH, spec))


def computed(array: Any) -> Any:
    """An array that jit returns: whether JAX reuses the memory of one that `device_put` made depends on its address."""
    return jax.jit(jnp.copy, out_shardings=array.sharding)(array)


def model() -> dict[str, Any]:
    return {str(number): on_mesh(matrix(number), spec) for number, spec in enumerate(SPECS)}


def whole(tree: Any) -> Any:
    return jax.tree.map(lambda array: jnp.asarray(np.asarray(array)), tree)


def zeros(tree: Any) -> Any:
    return jax.tree.map(lambda array: jax.device_put(jnp.zeros(array.shape, array.dtype), array.sharding), tree)


def assert_same(first: Any, second: Any) -> None:
    """The same values, dtypes and shardings."""
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert a.dtype == b.dtype
        assert a.sharding == b.sharding
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


# -- showing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "placements"),
    [
        (P(), ("replicate", "replicate")),
        (P("dp"), ("shard(0)", "replicate")),
        (P(None, "tp"), ("replicate", "shard(1)")),
        (P("tp", "dp"), ("shard(1)", "shard(0)")),
        (P(("dp", "tp")), ("shard(0)", "shard(0)")),
        (P(("tp", "dp")), ("strided shard(0, 4)", "shard(0)")),
    ],
)
def test_a_sharding_is_described_by_its_mesh(spec: PartitionSpec, placements: tuple[str, ...]) -> None:
    leaf = lw.tree({"w": on_mesh(matrix(), spec)})["w"]
    assert leaf.sharding == Sharding((2, 4), ("dp", "tp"), placements, "devices")
    assert leaf.device == "cpu:0-7"
    assert leaf.shape == (16, 24)
    assert leaf.local_nbytes == leaf.nbytes == 16 * 24 * 4


def test_placements_say_which_elements_a_device_has() -> None:
    """`strided shard(0, 4)` over dp and `shard(0)` over tp: axis 0 is split by tp, and each piece by dp."""
    array = on_mesh(jnp.arange(16), P(("tp", "dp")))
    held = {shard.device: np.asarray(shard.data).tolist() for shard in array.addressable_shards}
    for (dp, tp), device in np.ndenumerate(MESH.devices):
        assert held[device] == np.arange(16).reshape(4, 2, 2)[tp, dp].tolist()


def test_arrays_on_one_device_have_no_sharding() -> None:
    tree = {
        "first": jax.device_put(matrix(), CPUS[0]),
        "third": jax.device_put(matrix(), CPUS[3]),
        "mesh of one": jax.device_put(matrix(), NamedSharding(Mesh(np.array(CPUS[:1]), ("x",)), P("x"))),
    }
    t = lw.tree(tree)
    assert [leaf.sharding for leaf in t] == [None, None, None]
    assert [leaf.device for leaf in t] == ["cpu", "cpu:3", "cpu"]


def test_some_devices_are_named_one_by_one() -> None:
    mesh = Mesh(np.array([CPUS[number] for number in (0, 2, 5)]), ("x",))
    leaf = lw.tree({"w": jax.device_put(jnp.ones((6, 2)), NamedSharding(mesh, P("x")))})["w"]
    assert leaf.device == "cpu:0,2,5"
    assert str(leaf.sharding) == "shard(0) over x=3"


def test_shardings_without_a_mesh_are_described_by_their_pieces() -> None:
    array = on_mesh(matrix(), P("dp", None))
    unnamed = array.sharding._to_xla_hlo_sharding(array.ndim)
    sharding = GSPMDSharding(tuple(MESH.devices.flat), unnamed)
    leaf = lw.tree({"w": jax.device_put(matrix(), sharding)})["w"]
    assert str(leaf.sharding) == "shard(0), replicate over 2×4 devices"


def test_a_target_without_memory_shows_the_sharding_it_will_have() -> None:
    abstract = NamedSharding(AbstractMesh((4,), ("x",)), P("x"))
    tree = {
        "w": jax.ShapeDtypeStruct((16, 24), jnp.float32, sharding=NamedSharding(MESH, P("dp"))),
        "v": jax.ShapeDtypeStruct((16, 24), jnp.float32, sharding=abstract),
    }
    leaves = list(lw.tree(tree))
    assert [str(leaf.sharding) for leaf in leaves] == ["shard(0), replicate over dp=2, tp=4", "shard(0) over x=4"]
    assert [leaf.device for leaf in leaves] == ["meta", "meta"]


def test_the_picture_and_the_page_show_shardings(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arrays, reading):
        monkeypatch.setattr(module, "host_shards", _refuse)
    same = {"a": on_mesh(matrix(), P("dp")), "b": on_mesh(matrix(1), P("dp"))}
    *_, footer = str(lw.tree(same)).splitlines()
    assert footer == "768 parameters · 2 leaves · 3.0 KiB · shard(0), replicate over dp=2, tp=4 · on cpu:0-7"
    mixed = {"a": on_mesh(matrix(), P("dp")), "b": matrix()}
    text = str(lw.tree(mixed))
    assert "shard(0), replicate over dp=2, tp=4  cpu:0-7" in text
    assert "rank" not in text
    assert "over dp=2, tp=4" in lw.tree(mixed)._repr_html_()
    leaf = lw.tree(mixed).json()["leaves"][0]
    assert leaf["sharding"] == {"mesh": [2, 4], "mesh_names": ["dp", "tp"], "placements": ["shard(0)", "replicate"]}
    for array in jax.tree.leaves((same, mixed)):
        assert array._npy_value is None  # JAX has not gathered it


def _refuse(value: Any) -> Any:
    raise AssertionError("values were read just to be shown")


# -- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_parts_are_read_from_shards(spec: PartitionSpec) -> None:
    array = on_mesh(matrix(), spec)
    expected = np.asarray(matrix())
    indices: list[Any] = [
        (),
        3,
        -1,
        slice(2, 9),
        slice(None, None, -1),
        slice(12, 3, -3),
        slice(5, 5),
        (slice(1, 15, 4), slice(20, 2, -5)),
        (7, slice(3, 20)),
        (-1, -1),
        (..., 2),
        np.array([3, 1]),
    ]
    for index in indices:
        read = read_shards(host_shards(array), (16, 24), array.dtype, index)
        assert np.array_equal(read, expected[index]), index
    assert array._npy_value is None  # nothing stays in memory with the array


def test_reading_does_not_prevent_donation() -> None:
    array = computed(on_mesh(matrix(), P("dp", "tp")))
    lw.stats({"w": array})
    lw.tree({"w": array})["w"].numpy()
    places = [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]
    step = jax.jit(lambda x: x + 1, donate_argnums=0, out_shardings=array.sharding)
    new = step(array)
    assert array.is_deleted()
    assert [shard.data.unsafe_buffer_pointer() for shard in new.addressable_shards] == places


# -- saving ----------------------------------------------------------------------------------------------------------


def test_a_saved_file_is_that_of_the_whole_arrays(tmp_path: Path) -> None:
    tree = model()
    sharded = Path(lw.save(tree, tmp_path / "a.safetensors")).read_bytes()
    assert sharded == Path(lw.save(whole(tree), tmp_path / "b.safetensors")).read_bytes()
    numpy = jax.tree.map(np.asarray, tree)
    assert sharded == Path(lw.save(numpy, tmp_path / "c.safetensors")).read_bytes()


def test_casts_and_shards_of_a_save(tmp_path: Path) -> None:
    tree = model()
    for options in ({"dtype": "bfloat16"}, {"shard_size": 4000}):
        lw.save(tree, tmp_path / "a.safetensors", **options)  # type: ignore[arg-type]
        lw.save(whole(tree), tmp_path / "b.safetensors", **options)  # type: ignore[arg-type]
        assert lw.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors").same


def test_a_large_array_is_saved_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leafwise.files.writing.live_arrays.WRITERS", 2)  # each has a piece in memory
    array = on_mesh(jnp.arange(1 << 23, dtype=jnp.float32).reshape(1 << 10, 1 << 13), P(None, ("dp", "tp")))
    tracemalloc.start()
    lw.save({"w": array}, tmp_path / "a.safetensors")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < array.nbytes
    lw.save({"w": np.asarray(array)}, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_a_step_may_donate_what_is_saved_in_the_background(tmp_path: Path) -> None:
    tree = {"split": on_mesh(matrix(), P("dp", "tp")), "plain": matrix()}
    expected = {name: np.array(array) for name, array in tree.items()}
    saving = lw.save(tree, tmp_path / "a.safetensors", background=True)
    jax.block_until_ready(jax.jit(lambda x: jax.tree.map(lambda y: y * 0, x), donate_argnums=0)(tree))
    saving.wait()
    for name, array in expected.items():
        assert np.array_equal(lw.open(tmp_path / "a.safetensors")[name].numpy(), array)


def test_a_finished_save_does_not_prevent_donation(tmp_path: Path) -> None:
    tree = {"split": computed(on_mesh(matrix(), P("dp", "tp"))), "plain": computed(matrix())}
    saving = lw.save(tree, tmp_path / "a.safetensors", background=True)
    saving.wait()
    lw.diff(tree, tmp_path / "a.safetensors")
    for array in tree.values():  # one at a time, because one may be on a GPU
        place = array.addressable_shards[0].data.unsafe_buffer_pointer()
        new = jax.jit(lambda x: x * 0, donate_argnums=0)(array)
        assert array.is_deleted()
        assert new.addressable_shards[0].data.unsafe_buffer_pointer() == place


# -- loading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["arrays", "abstract"])
def test_a_load_keeps_the_sharding_of_its_target(tmp_path: Path, target: str) -> None:
    tree = model()
    lw.save(whole(tree), tmp_path / "a.safetensors")
    empty = zeros(tree)
    if target == "abstract":
        empty = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), tree)
    assert_same(lw.load(empty, tmp_path / "a.safetensors"), tree)
    assert_same(lw.load(empty, whole(tree)), tree)  # from a live model
    assert_same(lw.load(whole(zeros(tree)), tree), whole(tree))


def test_each_device_gets_memory_for_its_part_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host_parts: list[tuple[int, ...]] = []
    host_parts_for = JaxRebuilding.host_parts

    def recorded(self: JaxRebuilding, values: Any) -> Any:
        made = host_parts_for(self, values)
        host_parts.extend(host_part.shape for parts in made for host_part in parts)
        return made

    monkeypatch.setattr(JaxRebuilding, "host_parts", recorded)
    lw.save({"w": matrix()}, tmp_path / "a.safetensors")
    for spec, expected in [(P("dp", "tp"), [(8, 6)] * 8), (P("dp"), [(8, 24)] * 2), (P(), [(16, 24)])]:
        host_parts.clear()
        lw.load({"w": on_mesh(jnp.zeros((16, 24)), spec)}, tmp_path / "a.safetensors")
        assert host_parts == expected


def test_what_was_read_is_the_memory_of_the_array(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory: list[int] = []
    of_host_parts = JaxRebuilding.from_host_parts

    def recorded(self: JaxRebuilding, values: Any, host_parts: Any) -> Any:
        memory.extend(host_part.value.ctypes.data for parts in host_parts for host_part in parts)
        return of_host_parts(self, values, host_parts)

    monkeypatch.setattr(JaxRebuilding, "from_host_parts", recorded)
    lw.save({"w": matrix()}, tmp_path / "a.safetensors")
    for spec in (P("dp", "tp"), P("dp"), P()):
        memory.clear()
        new = lw.load({"w": on_mesh(jnp.zeros((16, 24)), spec)}, tmp_path / "a.safetensors")["w"]
        assert {shard.data.unsafe_buffer_pointer() for shard in new.addressable_shards} == set(memory)
        again = jax.jit(lambda x: x * 2, donate_argnums=0)(new)  # JAX must not write into shared memory
        assert np.array_equal(np.asarray(again), np.asarray(matrix() * 2))


def test_casts_and_transposes_of_a_load(tmp_path: Path) -> None:
    lw.save({"w": matrix()}, tmp_path / "a.safetensors")
    for spec in SPECS:
        target = {"w": on_mesh(jnp.zeros((16, 24), jnp.bfloat16), spec)}
        new = lw.load(target, tmp_path / "a.safetensors", cast=True)["w"]
        assert new.sharding == target["w"].sharding
        assert np.array_equal(np.asarray(new), np.asarray(matrix().astype(jnp.bfloat16)))
        with pytest.raises(lw.LoadError, match=r"cannot load w: .*nothing was changed"):
            lw.load({"w": on_mesh(jnp.zeros((16, 24), jnp.float16), spec)}, {"w": matrix() * 1e6}, cast=True)


def test_a_checkpoint_behind_a_url_is_loaded_into_shards() -> None:
    tree = model()
    lw.save(whole(tree), "memory://sharded/a.safetensors")
    assert_same(lw.load(zeros(tree), "memory://sharded/a.safetensors"), tree)


def test_damage_is_found_and_nothing_changes(tmp_path: Path) -> None:
    tree = {"a": on_mesh(matrix(), P("dp", "tp")), "b": matrix(1), "c": on_mesh(matrix(2), P("tp"))}
    path = Path(lw.save(tree, tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-5] ^= 1  # in c
    data[-16 * 24 * 4 - 5] ^= 1  # in b
    path.write_bytes(data)
    net = Net()
    for target in (zeros(tree), net):
        before = jax.tree.map(np.asarray, nnx.state(net) if target is net else target)
        source = path if target is not net else damaged(net, tmp_path)
        with pytest.raises(lw.ChecksumError) as raised:
            lw.load(target, source)
        if target is not net:
            assert set(raised.value.leaves) == {"b", "c"}
        now = jax.tree.map(np.asarray, nnx.state(net) if target is net else target)
        assert jax.tree.all(jax.tree.map(np.array_equal, before, now))
    loaded = lw.load(zeros(tree), path, verify=False)
    assert np.array_equal(np.asarray(loaded["a"]), np.asarray(tree["a"]))


def damaged(net: Any, folder: Path) -> Path:
    path = Path(lw.save(net, folder / "net.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    return path


class Net(nnx.Module):
    def __init__(self, seed: int = 0) -> None:
        self.first = nnx.Linear(16, 24, rngs=nnx.Rngs(seed))
        self.second = nnx.Linear(24, 16, rngs=nnx.Rngs(seed + 1))
        self.second.kernel = nnx.Param(on_mesh(self.second.kernel[...], P("tp", "dp")))
        self.first.kernel = nnx.Param(on_mesh(self.first.kernel[...], P("dp", "tp")))


def test_variables_keep_the_sharding_of_their_arrays(tmp_path: Path) -> None:
    old, new = Net(0), Net(5)
    lw.save(old, tmp_path / "a.safetensors")
    kernel = new.first.kernel
    assert lw.load(new, tmp_path / "a.safetensors") is new
    assert new.first.kernel is kernel
    assert_same(nnx.state(new), nnx.state(old))
    assert str(lw.tree(new)["first.kernel"].sharding) == "shard(0), shard(1) over dp=2, tp=4"
    assert_same(nnx.state(lw.load(Net(7), old)), nnx.state(old))
    abstract = nnx.eval_shape(lambda: nnx.Linear(16, 24, rngs=nnx.Rngs(0)))
    lw.save(old.first, tmp_path / "first.safetensors")
    assert_values(lw.load(abstract, tmp_path / "first.safetensors"), old.first)


def assert_values(first: Any, second: Any) -> None:
    pairs = zip(jax.tree.leaves(nnx.state(first)), jax.tree.leaves(nnx.state(second)), strict=True)
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


def test_arrays_stay_where_they_were() -> None:
    free = jnp.zeros((16, 24))
    fixed = jax.device_put(free, CPUS[3])
    loaded = lw.load({"free": free, "fixed": fixed}, {"free": matrix(), "fixed": matrix(1)})
    assert not loaded["free"].committed  # JAX may still move it to the device of another array
    assert loaded["fixed"].sharding == SingleDeviceSharding(CPUS[3])
    assert np.array_equal(np.asarray(loaded["fixed"] + loaded["free"]), np.asarray(matrix() + matrix(1)))


def test_a_target_without_devices_is_refused(tmp_path: Path) -> None:
    lw.save({"w": matrix()}, tmp_path / "a.safetensors")
    abstract = NamedSharding(AbstractMesh((4,), ("x",)), P("x"))
    with pytest.raises(lw.LoadError, match=r"cannot load w: .*abstract mesh, without devices"):
        lw.load({"w": jax.ShapeDtypeStruct((16, 24), jnp.float32, sharding=abstract)}, tmp_path / "a.safetensors")


def test_a_dtype_that_jax_would_change_in_silence_is_refused() -> None:
    target = {"w": jax.ShapeDtypeStruct((4,), np.float64)}
    with pytest.raises(lw.LoadError, match="jax_enable_x64"):
        lw.load(target, {"w": np.arange(4.0)})


# -- other verbs -----------------------------------------------------------------------------------------------------


def test_diff_and_check_of_sharded_arrays() -> None:
    tree = model()
    assert lw.diff(tree, whole(tree)).same
    assert lw.diff(tree, zeros(tree)).json() == lw.diff(whole(tree), whole(zeros(tree))).json()
    changed = {**tree, "4": tree["4"].at[3, 5].add(1)}
    (change,) = lw.diff(tree, changed).of("changed")
    (expected,) = lw.diff(whole(tree), whole(changed)).of("changed")
    assert change == expected
    assert change.path == "4"
    bad = {**tree, "2": tree["2"].at[1, 1].set(jnp.nan)}
    assert lw.check(bad).json() == lw.check(whole(bad)).json()


def test_diff_of_large_sharded_arrays() -> None:
    array = jax.random.normal(jax.random.key(0), (1024, 4096))  # several pieces
    changed = array.at[100, 3].add(1).at[1000, 4000].add(2)
    expected = lw.diff({"w": array}, {"w": changed}).json()
    first, second = {"w": on_mesh(array, P("dp", "tp"))}, {"w": on_mesh(changed, P("tp"))}
    assert lw.diff(first, second).json() == expected
    assert lw.diff(first, {"w": changed}).json() == expected
    assert lw.diff({"w": array}, second).json() == expected


def test_initialize_average_and_clip_keep_shardings() -> None:
    tree = model()
    rule = lw.Rule("**", init="normal", std=0.5)
    filled = lw.initialize(tree, [rule], seed=1)
    expected = lw.initialize(jax.tree.map(np.array, tree), [rule], seed=1)
    average = lw.Average(tree, decay=0.5)
    average.update(tree)
    average.update(filled)
    clipped = lw.clip(tree, 1.0).clipped
    factor = 1 / np.sqrt(sum(float((np.asarray(array, np.float64) ** 2).sum()) for array in tree.values()))
    with average.applied(tree) as averaged:
        for name, array in tree.items():
            assert filled[name].sharding == averaged[name].sharding == clipped[name].sharding == array.sharding
            assert np.array_equal(np.asarray(filled[name]), expected[name])
            assert np.allclose(np.asarray(averaged[name]), (np.asarray(array) + expected[name]) / 2, atol=1e-6)
            assert np.allclose(np.asarray(clipped[name]), np.asarray(array) * factor)


# -- several processes -----------------------------------------------------------------------------------------------

_PROCESS = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, numpy as np
jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import leafwise as lw

sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), P("x"))
values = np.arange(32, dtype=np.float32).reshape(8, 4)
tree = {"w": jax.make_array_from_callback((8, 4), sharding, lambda index: values[index])}
leaf = lw.tree(tree)["w"]
print(leaf.sharding, leaf.nbytes, leaf.local_nbytes)
print(lw.tree(tree).text(width=200).splitlines()[-1])
path = f"{sys.argv[3]}/{sys.argv[2]}.safetensors"
for refused in (
    lambda: lw.save(tree, path),
    lambda: lw.load(tree, {"w": values}),
    lambda: leaf.numpy(),
    lambda: lw.initialize(tree, [lw.Rule("w", init="zeros")]),
    lambda: lw.diff(tree, {"w": values}),
):
    try:
        refused()
        print("not refused")
    except lw.Error as error:
        print(type(error).__name__, "w" in str(error), "process_allgather" in str(error))
print(os.path.exists(path))
"""


def test_arrays_of_several_processes_are_only_shown(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _PROCESS, address, str(number), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
        )
        for number in range(2)
    ]
    outputs = [process.communicate(timeout=600) for process in processes]
    for process, (output, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
        shown, footer, *refusals, exists = output.splitlines()
        assert shown == "shard(0) over x=4 128 64"
        assert footer.startswith("32 parameters · 1 leaf · 128 B, 64 B in this process · shard(0) over x=4")
        assert all(line.endswith("True True") for line in refusals), refusals
        assert len(refusals) == 5
        assert exists == "False"
