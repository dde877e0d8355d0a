"""Every result fits the terminal, whatever the names are: no line is too wide, no figure is out of sight, and the last
line is whole."""

import datetime
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.core.results.outline import Doc, Line, Span
from leafwise.core.results.result import Result
from leafwise.render import text_of
from leafwise.render.shorten import text_width
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

WIDTHS = [40, 60, 80, 120, 200]
LONG = "callbacks_ModelCheckpoint{'monitor': 'val_loss', 'mode': 'min', 'every_n_train_steps': 0, " + "x" * 110
CJK = "模型权重" * 12
MANY = [f"transformer_blocks_{number:02}_" + "k" * 90 + f"_{number:02}_weight" for number in range(30)]
INSIDE = ["prefix_" * 8 + f"{number:02}" + "_suffix" * 8 for number in range(6)]  # they differ in the middle only


def nested(levels: int, inner: Any) -> Any:
    for level in reversed(range(levels)):
        inner = {f"level{level}": inner}
    return inner


def state(seed: int = 0) -> dict[str, Any]:
    """A checkpoint with hostile names and values. Sizes are odd, so that each figure is found again."""
    torch.manual_seed(seed)
    return {
        LONG: torch.randn(13, 17),
        "w": torch.randn(511, 3),
        CJK: torch.randn(19),
        "many": {name: torch.randn(2, 31 + number) for number, name in enumerate(MANY)},
        "inside": {name: torch.randn(101 + number) for number, name in enumerate(INSIDE)},
        "deep": nested(25, {"weight": torch.randn(23)}),
    }


def plain(seed: int = 0) -> dict[str, Any]:
    return {
        "note": "y" * 400 + str(seed),
        "numbers": list(range(500 + seed)),
        "made": datetime.date(2026, 1, 1 + seed),
        "k" * 150: {"v" * 150: "z" * 150},
    }


class Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in (LONG.replace(".", "_"), CJK, *MANY[:5]):
            self.register_module(name, nn.Linear(3, 7))
        self.register_module("q" * 100, nn.Linear(3, 7))
        getattr(self, "q" * 100).weight = getattr(self, MANY[0]).weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([layer(x).sum() for layer in self.children()]).sum()


def stepped() -> Hostile:
    torch.manual_seed(0)
    model = Hostile()
    model(torch.randn(4, 3)).backward()
    return model


def used() -> Any:
    torch.manual_seed(0)
    with lw.uses(model := Hostile()) as uses:
        model(torch.randn(4, 3)).backward()
    return uses


def checked() -> Any:
    values = state()
    values["many"][MANY[3]][0, 0] = float("nan")
    values["w"][:] = 0
    return lw.check(values)


def planned() -> Any:
    source = {f"module.{name}": value for name, value in Hostile().state_dict().items()}
    source["unexpected_" + "u" * 100] = torch.ones(29)
    source[f"module.{CJK}.bias"] = torch.ones(37)
    return lw.plan(Hostile(), source)


def edited() -> Any:
    return lw.edit(
        state(),
        "out.safetensors",
        rename=[("^inside\\.", "between." + "b" * 80 + ".")],
        drop="many",
        cast={"deep": "bfloat16"},
        set={"note": "n" * 300},
        dry_run=True,
    )


def files() -> tuple[str, str]:
    folder = Path(mkdtemp())
    for seed in (0, 1):
        torch.save({**state(seed), "plain": plain(seed)}, folder / f"{seed}.pt")
    return str(folder / "0.pt"), str(folder / "1.pt")


@cache
def result(name: str) -> Result:
    made: Result = MAKE[name]()
    return made


