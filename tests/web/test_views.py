"""The page in Chromium: every view of real checkpoints, clicked through, compared with what the functions return.

With LEAFWISE_PICTURES=1, the pictures in docs/view.md and the README are taken again (`make pictures` does that).
"""

import os
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.web.browser import Problems, assert_accessible
from tests.web.pages import address, measured, paths, row, show, shown, until
from torch import nn

import leafwise as lw

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
VIEWS = ("tree", "map", "stats", "findings")


class Model(nn.Module):
    """A small vision-language model: convolutions, a tied embedding, a dead unit and a NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.vision = nn.Sequential(nn.Conv2d(3, 64, 7), nn.BatchNorm2d(64), nn.Conv2d(64, 96, 3))
        self.embed = nn.Embedding(8000, 256)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(256, 8, 1024) for _ in range(4))
        self.head = nn.Linear(256, 8000, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    made = Model()
    with torch.no_grad():
        made.layers[1].linear1.weight[7] = 0  # type: ignore[union-attr, operator]
        made.layers[2].norm1.bias[3] = float("nan")  # type: ignore[union-attr, operator]
    return made


@pytest.fixture(scope="module")
def checkpoint(model: Model, tmp_path_factory: pytest.TempPathFactory) -> str:
    return lw.save(model, tmp_path_factory.mktemp("view") / "model.safetensors")


@pytest.fixture(scope="module")
def url(checkpoint: str) -> Iterator[str]:
    with lw.view(checkpoint, browser=False, port=0) as view:
        yield view.url


@pytest.fixture(scope="module")
def compared(model: Model, checkpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The model after a change, and its checkpoint before."""
    import copy

    changed = copy.deepcopy(model)
    with torch.no_grad():
        changed.layers[3].linear2.weight.add_(0.01)  # type: ignore[union-attr, operator]
    with lw.view(changed, checkpoint, browser=False, port=0) as view:
        yield view.url


def picture(page: Any, name: str, folder: Path) -> None:
    """Takes a picture, for the docs if that was asked for, and checks that it shows something."""
    asked = bool(os.environ.get("LEAFWISE_PICTURES"))
    path = (PICTURES if asked else folder) / f"view-{name}.png"
    page.mouse.move(0, 0)
    data = page.screenshot(path=path)
    assert len(colors(data)) > 10


