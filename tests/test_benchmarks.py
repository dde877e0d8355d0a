"""`make bench` runs every benchmark, and prints the results in one table."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
FAKES = {
    "bench_a_miss": "status = exit_status([report('slow', 0.2, 0.5, at_least=True), report('small', 3, 4)])",
    "bench_b_crash": "report('before it crashed', 1, 2)\nraise ValueError('not equal')",
    "bench_c_other": "status = not_run('there is no GPU here')",
    "bench_d_good": "status = exit_status([report('a figure with a name that needs more than a line ' * 2, 1, 2)])",
    "bench_e_silent": "status = 0",
    "bench_f_liar": "report('late', 5, 2)\nstatus = 0",
}


@pytest.mark.slow
def test_one_table_shows_the_result_of_every_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run.py", "figures.py"):
        shutil.copy(BENCHMARKS / name, tmp_path)
    for name, code in FAKES.items():
        (tmp_path / f"{name}.py").write_text(f"import sys\nfrom figures import *\n{code}\nsys.exit(status)\n")

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, str(tmp_path / "run.py"), *words]
        return subprocess.run(command, capture_output=True, encoding="utf-8", env=dict(os.environ))

    done = run()
    table = done.stdout[done.stdout.index("verdict") :].splitlines()
    rows = [" ".join(row.split()) for row in table]
    assert done.returncode == 1
    assert max(map(len, table)) <= 80
    assert rows[1:4] == ["bench_a_miss.py", "MISS slow 0.2 ≥ 0.5", "ok small 3 ≤ 4"]
    assert "ok before it crashed 1 ≤ 2" in rows
    assert "ERROR failed with exit status 1; its remaining figures are missing" in rows
    assert "not run there is no GPU here" in rows
    assert "ERROR measured nothing" in rows
    assert "ERROR exit status 0 contradicts its figures" in rows
    assert rows[-1] == "3 met, 2 missed, 1 not run, 3 errors"
    good = run("good", "other")
    assert good.returncode == 0
    assert good.stdout.splitlines()[-1] == "1 met, 0 missed, 1 not run, 0 errors"
    assert "no benchmark" in run("nothing of that name").stderr
    ascii_only = {key: value for key, value in os.environ.items() if key != "PYTHONIOENCODING"}
    monkeypatch.setattr(os, "environ", ascii_only | {"LC_ALL": "C", "PYTHONUTF8": "0"})
    assert run("miss").stdout.splitlines()[-1] == "1 met, 1 missed, 0 not run, 0 errors"
