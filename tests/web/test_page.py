"""The page in a browser, with names and values that try to become more than text."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Page, expect
from tests.web.asking import Client, write_safetensors
from tests.web.browser import Problems, assert_accessible, assert_inert
from tools.chromium import MISSING, find_chromium

import leafwise as lw
from leafwise.web.viewing import View

_RUN = "window.__pwned=1"
NAMES = [
    f"<img src=x id=pwned onerror={_RUN}>", f'"><script id=pwned>{_RUN}</script>', f"<svg id=pwned onload={_RUN}>",
    f"<iframe id=pwned srcdoc='<script>parent.{_RUN}</script>'></iframe>", "<style id=pwned>*{display:none}</style>",
    f"<a id=pwned href='javascript:{_RUN}'>x</a>", f"javascript:{_RUN}", f'x" onmouseover="{_RUN}',
    f"' autofocus onfocus={_RUN} '",
    f"</title><script id=pwned>{_RUN}</script>", f"</textarea></script><script id=pwned>{_RUN}</script>", "<!--",
    "--><b id=pwned>",
    "&lt;b&gt;", "&#60;img&#62;", "{{constructor.constructor('window.__pwned=1')()}}", f"${{{_RUN}}}", "__proto__",
    "constructor",
    "a\x1b[31mred", "a\x00b", "line\nfeed", "\r\n\r\n", "\u202egnirts", "\u2066isolate", "zero\u200bwidth",
    "\ufeffmark", "\u2028",
    "\U000e0041tag", "é日本🔥", "مرحبا", "e" + "\u0301" * 50, "..", " ", "#/map?leaf=x", "?query=1", "%3Cb%3E",
    "W" * 10_000,
]  # fmt: skip


def test_there_is_a_browser_or_it_is_said_that_there_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    if find_chromium() is None:
        with capsys.disabled():
            print(f"\n{MISSING}", file=sys.stderr)
        pytest.skip("Chromium was not found")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[View]:
    """A file with hostile names; one value of each leaf is NaN, so that each has a finding."""
    folder = tmp_path_factory.mktemp("hostile")
    arrays: dict[str, Any] = {}
    for number, name in enumerate(NAMES):
        arrays[f"top.{name}" if number % 2 else name] = np.full((8, 8 + number), np.nan, np.float32)
        arrays[f"top.{name}" if number % 2 else name][1:] = number
    metadata = {f"<img src=x id=pwned onerror={_RUN}>": f"<script id=pwned>{_RUN}</script>\u202e", "format": "pt"}
    path = write_safetensors(
        folder / f"<img src=x id=pwned onerror={_RUN}>.safetensors".replace("/", ""), arrays, metadata
    )
    with lw.view(path, browser=False, port=0) as view:
        client = Client(view.url)
        while any(client.api("progress")[name]["state"] == "running" for name in ("stats", "findings")):
            pass
        yield view


def rows_of(page: Page) -> dict[str, str]:
    """The lines that the page has drawn: their paths, and the text of the first column."""
    found: dict[str, str] = page.evaluate(
        "() => Object.fromEntries([...document.querySelectorAll('[data-testid=row]')]"
        ".map((row) => [row.dataset.path ?? '', row.querySelector('[role=gridcell] .text')?.textContent ?? '']))"
    )
    return found


def opened(page: Page, view: View, name: str) -> None:
    page.set_viewport_size({"width": 1_600, "height": 2_400})  # all lines at once
    page.goto(view.url)
    page.get_by_test_id(f"tab-{name}").click()
    expect(page.get_by_test_id(f"tab-{name}")).to_have_attribute("aria-current", "page")


def test_hostile_names_in_the_tree_are_text(page: Page, hostile: View) -> None:
    opened(page, hostile, "tree")
    listed = Client(hostile.url).api("rows", depth=99, count=500)["rows"]
    assert len(listed) > len(NAMES)
    expect(page.get_by_test_id("row")).to_have_count(len(listed))
    shown = rows_of(page)
    for row in listed:
        assert shown[row["path"]] == row["name"], ascii(row["path"])
    assert_inert(page)


@pytest.mark.parametrize("name", ["stats", "findings"])
def test_hostile_names_in_tables_are_text(page: Page, hostile: View, name: str) -> None:
    opened(page, hostile, name)
    client = Client(hostile.url)
    listed = client.api("table" if name == "stats" else "findings", count=500)["rows"]
    assert len(listed) >= len(NAMES)
    expect(page.get_by_test_id("row").first).to_be_visible()
    text = page.locator("main").text_content() or ""
    drawn = page.get_by_test_id("row").count()
    assert drawn > 20
    paths = [row["path"] for row in listed[: drawn - 5]]
    missing = [path for path in paths if path not in text and len(path) < 1_000]
    assert not missing
    assert_inert(page)


def test_hostile_names_in_the_map_are_text(page: Page, hostile: View) -> None:
    opened(page, hostile, "map")
    cell = Client(hostile.url).api("map", path="")["cell"]
    area = page.get_by_test_id("map-area")
    expect(area).to_be_visible()
    largest = next(child for child in cell["children"] if child["kind"] == "leaf" and len(child["name"]) < 100)
    expect(area).to_contain_text(largest["name"][:8])
    assert_inert(page)
    for color in ("role", "health", "magnitude"):
        page.get_by_test_id("map-color").locator(f"label:has(input[value={color}])").click()
        expect(page.get_by_test_id("map-legend")).to_be_visible()
        assert_inert(page)
    page.mouse.move(400, 600)  # a hint with the name
    assert_inert(page)


def test_leaves_with_hostile_names_can_be_opened_and_are_text(page: Page, hostile: View) -> None:
    opened(page, hostile, "tree")
    client = Client(hostile.url)
    listed = client.api("rows", depth=99, count=500)["rows"]
    leaves = [row for row in listed if row["kind"] == "leaf"]
    assert len(leaves) == len(NAMES)
    expect(page.get_by_test_id("row")).to_have_count(len(listed))
    for row in leaves:
        page.locator(f"[data-testid=row][data-index='{listed.index(row)}']").click(position={"x": 60, "y": 10})
        heading = page.get_by_test_id("leaf-panel").get_by_role("heading").first
        expect(heading).to_have_text(client.api("leaf", path=row["path"])["path"])
        expect(page.get_by_test_id("leaf-numbers")).to_be_visible()
        assert_inert(page)


def test_what_is_said_about_the_file_is_text(page: Page, hostile: View) -> None:
    opened(page, hostile, "tree")
    expect(page.locator("h1")).to_have_text(Client(hostile.url).api("summary")["title"])
    page.get_by_test_id("about").click()
    expect(page.get_by_text("<script id=pwned>", exact=False).first).to_be_visible()
    assert_inert(page)


def test_a_hostile_query_and_a_hostile_address_are_text(page: Page, hostile: View, problems: list[Problems]) -> None:
    opened(page, hostile, "tree")
    search = page.get_by_test_id("search")
    for query in NAMES[:8]:
        search.fill(query)
        search.press("Enter")
        assert_inert(page)
    for address in (
        f"#/tree?leaf=<img src=x id=pwned onerror={_RUN}>", f"#/<img src=x id=pwned onerror={_RUN}>",
        f"#javascript:{_RUN}",
        f"#/tree?query=%3Cimg%20src%3Dx%20id%3Dpwned%20onerror%3D{_RUN}%3E", "#/map?node=nowhere&color=%3Cb%3E",
        "#/tree?%",
    ):  # fmt: skip
        page.goto("about:blank")
        page.goto(hostile.url + address)
        expect(page.locator("h1")).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert_inert(page)
    problems[0].expected("status of 422")  # there are no such leaves


def test_a_report_of_hostile_names_is_text(page: Page, hostile: View, tmp_path: Path) -> None:
    path = hostile.export(tmp_path / "report.html")
    listed = Client(hostile.url).api("rows", depth=99, count=500)["rows"]
    page.set_viewport_size({"width": 1_600, "height": 2_400})
    page.goto(f"file://{path}")
    expect(page.get_by_test_id("row")).to_have_count(len(listed))
    shown = rows_of(page)
    for row in listed:
        assert row["depth"] == 0 or shown[row["path"]] == row["name"], ascii(row["path"])
    assert_inert(page)
    for name in ("stats", "findings", "map"):
        page.get_by_test_id(f"tab-{name}").click()
        expect(page.get_by_test_id(f"tab-{name}")).to_have_attribute("aria-current", "page")
        assert_inert(page)


@pytest.mark.parametrize("name", ["tree", "map", "stats", "findings"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_view_is_accessible(page: Page, hostile: View, name: str, scheme: str) -> None:
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    opened(page, hostile, name)
    page.wait_for_load_state("networkidle")
    assert_accessible(page)
