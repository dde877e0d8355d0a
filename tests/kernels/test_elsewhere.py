"""The C code without Python, as tools/matrix.py runs it for other compilers and processors."""

from pathlib import Path

import pytest
from tests.kernels.test_cpu import COMPILER, of_the_library
from tools import kernel_matrix, matrix, sweeps


@pytest.mark.slow
@of_the_library
def test_the_driver_finds_what_the_library_finds_and_the_comparison_can_fail(tmp_path: Path) -> None:
    [build] = [build for build in kernel_matrix.BUILDS if build.name == "gcc"]
    build = build._replace(compiler=COMPILER)
    pairs, data = kernel_matrix.arrays(), tmp_path / "cases"
    results, histograms, comparisons = kernel_matrix.here(data, pairs)
    error, output = kernel_matrix.built_and_run(build, tmp_path, data)
    assert error == ""
    assert kernel_matrix.difference(build, output, (results, histograms, comparisons)) == ""
    for wrong in (results.copy(), histograms.copy(), comparisons.copy()):
        changed = [wrong if part.dtype == wrong.dtype else part for part in (results, histograms, comparisons)]
        field = wrong[wrong.dtype.names[-1]] if wrong.dtype.names else wrong
        field[-1] += 1
        assert "runs gave different results" in kernel_matrix.difference(build, output, tuple(changed))


def test_a_result_takes_the_place_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "today", lambda: "2026-02-03")
    monkeypatch.setattr(sweeps, "commit_here", lambda: "abc")
    rows = [matrix.Row("Threads", name, lambda: "") for name in ("one", "two")]
    table = ""
    for row, result in (
        (rows[0], "1 passed"), (rows[1], "4\npassed | all"), (rows[0], "3 passed"), (rows[0], "not run: missing"),
    ):  # fmt: skip
        table = matrix.with_row(table, row, result)
    assert table.splitlines()[2:] == [
        "| Threads | one | 3 passed | 2026-02-03, abc |",
        "| Threads | two | 4 passed / all | 2026-02-03, abc |",
    ]


@pytest.mark.slow
def test_failing_tests_are_an_error_and_not_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    (tmp_path / "test_it.py").write_text("def test_it(): assert False\ndef test_that(): pass\n")
    command = [matrix.sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    with pytest.raises(matrix.Failed, match="1 failed, 1 passed") as failed:
        matrix.outcome(command, tmp_path, matrix.environment(), "a test of the matrix")
    assert "def test_it" in capsys.readouterr().err
    Path(str(failed.value).rpartition("(")[2].rstrip(")")).unlink()
    assert matrix.outcome([*command, "-k", "that"], tmp_path, matrix.environment(), "a test of the matrix") == (
        "1 passed, 1 deselected"
    )


def test_what_this_machine_cannot_do_is_not_run() -> None:
    for changes in ({"LC_ALL": "xx_XX.UTF-8"}, {"TZ": "Nowhere/At_All"}):
        with pytest.raises(matrix.NotRun, match="is not installed"):
            matrix.check_possible(changes)
    matrix.check_possible({"LC_ALL": "C"})
