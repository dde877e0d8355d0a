"""Saving and loading JAX arrays of every dtype and shape."""

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import leafwise as lw
from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.homes.jax.arrays import HOME

DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "bool",
    "int8",
    "int16",
    "int32",
    "uint8",
    "uint16",
    "uint32",
    "complex64",
]
WIDE = ["float64", "int64", "uint64"]
SHAPES = [(), (1,), (0,), (3, 0, 2), (5,), (8, 16), (2, 8, 4)]


def drawn(dtype: Any, shape: tuple[int, ...]) -> Any:
    """A NumPy array of arbitrary bits, but not of those that are no value of a dtype."""
    itemsize = np.dtype(dtype).itemsize
    bits = np.random.default_rng(1).integers(0, 256, (*shape, itemsize), np.uint8)
    if dtype == np.dtype("bool"):
        bits &= 1
    return bits.view(dtype).reshape(shape)


def bits(array: Any) -> tuple[Any, ...]:
    values = np.asarray(array)
    return values.dtype, values.shape, values.tobytes()


def arrays(dtype: str) -> dict[str, Any]:
    return {str(shape): jnp.asarray(drawn(jnp.dtype(dtype), shape)) for shape in SHAPES}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_shape_survives_a_file(tmp_path: Path, dtype: str) -> None:
    tree = arrays(dtype)
    path = lw.save(tree, tmp_path / "a.safetensors")
    numpy = lw.save({name: np.asarray(array) for name, array in tree.items()}, tmp_path / "b.safetensors")
    assert Path(path).read_bytes() == Path(numpy).read_bytes()
    for target in (jax.tree.map(jnp.zeros_like, tree), jax.eval_shape(lambda: tree)):
        loaded = lw.load(target, path)
        for name, array in tree.items():
            assert isinstance(loaded[name], jax.Array)
            assert bits(loaded[name]) == bits(array)
    lw.verify(path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_survives_when_it_is_sharded(tmp_path: Path, dtype: str) -> None:
    mesh = Mesh(np.array(jax.devices("cpu")).reshape(2, 4), ("x", "y"))
    for shape, spec in {
        (8, 16): ("y", "x"),
        (2, 8, 4): (None, "y", "x"),
        (16,): ("x",),
        (2, 0, 4): ("x", None, "y"),
    }.items():
        array = jax.device_put(jnp.asarray(drawn(jnp.dtype(dtype), shape)), NamedSharding(mesh, PartitionSpec(*spec)))
        path = lw.save({"w": array}, tmp_path / "a.safetensors")
        whole = lw.save({"w": np.asarray(array)}, tmp_path / "b.safetensors")
        assert Path(path).read_bytes() == Path(whole).read_bytes()
        loaded = lw.load({"w": jax.device_put(jnp.zeros_like(array), array.sharding)}, path)["w"]
        assert bits(loaded) == bits(array)
        assert loaded.sharding == array.sharding


def test_wide_dtypes_survive_where_jax_has_them(tmp_path: Path) -> None:
    with jax.enable_x64(True):
        for dtype in WIDE:
            tree = {"w": jnp.asarray(drawn(np.dtype(dtype), (4, 6)))}
            path = lw.save(tree, tmp_path / "a.safetensors")
            assert bits(lw.load({"w": jnp.zeros((4, 6), dtype)}, path)["w"]) == bits(tree["w"])


def test_a_saved_file_has_the_values_of_a_transposed_array(tmp_path: Path) -> None:
    array = jax.jit(jnp.transpose)(jnp.arange(24.0).reshape(4, 6))
    path = lw.save({"w": array}, tmp_path / "a.safetensors")
    assert np.array_equal(lw.open(path)["w"].numpy(), np.asarray(array))


@pytest.mark.parametrize("spec", [(), ("x",), (None, "x"), ("x", "y"), (("y", "x"),)], ids=str)
def test_a_load_transposes_by_axes(tmp_path: Path, spec: tuple[Any, ...]) -> None:
    linear = eqx.nn.Linear(16, 24, key=jax.random.key(0))
    path = lw.save(linear, tmp_path / "a.safetensors")
    mesh = Mesh(np.array(jax.devices("cpu")).reshape(2, 4), ("x", "y"))
    kernel = jax.device_put(jnp.zeros((16, 24), jnp.bfloat16), NamedSharding(mesh, PartitionSpec(*spec)))
    target = {"kernel": kernel, "bias": jnp.zeros(24)}
    for source in (path, linear):
        loaded = lw.load(target, source, rename={"weight": "kernel"}, cast=True)
        assert bits(loaded["kernel"]) == bits(linear.weight.T.astype(jnp.bfloat16))
        assert loaded["kernel"].sharding == kernel.sharding


def test_a_damaged_file_changes_nothing(tmp_path: Path) -> None:
    tree = {"a": jnp.ones((300, 300)), "b": jnp.ones(5)}
    path = Path(lw.save(tree, tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-50] ^= 4
    path.write_bytes(data)
    target = jax.tree.map(jnp.zeros_like, tree)
    with pytest.raises(lw.ChecksumError, match="damaged"):
        lw.load(target, path)
    assert not any(np.asarray(array).any() for array in target.values())


def test_a_model_is_loaded_into_memory_that_jax_uses(tmp_path: Path) -> None:
    """The file is read once, into the memory that the new arrays have."""
    tree = {str(number): jnp.full((1 << 20,), number, jnp.float32) for number in range(16)}
    path = lw.save(tree, tmp_path / "a.safetensors")
    nbytes = sum(array.nbytes for array in tree.values())
    tracemalloc.start()
    loaded = lw.load(jax.eval_shape(lambda: tree), path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert nbytes <= peak < 1.25 * nbytes
    assert all(bits(loaded[name]) == bits(array) for name, array in tree.items())


def test_a_save_copies_almost_nothing(tmp_path: Path) -> None:
    tree = {str(number): jnp.full((1 << 22,), number, jnp.float32) for number in range(4)}
    tracemalloc.start()
    lw.save(tree, tmp_path / "a.safetensors")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < tree["0"].nbytes


def test_host_memory_becomes_the_array() -> None:
    value = jnp.zeros((64, 8), device=jax.devices("cpu")[0])
    rebuilding = HOME.capability(Rebuilding)
    ((host_part,),) = rebuilding.host_parts([value])
    host_part.value[...] = 3
    (array,) = rebuilding.from_host_parts([value], [[host_part]])
    assert array.unsafe_buffer_pointer() == host_part.value.ctypes.data
    assert not host_part.value.flags.writeable
    assert (np.asarray(array) == 3).all()


def test_arrays_are_compared_where_they_are() -> None:
    array = jax.device_put(jnp.arange(12.0).reshape(3, 4), jax.devices("cpu")[0])
    run = HOME.capability(Comparing).contiguous_run(array)
    assert run is not None
    assert (run.address, run.size, run.dtype) == (array.unsafe_buffer_pointer(), 12, "float32")
    (piece,) = HOME.capability(Saving).pieces(array)
    assert np.frombuffer(piece, np.uint8).ctypes.data == array.unsafe_buffer_pointer()


def test_a_variable_with_a_numpy_array_is_saved_as_it_is_now(tmp_path: Path) -> None:
    holder = nnx.Dict(w=nnx.Param(np.arange(6.0, dtype=np.float32).reshape(2, 3)))
    path = lw.save(holder, tmp_path / "a.safetensors")
    holder["w"].set_raw_value(np.zeros((2, 3), np.float32))
    lw.load(holder, path)
    assert np.array_equal(np.asarray(holder["w"].get_value()), np.arange(6.0).reshape(2, 3))


def test_deleted_and_abstract_arrays_are_refused(tmp_path: Path) -> None:
    donated = jnp.ones(4)
    donated.delete()
    with pytest.raises(lw.WalkError, match=r"cannot save w: .*donated"):
        lw.save({"w": donated}, tmp_path / "a.safetensors")
    with pytest.raises(lw.WalkError, match=r"cannot save w: .*meta"):
        lw.save({"w": jax.ShapeDtypeStruct((4,), jnp.float32)}, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


def test_keys_survive_a_file(tmp_path: Path) -> None:
    tree = {"key": jax.random.key(7), "keys": jax.random.split(jax.random.key(1), 4)}
    path = lw.save(tree, tmp_path / "a.safetensors")
    loaded = lw.load({"key": jax.random.key(0), "keys": jax.random.split(jax.random.key(0), 4)}, path)
    for name, key in tree.items():
        assert loaded[name].dtype == key.dtype
        assert np.array_equal(jax.random.key_data(loaded[name]), jax.random.key_data(key))


def test_files_of_jax_need_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, jax.numpy as jnp, leafwise as lw\n"
        f"lw.load({{'w': jnp.zeros(3)}}, lw.save({{'w': jnp.ones(3)}}, {str(tmp_path / 'a.safetensors')!r}))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "False"
