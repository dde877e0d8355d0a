"""What a newcomer and an attacker found after files, faults and threads were hardened."""

import io
import json
import struct
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import leafwise as lw
from leafwise.files import disk as local
from leafwise.files.disk import Disk


def filled(value: float) -> nn.Module:
    model = nn.Linear(2, 2)
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


def loaded(path: Any) -> float:
    return float(lw.load(nn.Linear(2, 2), path).weight.detach()[0, 0])


def test_a_folder_with_several_checkpoints_is_not_guessed_at(tmp_path: Path) -> None:
    lw.save(filled(1), tmp_path / "ema.safetensors", shard_size="10B")
    assert loaded(tmp_path) == 1
    lw.save(filled(2), tmp_path / "last.safetensors")
    with pytest.raises(lw.FileError, match=r"several checkpoints; .*'ema.*index.json', 'last\.safetensors'"):
        lw.open(tmp_path)
    lw.save(filled(3), tmp_path)
    assert loaded(tmp_path) == 3  # what is saved to a folder is what the folder gives
    lw.save(filled(4), tmp_path, shard_size="10B")
    assert loaded(tmp_path) == 4


def test_a_file_that_is_written_to_while_it_is_copied_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {name: torch.ones(300_000) for name in "abc"}
    path = Path(lw.save(values, tmp_path / "a.safetensors"))

    class Changing(Disk):
        """Once everything was compared, somebody writes to the file."""

        reads, lock = 0, threading.Lock()

        def read_into(self, file: int, start: int, view: memoryview) -> int:
            with self.lock:
                self.reads += 1
                if self.reads == 7:  # each array has two chunks
                    with path.open("r+b") as out:
                        out.seek(-4, 2)
                        out.write(b"\x00\x00\x00\x40")
            return super().read_into(file, start, view)

    monkeypatch.setattr(local, "disk", Changing())
    with pytest.raises(lw.LoadError, match=r"was changed while it was being read.*partly changed"):
        lw.load({name: torch.zeros(300_000) for name in "abc"}, path)


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


@pytest.mark.parametrize("name", [".a", "..a", "a.", "a..b", ".", ""])
def test_empty_steps_of_names_count(name: str, tmp_path: Path) -> None:
    save_file({name: torch.ones(2)}, tmp_path / "a.safetensors")
    for other in ({"a": torch.zeros(2)}, {"a": {"b": torch.zeros(2)}}):
        with pytest.raises(lw.LoadError, match="missing"):
            lw.load(other, tmp_path / "a.safetensors")
    assert lw.load({name: torch.zeros(2)}, tmp_path / "a.safetensors")[name].all()
    save_file({name: torch.ones(2), "a.b": torch.ones(1)}, tmp_path / "b.safetensors")
    target = lw.load({name: torch.zeros(2), "a.b": torch.zeros(1)}, tmp_path / "b.safetensors")
    assert all(value.all() for value in target.values())


def test_honest_checkpoints_with_many_tensors_open(tmp_path: Path) -> None:
    torch.save({f"layer.{number}.weight": torch.tensor([1.0]) for number in range(80_000)}, tmp_path / "a.pt")
    assert len(lw.open(tmp_path / "a.pt")) == 80_000
    np.savez(tmp_path / "a.npz", **{f"layer.{number}.weight": np.ones(1) for number in range(60_000)})
    assert len(lw.open(tmp_path / "a.npz")) == 60_000


@pytest.mark.parametrize("wrong", ["2GB", 0, -1, 1.5, float("nan"), True])
def test_limits_are_whole_numbers(wrong: Any, tmp_path: Path) -> None:
    path = lw.save(filled(1), tmp_path / "a.safetensors")
    for limit in ("max_bytes", "max_steps"):
        with pytest.raises(lw.QueryError, match=f"{limit}= takes a whole number above 0"):
            lw.open(path, **{limit: wrong})


def test_paths_that_no_file_can_have(tmp_path: Path) -> None:
    wrong = f"{tmp_path}/a\ud800b"
    for verb in (lw.open, lw.verify, lw.stats, lambda path: lw.save(filled(1), path), lambda path: lw.diff(path, path)):
        with pytest.raises(lw.FileError):
            verb(wrong)


def test_a_file_that_is_no_index_is_neither_removed_nor_replaced(tmp_path: Path) -> None:
    notes = tmp_path / "u.safetensors.index.json"
    notes.write_text('{"my": "notes"}', "utf-8")
    lw.save(filled(1), tmp_path / "u.safetensors")
    with pytest.raises(lw.FileError, match="not an index of shards"):
        lw.save(filled(2), tmp_path / "u.safetensors", shard_size="10B")
    assert notes.read_text("utf-8") == '{"my": "notes"}'
    assert loaded(tmp_path / "u.safetensors") == 1
    for cut in ("", '{"weight_map": {"a": "b'):
        notes.write_text(cut, "utf-8")
        lw.save(filled(2), tmp_path / "u.safetensors")
        assert not notes.exists()


def test_zips_with_something_before_or_behind_them(tmp_path: Path) -> None:
    both = []
    for value in (1.0, 2.0):
        file = io.BytesIO()
        torch.save({"a": torch.tensor(value)}, file)
        both.append(file.getvalue())
    (tmp_path / "two.pt").write_bytes(b"".join(both))
    with pytest.raises(lw.FileError, match="stand before the zip"):
        lw.open(tmp_path / "two.pt")
    with zipfile.ZipFile(io.BytesIO(both[0])):
        data = bytearray(both[0])
    data[-2:] = (4).to_bytes(2, "little")
    (tmp_path / "comment.pt").write_bytes(bytes(data) + b"leaf")
    with pytest.raises(lw.FileError, match="has a comment"):
        lw.open(tmp_path / "comment.pt")


def test_what_holds_itself_is_not_saved(tmp_path: Path) -> None:
    circle: dict[str, Any] = {"w": torch.ones(2)}
    circle["again"] = {"up": [circle]}
    deep: list[Any] = [torch.ones(1)]
    deep.append(deep)
    for value, place in ((circle, "again.up.0"), ({"deep": deep}, "deep.1")):
        with pytest.raises(lw.WalkError, match=rf"cannot save {place}: it is (the root|deep), which holds it"):
            lw.save(value, tmp_path / "a.safetensors")
    shared = nn.Linear(2, 2)
    lw.save({"a": shared, "b": {"c": shared}}, tmp_path / "a.safetensors")  # twice, and no circle
    assert len(lw.ties(lw.open(tmp_path / "a.safetensors"))) == 2
