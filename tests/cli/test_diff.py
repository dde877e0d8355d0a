"""`leafwise diff`, as a shell would use it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.messages import said

import leafwise as lw
from leafwise.cli import main


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    before = {"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(2), "evil\x1b[31m": torch.ones(1)}
    save_file(before, tmp_path / "before.safetensors")
    after = {**before, "a.weight": torch.ones(2, 3), "evil\x1b[31m": torch.zeros(1)}
    save_file(after, tmp_path / "after.safetensors")
    return str(tmp_path / "before.safetensors"), str(tmp_path / "after.safetensors")


def test_the_exit_status_says_whether_something_differs(
    files: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = files
    assert main(["diff", before, before]) == 0
    assert capsys.readouterr().out == "3 leaves, all the same\n"
    assert main(["diff", before, after]) == 1
    assert "2 changed, 1 same" in capsys.readouterr().out
    assert main(["diff", before, before + ".not"]) == 2
    assert "there is no such file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as exited:
        main(["diff", before])
    assert exited.value.code == 2


def test_a_file_that_is_not_a_checkpoint_exits_with_two(files: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "junk").write_bytes(b"junk" * 100)
    assert main(["diff", files[0], str(tmp_path / "junk")]) == 2


def test_files_with_nothing_in_common_exit_with_two(
    files: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({"other": torch.zeros(77)}, tmp_path / "other.safetensors")
    assert main(["diff", files[0], str(tmp_path / "other.safetensors")]) == 2
    said = capsys.readouterr().err
    assert "no leaf in common" in said
    assert "\x1b" not in said


def test_quiet_prints_nothing(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *files, "-q"]) == 1
    assert main(["diff", *files, "--quiet", "--where", "a.bias"]) == 0
    assert capsys.readouterr().out == ""


def test_where_rename_and_structure_are_applied(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    before, after = files
    assert main(["diff", before, after, "--where", "a.*"]) == 1
    assert main(["diff", before, after, "--structure"]) == 0
    assert "not compared" in capsys.readouterr().out
    assert main(["diff", before, after, "--where", "nothing"]) == 2
    assert main(["diff", before, before, "--rename", "^a=b"]) == 1
    assert main(["diff", before, before, "--rename", "^a=b", "--auto"]) == 2


def test_a_diff_is_printed_as_json(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", *files, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["counts"] == {"changed": 2, "same": 1}
    assert {leaf["path"] for leaf in data["leaves"]} == {"a.weight", "a.bias", '"evil\\u001b[31m"'}


def test_piped_output_is_plain_text(files: tuple[str, str]) -> None:
    done = subprocess.run([sys.executable, "-m", "leafwise", "diff", *files], capture_output=True, encoding="utf-8")
    assert done.returncode == 1
    assert said(done.stderr) == ""
    assert "\x1b" not in done.stdout
    assert "before.safetensors → after.safetensors" in done.stdout


def test_depth_and_full_choose_what_is_drawn(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    main(["diff", *files, "--depth", "1"])
    assert "▸ 2 leaves: 1 changed, 1 same" in capsys.readouterr().out
    main(["diff", *files, "--full"])
    assert "bias" in capsys.readouterr().out


def test_an_unforeseen_error_exits_with_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(lw.save({"w": torch.ones(2)}, tmp_path / "w.safetensors"))
    for error in (AttributeError("module has no float4"), MemoryError(), PermissionError(13, "not allowed", "w")):

        def fail(*given: Any, error: Exception = error, **more: Any) -> None:
            raise error

        monkeypatch.setattr("leafwise.inspect.diff.difference.diff_of", fail)
        assert main(["diff", path, path]) == 2
        assert type(error).__name__ in capsys.readouterr().err


def test_errors_name_the_options_of_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        str(lw.save({name: torch.ones(size)}, tmp_path / f"{name}.safetensors")) for name, size in (("a", 3), ("b", 4))
    ]
    assert main(["diff", *paths]) == 2
    said = capsys.readouterr().err
    assert "no leaf in common" in said
    assert "--rename OLD=NEW" in said
    assert "rename=" not in said
