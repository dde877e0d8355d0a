"""Searches for small files that cost leafwise much memory or time, until the time is up.

    python -m tools.fuzz_costly [--minutes 60] [--seed 0] [--programs N] [--known] [--replay PROGRAM] [--keep PROGRAM]

Programs for the pickle machine are built from blocks that refer to one another (`tools/costly_programs.py`), and
changed as long as they get more costly. Each is opened, printed in full, checked, compared with itself, and planned
into a model. A file of up to 1 MB may take 5 s of processor time and 500 MB. Files run in separate processes; a search
depends only on its seed, except for where the time of a busy machine makes a difference. The worst file of each
function that was costly is kept in build/costly.
"""

import argparse
import contextlib
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tools import sweeps
from tools.costly_programs import KNOWN, MOST_BYTES, Program, changed, file_of, grown, parsed, random_program

REPOSITORY = Path(__file__).parent.parent
KEPT = REPOSITORY / "build" / "costly"
VERBS = ["show", "opaque", "scalars", "check", "diff", "plan", "text"]
MAX_SECONDS = 5.0
MAX_MEGABYTES = 500.0
_CLOSE = 0.4  # of a limit: what is shown in the table
_CUT = 1.3  # of a limit: a verb that takes more is interrupted
_SIZES = (20_000, 60_000, 200_000)  # bytes that the programs of a search may have, before they are grown
_CHANGES = 25  # of a program, as long as they make it more costly
_PATIENCE = 10  # changes without success
_LISTED = 20  # programs that are shown


class Cost(NamedTuple):
    """What the most expensive verb takes, and the function in which it takes it."""

    amount: float
    verb: str
    place: str


class Costs(NamedTuple):
    program: Program
    bytes: int
    seconds: Cost
    megabytes: Cost
    share: int  # of the bytes and steps that are allowed by default: one in so many
    said: str  # by the first verb that did not succeed
    foreign: str  # an exception other than `lw.Error`, or how the process ended

    @property
    def is_over(self) -> bool:
        return bool(self.foreign) or self.of_limit > 1

    @property
    def is_close(self) -> bool:
        return self.is_over or self.of_limit > _CLOSE

    @property
    def of_limit(self) -> float:
        """How much of the time and the memory that it may take it takes."""
        return max(self.seconds.amount / MAX_SECONDS, self.megabytes.amount / max_megabytes(self.share))

    def per_byte(self, of_memory: bool) -> float:
        """Small files are not favored over each other: all of them take some milliseconds."""
        return (self.megabytes if of_memory else self.seconds).amount / (self.bytes + 20_000)


def max_megabytes(share: int) -> float:
    """What a verb may take if opening a file may take a part of the default limits: imports take some, too."""
    return 60 + (MAX_MEGABYTES - 60) / share


