"""The page about many machines: its program runs, and its commands and examples print what is on the page."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_docs import ROOT, run_examples
from tests.torchrun import END_AT_ONCE

PAGE = ROOT / "docs" / "machines.md"
_BLOCK = re.compile(r"^```(python|console)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LOSS = re.compile(r"step (\d+): loss ([\d.]+)")
_COMMANDS = {
    "torchrun": [sys.executable, "-W", "ignore", "-m", "torch.distributed.run"],
    "python": [sys.executable, "-W", "ignore"],
    "leafwise": [sys.executable, "-m", "leafwise"],
}


def blocks(kind: str) -> list[str]:
    return [text for found, text in _BLOCK.findall(PAGE.read_text("utf-8")) if found == kind]


def run_command(line: str) -> str:
    program, *arguments = shlex.split(line)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [*_COMMANDS[program], *arguments]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout if program == "torchrun" else done.stdout + done.stderr  # which has notes for people


def losses(text: str) -> dict[int, float]:
    return {int(step): float(loss) for step, loss in _LOSS.findall(text)}


@pytest.mark.slow
def test_the_program_and_the_commands_of_the_page_print_what_is_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # the examples import the program
    program = next(block for block in blocks("python") if "def main(" in block)
    Path("train.py").write_text(program + END_AT_ONCE.replace("\n", "\n    "), encoding="utf-8")
    sharded: dict[int, float] = {}
    for block in blocks("console"):
        for transcript in block.split("$ ")[1:]:
            line, _, expected = transcript.partition("\n")
            printed = run_command(line)
            # Losses depend on the processor in their last digits, and are compared below.
            assert _LOSS.sub(r"step \1", printed) == _LOSS.sub(r"step \1", expected), line
            assert losses(printed) == pytest.approx(losses(expected), rel=0.02), line
            sharded |= losses(printed)
    assert list(sharded) == [10, 20, 30, 40]
    # One process, without torchrun.
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": 0}.items():
        monkeypatch.setenv(name, str(value))
    whole = losses(run_command("python train.py uninterrupted 40"))
    assert sharded == pytest.approx(whole, rel=1e-3)
    run_examples(PAGE)
