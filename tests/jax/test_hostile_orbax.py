"""Orbax checkpoints that are damaged, or were made to do harm: each gives an `lw.Error` that names the file, and
nothing outside of the folder is read."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from tests.jax.orbax_folders import WRITERS, same, standard

import leafwise as lw
from leafwise.files.arrays.subarrays import subarray
from leafwise.files.reading.checked_reads import verify_subarrays

TREE: dict[str, Any] = {"a": {"w": jnp.arange(6.0).reshape(2, 3)}, "b": [jnp.ones(2), jnp.zeros(3)], "step": 5}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A checkpoint whose arrays are files of their own."""
    WRITERS["zarr"](tmp_path / "run", TREE)
    return tmp_path / "run"


def changed(path: Path, change: Callable[[Any], Any]) -> None:
    """Changes a JSON file."""
    content = json.loads(path.read_text())
    changed_content = change(content)
    path.write_text(json.dumps(content if changed_content is None else changed_content))


def read_all(path: Path) -> None:
    with lw.open(path) as t:
        for leaf in t:
            np.asarray(leaf.value)


# -- out of the folder ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", "/etc", "..", ".", "x//y", "secret\0", ""])
def test_names_that_lead_out_of_the_folder_are_refused(plain: Path, name: str) -> None:
    shutil.copytree(plain / "a.w", plain.parent / "secret")

    def rename(content: Any) -> None:
        content["tree_metadata"]["('a', 'w')"]["key_metadata"] = [{"key": name, "key_type": 2}]

    changed(plain / "_METADATA", rename)
    with pytest.raises(lw.FileError, match="cannot be the name of an array: it is not a path in the folder"):
        lw.open(plain)


@pytest.mark.parametrize("name", ["../secret", "http://localhost:1/x", "gs://bucket/x", "file:///etc", "x|zip:"])
def test_names_in_a_database_are_only_keys(tmp_path: Path, name: str) -> None:
    standard(tmp_path / "secret", {"w": jnp.ones(2)})
    standard(tmp_path / "run", TREE)

    def rename(content: Any) -> None:
        content["tree_metadata"]["('a', 'w')"]["key_metadata"] = [{"key": name, "key_type": 2}]

    changed(tmp_path / "run" / "_METADATA", rename)
    with pytest.raises(lw.FileError, match=r"run': .* cannot be read: NOT_FOUND.* in OCDBT database at local file"):
        lw.open(tmp_path / "run")


def test_descriptions_of_other_stores_are_not_followed(plain: Path) -> None:
    elsewhere = {"driver": "zarr", "kvstore": {"driver": "http", "base_url": "http://localhost:1"}}

    def add(content: Any) -> None:
        content |= {"kvstore": elsewhere, "ts_context": elsewhere, "base": "gs://bucket/"}
        content["tree_metadata"]["('a', 'w')"]["value_metadata"] |= {"kvstore": elsewhere, "tspec": elsewhere}

    changed(plain / "_METADATA", add)
    changed(plain / "a.w" / ".zarray", lambda content: content | {"kvstore": elsewhere, "base": "gs://bucket/"})
    with lw.open(plain) as t:
        assert same(t["a.w"].value, TREE["a"]["w"])


@pytest.mark.parametrize("inside", ["a.w/0.0", "a.w/.zarray", "_METADATA", "array_metadatas/process_0"])
def test_links_to_files_outside_are_refused(plain: Path, inside: str) -> None:
    secret = plain.parent / "secret"
    os.rename(plain / inside, secret)
    os.symlink(secret, plain / inside)
    with pytest.raises(lw.FileError, match=r"it is a link, to '.*secret'"):
        lw.open(plain)


def test_links_to_folders_are_refused(plain: Path) -> None:
    os.rename(plain / "a.w", plain.parent / "secret")
    os.symlink(plain.parent / "secret", plain / "a.w")
    with pytest.raises(lw.FileError, match=r"cannot open '.*a\.w': it is a link"):
        lw.open(plain)
    os.unlink(plain / "a.w")
    os.symlink(plain, plain / "a.w")  # a link to itself does not take forever
    with pytest.raises(lw.FileError, match=r"cannot open '.*a\.w': it is a link"):
        lw.open(plain)


