"""What decides on color and width: the terminal, and NO_COLOR, FORCE_COLOR, TERM and COLUMNS."""

import io
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import leafwise as lw
from leafwise.cli import main
from leafwise.render import text_of
from leafwise.render.terminal import Terminal


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("environment", "on_screen", "in_pipe"),
    [
        ({}, True, False),
        ({"NO_COLOR": "1"}, False, False),
        ({"NO_COLOR": ""}, True, False),
        ({"TERM": "dumb"}, False, False),
        ({"FORCE_COLOR": "1"}, True, True),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, True, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
    ],
)
def test_color(environment: dict[str, str], on_screen: bool, in_pipe: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Terminal.of(Screen()).color is on_screen
    assert Terminal.of(io.StringIO()).color is in_pipe


@pytest.mark.parametrize(("columns", "width"), [("72", 72), ("", None), ("0", None), ("-3", None), ("wide", None)])
def test_output_in_a_pipe_is_as_wide_as_columns_says(
    columns: str, width: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert Terminal.of(io.StringIO()).width == width
    assert Terminal.of(Screen()).width == (width or 80)


def test_errors_are_red_and_warnings_yellow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen := Screen())
    assert main(["show", str(tmp_path / "nowhere")]) == 1
    assert screen.getvalue().startswith("\x1b[31mleafwise: cannot open")
    assert screen.getvalue().endswith("\x1b[0m\n")

    def warned(*_: object) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a tie was undone", stacklevel=1)
        return 0

    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors")
    monkeypatch.setattr("leafwise.cli.show.run", warned)
    monkeypatch.setattr("sys.stderr", screen := Screen())
    assert main(["show", str(tmp_path / "a.safetensors")]) == 0
    assert screen.getvalue() == "\x1b[33mleafwise: a tie was undone\x1b[0m\n"
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr("sys.stderr", screen := Screen())
    assert main(["stats", str(tmp_path / "nowhere")]) == 1
    assert "\x1b" not in screen.getvalue()


def test_levels_problems_and_removed_leaves_have_their_colors() -> None:
    colored = Terminal(color=True, width=100)
    broken = {"a": torch.tensor([1.0, float("nan")]), "b": torch.zeros(4, 4)}
    assert "\x1b[31merror\x1b[0m" in text_of(lw.check(broken), terminal=colored)
    plan = text_of(lw.plan(torch.nn.Linear(4, 2), {"weight": torch.zeros(2, 4)}), terminal=colored)
    assert "\x1b[31mmissing: \x1b[0m" in plan
    assert "\x1b[31m1 of 2 leaves" in plan
    assert plan.endswith("cannot be loaded: 1 missing\x1b[0m")
    diff = text_of(lw.diff({"a": torch.ones(2), "b": torch.ones(2)}, {"a": torch.zeros(2)}), terminal=colored)
    assert "\x1b[31mremoved\x1b[0m" in diff
    assert "\x1b[33mchanged\x1b[0m" in diff


def test_the_command_line_names_its_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file({f"a{number}": torch.ones(2) for number in range(500)}, tmp_path / "a.safetensors")
    save_file({f"a{number}": torch.ones(2).half() for number in range(500)}, tmp_path / "b.safetensors")
    assert "more; text(full=True) shows all" in lw.tree(tmp_path / "a.safetensors").text()
    assert main(["show", str(tmp_path / "a.safetensors")]) == 0
    shown = capsys.readouterr().out
    assert "more; --full shows all" in shown
    assert "full=True" not in shown
    (tmp_path / "ours_of_500.py").write_text(
        "import torch\ndef build():\n    return {f'a{number}': torch.ones(2) for number in range(500)}\n", "utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["plan", str(tmp_path / "b.safetensors"), "ours_of_500:build"]) == 1
    shown = capsys.readouterr().out
    assert "pass --cast to cast them" in shown
    assert shown.endswith("cannot be loaded: 500 dtype; --cast would load it\n")
    assert "cast=True" not in shown
    monkeypatch.setenv("COLUMNS", "44")
    assert main(["show", str(tmp_path / "a.safetensors")]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 44


def test_metadata_of_a_file_is_a_line_below_the_tree(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "a.safetensors", {"format": "pt"})
    tree = lw.tree(tmp_path / "a.safetensors")
    assert "__metadata__" not in tree.text()
    assert tree.text().splitlines()[-1] == "metadata: format = 'pt'"
    assert "__metadata__" in tree.text(full=True)
    assert tree.json()["values"] == {"__metadata__.format": "pt"}
    save_file({"a": torch.ones(2)}, tmp_path / "b.safetensors", {f"key{number}": "x" for number in range(9)})
    last = lw.tree(tmp_path / "b.safetensors").text().splitlines()[-1]
    assert last.endswith("""and 5 more; t["__metadata__"] shows all""")


def test_numbered_layers_of_a_file_fold_in_any_order(tmp_path: Path) -> None:
    state = {f"layers.{layer}.{part}.weight": torch.ones(2, 2) for layer in range(12) for part in ("q", "k")}
    save_file(state, tmp_path / "one.safetensors")  # in alphabetical order: 10 comes before 2
    shards = tmp_path / "shards"
    shards.mkdir()
    names = list(state)
    for number in range(5):  # a layer may be in two of them
        part = {name: state[name] for name in names[number * 5 : number * 5 + 5]}
        save_file(part, shards / f"model-{number + 1:05}-of-00005.safetensors")
    torch.save(dict(reversed(state.items())), tmp_path / "one.pt")
    for path in (tmp_path / "one.safetensors", shards, tmp_path / "one.pt"):
        assert "layers.0 … 11  ×12" in lw.tree(path).text(), path
    drawn = [lw.tree(path).text().splitlines()[1:] for path in (tmp_path / "one.safetensors", shards)]
    assert drawn[0] == drawn[1]
