"""Saves that crash, are killed, run out of room, meet each other and their readers: always the old or the new, whole.

`make long` does fifty times as much of what is random.
"""

import errno
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.files.faulty import FailingDisk, crashing, steps_of
from tests.long import short_or_long

import leafwise as lw
from leafwise.files.sources import disk as local
from leafwise.files.sources.disk import Disk

TIMES = short_or_long(1, 50)  # for what depends on chance


def checkpoint(generation: int) -> dict[str, Any]:
    """Every value is the number of the generation, so that a mixture is visible."""
    return {
        "a": np.full((30, 4), generation),
        "b.c": np.full(50, generation),
        "d": np.full(7, generation),
        "n": generation,
    }


def generation(path: Path) -> int:
    """The generation that a checkpoint contains; raises if it is not complete."""
    lw.verify(path)
    with lw.open(path) as t:
        found = {int(value) for leaf in t for value in np.unique(leaf.numpy())} | {t["n"]}
    assert len(found) == 1, found
    return found.pop()


SINGLE: dict[str, Any] = {}
SHARDED = {"shard_size": 500}


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["the process dies", "the power goes"])
@pytest.mark.parametrize(
    ("before", "after"),
    [(SINGLE, SINGLE), (SHARDED, SHARDED), (SINGLE, SHARDED), (SHARDED, SINGLE)],
    ids=["one file", "shards", "to shards", "from shards"],
)
def test_a_crash_after_any_call_of_a_save_leaves_the_old_or_the_new(
    before: dict[str, Any], after: dict[str, Any], power: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lw.save(checkpoint(1), tmp_path / "count.safetensors", **before)
    steps = steps_of(lambda: lw.save(checkpoint(2), tmp_path / "count.safetensors", **after), monkeypatch)
    assert steps >= 8
    found = set()
    for stop_at in range(1, steps + 2):
        folder = tmp_path / str(stop_at)
        folder.mkdir()
        path = folder / "model.safetensors"
        lw.save(checkpoint(1), path, **before)
        save_again(path, after, stop_at, power, monkeypatch)
        # Open it by name and by folder; the folder may contain both a single file and shards.
        found.add(generation(path))
        assert generation(folder) in (1, 2)
        # The next save repairs everything and leaves nothing behind.
        lw.save(checkpoint(3), path, **after)
        assert generation(path) == generation(folder) == 3
        assert sorted(os.listdir(folder)) == tidy(folder), os.listdir(folder)
    assert found == {1, 2}


def save_again(path: Path, options: dict[str, Any], stop_at: int, power: bool, patch: pytest.MonkeyPatch) -> None:
    crashing(lambda: lw.save(checkpoint(2), path, **options), stop_at, power, patch)


def tidy(folder: Path) -> list[str]:
    """The files in a folder with one complete checkpoint: a single file, or the index and its shards."""
    if (folder / "model.safetensors").exists():
        return ["model.safetensors"]
    shards = {leaf for leaf in os.listdir(folder) if "-of-" in leaf}
    assert len(shards) == int(next(iter(shards))[-17:-12])
    return sorted([*shards, "model.safetensors.index.json"])


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EIO, errno.ESTALE])
@pytest.mark.parametrize("options", [SINGLE, SHARDED], ids=["one file", "shards"])
def test_every_call_that_fails_is_reported_and_leaves_nothing_behind(
    options: dict[str, Any], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    lw.save(checkpoint(1), path, **options)
    steps = steps_of(lambda: lw.save(checkpoint(1), path, **options), monkeypatch)
    told = 0
    for stop_at in range(1, steps + 1):
        failing = FailingDisk(stop_at, lambda: OSError(number, os.strerror(number)))
        with monkeypatch.context() as patched:
            patched.setattr(local, "disk", failing)
            said = ""
            try:
                lw.save(checkpoint(2), path, **options)
            except lw.FileError as error:
                said = str(error)
                told += 1
        assert not said or (os.strerror(number) in said and "model" in said)
        assert generation(path) in (1, 2)
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]
        lw.save(checkpoint(1), path, **options)
        assert sorted(os.listdir(tmp_path)) == tidy(tmp_path)
    # Only the removal of old files may fail silently: by then, the save itself is done.
    assert told >= steps - 4


