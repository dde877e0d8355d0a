"""`leafwise image`, as a shell would use it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.cli.test_cli import on_a_terminal

import leafwise as lw
from leafwise.cli import main


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    torch.manual_seed(0)
    arrays = {
        "conv1.weight": torch.randn(8, 3, 5, 5),
        "conv1.bias": torch.randn(8),
        "step": torch.tensor(7),
        "none": torch.empty(0, 3),
        "evil\x1b[31m": torch.eye(3),
    }
    save_file(arrays, path)
    return path


def test_image_writes_a_png_and_says_so_in_one_line(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = saved.parent / "filters.png"
    assert main(["image", str(saved), "conv1.weight", "-o", str(target)]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 1
    assert out.startswith(f"{target}: 510×350 pixels · conv1.weight 8×3×5×5 float32 · 8 filters of 5×5, 3 inputs each")
    assert target.read_bytes() == lw.image(saved, "conv1.weight").png()


def test_image_of_a_file_needs_no_torch_and_is_plain_when_piped(saved: Path) -> None:
    script = (
        "import sys; from leafwise.cli import main; status = main(['image', sys.argv[1], 'conv1.weight']);"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(saved)], capture_output=True, encoding="utf-8", check=True)
    assert "\x1b" not in done.stdout
    assert "8 filters of 5×5, 3 inputs each" in done.stdout
    assert done.stderr == ""


def test_image_takes_options_and_prints_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["image", str(saved), "conv1.weight", "--limit", "2", "--size", "100", "--style", "matrix", "--json"]
    assert main(arguments) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["limit"], data["style"], data["rows"], data["columns"]) == (2.0, "matrix", 8, 75)
    target = saved.parent / "filters.png"
    assert main([*arguments, "-o", str(target)]) == 0
    assert json.loads(capsys.readouterr().out) == data
    assert target.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["conv1.wieght"], 'nothing at "conv1.wieght"; did you mean "conv1.weight"?'),
        (
            ["conv1"],
            'cannot draw "conv1": it is a node, not a leaf; give the path of a leaf: "conv1.bias", "conv1.weight"',
        ),
        ([], "give the path of the leaf to draw"),
        (["step"], 'cannot draw "step": it is a scalar'),
        (["none"], 'cannot draw "none": it is empty (shape 0×3)'),
        (
            ["conv1.weight", "-o", "filters.gif"],
            "cannot write 'filters.gif': pictures are saved as PNG; use a name that ends in .png",
        ),
        (["conv1.weight", "-o", "nowhere/filters.png"], "cannot write 'nowhere/filters.png'"),
        (["conv1.weight", "--limit", "-1"], "--limit takes a positive number"),
        (["conv1.weight", "--size", "3"], "--size takes a whole number of pixels"),
        (["conv1.weight", "--style", "nice"], "--style takes one of filters, matrix, norms, strip"),
    ],
)
def test_every_error_is_one_line(
    arguments: list[str], message: str, saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", str(saved), *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_meta_models_have_no_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "metamodel.py").write_text("from torch import nn\nnet = nn.Linear(2, 2, device='meta')\n")
    monkeypatch.chdir(tmp_path)
    assert main(["image", "metamodel:net", "weight"]) == 1
    assert 'cannot draw "weight": a meta tensor has a shape but no values' in capsys.readouterr().err


@pytest.mark.slow
def test_a_terminal_gets_half_blocks(saved: Path) -> None:
    shown = on_a_terminal("image", str(saved), "conv1.weight")
    assert "▄" in shown
    assert "\x1b[0;38;2;" in shown
    plain = on_a_terminal("image", str(saved), "conv1.weight", NO_COLOR="1")
    assert "\x1b" not in plain
    assert "# ≥" in plain
    evil = on_a_terminal("image", str(saved), '"evil\\u001b[31m"')
    assert "\x1b[31m" not in evil
    assert "u001b" in evil


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--limit", "0"], "--limit takes a positive number"),
        (["--size", "9999999"], "--size takes a whole number of pixels"),
        (["--style", "nice"], "--style takes one of filters"),
        (["--style", "filters"], "the filters style needs 3 to 5 axes"),
    ],
)
def test_errors_name_the_options_of_the_command(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "w.npy", np.ones((2, 2)))
    assert main(["image", str(tmp_path / "w.npy"), *arguments]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert "=" not in error
