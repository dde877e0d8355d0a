"""The header of a safetensors file is shown as a tree, and bad headers are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from tests.contract.cases import TiedLanguageModel

import leafwise as lw


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.bin"  # the name says nothing; the content does
    state = TiedLanguageModel().state_dict()
    del state["head.weight"]
    save_file(state | {"scale": torch.tensor(2.0, dtype=torch.bfloat16)}, path, metadata={"format": "pt"})
    return path


def test_a_file_has_the_paths_of_the_model(saved: Path) -> None:
    tree = lw.tree(saved)
    assert {str(path) for path, _ in tree.items()} == {"embed.weight", "block.weight", "block.bias", "scale"}
    assert tree["embed.weight"].shape == (10, 4)
    assert tree["scale"].dtype == "bfloat16"
    assert tree["scale"].trainable is None
    assert tree["__metadata__.format"] == "pt"
    assert tree.counts.parameters == 61
    assert tree.counts.bytes == 242
    assert tree.select("block.*").counts.parameters == 20
    assert lw.tree(str(saved)).json() == tree.json()


def test_a_tensor_named_like_the_metadata_is_reached(tmp_path: Path) -> None:
    header = {"__metadata__": {"x": "text"}, "__metadata__.y": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}
    raw = json.dumps(header).encode()
    file = tmp_path / "m"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    tree = lw.tree(file)
    assert tree["__metadata__.x"] == "text"
    assert tree["__metadata__.y"].shape == (0,)


def test_every_dtype_that_the_writer_supports_is_read(tmp_path: Path) -> None:
    always = [
        torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
        torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    ]  # fmt: skip
    # Not supported by safetensors 0.5.
    newer = [torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.float8_e8m0fnu]
    state = {}
    for dtype in always + newer:
        try:
            save({"x": torch.zeros(3, dtype=dtype)})
        except KeyError:
            assert dtype in newer
            continue
        state[str(dtype).removeprefix("torch.")] = torch.zeros(3, dtype=dtype)
    save_file(state, tmp_path / "all")
    tree = lw.tree(tmp_path / "all")
    assert {leaf.path.name: leaf.dtype for leaf in tree} == {name: name for name in state}
    assert all(leaf.nbytes == state[leaf.path.name].nbytes for leaf in tree)


def test_files_are_not_written_in_place(saved: Path) -> None:
    leaf = lw.tree(saved)["scale"]
    assert leaf.value == leaf.numpy() == 2.0
    with pytest.raises(lw.Unsupported, match=r"a file cannot be written in place: load it, change it, and save it"):
        leaf.write([1])


def written(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(raw) if length is None else length).to_bytes(8, "little") + raw + data)
    return path


def row(start: int, stop: int, **other: Any) -> dict[str, Any]:
    return {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]} | other


BAD = {
    "not eight bytes": (b"", None, "the file is empty"),
    "no object": (b"[]", b"", "not a JSON object"),
    "nothing": (b"null", b"", "not a JSON object"),
    "a number": (b"1.5", b"", "not a JSON object"),
    "a text": (b'"__metadata__"', b"", "not a JSON object"),
    "no JSON": (b"{nonsense", b"", r"at byte 9: the header is not JSON"),
    "no UTF-8": (b"{\xff}", b"", r"at byte 9: the header is not UTF-8"),
    "nested too deep": (b"[" * 100_000, b"", "at byte 8"),
    "metadata nested too deep": (
        b'{"__metadata__":{"a":' + b"[" * 200_000 + b'},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"\0",
        "at byte 8",
    ),
    "a name twice": (b'{"a\\u001b":1,"a\\u001b":2}', b"", r"the name 'a\\x1b' occurs twice"),
    "no row": ({"a": 3}, b"", "'a' needs dtype, shape and two data_offsets"),
    "three offsets": ({"a": row(0, 1, data_offsets=[0, 1, 2])}, b"\0", "two data_offsets"),
    "negative": ({"a": row(0, 1, shape=[-1])}, b"\0", "two data_offsets"),
    "no whole number": ({"a": row(0, 1, shape=[1.0])}, b"\0", "two data_offsets"),
    "true as a number": ({"a": row(0, 1, shape=[True])}, b"\0", "two data_offsets"),
    "absurdly many axes": ({"a": row(0, 1, shape=[1 << 60] * 10_000)}, b"\0", "two data_offsets"),
    "unknown dtype": ({"a": row(0, 1, dtype="F7")}, b"\0", "unknown dtype 'F7'"),
    "dtype no string": ({"a": row(0, 1, dtype=["U8"])}, b"\0", "two data_offsets|unknown dtype"),
    "size": ({"a": row(0, 2, shape=[3])}, b"\0\0", r"needs 3 bytes but has 2"),
    "overlap": ({"a": row(0, 2), "b": row(1, 3)}, b"\0\0\0", "'b' overlaps"),
    "hole": ({"a": row(0, 1), "b": row(2, 3)}, b"\0\0\0", "there is a gap before 'b'"),
    "cut off": ({"a": row(0, 9)}, b"\0\0", "was it cut off"),
    "too long": ({"a": row(0, 1)}, b"\0\0", "1 bytes follow the last array, where the file should end"),
    "metadata": ({"__metadata__": {"a": 1}}, b"", "__metadata__ is not a JSON object of strings"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_header_is_an_error_with_file_offset_and_cause(name: str, tmp_path: Path) -> None:
    header, data, message = BAD[name]
    path = tmp_path / "bad.safetensors"
    if data is None:
        path.write_bytes(header)
    else:
        written(path, header, data)
    with pytest.raises(lw.FileError, match=message) as caught:
        lw.tree(path)
    assert "bad.safetensors' at byte " in str(caught.value)
    assert str(caught.value).isprintable()


def test_an_impossible_length_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match="does not recognize this file format"):
        lw.tree(written(tmp_path / "x", {}, length=1 << 62))
    with pytest.raises(lw.FileError, match="cut off"):
        lw.tree(written(tmp_path / "x", {}, length=1000))


@pytest.mark.parametrize(
    ("start", "cause"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"<!doctype html><html>", "HTML page"),
        (b"PK\x03\x04", "the directory at the end of the zip cannot be read"),
        (b"\x1f\x8b\x08", "compressed with gzip"),
        (b"\x89HDF\r\n", "HDF5"),
    ],
)
def test_files_that_are_mistaken_for_checkpoints_are_refused_by_name(start: bytes, cause: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(start + b"\0" * 100)
    with pytest.raises(lw.FileError, match=cause):
        lw.tree(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match="No such file"):
        lw.tree(tmp_path / "none.safetensors")
    with pytest.raises(lw.FileError, match=r"it is empty; expected a file that ends in .safetensors"):
        lw.tree(tmp_path)


def test_every_truncation_of_a_file_is_an_error(saved: Path, tmp_path: Path) -> None:
    whole = saved.read_bytes()
    short = tmp_path / "short"
    for length in range(len(whole)):
        short.write_bytes(whole[:length])
        with pytest.raises(lw.FileError):
            lw.tree(short)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.data())
def test_a_changed_header_is_an_error_or_a_tree_and_nothing_else(
    saved: Path, tmp_path: Path, data: st.DataObject
) -> None:
    raw = bytearray(saved.read_bytes())
    length = int.from_bytes(raw[:8], "little")
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, 8 + length - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "changed"
    path.write_bytes(raw)
    message = ""
    try:
        lw.tree(path).text()
    except lw.FileError as error:
        message = str(error)
    assert message.isprintable()
