"""Feeds damaged checkpoints of every format to leafwise, and random arrays to the C code, until the time is up.

    python -m tools.fuzz [--minutes 4] [--seed 0] [--format NAME ...] [--only-case SEED/FORMAT/NUMBER]

In each case, some functions of leafwise must either work or raise `lw.Error`. They must not execute code from the file,
raise another exception, need more than 5 s or 500 MB, print control characters, or return values that were not saved.
If gcc is installed, the C code is built with the address and undefined behavior sanitizers. Cases run in separate
processes; a process that dies or hangs is a failure. A case depends only on its seed, format and number. The files of
failed cases are kept in build/fuzz.
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools import sweeps
from tools.fuzz_mutations import mutate
from tools.fuzz_seeds import SEEDS, STALE, files_of, generator, write_seeds
from tools.fuzz_worker import KERNELS, MAX_MEGABYTES, MAX_SECONDS

from leafwise.kernels import cpu

REPOSITORY = Path(__file__).parent.parent
KEPT = REPOSITORY / "build" / "fuzz"
FORMATS = [*SEEDS, KERNELS]
MAX_WALL = 30.0  # seconds that a case may take on a busy machine; fuzz_worker.py limits its processor time
_START = 300.0  # seconds that a process may take to start
_OPTIONS = ["-O1", "-g", "-ffp-contract=off", "-fno-strict-aliasing", "-pthread", "-Wno-psabi", "-fPIC", "-shared"]
_SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
# Torch mixes allocators. The quarantine for freed memory is small, because it would count as memory that a case needs.
_ASAN = "detect_leaks=0:alloc_dealloc_mismatch=0:quarantine_size_mb=16:allocator_may_return_null=1:abort_on_error=1"


class Case(NamedTuple):
    seed: int
    format: str
    number: int

    def __str__(self) -> str:
        return f"{self.seed}/{self.format}/{self.number}"


class Failure(NamedTuple):
    case: Case
    kind: str  # executed, foreign, died, hung, seconds, megabytes, raw text, silent, or sound: a sound file was refused
    what: str
    how: str


class Tally:
    """The results of the cases of one format."""

    def __init__(self) -> None:
        self.cases = self.opened = 0
        self.seconds = self.megabytes = 0.0
        self.failures: list[Failure] = []

    def count(self, *kinds: str) -> int:
        return sum(failure.kind in kinds for failure in self.failures)


_BUILT = tempfile.TemporaryDirectory(prefix="leafwise-fuzz-")  # removed when this process ends


@functools.cache
def sanitized() -> dict[str, str]:
    """Builds the C code with sanitizers. Returns the environment variables that a process needs to load it; empty if
    it cannot be built."""
    if shutil.which("gcc") is None:
        return {}
    library = Path(_BUILT.name, "cpu.sanitized")
    source = Path(cpu.__file__).with_name("c") / "cpu.c"
    subprocess.run(["gcc", *_OPTIONS, *_SANITIZERS, str(source), "-o", str(library), "-lm"], check=True)
    found = [_printed("gcc", f"-print-file-name={name}") for name in ("libasan.so", "libubsan.so")]
    if not all(map(os.path.isabs, found)):  # gcc prints the bare name if it does not have the library
        return {}
    return {"LEAFWISE_CPU_LIBRARY": str(library), "LD_PRELOAD": ":".join(found), "ASAN_OPTIONS": _ASAN}


def _printed(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout.strip()


class Worker:
    """A process that runs cases. It is restarted if a case ends it."""

    def __init__(self, seeds: Path, folder: Path, formats: list[str], more: dict[str, str]) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "work").mkdir()
        self._command = [sys.executable, "-m", "tools.fuzz_worker", str(seeds), str(folder / "work"), *formats]
        paths = [str(REPOSITORY / "src"), str(REPOSITORY)]
        # Without bytecode files: writing one would look like something that a damaged file made Python do.
        quiet = {"OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
        self._environment = {**os.environ, **more, **quiet, "PYTHONPATH": os.pathsep.join(paths)}
        self.wrong: list[str] = []
        self._start()

    def _start(self) -> None:
        pipe = subprocess.PIPE
        with open(self.folder / "errors", "wb") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=pipe, stdout=pipe, stderr=errors, env=self._environment, cwd=REPOSITORY
            )
        answer = self._answer(_START, None)
        if isinstance(answer, str):
            raise RuntimeError(f"a worker process of the fuzzer did not start: {answer}")
        self.wrong = answer["wrong"]
        self._before = self._memory()

    def run(self, case: Case) -> dict[str, Any] | str:
        """The result of a case. If the case ended the process, the reason as text; the process is then restarted."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(case).encode() + b"\n")
            self._process.stdin.flush()
            answer = self._answer(MAX_WALL, self._before + 3 * MAX_MEGABYTES * 1e6)
        except OSError as error:
            answer = f"died: {error}"
        if isinstance(answer, str):
            self.close()
            self._start()
        return answer

    def _answer(self, seconds: float, most: float | None) -> Any:
        """The next line from the process, parsed, or the reason why there is none."""
        assert self._process.stdout is not None
        until, busy = time.monotonic() + seconds, self._busy() + 6 * MAX_SECONDS
        while not select.select([self._process.stdout], [], [], 0.05)[0]:
            if time.monotonic() > until or (most is not None and self._busy() > busy):
                return f"hung: {self._where()}"
            if most is not None and self._memory() > most:
                return f"megabytes: more than {3 * MAX_MEGABYTES} MB: {self._where()}"
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        status = self._process.wait()
        said = self._said()
        start = max(said.find("ERROR: AddressSanitizer"), said.find("runtime error"), 0)
        return f"died: exit status {status}: {said[start : start + 1500] if start else said[-1500:]}"

    def _said(self) -> str:
        return (self.folder / "errors").read_text("utf-8", "replace")

    def _where(self) -> str:
        """Where a hanging process is: the innermost lines of leafwise in its traceback."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        lines = [line.strip() for line in self._said().splitlines() if "src/leafwise" in line]
        return " < ".join(line.rpartition("/leafwise/")[2] for line in lines[:3])

    def _busy(self) -> float:
        """The processor time that the process has used, in seconds."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        except OSError:
            return 0.0
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")

    def _memory(self) -> int:
        try:
            pages = Path(f"/proc/{self._process.pid}/statm").read_text("ascii").split()[1]
        except (OSError, IndexError):
            return 0
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if pipe is not None:
                    pipe.close()


