"""Every format is read exactly, bit by bit, as its own writer wrote it."""

import json
import pickle
from collections import Counter
from enum import Enum
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tests.files import writers
from tests.files.writers import FLATTENS, WRITERS, arrays, gguf_file
from torch import nn

import leafwise as lw
from leafwise.cli import main

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(params=WRITERS, ids=[name.replace(" ", "-") for name in WRITERS])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    path = tmp_path / "checkpoint"  # no suffix: the content decides
    WRITERS[request.param](path, arrays())
    return request.param, path


def bits(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def test_every_value_is_read_bit_by_bit(written: tuple[str, Path]) -> None:
    name, path = written
    expected = arrays()
    with lw.open(path) as tree:
        assert {str(p) for p, _ in tree.items()} == set(expected)
        for p, leaf in tree.items():
            value = expected[str(p)]
            shape = tuple(value.shape) or ((1,) if name in FLATTENS else ())
            assert leaf.shape == shape
            assert leaf.dtype == str(value.dtype).removeprefix("torch.")
            assert leaf.numpy().dtype == value.numpy().dtype
            assert bits(leaf.numpy()) == bits(value.numpy())
            assert bits(leaf.value) == bits(value.numpy())
        assert tree.counts.parameters + tree.counts.buffers == sum(value.numel() for value in expected.values())


def test_slices_equal_those_of_numpy(written: tuple[str, Path]) -> None:
    _, path = written
    whole = arrays()["0.weight"].numpy()
    leaf = lw.open(path)["0.weight"]
    for index in (
        0, -1, slice(1, 3), slice(None, None, 2), slice(4, 1, -1), (slice(2, 5), 3), (..., slice(1, None, 2)),
        (slice(None), -1), slice(3, 3), (slice(-2, None), slice(None, None, -1)), np.s_[5:0:-2, 1:3], (1, 2), ...,
    ):  # fmt: skip
        assert np.array_equal(leaf.numpy(index), whole[index]), index
    for wrong in (9, (0, 0, 0), "a", (slice(None), 4), (..., ...), [0, 1], True):
        with pytest.raises(lw.QueryError):
            leaf.numpy(wrong)


def test_arrays_outlive_the_file(written: tuple[str, Path]) -> None:
    _, path = written
    with lw.open(path) as tree:
        weight = tree["0.weight"].numpy()
    assert bits(weight) == bits(arrays()["0.weight"].numpy())
    tree.close()
    if written[0] not in ("DCP", "pickle", "pickle of NumPy arrays"):  # short arrays in pickles are in memory
        with pytest.raises(lw.FileError, match=r"is closed"):
            tree["0.bias"].numpy()


def test_large_arrays_are_mapped_and_not_copied(tmp_path: Path) -> None:
    torch.save({"big": torch.arange(100_000)}, tmp_path / "a.pt")
    array = lw.open(tmp_path / "a.pt")["big"].numpy()
    assert not array.flags.owndata
    assert not array.flags.writeable
    assert array[-1] == 99_999


@pytest.mark.parametrize("legacy", [False, True])
def test_a_training_checkpoint_of_pytorch_is_read(tmp_path: Path, legacy: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 4)).sum().backward()
    optimizer.step()
    weight = model[0].weight.detach()
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "shared": {
            "embed.weight": weight,
            "head.weight": weight,
            "rows": weight[1:],
            "turned": weight.T,
            "p": model[0].weight,
        },
        "step": 7,
        "lr": 1e-3,
        "name": "run \x1b[31m",
        "best": float("nan"),
        "nothing": None,
        "flags": [True, False, {"deep": (1, 2)}],
        "rng": torch.get_rng_state(),
        "numpy": np.random.RandomState(0).get_state(),
        "metric": np.float32(0.5),
        "odd": {"size": weight.shape, "device": torch.device("cuda:1"), 3: "int key", "bytes": b"\0\1", "set": {1, 2}},
        "dtypes": {
            "bf": torch.randn(3).bfloat16(),
            "f8": torch.randn(4).to(torch.float8_e4m3fn),
            "c": torch.randn(2, dtype=torch.complex64),
            "b": torch.tensor([True, False]),
            "u16": torch.tensor([1, 2], dtype=torch.uint16),
            "e": torch.zeros(0, 3),
        },
        "meta": torch.zeros(2, 3, device="meta"),
    }
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    tree = lw.open(tmp_path / "a.pt")
    assert tree["step"] == 7
    assert tree["lr"] == 1e-3
    assert tree["name"] == "run \x1b[31m"
    assert "\x1b" not in tree.text(full=True)
    assert tree["flags.2.deep"] == (1, 2)
    assert tree["metric"] == 0.5
    assert tree["odd.size"] == (3, 4)
    assert tree["odd.device"] in ("cuda:1", "cuda")
    assert tree["model.0.weight"].shape == (3, 4)
    assert {leaf.kind for leaf in tree["optimizer"]} == {"state"}
    assert tree["optimizer.state.0.exp_avg"].shape == (3, 4)
    assert bits(tree["numpy.1"].numpy()) == bits(content["numpy"][1])
    assert bits(tree["rng"].numpy()) == bits(content["rng"].numpy())
    (tie,) = [tie for tie in tree.ties if len(tie.names) > 4]
    ops = {str(n.path): n.op.describe() for n in tie.names if n.path.names[0] == "shared"}
    assert ops == {
        "shared.embed.weight": "",
        "shared.head.weight": "",
        "shared.rows": "[1:3, :]",
        "shared.turned": ".T",
        "shared.p": "",
    }
    assert bits(tree["shared.turned"].numpy()) == bits(weight.T.contiguous().numpy())
    for name, value in content["dtypes"].items():
        leaf = tree[f"dtypes.{name}"]
        assert leaf.dtype == str(value.dtype).removeprefix("torch.")
        assert bits(leaf.numpy()) == bits(
            value.view(torch.uint8).numpy() if value.dtype.itemsize < 3 and name != "b" else value.numpy()
        )
    with pytest.raises(lw.Unsupported, match=r"it was on meta when it was saved"):
        tree["meta"].numpy()
    json.dumps(tree.json())


