"""Results as HTML: what changed is open, and everything fits a page of 1,000 pixels, and a narrow one."""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from html.parser import HTMLParser
from pathlib import Path
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


BROWSERS = ("chromium", "chromium-browser", "google-chrome")
# Opens everything, then reports the width of each page, and by how much its content is wider than its frame.
MEASURE = """<script>onload = () => {
  const pages = Array.from(document.querySelectorAll("iframe"), frame => {
    const page = frame.contentDocument, result = page.querySelector(".leafwise");
    page.querySelectorAll("details").forEach(node => { node.open = true; });
    const figures = Array.from(page.querySelectorAll(".lw-row > .lw-right, summary > .lw-right"));
    const cut = figures.filter(figure => figure.scrollWidth > figure.clientWidth + 1).length;
    return [frame.title, page.documentElement.scrollWidth, result.scrollWidth - result.clientWidth, cut];
  });
  document.title = JSON.stringify(pages);
}</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("pixels", [400, 1000])
def test_no_page_is_wider_than_its_window_in_a_browser(pixels: int, tmp_path: Path) -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser measures the pages: install Chromium (Debian: apt-get install chromium)")
    frames = [
        f'<iframe title="{name}" width="{pixels}" height="600" style="border:0" '
        f'srcdoc="{escape("<!doctype html><meta charset=utf-8>" + result(name)._repr_html_())}"></iframe>'
        for name in MAKE
    ]
    sheet = tmp_path / "sheet.html"
    sheet.write_text(f"<!doctype html><meta charset=utf-8><title></title>{MEASURE}{''.join(frames)}", "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=10000", "--dump-dom"]
    run = subprocess.run([browser, *options, sheet.as_uri()], capture_output=True, timeout=600, check=True)
    title = re.search("<title>(.*?)</title>", run.stdout.decode("utf-8"))
    assert title is not None
    measured = json.loads(unescape(title[1]))
    assert [name for name, *_ in measured] == list(MAKE)
    assert not [page for page in measured if page[1:] != [pixels, 0, 0]]


def test_a_narrow_page_leaves_out_columns_in_order_and_names_them() -> None:
    page = result("stats")._repr_html_()
    assert '<div class="lw-foot lw-narrow"><span class="lw-dim">columns left out at this width: ' in page
    assert "magnitudes; use json()" in page
    assert "lw-narrow" not in re.sub("<style>.*</style>", "", result("norms")._repr_html_(), flags=re.DOTALL)


def test_a_label_that_must_stay_whole_is_whole_on_a_page() -> None:
    page = result("edited")._repr_html_()
    assert 'class="lw-label lw-whole"' in page
    assert "b" * 80 + ".**" in page


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
