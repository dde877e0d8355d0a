"""Whenever the durable writer is stopped, it leaves the old file or the new one, complete. Reads go through the same
layer."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.files.faulty import FailingDisk, crashing, steps_of
from tests.files.writers import arrays, torch_zip

import leafwise as lw
from leafwise.files.sources import disk as local
from leafwise.files.sources import source as source_module
from leafwise.files.sources.disk import Disk, is_far
from leafwise.files.sources.source import LocalSource
from leafwise.files.writing.writer import FileTransaction

OLD, NEW = b"old" * 1000, b"new!" * 5000


def write_new(path: Path) -> None:
    with FileTransaction() as transaction:
        output = transaction.open(str(path))
        for start in range(0, len(NEW), 7000):
            output.write(NEW[start : start + 7000])


@pytest.mark.parametrize("power", [False, True], ids=["the process dies", "the power goes"])
def test_a_crash_after_every_call_leaves_the_old_or_the_new(
    power: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "count").write_bytes(OLD)
    steps = steps_of(lambda: write_new(tmp_path / "count"), monkeypatch)
    assert steps >= 8
    outcomes = set()
    for stop_at in range(1, steps + 2):
        path = tmp_path / f"file{stop_at}"
        path.write_bytes(OLD)
        crashing(lambda path=path: write_new(path), stop_at, power, monkeypatch)  # type: ignore[misc]
        assert path.read_bytes() in (OLD, NEW), stop_at
        outcomes.add(path.read_bytes())
    assert outcomes == {OLD, NEW}


def test_several_files_switch_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_generation(folder: Path, generation: int) -> None:
        with FileTransaction() as writing:
            names = [f"shard-{generation}-{number}" for number in range(3)]
            for name in names:
                writing.open(str(folder / name)).write(name.encode() * 100)
            writing.open(str(folder / "index")).write(json.dumps(names).encode())

    def whole(folder: Path) -> bool:
        names = json.loads((folder / "index").read_text("utf-8"))
        return all((folder / name).read_bytes() == name.encode() * 100 for name in names)

    steps = steps_of(lambda: write_generation(tmp_path, 0), monkeypatch)
    for power in (False, True):
        for stop_at in range(1, steps + 2):
            folder = tmp_path / f"{power}{stop_at}"
            folder.mkdir()
            write_generation(folder, 1)
            crashing(lambda folder=folder: write_generation(folder, 2), stop_at, power, monkeypatch)  # type: ignore[misc]
            assert whole(folder), (power, stop_at)
    with pytest.raises(lw.FileError, match=r"only the last of several files may replace one"):
        write_generation(folder, 1)
    assert whole(folder)


def test_a_full_disk_is_an_error_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    (tmp_path / "count").write_bytes(OLD)
    steps = steps_of(lambda: write_new(tmp_path / "count"), monkeypatch)
    for stop_at in range(1, steps):
        failing = FailingDisk(stop_at, lambda: OSError(errno.ENOSPC, "No space left on device"))
        with monkeypatch.context() as patched:
            patched.setattr(local, "disk", failing)
            with pytest.raises(lw.FileError, match=r"cannot write '.*file': No space left on device"):
                write_new(path)
        assert path.read_bytes() in (OLD, NEW)
        path.write_bytes(OLD)
        assert sorted(os.listdir(tmp_path)) == ["count", "file"]


def test_an_exception_while_values_are_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)

    def fail() -> None:
        with FileTransaction() as transaction:
            transaction.open(str(path)).write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert path.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["file"]


def test_mode_and_links_are_kept(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_new(tmp_path / "fresh")
        assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o640
        (tmp_path / "fresh").chmod(0o604)
        write_new(tmp_path / "fresh")
        assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o604
    finally:
        os.umask(before)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "target").write_bytes(OLD)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "target")
    write_new(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "elsewhere" / "target").read_bytes() == NEW


def test_writing_into_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(lw.FileError, match=r"No such file or directory"), FileTransaction() as transaction:
        transaction.open(str(tmp_path / "no" / "file"))


# -- reading through the same layer ------------------------------------------------------------------------


class SlowDisk(Disk):
    """Returns a few bytes at a time, as pipes and networks do."""

    def read(self, file: int, start: int, length: int) -> bytes:
        return super().read(file, start, min(length, 7)) + (
            super().read(file, start + 7, length - 7) if length > 7 else b""
        )


class ShortDisk(Disk):
    def read(self, file: int, start: int, length: int) -> bytes:
        return super().read(file, start, length)[:-1]


class BrokenDisk(Disk):
    def read(self, file: int, start: int, length: int) -> bytes:
        raise OSError(errno.EIO, "Input/output error")


def test_slow_reads_succeed_and_short_or_broken_ones_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_zip(tmp_path / "a.pt", arrays())
    monkeypatch.setattr(local, "disk", SlowDisk())
    assert np.array_equal(lw.open(tmp_path / "a.pt")["0.weight"].numpy(), arrays()["0.weight"].numpy())
    monkeypatch.setattr(local, "disk", ShortDisk())
    with pytest.raises(lw.FileError, match=r"ends here|cannot be read"):
        lw.open(tmp_path / "a.pt")
    monkeypatch.setattr(local, "disk", BrokenDisk())
    with pytest.raises(lw.FileError, match=r"Input/output error|cannot be read"):
        lw.open(tmp_path / "a.pt")


def test_a_file_that_shrinks_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    torch.save({"big": torch.arange(100_000)}, tmp_path / "a.pt")
    leaf = lw.open(tmp_path / "a.pt")["big"]
    os.truncate(tmp_path / "a.pt", 1000)
    with pytest.raises(lw.FileError, match=r"shorter than when it was opened|ends here"):
        leaf.numpy()


def test_mounted_folders_may_have_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_bytes(
        "host:/a /dätä nfs4 rw 0 0\n".encode() + b"host:/b /\xff\xfe nfs4 rw 0 0\n/dev/sda / ext4 rw 0 0\n"
    )
    monkeypatch.setattr(local, "_MOUNTS", str(mounts))
    assert is_far(os.fsdecode("/dätä/model".encode()))
    assert is_far(os.fsdecode(b"/\xff\xfe/model"))
    assert not is_far(str(tmp_path))


@pytest.mark.slow
def test_a_file_that_was_left_open_is_closed_silently_when_the_interpreter_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"w": torch.zeros(40_000)}, tmp_path / "w.pt")
    # The last lines of scripts; some objects in them outlive the modules of leafwise.
    for line in (
        "t = lw.open(path)",
        "import builtins; builtins.t = lw.open(path)",
        "import builtins; builtins.t = lw.open(path); builtins.w = builtins.t['w'].numpy()",
        "import gc; gc.disable(); cycle = [lw.open(path)]; cycle.append(cycle)",
        "import builtins; builtins.t = lw.open(path); raise SystemExit",
    ):
        script = f"import sys, leafwise as lw; path = sys.argv[1]; {line}"
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "w.pt")], capture_output=True, encoding="utf-8"
        )
        assert (done.returncode, done.stderr) == (0, ""), line
    # The remains of a module at that time; a traceback from __del__ would fail this test.
    source = LocalSource(str(tmp_path / "w.pt"))
    descriptor = source.descriptor()
    with monkeypatch.context() as gone:
        for name in [name for name in vars(source_module) if not name.startswith("__")]:
            gone.setattr(source_module, name, None)
        del source
    os.close(descriptor)


def test_a_big_endian_machine_is_refused_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lw.save({"w": np.ones(3, np.float32)}, tmp_path / "w.safetensors")
    before = Path(path).read_bytes()
    monkeypatch.setattr("sys.byteorder", "big")
    for verb in (lambda: lw.open(path), lambda: lw.save({"w": np.zeros(3, np.float32)}, path)):
        with pytest.raises(lw.Unsupported, match="big-endian"):
            verb()
    assert Path(path).read_bytes() == before


def test_far_file_systems_are_read_and_not_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_far("/data/x", ["host:/a /data nfs4 rw 0 0", "/dev/sda / ext4 rw 0 0"])
    assert not is_far("/data/x", ["host:/a /database nfs4 rw 0 0", "/dev/sda / ext4 rw 0 0"])
    torch.save({"big": torch.arange(100_000)}, tmp_path / "a.pt")
    monkeypatch.setattr(local, "is_far", lambda path: True)
    array = lw.open(tmp_path / "a.pt")["big"].numpy()
    assert isinstance(array.base, bytes)


def test_several_threads_may_read_one_file(tmp_path: Path) -> None:
    state = {str(number): torch.full((100,), number) for number in range(20)}
    torch.save(state, tmp_path / "a.pt")
    tree = lw.open(tmp_path / "a.pt")
    wrong: list[str] = []

    def read() -> None:
        wrong.extend(name for name, value in state.items() if not np.array_equal(tree[name].numpy(), value.numpy()))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
