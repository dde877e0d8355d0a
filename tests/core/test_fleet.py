"""Many checkpoints at a time: each has a result or an error, and all are in one table."""

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.executors import Shuffled, processes
from tests.interrupts import interrupting

import leafwise as lw
from leafwise.core.work import executor_tasks
from leafwise.core.work.fleet import is_pattern
from leafwise.results import Fleet

VERBS: dict[str, Any] = {
    "stats": lw.stats,
    "check": lw.check,
    "verify": lw.verify,
    "diff": lambda pattern, executor: lw.diff(f"{os.path.dirname(pattern)}/a.safetensors", pattern, executor=executor),
}


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Four checkpoints: two good ones, one with a flipped bit, and one that is not a checkpoint."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, generator=generator)
    lw.save({"w": weight}, tmp_path / "a.safetensors")
    lw.save({"w": weight + 1, "new": torch.zeros(2)}, tmp_path / "b.safetensors")
    flipped = tmp_path / "c.safetensors"
    lw.save({"w": weight}, flipped)
    data = bytearray(flipped.read_bytes())
    data[-5] ^= 4
    flipped.write_bytes(data)
    (tmp_path / "d.safetensors").write_bytes(b"nonsense" * 30)
    return tmp_path


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with processes() as executor:
        yield executor


@pytest.mark.parametrize("verb", VERBS)
def test_each_checkpoint_has_the_result_that_it_has_alone(verb: str, runs: Path, pool: Executor) -> None:
    fleet = VERBS[verb](f"{runs}/*.safetensors", executor=pool)
    alone = VERBS[verb]
    assert isinstance(fleet, Fleet)
    assert not fleet.ok
    for name in ("a", "b"):
        path = f"{runs}/{name}.safetensors"
        single = lw.diff(f"{runs}/a.safetensors", path) if verb == "diff" else alone(path)
        assert repr(fleet[path].json()) == repr(single.json())
    damaged = {"d.safetensors"} | ({"c.safetensors"} if verb == "verify" else set())
    assert {os.path.basename(name) for name in fleet.errors} == damaged
    assert len(fleet) + len(fleet.errors) == 4


def test_a_damaged_checkpoint_is_listed_with_its_error(runs: Path, pool: Executor) -> None:
    fleet = lw.verify(f"{runs}/*", executor=pool)
    flipped = fleet.errors[f"{runs}/c.safetensors"]
    assert isinstance(flipped, lw.ChecksumError)
    assert flipped.leaves == ("w",)
    with pytest.raises(lw.ChecksumError, match="w is damaged"):
        fleet[f"{runs}/c.safetensors"]
    with pytest.raises(lw.PathError, match="is not a checkpoint of this fleet"):
        fleet["elsewhere"]
    assert f"{runs}/c.safetensors" not in fleet


@pytest.mark.parametrize("verb", VERBS)
def test_a_fleet_prints_as_one_table(verb: str, runs: Path) -> None:
    with ThreadPoolExecutor(2) as executor:
        fleet = VERBS[verb](f"{runs}/*.safetensors", executor=executor)
    text = fleet.text(width=200)
    for name in "abcd":
        assert f"{name}.safetensors" in text
    assert "not a checkpoint" in text
    count = len(fleet.errors)
    assert text.splitlines()[-1] == f"4 checkpoints · {count} error{'s' * (count > 1)}"
    expected = {
        "stats": "4,096",
        "check": "errors  warnings  notes",
        "verify": "every checksum matches",
        "diff": "nothing differs",
    }
    assert expected[verb] in text
    data = json.loads(json.dumps(fleet.json()))
    assert data["verb"] == verb
    assert data["ok"] is False
    assert len(data["checkpoints"]) == len(fleet)
    assert set(data["errors"]) == set(fleet.errors)
    frame = fleet.pandas()
    assert len(frame) == 4
    assert frame.loc[f"{runs}/d.safetensors", "error"].startswith("'")
    assert "d.safetensors" in fleet._repr_html_()


def test_the_names_of_damaged_checkpoints_are_complete_in_a_narrow_table(tmp_path: Path) -> None:
    folder = tmp_path / "experiment-with-a-long-name/seed-00000017"
    folder.mkdir(parents=True)
    lw.save({"w": torch.ones(3)}, folder / "a.safetensors")
    (folder / "damaged.safetensors").write_bytes(b"nonsense" * 30)
    with ThreadPoolExecutor(1) as threads:
        for verb in (lw.stats, lw.verify, lw.check):
            fleet = verb(f"{folder}/*.safetensors", executor=threads)
            text = fleet.text(width=len(str(folder)) + 30)
            assert f"error  {folder}/damaged.safetensors\n" in text


def test_many_checkpoints_are_folded_unless_all_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leafwise.render.results.fleet.MAX_LINES", 20)
    for number in range(60):
        lw.save({"w": torch.ones(2)}, tmp_path / f"{number:02}.safetensors")
    with ThreadPoolExecutor(2) as executor:
        fleet = lw.stats(f"{tmp_path}/**", executor=executor)
    assert len(fleet) == 60
    assert fleet.ok
    assert "more" in fleet.text()
    assert "59.safetensors" not in fleet.text()
    assert "59.safetensors" in fleet.text(full=True)


