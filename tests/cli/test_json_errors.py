"""With --json, a verb prints JSON whatever happens."""

import json
from pathlib import Path

import pytest
import torch

import leafwise as lw
from leafwise.cli import main


@pytest.mark.parametrize("verb", ["show", "stats", "check", "verify", "ties", "read"])
def test_an_error_is_json_on_standard_output(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 50)
    assert main([verb, str(tmp_path / "bad.safetensors"), *(["x"] if verb == "read" else []), "--json"]) != 0
    printed = capsys.readouterr()
    assert "bad.safetensors" in json.loads(printed.out)["error"]
    assert "bad.safetensors" in printed.err


def test_diff_prints_json_if_nothing_can_be_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = lw.save({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    second = lw.save({"b": torch.ones(3), "c": torch.ones(5)}, tmp_path / "b.safetensors")
    for other in (second, str(tmp_path / "none.safetensors")):
        assert main(["diff", first, other, "--json"]) == 2
        assert json.loads(capsys.readouterr().out).keys() == {"error"}
    assert main(["diff", first, second, "--json", "--rename", "x(=y"]) == 2
    assert "regular expression" in json.loads(capsys.readouterr().out)["error"]