MAKE: dict[str, Callable[[], Any]] = {
    "tree": lambda: lw.tree(files()[0]),
    "diff": lambda: lw.diff(*files()),
    "edit": lambda: lw.edit(
        files()[0],
        Path(mkdtemp()) / "a.safetensors",
        rename=lambda name: f"{name}.{'renamed_' * 12}",
        cast="bfloat16",
        allow={"objects"},
        dry_run=True,
    ),
    "stats": lambda: lw.stats(state()),
    "check": checked,
    "ties": lambda: lw.ties(Hostile()),
    "groups": lambda: lw.groups(
        Hostile(), [lw.no_decay(), lw.Rule(f"{MANY[1]}.**", lr=0.01)], lr=0.1, weight_decay=0.1
    ),
    "norms": lambda: lw.clip(stepped(), 1.0),
    "flat": lambda: lw.flat(Hostile()),
    "uses": used,
    "plan": planned,
    "edited": edited,
    "largest": lambda: lw.tree(state()).top(10),
    "totals": lambda: lw.tree(state()).by("module"),
    "verified": lambda: lw.verify(lw.save(Hostile(), Path(mkdtemp()) / "a.safetensors")),
}


def words(drawn: str) -> str:
    """Text without the breaks of lines, branches and indentation."""
    return " ".join(re.sub(r"[│├└─·]", " ", drawn).split())


def left_out(drawn: str) -> list[str]:
    """The columns that the text says are left out."""
    found = re.search(r"columns? left out at this width: (.*?); widen", words(drawn))
    return found[1].split(", ") if found else []


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", MAKE)
def test_no_line_is_wider_than_the_terminal(name: str, full: bool, width: int) -> None:
    for ascii_only in (False, True):
        drawn = text_of(result(name), terminal=Terminal(width=width, ascii=ascii_only), full=full)
        widest = max(drawn.splitlines(), key=text_width)
        assert text_width(widest) <= width, widest
        assert drawn.isascii() or not ascii_only


def figures_of_tree() -> dict[str, set[str]]:
    leaves = [leaf for _, leaf in lw.tree(state()).items() if "level" not in str(leaf.path)]
    return {
        "shape": {"×".join(map(str, leaf.shape or ())) for leaf in leaves},
        "parameters": {f"{leaf.size:,}" for leaf in leaves},
        "dtype": {"float32"},
        "bytes": {f"{leaf.nbytes} B" for leaf in leaves if leaf.nbytes < 1024},
    }


def figures_of_stats() -> dict[str, set[str]]:
    rows = list(lw.stats(state()).values())
    return {
        "values": {f"{row.count:,}" for row in rows},
        "mean": {f"{row.mean:.3g}" for row in rows},
        "std": {f"{row.std:.3g}" for row in rows},
        "min": {f"{row.min:.3g}" for row in rows},
        "max": {f"{row.max:.3g}" for row in rows},
    }


def figures_of_diff() -> dict[str, set[str]]:
    changes = [change for change in result("diff") if change.comparison]  # type: ignore[attr-defined]
    return {
        "change": {"changed"},
        "relative L2": {f"{change.comparison.relative_l2:.3g}" for change in changes},
        "largest": {f"{change.comparison.largest:.3g}" for change in changes},
    }


