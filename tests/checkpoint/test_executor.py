"""With executor=, lw.verify finds the same damage, and lw.edit writes the same bytes, as in one process."""

import os
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.executors import Shuffled, processes, saved_pair, state, tasks_of

import leafwise as lw


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with processes() as executor:
        yield executor


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return saved_pair(tmp_path_factory.mktemp("pair"))


# -- verify ----------------------------------------------------------------------------------------------------------


@settings(max_examples=10)
@given(nbytes=st.integers(1, 8 << 20), seed=st.integers(0, 1 << 30))
def test_any_cut_verifies_every_checksum(pair: tuple[str, str], nbytes: int, seed: int) -> None:
    for path in pair:
        with Shuffled(seed) as executor, tasks_of(nbytes):
            assert lw.verify(path, executor=executor) == lw.verify(path)


def flipped(path: str, offset: int) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


@settings(max_examples=10)
@given(place=st.floats(0, 1), nbytes=st.integers(1, 8 << 20))
def test_any_flipped_bit_is_found_by_workers(
    tmp_path_factory: pytest.TempPathFactory, place: float, nbytes: int
) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    for path in (str(folder / "a.safetensors"), str(folder / "b.pt")):
        values = {"w": torch.ones(700_000), "v": torch.zeros(300_000)}
        if path.endswith(".pt"):
            torch.save(values, path)
            first = 5_000  # after the pickle
        else:
            lw.save(values, path)
            first = os.path.getsize(path) - 4_000_000
        flipped(path, int(first + place * (os.path.getsize(path) - 10_000 - first)))
        with pytest.raises(lw.ChecksumError) as expected:
            lw.verify(path)
        with Shuffled() as executor, tasks_of(nbytes), pytest.raises(lw.ChecksumError) as caught:
            lw.verify(path, executor=executor)
        assert str(caught.value) == str(expected.value)
        assert caught.value.leaves == expected.value.leaves


