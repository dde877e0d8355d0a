"""What reviewers found in files, each as it was found."""

import io
import json
import os
import pickle
import struct
import time
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.files.writers import WRITERS, arrays
from tests.hostile import files
from tests.hostile.test_files import try_to_open
from torch import nn

import leafwise as lw
from leafwise.cli import main

BOMB = b")\x85" + b"2\x86" * 45  # a tuple that stands for 2**45 others


@pytest.mark.parametrize("legacy", [False, True])
def test_values_that_are_not_what_the_bytes_say(legacy: bool, tmp_path: Path) -> None:
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


def test_plain_values_that_were_lost_or_refused(tmp_path: Path) -> None:
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


def test_pieces_must_hold_every_number_once(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    WRITERS["DCP"](tmp_path / "a", {"w": torch.randn(4, 5)})
    metadata = pickle.loads((tmp_path / "a" / ".metadata").read_bytes())
    said = metadata.state_dict_metadata["w"]
    said.size = torch.Size([8, 5])
    said.chunks = [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([4, 5]))] * 2
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(lw.FileError, match=r"do not hold each of its 40 numbers once"):
        lw.open(tmp_path / "a")
    for chunks in ([1, 2], 5):
        said.chunks = chunks
        (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(metadata))
        with pytest.raises(lw.FileError):
            lw.open(tmp_path / "a")


def _sparse(
    kind: int, stored: tuple[int, ...], shape: tuple[int, ...], extras: list[np.ndarray], values: np.ndarray
) -> bytes:
    def shaped(numbers: tuple[int, ...]) -> bytes:
        return struct.pack(f"<i{len(numbers)}q", len(numbers), *numbers)

    parts = (
        struct.pack("<QQQIi", 0x112, 0, 1, 0xF993FAC9, kind)
        + shaped(stored)
        + shaped(shape)
        + struct.pack("<iii", 1, 0, 0)
    )
    parts += b"".join(struct.pack("<i", 6) + shaped(extra.shape) for extra in extras) + values.tobytes()
    return parts + b"".join(extra.tobytes() for extra in extras) + struct.pack("<Q", 0)


@pytest.mark.parametrize(
    ("kind", "shape", "extras", "values"),
    [
        (1, (4, 2), [[-1, 3]], np.ones((2, 2), "f4")),
        (1, (4, 2), [[9]], np.ones((1, 2), "f4")),
        (2, (3, 2), [[0, 600_000_000, 600_000_000, 600_000_000], [0]], np.ones(1, "f4")),
        (2, (3, 2), [[0, 1, 0, 1], [0]], np.ones(1, "f4")),
        (2, (3, 2), [[0, 0, 0, 1], [7]], np.ones(1, "f4")),
    ],
)
def test_sparse_arrays_whose_indices_do_not_fit(
    kind: int, shape: Any, extras: Any, values: Any, tmp_path: Path
) -> None:
    arrays_ = [np.array(extra, "i8") for extra in extras]
    (tmp_path / "a.params").write_bytes(_sparse(kind, values.shape, shape, arrays_, values))
    with pytest.raises(lw.FileError, match=r"do not fit it"):
        lw.open(tmp_path / "a.params")["0"].numpy()


def test_indexes_and_headers_with_names_twice_or_too_many(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1), "b": torch.ones(1)}, tmp_path / "x.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "x.safetensors"}}')
    assert [str(path) for path, _ in lw.open(tmp_path).items()] == ["a"]
    for text in ('{"weight_map": {"a": "x.safetensors", "a": "x.safetensors"}}', '{"weight_map": {}}'):
        index.write_text(text)
        with pytest.raises(lw.FileError):
            lw.open(tmp_path)
    row = '{"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}'
    odd = '{"d\\u0074ype": "U8", "shape": [1], "data\\u005foffsets": [0, 1]}'
    for header, cause in (
        (f'{{"a": {row}, "a": {odd}}}', "twice"),
        ('{"a": {"dtype": "F32", "shape": [0, 4611686018427387904, 9], "data_offsets": [0, 0]}}', "needs dtype"),
    ):
        (tmp_path / "y").write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0")
        with pytest.raises(lw.FileError, match=cause):
            lw.open(tmp_path / "y")
    first = '"a": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}'
    rows = f'{{{first}, "b": {{"dtype": "U8", "shape": [4], "data_offsets": [4.0, 8]}}}}'
    (tmp_path / "z").write_bytes(len(rows).to_bytes(8, "little") + rows.encode() + bytes(8))
    with pytest.raises(lw.FileError, match=r"needs dtype, shape and two data_offsets"):
        lw.open(tmp_path / "z")