FIGURES: dict[str, Callable[[], dict[str, set[str]]]] = {
    "tree": figures_of_tree,
    "stats": figures_of_stats,
    "diff": figures_of_diff,
    "norms": lambda: {"norm": {f"{norm:.4g}" for norm in result("norms").values()}},  # type: ignore[attr-defined]
    "flat": lambda: {"size": {"21", "7"}, "slice": {"[0:21]", "[21:28]"}},
    "ties": lambda: {"shape": {"7×3"}, "bytes": {"84 B"}},
    "edited": lambda: {"leaves": {"30 leaves", "6 leaves", "1 leaf"}, "bytes": {"−46 B"}},
    "largest": lambda: {"shape": {"511×3", "13×17"}, "bytes": {"6.0 KiB", "884 B"}, "dtype": {"float32"}},
    "totals": lambda: {"leaves": {"30", "6"}, "bytes": {"6.9 KiB", "10.7 KiB"}, "parameters": {"1,773"}},
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_or_its_column_is_named_as_left_out(name: str, width: int) -> None:
    drawn = text_of(result(name), terminal=Terminal(width=width), full=True)
    shown = set(re.split(r"\s{2,}|\n", drawn)) | set(drawn.split())
    missing = left_out(drawn)
    columns = FIGURES[name]()
    assert width < 120 or not set(missing) & (columns.keys() - {"dtype", "bytes", "values"})
    for column, figures in columns.items():
        if column not in missing:
            assert figures <= shown, (column, figures - shown)
    assert columns.keys() - missing, "at least one column stays"


VERDICTS = {
    "tree": "5,147 parameters · 40 leaves · 20.1 KiB · on file",
    "diff": "40 leaves: 40 changed · 4 plain values: 3 changed, 1 same",
    "edit": "40 leaves, 20.1 KiB, 3 plain values → 40 leaves, ",
    "stats": "40 leaves, ",
    "check": "leaves checked by",
    "ties": "1 tie, 2 names",
    "groups": " leaves, ",
    "norms": "total norm before clipping",
    "flat": "parameters in 1 vector",
    "uses": "the numbers are norms of gradients",
    "plan": "parameters get a value · cannot be loaded: 1 shape, 1 unexpected",
    "edited": "dry run: out.safetensors was not written",
    "largest": "10 of 40 leaves",
    "totals": "4 groups by module",
    "verified": "every checksum matches",
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", MAKE)
def test_the_verdict_is_whole(name: str, width: int) -> None:
    drawn = words(text_of(result(name), terminal=Terminal(width=width)))
    assert words(VERDICTS[name]) in drawn
    wide = [words(line) for line in text_of(result(name), terminal=Terminal(width=10_000)).splitlines()]
    assert wide[-1].split(" · ")[-1] in drawn


@pytest.mark.parametrize("width", WIDTHS)
def test_names_that_differ_stay_different(width: int) -> None:
    for names in (MANY, INSIDE, [CJK + str(number) for number in range(5)]):
        for drawn in (
            lw.tree({name: torch.ones(3) for name in names}).text(width=width, full=True),
            lw.stats({name: torch.ones(3) for name in names}).text(width=width, full=True),
        ):
            labels = [
                re.split(r"\s{2,}", re.sub(r"^[│├└─ ]+", "", line))[0] for line in drawn.splitlines() if "…" in line
            ]
            assert len(set(labels)) == len(labels) == (len(names) if width < 100 else len(labels))


def test_names_that_differ_in_two_places_stay_different_at_60_columns() -> None:
    names = [
        f"lora_unet_down_blocks_0_attentions_{number}_transformer_blocks_0_attn1_to_{which}.{way}.weight"
        for number in range(3)
        for which in ("q", "k", "out_0")
        for way in ("lora_up", "lora_down")
    ]
    drawn = lw.tree({name: torch.ones(3) for name in names}).top(18).text(width=60).splitlines()[:18]
    labels = [line.split()[0] for line in drawn]
    assert len(set(labels)) == 18
    assert "……" not in "".join(labels)
    assert all(label.endswith("weight") for label in labels)


def test_a_short_name_is_never_shortened() -> None:
    drawn = result("tree").text(width=60)
    assert re.search(r"^├─ w  ", drawn, re.MULTILINE)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_message_of_a_load_error_names_both_sides_and_the_repair(width: int) -> None:
    source = {f"module.{name}": value for name, value in Hostile().state_dict().items()}
    del source[f"module.{MANY[2]}.bias"]
    with pytest.raises(lw.LoadError) as error:
        lw.load(Hostile(), source)
    message = str(error.value)
    assert MANY[2] in message
    assert 'pass allow={"missing"}' in message
    plan = error.value.plan
    assert isinstance(plan, Result)
    assert words('to load everything else, pass allow={"missing"}') in words(plan.text(width=width))


def test_without_a_width_one_long_name_does_not_move_the_figures_of_the_others() -> None:
    layers = {f"layer{number}.weight": torch.ones(2, 3) for number in range(9)}
    drawn = lw.tree({**layers, LONG: torch.ones(2, 3)}).text(full=True).splitlines()
    assert LONG in "\n".join(drawn).replace('"', "")
    usual = [line for line in drawn if "weight" in line]
    assert max(map(len, usual)) < 60
    assert len({line.index("float32") for line in usual}) == 1
    (long,) = [line for line in drawn if "ModelCheckpoint" in line]
    assert long.endswith("2×3  float32   6   24 B")


def test_a_plain_value_of_any_length_fits() -> None:
    for line in lw.tree(plain()).text(width=60).splitlines():
        assert text_width(line) <= 60
    drawn = lw.diff(plain(), plain(1)).text(width=60)
    assert "from item 500 on: [] → [500]" in words(drawn)
    assert "from character 400 on: '0' → '1'" in words(drawn)


def test_columns_are_left_out_in_order_and_named() -> None:
    names = ("one", "two", "three")
    lines = [Line(0, (Span(f"name{number}"),), tuple(Span("x" * 12) for _ in names)) for number in range(3)]
    doc = Doc(lines, [(Span("the verdict"),)], drop=(2, 0), columns=names)
    assert "left out" not in text(doc, Terminal(width=80))
    assert "column left out at this width: three; widen the terminal, or use json()" in words(
        text(doc, Terminal(width=40))
    )
    drawn = text(doc, Terminal(width=30, shell=True))
    assert "columns left out at this width: one, three; widen the terminal, or use --json" in words(drawn)
    assert "the verdict" in drawn
    assert drawn.count("x" * 12) == 3


def test_a_note_takes_the_place_of_empty_cells_before_it_goes_below_its_line() -> None:
    lines = [
        Line(0, (Span("embed.weight"),), (Span(""), Span("8000×128"), Span("3.9 MiB"))),
        Line(1, (Span("head.weight"),), (Span("same"), Span(""), Span("")), (Span("saves 3.9 MiB"),)),
    ]
    assert text(Doc(lines, []), Terminal(width=42)).splitlines() == [
        "embed.weight          8000×128  3.9 MiB",
        "└─ head.weight  same  saves 3.9 MiB",
    ]


def test_a_label_that_must_stay_whole_goes_on_below_its_second_span() -> None:
    steps = {"compute  ": "base + 0.5 * (tuned - base)", "rename   ": "encoder.layers.** → blocks.**"}
    lines = [
        Line(0, (Span(verb), Span(what)), (Span("2 leaves"), Span("−8 B")), whole=True) for verb, what in steps.items()
    ]
    lines.append(Line(0, (Span("set      "), Span("epoch = 3 → 0, because it starts again")), whole=True))
    doc = Doc(lines, [], right=frozenset({0, 1}))
    assert text(doc, Terminal(width=44)).splitlines() == [
        "compute  base + 0.5 * (tuned  2 leaves  −8 B",
        "         - base)",
        "rename   encoder.layers.** →  2 leaves  −8 B",
        "         blocks.**",
        "set      epoch = 3 → 0, because it starts",
        "         again",
    ]
    assert "…" not in text(doc, Terminal(width=20))


def test_the_options_of_groups_and_the_steps_of_an_edit_are_whole_at_any_width() -> None:
    rules = [lw.no_decay(), lw.Rule(f"{MANY[1]}.**", lr=0.01, betas=(0.9, 0.95))]
    groups = lw.groups(Hostile(), rules, lr=0.1, weight_decay=0.1).text(width=60)
    for part in ("lr=0.01,", "betas=(0.9,", "weight_decay=0.1"):
        assert part in groups
    drawn = result("edited").text(width=60)
    assert drawn.split("between.")[1].count("b") == 80


def test_a_note_that_does_not_fit_goes_below_its_line_and_the_branches_go_on() -> None:
    lines = [
        Line(0, (Span("root"),)),
        Line(1, (Span("a"),), (Span("12"),), (Span("a note of several words that does not fit"),)),
        Line(1, (Span("b"),), (Span("34"),), (Span("short"),)),
    ]
    assert text(Doc(lines, []), Terminal(width=30)).splitlines() == [
        "root",
        "├─ a  12",
        "│      a note of several words",
        "│      that does not fit",
        "└─ b  34  short",
    ]
