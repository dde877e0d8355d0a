"""A report answers as the viewer does: the same search, and no claims about what was not measured."""

from pathlib import Path

import pytest
import torch
from playwright.sync_api import Page, expect
from tests.web.asking import Client, write_safetensors

import leafwise as lw
from leafwise.cli import main


class Tied(torch.nn.Module):
    """Twelve layers, so that one number is the beginning of another, and an output tied to an input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(5, 4)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in range(12))
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.head = torch.nn.Linear(4, 5, bias=False)
        self.head.weight = self.embed.weight


QUERIES = (
    "layers.1", "Layers", "LAYERS.1", "s.1", "head", "head.weight", "tied:yes", "role:none", "role:bias", "kind:buffer",
    "**.{weight,scale}", "layers.{0..3}.**", "layers.1 bias",
)  # fmt: skip


def test_a_search_finds_the_same_in_a_report(page: Page, tmp_path: Path) -> None:
    with lw.view(Tied(), browser=False) as view:
        client = Client(view.url)
        counts = {query: client.api("rows", query=query, depth=99)["matches"] for query in QUERIES}
        tables = {query: client.api("table", query=query)["total"] for query in QUERIES}
        report = view.export(tmp_path / "report.html")
    assert counts["layers.1"] == 2
    assert counts["head"] == 1
    page.goto(Path(report).as_uri())
    for query, count in counts.items():
        page.get_by_test_id("search").fill(query)
        expect(page.locator("header")).to_contain_text(f"{count} match" if count == 1 else f"{count} matches")
        assert tables[query] == count
    page.goto(f"{Path(report).as_uri()}#/stats")
    page.get_by_test_id("search").fill("head")
    expect(page.locator("main")).to_contain_text("embed.weight")


@pytest.mark.parametrize(("option", "said"), [("--measure", "Measured, checked"), ("--no-measure", "Not measured")])
def test_a_report_says_whether_it_was_measured(page: Page, tmp_path: Path, option: str, said: str) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"w": [1.0, 2.0]})
    report = tmp_path / "report.html"
    assert main(["view", path, "--export", str(report), option]) == 0
    page.goto(report.as_uri())
    expect(page.get_by_test_id("progress")).to_contain_text(said)
    if option == "--no-measure":
        expect(page.get_by_test_id("progress")).not_to_contain_text("checked")


def test_the_map_of_a_report_leads_into_a_node_with_the_path_of_a_leaf(page: Page, tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"w": [1.0] * 9, "w.absmax": [1.0, 2.0], "w.map": [3.0]})
    report = tmp_path / "report.html"
    assert main(["view", path, "--export", str(report)]) == 0
    page.goto(f"{report.as_uri()}#/map?node=w")
    expect(page.locator("main")).to_contain_text("Map of w, 24 B")
