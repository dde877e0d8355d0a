"""Small files that would take forever or very much memory are handled quickly, and so are legitimate files with very
many items."""

import json
import struct
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.hostile import files
from tests.hostile.test_files import try_to_open
from tests.long import short_or_long

import leafwise as lw
from leafwise.files.limits import MAX_BYTES, MAX_STEPS

BOMB = b")\x85" + b"2\x86" * 45  # a tuple that expands to 2**45 others


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


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_AND_SLOW)
def test_small_pickles_that_would_take_forever_are_refused_quickly(name: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(files.in_zip(b"\x80\x02" + SMALL_AND_SLOW[name]))
    started = time.process_time()
    said = try_to_open(path)
    assert time.process_time() - started < 5  # a hang guard, not a measurement
    assert said != "opened" or name in ("lists of lists", "numbers that collide")


@pytest.mark.slow
def test_small_files_that_would_take_forever_are_handled_quickly(tmp_path: Path) -> None:
    started = time.process_time()
    (tmp_path / "legacy.pt").write_bytes(files.in_legacy(b"\x80\x02N.")[:-4] + b"\x80\x02]" + BOMB + b"a.")
    assert try_to_open(tmp_path / "legacy.pt") != "opened"
    for key in (b"]a.", b"}a."):
        (tmp_path / "legacy.pt").write_bytes(files.in_legacy(b"\x80\x02N.")[:-4] + b"\x80\x02]" + key)
        assert try_to_open(tmp_path / "legacy.pt") != "opened"
    storage = torch.randn(40_000)
    strange = {str(n): torch.as_strided(storage, (60, 30), (7, 11), n) for n in range(short_or_long(50, 150))}
    windows = {f"w{n}": storage[n : n + 500] for n in range(short_or_long(500, 1500))}
    torch.save({**strange, **windows}, tmp_path / "views.pt")
    assert try_to_open(tmp_path / "views.pt") == "opened"
    assert time.process_time() - started < 30


@pytest.mark.slow
def test_deep_names_in_a_file_take_linear_time(tmp_path: Path) -> None:
    header = {".".join([f"k{n}"] * 200): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for n in range(400)}
    raw = json.dumps(header).encode()
    file = tmp_path / "deep.safetensors"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    tree = lw.tree(file)
    assert len(tree.json()["leaves"]) == 400
    assert len(tree.text().splitlines()) <= 60


@pytest.mark.slow
def test_a_duplicate_among_very_many_names_is_found_quickly(tmp_path: Path) -> None:
    rows = ",".join(f'"n{n}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}' for n in [*range(50_000), 49_999])
    raw = f"{{{rows}}}".encode()
    file = tmp_path / "twice.safetensors"
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    with pytest.raises(lw.FileError, match="'n49999' occurs twice"):
        lw.tree(file)


def test_names_with_very_many_dots_take_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    name = ".".join("a" * 50_000)
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    tracemalloc.start()
    try:
        assert len(lw.open(tmp_path / "a.safetensors")) == 1
        assert tracemalloc.get_traced_memory()[1] < 100_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_legitimate_checkpoints_with_very_many_tensors_open(tmp_path: Path) -> None:
    # Usually with a twentieth of the tensors, and a twentieth of what opening them may cost.
    share = short_or_long(20, 1)
    count, limits = 80_000 // share, {"max_bytes": MAX_BYTES // share, "max_steps": MAX_STEPS // share}
    torch.save({f"layer.{number}.weight": torch.tensor([1.0]) for number in range(count)}, tmp_path / "a.pt")
    assert len(lw.open(tmp_path / "a.pt", **limits)) == count
    count = 60_000 // share
    np.savez(tmp_path / "a.npz", **{f"layer.{number}.weight": np.ones(1) for number in range(count)})
    assert len(lw.open(tmp_path / "a.npz", **limits)) == count
