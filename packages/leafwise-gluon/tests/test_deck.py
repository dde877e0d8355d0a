"""The deck runs, and prints what MXNet prints."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.forked import Commands

HERE = Path(__file__).parent


@pytest.mark.parametrize("script", ["deck", "arrays"])
def test_the_deck_prints_exactly_what_mxnet_prints(script: str, scripts: Commands) -> None:
    done = scripts.run(HERE / f"{script}.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == (HERE / f"{script}.golden.txt").read_text("utf-8").splitlines()


def test_a_script_gets_its_arguments_its_folder_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("word = 'beside'")
    script = tmp_path / "script.py"
    script.write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.word, __file__)")
    command = [sys.executable, "-W", "ignore", "-m", "leafwise_gluon", str(script), "--flag", "x"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.stdout.split("\n")[0] == f"__main__ ['--flag', 'x'] beside {script}"


def test_a_missing_script_is_a_usage_error(scripts: Commands) -> None:
    done = scripts.run("nowhere.py")
    assert done.returncode == 2
    assert "cannot find the script 'nowhere.py'" in done.stderr