def test_links_to_blobs_in_the_cache_of_the_hub_are_followed(plain: Path, tmp_path: Path) -> None:
    model = tmp_path / "models--a--b"
    (model / "blobs").mkdir(parents=True)
    shutil.move(plain, model / "snapshots" / "abc" / "run")
    folder = model / "snapshots" / "abc" / "run"
    for number, path in enumerate(sorted(path for path in folder.rglob("*") if path.is_file())):
        os.rename(path, model / "blobs" / str(number))
        os.symlink(model / "blobs" / str(number), path)
    with lw.open(folder) as t:
        assert same(t["a.w"].value, TREE["a"]["w"])


def test_a_pipe_in_the_folder_does_not_block(plain: Path) -> None:
    (plain / "a.w" / "0.0").unlink()
    os.mkfifo(plain / "a.w" / "0.0")
    with pytest.raises(lw.FileError, match="it is not a file, but a pipe or a device"):
        lw.open(plain)


# -- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ({"shape": [1 << 62, 1], "chunks": [1, 1]}, "larger than any file"),
        ({"shape": [1 << 50, 1 << 50], "chunks": [1, 1]}, "larger than any file|cannot be read"),
        ({"shape": [-1, 3]}, "cannot be read"),
        ({"shape": [2, 3], "chunks": [0, 3]}, "cannot be read"),
        ({"dtype": "|S5"}, "cannot be read|which leafwise does not know"),
        ({"dtype": [["x", "<f4"], ["y", "<f4"]]}, "cannot be read|which leafwise does not know"),
        ({"compressor": {"id": "unknown"}}, "cannot be read"),
        ({"filters": [{"id": "pickle"}]}, "cannot be read"),
        ({"zarr_format": 9}, "cannot be read"),
    ],
    ids=str,
)
def test_headers_that_make_no_sense_are_refused(plain: Path, header: dict[str, Any], message: str) -> None:
    changed(plain / "a.w" / ".zarray", lambda content: content | header)
    with pytest.raises(lw.FileError, match=rf"run': a\.w.*({message})"):
        lw.open(plain)


@pytest.mark.parametrize(
    "header",
    [
        {"shape": [1 << 44, 3], "chunks": [1 << 44, 3]},
        {"shape": [1 << 44, 3], "chunks": [1, 3]},
        {"shape": [2, 3], "chunks": [1 << 44, 3]},
        {"shape": [1 << 20, 1 << 10], "chunks": [1, 1]},
    ],
    ids=str,
)
def test_a_huge_array_is_listed_but_not_read(plain: Path, header: dict[str, Any]) -> None:
    changed(plain / "a.w" / ".zarray", lambda content: content | header)
    with lw.open(plain) as t:
        assert t["a.w"].shape == tuple(header["shape"])
        with pytest.raises(lw.FileError, match=r"run': a\.w"):
            np.asarray(t["a.w"].value)


def test_what_opening_takes_is_limited(plain: Path) -> None:
    with pytest.raises(lw.FileError, match="more than 2,000 bytes of memory"):
        lw.open(plain, max_bytes=2_000)
    with pytest.raises(lw.FileError, match="more than 20 steps"):
        lw.open(plain, max_steps=20)
    for number in range(300):
        (plain / f"extra{number}").write_bytes(b"")
    with pytest.raises(lw.FileError, match="more than 60,000 bytes of memory"):
        lw.open(plain, max_bytes=60_000)


# -- damage --------------------------------------------------------------------------------------------------------


def test_a_chunk_that_is_missing_is_not_read_as_zeros(plain: Path) -> None:
    (plain / "a.w" / "0.0").unlink()
    with lw.open(plain) as t:
        with pytest.raises(lw.FileError, match=r"a\.w cannot be read: NOT_FOUND: chunk"):
            np.asarray(t["a.w"].value)
        assert same(t["b.0"].value, TREE["b"][0])