class Worker:
    """The process that measures files. It forks one process for each. With `share`, opening a file may take that part
    of the bytes and steps that are allowed by default."""

    def __init__(self, folder: Path, share: int = 1) -> None:
        self._share = share
        self._path = folder / "file.pt"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.costly_worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", cwd=REPOSITORY,
        )  # fmt: skip
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the process that measures files has ended")
        return line

    def measure(self, program: Program, cut: float = _CUT) -> Costs:
        """What a program costs. A verb that takes `cut` times what it may is interrupted."""
        data = file_of(program)
        self._path.write_bytes(data)
        assert self._process.stdin is not None
        order = {"path": str(self._path), "verbs": VERBS, "share": self._share}
        limits = {"seconds": cut * MAX_SECONDS, "megabytes": cut * max_megabytes(self._share)}
        self._process.stdin.write(json.dumps(order | limits) + "\n")
        self._process.stdin.flush()
        return self._costs(program, len(data))

    def _costs(self, program: Program, length: int) -> Costs:
        seconds = megabytes = Cost(0.0, "", "")
        said = foreign = verb = ""
        while "status" not in (answer := json.loads(self._line())):
            verb = answer["verb"]
            if "said" not in answer:
                continue
            seconds = max(seconds, Cost(answer["seconds"], verb, answer["time"]))
            megabytes = max(megabytes, Cost(answer["megabytes"], verb, answer["memory"]))
            said = said or answer["said"]
            if answer["said"].startswith("!"):
                foreign = f"{verb}: {answer['said'][1:]}"
        if answer["status"]:
            foreign = f"{verb}: its process ended with status {answer['status']}"
        return Costs(program, length, seconds, megabytes, self._share, said, foreign)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Search:
    """The worst programs that were found, one for each function that was costly."""

    def __init__(self, worker: Worker, seed: int) -> None:
        self.worker, self.seed = worker, seed
        self.measured = 0
        self.worst: dict[tuple[str, str], Costs] = {}
        self.most_seconds = self.most_megabytes = 0.0

    def run(self, seconds: float | None, programs: int | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds

        def is_over() -> bool:
            return (until is not None and time.monotonic() > until) or (
                programs is not None and self.measured >= programs
            )

        number = 0
        while not is_over():
            rng = random.Random(f"{self.seed}/{number}")
            self._climb(rng, is_over)
            number += 1

    def known(self) -> None:
        for program in KNOWN.values():
            self.measure(program)

    def measure(self, program: Program, cut: float = _CUT) -> Costs:
        costs = self.worker.measure(program, cut)
        self.measured += 1
        self.most_seconds = max(self.most_seconds, costs.seconds.amount)
        self.most_megabytes = max(self.most_megabytes, costs.megabytes.amount)
        if costs.is_close:
            by_time = costs.seconds.amount / MAX_SECONDS == costs.of_limit
            cost = costs.seconds if by_time else costs.megabytes
            place = cost.place.partition(" < ")[0] or costs.foreign
            before = self.worst.get((str(by_time), place))
            if before is None or _badness(costs) > _badness(before):
                self.worst[str(by_time), place] = costs
                keep(program)
        _show(f"{self.measured:,} programs, {len(self.worst):,} costly functions; now {costs_text(costs)[:90]}")
        return costs

    def _climb(self, rng: random.Random, is_over: Callable[[], bool]) -> None:
        size, of_memory = rng.choice(_SIZES), rng.random() < 0.5
        is_known = rng.random() < 0.2
        start = changed(rng.choice(list(KNOWN.values())), rng, size) if is_known else random_program(rng, size)
        best, failed = self.measure(start), 0
        for _ in range(_CHANGES):
            if is_over() or failed >= _PATIENCE or best.is_over:
                break
            costs = self.measure(changed(best.program, rng, size))
            if costs.per_byte(of_memory) > 1.05 * best.per_byte(of_memory):
                best, failed = costs, 0
            else:
                failed += 1
        if not best.is_over and not is_over():
            larger = grown(best.program, MOST_BYTES)
            if larger != best.program:
                self.measure(larger)


def _badness(costs: Costs) -> float:
    return costs.of_limit / costs.bytes


def keep(program: Program) -> Path:
    """Writes the file of a program into build/costly."""
    KEPT.mkdir(parents=True, exist_ok=True)
    name = hashlib.sha256(program.json().encode()).hexdigest()[:8]
    path = KEPT / f"{name}.pt"
    path.write_bytes(file_of(program))
    path.with_suffix(".json").write_text(program.json() + "\n", "utf-8")
    return path


def costs_text(costs: Costs) -> str:
    return (
        f"{costs.bytes:,} bytes: {costs.seconds.amount:.1f} s ({costs.seconds.verb}), "
        f"{costs.megabytes.amount:.0f} MB ({costs.megabytes.verb})"
    )


def told(costs: Costs) -> Iterator[str]:
    mark = "OVER THE LIMIT: " if costs.is_over else ""
    yield f"{mark}{costs_text(costs)}"
    yield f"  {costs.foreign or costs.said or 'opened'}"
    yield f"  {costs.program}"
    yield f"  time in {costs.seconds.place or '-'}; memory in {costs.megabytes.place or '-'}"
    yield f"  python -m tools.fuzz_costly --replay '{costs.program.json()}'"


def table(found: list[Costs]) -> str:
    """The worst programs by time, and by memory."""
    by_seconds = sorted(found, key=lambda costs: -costs.seconds.amount)[:_LISTED]
    by_megabytes = sorted(found, key=lambda costs: -costs.megabytes.amount)[:_LISTED]
    lines = ["The worst by time:", *(f"  {line}" for costs in by_seconds for line in told(costs))]
    rest = [costs for costs in by_megabytes if costs not in by_seconds]
    return "\n".join(
        [*lines, "Others that are the worst by memory:", *(f"  {line}" for one in rest for line in told(one))]
    )


def summary(search: Search) -> str:
    over = sum(costs.is_over for costs in search.worst.values())
    return (
        f"{search.measured:,} programs of up to 1 MB: {over:,} functions took more than {MAX_SECONDS:.0f} s or "
        f"{MAX_MEGABYTES:.0f} MB. A verb took at most {search.most_seconds:.1f} s and {search.most_megabytes:.0f} MB."
    )


def _show(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{line[:150]:150}", end="", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, help="how long to search (default: 60)")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="repeat a search")
    parser.add_argument("--programs", type=int, help="measure about this many programs instead")
    parser.add_argument("--known", nargs="*", metavar="NAME", help="only the programs that were costly once")
    parser.add_argument("--replay", metavar="PROGRAM", help="measure one program, as the table shows it")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="leafwise-costly-") as folder,
        contextlib.closing(Worker(Path(folder))) as worker,
    ):
        search = Search(worker, options.seed)
        if options.replay:
            costs = search.measure(parsed(options.replay), cut=6)
            print("\n".join(told(costs)), f"the file: {keep(costs.program)}", sep="\n")
            return int(costs.is_over)
        if options.known is not None:
            for name in options.known or KNOWN:
                print(name, *told(search.measure(KNOWN[name])), sep="\n    ", flush=True)
        else:
            search.known()
            search.run(None if options.programs else options.minutes * 60, options.programs)
    print(table(list(search.worst.values())))
    print(f"seed {options.seed}: {summary(search)}")
    if options.known is None and options.programs is None:
        sweeps.record("make costly", {"costly": summary(search)}, options.seed)
    return int(any(costs.is_over for costs in search.worst.values()))


if __name__ == "__main__":
    sys.exit(main())
