"""`leafwise edit`, as a shell would use it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import leafwise as lw
from leafwise.cli import main


@pytest.fixture
def source(tmp_path: Path) -> str:
    torch.manual_seed(0)
    state = {
        "embed.weight": torch.randn(10, 4),
        "layers.0.qkv.weight": torch.randn(12, 4),
        "layers.0.qkv.bias": torch.randn(12),
        "conv.weight": torch.randn(2, 3, 4, 5),
        "n": torch.arange(3),
    }
    torch.save({"model": state, "epoch": 3, "config": {"lr": 0.1}}, tmp_path / "a.pt")
    return str(tmp_path / "a.pt")


def test_every_option_reaches_the_edit(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "b.safetensors")
    arguments = [
        *("edit", source, "-o", out),
        *("--drop", "model.n"),
        *("--cast", "bfloat16", "--cast", "**.bias=float64"),
        *("--transpose", "model.conv.weight=3,2,0,1"),
        *("--resize", "model.embed.weight=12;fill=mean"),
        *("--split", "model.layers.*.qkv=q,k,v;axis=0;sizes=6,3,3"),
        *("--tie", "model.head.weight=model.embed.weight"),
        *("--set", "epoch=0", "--set", "note=some text", "--set", "config.steps=[1, 2]"),
        *("--delete", "config.lr"),
        *("--metadata", "license=mit"),
        *("--rename", r"^model\.="),
    ]
    assert main([*arguments, "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "was not written" in plan
    assert not Path(out).exists()
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    assert printed.endswith(f"wrote {out}\n")
    assert plan.splitlines()[:5] == printed.splitlines()[:5]
    state = torch.load(source)["model"]
    written = load_file(out)
    assert written.keys() == {
        "embed.weight",
        "conv.weight",
        *(f"layers.0.{part}.{kind}" for part in "qkv" for kind in ("weight", "bias")),
    }
    assert torch.equal(written["conv.weight"], state["conv.weight"].permute(3, 2, 0, 1).bfloat16())
    assert torch.equal(written["layers.0.q.bias"], state["layers.0.qkv.bias"][:6].double())
    assert torch.equal(written["layers.0.v.weight"], state["layers.0.qkv.weight"][9:].bfloat16())
    assert torch.equal(written["embed.weight"][:10], state["embed.weight"].bfloat16())
    with lw.open(out) as t:
        assert t["head.weight"].shape == (12, 4)
        assert (t["epoch"], t["note"]) == (0, "some text")
        assert "config.lr" not in t
        assert len(t.ties) == 1
    with safe_open(out, "pt") as file:
        assert file.metadata()["license"] == "mit"


def test_checkpoints_are_averaged_and_computed_with(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("a", 1.0), ("b", 3.0), ("c=d", 5.0)):
        save_file({"w": torch.full((4,), value)}, tmp_path / f"{name}.safetensors")
    a, b, c = (str(tmp_path / f"{name}.safetensors") for name in ("a", "b", "c=d"))
    out = str(tmp_path / "out.safetensors")
    assert main(["edit", a, b, c, "-o", out, "--average"]) == 0
    assert load_file(out)["w"].tolist() == [3.0] * 4
    assert main(["edit", f"base={a}", f"tuned={b}", "-o", out, "--formula", "base + 2 * (tuned - base)"]) == 0
    assert load_file(out)["w"].tolist() == [5.0] * 4
    assert main(["edit", f"base={a}", f"base={b}", "-o", out, "--formula", "base"]) == 1
    assert "two sources have the same name" in capsys.readouterr().err
    assert main(["edit", a, b, "-o", out]) == 1
    assert "several sources need --average or --formula" in capsys.readouterr().err


def test_json_has_the_steps_and_the_leaves(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "b.safetensors")
    assert main(["edit", source, "-o", out, "--drop", "model.n", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["written"] is True
    assert data["steps"][0]["names"] == ["model.n"]
    assert {leaf["name"] for leaf in data["leaves"]} == {f"model.{name}" for name in torch.load(source)["model"]} - {
        "model.n"
    }


def test_problems_are_listed_one_per_line_with_options_of_the_command_line(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "b.safetensors"
    assert main(["edit", source, "-o", str(out), "--drop", "zzz", "--untie", "model.n", "--rename", "yyy=x"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("leafwise: cannot write ")
    assert lines[1:] == [
        "  --drop 'zzz' matches nothing in the source",
        "  --untie 'model.n' matches no tied name in the source",
        "  --rename 'yyy' matches no name that is written",
    ]
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["--resize", "model.n"], "--resize takes QUERY=VALUE"),
        (["--resize", "model.n=x"], "--resize takes whole numbers, not 'x'"),
        (["--resize", "model.n=4;fill=x"], "--resize takes numbers, not 'x'"),
        (["--split", "model.n=a"], "--split takes GLOB=A,B"),
        (["--transpose", "model.n=a,b"], "--transpose takes whole numbers"),
        (["--set", "epoch"], "--set takes NAME=VALUE"),
        (["--tie", "a"], "--tie takes NAME=OTHER"),
        (["--formula", "a +"], "cannot read the formula"),
        (["--lora", "nowhere"], "adapter_config.json"),
        (["--cast", "float7"], "cannot cast to 'float7'"),
        (["--shard-size", "many"], "takes a number of bytes"),
    ],
)
def test_options_that_are_not_valid_are_explained(
    arguments: list[str], cause: str, source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["edit", source, "-o", str(tmp_path / "b.safetensors"), *arguments]) == 1
    assert cause in capsys.readouterr().err
    assert not (tmp_path / "b.safetensors").exists()


def test_a_value_that_does_not_fit_suggests_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"w": torch.tensor([1e9])}, tmp_path / "a.safetensors")
    arguments = ["edit", str(tmp_path / "a.safetensors"), "-o", str(tmp_path / "b.safetensors"), "--cast", "float16"]
    assert main(arguments) == 1
    assert "--saturate uses the nearest value that fits" in capsys.readouterr().err
    assert main([*arguments, "--saturate"]) == 0
