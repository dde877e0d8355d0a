"""`leafwise check`, as a shell would use it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import leafwise as lw
from leafwise.cli import main


@pytest.fixture
def healthy(tmp_path: Path) -> str:
    torch.manual_seed(0)
    return lw.save(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16)), tmp_path / "healthy.safetensors")


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
    with torch.no_grad():
        net[0].weight[3] = 0
        net[2].weight[5] = net[2].weight[1]
    return lw.save(net, tmp_path / "faulty.safetensors")


def test_the_exit_status_says_whether_something_is_wrong(healthy: str, faulty: str, tmp_path: Path) -> None:
    assert main(["check", healthy]) == 0
    assert main(["check", faulty]) == 1
    assert main(["check", faulty, "--ignore", "LW110"]) == 0  # what is left is a note
    assert main(["check", faulty, "--fail-on", "error"]) == 0
    assert main(["check", faulty, "--ignore", "LW110", "--fail-on", "note"]) == 1
    assert main(["check", str(tmp_path / "nowhere")]) == 2
    assert main(["check", healthy, "--select", "LW999"]) == 2
    assert main(["check"]) == 2


def test_findings_are_printed(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", faulty])
    printed = capsys.readouterr().out
    assert "warning LW110  0.weight  1 of 32 units is all zero: 3" in printed
    assert "1 warning, 1 note · 4 leaves checked by" in printed
    assert "\x1b" not in printed


def test_findings_are_printed_as_json(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", faulty, "--json", "--select", "LW11"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in data["findings"]] == ["LW110", "LW113"]
    assert all(code.startswith("LW11") for code in data["rules"])


def test_a_query_picks_leaves(faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", faulty, "--where", "2.*"]) == 0
    assert "2 leaves checked" in capsys.readouterr().out


def test_a_file_is_compared_with_an_earlier_one(healthy: str, faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", faulty, "--against", healthy, "--select", "LW6", "--fail-on", "note"]) == 1
    printed = capsys.readouterr().out
    assert "0.bias" in printed
    assert "all 32 values are the same as in against=" in printed
    assert "0.weight" not in printed
    assert main(["check", healthy, "--against", healthy, "--select", "LW6"]) == 1
    assert "nothing has changed: all 4 leaves are the same as in against=" in capsys.readouterr().out


def test_the_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--rules"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("LW101  not finite: NaN or infinite values in parameters, buffers and optimizer state.")
    assert any(line.startswith("LW116  low rank") and "only if" in line for line in lines)
    assert main(["check", "--rules", "--select", "LW3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_names_from_files_are_escaped(tmp_path: Path) -> None:
    save_file({"evil\x1b[31m\n": torch.full((4, 4), float("nan"))}, tmp_path / "a.safetensors")
    command = [sys.executable, "-m", "leafwise", "check", str(tmp_path / "a.safetensors")]
    run = subprocess.run(command, capture_output=True, encoding="utf-8")
    assert run.returncode == 1
    assert "\x1b" not in run.stdout
    assert "LW101" in run.stdout


def test_a_file_is_checked_without_a_framework(healthy: str) -> None:
    code = f"import sys; from leafwise.cli import main; main(['check', {healthy!r}]); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert run.stdout.splitlines()[-1] == "False", run.stderr


def test_an_unforeseen_error_exits_with_two(healthy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*given: object, **options: object) -> None:
        raise RuntimeError("no such thing")

    monkeypatch.setattr("leafwise.inspect.check.linter.findings_of", breaks)
    monkeypatch.setattr("leafwise.inspect.diff.difference.diff_of", breaks)
    assert main(["check", healthy]) == 2
    assert main(["diff", healthy, healthy]) == 2


def test_findings_are_printed_as_sarif(healthy: str, faulty: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", faulty, "--sarif"]) == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert run["tool"]["driver"]["name"] == "leafwise"
    codes = {rule["id"] for rule in run["tool"]["driver"]["rules"]}
    assert codes >= {result["ruleId"] for result in run["results"]} != set()
    (place,) = run["results"][0]["locations"]
    assert place["physicalLocation"]["artifactLocation"]["uri"] == faulty
    assert place["logicalLocations"][0]["fullyQualifiedName"]
    assert main(["check", faulty, "--sarif", "--json"]) == 2


def test_sarif_of_many_files_has_those_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lw.save({"w": torch.randn(8, 8)}, tmp_path / "good file.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 100)
    assert main(["check", f"{tmp_path}/*", "--sarif"]) == 2
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    (invocation,) = run["invocations"]
    assert not invocation["executionSuccessful"]
    (notification,) = invocation["toolExecutionNotifications"]
    assert "bad.safetensors" in notification["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
