"""Runs what needs a GPU: the tests of the kernels and of several devices, and the benchmarks on a GPU.

    make gpu PYTHON=python3

Uses the interpreter that runs it, with the torch that it has; nothing is installed. The C library is built in place.
The tests are those that take a device from `tests.kernels.gpu`, so a new one is found without being listed here.
A benchmark that misses its target does not make the exit status 1, because other GPUs are slower; one that fails does.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
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
    tests = run("-m", "pytest", "-q", *device_tests())
    benchmarks = run("benchmarks/run.py", "gpu")
    return 1 if tests or benchmarks not in (0, _MISSED) else 0


if __name__ == "__main__":
    sys.exit(main())