def colors(data: bytes) -> set[bytes]:
    """Some of the colors of a PNG with three bytes per pixel, after undoing nothing: filtered bytes differ as well."""
    assert data.startswith(b"\x89PNG")
    at, packed = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        packed += data[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    raw = zlib.decompress(packed)
    return {raw[start : start + 3] for start in range(1, min(len(raw), 3_000_000), 3)}


# -- the tree --------------------------------------------------------------------------------------------


def test_the_tree_lists_every_name_and_what_lw_tree_says_about_it(page: Any, url: str, checkpoint: str) -> None:
    show(page, url, "#/tree?depth=99")
    with lw.open(checkpoint) as t:
        expected = {str(name.path): leaf for leaf in t for name in leaf.names}
        assert page.locator("[data-testid=list]").get_attribute("aria-rowcount") == str(1 + len(lines_of(t)))
        seen: set[str] = set()
        while True:
            seen |= set(paths(page))
            before = page.locator("[data-testid=list]").evaluate("list => list.scrollTop")
            page.locator("[data-testid=list]").evaluate("list => { list.scrollTop += list.clientHeight / 2; }")
            until(lambda: page.locator("[data-testid=list]").evaluate(IS_DRAWN), "lines are missing")
            if page.locator("[data-testid=list]").evaluate("list => list.scrollTop") == before:
                break
        assert expected.keys() <= seen
        page.locator("[data-testid=search]").fill("embed.weight")
        line = row(page, "embed.weight")
        until(lambda: "8000×256" in line.inner_text() and "7.81 MiB" in line.inner_text())
        assert "2 names" in line.inner_text()


# Whether the lines are drawn that belong where the list was scrolled to, whose first line is its heading.
IS_DRAWN = """list => {
    const height = list.querySelector(".head").clientHeight;
    const lines = [...list.querySelectorAll("[data-testid=row]")].map((line) => Number(line.dataset.index));
    const row = list.querySelector("[data-testid=row]").clientHeight;
    const first = Math.floor(list.scrollTop / row);
    const end = Math.min(Math.floor((list.scrollTop + list.clientHeight - height) / row), list.ariaRowCount - 1);
    for (let index = first; index < end; index++) if (!lines.includes(index)) return false;
    return true;
}"""


def move_to(page: Any, path: str, key: str) -> None:
    """Moves in the list with a key until the line of a path is the active one."""

    def active() -> Any:
        return page.locator("[data-testid=list]").get_attribute("aria-activedescendant")

    for _ in range(50):
        before = until(active, "no line is active")
        if before == row(page, path).get_attribute("id"):
            return
        page.keyboard.press(key)
        until(lambda before=before: active() not in (None, before), f"{key} does not lead to {path}")  # type: ignore[misc]
    raise AssertionError(f"{key} does not lead to {path}")


def lines_of(t: lw.Tree) -> list[str]:
    """The paths of all nodes, names and plain values."""
    names = [str(name.path) for leaf in t for name in leaf.names]
    return [*(str(node.path) for node in t.nodes), *names, *map(str, t.scalars)]


def test_nodes_fold_and_unfold_by_clicks_and_keys(page: Any, url: str) -> None:
    show(page, url, "#/tree?depth=1")
    until(lambda: "layers" in paths(page))
    assert not [path for path in paths(page) if path.startswith("layers.")]
    row(page, "layers").click()
    until(lambda: "layers.0" in paths(page))
    assert row(page, "layers").get_attribute("aria-expanded") == "true"
    page.locator("[data-testid=list]").focus()
    page.keyboard.press("Home")
    move_to(page, "layers", "ArrowDown")
    page.keyboard.press("ArrowLeft")
    until(lambda: "layers.0" not in paths(page))
    page.keyboard.press("ArrowRight")
    until(lambda: "layers.0" in paths(page))
    page.locator("[data-testid=unfold-all]").click()
    until(lambda: "embed.weight" in paths(page))


def test_a_search_shows_what_t_find_returns(page: Any, url: str, checkpoint: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 2400})  # so that all matches are on the screen
    show(page, url)
    field = page.locator("[data-testid=search]")
    with lw.open(checkpoint) as t:
        for query, found in (
            ("linear1 bias", t.find("linear1", "bias")),
            ("**.norm1.*", t.find("**.norm1.*")),
            ("role:norm.* dtype:float32", t.select(lw.where(role="norm.*", dtype="float32"))),
            ("tied:yes", t.select(lw.where(tied=True))),
        ):
            field.fill(query)
            expected = {t.columns.row_text(number) for number in found.rows}
            until(lambda expected=expected: expected <= set(paths(page)), query)  # type: ignore[misc]
            leaves = page.locator("[data-testid=row][data-path]:not([aria-expanded])")
            shown = leaves.evaluate_all("rows => rows.map((row) => row.dataset.path)")
            assert set(shown) == expected, query
    field.fill("colour:red")
    until(lambda: "colour: is not a filter" in page.locator("body").inner_text())
    page.keyboard.press("Escape")


def test_sorting_lists_leaves_by_size(page: Any, url: str, checkpoint: str) -> None:
    show(page, url, "#/tree?sort=bytes")
    with lw.open(checkpoint) as t:
        sizes = {str(path): leaf.nbytes for path, leaf in t.items()}
    until(lambda: len(paths(page)) > 10)
    listed = [sizes[path] for path in paths(page)]
    assert listed == sorted(listed, reverse=True)
    assert listed[0] == max(sizes.values())


# -- a leaf ----------------------------------------------------------------------------------------------


def test_a_leaf_shows_its_facts_ties_and_statistics(page: Any, url: str, checkpoint: str) -> None:
    show(page, url, "#/tree?depth=99")
    row(page, "embed.weight").click()
    panel = page.locator("[data-testid=leaf-panel]")
    until(lambda: "embedding.table" in panel.inner_text())
    assert page.locator("[data-testid=leaf-code]").inner_text() == "checkpoint['embed.weight']"
    assert "head.weight" in page.locator("[data-testid=leaf-ties]").inner_text()
    until(lambda: page.locator("[data-testid=leaf-numbers]").count())
    expected = lw.stats(checkpoint)["embed.weight"]
    numbers = page.locator("[data-testid=leaf-numbers]").inner_text()
    assert f"{expected.count:,}" in numbers
    page.locator("[data-testid=leaf-histogram] summary").first.click()
    cells = page.locator("[data-testid=leaf-histogram] table tbody tr td:first-of-type").all_inner_texts()
    counted = sum(int(re.sub(r"[^\d]", "", cell) or 0) for cell in cells)
    assert counted == expected.count
    page.locator("[data-testid=leaf-ties] button", has_text="head.weight").click()
    until(lambda: "leaf=head.weight" in address(page))
    page.keyboard.press("Escape")
    until(lambda: not page.locator("[data-testid=leaf-panel]").count())


