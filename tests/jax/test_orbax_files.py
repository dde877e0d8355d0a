"""Orbax checkpoints: those that Orbax writes open with the paths, dtypes and values of the tree, and those that
leafwise writes are restored by Orbax. A save leaves the old checkpoint or the new one."""

import errno
import json
import os
import pickle
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tests.jax import orbax_folders
from tests.jax.orbax_folders import WRITERS, flat, same, standard

import leafwise as lw
from leafwise.cli import main
from leafwise.files.orbax import zarr_arrays
from leafwise.files.sources import disk as local
from leafwise.files.sources.disk import Disk

# -- reading what Orbax writes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
def test_a_checkpoint_has_the_paths_dtypes_and_values_of_the_tree(tmp_path: Path, writer: str) -> None:
    value = orbax_folders.tree()
    WRITERS[writer](tmp_path / "run", value)
    expected = flat(value)
    with lw.open(tmp_path / "run") as t:
        assert {str(leaf.path) for leaf in t} == set(expected)
        for name, array in expected.items():
            assert t[name].shape == array.shape
            assert t[name].dtype == str(array.dtype)
            assert same(t[name].value, array), name
        assert (t["step"], t["lr"], t["is_best"], t["nothing"]) == (5, 0.25, True, None)
        assert (t["empty"], t["no_layers"]) == ({}, [])
        assert t["opt.0.mu.w"].shape == (2, 3)


@pytest.mark.parametrize("writer", ["OCDBT and zarr", "zarr3", "version 1"])
def test_texts_are_plain_values(tmp_path: Path, writer: str) -> None:
    WRITERS[writer](tmp_path / "run", {"w": jnp.ones(2), "config": {"name": "small", "path/of": "text"}})
    with lw.open(tmp_path / "run") as t:
        assert (t["config.name"], t["config.path/of"]) == ("small", "text")


def test_only_headers_are_read_on_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standard(tmp_path / "run", {"w": jnp.ones((4, 5)), "b": jnp.ones(3)})
    read = zarr_arrays.ZarrArray.read
    reads: list[Any] = []

    def counted(self: Any, index: Any = ()) -> Any:
        reads.append(index)
        return read(self, index)

    monkeypatch.setattr(zarr_arrays.ZarrArray, "read", counted)
    with lw.open(tmp_path / "run") as t:
        assert t["w"].shape == (4, 5)
        assert str(t)
        assert reads == []


@pytest.mark.parametrize("writer", ["StandardCheckpointer", "zarr3"])
@pytest.mark.parametrize(
    "index",
    [
        1,
        -1,
        slice(1, 3),
        (slice(None), 2),
        (slice(3, 0, -2), slice(None, None, 3)),
        (2, 3),
        slice(3, 1),
        slice(None, None, -2),
        ...,
        (),
    ],
    ids=str,
)
def test_a_part_is_read_by_its_index(tmp_path: Path, writer: str, index: Any) -> None:
    array = np.arange(20, dtype=np.float32).reshape(4, 5)
    WRITERS[writer](tmp_path / "run", {"w": array})
    with lw.open(tmp_path / "run") as t:
        (stored,) = t.columns.row_values
        assert same(stored[index], array[index])


def test_arrays_in_chunks_are_read_in_rows_of_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(7 * 6, dtype=np.int32).reshape(7, 6)
    monkeypatch.setattr(zarr_arrays, "CHUNK", 48)
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_zarr3=True)) as checkpointer:
        chunked = jax.tree.map(lambda _: ocp.SaveArgs(chunk_byte_size=64), {"w": 0})
        checkpointer.save(tmp_path / "run", args=ocp.args.PyTreeSave({"w": array}, save_args=chunked))
    with lw.open(tmp_path / "run") as t:
        (stored,) = t.columns.row_values
        assert stored.chunk_shape[0] < 7
        parts = list(stored.parts())
        assert len(parts) > 1
        assert same(np.concatenate(parts), array)