class Run:
    """Runs cases until there are no more or the time is up."""

    def __init__(
        self, seed: int, formats: list[str], *, cases: int | None = None, seconds: float | None = None
    ) -> None:
        self.tallies = {name: Tally() for name in formats}
        self.failures: list[Failure] = []
        self.sanitized = False
        self.broken: list[Exception] = []  # errors of the fuzzer itself
        self._cases = (Case(seed, name, number) for number in itertools.count() for name in formats)
        if cases is not None:
            self._cases = itertools.islice(self._cases, cases * len(formats))
        self._seconds = seconds
        self._lock = threading.Lock()
        self._started = 0.0  # when the first case was handed to a worker

    def work(self, workers: int) -> None:
        with tempfile.TemporaryDirectory(prefix="leafwise-fuzz-") as place:
            folder = Path(place)
            # Always the seeds of all formats: a case may combine two formats, and must be the same in every run.
            write_seeds(folder / "seeds", list(SEEDS))
            self._files = {name: files_of(folder / "seeds" / name) for name in SEEDS}
            self._stale = files_of(folder / "seeds" / STALE)
            more = sanitized()
            self.sanitized = bool(more)
            threads = [
                threading.Thread(target=self._work, args=(folder / "seeds", folder / f"worker-{number}", more))
                for number in range(workers)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        if self.broken:
            raise self.broken[0]

    def _work(self, seeds: Path, folder: Path, more: dict[str, str]) -> None:
        try:
            with contextlib.closing(Worker(seeds, folder, list(SEEDS), more)) as worker:
                for what in worker.wrong:
                    self._fail(Failure(Case(0, next(iter(self.tallies)), 0), "sound", what, "a sound file"))
                while (case := self._next()) is not None:
                    self._take(case, worker.run(case))
        except Exception as error:
            self.broken.append(error)

    def _next(self) -> Case | None:
        with self._lock:
            self._started = self._started or time.monotonic()
            if self._seconds is not None and time.monotonic() - self._started > self._seconds:
                return None
            return next(self._cases, None)

    def _take(self, case: Case, answer: dict[str, Any] | str) -> None:
        tally = self.tallies[case.format]
        with self._lock:
            tally.cases += 1
        if isinstance(answer, str):
            kind, _, what = answer.partition(": ")
            self._fail(Failure(case, kind, what, "see the file"))
        else:
            with self._lock:
                tally.opened += answer["opened"]
                tally.seconds = max(tally.seconds, answer["seconds"])
                tally.megabytes = max(tally.megabytes, answer["megabytes"])
            for failure in answer["failures"]:
                kind, _, what = failure.partition(": ")
                self._fail(Failure(case, kind, what, answer["how"]))
        self._show()

    def _fail(self, failure: Failure) -> None:
        with self._lock:
            self.failures.append(failure)
            self.tallies[failure.case.format].failures.append(failure)
        if failure.kind != "sound" and failure.case.format != KERNELS:
            self.keep(failure.case)

    def keep(self, case: Case) -> Path:
        """Writes the files of a case into build/fuzz."""
        rng = generator(*case)
        stale = self._stale if case.format == "leafwise shards" else {}
        mutant = mutate(case.format, self._files[case.format], self._files, stale, rng)
        folder = KEPT / str(case).replace("/", "-").replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in mutant.files.items():
            (folder / name).write_bytes(data)
        return folder

    def _show(self) -> None:
        if sys.stderr.isatty():
            cases = sum(tally.cases for tally in self.tallies.values())
            seconds = time.monotonic() - self._started
            print(f"\r{cases:,} cases in {seconds:.0f} s, {len(self.failures):,} failures ", end="", file=sys.stderr)


# The columns that count failures, and which kinds of failure each column counts.
_COLUMNS = {
    "executed": ("executed",), "foreign": ("foreign",), "hung, died": ("hung", "died"), "seconds": ("seconds",),
    "MB": ("megabytes",), "raw text": ("raw text",), "silent": ("silent",), "sound refused": ("sound",),
}  # fmt: skip


def table(tallies: dict[str, Tally]) -> str:
    """The results as text, with one row for each format."""
    rows = [["format", "cases", "opened", "refused", "max s", "max MB", *_COLUMNS]]
    for name, tally in [*tallies.items(), ("all", _sum(tallies.values()))]:
        cases = [f"{figure:,}" for figure in (tally.cases, tally.opened, tally.cases - tally.opened)]
        failures = [f"{tally.count(*kinds):,}" for kinds in _COLUMNS.values()]
        rows.append([name, *cases, f"{tally.seconds:.1f}", f"{tally.megabytes:.0f}", *failures])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *line[1:]]) for row, line in zip(rows, lines, strict=True))