@pytest.mark.parametrize("legacy", [False, True])
def test_conjugated_and_negated_tensors_are_read_with_their_values(legacy: bool, tmp_path: Path) -> None:
    waves = torch.tensor([1 + 2j, 3 - 1j])
    negated = torch.tensor([1 + 2j, 3 - 1j]).conj().imag
    state = {"conj": waves.conj(), "neg": negated, "plain": waves}
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=not legacy)
    tree = lw.open(tmp_path / "a.pt")
    for name, value in state.items():
        assert np.array_equal(tree[name].numpy(), value.resolve_conj().resolve_neg().numpy()), name
    assert all(name.op != "same" for tie in tree.ties for name in tie.names[1:])
    if not legacy:
        assert main(["convert", str(tmp_path / "a.pt"), str(tmp_path / "b.npz")]) == 0
        assert np.array_equal(np.load(tmp_path / "b.npz")["conj"], waves.conj().resolve_conj().numpy())


def test_plain_values_of_many_types_are_read(tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(2))
    content = {
        "milestones": Counter({3: 1, 5: 2}),
        "path": Path("/a/b"),
        "bytes": bytearray(b"ab"),
        "frozen": frozenset({1}),
        "empty": np.zeros(0),
        "parameter": weight,
        "dtype": torch.float16,
    }
    for protocol in (2, 4, 5):
        torch.save(content, tmp_path / "a.pt", pickle_protocol=protocol)
        tree = lw.open(tmp_path / "a.pt")
        assert tree["milestones.3"] == 1
        assert tree["path"] == "/a/b"
        assert tree["bytes"] == b"ab"
        assert tree["dtype"] == "torch.float16"
        assert tree["empty"].shape == (0,)