def script(text: str, *arguments: Any) -> subprocess.CompletedProcess[str]:
    source = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import os, signal, time, random\nfrom pathlib import Path\nimport numpy as np\nimport leafwise as lw\n"
        "from tests.checkpoint.test_faults import checkpoint, generation\n" + textwrap.dedent(text)
    )
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("limited", [[], ["by the limit"]], ids=["mounted", "limited"])
def test_a_full_disk_is_an_error_and_leaves_the_old_file(limited: list[str], tmp_path: Path) -> None:
    """A real disk of one megabyte; if mounting is not allowed, a limit on the size of files instead."""
    text = """
    folder = Path(sys.argv[1])
    told = "No space left on device"
    if len(sys.argv) > 2 or os.system(f"mount -t tmpfs -o size=1m tmpfs '{folder}' 2> /dev/null"):
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        told = "File too large"
    try:
        path = folder / "model.safetensors"
        for options in ({}, {"shard_size": 100_000}):
            lw.save(checkpoint(1), path, **options)
            before = sorted(os.listdir(folder))
            try:
                lw.save({"big": np.zeros(300_000), "n": 2}, path, **options)
            except lw.FileError as error:
                assert told in str(error), error
            else:
                sys.exit("it should have been full")
            assert generation(path) == 1
            assert sorted(os.listdir(folder)) == before, os.listdir(folder)
            lw.save(checkpoint(3), path, **options)
            assert generation(path) == 3
    finally:
        os.system(f"umount -l '{folder}' 2> /dev/null")
    """
    script(text, tmp_path, *limited)


@pytest.mark.slow
def test_a_save_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    text = """
    import itertools, pytest
    from tests.files.faulty import killed_after, steps_of
    from tests.long import SEED
    path, times = Path(sys.argv[1]) / "model.safetensors", int(sys.argv[2])
    random.seed(SEED)
    steps = max(
        steps_of(lambda: lw.save(checkpoint(0), path, shard_size=size), pytest.MonkeyPatch()) for size in (500, None)
    )
    seen = set()
    for turn in range(times):
        numbers = itertools.count(1000 * turn + 1)
        moment = int(random.random() ** 2 * 3 * steps)  # in any part of three saves
        killed_after(moment, lambda: lw.save(checkpoint(next(numbers)), path, shard_size=None if turn % 2 else 500))
        seen.add(generation(path))
    lw.save(checkpoint(-1), path)
    assert generation(path) == -1
    assert os.listdir(path.parent) == ["model.safetensors"], os.listdir(path.parent)
    print(len(seen))
    """
    assert int(script(text, tmp_path, 40 * TIMES).stdout) > 4 * TIMES


@pytest.mark.slow
def test_two_processes_may_save_to_one_path(tmp_path: Path) -> None:
    text = """
    path, times = Path(sys.argv[1]) / "model.safetensors", int(sys.argv[2])
    children = []
    for which in range(2):
        child = os.fork()
        if child == 0:
            try:
                for turn in range(times):
                    lw.save(checkpoint(which), path, **({"shard_size": 500} if (turn + which) % 3 else {}))
            except BaseException as error:
                print(which, repr(error), file=sys.stderr, flush=True)
                os._exit(1)
            os._exit(0)
        children.append(child)
    statuses = [os.waitpid(child, 0)[1] for child in children]
    assert statuses == [0, 0], statuses
    assert generation(path) in (0, 1)
    lw.save(checkpoint(2), path)
    assert os.listdir(path.parent) == ["model.safetensors"], os.listdir(path.parent)
    """
    script(text, tmp_path, 8 * TIMES)