def test_an_open_array_can_be_sent_to_another_process(tmp_path: Path) -> None:
    standard(tmp_path / "run", {"w": jnp.arange(6.0)})
    with lw.open(tmp_path / "run") as t:
        (stored,) = t.columns.row_values
        assert same(pickle.loads(pickle.dumps(stored)).read(), np.arange(6, dtype=np.float32))


def test_typed_random_keys_are_their_data_and_stay_keys_in_copies(tmp_path: Path) -> None:
    keys = {"rng": jax.random.split(jax.random.key(3), 4), "w": jnp.ones(2)}
    standard(tmp_path / "run", keys)
    with lw.open(tmp_path / "run") as t:
        assert same(t["rng"].value, jax.random.key_data(keys["rng"]))
        assert t["rng"].role == "rng.key.threefry2x32"
        lw.save(t, tmp_path / "copy", format="orbax")
    blank = {"rng": jax.random.split(jax.random.key(0), 4), "w": jnp.zeros(2)}
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "copy", blank)
    assert jnp.issubdtype(restored["rng"].dtype, jax.dtypes.prng_key)
    assert same(jax.random.key_data(restored["rng"]), jax.random.key_data(keys["rng"]))


def test_the_verbs_take_a_folder_of_orbax(tmp_path: Path) -> None:
    value = {"dense": {"kernel": jnp.arange(12.0).reshape(3, 4), "bias": jnp.zeros(4)}}
    standard(tmp_path / "run", value)
    assert lw.stats(tmp_path / "run")["dense.kernel"].mean == 5.5
    assert lw.check(tmp_path / "run") is not None
    target = {"dense": {"kernel": np.zeros((3, 4), np.float32), "bias": np.ones(4, np.float32)}}
    lw.load(target, tmp_path / "run")
    assert same(target["dense"]["kernel"], value["dense"]["kernel"])
    assert same(target["dense"]["bias"], value["dense"]["bias"])
    assert str(lw.diff(target, tmp_path / "run")).startswith("2 leaves, all the same")
    lw.edit(tmp_path / "run", tmp_path / "kernel.safetensors", keep="**.kernel")
    with lw.open(tmp_path / "kernel.safetensors") as t:
        assert [str(leaf.path) for leaf in t] == ["dense.kernel"]


def test_small_integers_are_read_but_not_converted(tmp_path: Path) -> None:
    standard(tmp_path / "run", {"i4": jnp.arange(3, dtype=jnp.int4), "w": jnp.ones(2)})
    target = {"i4": np.zeros(3, ml_dtypes.int4), "w": np.zeros(2, np.float32)}
    lw.load(target, tmp_path / "run")
    assert same(target["i4"], np.arange(3).astype(ml_dtypes.int4))
    for format_name in ("safetensors", "orbax"):
        with pytest.raises(lw.EditError, match="leafwise does not convert int4"):
            lw.edit(tmp_path / "run", tmp_path / "copy", format=format_name)  # type: ignore[arg-type]
        with pytest.raises(lw.Error, match="cannot store int4"):
            lw.save(lw.open(tmp_path / "run"), tmp_path / "copy", format=format_name)  # type: ignore[call-overload]
    assert "there are no statistics of int4" in str(lw.stats(tmp_path / "run"))
    assert os.listdir(tmp_path) == ["run"]


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "float8_e3m4"])
def test_floats_that_other_formats_lack_are_converted_like_quantized_ones(tmp_path: Path, dtype: str) -> None:
    array = np.asarray([0.5, 1, -2], np.float32)
    standard(tmp_path / "run", {"w": array.astype(getattr(ml_dtypes, dtype))})
    lw.edit(tmp_path / "run", tmp_path / "w.safetensors")
    with lw.open(tmp_path / "w.safetensors") as t:
        assert same(t["w"].value, array)


# -- steps, and folders of steps -----------------------------------------------------------------------------------