def test_findings_are_below_their_checkpoint(tmp_path: Path) -> None:
    lw.save({"w": torch.tensor([1.0, float("nan")])}, tmp_path / "a.safetensors")
    lw.save({"w": torch.randn(2)}, tmp_path / "b.safetensors")
    with ThreadPoolExecutor(1) as executor:
        fleet = lw.check(f"{tmp_path}/*", executor=executor)
    lines = fleet.text(width=150).splitlines()
    assert "LW101" in lines[2]
    assert "a.safetensors" in lines[1]
    assert not fleet.ok
    assert fleet[f"{tmp_path}/b.safetensors"].ok


def test_a_pattern_without_an_executor_is_a_file_that_does_not_exist(tmp_path: Path) -> None:
    for verb in (lw.stats, lw.check, lw.verify):
        with pytest.raises(lw.FileError, match=r"cannot open .*; for every checkpoint that matches, pass executor="):
            verb(f"{tmp_path}/*")
    with pytest.raises(lw.FileError, match=r"No such file or directory$"):
        lw.open(f"{tmp_path}/*")


def test_a_path_object_may_be_a_pattern(runs: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        assert list(lw.stats(runs / "[ab].*", executor=threads)) == [f"{runs}/a.safetensors", f"{runs}/b.safetensors"]
        assert len(lw.verify(runs / "[ab].*", executor=threads)) == 2
        assert len(lw.check(runs / "[ab].*", executor=threads)) == 2
        assert len(lw.diff(runs / "a.safetensors", runs / "[ab].*", executor=threads)) == 2


def test_what_exists_behind_a_url_is_not_a_pattern() -> None:
    lw.save({"w": torch.ones(3)}, "memory://signs/r[1]/m.safetensors")
    lw.save({"w": torch.zeros(3)}, "memory://signs/r1/m.safetensors")
    with ThreadPoolExecutor(2) as threads:
        for url in ("memory://signs/r[1]/m.safetensors", "memory://signs/r[1]"):
            assert lw.stats(url, executor=threads)["w"].mean == 1
        assert list(lw.stats("memory://signs/r?", executor=threads)) == ["memory://signs/r1"]
        assert list(lw.stats("memory://signs/*", executor=threads)) == ["memory://signs/r1", "memory://signs/r[1]"]


@pytest.mark.parametrize("url", ["https://host/model.safetensors?download=true", "http://[::1]:80/model.safetensors"])
def test_the_query_of_a_web_address_is_not_a_pattern(url: str) -> None:
    assert not is_pattern(url)
    assert is_pattern("https://host/*.safetensors?download=true")


def test_verbs_for_one_checkpoint_refuse_patterns(tmp_path: Path) -> None:
    with Shuffled() as executor:
        with pytest.raises(lw.QueryError, match=r"lw.edit takes one checkpoint, not the pattern"):
            lw.edit(f"{tmp_path}/*", tmp_path / "out.safetensors", executor=executor)
        with pytest.raises(lw.QueryError, match=r"takes one checkpoint, not the pattern"):
            lw.diff(f"{tmp_path}/*", tmp_path, executor=executor)


def test_workers_that_cannot_work_end_the_whole_fleet(runs: Path) -> None:
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    with pytest.raises(lw.WorkerError, match="after shutdown"):
        lw.stats(f"{runs}/*", executor=executor)


def test_few_checkpoints_are_open_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.files.sources.source import LocalSource

    for number in range(40):
        lw.save({"w": torch.ones(2)}, tmp_path / f"{number:02}.safetensors")
    monkeypatch.setattr(executor_tasks, "_OPEN_AT_ONCE", 3)
    open_here, most = set(), 0
    before, close = LocalSource.__init__, LocalSource.close
    here = threading.Lock()

    def opening(self: Any, *args: Any) -> None:
        nonlocal most
        before(self, *args)
        if "fleet" in threading.current_thread().name or "ThreadPoolExecutor" in threading.current_thread().name:
            with here:
                open_here.add(id(self))
                most = max(most, len(open_here))

    def closing(self: Any) -> None:
        with here:
            open_here.discard(id(self))
        close(self)

    monkeypatch.setattr(LocalSource, "__init__", opening)
    monkeypatch.setattr(LocalSource, "close", closing)
    with Shuffled() as executor:  # whose thread has another name
        fleet = lw.stats(f"{tmp_path}/*", executor=executor)
    assert len(fleet) == 40
    assert 1 <= most <= 3


def test_an_interrupt_ends_a_fleet_soon(tmp_path: Path) -> None:
    for number in range(30):
        lw.save({"w": torch.ones(2)}, tmp_path / f"{number:02}.safetensors")

    may_end, all_sent = threading.Event(), threading.Event()
    sent: list[Any] = []
    begun: list[Any] = []

    class Interrupting(ThreadPoolExecutor):
        """Its first task interrupts the main thread, once all checkpoints that are open have a task. The other tasks
        end when the test allows it."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            def run() -> Any:
                begun.append(fn)
                if len(begun) == 1:
                    assert all_sent.wait(120)
                    interrupt()
                else:
                    assert may_end.wait(120)
                return fn(*args, **kwargs)

            sent.append(fn)
            if len(sent) >= executor_tasks._OPEN_AT_ONCE:
                all_sent.set()
            return super().submit(run)

    with interrupting() as interrupt, Interrupting(1) as executor:
        with pytest.raises(KeyboardInterrupt):
            lw.stats(f"{tmp_path}/*", executor=executor)
        may_end.set()
    assert len(begun) <= 2  # the worker may begin another before the interrupt is seen
