"""Files that tasks name: opened again by their path and version, and refused if others cannot reach them."""

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from tests.open_files import DESCRIPTORS, open_files

import leafwise as lw
from leafwise.files.arrays.stored import Storage
from leafwise.files.limits import Limits
from leafwise.files.reading import sending
from leafwise.files.sources.remote import RemoteSource, remote, remote_source
from leafwise.files.sources.source import LocalSource
from leafwise.files.sources.web import DownloadedSource


class Read:
    """A task that reads bytes."""

    nbytes = 4

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def __call__(self) -> bytes:
        return bytes(self.storage.read(0, 4))


def test_a_task_is_small_and_has_no_values(tmp_path: Path) -> None:
    path = lw.save({"secret": torch.full((1 << 20,), 0.123)}, tmp_path / "model.safetensors")
    with lw.open(path) as t:
        data: Any = sending.dumps(Read(t.columns.row_values[0].storage))
        assert sending.run(data) == torch.tensor([0.123]).numpy().tobytes()
    assert len(data) < 500
    assert str(path).encode() in data
    with pytest.raises(pickle.UnpicklingError):  # only `sending` knows how to open files
        pickle.loads(data)


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "bytes"
    path.write_bytes(b"before")

    class Changing(Read):
        def __call__(self) -> bytes:
            data = super().__call__()
            path.write_bytes(b"after!")
            os.utime(path, ns=(0, 0))
            return data

    Changing.__qualname__ = "Changing"
    globals()["Changing"] = Changing
    data: Any = sending.dumps(Changing(Storage(LocalSource(str(path)), 0, 6)))
    with pytest.raises(lw.FileError, match=r"bytes' was changed while it was being read"):
        sending.run(data)


def remote_task(task: type[Read]) -> Any:
    """A task that reads a file behind a URL, as it is now."""
    url = "memory://sending/bytes"
    return sending.dumps(task(Storage(remote_source(url, *remote(url), Limits()), 0, 6)))


def replace_remote(data: bytes) -> None:
    fsspec.filesystem("memory").pipe_file("/sending/bytes", data)


class ReplacingRemote(Read):
    """A task that reads a file which is replaced meanwhile, by one of the same size."""

    def __call__(self) -> bytes:
        data = super().__call__()
        replace_remote(b"after!")
        return data


def test_a_remote_file_that_was_replaced_before_a_task_reads_it_is_an_error() -> None:
    replace_remote(b"before")
    data = remote_task(Read)
    assert sending.run(data) == b"befo"
    replace_remote(b"after!")
    with pytest.raises(lw.FileError, match=r"sending/bytes' was changed while it was being read"):
        sending.run(data)  # the file is open already
    with pytest.raises(lw.FileError, match=r"sending/bytes' on the worker .* is not the file that was opened"):
        sending.run(data)  # it is opened again
    assert sending.run(remote_task(Read)) == b"afte"


def test_a_remote_file_that_is_replaced_while_a_task_reads_it_is_an_error() -> None:
    replace_remote(b"before")
    data = remote_task(ReplacingRemote)
    with pytest.raises(lw.FileError, match=r"sending/bytes' was changed while it was being read"):
        sending.run(data)


def test_the_version_of_a_remote_file_is_what_identifies_it_best() -> None:
    # A listing of a folder may have a more exact time than what is said about one file, and other quotes.
    listed = RemoteSource("s3://b/k", None, "b/k", 3, facts={"LastModified": 1.25, "ETag": '"ab"', "size": 3})
    asked = RemoteSource("s3://b/k", None, "b/k", 3, facts={"LastModified": 1, "ETag": "ab", "size": 3})
    replaced = RemoteSource("s3://b/k", None, "b/k", 3, facts={"LastModified": 1.25, "ETag": '"cd"', "size": 3})
    unknown = RemoteSource("s3://b/k", None, "b/k", 3, facts={"size": 3})
    versions = [sending.sent_source(source).version for source in (listed, asked, replaced, unknown)]
    assert versions == ["ab", "ab", "cd", ""]


def test_a_relative_path_is_sent_as_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lw.save({"w": torch.ones(3)}, tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    with lw.open("model.safetensors") as t:
        sent = sending.sent_source(t.columns.row_values[0].storage.source)
    assert sent.name == str(tmp_path / "model.safetensors")
    assert sent.size == os.path.getsize(sent.name)


def test_a_file_that_was_downloaded_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"downloaded")
    source = DownloadedSource(str(tmp_path / "bytes"))
    with pytest.raises(lw.FileError, match="its server can only send whole files; download it first"):
        sending.dumps(Read(Storage(source, 0, 4)))


def test_a_worker_keeps_few_files_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "_MOST_OPEN", 2)
    for number in range(12):
        lw.save({"w": torch.ones(3)}, tmp_path / f"{number}.safetensors")

    if not DESCRIPTORS.exists():
        pytest.skip("there is no list of open files here")
    with ThreadPoolExecutor(1) as executor:
        assert len(lw.stats(f"{tmp_path}/*", executor=executor)) == 12
    assert len(open_files(tmp_path)) <= 2
