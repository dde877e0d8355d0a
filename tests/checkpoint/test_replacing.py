"""What a save replaces, and what it leaves alone."""

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw


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
    with pytest.raises(lw.FileError, match=r"2 checkpoints; .*/ema.*index.json', '.*/last\.safetensors'"):
        lw.open(tmp_path)
    lw.save(filled(3), tmp_path)
    assert loaded(tmp_path) == 3  # what is saved to a folder is what the folder gives
    lw.save(filled(4), tmp_path, shard_size="10B")
    assert loaded(tmp_path) == 4


def test_a_file_that_is_not_an_index_is_neither_removed_nor_replaced(tmp_path: Path) -> None:
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


def test_a_save_leaves_the_shards_of_others_alone(tmp_path: Path) -> None:
    state = {"a": torch.ones(100), "b": torch.ones(100)}
    lw.save(state, tmp_path / "m", shard_size=400)
    lw.save(state, tmp_path / "m.safetensors", shard_size=400)
    index = tmp_path / "m.safetensors.index.json"
    (tmp_path / "copy.safetensors.index.json").write_bytes(index.read_bytes())
    lw.save(state, tmp_path / "m.safetensors")
    for name in ("m", "m.safetensors", "copy.safetensors"):
        assert lw.verify(tmp_path / name).leaves == 2, name


def test_shards_are_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    link = tmp_path / "x" / "l.safetensors"
    link.symlink_to(tmp_path / "y" / "t.safetensors")
    state = {"a": torch.ones(100), "b": torch.ones(100)}
    lw.save(state, link)
    written = lw.save(state, link, shard_size=400)
    assert lw.verify(written).leaves == lw.verify(link).leaves == 2


def test_only_files_are_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(lw.FileError, match=r"it is not a file, but a folder, a pipe or a device"):
        lw.save({"a": torch.ones(2)}, tmp_path / "pipe")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_private_checkpoint_stays_private(tmp_path: Path) -> None:
    state = {"a": torch.ones(100), "b": torch.ones(100)}
    path = tmp_path / "m.safetensors"
    lw.save(state, path)
    path.chmod(0o600)
    for options in ({"shard_size": 400}, {"shard_size": 400}, {}):
        lw.save(state, path, **options)  # type: ignore[arg-type]
        assert {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()} == {0o600}