def test_nan_and_infinity_have_bars_of_their_own(page: Any) -> None:
    values = torch.tensor([0.0, 0.0, 1.0, -3.0, 1e-40, float("nan"), float("inf"), -float("inf")]).repeat(8, 1)
    with shown(page, {"odd": values}) as url:
        show(page, url, "#/tree?leaf=odd")
        until(lambda: page.locator("[data-testid=leaf-numbers]").count())
        page.locator("[data-testid=leaf-histogram] summary").first.click()
        table = page.locator("[data-testid=leaf-histogram] table").inner_text()
        for name, count in (("zero", 16), ("subnormal", 8), ("NaN", 8), ("+Inf", 8), ("-Inf", 8)):
            assert re.search(rf"{re.escape(name)}\w*\s+{count}\b", table, re.IGNORECASE), (name, table)


def test_the_picture_shows_the_value_under_the_pointer_at_every_zoom(page: Any, url: str, model: Model) -> None:
    show(page, url, "#/tree?leaf=layers.0.linear1.weight")
    canvas = page.locator("[data-testid=picture-canvas]")
    canvas.wait_for()
    canvas.scroll_into_view_if_needed()
    values = model.layers[0].linear1.weight.detach()  # type: ignore[union-attr, operator]
    for _ in range(3):
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2 + 7, box["y"] + box["height"] / 2 + 5)
        shown = page.locator("[data-testid=picture-value]")
        text = until(lambda shown=shown: re.search(r"\[(\d+), (\d+)\] = (\S+)", shown.inner_text()))  # type: ignore[misc]
        at = int(text[1]), int(text[2])
        assert float(text[3].replace("\u2212", "-")) == pytest.approx(values[at].item(), rel=1e-4)
        page.locator("[data-testid=zoom-in]").click()
        page.wait_for_timeout(300)


def test_filters_are_drawn_as_filters(page: Any, url: str) -> None:
    show(page, url, "#/tree?leaf=vision.0.weight")
    panel = page.locator("[data-testid=leaf-picture]")
    until(lambda: "64 filters × 3 inputs of 7×7" in panel.inner_text())
    until(lambda: page.locator("[data-testid=picture-canvas]").get_attribute("data-arrived") == "true")
    panel.get_by_label("matrix").check()
    until(lambda: "out" in panel.inner_text())


# -- the map ---------------------------------------------------------------------------------------------


def test_the_map_counts_a_tied_leaf_once_and_draws_the_tie(page: Any, url: str, checkpoint: str) -> None:
    show(page, url, "#/map")
    cells = page.locator("[data-testid=map-cell]")
    until(lambda: cells.count() > 20)
    aliases = page.locator("[data-testid=map-cell][data-kind=alias]")
    assert aliases.evaluate_all("cells => cells.map((cell) => cell.dataset.path)") == ["head.weight"]
    assert page.locator("[data-testid=map-links] path").count() > 0
    areas = cells.evaluate_all(
        "cells => cells.filter((cell) => cell.dataset.kind === 'leaf').map((cell) =>"
        " [cell.dataset.path, cell.getBoundingClientRect().width * cell.getBoundingClientRect().height])"
    )
    with lw.open(checkpoint) as t:
        sizes = {str(path): leaf.nbytes for path, leaf in t.items()}
    assert max(areas, key=lambda cell: cell[1])[0] == max(sizes, key=lambda path: sizes[path])


@pytest.mark.parametrize("color", ["dtype", "role", "health", "magnitude"])
def test_the_map_has_every_color_with_a_legend(page: Any, url: str, color: str) -> None:
    show(page, url)
    measured(page)
    show(page, url, f"#/map?color={color}")
    legend = page.locator("[data-testid=map-legend]")
    words = {"dtype": "float32", "role": "conv.weight", "health": "error", "magnitude": "root mean square"}
    until(lambda: words[color] in legend.inner_text())
    assert "tied: one tensor, counted once" in legend.inner_text()
    assert_accessible(page)


def test_the_map_zooms_into_nodes_and_back(page: Any, url: str) -> None:
    show(page, url, "#/map")
    node = page.locator("[data-testid=map-cell][data-kind=node][data-path='layers']")
    node.click()
    until(lambda: "node=layers" in address(page))
    until(lambda: not page.locator("[data-testid=map-cell][data-path='embed.weight']").count())
    page.locator("[data-testid=map-crumbs] button").first.click()
    until(lambda: page.locator("[data-testid=map-cell][data-path='embed.weight']").count())
    page.locator("[data-testid=map-cell][data-path='embed.weight']").click()
    until(lambda: page.locator("[data-testid=leaf-panel]").count())


