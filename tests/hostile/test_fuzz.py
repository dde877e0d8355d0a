"""The bounded part of `make fuzz`, with the same cases each time; and the fuzzer notices every kind of failure."""

import os
import random
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.long import short_or_long
from tools import fuzz, fuzz_pickles, fuzz_seeds, fuzz_worker
from tools.fuzz_mutations import Mutant

import leafwise as lw
from leafwise.kernels import library

CASES = short_or_long(4, 12)  # for each format
FORMATS = ["npz", "leafwise", "leafwise shards", "torch zip"]  # formats with which the fuzzer itself is tested


@pytest.fixture(scope="module")
def run() -> fuzz.Run:
    found = fuzz.Run(0, fuzz.FORMATS, cases=CASES)
    found.work(workers=1)  # because a process with sanitizers takes seconds to start
    return found


@pytest.mark.slow
def test_damaged_files_of_every_format_open_or_are_refused(run: fuzz.Run) -> None:
    assert not run.failures, "\n".join(["", *fuzz.told(run.failures), fuzz.table(run.tallies)])


@pytest.mark.slow
def test_some_damaged_files_open_and_some_are_refused(run: fuzz.Run) -> None:
    assert {tally.cases for tally in run.tallies.values()} == {CASES}
    opened = sum(tally.opened for name, tally in run.tallies.items() if name != fuzz_worker.KERNELS)
    assert 0.1 < opened / (CASES * len(run.tallies)) < 0.9
    assert run.sanitized == (shutil.which("gcc") is not None)


# -- the fuzzer itself -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fuzz") / "seeds"
    fuzz_seeds.write_seeds(folder, FORMATS)
    return folder


@pytest.fixture(scope="module")
def bench(seeds: Path, tmp_path_factory: pytest.TempPathFactory) -> fuzz_worker.Bench:
    made = fuzz_worker.Bench(seeds, tmp_path_factory.mktemp("bench"), FORMATS)
    for name in FORMATS:
        assert made.of_sound(name) == []
    return made


def test_a_case_depends_only_on_its_seed_format_and_number(bench: fuzz_worker.Bench) -> None:
    for name in FORMATS:
        for number in range(30):
            one, other = (bench.mutant(5, name, number)[0] for _ in range(2))
            assert one == other
            assert one.files != bench.files[name]


def test_programs_use_forbidden_and_allowed_names() -> None:
    made = b"".join(fuzz_pickles.program(random.Random(number)) for number in range(300))
    assert b"cos\nsystem\n" in made
    assert b"ctorch._utils\n_rebuild_tensor_v2\n" in made


def mutant_of(bench: fuzz_worker.Bench, name: str, **facts: Any) -> int:
    """The number of a case of this kind."""
    for number in range(1000):
        mutant = bench.mutant(0, name, number)[0]
        if all(getattr(mutant, fact) == wanted for fact, wanted in facts.items()):
            return number
    raise AssertionError(f"no such case of {name}")


def failures(bench: fuzz_worker.Bench, name: str, number: int) -> str:
    return "\n".join(bench.run(0, name, number, fuzz_worker.Watch(bench.folder))["failures"])


