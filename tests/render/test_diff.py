"""Diffs as an outline, in a notebook and as plain data."""

import copy
import json
from random import Random

import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.render import text_of
from leafwise.render.terminal import Terminal


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(4, 4), nn.Linear(4, 4)


def test_a_diff_is_drawn_as_an_outline() -> None:
    a = {"a": torch.ones(4), "b": {"w": torch.tensor([3.0, 4.0]), "v": torch.ones(2)}, "c": torch.ones(2), "step": 1}
    b = {
        "a": torch.ones(4),
        "b": {"w": torch.tensor([3.0, 4.5]), "v": torch.ones(2).half()},
        "d": torch.ones(3),
        "step": 2,
    }
    assert lw.diff(a, b).text().splitlines() == [
        "dict → dict           relative L2    cosine  largest  changed",
        "├─ a                                                           1 leaf same",
        "├─ b",
        "│  ├─ w      changed          0.1  0.998460      0.5      50%",
        "│  └─ v      cast                                              float32 → float16",
        "├─ c         removed                                           2 float32",
        "├─ d         added                                             3 float32",
        "└─ step      changed                                           1 → 2",
        "",
        "5 leaves: 1 removed, 1 added, 1 changed, 1 cast, 1 same · 1 plain value: 1 changed",
    ]


def test_equal_trees_need_no_outline() -> None:
    a = {"a": torch.ones(4), "b": torch.ones(2)}
    assert lw.diff(a, a).text() == "2 leaves, all the same"
    assert "same" in lw.diff(a, a).text(full=True).splitlines()[1]
    assert lw.diff({}, {}).text() == "0 leaves"


def test_blocks_with_the_same_changes_fold_and_unchanged_ones_close() -> None:
    net = nn.ModuleList([Block() for _ in range(40)])
    other = copy.deepcopy(net)
    with torch.no_grad():
        for number in range(10, 40):
            other[number].q.weight.mul_(1.5)
    found = lw.diff(net, other)
    lines = found.text().splitlines()
    assert len(lines) == 10
    assert lines[1].startswith("├─ 0 … 9")
    assert lines[1].endswith("40 leaves same")
    assert lines[2].startswith("└─ 10 … 39  ×30")
    assert "weight" in lines[4]
    assert "0.5" in lines[4]
    assert len(found.text(full=True).splitlines()) == 1 + 40 * 7 + 3
    assert len(found.text(depth=1).splitlines()) == 1 + 2 + 3
    assert "▸ 120 leaves: 30 changed, 90 same" in found.text(depth=1)
    assert "▸ 160 leaves" in found.text(depth=0)


def test_a_long_list_is_cut() -> None:
    a = {f"x{number}": torch.tensor([float(number)]) for number in range(500)}
    b = {name: value + 1 for name, value in a.items()}
    lines = lw.diff(a, b).text().splitlines()
    assert len(lines) <= 62
    assert "more; text(full=True) shows all" in lines[-4]
    assert len(lw.diff(a, b).text(full=True).splitlines()) > 500


