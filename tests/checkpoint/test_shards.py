"""Checkpoints in several files: an index belongs to its shards, and missing shards are an error."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import leafwise as lw
from leafwise.cli import main
from leafwise.files.sources import disk as local
from leafwise.files.sources.disk import Disk

BEFORE = Path(__file__).parents[1] / "files" / "golden" / "leafwise-unbound"  # written before shards were bound


def state(generation: int) -> dict[str, torch.Tensor]:
    return {name: torch.full((50,), float(generation)) for name in "abc"}


def saved(folder: Path, generation: int) -> tuple[Path, list[Path]]:
    """A checkpoint of three shards: its index and the shards."""
    folder.mkdir(exist_ok=True)
    index = Path(lw.save(state(generation), folder / "model.safetensors", shard_size=200))
    return index, sorted(folder.glob("*-of-*"))


def ways(index: Path) -> list[Path]:
    return [index, index.parent, index.with_name("model.safetensors")]


# -- shards and their index belong together ----------------------------------------------------------------


def test_an_index_binds_its_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index, shards = saved(tmp_path, 1)
    assert len(shards) == 3
    for way in ways(index):
        assert lw.verify(way) == (3, 600, 0, (), 3, 0)
    assert main(["verify", str(index)]) == 0
    assert "3 leaves, 600 B, 3 shards bound to the index: every checksum matches" in capsys.readouterr().out
    # Other readers see a normal index.
    said = json.loads(index.read_text("utf-8"))
    assert {name: load_file(tmp_path / shard)[name][0] for name, shard in said["weight_map"].items()} == dict.fromkeys(
        "abc", 1.0
    )


def replacements(shard: Path, older: Path) -> dict[str, Any]:
    """Files with arrays of the same names, shapes and dtypes, which are not the shard that was written."""
    name = next(iter(load_file(shard)))
    wrong = {name: torch.full((50,), 9.0)}

    def single(path: Path) -> None:
        lw.save(wrong, path.with_name("other.safetensors"))
        os.replace(path.with_name("other.safetensors"), path)

    return {
        "an older save": lambda path: shutil.copy(older, path),
        "plain safetensors": lambda path: save_file(wrong, path),
        "the same values, plain": lambda path: save_file(load_file(shard), path),
        "a file of its own": single,
        "a .bin": lambda path: torch.save(wrong, path),
    }


@pytest.mark.parametrize(
    "kind", ["an older save", "plain safetensors", "the same values, plain", "a file of its own", "a .bin"]
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_shard_that_was_replaced_is_refused(kind: str, which: int, tmp_path: Path) -> None:
    _, older = saved(tmp_path / "old", 1)
    index, shards = saved(tmp_path / "new", 2)
    replacements(shards[which], older[which])[kind](shards[which])
    for way in ways(index):
        for verb in (lw.open, lw.verify, lambda path: lw.load(state(0), path)):
            with pytest.raises(lw.ChecksumError, match=r"is not the shard that the index was written with") as caught:
                verb(way)
            assert shards[which].name in str(caught.value)
    # With verify=False, the shards are read as they are.
    target = state(0)
    lw.load(target, index, verify=False)
    assert sum(bool((target[name] == 2).all()) for name in "abc") >= 2


def test_old_and_new_shards_do_not_mix(tmp_path: Path) -> None:
    _, older = saved(tmp_path / "old", 1)
    index, shards = saved(tmp_path / "new", 2)
    for old, new in zip(older, shards, strict=True):  # all of them: only the index is new
        shutil.copy(old, new)
    with pytest.raises(lw.ChecksumError, match=r"another save"):
        lw.open(index)
    # A shard whose content is the same to the last bit is the same shard.
    _, equal = saved(tmp_path / "again", 2)
    for new, again in zip(shards, equal, strict=True):
        shutil.copy(again, new)
    assert lw.verify(index).bound == 3


def test_indexes_from_before_and_those_of_others_are_unbound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for way in (BEFORE, BEFORE / "model.safetensors", BEFORE / "model.safetensors.index.json"):
        assert lw.verify(way) == (3, 148, 0, (), 0, 2)
        with lw.open(way) as t:
            assert t["step"] == 7
            assert np.array_equal(t["head.weight"].numpy(), np.arange(12).reshape(4, 3))
            assert len(t.ties) == 1
    assert main(["verify", str(BEFORE)]) == 1
    assert "2 shards are not bound to an index" in capsys.readouterr().out
    assert main(["verify", str(BEFORE), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "ok": False, "leaves": 3, "bytes": 148, "unchecked": 0, "without_checksums": [], "bound": 0,
        "unbound": 2,
    }  # fmt: skip
    # Saving it again binds them.
    bound = lw.save(lw.open(BEFORE), tmp_path / "model.safetensors", shard_size=100)
    assert lw.verify(bound) == (3, 148, 0, (), 2, 0)
    # An index by Hugging Face, and shards without an index.
    index, _ = saved(tmp_path / "theirs", 1)
    said = json.loads(index.read_text("utf-8"))
    del said["leafwise"]
    index.write_text(json.dumps(said))
    assert lw.verify(index) == (3, 600, 0, (), 0, 3)
    index.unlink()
    assert lw.verify(index.parent) == (3, 600, 0, (), 0, 3)


def test_an_entry_that_lists_other_shards_is_refused(tmp_path: Path) -> None:
    from leafwise.files import record

    index, shards = saved(tmp_path, 1)
    weights = json.loads(index.read_text("utf-8"))["weight_map"]
    seals = dict(json.loads(json.loads(index.read_text("utf-8"))["leafwise"].split(" ", 2)[2])["shards"])
    assert list(seals) == [shard.name for shard in shards]
    rest = f'",{json.dumps({"weight_map": weights})[1:]}'
    columns: list[Any] = [
        list(seals.items())[:-1],
        [*seals.items(), ("more", "0" * 16)],
        [*seals.items(), next(iter(seals.items()))],
        [[name, 1] for name in seals],
        [[name] for name in seals],
        seals,
    ]
    for rows in columns:
        entry = json.dumps(json.dumps({"shards": rows}))[1:-1]
        index.write_bytes(record.sealed(f" {entry}{rest}", record.INDEX, lead=0))
        with pytest.raises(
            lw.FileError, match=r"entry and the weight_map list different shards|entry in the header cannot be read"
        ):
            lw.open(index)
    entry = json.dumps(json.dumps({"shards": list(seals.items())}))[1:-1]
    index.write_bytes(record.sealed(f" {entry}{rest}", record.INDEX, lead=0))
    assert lw.verify(index).bound == 3


# -- shards that are not there -----------------------------------------------------------------------------


class CountingDisk(Disk):
    """Counts how often each file is opened and read."""

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()
        self.reads = 0

    def open(self, path: str) -> int:
        self.opened[os.path.basename(path)] += 1
        return super().open(path)

    def read(self, file: int, start: int, length: int) -> bytes:
        self.reads += 1
        return super().read(file, start, length)


@pytest.mark.parametrize("bound", [True, False], ids=["leafwise's", "Hugging Face's"])
def test_an_unfinished_download_is_refused_at_once(
    bound: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 163
    tensors = {f"layer.{number}": torch.ones(2) for number in range(count)}
    index = Path(lw.save(tensors, tmp_path / "model.safetensors", shard_size=8))
    if not bound:
        said = json.loads(index.read_text("utf-8"))
        index.write_text(json.dumps({"weight_map": said["weight_map"]}))
    shards = sorted(tmp_path.glob("*-of-*"))
    assert len(shards) == count
    for gone, told in ((1, "1 of 163 shards is missing"), (3, "3 of 163 shards are missing")):
        for shard in shards[-gone:]:
            shard.unlink(missing_ok=True)
        for way in ways(index):
            disk = CountingDisk()
            with monkeypatch.context() as patched:
                patched.setattr(local, "disk", disk)
                with pytest.raises(lw.FileError, match=told) as caught:
                    lw.open(way)
            for shard in shards[-gone:]:
                assert shard.name in str(caught.value)
            assert disk.opened[index.name] <= 2
            assert max(disk.opened[shard.name] for shard in shards) <= 1
            assert disk.reads <= 4  # of the index only
    index.unlink()
    with pytest.raises(lw.FileError, match=r"3 of 163 shards are missing"):  # their numbers say so
        lw.open(tmp_path)


def test_an_index_of_very_many_files_that_are_not_there_is_refused_quickly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {str(number): f"shard{number}" for number in range(50_000)}}))
    disk = CountingDisk()
    with monkeypatch.context() as patched:
        patched.setattr(local, "disk", disk)
        with pytest.raises(lw.FileError, match=r"at least 1,000 of 50,000 shards are missing: 'shard0', .* more"):
            lw.open(index)
    assert sum(disk.opened.values()) < 1_100
    index.unlink()
    save_file({"a": torch.ones(1)}, tmp_path / "model-1-of-99999999999999999999.safetensors")
    with pytest.raises(lw.FileError, match=r"at least 1,000 of 99,999,999,999,999,999,999 shards are missing"):
        lw.open(tmp_path)


def test_all_shards_are_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index, shards = saved(tmp_path, 1)
    disk = CountingDisk()
    monkeypatch.setattr(local, "disk", disk)
    with lw.open(index):
        assert disk.opened == {index.name: 1, **{shard.name: 1 for shard in shards}}


def test_a_link_to_a_shard_that_is_gone_is_a_missing_shard(tmp_path: Path) -> None:
    """As in the cache of Hugging Face, when a download was stopped."""
    index, shards = saved(tmp_path, 1)
    shards[1].unlink()
    shards[1].symlink_to(tmp_path / "blob")
    with pytest.raises(lw.FileError, match=r"1 of 3 shards is missing"):
        lw.open(index)
    index.unlink()
    with pytest.raises(lw.FileError, match=r"1 of 3 shards is missing"):
        lw.open(tmp_path)


def test_numbered_files_must_all_be_there(tmp_path: Path) -> None:
    for number in (0, 1, 3):
        torch.save({str(number): torch.ones(1)}, tmp_path / f"pytorch_model-{number:05}-of-00004.bin")
    with pytest.raises(lw.FileError, match=r"1 of 4 shards is missing: 'pytorch_model-00002-of-00004.bin'"):
        lw.open(tmp_path)
    torch.save({"2": torch.ones(1)}, tmp_path / "pytorch_model-00002-of-00004.bin")
    assert len(lw.open(tmp_path)) == 4
    for name in os.listdir(tmp_path):
        if "00003-" not in name:
            (tmp_path / name).unlink()
    with pytest.raises(lw.FileError, match=r"3 of 4 shards are missing"):
        lw.open(tmp_path)


def test_what_was_written_is_proven_without_opening_twice_as_many_files(tmp_path: Path) -> None:
    script = """
    import resource, sys
    import numpy as np
    import leafwise as lw
    state = {f"layer.{number}": np.ones(2) for number in range(100)}
    lw.save(state, sys.argv[1])  # whatever is imported late
    resource.setrlimit(resource.RLIMIT_NOFILE, (160, 160))
    index = lw.save(state, sys.argv[1], shard_size=16)
    print(lw.verify(index).bound)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "model.safetensors")],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_the_kinds_and_ties_of_leaves_are_those_of_the_model(tmp_path: Path) -> None:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(50))
    model.register_buffer("table", torch.zeros(50))
    model.register_buffer("again", model.table)
    tree = lw.tree(lw.save(model, tmp_path / "model.safetensors", shard_size=200))
    assert [leaf.kind for leaf in tree] == ["parameter", "buffer"]
    assert [[str(name.path) for name in tie.names] for tie in tree.ties] == [["table", "again"]]
