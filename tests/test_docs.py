"""Every example in the docs runs and gives the output on the page; every link has a target."""

import doctest
import re
from pathlib import Path

import pytest

from leafwise.homes.torch import roles

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("packages/*/docs/*.md"))]
# Blocks of `py` need JAX; tests/jax runs them, with or without those of `python`, which may need PyTorch.
PYTORCH, JAX, BOTH = (re.compile(rf"^```{kind}\n(.*?)^```", re.M | re.S) for kind in ("python", "py", "py(?:thon)?"))


def examples(page: Path, blocks: re.Pattern[str]) -> str:
    """The Python blocks of a page, on their original lines, with blank lines of output marked for doctest."""
    text = page.read_text("utf-8")
    lines = [""] * text[: len(text)].count("\n")
    for block in blocks.finditer(text):
        first = text[: block.start(1)].count("\n")
        for number, line in enumerate(block.group(1).splitlines()):
            lines[first + number] = line or "<BLANKLINE>"
    return "\n".join(lines)


WITH_JAX = ("carrying.md",)  # run by tests/jax/with_torch/test_docs_pages.py

# platforms.md is a table that tools/matrix.py writes; architecture.md is checked by tests/test_rooms.py, machines.md by
# tests/distributed/test_machines_page.py, and the pages that need JAX by tests/jax/test_pages.py.
OTHERS = ("platforms.md", "architecture.md", "machines.md", "jax.md", "jax-sharding.md", *WITH_JAX)
WITH_EXAMPLES = [page for page in PAGES if page.name not in OTHERS]


@pytest.mark.parametrize("page", WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_of_a_page_give_the_output_on_it(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    run_examples(page)


def run_examples(page: Path, blocks: re.Pattern[str] = PYTORCH) -> None:
    source = examples(page, blocks)
    assert ">>> " in source
    test = doctest.DocTestParser().get_doctest(source, {"__name__": "docs"}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    report: list[str] = []
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
    assert runner.tries > 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_the_readme_is_short_and_narrow() -> None:
    lines = (ROOT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 120
    assert [line for line in lines if len(line) > 110] == []


def test_the_readme_shows_the_two_commands() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text("utf-8").splitlines()[:45])
    assert "make run" in first_screen
    assert "make test" in first_screen


def test_the_roles_page_lists_every_role() -> None:
    page = (ROOT / "docs" / "roles.md").read_text("utf-8")
    for _, rows in roles.ROWS:
        for role, _ in rows.values():
            assert f"`{role}`" in page