def test_a_footer_longer_than_the_picture_leaves_a_line_for_the_outline() -> None:
    letters = Random(0)
    a, b = (
        {
            "".join(letters.choices("abcdefgh", k=45)): torch.full((3 + number // 3, 2), value + number)
            for number in range(24)
        }
        for value in (0.0, 0.5)
    )
    d = lw.diff({**a, "same": torch.ones(1)}, {**b, "same": torch.ones(1)})
    lines = d.text().splitlines()
    assert lines.index("") == 2
    assert lines[1] == "└─ … 49 more; text(full=True) shows all"
    assert len(lines) > 62


def test_very_deep_trees_are_drawn() -> None:
    a: object = {"x": torch.ones(1), "y": torch.ones(1)}
    b: object = {"x": torch.ones(1), "y": torch.zeros(1)}
    for _ in range(3_000):
        a, b = {"d": a}, {"d": b}
    assert "y" in lw.diff(a, b).text()


def test_names_are_escaped_everywhere() -> None:
    evil = "evil\x1b[31m\u202e"
    a = {evil: torch.ones(2), "s": evil, "gone" + evil: torch.ones(7)}
    b = {evil: torch.zeros(2), "s": "\x07", "new" + evil: torch.ones(7)}
    found = lw.diff(a, b)
    for text in (found.text(), str(found), found._repr_html_(), repr(list(found)[1])):
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "\x07" not in text
    json.dumps(found.json())


def test_html_is_escaped_and_narrow_terminals_are_respected() -> None:
    found = lw.diff({"a<b>": torch.ones(2)}, {"a<b>": torch.zeros(2)})
    assert "a&lt;b&gt;" in found._repr_html_()
    narrow = text_of(found, terminal=Terminal(False, 40, True))
    assert max(map(len, narrow.splitlines())) <= 40
    assert narrow.isascii()


def test_a_diff_as_plain_data_has_counts_leaves_and_plain_values() -> None:
    found = lw.diff({"a": torch.zeros(2), "n": 1}, {"a": torch.ones(2), "n": float("inf")})
    data = json.loads(json.dumps(found.json(), allow_nan=False))
    assert data["same"] is False
    assert data["counts"] == {"changed": 2}
    [leaf] = data["leaves"]
    assert leaf["comparison"]["relative_l2"] is None  # infinite
    assert leaf["comparison"]["largest"] == 1
    assert leaf["kinds"] == ["changed"]
    assert data["plain"] == [{"kinds": ["changed"], "path": "n", "other": None, "values": [1, "inf"]}]


@pytest.mark.parametrize("number", [0, 1])
def test_a_change_says_what_it_is(number: int) -> None:
    found = lw.diff({"a": torch.ones(2, 3), "b": torch.ones(1)}, {"a": torch.zeros(3, 1), "b": torch.zeros(1)})
    assert (
        repr(found[number])
        == [
            "<a: reshaped; 2×3 → 3×1>",
            "<b: changed; relative L2 1, cosine nan, largest 1, 100.000% of 1>",
        ][number]
    )


def test_plain_values_are_not_counted_as_leaves() -> None:
    a = {"x": {"b": torch.ones(2), "lr": 1, "mom": 2}, "w": torch.ones(1)}
    found = lw.diff(a, {**a, "w": torch.zeros(1)})
    assert "1 leaf, 2 values same" in found.text()
    assert "▸ 2 leaves, 2 values: 1 changed, 3 same" in found.text(depth=0)


def test_bytes_and_complex_numbers_can_be_written_as_json() -> None:
    one = {"b": b"\x01" * 100, "c": 1 + 2j, "s": {1}, "l": [b"\x02"]}
    data = lw.diff(one, {"b": b"\x02", "c": 2j, "s": {2}, "l": [b"\x03"]}).json()
    json.dumps(data)
    told = {value["path"]: value["values"] for value in data["plain"]}
    assert told["b"] == ["01" * 64, "02"]
    assert told["c"] == ["(1+2j)", "2j"]
    assert told["s"] == ["{1}", "{2}"]
    assert told["l"] == [["02"], ["03"]] if "l" in told else told["l.0"] == ["02", "03"]


@pytest.mark.parametrize("width", [24, 40, 60])
def test_kinds_and_the_footer_survive_a_narrow_terminal(width: int) -> None:
    a = {"model": {"layers": {"self_attention_projection": torch.ones(3), "b": torch.ones(2)}}, "gone": torch.ones(4)}
    b = {"model": {"layers": {"self_attention_projection": torch.zeros(3), "b": torch.ones(2).half()}}}
    lines = text_of(lw.diff(a, b), terminal=Terminal(width=width)).splitlines()
    assert max(map(len, lines)) <= width
    for kind in ("changed", "cast", "removed"):
        assert any(f"  {kind}" in line for line in lines), kind
    assert "3 leaves: 1 removed, 1 changed, 1 cast" in " ".join(" ".join(lines).split())