@pytest.mark.slow
@pytest.mark.parametrize("options", [SINGLE, SHARDED], ids=["one file", "shards"])
def test_a_reader_sees_whole_files_while_a_writer_saves(options: dict[str, Any], tmp_path: Path) -> None:
    text = """
    path, times, options = Path(sys.argv[1]) / "model.safetensors", int(sys.argv[2]), eval(sys.argv[3])
    lw.save(checkpoint(0), path, **options)
    child = os.fork()
    if child == 0:
        number = 0
        while True:
            number += 1
            lw.save(checkpoint(number), path, **options)
    seen = []
    try:
        while len(seen) < times or len(set(seen)) <= 10:  # however slow the writer is
            seen.append(generation(path))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert seen == sorted(seen)
    print(len(set(seen)))
    """
    assert int(script(text, tmp_path, 30 * TIMES, options).stdout) > 10


def test_a_file_that_is_changed_while_it_is_loaded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.files.reading import checked_reads

    path = lw.save({"a": np.ones(1000)}, tmp_path / "model.safetensors")
    target = {"a": np.zeros(1000)}
    proven: Callable[..., int] = checked_reads.verify_storages

    def prove(*arguments: Any) -> int:
        done = proven(*arguments)
        if not done:
            return done
        with open(path, "r+b") as file:
            file.seek(-8, os.SEEK_END)
            file.write(b"changed!")
        os.utime(path, ns=(1, 1))
        return done

    monkeypatch.setattr(checked_reads, "verify_storages", prove)
    with pytest.raises(lw.FileError, match=r"was changed while it was being read"):
        lw.load(target, path)
    assert not target["a"].any()


def test_a_file_that_is_written_to_while_it_is_copied_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch  # not above: the scripts of this file import it, and do not need PyTorch

    values = {name: torch.ones(300_000) for name in "abc"}
    path = Path(lw.save(values, tmp_path / "a.safetensors"))
    os.utime(path, (1, 1))  # on a fast machine, the time of the change would be equal to that of the save

    class Changing(Disk):
        """Once everything was compared, somebody writes to the file."""

        compared, is_changed, lock = 0, False, threading.Lock()

        def read_into(self, file: int, start: int, view: memoryview) -> int:
            with self.lock:
                self.compared += len(view)  # in chunks, whose size depends on the number of cores
                if self.compared > 3 * 1_200_000 and not self.is_changed:
                    self.is_changed = True
                    with path.open("r+b") as out:
                        out.seek(-4, 2)
                        out.write(b"\x00\x00\x00\x40")
            return super().read_into(file, start, view)

    monkeypatch.setattr(local, "disk", Changing())
    with pytest.raises(lw.LoadError, match=r"was changed while it was being read.*partly changed"):
        lw.load({name: torch.zeros(300_000) for name in "abc"}, path)


def test_what_a_killed_process_left_is_removed_and_what_is_being_written_is_not(tmp_path: Path) -> None:
    from leafwise.files.folders.shard_names import own_prefix
    from leafwise.files.writing.writer import LocalOutput

    path = tmp_path / "model.safetensors"
    left = LocalOutput(str(path))
    left.close()
    (tmp_path / f"{own_prefix('model.safetensors')}00000000-00001-of-00002.safetensors").write_bytes(b"left")
    (tmp_path / "model-00001-of-00002.safetensors").write_bytes(b"of somebody else")
    another = LocalOutput(str(tmp_path / "other.safetensors"))
    another.close()
    # Names of unfinished files of other programs, and of earlier versions of leafwise.
    strangers = [".model.safetensors.1-00000000.part", ".model.safetensors.part", ".model.safetensors.Xy12.part"]
    for name in strangers:
        (tmp_path / name).write_bytes(b"of somebody else")
    other = LocalOutput(str(path))
    lw.save(checkpoint(1), path)
    assert sorted(os.listdir(tmp_path)) == sorted(
        [
            "model.safetensors",
            os.path.basename(other.staged),
            "model-00001-of-00002.safetensors",
            os.path.basename(another.staged),
            *strangers,
        ]
    )
    other.discard()