def summary(run: Run) -> str:
    """The counts, for docs/guarantees.md."""
    whole = _sum(run.tallies.values())
    return (
        f"{whole.cases:,} cases of {len(run.tallies)} kinds: {whole.opened:,} opened, {whole.cases - whole.opened:,} "
        f"refused, {len(whole.failures):,} failed. "
        f"A case took at most {whole.seconds:.1f} s and {whole.megabytes:.0f} MB."
    )


def _sum(tallies: Any) -> Tally:
    whole = Tally()
    for tally in tallies:
        whole.cases, whole.opened = whole.cases + tally.cases, whole.opened + tally.opened
        whole.seconds, whole.megabytes = max(whole.seconds, tally.seconds), max(whole.megabytes, tally.megabytes)
        whole.failures += tally.failures
    return whole


def told(failures: list[Failure], each: int = 3) -> Iterator[str]:
    """Some failures of each sort, with the command that repeats each of them."""
    sorts: dict[tuple[str, str, str], list[Failure]] = {}
    for failure in failures:
        place = failure.what.rpartition(" at ")[2] if " at " in failure.what else failure.what[:40]
        sorts.setdefault((failure.kind, failure.case.format, place), []).append(failure)
    for (kind, _, _), similar in sorted(sorts.items()):
        yield f"{kind}: {len(similar):,} cases like these:"
        for failure in similar[:each]:
            yield f"  {failure.what}\n    {failure.how}\n    python -m tools.fuzz --only-case '{failure.case}'"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4, help="how long to run (default: 4)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="repeat a run (default: the current time)")
    parser.add_argument("--format", action="append", choices=FORMATS, help="only this format; may be repeated")
    parser.add_argument("--only-case", metavar="SEED/FORMAT/NUMBER", help="repeat one case, as the failures name it")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    options = parser.parse_args()
    if options.only_case:
        seed, name, number = options.only_case.split("/")
        run = Run(int(seed), [name])
        run._cases = iter([Case(int(seed), name, int(number))])
        run.work(1)
        if name != KERNELS:
            print(f"the files of this case: {run.keep(Case(int(seed), name, int(number)))}")
    else:
        run = Run(options.seed, options.format or FORMATS, seconds=options.minutes * 60)
        run.work(options.workers)
    print("\n".join(told(run.failures)))
    print(table(run.tallies))
    sanitizers = "with sanitizers" if run.sanitized else "without sanitizers, because gcc or its libraries are missing"
    print(f"seed {options.seed}; the C code was built {sanitizers}")
    if not options.only_case and not options.format:
        sweeps.record("make fuzz", {"fuzz": summary(run)}, options.seed)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
