"""Results as HTML: what changed is open, and everything fits a page of 1,000 pixels."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest
import torch
from tests.render.test_widths import LONG, MAKE, result

import leafwise as lw

CHARACTERS = 120  # of a fixed-width font of 13 pixels, in 1,000 pixels


class Rows(HTMLParser):
    """The least width of each row in characters, without its note, which wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.titles: list[str] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        given = dict(attributes)
        if given.get("class") == "lw-below":
            self.depth += 1
        if tag == "summary" or given.get("class") == "lw-row":
            self.rows.append(2 * self.depth)
        if found := re.search(r"min-width:(\d+)ch", given.get("style") or ""):
            self.rows[-1] += int(found[1]) + 2
        if "title" in given:
            self.titles.append(given["title"])

    def handle_endtag(self, tag: str) -> None:
        self.depth -= tag == "details"


@pytest.mark.parametrize("name", MAKE)
def test_the_rows_of_a_page_fit_1000_pixels(name: str) -> None:
    rows = Rows()
    rows.feed(result(name)._repr_html_())
    assert max(rows.rows, default=0) <= CHARACTERS + 2
    assert rows.depth == 0


def test_a_name_that_is_shortened_is_whole_when_the_pointer_is_on_it() -> None:
    rows = Rows()
    rows.feed(lw.tree({LONG: torch.ones(2), "w": torch.ones(3)})._repr_html_())
    assert rows.titles == [f'"{LONG}"']


def test_a_diff_is_open_down_to_every_change_and_a_tree_is_not() -> None:
    def nested(value: float) -> dict[str, Any]:
        return {
            "a": {"b": {"c": {"d": {"w": torch.full((2,), value), "v": torch.full((3,), value)}}}},
            "same": {"x": 1},
        }

    page = lw.diff(nested(1.0), nested(2.0))._repr_html_()
    assert "<details open>" in page
    assert "<details>" not in page
    assert "<details>" in lw.tree(nested(1.0))._repr_html_()


def test_the_errors_of_a_plan_and_of_a_check_have_their_style() -> None:
    assert (
        '<span class="lw-error">missing: </span>'
        in lw.plan(torch.nn.Linear(2, 2), {"weight": torch.ones(2, 2)})._repr_html_()
    )
    assert '<span class="lw-error">error</span>' in lw.check({"a": torch.tensor([float("nan"), 1.0])})._repr_html_()
