"""Runs the tests under the conditions of other machines, and records the results, which docs/platforms.md shows.

    python -m tools.matrix                  # everything: some hours, and gigabytes for other versions of PyTorch
    python -m tools.matrix --list
    python -m tools.matrix threads locale   # the rows whose group or name contains one of these words
    python -m tools.matrix --short          # what continuous integration runs: the docs and the numeric tests

It needs root on Debian, locales-all and the packages that tools/kernel_matrix.py names. Other versions of Python are
found as python3.12 and so on, or at the path in the environment variable LEAFWISE_PYTHON_3_12.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tools import sweeps

ROOT = Path(__file__).parents[1]
# The tests that depend on the processor, on threads and on the locale, and the examples in the docs.
NUMERIC = ["tests/test_docs.py", "tests/kernels", "tests/inspect", "tests/iterate", "tests/checkpoint/test_resume.py"]
# These run or compile the kernels for GPUs, for which the processor and the number of threads do not matter; and slow
# tests train and build models, which the others cover.
LEFT_OUT = ["--ignore-glob=*/kernels/test_cuda*.py", "--ignore-glob=*/kernels/test_*compiled.py", "-m", "not slow"]
NOBODY = 65534


class Row(NamedTuple):
    """One row of the table: `run` returns the result, and raises Failed if something is wrong."""

    group: str
    name: str
    run: Callable[[], str]


class Failed(Exception):  # noqa: N818 - the result of a row
    pass


class NotRun(Exception):  # noqa: N818 - why a row has no result
    pass


# -- running the tests -----------------------------------------------------------------------------------------------


def environment(**changes: str) -> dict[str, str]:
    """The environment of this process, without the variables that rows set or that change the output of pytest."""
    ours = (
        "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "LC_ALL", "TZ",
        "PYTHONUTF8", "PYTHONIOENCODING", "FORCE_COLOR", "PY_COLORS", "PYTEST_ADDOPTS",
    )  # fmt: skip
    return {key: value for key, value in os.environ.items() if key not in ours} | changes


def outcome(command: Sequence[str], folder: Path, env: dict[str, str], name: str, **options: Any) -> str:
    """Runs tests, and returns pytest's last line without the time. The log is kept if something is wrong."""
    prefix = f"leafwise-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}-"
    log, place = tempfile.mkstemp(".log", prefix)
    with os.fdopen(log, "wb") as output:
        done = subprocess.run(command, cwd=folder, env=env, stdout=output, stderr=subprocess.STDOUT, **options)
    lines = Path(place).read_text("utf-8", errors="replace").strip().splitlines() or [""]
    summaries = [line for line in lines if re.search(r"\d+ (passed|failed|error)", line)]
    if done.returncode or not summaries:
        print("\n".join(lines[-60:]), file=sys.stderr)
        raise Failed(f"{summaries[-1] if summaries else lines[-1]} ({place})")
    os.unlink(place)
    return re.sub(r"\bin [\d.]+s.*", "", summaries[-1].strip("= ")).strip()


def check_possible(changes: dict[str, str]) -> None:
    """Raises NotRun if this machine lacks what the variables ask for, since libraries would silently do less."""
    flags = Path("/proc/cpuinfo").read_text("utf-8").split()
    for capability, flag in (("avx2", "avx2"), ("avx512", "avx512f")):
        if changes.get("ATEN_CPU_CAPABILITY") == capability and flag not in flags:
            raise NotRun(f"this processor does not have {capability.upper()}")
    script = "import locale; locale.setlocale(locale.LC_ALL, '')"
    if subprocess.run([sys.executable, "-c", script], env=environment(**changes), capture_output=True).returncode:
        raise NotRun(f"the locale {changes.get('LC_ALL')} is not installed")
    if "TZ" in changes and not Path("/usr/share/zoneinfo", changes["TZ"]).exists():
        raise NotRun(f"the time zone {changes['TZ']} is not installed")


def suite(name: str, paths: Sequence[str] = (), options: Sequence[str] = (), **changes: str) -> str:
    """Runs the tests of this checkout, in its own environment, with some variables set."""
    check_possible(changes)
    # -p no:cacheprovider, because two rows may run at once.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, *paths]
    return outcome(command, ROOT, environment(**changes), name)


def clone(folder: Path) -> Path:
    """Clones this checkout, as it was committed, into another folder."""
    status = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True)
    if status.returncode:
        raise NotRun("this folder is not a git repository")
    if status.stdout:
        print("# uncommitted changes are not tested in clones", file=sys.stderr)
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


def in_a_clone(name: str, folder_name: str = "leafwise", **changes: str) -> str:
    """Runs `make test` as a new user would: in a clean clone, which sets itself up."""
    with tempfile.TemporaryDirectory() as above:
        return outcome(["make", "test"], clone(Path(above, folder_name)), environment(**changes), name)


