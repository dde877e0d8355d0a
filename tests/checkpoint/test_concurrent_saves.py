"""Saves and edits that meet others: two processes that write one file, a file system that ignores case, and forks and
threads that change every value while a save runs in the background.

`make faults` does twenty times as much of what is random.
"""

import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.checkpoint.test_faults import checkpoint, generation
from tests.files.faulty import DiskCalls
from tests.long import SEED, count, short_or_long
from torch import nn

import leafwise as lw
from leafwise.files.sources.disk import Disk
from leafwise.files.writing import checkpoint_writer

TIMES = short_or_long(1, 20)


def script(text: str, *arguments: Any) -> str:
    """Runs a script in a process without threads, which may fork."""
    begin = """
    import os, random, signal, sys
    from pathlib import Path
    import numpy as np
    import leafwise as lw
    from tests.checkpoint.test_faults import checkpoint, generation
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(begin) + textwrap.dedent(text), *map(str, arguments)],
        capture_output=True,
        encoding="utf-8",
        timeout=1_200,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- two processes write one file ----------------------------------------------------------------------------


@pytest.mark.slow
def test_processes_may_edit_and_save_to_one_output(tmp_path: Path) -> None:
    """Each has files of its own to read. They begin together, so that they meet; some are killed."""
    text = """
    folder, rounds, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    path = folder / "out" / "model.safetensors"
    path.parent.mkdir()
    for number in range(3):
        lw.save(checkpoint(number + 1), folder / f"{number}.safetensors")
    drawn = random.Random(seed)

    def write(number, in_shards, kind):
        options = {"shard_size": 500} if in_shards else {}
        if kind == "edit":
            lw.edit(folder / f"{number}.safetensors", path, **options)
        elif kind == "merge":
            lw.edit({"x": folder / f"{number}.safetensors"}, path, rename={"x.**": "**"}, **options)
        elif kind == "background":
            lw.save(checkpoint(number + 1), path, background=True, **options).wait()
        else:
            lw.save(checkpoint(number + 1), path, **options)

    seen = set()
    for turn in range(rounds):
        if turn % 5 == 0:
            for name in os.listdir(path.parent):
                os.remove(path.parent / name)
        plans = [(number, drawn.random() < 0.5, drawn.choice(["edit", "save", "background"])) for number in range(3)]
        is_killed = drawn.random() < 0.3 and turn % 5
        reading, writing = os.pipe()
        children = []
        for plan in plans:
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    os.close(writing)
                    os.read(reading, 1)  # until all begin
                    write(*plan)
                    status = 0
                except BaseException as error:
                    print(plan, repr(error), file=sys.stderr, flush=True)
                finally:
                    os._exit(status)
            children.append(child)
        os.close(reading)
        os.close(writing)
        if is_killed:
            os.sched_yield()
            os.kill(children[0], signal.SIGKILL)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        assert statuses[1:] == [0, 0] and statuses[0] in ((0, 9) if is_killed else (0,)), statuses
        found = generation(path)
        assert found in (1, 2, 3), found
        assert generation(path.parent) in (1, 2, 3)
        seen.add(found)
        if turn % 3 == 0:
            lw.save(checkpoint(9), path)
            assert generation(path) == 9
            assert os.listdir(path.parent) == ["model.safetensors"], os.listdir(path.parent)
    lw.save(checkpoint(9), path)
    assert os.listdir(path.parent) == ["model.safetensors"], os.listdir(path.parent)
    print(len(seen))
    """
    rounds = 12 * TIMES
    script(text, tmp_path, rounds, SEED)
    count("writes of one output by three processes", 3 * rounds)


@pytest.mark.parametrize("order", ["file first", "shards first"])
def test_a_file_and_shards_that_are_written_together_do_not_remove_each_other(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is held just before it moves its files into place, until the other is done."""
    path = tmp_path / "model.safetensors"
    lw.save(checkpoint(1), path)
    sizes = (None, 500) if order == "file first" else (500, None)
    may_go_on, is_held = threading.Event(), threading.Event()
    lock_folder = Disk.lock_folder

    def hold(self: Disk, folder: str) -> int | None:
        if threading.current_thread().name == "held":
            is_held.set()
            assert may_go_on.wait(600)
        return lock_folder(self, folder)

    monkeypatch.setattr(Disk, "lock_folder", hold)
    held = threading.Thread(target=lambda: lw.save(checkpoint(2), path, shard_size=sizes[1]), name="held")
    held.start()
    assert is_held.wait(600)
    lw.save(checkpoint(3), path, shard_size=sizes[0])
    assert generation(path) == 3
    may_go_on.set()
    held.join()
    assert generation(path) == generation(tmp_path) == 2
    lw.save(checkpoint(4), path)
    assert os.listdir(tmp_path) == ["model.safetensors"]


