"""Arrays that are written to while they are saved: an array may be torn, but the file is whole and its
checksums are right."""

import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.long import short_or_long
from torch import nn

import leafwise as lw
from leafwise.files.sources.disk import Disk
from leafwise.files.writing import item_writer

ROUNDS = short_or_long(4, 10)


class Net(nn.Module):
    """Large and small leaves, a buffer that is not in C order, and a tie."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3000, 200)
        self.small = nn.ParameterList([nn.Parameter(torch.zeros(3)) for _ in range(20)])
        self.register_buffer("turned", torch.zeros(300, 400).T)
        self.head = nn.Linear(200, 3000)
        self.head.weight = self.embed.weight


@contextmanager
def written_to(values: list[Any]) -> Iterator[None]:
    """A thread that changes arrays all the time, as Hogwild training and averages in a thread do."""
    stop = threading.Event()
    before = sys.getswitchinterval()

    def run() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            for value in values:
                value[...] = number

    thread = threading.Thread(target=run)
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(before)


OPTIONS: dict[str, dict[str, Any]] = {
    "one file": {},
    "shards": {"shard_size": "1MB"},
    "cast": {"dtype": "bfloat16"},
    "every name": {"ties": "copy"},
    "every name, in shards": {"ties": "copy", "shard_size": "1MB"},
    "background": {"background": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_what_is_saved_while_a_thread_writes_can_be_loaded(options: dict[str, Any], tmp_path: Path) -> None:
    net, path = Net(), tmp_path / "model.safetensors"
    tensors = [value.detach() for value in (*net.parameters(), *net.buffers())]
    with written_to(tensors):
        for _ in range(ROUNDS):
            saved = lw.save(net, path, **options)
            if options.get("background"):
                saved.wait()
            lw.verify(path)
            lw.load(Net(), path, cast=True)


def test_numpy_arrays_saved_while_a_thread_writes_can_be_loaded(tmp_path: Path) -> None:
    arrays = {"a": np.zeros((700, 900)), "b": np.zeros((300, 500), order="F"), "c": np.zeros(5, np.float16)}
    with written_to(list(arrays.values())):
        for _ in range(ROUNDS):
            path = lw.save(arrays, tmp_path / "model.safetensors")
            lw.verify(path)
            lw.load({name: np.empty_like(value) for name, value in arrays.items()}, path)


@pytest.mark.parametrize("size", [3, 1 << 18, 5 << 18, (1 << 18) + 1])
def test_memory_that_changes_between_a_checksum_and_a_write_is_saved_with_a_right_checksum(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = torch.zeros(size)
    add: Callable[..., None] = item_writer.ChunkHasher.add
    write: Callable[..., None] = Disk.write
    happened: list[str] = []

    def adding(self: Any, data: Any) -> None:
        add(self, data)
        happened.append("sum")
        value.add_(1)

    def writing(self: Any, file: int, data: Any) -> None:
        happened.append("write")
        value.add_(1)
        write(self, file, data)

    monkeypatch.setattr(item_writer.ChunkHasher, "add", adding)
    monkeypatch.setattr(Disk, "write", writing)
    path = lw.save({"a": value}, tmp_path / "model.safetensors")
    assert {"sum", "write"} <= set(happened)
    assert lw.verify(path).leaves == 1
    with lw.open(path) as t:
        # The part that was read first was read before it changed.
        assert t["a"].numpy()[0] == 0


def test_names_of_one_leaf_get_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Ties(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(40, 40, bias=False)
            self.b = nn.Linear(40, 40, bias=False)
            lw.tie(self, "b.weight", to="a.weight", keep="source")
            self.register_buffer("turned", self.a.weight.detach().T)
            self.register_buffer("some", self.a.weight.detach()[3:9, ::2])

    net = Ties()
    end: Callable[..., None] = item_writer.ChunkHasher.end

    def ending(self: Any) -> None:
        end(self)
        net.a.weight.detach().add_(1)

    for options in ({}, {"shard_size": 6000}, {"dtype": "float16"}, {"background": True}):
        with monkeypatch.context() as patched:
            patched.setattr(item_writer.ChunkHasher, "end", ending)
            path = lw.save(net, tmp_path / "model.safetensors", ties="copy", **options)  # type: ignore[call-overload]
            if not isinstance(path, str):
                path = path.wait()
        lw.verify(path)
        with lw.open(path) as t:
            weight = t["a.weight"].numpy()
            assert np.array_equal(t["b.weight"].numpy(), weight)
            assert np.array_equal(t["turned"].numpy(), weight.T)
            assert np.array_equal(t["some"].numpy(), weight[3:9, ::2])
        lw.load(Ties(), path, cast=True)


def test_a_file_that_changes_while_it_is_converted_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from leafwise.cli import main

    array = np.zeros(100_000, np.float32)
    np.save(tmp_path / "a.npy", array)
    crc32 = zipfile.crc32  # type: ignore[attr-defined]
    at = (tmp_path / "a.npy").stat().st_size - 4

    times = iter(range(1, 200))

    def changing(data: Any, *more: int) -> int:
        found: int = crc32(data, *more)
        with open(tmp_path / "a.npy", "r+b") as file:
            file.seek(at)
            file.write(bytes([next(times)]))
        return found

    monkeypatch.setattr(zipfile, "crc32", changing)
    (tmp_path / "b.npz").write_bytes(b"old")
    assert main(["convert", str(tmp_path / "a.npy"), str(tmp_path / "b.npz")]) == 1
    monkeypatch.undo()
    assert "was changed while it was being read" in capsys.readouterr().err
    assert (tmp_path / "b.npz").read_bytes() == b"old"