def test_only_names_that_match_are_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = torch.ones(3)
    torch.save({"model": {"w": weight}, "copy": {"w": weight}}, tmp_path / "a.pt")
    source, target = str(tmp_path / "a.pt"), str(tmp_path / "b.safetensors")
    assert main(["convert", source, target, "--only", "model.**", "--rename", r"^model\.="]) == 0
    assert list(load_file(target)) == ["w"]
    for name, suffix in (
        ("__metadata__", ".safetensors"),
        ("a\0b", ".npz"),
        ("s\ud800", ".safetensors"),
        ("s\ud800", ".npz"),
    ):
        torch.save({name: weight, "other": weight + 1}, tmp_path / "odd.pt")
        destination = tmp_path / f"good{suffix}"
        destination.write_bytes(b"good")
        assert main(["convert", str(tmp_path / "odd.pt"), str(destination)]) == 1
        assert "cannot be a name in" in capsys.readouterr().err
        assert destination.read_bytes() == b"good"
    torch.save({"step": 3}, tmp_path / "none.pt")
    assert main(["convert", str(tmp_path / "none.pt"), target]) == 1
    assert "holds no arrays" in capsys.readouterr().err


SMALL_AND_SLOW = {
    "called": BOMB + b")R.",
    "built": BOMB + b"}b.",
    "referred to": BOMB + b"Q.",
    "a shape": b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n(ctorch\nfloat32\n" + BOMB + b"(K\x01t\x89tR.",
    "walked": b"]" + BOMB + b"a.",
    "lists of lists": b"](" + b"K\x01" * 10 + b"e" + b"2]q\x00(h\x00" * 0 + b".",
    "lists that are meant often": b"](" + b"K\x01" * 2000 + b"eq\x010](" + b"h\x01" * 2000 + b"e.",
    "a long text encoded again and again": b"X"
    + (300_000).to_bytes(4, "little")
    + b"a" * 300_000
    + b"q\x010c_codecs\nencode\nq\x020]("
    + b"h\x02h\x01\x85R" * 3000
    + b"e.",
    "numbers that collide": b"}("
    + b"".join(b"\x8a\x0c" + (k * (2**61 - 1)).to_bytes(12, "little") + b"N" for k in range(1, 3000))
    + b"u.",
    "a number without end": b"\x8b" + (300_000).to_bytes(4, "little") + b"\x01" * 300_000 + b".",
}


@pytest.mark.parametrize("name", SMALL_AND_SLOW)
def test_small_pickles_that_would_take_for_ever(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(files.in_zip(b"\x80\x02" + SMALL_AND_SLOW[name]))
    started = time.process_time()
    said = try_to_open(path)
    assert time.process_time() - started < 5  # a hang guard, not a measurement
    assert said != "opened" or name == "lists of lists"


def test_small_files_that_would_take_for_ever(tmp_path: Path) -> None:
    started = time.process_time()
    (tmp_path / "legacy.pt").write_bytes(files.in_legacy(b"\x80\x02N.")[:-4] + b"\x80\x02]" + BOMB + b"a.")
    assert try_to_open(tmp_path / "legacy.pt") != "opened"
    for key in (b"]a.", b"}a."):
        (tmp_path / "legacy.pt").write_bytes(files.in_legacy(b"\x80\x02N.")[:-4] + b"\x80\x02]" + key)
        assert try_to_open(tmp_path / "legacy.pt") != "opened"
    storage = torch.randn(40_000)
    strange = {str(n): torch.as_strided(storage, (60, 30), (7, 11), n) for n in range(150)}
    windows = {f"w{n}": storage[n : n + 500] for n in range(1500)}
    torch.save({**strange, **windows}, tmp_path / "views.pt")
    assert try_to_open(tmp_path / "views.pt") == "opened"
    assert time.process_time() - started < 30


def test_zip_entries_that_lie_over_each_other(tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.npy", files._npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}"))
        archive.writestr("b.npy", files._npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1,)}"))
    data = bytearray(file.getvalue())
    second = data.rindex(b"PK\x01\x02")
    data[second + 42 : second + 46] = bytes(4)
    (tmp_path / "a.npz").write_bytes(data)
    with pytest.raises(lw.FileError, match=r"overlaps another"):
        lw.open(tmp_path / "a.npz")


def test_pipes_nulls_and_what_else_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors")
    with pytest.raises(lw.FileError, match=r"it is not a file, but a pipe"):
        lw.open(tmp_path)
    with pytest.raises(lw.FileError, match=r"null"):
        lw.open("a\0b")


def test_escapes_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"text": "a\x1b[31mred"}, tmp_path / "a.pt")
    assert main(["read", str(tmp_path / "a.pt"), "text"]) == 0
    assert "\x1b" not in capsys.readouterr().out
    for descr in ("<\x1b1", "|\x9b1"):
        header = (
            repr({"descr": descr, "fortran_order": False, "shape": (1,)}).encode("latin-1").replace(b"\\x1b", b"\x1b")
        )
        (tmp_path / "a.npy").write_bytes(files._npy(header.replace(b"\\x9b", b"\x9b")))
        said = try_to_open(tmp_path / "a.npy")
        shown = lw.open(tmp_path / "a.npy").text() if said == "opened" else said
        assert not set(shown) & {"\x1b", "\x9b"}


