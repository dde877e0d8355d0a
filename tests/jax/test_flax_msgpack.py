"""Files that Flax wrote, from models, runs and odd values; and files that it never writes."""

from pathlib import Path
from typing import Any

import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import serialization
from flax.training.train_state import TrainState

import leafwise as lw


class Net(linen.Module):
    @linen.compact
    def __call__(self, x: Any) -> Any:
        return linen.Dense(3)(linen.LayerNorm()(linen.Dense(5)(x)))


def written(path: Path, value: Any) -> Path:
    path.write_bytes(serialization.to_bytes(value))
    return path


@pytest.fixture
def state() -> TrainState:
    net = Net()
    params = net.init(jax.random.key(0), jnp.ones((2, 4)))
    return TrainState.create(apply_fn=net.apply, params=params, tx=optax.adam(1e-3)).apply_gradients(grads=params)


def test_a_run_opens_with_what_flax_restores(tmp_path: Path, state: TrainState) -> None:
    path = written(tmp_path / "state.msgpack", state)
    restored = serialization.msgpack_restore(path.read_bytes())
    flat = {".".join(map(str, keys)): value for keys, value in flattened(restored)}
    with lw.open(path) as t:
        arrays = {name: value for name, value in flat.items() if isinstance(value, np.ndarray)}
        assert {str(leaf.path) for leaf in t} == set(arrays)
        for name, array in arrays.items():
            assert t[name].numpy().tobytes() == array.tobytes(), name
            assert (t[name].shape, t[name].dtype) == (array.shape, array.dtype.name), name
        assert t["params"].counts.parameters == sum(leaf.size for leaf in jax.tree.leaves(state.params))


def flattened(value: Any, keys: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from flattened(inner, (*keys, key))
    else:
        yield keys, value


def test_parameters_load_into_a_model_of_linen(tmp_path: Path, state: TrainState) -> None:
    path = written(tmp_path / "model.msgpack", state.params)
    loaded = lw.load(jax.tree.map(jnp.zeros_like, state.params), path)
    same = jax.tree.map(lambda a, b: bool((a == b).all()), loaded, state.params)
    assert all(jax.tree.leaves(same))


def test_values_of_every_kind(tmp_path: Path) -> None:
    value = {
        "bfloat16": jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3),
        "float8": jnp.arange(4).astype(jnp.float8_e4m3fn),
        "empty": np.zeros((0, 3), np.float32),
        "turned": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "bool": np.array([True, False]),
        "scalar": np.float32(1.5),
        "complex": 1 + 2j,
        "none": None,
        "text": "ä" * 300,
        "bytes": b"\0\xff" * 40_000,
        "numbers": [0, -1, 127, -33, 128, 1 << 40, -(1 << 40), (1 << 64) - 1, 0.1, True],
        "nothing": {},
        "deep": {str(number): {"x": np.full(2, number)} for number in range(20)},
        "many": {str(number): number for number in range(70_000)},
    }
    path = written(tmp_path / "a.msgpack", value)
    with lw.open(path) as t:
        for name in ("bfloat16", "float8", "empty", "turned", "bool"):
            array = np.asarray(value[name])
            assert t[name].numpy().tobytes() == array.tobytes(), name
            assert t[name].dtype == array.dtype.name
        assert t["scalar"].numpy() == np.float32(1.5)
        assert t["deep.19.x"].numpy().tolist() == [19, 19]
        content = t.columns.node_objects[0].content
    for name in ("complex", "none", "text", "bytes", "nothing", "many"):
        assert content[name] == value[name], name
    assert list(content["numbers"].values()) == value["numbers"]  # Flax makes maps of lists


def test_an_array_that_flax_stores_in_chunks_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization, "MAX_CHUNK_SIZE", 1_000)
    value = {"a": {"b": np.random.default_rng(0).normal(size=(31, 3, 7))}, "small": np.ones(3)}
    path = written(tmp_path / "a.msgpack", value)
    with lw.open(path) as t:
        assert t["a.b"].shape == (31, 3, 7)
        np.testing.assert_array_equal(t["a.b"].numpy(), value["a"]["b"])
        np.testing.assert_array_equal(t["a.b"].numpy((slice(4, 9), 1)), value["a"]["b"][4:9, 1])
    assert lw.stats(path)["a.b"].max == value["a"]["b"].max()


def array(shape: bytes, dtype: bytes, data: bytes) -> bytes:
    body = b"\x93" + shape + dtype + data
    return b"\x81\xa1a\xc7" + bytes([len(body)]) + b"\x01" + body


HOSTILE = {
    "deeply nested": (b"\x81\xa1a" * 200 + b"\x80", "inside each other"),
    "a long list": (b"\x81\xa1a\xdd\xff\xff\xff\xff" + b"\xc0" * 50, "do not fit into the file"),
    "a long map": (b"\xdf\xff\xff\xff\xff\xa1a" + b"\xc0" * 50, "do not fit into the file"),
    "a long text": (b"\x81\xa1a\xdb\xff\xff\xff\xffabc", "should follow|more than"),
    "a long array": (array(b"\x91\x04", b"\xa7float32", b"\xc4\xff"), "does not consist|should follow"),
    "an array of another size": (array(b"\x91\x05", b"\xa7float32", b"\xc4\x10" + bytes(16)), "has 16 bytes"),
    "a negative size": (array(b"\x91\xff", b"\xa7float32", b"\xc4\x10" + bytes(16)), "the shape of an array"),
    "an endless size": (array(b"\x92\x00\xcf" + b"\xff" * 8, b"\xa7float32", b"\xc4\x00"), "the shape|elements"),
    "another extension": (b"\x81\xa1a\xd4\x07\x00", "that Flax does not have"),
    "an array that ends early": (array(b"\x91\x01", b"\xa5uint8", b"\xc4\x01\x00\xc0"), "ends at byte"),
    "the same key twice": (b"\x82\xa1a\xc0\xa1a\xc0", "twice"),
    "a key that is an array": (b"\x82\xa1b\xc0\x90\xc0", "a key is a list"),
    "text that is not UTF-8": (b"\x81\xa1a\xa1\xff", "not UTF-8"),
    "an unused byte": (b"\x81\xa1a\xc1", "none begins with 0xc1"),
    "more after the end": (b"\x81\xa1a\xc0\xc0", "follow the end"),
    "cut off": (b"\x82\xa1a\xc0", "cut off"),
    "chunks without a shape": (b"\x81\xa1a\x81\xb9__msgpack_chunked_array__\xc3", "has no shape"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_flax_does_not_write_is_an_error(name: str, tmp_path: Path) -> None:
    data, cause = HOSTILE[name]
    (tmp_path / "a.msgpack").write_bytes(data)
    with pytest.raises(lw.FileError, match=cause):
        lw.open(tmp_path / "a.msgpack")


def test_a_dtype_that_leafwise_does_not_know_is_shown_and_not_read(tmp_path: Path) -> None:
    (tmp_path / "a.msgpack").write_bytes(array(b"\x91\x02", b"\xa6posit8", b"\xc4\x02ab"))
    with lw.open(tmp_path / "a.msgpack") as t:
        assert t["a"].dtype == "posit8"
        with pytest.raises(lw.Error, match="posit8"):
            t["a"].numpy()
