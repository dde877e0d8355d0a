"""Runs what needs a GPU: the tests of the kernels and of several devices, and the benchmarks on a GPU.

    make gpu PYTHON=python3
    python3 -m tools.gpu --no-benchmarks

Uses the interpreter that runs it, with the torch that it has; nothing is installed. The C library is built in place.
The tests are those that take a device from `tests.kernels.gpu`, so a new one is found without being listed here, and
those of JAX.
A benchmark that misses its target does not make the exit status 1, because other GPUs are slower; one that fails does.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from tools import sweeps

ROOT = Path(__file__).parents[1]
_FOR_JAX = ("jax", "flax", "equinox", "optax", "orbax")
_MISSED = 3  # the exit status of benchmarks/run.py if everything ran, and a target was missed


def device_tests() -> list[str]:
    """The test files that run on a GPU if there is one."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(ROOT)) for file in files if "tests.kernels.gpu" in file.read_text("utf-8")]


def run(*command: str) -> int:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])}
    print("$", " ".join(command), flush=True)
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment).returncode


def main() -> int:
    try:
        import torch
    except ImportError:
        print(f"{sys.executable} has no torch; name another interpreter: make gpu PYTHON=…", file=sys.stderr)
        return 1
    if not torch.cuda.is_available():
        print(f"there is no GPU here, or torch {torch.__version__} has no CUDA; nothing was run", file=sys.stderr)
        return 1
    if run("setup.py", "--quiet", "build_ext", "--inplace"):
        print("the C library was not built; statistics on the CPU are computed with NumPy", file=sys.stderr)
    results = {"with PyTorch": tests(*device_tests())}
    if missing := [name for name in _FOR_JAX if find_spec(name) is None]:
        print(f"the tests of JAX are not run: {', '.join(missing)} is not installed", file=sys.stderr)
    else:
        os.environ |= {"JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        pages = [f"--ignore=tests/jax/{name}" for name in ("test_pages.py", "with_torch/test_docs_pages.py")]
        # Compiling takes most of their time, so they run in several processes. The pages of the docs show the CPU.
        at_once = ["-p", "no:benchmark", "--numprocesses", "4"] if find_spec("xdist") else []
        results["with JAX"] = tests("tests/jax", *pages, *at_once)
    benchmarks = 0 if "--no-benchmarks" in sys.argv else run("benchmarks/run.py", "gpu")
    failed = any(status for status, _ in results.values()) or benchmarks not in (0, _MISSED)
    if not failed:
        device = torch.cuda.get_device_name()
        lines = [f"| {device}, tests {name} | {summary} |" for name, (_, summary) in results.items()]
        sweeps.record("make gpu", {"gpu": "\n".join(["| | |", "|---|---|", *lines])})
    return int(failed)


def tests(*paths: str) -> tuple[int, str]:
    """The exit status of tests, and pytest's last line without the time."""
    with tempfile.NamedTemporaryFile("r", suffix=".xml", encoding="utf-8") as report:
        status = run("-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report.name}", *paths)
        [suite] = ElementTree.parse(report.name).getroot().iter("testsuite")
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    wrong = counts["failures"] + counts["errors"]
    return status, f"{counts['tests'] - wrong - counts['skipped']} passed, {wrong} failed, {counts['skipped']} skipped"


if __name__ == "__main__":
    sys.exit(main())