def test_the_fuzzer_notices_an_exception_that_is_not_ours(
    bench: fuzz_worker.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(fuzz_worker.VERBS, "show", lambda bench, path: [][1])
    assert "foreign: show: IndexError" in failures(bench, "npz", 0)


def test_the_fuzzer_notices_raw_text(bench: fuzz_worker.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fuzz_worker.VERBS, "show", lambda bench, path: bench.say("a\x1b[31mb"))
    assert "raw text: show" in failures(bench, "npz", 0)


def test_the_fuzzer_notices_time_and_memory(bench: fuzz_worker.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_worker, "MAX_SECONDS", 0)
    monkeypatch.setattr(fuzz_worker, "MAX_MEGABYTES", 40)
    monkeypatch.setitem(fuzz_worker.VERBS, "show", lambda bench, path: bytearray(b"x") * 300_000_000)
    found = failures(bench, "npz", 0)
    assert "seconds: " in found
    assert "megabytes: " in found


def test_the_fuzzer_notices_a_flipped_bit_that_loads(bench: fuzz_worker.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    # A load that does not compare checksums; a bit in the last bytes belongs to an array.
    files = dict(bench.files["leafwise"])
    data = bytearray(files["model.safetensors"])
    data[-3] ^= 1
    mutant = Mutant({"model.safetensors": bytes(data)}, "a bit", one_bit=True)
    monkeypatch.setattr(bench, "mutant", lambda *case: (mutant, random.Random(0)))
    assert failures(bench, "leafwise", 0) == ""
    monkeypatch.setattr(lw, "load", partial(lw.load, verify=False))
    assert "silent: it loads values that were not saved" in failures(bench, "leafwise", 0)


def test_the_fuzzer_notices_an_array_that_does_not_match_its_checksum(
    bench: fuzz_worker.Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = mutant_of(bench, "torch zip", in_data=True)
    monkeypatch.setitem(fuzz_worker.VERBS, "verify", lambda bench, path: None)
    assert "silent: a flipped bit in an array is not detected by verify" in failures(bench, "torch zip", number)


def test_the_fuzzer_notices_what_is_executed(tmp_path: Path) -> None:
    watch = fuzz_worker.Watch(tmp_path)
    watch.imported.add("math")
    wrong = [
        ("os.system", (b"ls",)), ("subprocess.Popen", ("ls", [], None, None)), ("socket.connect", (None, None)),
        ("import", ("antigravity", None)), ("exec", (compile("1", "<pickle>", "eval"),)),
        ("pickle.find_class", ("os", "x")),
        ("open", ("/etc/x", "w", 0)), ("open", ("/etc/x", None, os.O_RDWR)), ("os.remove", ("/etc/x", -1)),
        ("os.rename", (str(tmp_path / "a"), "/etc/x", -1, -1)),
    ]  # fmt: skip
    right = [
        ("import", ("math", None)), ("open", ("/etc/x", "r", 0)), ("open", (str(tmp_path / "a"), "w", 0)),
        ("os.remove", (str(tmp_path / "a"), -1)), ("exec", (compile("1", lw.__file__, "eval"),)),
    ]  # fmt: skip
    for event, args in (*wrong[:3], *right):
        watch.hear(event, args)
    assert watch.found == []  # it is not active yet
    with watch.watching():
        for event, args in (*wrong, *right):
            watch.hear(event, args)
    assert [found.partition(" ")[0] for found in watch.found] == [event for event, _ in wrong]


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_is_a_failure_and_another_takes_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "MAX_WALL", 300.0)
    fuzz_seeds.write_seeds(tmp_path / "seeds", ["npy"])
    worker = fuzz.Worker(tmp_path / "seeds", tmp_path / "worker", ["npy"], {})
    try:
        died = worker.run(fuzz.Case(0, "no such format", 0))
        assert isinstance(died, str)
        assert died.startswith("died: exit status 1: ")
        assert "KeyError: 'no such format'" in died
        again = worker.run(fuzz.Case(0, "npy", 0))
        assert isinstance(again, dict)
        assert again["failures"] == []
        monkeypatch.setattr(fuzz, "MAX_WALL", 0.0)
        worker._process.send_signal(fuzz.signal.SIGSTOP)
        hung = worker._answer(0.2, None)
        assert hung.startswith("hung: ")
    finally:
        worker.close()


def test_another_library_is_loaded_or_the_call_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the fuzzer would test the installed library, or none, and report no failures."""
    (tmp_path / "library").write_bytes(b"not a library")
    monkeypatch.setenv("LEAFWISE_CPU_LIBRARY", str(tmp_path / "library"))
    with pytest.raises(OSError, match="library"):
        library.load.__wrapped__()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="the sanitizers are gcc's")
def test_the_sanitizer_sees_an_element_beyond_the_end() -> None:
    script = (
        "import sys, numpy as np\n"
        "from leafwise.kernels import cpu\n"
        "run = cpu.run_of(np.ones(1000, np.float32))\n"
        "print(cpu.measure([run])[0].l1)\n"
        "cpu.measure([run._replace(size=1000 + int(sys.argv[1]))])\n"
    )
    environment = {**os.environ, **fuzz.sanitized()}
    for beyond in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", script, beyond], capture_output=True, encoding="utf-8", env=environment, check=False
        )
        assert done.stdout == "1000.0\n", done.stderr[-2000:]
        assert ("heap-buffer-overflow" in done.stderr) == (done.returncode != 0) == (beyond == "1"), done.stderr[-2000:]
