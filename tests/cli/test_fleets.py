"""Patterns on the command line: one table, and an exit status that counts checkpoints without a result."""

import json
from pathlib import Path

import pytest
import torch

import leafwise as lw
from leafwise.cli import main


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        lw.save({"w": torch.ones(8) * 0.5, "b": torch.arange(3)}, tmp_path / f"{name}.safetensors")
    return tmp_path


def damage(runs: Path) -> None:
    path = runs / "b.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_every_checkpoint_that_matches_is_in_one_table(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", f"{runs}/*"]) == 0
    printed = capsys.readouterr().out
    assert "a.safetensors" in printed
    assert printed.rstrip().endswith("2 checkpoints")
    assert main(["verify", f"{runs}/*"]) == 0
    assert main(["check", f"{runs}/**", "--fail-on", "error"]) == 0
    assert main(["diff", f"{runs}/a.safetensors", f"{runs}/*"]) == 0
    assert "nothing differs" in capsys.readouterr().out


def test_a_query_and_words_select_leaves_of_each_checkpoint(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", f"{runs}/*", "--where", "w", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert [[leaf["path"] for leaf in stats["leaves"]] for stats in data["checkpoints"].values()] == [["w"], ["w"]]
    assert main(["stats", f"{runs}/*", "nothing"]) == 1
    assert "2 errors" in capsys.readouterr().out
    assert main(["diff", f"{runs}/a.safetensors", f"{runs}/*", "--where", "w"]) == 0


def test_the_exit_status_says_that_a_checkpoint_is_damaged(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(runs)
    assert main(["verify", f"{runs}/*"]) == 1
    printed = capsys.readouterr().out
    assert "every checksum matches" in printed  # of the other one
    assert "2 checkpoints · 1 error" in printed
    assert main(["diff", f"{runs}/a.safetensors", f"{runs}/*"]) == 1
    (runs / "b.safetensors").write_bytes(b"x" * 100)
    assert main(["stats", f"{runs}/*"]) == 1
    assert main(["check", f"{runs}/*", "--fail-on", "error"]) == 2
    assert main(["diff", f"{runs}/a.safetensors", f"{runs}/*", "--quiet"]) == 2


def test_findings_of_any_checkpoint_fail_the_check(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lw.save({"w": torch.tensor([float("nan")])}, runs / "c.safetensors")
    assert main(["check", f"{runs}/*", "--fail-on", "error"]) == 1
    assert "LW101" in capsys.readouterr().out


def test_a_pattern_that_matches_nothing_is_an_error(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", f"{runs}/*.gguf"]) == 1
    assert "no checkpoint matches" in capsys.readouterr().err
    assert main(["diff", f"{runs}/*", f"{runs}/a.safetensors"]) == 2
    assert "takes one checkpoint, not the pattern" in capsys.readouterr().err


def test_a_file_whose_name_looks_like_a_pattern_is_a_file(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "a.safetensors").rename(runs / "[a].safetensors")
    assert main(["verify", f"{runs}/[a].safetensors"]) == 0
    assert "2 leaves" in capsys.readouterr().out
