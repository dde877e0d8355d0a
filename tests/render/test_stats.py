"""Statistics as a table, as text and in a notebook."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.render import text_of
from leafwise.render.terminal import Terminal


def test_statistics_are_drawn_as_a_table() -> None:
    x = {"a": torch.tensor([1.0, -1.0, 2.0, 4.0]), "b": torch.zeros(3), "c": torch.tensor([0.25, math.nan, math.inf])}
    assert lw.stats(x).text().splitlines() == [
        "       values   mean   std   min   max  zeros                 ≤2^-17           2^2",
        "a           4    1.5   1.8    -1     4      0                                  █▄▄",
        "b           3      0     0     0     0   100%",
        "c           3   0.25     0  0.25  0.25      0  1 NaN, 1 +inf                 █",
        "total      10  0.781  1.47    -1     4    38%  1 NaN, 1 +inf                 ▄ █▄▄",
        "",
        "3 leaves, 10 values · bars count magnitudes by powers of two",
        "not finite in 1 leaf: c",
        "c at [1], [2]",
    ]


def test_a_table_of_many_leaves_has_one_line_per_part() -> None:
    net = nn.ModuleList([nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(40)])
    s = lw.stats(net)
    lines = s.text().splitlines()
    assert lines[1].startswith("0 ")
    assert lines[1].endswith("4 leaves")
    assert len(lines) == 1 + 40 + 1 + 2
    assert len(s.text(full=True).splitlines()) == 1 + 160 + 1 + 2
    assert len(s.text(depth=2).splitlines()) == 1 + 80 + 1 + 2
    assert len(s.text(depth=0).splitlines()) == 1 + 1 + 2
    shallow = lw.stats({"a": net, "one": torch.ones(1)}).text(depth=1).splitlines()
    assert [line.split()[0] for line in shallow[1:4]] == ["a", "one", "total"]


def test_the_last_of_too_many_parts_share_a_line() -> None:
    s = lw.stats([torch.full((2,), float(number)) for number in range(500)])
    lines = s.text().splitlines()
    assert len(lines) == 1 + 60 + 1 + 2
    assert lines[60].startswith("… 441 more")
    assert lines[60].endswith("441 leaves")
    assert "499" in lines[60]
    assert len(s.text(full=True).splitlines()) == len(s.text(depth=1).splitlines()) == 1 + 500 + 1 + 2


def test_a_few_of_many_parts_are_shown_instead_of_one_line() -> None:
    s = lw.stats({"b": [{"c": [torch.ones(1), torch.ones(1)]} for _ in range(500)]})
    lines = s.text().splitlines()
    assert len(lines) == 1 + 60 + 1 + 2
    assert lines[1].startswith("b.0 ")


def test_names_with_dots_stay_whole() -> None:
    model = {"x.y": {"a": torch.ones(1), "b": torch.ones(1)}, 'say "hi"\x1b': torch.ones(1)}
    text = lw.stats(model).text(depth=1)
    assert '"x.y"' in text or "x.y" in text
    assert "\x1b" not in text


def test_narrow_and_ascii_terminals_are_respected() -> None:
    s = lw.stats({"weight": torch.randn(1_000)})
    for width in (20, 40, 60, 80):
        assert all(len(line) <= width for line in text_of(s, terminal=Terminal(width=width)).splitlines()[:2])
    plain = text_of(s, terminal=Terminal(ascii=True))
    assert plain.isascii()
    assert "#" in plain


@pytest.mark.parametrize("width", [20, 40, 60])
def test_without_a_histogram_the_table_fits_narrow_terminals(width: int) -> None:
    s = lw.stats(nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 1)), histogram=False)
    lines = text_of(s, terminal=Terminal(width=width)).splitlines()
    assert max(map(len, lines)) <= width


def test_narrow_terminals_keep_the_column_of_values_that_are_not_finite() -> None:
    name = "transformer.layers.{}.attention.projection.weight"
    model = {name.format(number): torch.randn(50) for number in range(3)}
    model[name.format(1)][3] = math.nan
    text = text_of(lw.stats(model), terminal=Terminal(width=80))
    assert "1 NaN" in text
    assert "std" in text
    assert "not finite in 1 leaf" in text


def test_without_a_histogram_there_are_no_bars() -> None:
    text = lw.stats({"a": torch.ones(2)}, histogram=False).text()
    assert "2^" not in text
    assert "bars" not in text


@pytest.mark.parametrize(
    ("zeros", "size", "shown"),
    [(0, 10, "0"), (5, 10, "50%"), (1, 1_000, "0.1%"), (10, 10, "100%"), (1, 100_000, "<0.01%")],
)
def test_the_share_of_zeros_is_rounded_and_small_shares_are_not_zero(zeros: int, size: int, shown: str) -> None:
    x = torch.ones(size)
    x[:zeros] = 0
    assert lw.stats({"x": x}, histogram=False).text().splitlines()[1].split()[-1] == shown


def test_almost_all_zeros_are_not_shown_as_all() -> None:
    text = lw.stats({"x": torch.cat([torch.ones(1), torch.zeros(10**6)])}).text()
    assert ">99.99%" in text
    assert "100%" not in text


def test_whole_numbers_are_written_without_a_point() -> None:
    line = lw.stats({"x": np.array([3, 1_234_567])}, histogram=False).text().splitlines()[1]
    assert "1,234,567" in line


def test_gradients_are_called_gradients() -> None:
    net = nn.Linear(2, 1)
    net(torch.ones(1, 2)).sum().backward()
    assert "2 leaves, 3 gradients" in lw.stats(net, of="grad").text()


def test_notebooks_get_html() -> None:
    page = lw.stats({"<b>": torch.tensor([1.0, math.nan])})._repr_html_()
    assert "&lt;b&gt;" in page
    assert "<b>" not in page
    assert "1 NaN" in page


def test_the_range_of_the_bars_is_that_of_the_weights() -> None:
    small, middle = torch.full((5,), 2.0**-30), torch.full((5,), 0.5)
    text = lw.stats({"small": small, "middle": middle, "ids": torch.arange(10**6, 10**6 + 9)}).text()
    header, first, second, ids = text.splitlines()[:4]
    assert "≤2^-20" in header
    assert header.endswith("≥2^-1")
    ones = lw.stats({"middle": middle, "mask": torch.ones(3, dtype=torch.bool)}).text()
    assert ones.splitlines()[0].endswith("≥2^-1")
    assert first.index("█") == header.index("≤")
    assert second.endswith("█")
    assert ids.endswith("█")


def test_an_empty_table_is_drawn_in_a_notebook() -> None:
    for nothing in ({}, nn.ReLU(), []):
        assert "0 leaves" in lw.stats(nothing)._repr_html_()


def test_totals_are_printed_for_each_section_and_the_rest_shares_a_line() -> None:
    state = {"state": {0: {"exp_avg": torch.full((2, 2), 3.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    s = lw.stats({"model": {"w": torch.ones(2, 2)}, "optimizer": state, "loss": torch.tensor([math.inf, 5.0])})
    lines = s.text().splitlines()
    assert [line.split("  ")[0] for line in lines[1:6]] == [
        "model.w",
        "optimizer.state.0.exp_avg",
        "total weights",
        "total optimizer state",
        "total other state",
    ]
    assert lines[7:] == [
        "3 leaves, 4 values of weights, 4 of optimizer state, 2 of other state",
        "bars count magnitudes by powers of two",
    ]
    assert any(line.startswith("loss") for line in s.text(full=True).splitlines())


def test_leaves_of_different_sections_do_not_share_a_line() -> None:
    state = {"state": {0: {"a": torch.ones(3), "b": torch.ones(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    s = lw.stats({"all": {"net": {"v": torch.ones(2), "w": torch.ones(2)}, "optimizer": state}})
    names = [line.split("  ")[0] for line in s.text(depth=1).splitlines()]
    assert names[1:5] == ["all (weights)", "all (optimizer state)", "total weights", "total optimizer state"]