# -- file systems that ignore case ---------------------------------------------------------------------------


@contextmanager
def ignoring_case() -> Iterator[None]:
    """Makes the functions of `os` find files as a file system does that keeps case, but ignores it. No such file system
    can be mounted where the tests run; leafwise and Python reach files through these functions only."""

    def existing(path: Any) -> Any:
        if not isinstance(path, (str, os.PathLike)):
            return path
        folder, name = os.path.split(os.fspath(path))
        if not isinstance(name, str) or not name:
            return path
        try:
            names = listdir(folder or ".")
        except OSError:
            return path
        if name in names:
            return path
        same = [other for other in names if other.casefold() == name.casefold()]
        return os.path.join(folder, same[0]) if same else path

    def first(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda path, *args, **options: function(existing(path), *args, **options)

    def both(function: Callable[..., Any]) -> Callable[..., Any]:
        # The entry that is replaced keeps the case of its name.
        return lambda old, new, *args, **options: function(existing(old), existing(new), *args, **options)

    listdir = os.listdir
    with pytest.MonkeyPatch.context() as patched:
        for name in ("open", "stat", "lstat", "remove", "unlink", "rmdir", "mkdir", "readlink", "utime", "access"):
            patched.setattr(os, name, first(getattr(os, name)))
        for name in ("rename", "replace"):
            patched.setattr(os, name, both(getattr(os, name)))
        yield


@pytest.mark.parametrize("sizes", [(None, None), (500, 500), (None, 500), (500, None)])
def test_names_that_differ_in_case_are_one_file_where_case_is_ignored(
    sizes: tuple[int | None, int | None], tmp_path: Path
) -> None:
    upper, lower = tmp_path / "Model.safetensors", tmp_path / "model.safetensors"
    with ignoring_case():
        lw.save(checkpoint(1), upper, shard_size=sizes[0])
        assert generation(lower) == 1
        lw.save(checkpoint(2), lower, shard_size=sizes[1])
        assert generation(lower) == generation(upper) == generation(tmp_path) == 2
        lw.save(checkpoint(3), upper, shard_size=sizes[0])
        assert generation(lower) == generation(upper) == generation(tmp_path) == 3
        lw.save(checkpoint(4), lower)
        assert generation(lower) == generation(upper) == generation(tmp_path) == 4
        # Shards have the name of their checkpoint: each spelling removes its own.
        lw.save(checkpoint(5), upper)
        assert [name.casefold() for name in os.listdir(tmp_path)] == ["model.safetensors"]


def test_a_source_is_recognized_by_another_case_where_case_is_ignored(tmp_path: Path) -> None:
    with ignoring_case():
        for size in (None, 500):
            source = lw.save(checkpoint(1), tmp_path / "Model.safetensors", shard_size=size)
            before = sorted(os.listdir(tmp_path))
            for options in ({}, {"shard_size": 500}):
                with pytest.raises(lw.FileError, match="it is also a source"):
                    lw.edit(source, tmp_path / "model.safetensors", drop="d", **options)  # type: ignore[arg-type]
            assert sorted(os.listdir(tmp_path)) == before
        assert generation(tmp_path / "Model.safetensors") == 1


@pytest.mark.parametrize("shard_size", [None, 100])
def test_leaves_whose_names_differ_in_case_stay_apart_where_case_is_ignored(
    shard_size: int | None, tmp_path: Path
) -> None:
    values = {"A.weight": np.zeros(30), "a.weight": np.ones(30), "a.Weight": np.full(30, 2.0), "b": np.full(30, 3.0)}
    with ignoring_case():
        for path in (tmp_path / "m.safetensors", tmp_path / "M2.safetensors"):
            lw.save(values, path, shard_size=shard_size)
            target = {name: np.full(30, -1.0) for name in values}
            lw.load(target, path)
            assert all(np.array_equal(target[name], value) for name, value in values.items())
        # The files inside a zip have names of their own, and programs may unpack them.
        with pytest.raises(lw.FileError, match="differs only in upper and lower case"):
            lw.edit(tmp_path / "M.safetensors", tmp_path / "m.npz")
        assert not (tmp_path / "m.npz").exists()


# -- forks and threads during a save in the background -------------------------------------------------------


def test_a_fork_at_any_call_of_a_save_in_the_background_holds_nothing_up(tmp_path: Path) -> None:
    """A child that lives on, as workers of a DataLoader do, shares the open files of its parent, and their locks."""
    text = """
    import fcntl, pytest, threading
    from tests.files.faulty import DiskCalls
    path, size = Path(sys.argv[1]) / "model.safetensors", eval(sys.argv[2])
    lw.save(checkpoint(1), path, shard_size=size)
    with pytest.MonkeyPatch.context() as patched:
        calls = DiskCalls(lambda call: None, patched).made
        lw.save(checkpoint(1), path, shard_size=size, background=True).wait()
    assert calls[0] > 8
    children = []
    try:
        for stop_at in range(1, calls[0] + 1):
            is_there, may_go_on = threading.Event(), threading.Event()

            def at_call(call):
                if call == stop_at:
                    is_there.set()
                    assert may_go_on.wait(600)

            with pytest.MonkeyPatch.context() as patched:
                DiskCalls(at_call, patched)
                saving = lw.save(checkpoint(stop_at), path, shard_size=size, background=True)
                assert is_there.wait(600)
                child = os.fork()
                if child == 0:
                    signal.pause()  # a worker that lives on
                    os._exit(0)
                children.append(child)
                may_go_on.set()
                saving.wait()
            assert generation(path) == stop_at
            folder = os.open(path.parent, os.O_RDONLY)
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error if the child has the lock: saves would wait
            os.close(folder)
            lw.save(checkpoint(-stop_at), path, shard_size=size)
            assert generation(path) == -stop_at
        lw.save(checkpoint(0), path)
        assert os.listdir(path.parent) == ["model.safetensors"], os.listdir(path.parent)
        print(calls[0])
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    """
    for number, size in enumerate((None, 500)):
        folder = tmp_path / str(number)
        folder.mkdir()
        count("forks during a save in the background", int(script(text, folder, size)))


@pytest.mark.slow
def test_a_forked_child_may_end_save_and_load_while_its_parent_saves(tmp_path: Path) -> None:
    """Children that end at once, in the usual way or not; children that save; and children of children."""
    text = """
    import threading
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    big = {"a": np.zeros(400_000), "n": 0}

    def child_of(work):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            except SystemExit:
                status = 0
            except BaseException as error:
                print(repr(error), file=sys.stderr, flush=True)
            finally:
                os._exit(status)
        return child

    def save_in(name):
        own = {"a": np.full(50, 7.0), "n": 7}
        saving = lw.save(own, folder / name, background=True)
        assert lw.verify(saving.wait()).ok
        lw.save(own, folder / name)

    for turn in range(rounds):
        big["a"][:] = turn
        big["n"] = turn
        saving = lw.save(big, folder / "parent.safetensors", background=True, shard_size=[None, "1MB"][turn % 2])
        big["a"][:] = -1
        children = [
            child_of(lambda: None),
            child_of(lambda: sys.exit(0)),
            child_of(lambda: save_in("child.safetensors")),
            child_of(lambda: os.waitpid(child_of(lambda: save_in("grandchild.safetensors")), 0)),
            child_of(lambda: save_in("parent2.safetensors")),
        ]
        big["a"][:] = -2
        statuses = [os.waitpid(child, 0)[1] for child in children]
        assert statuses == [0] * len(children), statuses
        path = saving.wait()
        with lw.open(path) as t:
            assert t["n"] == turn and (t["a"].numpy() == turn).all()
        lw.verify(path)
    lw.save({"n": 1, "a": np.ones(3)}, folder / "parent.safetensors")
    names = ["child.safetensors", "grandchild.safetensors", "parent.safetensors", "parent2.safetensors"]
    assert sorted(os.listdir(folder)) == names, os.listdir(folder)
    """
    script(text, tmp_path, 6 * TIMES)
    count("forks during a save in the background", 36 * TIMES)


@pytest.mark.slow
def test_workers_of_a_dataloader_that_start_during_a_save_change_nothing(tmp_path: Path) -> None:
    text = """
    import torch
    from torch.utils.data import DataLoader

    torch.set_num_threads(1)
    model = torch.nn.Linear(300, 300)
    optimizer = torch.optim.AdamW(model.parameters())
    path = Path(sys.argv[1]) / "model.safetensors"
    workers = []
    for turn in range(int(sys.argv[2])):
        expected = {name: value.detach().clone() for name, value in model.state_dict().items()}
        saving = lw.save({"model": model, "optimizer": optimizer, "turn": turn}, path, background=True)
        forks = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
        loader = DataLoader(torch.randn(64, 300), 8, **forks)
        workers.append(loader)
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        with lw.open(saving.wait()) as t:
            assert t["turn"] == turn
            for name, value in expected.items():
                assert np.array_equal(t[f"model.{name}"].numpy(), value.numpy()), name
        lw.verify(path)
    assert os.listdir(path.parent) == ["model.safetensors"], os.listdir(path.parent)
    """
    script(text, tmp_path, 3 * TIMES)


class Mixed(nn.Module):
    """Leaves of every kind: large and small, not in C order, tied, views, of no elements, of whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3_000, 100)
        self.norm = nn.BatchNorm1d(100)
        self.small = nn.ParameterList([nn.Parameter(torch.zeros(3)) for _ in range(20)])
        self.register_buffer("turned", torch.zeros(300, 400).T)
        self.register_buffer("part", torch.zeros(100, 100)[::2, 3:])
        self.register_buffer("bfloat", torch.zeros(5_000, dtype=torch.bfloat16))
        self.register_buffer("integers", torch.zeros(7, dtype=torch.int64))
        self.register_buffer("empty", torch.zeros(0))
        self.head = nn.Linear(100, 3_000, bias=False)
        self.head.weight = self.embed.weight


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"shard_size": "200KB"}, {"dtype": "float16"}, {"ties": "copy"}, {"where": "model.norm.**"}],
    ids=["one file", "shards", "cast", "every name", "a part"],
)
def test_threads_that_change_every_value_in_place_change_nothing_that_is_saved(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training changes every value between any two calls of the disk."""
    model = Mixed()
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    array = np.zeros((30, 40)).T
    run = {"model": model, "optimizer": optimizer, "array": array, "step": 0, "history": [0, 0]}
    states = [value for state in optimizer.state.values() for value in state.values()]
    tensors = [*model.parameters(), *model.buffers(), *states]

    def change(number: int) -> None:
        with torch.no_grad():
            for value in tensors:
                value.fill_(number % 1_000)
        array[...] = number
        run["step"] = number
        run["history"][:] = [number, number]  # type: ignore[index]

    for turn in range(1, 1 + 3 * TIMES):
        change(turn)
        with monkeypatch.context() as patched:
            DiskCalls(lambda call: change(500 + call), patched)
            saving = lw.save(run, tmp_path / "run.safetensors", background=True, **options)  # type: ignore[call-overload]
            for more in range(50):
                change(600 + more)
            path = saving.wait()
        count("saves in the background while every value changes")
        lw.verify(path)
        with lw.open(path) as t:
            assert len(t) > 3
            for leaf in t:
                assert (leaf.numpy().astype(float) == turn).all(), leaf.path
            if "where" not in options:
                assert (t["step"], t["history"]) == (turn, [turn, turn])


def test_modules_and_states_that_are_replaced_during_a_save_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also `load_state_dict`, new layers and `.data`."""
    may_go_on, write = threading.Event(), checkpoint_writer.write

    def waiting(*args: Any) -> str:
        assert may_go_on.wait(600)
        return write(*args)

    monkeypatch.setattr(checkpoint_writer, "write", waiting)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    expected = {name: value.clone() for name, value in model.state_dict().items()}
    saving = lw.save(model, tmp_path / "m.safetensors", background=True)
    model.load_state_dict({name: value + 1 for name, value in expected.items()})
    model[0].weight.data = torch.zeros(2, 2)
    model[1] = nn.Linear(1, 1)
    model.append(nn.Linear(2, 2))
    model.to(torch.float16)
    may_go_on.set()
    with lw.open(saving.wait()) as t:
        assert {str(leaf.path) for leaf in t} == set(expected)
        assert all(np.array_equal(t[name].numpy(), value.numpy()) for name, value in expected.items())
