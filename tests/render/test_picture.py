"""Trees as text and in a notebook."""

import io
import json
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.render import text_of
from leafwise.render.phrases import bytes_text
from leafwise.render.terminal import Terminal


def lecture_net() -> nn.Sequential:
    shared = nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), shared, nn.ReLU(), shared, nn.Linear(8, 1))


def test_a_network_is_drawn_as_an_outline_with_shapes_sizes_and_ties() -> None:
    assert lw.tree(lecture_net()).text() == (
        "Sequential                  121  484 B\n"
        "├─ 0  Linear                 40  160 B\n"
        "│  ├─ weight  8×4  float32   32  128 B\n"
        "│  └─ bias    8    float32    8   32 B\n"
        "├─ 1  ReLU\n"
        "├─ 2  Linear                 72  288 B\n"
        "│  ├─ weight  8×8  float32   64  256 B  also 4.weight\n"
        "│  └─ bias    8    float32    8   32 B  also 4.bias\n"
        "├─ 3  ReLU\n"
        "├─ 4  Linear  → 2\n"
        "└─ 5  Linear                  9   36 B\n"
        "   ├─ weight  1×8  float32    8   32 B\n"
        "   └─ bias    1    float32    1    4 B\n"
        "\n"
        "121 parameters, all trainable · 6 leaves under 8 names · 484 B"
    )


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(2, 4, bias=False), nn.Linear(4, 2, bias=False)


class Layer(nn.Module):
    def __init__(self, experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(2)
        self.experts = nn.ModuleList([Expert() for _ in range(experts)])


def test_runs_of_identical_subtrees_fold() -> None:
    layers = nn.ModuleDict({"layers": nn.ModuleList([Layer(4) for _ in range(5)])})
    text = lw.tree(layers).text()
    assert "layers.0 … 4  Layer  ×5" in text
    assert "experts.0 … 3  Expert  ×4" in text
    assert "each 68" in text
    assert len(text.splitlines()) < 20
    assert "×5" not in lw.tree(layers).text(full=True)
    assert "4  Layer" in lw.tree(layers).text(full=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda layers: layers[2].norm.requires_grad_(False),
        lambda layers: layers[2].norm.bfloat16(),
        lambda layers: setattr(layers[2].norm, "weight", nn.Parameter(torch.zeros(3))),
        lambda layers: layers[2].experts.pop(0),
        lambda layers: layers[2].norm.register_buffer("extra", torch.zeros(1)),
    ],
)
def test_subtrees_that_differ_do_not_fold(change: Any) -> None:
    layers = nn.ModuleList([Layer(3) for _ in range(5)])
    assert "0 … 4  Layer  ×5" in lw.tree(layers).text()
    change(layers)
    assert "0 … 4  Layer  ×5" not in lw.tree(layers).text()


def test_ties_inside_and_to_one_place_fold_and_others_do_not() -> None:
    inside = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(4)])
    for pair in inside:
        pair[1].weight = pair[0].weight
    assert "0 … 3  Sequential  ×4" in lw.tree(inside).text()
    outside = nn.ModuleList([nn.Linear(2, 2) for _ in range(5)])
    for layer in outside[1:]:
        layer.weight = outside[0].weight
    assert "1 … 4  Linear  ×4" in lw.tree(outside).text()
    crossed = nn.ModuleList([nn.Linear(2, 2) for _ in range(6)])
    for mine, theirs in ((3, 0), (4, 2), (5, 1)):
        crossed[mine].weight = crossed[theirs].weight
    assert "3 … 5" not in lw.tree(crossed).text()


def test_a_shared_layer_in_a_run_folds_to_its_reference() -> None:
    layer = nn.Linear(2, 2)
    text = lw.tree(nn.ModuleList([layer] * 12)).text()
    assert "1 … 11  Linear  ×11  → 0" in text
    assert "6 parameters" in text


def test_long_pictures_close_deeper_levels_and_say_so() -> None:
    blocks = nn.ModuleList([nn.Sequential(nn.Linear(n + 1, 2), nn.Linear(2, n + 1)) for n in range(30)])
    text = lw.tree(blocks).text()
    assert len(text.splitlines()) <= 60
    assert "▸ 4 leaves" in text
    assert len(lw.tree(blocks).text(full=True).splitlines()) > 150
    flat = lw.tree({f"w{n}": torch.zeros(n + 1) for n in range(500)})
    assert len(flat.text().splitlines()) <= 60
    assert "… 450 more; text(full=True) shows all" in flat.text()


def test_depth_limits_the_levels() -> None:
    tree = lw.tree(lecture_net())
    assert len(tree.text(depth=0).splitlines()) == 3
    assert len(tree.text(depth=1).splitlines()) == 9
    assert "▸ 2 leaves" in tree.text(depth=1)
    assert tree.text(depth=9) == tree.text()


def test_names_types_and_values_are_escaped() -> None:
    evil = "\x1b[31mred\u202e\n"
    model = nn.Module()
    model.add_module(evil, nn.Linear(1, 1))
    cls = type("Bad\x1bType", (nn.Module,), {})
    model.add_module("child", cls())
    tree = lw.tree({"model": model, "note": evil, evil: 3})
    for text in (tree.text(), tree.text(full=True), str(tree)):
        assert all(line.isprintable() for line in text.splitlines())
        assert "\\u001b[31mred\\u202e\\n" in text