def test_a_folder_of_steps_lists_them(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2, 10):
            manager.save(step, args=ocp.args.StandardSave({"w": jnp.full(2, float(step))}))
    with pytest.raises(lw.FileError, match=r"3 checkpoints; open one of them: .*run/1', .*run/2', .*run/10'"):
        lw.open(tmp_path / "run")
    with lw.open(tmp_path / "run" / "10") as t:
        assert same(t["w"].value, np.full(2, 10, np.float32))


def test_a_step_with_several_items_has_a_node_for_each(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        items = {
            "state": ocp.args.StandardSave({"w": jnp.ones(2)}),
            "params": ocp.args.PyTreeSave({"w": jnp.zeros(3)}),
            "config": ocp.args.JsonSave({"width": 4}),
            "rng": ocp.args.JaxRandomKeySave(jax.random.key(1)),
        }
        manager.save(3, args=ocp.args.Composite(**items))
    with lw.open(tmp_path / "run" / "3") as t:
        assert {str(leaf.path): leaf.shape for leaf in t} == {
            "state.w": (2,),
            "params.w": (3,),
            "rng.jax_random_key.checkpoint": (2,),
        }
        assert t["config.width"] == 4
    with lw.open(tmp_path / "run" / "3" / "params") as t:
        assert [str(leaf.path) for leaf in t] == ["w"]


def test_metrics_beside_the_only_item_are_metadata(tmp_path: Path) -> None:
    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"])
    with ocp.CheckpointManager(tmp_path / "run", options=options) as manager:
        manager.save(3, args=ocp.args.StandardSave({"w": jnp.ones(2)}), metrics={"loss": 0.5})
    with lw.open(tmp_path / "run") as t:
        assert [str(leaf.path) for leaf in t] == ["w"]
        assert t["__metadata__.metrics.loss"] == 0.5


def test_items_without_arrays_are_refused(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, args=ocp.args.Composite(config=ocp.args.JsonSave({"width": 4})))
    with pytest.raises(lw.FileError, match=r"none of the items .* contains arrays; it has 'config'"):
        lw.open(tmp_path / "run" / "3")


# -- saves that are not complete -----------------------------------------------------------------------------------


def test_a_folder_that_orbax_is_writing_is_refused(tmp_path: Path) -> None:
    standard(tmp_path / "run", {"w": jnp.ones(2)})
    os.rename(tmp_path / "run", tmp_path / "run.orbax-checkpoint-tmp-12")
    for path in (tmp_path / "run.orbax-checkpoint-tmp-12", tmp_path):
        with pytest.raises(lw.FileError, match="not saved completely, or is being saved"):
            lw.open(path)
    standard(tmp_path / "older", {"w": jnp.ones(2)})
    with lw.open(tmp_path) as t:  # what is being written is not one of the checkpoints yet
        assert len(t) == 1


def test_of_many_checkpoints_only_the_unfinished_one_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        standard(tmp_path / name, {"w": jnp.ones(2)})
    os.rename(tmp_path / "c", tmp_path / "c.orbax-checkpoint-tmp")
    (tmp_path / "c.orbax-checkpoint-tmp" / "_METADATA").unlink()
    (tmp_path / "c.orbax-checkpoint-tmp" / "_CHECKPOINT_METADATA").unlink()
    with ThreadPoolExecutor(1) as executor:
        fleet = lw.stats(str(tmp_path / "**"), executor=executor)
    assert [os.path.basename(path) for path in fleet] == ["a", "b"]
    assert [os.path.basename(path) for path in fleet.errors] == ["c.orbax-checkpoint-tmp"]


@pytest.mark.parametrize("lost", ["manifest.ocdbt", "_METADATA"])
def test_a_checkpoint_of_which_files_are_missing_is_refused(tmp_path: Path, lost: str) -> None:
    standard(tmp_path / "run", {"w": jnp.ones(2)})
    (tmp_path / "run" / lost).unlink()
    with pytest.raises(lw.FileError, match=f"not saved completely.* it has no {lost}"):
        lw.open(tmp_path / "run")


def test_a_save_that_was_not_committed_is_refused(tmp_path: Path) -> None:
    standard(tmp_path / "run", {"w": jnp.ones(2)})
    step = tmp_path / "run" / "_CHECKPOINT_METADATA"
    step.write_text(json.dumps({**json.loads(step.read_text()), "commit_timestamp_nsecs": None}))
    with lw.open(tmp_path / "run") as t:  # there is still the file that says so
        assert len(t) == 1
    (tmp_path / "run" / "commit_success.txt").unlink()
    with pytest.raises(lw.FileError, match=r"not saved completely.*commit_timestamp_nsecs"):
        lw.open(tmp_path / "run")


def test_a_checkpoint_that_is_replaced_or_closed_is_not_read_any_more(tmp_path: Path) -> None:
    lw.save({"w": np.ones(2)}, tmp_path / "run", format="orbax")
    t = lw.open(tmp_path / "run")
    lw.save({"w": np.zeros(2)}, tmp_path / "run", format="orbax")
    with pytest.raises(lw.FileError, match=r"run' was changed since it was opened|run': w cannot be read"):
        np.asarray(t["w"].value)
    t.close()
    t = lw.open(tmp_path / "run")
    leaf = t["w"]
    t.close()
    with pytest.raises(lw.FileError, match="closed"):
        np.asarray(leaf.value)


def test_without_tensorstore_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    standard(tmp_path / "run", {"w": jnp.ones(2)})
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(lw.Error, match=r"pip install 'leafwise\[orbax\]'"):
        lw.open(tmp_path / "run")
    with pytest.raises(lw.Error, match=r"pip install 'leafwise\[orbax\]'"):
        lw.save({"w": np.ones(2)}, tmp_path / "new", format="orbax")
    assert not (tmp_path / "new").exists()


def test_neither_jax_nor_orbax_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, numpy as np, leafwise as lw\n"
        f"lw.save({{'w': np.ones(2)}}, {str(tmp_path / 'run')!r}, format='orbax')\n"
        f"assert lw.open({str(tmp_path / 'run')!r})['w'].shape == (2,)\n"
        "assert not {'jax', 'orbax', 'torch'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)


# -- writing -------------------------------------------------------------------------------------------------------


def source() -> dict[str, Any]:
    return {
        "params": {
            "dense": {"kernel": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.ones(4, ml_dtypes.bfloat16)},
            "f8": np.ones(3, ml_dtypes.float8_e5m2),
        },
        "layers": [np.ones(2), {"w": np.zeros((1, 3, 2), np.int8)}, (np.asarray(True), 4)],
        "no_rows": np.zeros((0, 3), np.float16),
        "complex": np.asarray([1 + 2j]),
        "dotted.key": np.ones(1),
        "step": 7,
        "lr": 1e-3,
        "is_best": True,
        "name": "small",
        "nothing": None,
        "empty": {},
        "shape": [2, 3],
    }


def test_orbax_restores_what_leafwise_saves(tmp_path: Path) -> None:
    expected = source()
    assert lw.save(source(), tmp_path / "run", format="orbax") == str(tmp_path / "run")
    for checkpointer in (ocp.StandardCheckpointer(), ocp.PyTreeCheckpointer()):
        with checkpointer:
            restored = checkpointer.restore(tmp_path / "run")
        expected["layers"][2] = list(expected["layers"][2])  # Orbax makes lists of tuples
        assert jax.tree.structure(restored) == jax.tree.structure(expected)
        for ours, theirs in zip(jax.tree.leaves(expected), jax.tree.leaves(restored), strict=True):
            assert same(ours, theirs) if isinstance(ours, np.ndarray) else (type(ours), ours) == (type(theirs), theirs)


def test_version_1_of_orbax_loads_what_leafwise_saves(tmp_path: Path) -> None:
    import orbax.checkpoint.experimental.v1 as orbax_v1

    lw.save({"a": {"w": np.ones((2, 3))}, "step": 4}, tmp_path / "run", format="orbax")
    loaded: Any = orbax_v1.load(tmp_path / "run")
    assert same(loaded["a"]["w"], np.ones((2, 3)))
    assert loaded["step"] == 4


def test_orbax_restores_into_a_tree_of_jax_arrays(tmp_path: Path) -> None:
    lw.save({"w": np.arange(6, dtype=np.float32), "step": 3}, tmp_path / "run", format="orbax")
    with ocp.StandardCheckpointer() as checkpointer:
        restored = checkpointer.restore(tmp_path / "run", {"w": jnp.zeros(6), "step": 0})
    assert isinstance(restored["w"], jax.Array)
    assert same(restored["w"], np.arange(6, dtype=np.float32))


@pytest.mark.parametrize("shape", [(3, 1 << 20), (1, 5, 700_000), (3_000_001,), (1 << 21,)], ids=str)
def test_large_arrays_are_cut_into_chunks(tmp_path: Path, shape: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    lw.save({"w": array}, tmp_path / "run", format="orbax")
    with lw.open(tmp_path / "run") as t:
        assert same(t["w"].value, array)
        (stored,) = t.columns.row_values
        assert stored.reads_parts
    with ocp.StandardCheckpointer() as checkpointer:
        assert same(checkpointer.restore(tmp_path / "run")["w"], array)


def test_a_saved_checkpoint_opens_with_its_metadata_and_loads(tmp_path: Path) -> None:
    lw.save(source(), tmp_path / "run", format="orbax", metadata={"made by": "me"})
    with lw.open(tmp_path / "run") as t:
        assert t["__metadata__.made by"] == "me"
        assert (t["name"], t["step"], t["shape"]) == ("small", 7, [2, 3])
    target = source()
    target["params"]["dense"]["kernel"][:] = 0
    lw.load(target, tmp_path / "run")
    assert same(target["params"]["dense"]["kernel"], source()["params"]["dense"]["kernel"])


def test_plain_values_keep_types_that_orbax_does_not_have(tmp_path: Path) -> None:
    values = {"betas": (0.9, 0.99), "by": {1: [np.float32(2), ()], "x": None}, "nan": (float("nan"), -0.0)}
    lw.save({"w": np.ones(2), **values}, tmp_path / "run", format="orbax")
    with lw.open(tmp_path / "run") as t:
        assert repr({name: t[name] for name in ("betas", "nan")}) == repr({"betas": (0.9, 0.99), "nan": values["nan"]})
        assert repr(t.columns.node_objects[0].content["by"]) == repr(values["by"])
    metadata = tmp_path / "run" / "_METADATA"
    changed = json.loads(metadata.read_text())
    changed["custom_metadata"]["leafwise"][0] = [["betas"], {"tuple": [0.5, 0.99]}]
    metadata.write_text(json.dumps(changed))
    with lw.open(tmp_path / "run") as t:
        assert t["betas"] == [0.9, 0.99]  # what Orbax restores is what counts
    changed["custom_metadata"]["leafwise"][0] = [["betas"], {"unknown": 3}]
    metadata.write_text(json.dumps(changed))
    with pytest.raises(lw.FileError, match="leafwise's entry in it cannot be read"):
        lw.open(tmp_path / "run")


def test_a_selection_of_a_list_becomes_a_dict_because_orbax_would_close_the_gap(tmp_path: Path) -> None:
    lw.save({"layers": [np.ones(1), np.ones(2), np.ones(3)]}, tmp_path / "run", where="layers.2", format="orbax")
    with ocp.StandardCheckpointer() as checkpointer:
        assert jax.tree.map(np.shape, checkpointer.restore(tmp_path / "run")) == {"layers": {"2": (3,)}}


def test_tied_leaves_are_stored_once_unless_copies_are_asked_for(tmp_path: Path) -> None:
    shared = np.arange(4.0)
    model = {"embed": shared, "head": shared}
    lw.save(model, tmp_path / "once", format="orbax")
    lw.save(model, tmp_path / "copies", format="orbax", ties="copy")
    with ocp.StandardCheckpointer() as checkpointer:
        once, copies = checkpointer.restore(tmp_path / "once"), checkpointer.restore(tmp_path / "copies")
    assert list(once) == ["embed"]
    assert same(copies["embed"], shared)
    assert same(copies["head"], shared)


def test_the_command_line_converts_in_both_directions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    standard(tmp_path / "orbax", {"a": {"w": jnp.arange(3.0)}})
    assert main(["convert", str(tmp_path / "orbax"), str(tmp_path / "a.safetensors")]) == 0
    assert main(["convert", str(tmp_path / "a.safetensors"), str(tmp_path / "back"), "--format", "orbax"]) == 0
    with ocp.StandardCheckpointer() as checkpointer:
        assert same(checkpointer.restore(tmp_path / "back")["a"]["w"], np.arange(3, dtype=np.float32))
    assert "1 array" in capsys.readouterr().err


def test_values_that_orbax_cannot_store_are_refused_by_name(tmp_path: Path) -> None:
    for value, message in [(b"x", "a value of type bytes"), ({1, 2}, "a value of type set"), (1 << 70, "the number")]:
        with pytest.raises(lw.Error, match=f"cannot save config.x: Orbax cannot store {message}"):
            lw.save({"w": np.ones(2), "config": {"x": value}}, tmp_path / "run", format="orbax")
    with pytest.raises(lw.Error, match=r"cannot save config\.1: .*two values would have this name"):
        lw.save({"w": np.ones(2), "config": {1: 2, "1": 3}}, tmp_path / "run", format="orbax")
    assert os.listdir(tmp_path) == []


def test_arguments_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(lw.FileError, match="an Orbax checkpoint is a folder, and this is a file"):
        lw.save({"w": np.ones(2)}, tmp_path / "file", format="orbax")
    with pytest.raises(lw.FileError, match="there is no folder"):
        lw.save({"w": np.ones(2)}, tmp_path / "no" / "run", format="orbax")
    with pytest.raises(lw.QueryError, match="shard_size= is for safetensors"):
        lw.save({"w": np.ones(2)}, tmp_path / "run", format="orbax", shard_size="1GB")
    with pytest.raises(lw.FileError, match="local folders only"):
        lw.save({"w": np.ones(2)}, "s3://bucket/run", format="orbax")


def test_a_save_in_the_background_has_the_values_of_its_beginning(tmp_path: Path) -> None:
    model = {"w": np.ones(1 << 20, np.float32)}
    saving = lw.save(model, tmp_path / "run", format="orbax", background=True)
    model["w"][:] = 2
    saving.wait()
    with lw.open(tmp_path / "run") as t:
        assert np.asarray(t["w"].value).max() == 1


# -- the old checkpoint or the new one -----------------------------------------------------------------------------


class StoppingDisk(Disk):
    """Fails at one of the calls that change something, and at every later one if the machine has stopped."""

    def __init__(self, stop_at: int, is_crash: bool = False) -> None:
        self.stop_at, self.is_crash, self.calls = stop_at, is_crash, 0

    def _step(self) -> None:
        self.calls += 1
        if self.calls == self.stop_at or (self.is_crash and self.calls > self.stop_at):
            raise OSError(errno.EIO, "the disk failed")

    def make_folder(self, path: str) -> None:
        self._step()
        super().make_folder(path)

    def create(self, path: str, mode: int = 0o666) -> int:
        self._step()
        return super().create(path, mode)

    def write(self, file: int, data: Any) -> None:
        self._step()
        super().write(file, data)

    def sync(self, file: int) -> None:
        self._step()
        super().sync(file)

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def exchange_folders(self, first: str, second: str) -> int:
        self._step()
        return super().exchange_folders(first, second)

    def remove_tree(self, folder: str) -> None:
        self._step()
        super().remove_tree(folder)


def _steps(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    disk = StoppingDisk(-1)
    monkeypatch.setattr(local, "disk", disk)
    lw.save({"w": np.zeros(3)}, path, format="orbax")
    monkeypatch.setattr(local, "disk", Disk())
    return disk.calls


@pytest.mark.parametrize("is_crash", [False, True])
def test_whatever_fails_there_is_the_old_checkpoint_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_crash: bool
) -> None:
    path = tmp_path / "run"
    lw.save({"w": np.zeros(3)}, path, format="orbax")
    steps = _steps(path, monkeypatch)
    assert steps > 8
    for stop_at in range(1, steps + 1):
        lw.save({"w": np.zeros(3)}, path, format="orbax")
        monkeypatch.setattr(local, "disk", StoppingDisk(stop_at, is_crash))
        failed = False
        try:
            lw.save({"w": np.ones(3)}, path, format="orbax")
        except lw.FileError:
            failed = True
        monkeypatch.setattr(local, "disk", Disk())
        with lw.open(path) as t:
            values = np.asarray(t["w"].value)
        assert same(values, np.zeros(3)) if failed else same(values, np.ones(3))
    lw.save({"w": np.ones(3)}, path, format="orbax")
    # Leftovers are removed by the next save, except for a folder into which nothing was written yet.
    assert [folder.name for folder in tmp_path.iterdir() if list(folder.iterdir())] == ["run"]


def test_a_killed_save_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    lw.save({"w": np.zeros(3)}, tmp_path / "run", format="orbax")
    code = (
        "import os, numpy as np, leafwise as lw\n"
        "from leafwise.files.sources import disk\n"
        "disk.Disk.exchange_folders = lambda *arguments: os._exit(7)\n"
        f"lw.save({{'w': np.ones(3)}}, {str(tmp_path / 'run')!r}, format='orbax')\n"
    )
    assert subprocess.run([sys.executable, "-c", code], env=os.environ).returncode == 7
    assert len(os.listdir(tmp_path)) == 2
    with lw.open(tmp_path) as t:
        assert same(t["w"].value, np.zeros(3))
    lw.save({"w": np.ones(3)}, tmp_path / "run", format="orbax")
    assert os.listdir(tmp_path) == ["run"]


def test_a_checkpoint_of_orbax_is_replaced_and_other_folders_are_not(tmp_path: Path) -> None:
    standard(tmp_path / "run", {"w": jnp.zeros(3)})
    lw.save({"w": np.ones(3)}, tmp_path / "run", format="orbax")
    with ocp.StandardCheckpointer() as checkpointer:
        assert same(checkpointer.restore(tmp_path / "run")["w"], np.ones(3))
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(lw.FileError, match=r"contains 'notes.txt', and leafwise only replaces folders"):
        lw.save({"w": np.zeros(3)}, tmp_path / "run", format="orbax")
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    lw.save({"w": np.ones(3)}, tmp_path / "empty", format="orbax")
    shutil.rmtree(tmp_path / "run")
    with lw.open(tmp_path) as t:
        assert same(t["w"].value, np.ones(3))


def test_where_folders_cannot_be_exchanged_the_old_one_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lw.save({"w": np.zeros(3)}, tmp_path / "run", format="orbax")
    monkeypatch.setattr(Disk, "exchange_folders", lambda *arguments: errno.EINVAL)
    with pytest.raises(lw.FileError, match="cannot replace a folder in one step; choose a new name"):
        lw.save({"w": np.ones(3)}, tmp_path / "run", format="orbax")
    assert os.listdir(tmp_path) == ["run"]
    with lw.open(tmp_path / "run") as t:
        assert same(t["w"].value, np.zeros(3))