def test_gguf_files_show_what_is_quantized(tmp_path: Path) -> None:
    values = np.random.RandomState(0).randn(4, 256).astype(np.float32)
    writer = gguf.GGUFWriter(tmp_path / "model", "llama")
    kinds = [getattr(gguf.GGMLQuantizationType, name) for name in ("Q8_0", "Q4_0", "BF16")]
    stored = {}
    for kind in kinds:
        stored[kind] = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"blk.0.{kind.name}", stored[kind], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tree = lw.open(tmp_path / "model")
    leaf = tree["blk.0.Q4_0"]
    assert (leaf.dtype, leaf.shape, leaf.size, leaf.nbytes) == ("q4_0", (4, 256), 1024, 1024 // 32 * 18)
    for kind in kinds[:2]:
        expected = gguf.quants.dequantize(stored[kind], kind)
        assert np.array_equal(tree[f"blk.0.{kind.name}"].numpy(), expected)
        assert np.array_equal(tree[f"blk.0.{kind.name}"].numpy((slice(1, 3), 5)), expected[1:3, 5])
    assert bits(tree["blk.0.BF16"].numpy()) == bits(stored[kinds[2]])


def test_a_gguf_file_with_a_tensor_of_an_unknown_type_opens(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    names = ("a", "strange", "b")
    for number, name in enumerate(names):
        writer.add_tensor(name, np.full((2, 64), number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    data = bytearray(path.read_bytes())
    at = data.index(b"strange") + len(b"strange") + 4 + 2 * 8  # after the number of axes, and the axes
    data[at : at + 4] = (99).to_bytes(4, "little")
    path.write_bytes(data)
    with lw.open(path) as t:
        assert [str(leaf.path) for leaf in t] == [*names]
        assert (t["strange"].dtype, t["strange"].shape, t["strange"].nbytes) == ("type99", (2, 64), 512)
        assert t["b"].numpy().tolist() == np.full((2, 64), 2.0).tolist()
        with pytest.raises(lw.Unsupported, match="GGUF type 99 is not known to this version of leafwise"):
            t["strange"].numpy()
        assert "strange" in lw.stats(t).skipped
    with pytest.raises(lw.Error, match="type 99"):
        lw.edit(path, tmp_path / "a.safetensors")
    assert lw.edit(path, tmp_path / "a.safetensors", drop="strange")


def test_a_header_whose_metadata_is_null_opens(tmp_path: Path) -> None:
    """As MLX writes it."""
    header = json.dumps({"__metadata__": None, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with lw.open(tmp_path / "a.safetensors") as t:
        assert t["w"].numpy().tolist() == [0, 0]


def test_gguf_block_sizes_equal_those_of_the_gguf_package() -> None:
    from leafwise.files.formats.gguf_file import TYPES

    plain = {"float32": "f32", "float16": "f16", "float64": "f64", "bfloat16": "bf16"}
    plain |= {f"int{bits_}": f"i{bits_}" for bits_ in (8, 16, 32, 64)}
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        if int(kind) in TYPES:
            name, *sizes = TYPES[int(kind)]
            assert (plain.get(name, name), *sizes) == (kind.name.lower(), block, size)
    missing = {kind.name for kind in gguf.GGML_QUANT_SIZES if int(kind) not in TYPES}
    assert not missing


def test_gguf_metadata_is_read(tmp_path: Path) -> None:
    gguf_file(tmp_path / "model", arrays())
    tree = lw.open(tmp_path / "model")
    values = {str(path): value for path, value in tree.scalars.items()}
    assert values['__metadata__."llama.block_count"'] == 2
    assert values['__metadata__."tokenizer.ggml.tokens"'] == "<100 strings>"


@pytest.mark.parametrize("version", ["1.9.1", "2.0.0beta1"])
def test_files_that_mxnet_wrote_are_read(version: str) -> None:
    values = np.load(GOLDEN / f"mxnet-{version}-values.npz")
    for path in GOLDEN.glob(f"mxnet-{version}-*.params"):
        tree = lw.open(path)
        front = "gluon." if "gluon" in path.name else ""
        assert len(tree)
        for p, leaf in tree.items():
            expected = values["0.weight" if "unnamed" in path.name else front + str(p)]
            assert leaf.shape == expected.shape
            assert leaf.dtype == str(expected.dtype)
            assert bits(leaf.numpy()) == bits(expected)


def test_packed_numbers_of_safetensors_are_read(tmp_path: Path) -> None:
    import ml_dtypes

    codes = {"float4_e2m1fn": ("F4", 4), "float6_e3m2fn": ("F6_E3M2", 6), "float6_e2m3fn": ("F6_E2M3", 6)}
    for name, (code, width) in codes.items():
        numbers = list(range(1 << width))[:16]
        packed = sum(number << (width * at) for at, number in enumerate(numbers)).to_bytes(16 * width // 8, "little")
        header = json.dumps({"x": {"dtype": code, "shape": [4, 4], "data_offsets": [0, len(packed)]}}).encode()
        (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header + packed)
        leaf = lw.open(tmp_path / name)["x"]
        assert (leaf.dtype, leaf.size, leaf.nbytes) == (name, 16, len(packed))
        expected = np.array(numbers, np.uint8).view(getattr(ml_dtypes, name)).reshape(4, 4)
        assert bits(leaf.numpy()) == bits(expected)


def test_numpy_arrays_in_other_orders_are_read(tmp_path: Path) -> None:
    values = {
        "fortran": np.asfortranarray(np.random.RandomState(0).randn(3, 4)),
        "big": np.arange(5, dtype=">i4"),
        "waves": np.array([1 + 2j, 3], dtype=">c16"),
        "scalar": np.array(3.5),
        "objects": np.array([{}], dtype=object),
        "fields": np.zeros(2, dtype=[("a", "f4")]),
    }
    for write in (np.savez, np.savez_compressed):
        write(tmp_path / "a.npz", **values)
        tree = lw.open(tmp_path / "a.npz")
        for name in ("fortran", "big", "waves", "scalar"):
            assert np.array_equal(tree[name].numpy(), values[name])
            assert tree[name].numpy().dtype == values[name].dtype.newbyteorder("=")
        for name in ("objects", "fields"):
            with pytest.raises(lw.Unsupported, match=r"its dtype is .*; leafwise reads only arrays of plain numbers"):
                tree[name].numpy()
    np.save(tmp_path / "b.npy", values["fortran"])
    assert np.array_equal(lw.open(tmp_path / "b.npy")["array"].numpy(), values["fortran"])


class _OldEnums(pickle.Pickler):
    """Writes enums as Python 3.11.0 to 3.11.3 do; other versions write them as calls of their class."""

    def reducer_override(self, obj: Any) -> Any:
        return (getattr, (type(obj), obj.name)) if isinstance(obj, Enum) else NotImplemented


def test_distributed_checkpoints_of_every_python_version_are_read(tmp_path: Path) -> None:
    writers.distributed(tmp_path / "dcp", arrays())
    metadata = tmp_path / "dcp" / ".metadata"
    content = pickle.loads(metadata.read_bytes())
    right = lw.tree(tmp_path / "dcp").json()
    with metadata.open("wb") as file:
        _OldEnums(file).dump(content)
    assert b"getattr" in metadata.read_bytes()
    assert lw.tree(tmp_path / "dcp").json() == right
    # An attribute of anything else is refused, and not looked up.
    for evil in (b"cos\nsystem\n", b"cbuiltins\ngetattr\n", b"ctorch.distributed.checkpoint.metadata\nMetadata\n"):
        metadata.write_bytes(b"cbuiltins\ngetattr\n(" + evil + b"X\x08\x00\x00\x00__name__tR.")
        with pytest.raises(
            lw.FileError,
            match=r"it contains (the Python class or function|an attribute of) .*, which leafwise does not load",
        ):
            lw.tree(tmp_path / "dcp")


def test_a_distributed_checkpoint_is_put_together_from_its_pieces(tmp_path: Path) -> None:
    """Pieces as two ranks write them, described with DCP's own classes."""
    import pickle

    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        BytesStorageMetadata,
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    whole = torch.randn(5, 4)
    pieces = {(0, 0): whole[:2, :3], (0, 3): whole[:2, 3:], (2, 0): whole[2:]}
    where, chunks = {}, []
    with (tmp_path / "__0_0.distcp").open("wb") as file:
        for position, piece in pieces.items():
            start = file.tell()
            torch.save(piece.clone(), file)
            index = MetadataIndex("w", torch.Size(position))
            where[index] = _StorageInfo("__0_0.distcp", start, file.tell() - start)
            chunks.append(ChunkStorageMetadata(torch.Size(position), torch.Size(piece.shape)))
        start = file.tell()
        torch.save({"step": 3}, file)
        where[MetadataIndex("extra")] = _StorageInfo("__0_0.distcp", start, file.tell() - start)
    described = {
        "w": TensorStorageMetadata(TensorProperties(dtype=torch.float32), torch.Size(whole.shape), chunks),
        "extra": BytesStorageMetadata(),
    }
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Metadata(described, storage_data=where)))  # type: ignore[arg-type]
    leaf = lw.open(tmp_path)["w"]
    for index in (
        (),
        1,
        (slice(1, 4), slice(2, None)),
        (slice(None, None, -1), 3),
        (slice(4, 0, -2), slice(None, None, 2)),
    ):
        expected = np.ascontiguousarray(whole.numpy()[index])
        assert np.array_equal(leaf.numpy(index), expected), index
    (tmp_path / "__0_0.distcp").unlink()
    with pytest.raises(lw.FileError, match=r"No such file"):
        lw.open(tmp_path)["w"].numpy()


def test_folders_of_shards_are_read_and_wrong_indexes_are_refused(tmp_path: Path) -> None:
    WRITERS["sharded safetensors"](tmp_path / "a", arrays())
    by_index = lw.open(tmp_path / "a" / "model.safetensors.index.json")
    assert len(by_index) == 4
    assert by_index.text().startswith("2 files, safetensors")
    index = tmp_path / "a" / "model.safetensors.index.json"
    said = json.loads(index.read_text("utf-8"))
    for change, cause in (
        (
            {"weight_map": {**said["weight_map"], "gone": "model-00001-of-00002.safetensors"}},
            "the index says that 'gone' is in",
        ),
        ({"weight_map": {**said["weight_map"], "0.weight": "model-00002-of-00002.safetensors"}}, "but it is in"),
        (
            {"weight_map": {**said["weight_map"], "x": "../secret"}},
            "cannot open '../secret' in .*: only files directly in it",
        ),
        (
            {"weight_map": {**said["weight_map"], "x": "/etc/passwd"}},
            "cannot open '/etc/passwd' in .*: only files directly",
        ),
        ({"weight_map": {**said["weight_map"], "x": "missing.safetensors"}}, "1 of 3 shards is missing: 'missing"),
        ({"weight_map": [1]}, "does not map names to files"),
        ({}, "is not JSON with a weight_map"),
    ):
        index.write_text(json.dumps(change))
        with pytest.raises(lw.FileError, match=cause):
            lw.open(tmp_path / "a")
    index.unlink()
    assert len(lw.open(tmp_path / "a")) == 4
    (tmp_path / "a" / "model-00003-of-00002.safetensors").write_bytes(
        (tmp_path / "a" / "model-00001-of-00002.safetensors").read_bytes()
    )
    with pytest.raises(lw.FileError, match=r"a name belongs to one shard"):
        lw.open(tmp_path / "a")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes\x1b.txt").touch()
    with pytest.raises(lw.FileError, match=r"it contains no checkpoint, only 'notes\\x1b.txt'; expected"):
        lw.open(tmp_path / "empty")


def test_links_in_a_folder_are_followed(tmp_path: Path) -> None:
    WRITERS["sharded safetensors"](tmp_path / "blobs", arrays())
    (tmp_path / "snapshot").mkdir()
    for path in (tmp_path / "blobs").iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert len(lw.open(tmp_path / "snapshot")) == 4


def test_a_folder_with_a_single_file_is_opened(tmp_path: Path) -> None:
    WRITERS["safetensors"](tmp_path / "model.safetensors", arrays())
    (tmp_path / "config.json").write_text("{}")
    assert lw.open(tmp_path).text().startswith("safetensors")


def test_open_accepts_only_paths(tmp_path: Path) -> None:
    with pytest.raises(lw.WalkError, match=r"lw.open takes a path or a URL, not Linear"):
        lw.open(nn.Linear(2, 2))  # type: ignore[arg-type]
    with lw.tree(nn.Linear(2, 2)) as tree:
        assert not tree.is_file


@pytest.mark.parametrize("length", [0x4B50, 0x0280, 0x0580, 0x8B18])
def test_a_header_whose_length_looks_like_another_format_is_read(length: int, tmp_path: Path) -> None:
    """A zip begins with 0x4B50, and a pickle with 0x0280."""
    row = b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}'
    (tmp_path / "a.safetensors").write_bytes(length.to_bytes(8, "little") + row.ljust(length) + b"\7")
    with lw.open(tmp_path / "a.safetensors") as t:
        assert t["a"].numpy().tolist() == [7]


def test_tensors_with_many_axes_and_long_strides_are_read(tmp_path: Path) -> None:
    """The product of the strides means nothing: for a tensor with nine axes, it is larger than any file."""
    state = {
        "deep": torch.arange(4**9).reshape((4,) * 9),
        "turned": torch.arange(4**9).reshape((4,) * 9).permute(*range(8, -1, -1)),
    }
    torch.save(state, tmp_path / "a.pt")
    tree = lw.open(tmp_path / "a.pt")
    for name, value in state.items():
        assert np.array_equal(tree[name].numpy(), value.numpy())
    index = (3, slice(0, 2), ..., 1)
    assert np.array_equal(tree["turned"].numpy(index), state["turned"].numpy()[index])


@pytest.mark.slow
def test_very_many_columns_of_one_storage_are_not_tied(tmp_path: Path) -> None:
    """Boxes in one grid are compared by their corners, and do not count against the limit on comparing elements."""
    whole = torch.arange(512 * 400).reshape(512, 400)
    torch.save({f"{number:03}": whole[:, 2 * number : 2 * number + 2] for number in range(200)}, tmp_path / "a.pt")
    tree = lw.open(tmp_path / "a.pt")
    assert tree.ties == []
    assert tree.shared_memory == []