def without_root(name: str) -> str:
    """Runs `make test` as a user who may write only to the clone and the folder for temporary files."""
    if os.geteuid():
        raise NotRun("only root can become another user")
    with tempfile.TemporaryDirectory() as above:
        home = Path(above, "home")
        home.mkdir(mode=0o555)
        folder = clone(Path(above, "leafwise"))
        for path in (Path(above), folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
        # Other users cannot run a Python that is installed in root's home folder.
        env = environment(HOME=str(home), PYTHON="/usr/bin/python3", PATH="/usr/local/bin:/usr/bin:/bin")
        return outcome(["make", "test"], folder, env, name, user=NOBODY, group=NOBODY, extra_groups=[])


def without_a_compiler(name: str) -> str:
    """Runs `make test` with every program on the PATH except C compilers."""
    compiler = re.compile(r"(.*-)?(cc|gcc|g\+\+|c\+\+|c89|c99|clang|clang\+\+|tcc|cpp|musl-gcc)(-[\d.]+)?$")
    with tempfile.TemporaryDirectory() as programs:
        for folder in os.environ["PATH"].split(os.pathsep):
            for program in sorted(Path(folder).glob("*")) if Path(folder).is_dir() else ():
                link = Path(programs, program.name)
                if not compiler.match(program.name) and not link.is_symlink():
                    link.symlink_to(program)
        found = [name for name in ("cc", "gcc", "clang") if shutil.which(name, path=programs)]
        assert not found, found
        return in_a_clone(name, PATH=programs)


def with_versions(name: str, python: str, *pins: str) -> str:
    """Runs the tests with other versions, in a separate environment, without the pins of constraints.txt and with the
    Triton release that this PyTorch requires."""
    variable = f"LEAFWISE_PYTHON_{python.replace('.', '_')}"
    interpreter = os.environ.get(variable) or shutil.which(f"python{python}")
    if interpreter is None:
        raise NotRun(f"python{python} is not installed; set {variable} to its path")
    with tempfile.TemporaryDirectory() as above:
        folder, bin_folder = clone(Path(above, "leafwise")), Path(above, "venv", "bin")
        constraints = Path(above, "constraints.txt")
        constraints.write_text("\n".join(pins), "utf-8")
        subprocess.run([interpreter, "-m", "venv", str(bin_folder.parent)], check=True)
        pip = [str(bin_folder / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
        for arguments in (
            ["--upgrade", "pip"],
            ["--constraint", str(constraints), *[pin for pin in pins if pin.startswith("torch==")]],
            ["--constraint", str(constraints), "--editable", f"{folder}[torch]"],
            ["--constraint", str(constraints), "--group", f"{folder}/pyproject.toml:dev"],
        ):
            done = subprocess.run([*pip, *arguments], capture_output=True, encoding="utf-8", env=environment())
            if done.returncode:
                raise Failed(f"pip install failed: {done.stderr.strip().splitlines()[-1]}")
        command = [str(bin_folder / "python"), "-m", "pytest", "-q"]
        result = outcome(command, folder, environment(), name)
        packages = ("torch", "numpy", "safetensors", "transformers", "triton")
        script = f"from importlib.metadata import version\nprint(*[p + ' ' + version(p) for p in {packages}], sep=', ')"
        versions = subprocess.run([command[0], "-c", script], capture_output=True, encoding="utf-8", check=True).stdout
        return f"{result} ({versions.strip()})"


def kernels(name: str) -> str:
    from tools import kernel_matrix

    [build] = [build for build in kernel_matrix.BUILDS if build.name == name]
    if missing := build.missing():
        raise NotRun(f"{missing} is not installed")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder, "cases")
        if wrong := kernel_matrix.tried(build, Path(folder), data, kernel_matrix.here(data, kernel_matrix.arrays())):
            raise Failed(wrong)
    return "the same bits"


# -- the table -------------------------------------------------------------------------------------------------------

AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
_ENVIRONMENTS: list[tuple[str, str, dict[str, str]]] = [
    *(
        ("Processor", f"`ATEN_CPU_CAPABILITY={it}`", {"ATEN_CPU_CAPABILITY": it})
        for it in ("default", "avx2", "avx512")
    ),
    ("Processor", "PyTorch, oneDNN and MKL limited to AVX2", AVX2),
    *(("Threads", f"`OMP_NUM_THREADS={it}`", {"OMP_NUM_THREADS": it}) for it in ("1", "2", "16")),
    ("Locale and time zone", "`LC_ALL=C PYTHONUTF8=0`", {"LC_ALL": "C", "PYTHONUTF8": "0"}),
    (
        "Locale and time zone",
        "`LC_ALL=tr_TR.UTF-8 TZ=Asia/Kathmandu`",
        {"LC_ALL": "tr_TR.UTF-8", "TZ": "Asia/Kathmandu"},
    ),
    (
        "Locale and time zone",
        "`LC_ALL=de_DE.ISO-8859-1 TZ=America/St_Johns`",
        {"LC_ALL": "de_DE.ISO-8859-1", "PYTHONUTF8": "0", "TZ": "America/St_Johns"},
    ),
]
# The oldest versions that pyproject.toml allows, and the packages that the tests need in addition.
_OLDEST = "torch==2.9.1 numpy==1.26.4 ml_dtypes==0.5.0 xxhash==3.4.1 fsspec==2024.6.0 gguf==0.11.0 safetensors==0.5.0"
_VERSIONS = [
    ("Python 3.11 and the oldest versions that are stated", "3.11", *_OLDEST.split()),
    ("Python 3.12", "3.12", "torch==2.11.0"),
    ("Python 3.13 and the newest versions", "3.13", "torch==2.15.0"),
]


def _rows() -> list[Row]:
    from tools import kernel_matrix

    rows = [Row(group, name, partial(suite, name, **changes)) for group, name, changes in _ENVIRONMENTS]
    for seed in (1, 2):
        options = ("--random-order", f"--random-order-seed={seed}")
        rows.append(Row("Order", f"in random order, seed {seed}", partial(suite, f"order {seed}", options=options)))
    places = [
        ("a clean clone in a path with spaces", partial(in_a_clone, folder_name="a path with späces")),
        ("a user without root, whose home folder is read-only", without_root),
        ("without a C compiler", without_a_compiler),
    ]
    rows += [Row("Place", name, partial(run, name)) for name, run in places]
    rows += [Row("Versions", name, partial(with_versions, name, *pins)) for name, *pins in _VERSIONS]
    return rows + [Row("C code", build.name, partial(kernels, build.name)) for build in kernel_matrix.BUILDS]


def _short() -> list[Row]:
    """Two CPU capabilities, one thread, and a locale that is not UTF-8, in a few minutes."""
    plain = {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "1", "LC_ALL": "C", "PYTHONUTF8": "0"}
    return [
        Row(
            "Short",
            "default capability, one thread, C locale",
            partial(suite, "short default", NUMERIC, LEFT_OUT, **plain),
        ),
        Row("Short", "AVX2, one thread", partial(suite, "short avx2", NUMERIC, LEFT_OUT, OMP_NUM_THREADS="1", **AVX2)),
    ]


def line(row: Row, result: str, *more: str) -> str:
    """A row of the table; line breaks and bars in the result are replaced."""
    return f"| {' | '.join([row.group, row.name, ' '.join(result.split()).replace('|', '/'), *more])} |"


HEAD = ["| | what is different | result | date, commit |", "|---|---|---|---|"]


def with_row(table: str, row: Row, result: str) -> str:
    """The table with a result in place of that of the same row, or at its end. Rows that were not run stay as they
    are."""
    lines = table.splitlines() or HEAD
    if not result.startswith("not run"):
        new = line(row, result, f"{sweeps.today()}, {sweeps.commit_here()}")
        places = [place for place, text in enumerate(lines) if text.startswith(f"| {row.group} | {row.name} |")]
        lines = [*lines[: places[0]], new, *lines[places[0] + 1 :]] if places else [*lines, new]
    return "\n".join(lines)


def write(row: Row, result: str) -> None:
    """Records the result of a row."""
    before = sweeps.results().get("platforms")
    sweeps.record("python -m tools.matrix", {"platforms": with_row(before.text if before else "", row, result)})


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the tests under the conditions of other machines.")
    parser.add_argument("words", nargs="*", help="only the rows whose group or name contains one of these")
    parser.add_argument("--short", action="store_true", help="only the docs and the numeric tests (a few minutes)")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    given = parser.parse_args()
    rows = _short() if given.short else _rows()
    if given.words:
        rows = [row for row in rows if any(w.lower() in f"{row.group} {row.name}".lower() for w in given.words)]
    if not rows:
        parser.error("no row contains one of these words; --list shows all rows")
    if given.list:
        print(*(f"{row.group}: {row.name}" for row in rows), sep="\n")
        return 0
    failed = False
    with ThreadPoolExecutor(2 if given.short else 1) as pool:  # the short rows use one thread each
        for row, (result, has_failed, seconds) in zip(rows, pool.map(run_row, rows), strict=True):
            failed = failed or has_failed
            print(f"{line(row, result)} {seconds:.0f} s", flush=True)
            write(row, result)
    return int(failed)


def run_row(row: Row) -> tuple[str, bool, float]:
    """The result of a row, whether it failed, and how many seconds it took."""
    start, failed = time.monotonic(), False
    try:
        result = row.run()
    except NotRun as reason:
        result = f"not run: {reason}"
    except (Exception, SystemExit) as reason:  # the other rows still run
        kind = "" if isinstance(reason, Failed) else f"{type(reason).__name__}: "
        result, failed = f"**failed**: {kind}{reason}", True
    return result, failed, time.monotonic() - start


if __name__ == "__main__":
    sys.exit(main())