def test_html_is_escaped_and_whole() -> None:
    model = nn.Module()
    model.add_module("<img src=x onerror=alert(1)>", nn.Linear(1, 1))
    page = lw.tree({"model": model, "</div>": "<b>"})._repr_html_()
    assert "<img" not in page
    assert "&lt;img" in page
    assert "<b>" not in page
    assert page.count("<div") == page.count("</div>")
    assert "prefers-color-scheme:dark" in page


class FakeTerminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def test_color_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    assert Terminal.of(FakeTerminal()) == Terminal(color=True, width=100)
    assert Terminal.of(io.StringIO()).color is False
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal.of(FakeTerminal()).color is False
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Terminal.of(FakeTerminal()).color is False


def test_print_is_colored_on_a_terminal_and_formatting_never_is(monkeypatch: pytest.MonkeyPatch) -> None:
    tree = lw.tree(lecture_net())
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout", FakeTerminal())
    assert "\x1b[" in str(tree)
    assert "\x1b[" not in f"{tree}"
    assert "\x1b[" not in tree.text()


@pytest.mark.parametrize("width", [20, 30, 40, 60])
def test_narrow_terminals_are_respected(width: int) -> None:
    lines = text_of(lw.tree(lecture_net()), terminal=Terminal(width=width)).splitlines()
    assert max(map(len, lines)) <= width
    assert any("weight" in line for line in lines)
    wide = text_of(lw.tree({"名前" * 30: torch.zeros(1)}), terminal=Terminal(width=width))
    assert sum(2 if char in "名前" else 1 for char in wide.splitlines()[1]) <= width


def test_plain_ascii_is_respected() -> None:
    tree = lw.tree({"größe": lecture_net(), "…": [1, "×"]})
    text = text_of(tree, terminal=Terminal(ascii=True))
    assert text.isascii()
    assert "|- 0  Linear" in text
    assert "-> " in text
    assert "8x4" in text
    assert Terminal.of(io.TextIOWrapper(io.BytesIO(), encoding="ascii")).ascii is True


def test_json_is_plain_data() -> None:
    tree = lw.tree({"net": lecture_net(), "inf": float("inf"), "fn": print, "t": (1, "a")})
    data = json.loads(json.dumps(tree.json(), allow_nan=False))
    assert data["values"] == {"inf": "inf", "fn": "<builtin_function_or_method>", "t": [1, "a"]}
    assert data["leaves"][2]["names"][1]["path"] == "net.4.weight"
    assert {"path": "net.4", "type": "Linear", "same_as": "net.2"} in data["nodes"]


def test_devices_are_shown_where_they_differ() -> None:
    tree = lw.tree({"a": torch.zeros(1), "b": torch.zeros(1, device="meta")})
    assert "meta" in tree.text()
    assert "on meta" in lw.tree({"b": torch.zeros(1, device="meta")}).text()


def test_empty_trees_have_a_picture() -> None:
    assert lw.tree({}).text().startswith("dict")
    assert "0 leaves" in lw.tree(lecture_net()).select("none").text()


def test_bytes_are_written_with_binary_units() -> None:
    assert bytes_text(1023) == "1023 B"
    assert bytes_text(1024) == "1.0 KiB"
    assert bytes_text(1_400_000_000_000) == "1.3 TiB"
    assert bytes_text(5 << 60) == "5120.0 PiB"


def test_arrays_that_are_not_parameters_are_not_called_frozen() -> None:
    text = lw.tree({"model": nn.Linear(2, 2), "mean": torch.zeros(3)}).text()
    assert "9 parameters (6 trainable)" in text
    assert "frozen" not in text


def test_trees_with_absurdly_long_numbers_are_shown() -> None:
    keys = [str(10**4000 + n) for n in range(3)]
    tree = lw.tree({key: torch.zeros(1) for key in keys} | {"n": 10**5000})
    assert "too long to print" in tree.text()
    assert tree._repr_html_()
    assert json.dumps(tree.json())


def test_one_long_name_does_not_push_the_columns_out_of_sight() -> None:
    options = ", ".join(f"'option_{number}': None" for number in range(10))
    callbacks = {f"ModelCheckpoint{{{options}}}": {"score": torch.tensor(1.0)}}
    layers = {f"layer{number}.weight": torch.ones(2, number + 1) for number in range(6)}
    lines = lw.tree({"state_dict": layers, "callbacks": callbacks}).text(width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.endswith("2×6     float32  12   48 B") for line in lines)
    assert any('"ModelC…' in line and "9': None}\"" in line and line.endswith("4 B") for line in lines)


def test_a_long_plain_value_does_not_cost_a_column() -> None:
    lines = lw.tree({"weight": torch.ones(2, 2), "names": ["a" * 60, "b" * 60]}).text(width=50).splitlines()
    assert "└─ weight  2×2  float32  4  16 B" in lines
    assert max(map(len, lines)) == 50


def test_the_footer_of_an_optimizer_says_that_its_leaves_are_state() -> None:
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.Adam([weight])
    optimizer.step()
    assert lw.tree(optimizer).text().endswith("\n3 leaves of optimizer state · 20 B")