# -- tables ----------------------------------------------------------------------------------------------


def test_the_statistics_are_those_of_lw_stats(page: Any, url: str, checkpoint: str) -> None:
    show(page, url, "#/stats?sort=std")
    measured(page)
    until(lambda: len(paths(page)) > 10)
    stats = lw.stats(checkpoint)
    deviations = [stats[path].std for path in paths(page)]
    assert deviations == sorted(deviations, reverse=True)
    assert f"{stats.total.count:,}" in page.locator("main").inner_text()


def test_each_finding_is_a_click_from_its_leaf(page: Any, url: str, checkpoint: str) -> None:
    show(page, url)
    measured(page)
    show(page, url, "#/findings")
    findings = lw.check(checkpoint)
    assert {"LW101", "LW110"} <= findings.codes.keys()
    text = page.locator("main").inner_text()
    for finding in findings:
        assert finding.message in text
    row(page, "layers.2.norm1.bias").first.click()
    until(lambda: "1 NaN among 256 values" in page.locator("[data-testid=leaf-findings]").inner_text())


def test_two_trees_are_compared_and_the_load_is_planned(page: Any, compared: str) -> None:
    show(page, compared, "#/diff")
    until(lambda: paths(page) == ["layers.3.linear2.weight"])
    until(lambda: "changed" in row(page, "layers.3.linear2.weight").inner_text())
    row(page, "layers.3.linear2.weight").click()
    until(lambda: "relative L2" in page.locator("[data-testid=leaf-change]").inner_text())
    assert_accessible(page)
    page.locator("[data-testid=tab-plan]").click()
    until(lambda: "100" in page.locator("main").inner_text() and "loads" in page.locator("main").inner_text())
    assert_accessible(page)
    show(page, compared, "#/map?color=change")
    until(lambda: "relative L2 distance" in page.locator("[data-testid=map-legend]").inner_text())


# -- the whole page --------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_view_violates_the_rules_of_accessibility(page: Any, url: str, view: str, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    show(page, url)
    measured(page)
    show(page, url, f"#/{view}?leaf=layers.1.linear1.weight")
    until(lambda: page.locator("[data-testid=leaf-numbers]").count())
    assert_accessible(page)


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_works_at_the_width_of_a_phone(page: Any, url: str, view: str) -> None:
    page.set_viewport_size({"width": 360, "height": 740})
    show(page, url, f"#/{view}")
    if view == "findings":
        measured(page)
    until(lambda: page.evaluate("document.documentElement.scrollWidth") <= 360, "the page is wider than the phone")
    assert_accessible(page)
    first = "[data-testid=map-cell][data-kind=leaf]" if view == "map" else "[data-testid=row][data-path$=weight]"
    if view == "tree":
        page.locator("[data-testid=unfold-all]").click()
    page.locator(first).first.click()
    page.locator("[data-testid=leaf-panel]").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.locator("[data-testid=back]").click()
    until(lambda: not page.locator("[data-testid=leaf-panel]").count())


def test_an_address_leads_back_to_what_was_shown(page: Any, url: str) -> None:
    show(page, url, "#/tree?depth=99")
    row(page, "embed.weight").click()
    page.locator("[data-testid=tab-stats]").click()
    until(lambda: "#/stats" in address(page))
    page.locator("[data-testid=search]").fill("linear1")
    until(lambda: "q=linear1" in address(page))
    until(lambda: paths(page) and all("linear1" in path for path in paths(page)))
    link, listed = address(page), paths(page)
    other = page.context.new_page()
    other.goto(link)
    until(lambda: paths(other) == listed)
    assert other.locator("[data-testid=leaf-panel]").count() == 1
    assert other.locator("[data-testid=search]").input_value() == "linear1"
    page.go_back()
    until(lambda: "#/tree" in address(page))
    page.go_back()
    until(lambda: "leaf=" not in address(page))
    other.goto(link.split("#")[0] + "#/nothing?leaf=%ZZ&sort=<b>&depth=-1&toggled=x&color=red&line=1e9")
    other.locator("[data-testid=row]").first.wait_for()


