"""Scripts in the manner of a textbook's chapters print what MXNet prints, in the dialect at the end of their name."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "chapters").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_a_chapter_prints_what_mxnet_prints(script: Path) -> None:
    version = script.stem[-1]
    command = [sys.executable, "-W", "ignore", "-m", "leafwise.gluon", "--mxnet", version, str(script)]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == script.with_suffix(".golden.txt").read_text("utf-8").splitlines()