def test_processes_find_damage_in_shards(pool: Executor, tmp_path: Path) -> None:
    first, _ = saved_pair(tmp_path)
    shard = max(tmp_path.glob("first-*.safetensors"), key=os.path.getsize)
    flipped(str(shard), os.path.getsize(shard) // 2)
    with pytest.raises(lw.ChecksumError) as expected:
        lw.verify(first)
    with tasks_of(1 << 20), pytest.raises(lw.ChecksumError) as caught:
        lw.verify(first, executor=pool)
    assert str(caught.value) == str(expected.value)


# -- edit ------------------------------------------------------------------------------------------------------------

EDITS: dict[str, dict[str, Any]] = {
    "copy": {},
    "cast": {"cast": "bfloat16", "saturate": True},
    "shards": {"shard_size": "2MB"},
    "cast shards": {"cast": "float32", "shard_size": "1500KB", "saturate": True},
    "transpose": {"transpose": "layers.{0,1}.weight"},
    "resize": {"resize": {"layers.1.weight": {"size": 650, "fill": "mean"}}},
    "split": {"split": {"layers.0.weight": ["x", "y"]}, "drop": "half"},
}


def written(folder: Path, name: str) -> list[bytes]:
    """The bytes of all shards of a checkpoint, in order, or of the file."""
    files = [path for path in folder.iterdir() if path.name.startswith(name) and path.suffix == ".safetensors"]
    return [path.read_bytes() for path in sorted(files)]


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("side", [0, 1])
def test_an_edit_by_workers_writes_the_same_bytes(
    name: str, side: int, pool: Executor, pair: tuple[str, str], tmp_path: Path
) -> None:
    lw.edit(pair[side], tmp_path / "one.safetensors", **EDITS[name])
    with tasks_of(1 << 20):
        edited = lw.edit(pair[side], tmp_path / "two.safetensors", executor=pool, **EDITS[name])
    assert edited.written
    first, second = written(tmp_path, "one"), written(tmp_path, "two")
    assert first == second
    assert len(first) > 1 or "shard_size" not in EDITS[name]
    assert lw.verify(tmp_path / "two.safetensors").ok
    assert not list(tmp_path.glob(".leafwise*"))


def test_sums_of_checkpoints_are_computed_by_workers(pool: Executor, tmp_path: Path) -> None:
    sources = [str(lw.save(state(seed), tmp_path / f"{seed}.safetensors")) for seed in (1, 2)]
    options: dict[str, Any] = {"formula": "0.25 * a + 0.75 * b", "drop": "double", "copy": "count"}
    lw.edit(sources, tmp_path / "one.safetensors", **options)
    with tasks_of(1 << 20):
        lw.edit(sources, tmp_path / "two.safetensors", executor=pool, **options)
    assert written(tmp_path, "one") == written(tmp_path, "two")


@settings(max_examples=6)
@given(nbytes=st.integers(1, 8 << 20), seed=st.integers(0, 1 << 30))
def test_any_cut_in_any_order_writes_the_same_bytes(
    pair: tuple[str, str], tmp_path_factory: pytest.TempPathFactory, nbytes: int, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("edited")
    options: dict[str, Any] = {"cast": {"layers.**": "float16"}, "saturate": True, "shard_size": "3MB"}
    lw.edit(pair[0], folder / "one.safetensors", **options)
    with Shuffled(seed) as executor, tasks_of(nbytes):
        lw.edit(pair[0], folder / "two.safetensors", executor=executor, **options)
    assert written(folder, "one") == written(folder, "two")


@pytest.mark.parametrize("shard_size", [None, "1MB"])
@pytest.mark.parametrize("options", [{}, {"cast": "bfloat16"}, {"transpose": "w"}])
def test_damage_that_workers_find_leaves_the_old_checkpoint(
    shard_size: str | None, options: dict[str, Any], tmp_path: Path
) -> None:
    source, out = str(tmp_path / "source.safetensors"), tmp_path / "out.safetensors"
    lw.save({"v": torch.zeros(400_000), "w": torch.ones(1000, 700)}, source)
    lw.save({"old": torch.ones(3)}, out)
    flipped(source, os.path.getsize(source) - 1_000_000)
    damaged = pytest.raises(lw.ChecksumError, match="w is damaged")
    with ThreadPoolExecutor(2) as executor, tasks_of(1 << 20), damaged:
        lw.edit(source, out, executor=executor, shard_size=shard_size, **options)
    assert "old" in lw.open(out)
    assert {path.name for path in tmp_path.iterdir()} == {"source.safetensors", "out.safetensors"}


def test_a_value_that_does_not_fit_is_an_error_of_the_edit(pool: Executor, tmp_path: Path) -> None:
    source = lw.save({"w": torch.full((10,), 1e6)}, tmp_path / "source.safetensors")
    with pytest.raises(lw.EditError, match=r"cannot write w: .*saturate=True"):
        lw.edit(source, tmp_path / "out.safetensors", cast="float16", executor=pool)
    assert not (tmp_path / "out.safetensors").exists()


def test_a_folder_that_workers_cannot_reach_is_an_error_that_says_so(
    pool: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leafwise.files.writing.writer import LocalOutput

    source = lw.save({"w": torch.ones(10)}, tmp_path / "source.safetensors")
    created = LocalOutput.__init__

    def elsewhere(self: LocalOutput, *args: Any) -> None:
        """As if the folder had another name for the workers."""
        created(self, *args)
        self.staged = self.staged.replace(str(tmp_path), "/nowhere")

    monkeypatch.setattr(LocalOutput, "__init__", elsewhere)
    monkeypatch.setattr(LocalOutput, "discard", lambda self: None)
    with pytest.raises(lw.FileError, match=r"on the worker .*workers must reach the folder of the new checkpoint"):
        lw.edit(source, tmp_path / "out.safetensors", executor=pool)


@pytest.mark.parametrize("shard_size", [None, "1MB"])
def test_workers_replace_a_checkpoint_in_the_other_layout(
    pool: Executor, shard_size: str | None, tmp_path: Path
) -> None:
    source = lw.save(state(), tmp_path / "source.safetensors")
    out = tmp_path / "out.safetensors"
    lw.save({"old": torch.ones(400_000), "older": torch.ones(400_000)}, out, shard_size=None if shard_size else "1MB")
    with tasks_of(1 << 20):
        edited = lw.edit(source, out, executor=pool, shard_size=shard_size)
    index = tmp_path / "out.safetensors.index.json"
    assert edited.path == str(index if shard_size else out)
    assert index.exists() == (shard_size is not None)
    assert out.exists() == (shard_size is None)
    assert lw.diff(source, edited.path).same
    shards = list(tmp_path.glob("out-*.safetensors"))
    assert bool(shards) == (shard_size is not None)
    assert not any(name in lw.open(path) for path in shards for name in ("old", "older"))


@pytest.mark.parametrize("shard_size", [None, "1MB"])
def test_workers_write_tied_names_as_copies(pool: Executor, shard_size: str | None, tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(600, 600), torch.nn.Linear(600, 600), torch.nn.Linear(600, 600))
    net[2].weight = net[0].weight
    source = lw.save(net, tmp_path / "source.safetensors")
    options: dict[str, Any] = {"ties": "copy", "shard_size": shard_size}
    lw.edit(source, tmp_path / "one.safetensors", **options)
    with tasks_of(1 << 20):
        lw.edit(source, tmp_path / "two.safetensors", executor=pool, **options)
    first = written(tmp_path, "one")
    assert first == written(tmp_path, "two")
    assert len(first) == (1 if shard_size is None else 5)
    assert sum(map(len, first)) > 3 * 600 * 600 * 4


@pytest.mark.parametrize("options", [{}, {"cast": "bfloat16", "saturate": True}, {"transpose": "layers.{0,1}.weight"}])
def test_workers_write_the_same_distributed_checkpoint(
    options: dict[str, Any], pair: tuple[str, str], pool: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The names of the files contain a random number, which is stored in them, too.
    monkeypatch.setattr("leafwise.files.dcp.writer.secrets", SimpleNamespace(token_hex=lambda count: "07" * count))
    lw.edit(pair[0], tmp_path / "one", format="dcp", **options)
    with tasks_of(1 << 20):
        edited = lw.edit(pair[0], tmp_path / "two", format="dcp", executor=pool, **options)
    assert edited.written
    first, second = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("one", "two"))
    assert first == second
    assert len(first) == 3
    assert lw.verify(tmp_path / "two").ok


def test_damage_that_workers_find_leaves_the_old_distributed_checkpoint(pool: Executor, tmp_path: Path) -> None:
    source, out = str(tmp_path / "source.safetensors"), tmp_path / "out"
    lw.save({"v": torch.zeros(400_000), "w": torch.ones(1000, 700)}, source)
    lw.save({"old": torch.ones(3)}, out, format="dcp")
    before = sorted(out.iterdir())
    flipped(source, os.path.getsize(source) - 1_000_000)
    with tasks_of(1 << 20), pytest.raises(lw.ChecksumError, match="w is damaged"):
        lw.edit(source, out, format="dcp", executor=pool)
    assert sorted(out.iterdir()) == before
    assert "old" in lw.open(out)


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_url_is_not_written_by_workers(pool: Executor, dry_run: bool, tmp_path: Path) -> None:
    source = lw.save({"w": torch.ones(10)}, tmp_path / "source.safetensors")
    url = "memory://executor/out.safetensors"
    with pytest.raises(lw.QueryError, match=r"cannot write 'memory://executor/out.safetensors' with executor="):
        lw.edit(source, url, executor=pool, dry_run=dry_run)
    assert not fsspec.filesystem("memory").exists("executor")
    lw.edit(source, f"file://{tmp_path}/out.safetensors", executor=pool, dry_run=dry_run)  # a path of this machine
    assert (tmp_path / "out.safetensors").exists() != dry_run


def test_npz_files_are_not_written_by_workers(tmp_path: Path) -> None:
    source = lw.save({"w": torch.ones(10)}, tmp_path / "source.safetensors")
    with (
        ThreadPoolExecutor(1) as executor,
        pytest.raises(lw.QueryError, match="the format npz is written by one process"),
    ):
        lw.edit(source, tmp_path / "out.npz", executor=executor)