def test_a_load_from_a_damaged_checkpoint_changes_nothing(plain: Path) -> None:
    (plain / "b.1" / "0").write_bytes(b"damaged")
    target = {"a": {"w": np.zeros((2, 3), np.float32)}, "b": [np.zeros(2, np.float32), np.ones(3, np.float32)]}
    with pytest.raises(lw.FileError, match=r"b\.1 cannot be read"):
        lw.load(target, plain, allow={"unexpected"})
    assert not target["a"]["w"].any()  # type: ignore[call-overload]
    assert not target["b"][0].any()  # type: ignore[index]
    with pytest.raises(lw.FileError, match=r"b\.1 cannot be read"):
        lw.save(lw.open(plain), plain.parent / "copy.safetensors")
    with pytest.raises(lw.FileError, match=r"b\.1 cannot be read"):
        lw.edit(plain, plain.parent / "copy", format="orbax")
    assert os.listdir(plain.parent) == ["run"]


def test_a_part_of_an_array_is_checked_without_the_rest(tmp_path: Path) -> None:
    array = np.arange(32, dtype=np.float32).reshape(4, 8)
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False)
    with ocp.Checkpointer(handler) as checkpointer:
        in_rows = {"w": ocp.SaveArgs(chunk_byte_size=32)}
        checkpointer.save(tmp_path / "run", args=ocp.args.PyTreeSave({"w": array}, save_args=in_rows))
    (tmp_path / "run" / "w" / "0.0").write_bytes(b"damaged")
    with lw.open(tmp_path / "run") as t:
        (stored,) = t.columns.row_values
        assert stored.chunk_shape[0] < 4
        sound, damaged = subarray(stored, (slice(3, 4), slice(0, 5))), subarray(stored, (slice(0, 1), slice(0, 8)))
        verify_subarrays([("w", sound)])
        assert same(sound.read(), array[3:4, :5])
        with pytest.raises(lw.FileError, match="w cannot be read"):
            verify_subarrays([("w", sound), ("w", damaged)])


def test_a_chunk_that_an_older_release_left_out_is_read_as_zeros(plain: Path) -> None:
    (plain / "b.1" / "0").unlink()
    changed(plain / "_METADATA", lambda content: content.pop("store_array_data_equal_to_fill_value") and None)
    with lw.open(plain) as t:
        assert same(t["b.1"].value, np.zeros(3, np.float32))


@pytest.mark.parametrize("lost", ["_METADATA", "_CHECKPOINT_METADATA", "array_metadatas/process_0"])
@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "[]", "null", '{"tree_metadata": [], "array_metadatas": 3}', '{"a": 1, "a": 2}']
)
def test_json_that_makes_no_sense_is_refused_or_ignored(plain: Path, lost: str, text: str) -> None:
    (plain / lost).write_text(text)
    try:
        read_all(plain)
    except lw.FileError as error:
        assert os.path.basename(lost) in str(error)  # noqa: PT017
    else:
        assert lost != "_METADATA"


