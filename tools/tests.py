"""Runs the tests: `make test`, and `make quick` for the time between two edits.

    python -m tools.tests            everything, in each of its environments
    python -m tools.tests --quick    without Gluon, the viewer, other libraries, several processes, JAX and slow tests

The tests with PyTorch run in several processes. Beside them, one after another, run the tests in other environments:
with DeepSpeed, with JAX alone, and with JAX and PyTorch. Their output is printed when they have ended.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"
NOT_QUICK = ["packages", "tests/web", "tests/ecosystem", "tests/distributed"]
# Tests wait for files and other processes, so there are two processes more than there are cores, and the one beside
# them; but some tests need gigabytes, so there are at most five.
CORES = os.cpu_count() or 1
PROCESSES = min(4, CORES + 2)
QUICK_PROCESSES = min(4, CORES)  # these tests do not wait, and each process imports and collects all of them


def in_parallel(processes: int) -> list[str]:
    """The options for several processes. tests/conftest.py says which tests run in the same one, and in which order."""
    return ["--numprocesses", str(processes), "--dist", "loadscope", "--no-loadscope-reorder"]


class Suite(NamedTuple):
    """Tests in one environment: its interpreter, the arguments for pytest, and where it finds packages."""

    name: str
    python: Path | str
    arguments: list[str]
    packages: list[Path]


def other_suites() -> Iterator[Suite]:
    source = ROOT / "src"
    yield Suite("DeepSpeed", BUILD / "deepspeed/bin/python", ["tests/ecosystem/test_deepspeed.py"], [source])
    jax = BUILD / "jax_alone"
    alone = ["tests/jax", "src/leafwise/homes/jax", "--ignore=tests/jax/with_torch"]
    yield Suite("JAX", jax / "bin/python", alone, [source])
    both = [source, *jax.glob("lib/python*/site-packages")]  # where this interpreter finds JAX, too
    yield Suite("JAX and PyTorch", sys.executable, ["tests/jax/with_torch"], both)


def command(suite: Suite) -> tuple[list[str], dict[str, str]]:
    environment = dict(os.environ)
    if suite.packages:
        environment["PYTHONPATH"] = os.pathsep.join(map(str, suite.packages))
    return [str(suite.python), "-m", "pytest", "-q", *suite.arguments], environment


def run_others(log: Path) -> subprocess.Popen[bytes]:
    """Starts the suites in other environments, one after another, in a process of their own."""
    with log.open("wb") as output:
        others = [sys.executable, "-m", "tools.tests", "--others"]
        return subprocess.Popen(others, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)


def others() -> int:
    failed = []
    for suite in other_suites():
        arguments, environment = command(suite)
        print(f"\n{suite.name}:", flush=True)
        if subprocess.run(arguments, cwd=ROOT, env=environment).returncode:
            failed.append(suite.name)
    print(f"\nfailed: {', '.join(failed)}" if failed else "")
    return len(failed)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only what is useful between two edits")
    parser.add_argument("--others", action="store_true", help="only the tests in other environments")
    options = parser.parse_args()
    if options.others:
        return others()
    # Otherwise, each process compiles all tests, and every process that a test starts all of leafwise.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    # All processes of a run have the same order of sets, another in each run.
    os.environ.setdefault("PYTHONHASHSEED", str(random.randrange(2**32)))
    started = time.monotonic()
    if options.quick:
        left_out = ["-m", "not slow", *(f"--ignore={path}" for path in NOT_QUICK)]
        arguments, environment = command(Suite("", sys.executable, [*in_parallel(QUICK_PROCESSES), *left_out], []))
        return subprocess.run(arguments, cwd=ROOT, env=environment).returncode
    slowest = ["--durations=10", "--durations-min=5"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        beside = run_others(log)
        try:
            arguments, environment = command(Suite("", sys.executable, [*in_parallel(PROCESSES), *slowest], []))
            status = subprocess.run(arguments, cwd=ROOT, env={**environment, "LEAFWISE_PINNED": "1"}).returncode
            beside_status = beside.wait()
        except BaseException:
            beside.terminate()
            raise
        sys.stdout.write(log.read_text("utf-8", "replace"))
    print(f"all tests in {(time.monotonic() - started) / 60:.1f} minutes")
    return status or beside_status


if __name__ == "__main__":
    sys.exit(main())