def test_everything_works_by_the_keyboard_alone(page: Any, url: str) -> None:
    show(page, url, "#/tree?depth=99")
    page.keyboard.press("/")
    page.keyboard.type("embed")
    until(lambda: "embed.weight" in paths(page) and "layers" not in paths(page))
    page.locator("[data-testid=list]").focus()
    page.keyboard.press("End")
    move_to(page, "embed.weight", "ArrowUp")
    page.keyboard.press("Enter")
    page.locator("[data-testid=leaf-panel]").wait_for()
    until(lambda: page.locator("[data-testid=picture-canvas]").count())
    canvas = page.locator("[data-testid=picture-canvas]")
    canvas.focus()
    before = page.locator("[data-testid=picture-scale]").inner_text()
    page.keyboard.press("+")
    until(lambda: page.locator("[data-testid=picture-scale]").inner_text() != before)
    page.keyboard.press("Escape")
    until(lambda: not page.locator("[data-testid=leaf-panel]").count())


def test_nothing_is_measured_until_it_is_asked_for(page: Any, checkpoint: str) -> None:
    with shown(page, checkpoint, measure=False) as url:
        page.goto(f"{url}#/stats")
        page.locator("[data-testid=start-stats]").first.wait_for()
        assert paths(page) == []
        page.locator("[data-testid=start-stats]").first.click()
        until(lambda: len(paths(page)) > 10)


def test_the_page_says_when_the_file_changes_and_when_the_server_stops(
    page: Any, problems: list[Problems], checkpoint: str, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(Path(checkpoint).read_bytes())
    with lw.view(copy, browser=False, port=0) as view:
        show(page, view.url)
        copy.write_bytes(Path(checkpoint).read_bytes()[:-8])
        until(lambda: "copy.safetensors changed" in page.locator("[data-testid=banner]").first.inner_text())
    until(lambda: "The server has stopped" in page.locator("body").inner_text())
    assert problems[0].expected("ERR_CONNECTION", "Failed to load resource")


def test_a_report_needs_neither_a_server_nor_a_network(browser: Any, checkpoint: str, tmp_path: Path) -> None:
    with lw.view(checkpoint, browser=False, port=0) as view:
        report = view.export(tmp_path / "report.html")
    offline = browser.new_context(offline=True)
    problems = Problems(offline)
    alone = offline.new_page()
    count = f"{lw.stats(checkpoint)['embed.weight'].count:,}"
    for name in VIEWS:
        show(alone, Path(report).as_uri(), f"#/{name}?leaf=embed.weight")
        until(lambda: alone.locator("[data-testid=leaf-numbers]").count())
        assert count in alone.locator("[data-testid=leaf-numbers]").inner_text()
        assert_accessible(alone)
    show(alone, Path(report).as_uri(), "#/tree?depth=99")
    alone.locator("[data-testid=search]").fill("**.norm1.*")
    until(lambda: "layers.0.norm1.weight" in paths(alone) and "embed.weight" not in paths(alone))
    offline.close()
    assert problems.found == []


def test_a_model_in_memory_is_shown_as_it_is_now(page: Any) -> None:
    net = nn.Linear(8, 8)
    with shown(page, net) as url:
        show(page, url, "#/tree?leaf=weight")
        assert until(lambda: page.locator("[data-testid=leaf-code]").inner_text()) == "model.weight"
        canvas = page.locator("[data-testid=picture-canvas]")
        canvas.wait_for()
        net.weight.data.fill_(2.5)
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        until(lambda: "= 2.5" in page.locator("[data-testid=picture-value]").inner_text())


def test_pictures_for_the_docs(page: Any, url: str, tmp_path: Path) -> None:
    page.set_viewport_size({"width": 1400, "height": 900})
    show(page, url)
    measured(page)
    show(page, url, "#/tree?depth=2&leaf=vision.0.weight")
    until(lambda: page.locator("[data-testid=leaf-numbers]").count())
    until(lambda: page.locator("[data-testid=picture-canvas]").get_attribute("data-arrived") == "true")
    picture(page, "tree", tmp_path)
    show(page, url, "#/map?color=role")
    until(lambda: page.locator("[data-testid=map-cell]").count() > 20)
    page.wait_for_timeout(300)
    picture(page, "map", tmp_path)


def test_a_model_can_be_measured_again(page: Any) -> None:
    net = nn.Linear(8, 8)
    with shown(page, net) as url:
        page.goto(f"{url}#/findings")
        measured(page)
        with torch.no_grad():
            net.bias[2] = float("nan")
        page.locator("[data-testid=start-again]").click()
        until(lambda: "1 NaN among 8 values" in page.locator("main").inner_text())