def test_files_that_lie_beside_a_checkpoint(tmp_path: Path) -> None:
    torch.save(arrays(), tmp_path / "pytorch_model.bin")
    (tmp_path / "training_args.bin").write_bytes(files.in_zip(files.gadgets(tmp_path)["os.system 4"]))
    assert len(lw.open(tmp_path)) == 4


def test_compressed_arrays_are_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", big=np.zeros((3000, 1000)), row=np.zeros((1, 3_000_000)))
    times = []
    from leafwise.files.source import InflatedSource

    begin = InflatedSource._rewind
    monkeypatch.setattr(InflatedSource, "_rewind", lambda self: times.append(1) or begin(self))
    assert main(["convert", str(tmp_path / "a.npz"), str(tmp_path / "b.safetensors")]) == 0
    assert len(times) == 2
    assert load_file(tmp_path / "b.safetensors")["row"].shape == (1, 3_000_000)


def test_equal_but_untied_in_a_file(tmp_path: Path) -> None:
    save_file(
        {"a": torch.arange(6).reshape(2, 3), "b": torch.arange(6).reshape(2, 3), "c": torch.ones(2)}, tmp_path / "x"
    )
    (equal,) = lw.ties(tmp_path / "x", equal_untied=True).equal_untied or ()
    assert [str(leaf.path) for leaf in equal.leaves] == ["a", "b"]
    assert json.dumps(lw.ties(tmp_path / "x").json())


def test_many_axes_have_long_strides(tmp_path: Path) -> None:
    """The product of strides says nothing: those of a tensor with nine axes are larger than any file together."""
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


def test_columns_of_one_storage_are_neighbours_however_many(tmp_path: Path) -> None:
    """Boxes in one grid are compared by their corners, and use up none of what is allowed for looking at elements."""
    whole = torch.arange(512 * 400).reshape(512, 400)
    torch.save({f"{number:03}": whole[:, 2 * number : 2 * number + 2] for number in range(200)}, tmp_path / "a.pt")
    tree = lw.open(tmp_path / "a.pt")
    assert tree.ties == []
    assert tree.shared_memory == []