@pytest.mark.parametrize(
    "row",
    [
        None,
        {},
        {"key_metadata": 3, "value_metadata": {"value_type": "jax.Array"}},
        {"key_metadata": [3], "value_metadata": {"value_type": "jax.Array"}},
        {"key_metadata": [{"key": 3, "key_type": 2}], "value_metadata": {"value_type": "jax.Array"}},
        {"key_metadata": [{"key": "a", "key_type": 3}], "value_metadata": {"value_type": "jax.Array"}},
        {"key_metadata": [{"key": "a", "key_type": True}], "value_metadata": {"value_type": "None"}},
        {"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": {"value_type": 3}},
        {"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": None},
        {"key_metadata": [{"key": "x", "key_type": 2}] * 10_000, "value_metadata": {"value_type": "None"}},
        {"key_metadata": [{"key": "a", "key_type": 2}], "value_metadata": {"value_type": "None"}},  # a is a container
        {"key_metadata": [{"key": "step", "key_type": 2}] * 2, "value_metadata": {"value_type": "None"}},
        {"key_metadata": [{"key": "step", "key_type": 2}], "value_metadata": {"value_type": "None"}},  # twice
        {"key_metadata": [], "value_metadata": {"value_type": "None"}},
        {"key_metadata": [{"key": "t", "key_type": 2}], "value_metadata": {"value_type": "string"}},  # no such text
        {"key_metadata": [{"key": "z", "key_type": 2}], "value_metadata": {"value_type": "jax.Array"}},  # no such array
    ],
    ids=lambda row: str(row)[:60],
)
def test_descriptions_of_values_that_make_no_sense_are_refused(plain: Path, row: Any) -> None:
    changed(plain / "_METADATA", lambda content: content["tree_metadata"].update({"('new',)": row}))
    with pytest.raises(lw.FileError, match="run"):
        lw.open(plain)


def test_a_value_of_an_unknown_type_is_shown_but_not_read(plain: Path) -> None:
    def add(content: Any) -> None:
        row = {"key_metadata": [{"key": "x", "key_type": 2}], "value_metadata": {"value_type": "my.Handler"}}
        content["tree_metadata"]["('x',)"] = row

    changed(plain / "_METADATA", add)
    with lw.open(plain) as t:
        assert [(str(found.path), found.class_name) for found in t.opaque] == [("x", "my.Handler")]
        assert same(t["a.w"].value, TREE["a"]["w"])


def test_two_values_under_one_stored_name_are_listed_but_not_read(tmp_path: Path) -> None:
    standard(tmp_path / "run", {"a.b": jnp.ones(2), "a": {"b": jnp.zeros(2)}, "c": jnp.ones(1)})
    with lw.open(tmp_path / "run") as t:
        leaves = [leaf for leaf in t if str(leaf.path) != "c"]
        assert len(leaves) == 2
        for leaf in leaves:
            with pytest.raises(lw.Unsupported, match="another value under the same name"):
                np.asarray(leaf.value)
        assert same(t["c"].value, np.ones(1, np.float32))


def test_a_number_that_is_an_array_is_refused(plain: Path) -> None:
    def change(content: Any) -> None:
        content["tree_metadata"]["('a', 'w')"]["value_metadata"]["value_type"] = "scalar"

    changed(plain / "_METADATA", change)
    with pytest.raises(lw.FileError, match=r"'a\.w' should be a single number, but has the shape \(2, 3\)"):
        lw.open(plain)


@pytest.mark.parametrize("writer", ["StandardCheckpointer", "zarr", "OCDBT and zarr3", "CheckpointManager"])
def test_damaged_files_give_errors_of_leafwise(tmp_path: Path, writer: str) -> None:
    """Every file in turn is emptied, cut off, removed, or has bytes changed; values without checksums may differ."""
    WRITERS[writer](tmp_path / "sound", TREE)
    chance = random.Random(0)
    files = sorted(path.relative_to(tmp_path / "sound") for path in (tmp_path / "sound").rglob("*") if path.is_file())
    refused = 0
    for file in files:
        for damage in range(6):
            shutil.rmtree(tmp_path / "run", ignore_errors=True)
            shutil.copytree(tmp_path / "sound", tmp_path / "run")
            path = tmp_path / "run" / file
            data = bytearray(path.read_bytes())
            if damage == 0:
                path.unlink()
            elif damage == 1:
                path.write_bytes(b"")
            elif damage == 2:
                path.write_bytes(data[: len(data) // 2])
            else:
                for _ in range(damage):
                    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
                path.write_bytes(data)
            try:
                read_all(tmp_path / "run")
            except lw.Error as error:
                refused += 1
                assert str(tmp_path) in str(error)  # noqa: PT017
    assert refused > len(files)
