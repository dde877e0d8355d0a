"""The counts in the docs are those that the sweeps recorded, with their dates."""

import json
import re
from pathlib import Path

import pytest
from tools import sweeps
from tools.architectures import models, names

MARK = re.compile(r"<!-- sweep (.+?) -->")


def test_every_page_shows_the_recorded_results() -> None:
    for page in sweeps.PAGES:
        text = page.read_text("utf-8")
        assert sweeps.filled(text) == text, f"{page.name} is out of date: run python -m tools.sweeps"
        assert set(MARK.findall(text)) <= sweeps.results().keys(), page.name


def test_every_result_is_shown_with_its_date_and_commit() -> None:
    pages = "".join(page.read_text("utf-8") for page in sweeps.PAGES)
    for name, result in sweeps.results().items():
        assert f"<!-- sweep {name} -->" in pages, name
        assert re.fullmatch(r"2\d{3}-\d\d-\d\d", result.date)
        assert f"on {result.date}, commit {result.commit}." in result.shown()


def test_a_result_replaces_the_one_before_in_the_file_and_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "before\n\n<!-- sweep a -->\nold\n<!-- /sweep a -->\n\nafter <!-- sweep b --><!-- /sweep b -->\n", "utf-8"
    )
    monkeypatch.setattr(sweeps, "FILE", tmp_path / "sweeps.json")
    monkeypatch.setattr(sweeps, "PAGES", [page])
    monkeypatch.setattr(sweeps, "ROOT", tmp_path)
    monkeypatch.setattr(sweeps, "today", lambda: "2026-02-03")
    monkeypatch.setattr(sweeps, "commit_here", lambda: "abc")
    monkeypatch.delenv("CI", raising=False)
    sweeps.record("make b", {"b": "one"})
    sweeps.record("make a", {"a": "| 1 |\n| 2 |"}, seed=5)
    sweeps.record("make a", {"a": "| 3 |"}, seed=6)
    assert page.read_text("utf-8") == (
        "before\n\n<!-- sweep a -->\n\n| 3 |\n\n`make a SEED=6` on 2026-02-03, commit abc.\n\n<!-- /sweep a -->\n\n"
        "after <!-- sweep b -->\n\none\n\n`make b` on 2026-02-03, commit abc.\n\n<!-- /sweep b -->\n"
    )
    assert json.loads(sweeps.FILE.read_text("utf-8"))["a"]["text"] == ["| 3 |"]
    monkeypatch.setenv("CI", "1")
    sweeps.record("make a", {"a": "| 4 |"})
    assert sweeps.results()["a"].text == "| 3 |"


@pytest.mark.slow
def test_work_in_several_processes_comes_back_in_order() -> None:
    assert list(sweeps.in_processes(len, ["a" * size for size in range(40)], "words")) == list(range(40))


def test_a_seed_draws_other_classes_of_an_architecture_and_can_be_repeated() -> None:
    assert {"bert", "llama", "vit"} <= set(names())
    drawn = {seed: type(models("bert", seed=seed)[0]).__name__ for seed in range(6)}
    assert len(set(drawn.values())) > 1
    assert drawn == {seed: type(models("bert", seed=seed)[0]).__name__ for seed in range(6)}
    assert type(models("bert")[0]) is type(models("bert")[0])
