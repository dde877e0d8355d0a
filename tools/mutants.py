"""Changes the code in places where a mistake would be silent, and checks that the nearest tests notice each change.

    python -m tools.mutants                      every change of tools/mutant_list.py (10 to 15 minutes on two cores)
    python -m tools.mutants --only core/walk     only changes whose module or text contains this
    python -m tools.mutants --list               lists them without running anything

Each process works on its own copy of the package, so the checkout stays as it is. The tests run in the checkout and
import the copy. A change is killed if its tests fail, and survives if they pass. It is broken if they cannot run at
all, for example because the module cannot be imported any more: then the change says nothing about the tests.

The exit status is 1 if a change survives or is broken, and 2 if the tests fail without any change.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from queue import SimpleQueue
from typing import Literal, NamedTuple

from tools import sweeps
from tools.mutant_list import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
PACKAGE = "leafwise"
NEWLINE = "\n"
LIMIT = 300.0  # seconds; the slowest selection of tests takes 20, and a busy machine several times as long

State = Literal["killed", "timed out", "survived", "broken"]


class Outcome(NamedTuple):
    """What happened to a mutant: its state, how long its tests ran, and the last lines that they printed."""

    mutant: Mutant
    state: State
    seconds: float
    output: str


class BaselineError(Exception):
    """Tests fail without any change, so that their failure would say nothing about a mutant."""


def mutated(text: str, mutant: Mutant) -> str:
    """The source of a module with the change of a mutant. The text to replace must occur exactly once."""
    if (times := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.module} contains {mutant.old!r} {times} times, not once")
    return text.replace(mutant.old, mutant.new)


def place(mutant: Mutant, root: Path = ROOT) -> str:
    """Where a mutant differs from the source, as `core/walk.py:213`."""
    before = (root / "src" / PACKAGE / mutant.module).read_text("utf-8").partition(mutant.old)[0]
    # The first lines of both texts may be the same: they only say which place is meant.
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(mutant.old, mutant.new, strict=False))
    return f"{mutant.module}:{before.count(NEWLINE) + sum(letter == NEWLINE for letter, _ in pairs) + 1}"


def room(mutant: Mutant) -> str:
    return mutant.module.partition("/")[0]


# -- running the tests -------------------------------------------------------------------------------------------


class _Copy:
    """A copy of the package in a folder of its own, and the way to run tests of a checkout with it."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._root, self._folder = root, folder
        shutil.copytree(
            root / "src" / PACKAGE, folder / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
        )
        # Processes that tests start inherit it. Without bytecode files: a file of the same size that is replaced within
        # a second would look unchanged.
        self._environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        self._check_imported()

    def _check_imported(self) -> None:
        """Raises if Python would import another copy of the package, such as the one that is installed."""
        command = [sys.executable, "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)"]
        imported = subprocess.run(command, cwd=self._root, env=self._environment, capture_output=True, text=True)
        if not Path(imported.stdout.strip()).is_relative_to(self._folder):
            raise RuntimeError(f"imports {imported.stdout.strip() or imported.stderr}, not the copy in {self._folder}")

    def outcome(self, mutant: Mutant, limit: float) -> Outcome:
        module = self._folder / PACKAGE / mutant.module
        text = module.read_text("utf-8")
        module.write_text(mutated(text, mutant), "utf-8")
        start = time.monotonic()
        try:
            status, output = self.run(mutant.tests, limit)
        finally:
            module.write_text(text, "utf-8")
        states: dict[int | None, State] = {0: "survived", 1: "killed", None: "timed out"}
        return Outcome(mutant, states.get(status, "broken"), time.monotonic() - start, output)

    def run(self, tests: Iterable[str], limit: float) -> tuple[int | None, str]:
        """Runs tests: the exit status of pytest, or None after the time limit; and the last lines of the output."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as printed:
            # In a session of its own, so that processes started by the tests are ended, too.
            process = subprocess.Popen(
                command,
                cwd=self._root,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            printed.seek(0)
            return status, "".join(printed.readlines()[-30:])


def results(
    mutants: Sequence[Mutant],
    *,
    root: Path = ROOT,
    workers: int | None = None,
    baseline: bool = True,
    report: Callable[[Outcome], None] = lambda outcome: None,
    limit: float = LIMIT,
) -> list[Outcome]:
    """What happens to each mutant, in their order; `report` is called as soon as one is known. With `baseline`, their
    tests run once without any change first, and a `BaselineError` is raised if they do not pass."""
    workers = workers or os.cpu_count() or 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(workers) as pool:
        copies: SimpleQueue[_Copy] = SimpleQueue()
        for number in range(workers):
            copies.put(_Copy(root, Path(folder) / str(number)))

        def failure(tests: list[str]) -> str:
            with _taken(copies) as copy:
                status, output = copy.run(tests, limit * len(tests))
            return "" if status == 0 else f"tests do not pass without a change:\n{output}"

        def outcome(mutant: Mutant) -> Outcome:
            with _taken(copies) as copy:
                found = copy.outcome(mutant, limit)
            report(found)
            return found

        tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests)) if baseline else []
        shares = [
            share for number in range(workers) if (share := tests[number::workers])
        ]  # torch is imported once each
        if failures := list(filter(None, pool.map(failure, shares))):
            raise BaselineError("\n".join(failures))
        return list(pool.map(outcome, mutants))


@contextmanager
def _taken(copies: "SimpleQueue[_Copy]") -> Iterator[_Copy]:
    """A copy that no other thread uses meanwhile."""
    copy = copies.get()
    try:
        yield copy
    finally:
        copies.put(copy)


def summary(outcomes: Iterable[Outcome]) -> dict[str, int]:
    """How many mutants there are, and how many of them were killed, survived and were broken. A mutant whose tests
    reach the time limit is killed: somebody would notice."""
    states = [outcome.state for outcome in outcomes]
    return {
        "mutants": len(states),
        "killed": states.count("killed") + states.count("timed out"),
        "survived": states.count("survived"),
        "broken": states.count("broken"),
    }


# -- what is printed ---------------------------------------------------------------------------------------------


def by_room(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """The summary of each room, and of all of them."""
    rooms = dict.fromkeys(room(outcome.mutant) for outcome in outcomes)
    rows = {name: summary(one for one in outcomes if room(one.mutant) == name) for name in rooms}
    return rows | {"all": summary(outcomes)}


def page_table(outcomes: Sequence[Outcome]) -> str:
    """The summaries in Markdown, for CONTRIBUTING.md."""
    rows = by_room(outcomes)
    lines = ["| | " + " | ".join(rows["all"]) + " |", "|---|" + "--:|" * len(rows["all"])]
    lines += [f"| {name} | " + " | ".join(map(str, counts.values())) + " |" for name, counts in rows.items()]
    return "\n".join(lines)


def table(outcomes: Sequence[Outcome]) -> str:
    """The summaries as text."""
    rows = by_room(outcomes)
    lines = [f"{'room':12}" + "".join(f"{name:>10}" for name in rows["all"])]
    lines += [f"{name:12}" + "".join(f"{count:>10}" for count in counts.values()) for name, counts in rows.items()]
    return "\n".join(lines)


def _described(mutant: Mutant) -> str:
    """A mutant on one line."""
    old, new = (" ".join(text.split()) for text in (mutant.old, mutant.new))
    return f"{place(mutant)}  {old[:70]!r} → {new[:70]!r}"


class _Progress:
    """Prints a line for each mutant that is done."""

    def __init__(self, count: int) -> None:
        self._count, self._done = count, 0

    def __call__(self, outcome: Outcome) -> None:
        self._done += 1
        state = f"{outcome.state:9} {outcome.seconds:5.1f} s"
        print(f"[{self._done:3}/{self._count}] {state}  {_described(outcome.mutant)}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="only changes whose module or text contains this")
    parser.add_argument("--list", action="store_true", help="list the changes without running anything")
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a change first")
    parser.add_argument("--workers", type=int, help="how many changes are tested at a time (default: one a core)")
    options = parser.parse_args(arguments)
    mutants = [mutant for mutant in MUTANTS if options.only in f"{mutant.module}\n{mutant.old}\n{mutant.new}"]
    if not mutants:
        parser.error(f"no change contains {options.only!r}")
    if options.list:
        print(*map(_described, mutants), sep="\n")
        return 0
    if not options.no_baseline:
        print("running the tests without a change …", file=sys.stderr, flush=True)
    try:
        outcomes = results(
            mutants, workers=options.workers, baseline=not options.no_baseline, report=_Progress(len(mutants))
        )
    except BaselineError as error:
        print(error, file=sys.stderr)
        return 2
    print(table(outcomes))
    if not options.only:
        sweeps.record("make mutants", {"mutants": page_table(outcomes)})
    wrong = [outcome for outcome in outcomes if outcome.state in ("survived", "broken")]
    for outcome in wrong:
        print(f"\n{outcome.state}: {_described(outcome.mutant)}")
        if outcome.state == "broken":
            print(outcome.output)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
