"""The documentation site: every page is in its navigation, every public name in its reference, every link leads to a
place that is there. `make check` builds it; here nothing is built but a page or two."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tools.site_markdown import (
    ROOT,
    WITH_PAGES,
    anchors,
    as_page,
    as_python_markdown,
    linked_outside,
    links,
    page_of,
    public_names,
    slug,
    source_of,
    target_of,
    with_code_to_copy,
)

import leafwise

DOCS = ROOT / "docs"
PACKAGES = [*ROOT.glob("packages/*/docs/*.md"), *ROOT.glob("packages/*/*.md")]
PAGES = sorted(page.relative_to(ROOT).as_posix() for page in [*DOCS.rglob("*.md"), *PACKAGES])
SETTINGS = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))


def in_nav(entry: Any = SETTINGS["nav"]) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for child in entry.values() if isinstance(entry, dict) else entry:
            yield from in_nav(child)


def text(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [source_of(uri) for uri in in_nav()]
    assert sorted(path for path in listed if "docs" in path.split("/")) == [
        page for page in PAGES if "docs" in page.split("/")
    ]
    assert all((ROOT / path).is_file() for path in listed)


def test_the_verbs_come_first() -> None:
    names = [next(iter(entry)) for entry in SETTINGS["nav"]]
    verbs = ["Inspect", "Iterate", "Share", "Save"]
    assert names == ["Home", *verbs, "Files", "Gluon", "Reference", "For contributors"]


def test_every_public_name_is_in_the_reference_once() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in sorted((DOCS / "reference").glob("*.md")))
    assert sorted(re.findall(r"^::: leafwise\.(\w+)$", pages, re.MULTILINE)) == sorted(leafwise.__all__)
    assert public_names() == leafwise.__all__


def test_what_the_reference_shows_exists() -> None:
    pages = "\n".join(page.read_text("utf-8") for page in sorted((DOCS / "reference").glob("*.md")))
    for name in re.findall(r"^::: (leafwise\.\w+\.[\w.]+)$", pages, re.MULTILINE):
        module, _, member = name.rpartition(".")
        place = ROOT / "src" / module.replace(".", "/")
        source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
        assert re.search(rf"\n(class|def) {member}\b", source.read_text("utf-8")), name


def test_the_first_page_of_the_reference_lists_every_public_name() -> None:
    page = text("docs/reference/index.md")
    hidden_below_error = {name for name in leafwise.__all__ if name.endswith("Error") or name == "Unsupported"}
    for name in {*leafwise.__all__} - hidden_below_error:
        assert f"`{name}`" in page


@pytest.mark.parametrize("page", [*PAGES, *WITH_PAGES])
def test_every_link_leads_to_a_file_and_an_anchor(page: str) -> None:
    for link in links(text(page)):
        target = target_of(link, page)
        if target is None:
            assert not link.startswith("/"), link
            continue
        path, anchor = target
        assert (ROOT / path).exists(), f"{page}: {link}"
        if anchor and path.endswith(".md") and not anchor.startswith("leafwise."):  # those are of docstrings
            assert anchor in anchors(text(path)), f"{page}: {link}"


def test_files_outside_docs_have_pages_if_they_are_linked() -> None:
    outside = [*linked_outside(PAGES)]
    assert "benchmarks/RESULTS.md" in outside
    assert "constraints.txt" in outside
    for path in outside:
        assert source_of(page_of(path)) == path


def test_links_are_read_outside_of_code_only() -> None:
    page = '[a](b.md#c) `[x](y)` ![p](q.png)\n```\n[n](m)\n```\n[r]: s.md\n<img src="t.png">'
    assert links(page) == ["b.md#c", "q.png", "s.md", "t.png"]
    assert target_of("../b.md#c", "docs/a.md") == ("b.md", "c")
    assert target_of("#c", "docs/a.md") == ("docs/a.md", "c")
    assert target_of("https://example.org/b", "docs/a.md") is None


def test_anchors_are_those_of_github() -> None:
    assert slug("Where do I change …") == "where-do-i-change-"
    assert anchors("# `lw.no_decay()`\n## A [b](c.md), *d*\n```\n# no heading\n```\n## A b, d\n") == {
        "lwno_decay",
        "a-b-d",
        "a-b-d-1",
    }


def test_lists_are_read_as_github_reads_them() -> None:
    page = "Text:\n- one\n  more\n  ```python\n  >>> 1\n  ```\n- two\n\n    code\n\nText\n\n```\nText\n- no list\n```\n"
    assert as_python_markdown(page).splitlines() == [
        "Text:",
        "",
        "- one",
        "    more",
        "    ```pycon",
        "    >>> 1",
        "    ```",
        "- two",
        "",
        "      code",
        "",
        "Text",
        "",
        "```",
        "Text",
        "- no list",
        "```",
    ]


def test_a_list_ends_where_it_ends_on_github() -> None:
    assert as_python_markdown("- one\nstill one\n\nno longer\n") == "- one\n    still one\n\nno longer"
    assert as_python_markdown("- one\n## Heading\n- two\n") == "- one\n## Heading\n- two"


def test_examples_of_docstrings_are_code_and_public_names_are_links() -> None:
    assert as_page("See `lw.tree`.\n\n>>> lw.tree(net)\n`lw.tree`\n\nMore.", ["tree"]) == (
        "See [`lw.tree`][leafwise.tree].\n\n```pycon\n>>> lw.tree(net)\n`lw.tree`\n```\n\nMore."
    )


def test_copy_buttons_give_code_without_prompts_and_output() -> None:
    block = '<div class="highlight"><pre><span></span><code>{}</code></pre></div>'
    session = block.format('<span class="gp">&gt;&gt;&gt; </span>f()\n<span class="gp">... </span> 1\n2')
    assert ' data-copy="f()&#10; 1"><pre>' in with_code_to_copy(session)
    assert with_code_to_copy(block.format("make test")) == block.format("make test")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("link", "warning"),
    [
        ("../NOTES.md#words", ""),
        ("../tools/tool.py", ""),
        ("../tools/", ""),
        ("../NOTES.md#nowhere", "does not contain an anchor '#nowhere'"),
        ("../NOWHERE.md", "not found"),
        ("nowhere.md", "not found"),
        ("#nowhere", "no such anchor"),
    ],
)
def test_a_link_that_leads_nowhere_stops_the_build(
    link: str, warning: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    for path, content in {
        "docs/index.md": f"# Index\n\n[link]({link})\n",
        "NOTES.md": "# Notes\n\n## Words\n\n[back](docs/index.md#index)\n",
        "tools/tool.py": "print()\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content, "utf-8")
    monkeypatch.setattr("tools.site_markdown.ROOT", tmp_path)
    monkeypatch.setattr("tools.site_markdown.WITH_PAGES", ())
    places = {"docs_dir": str(tmp_path / "docs"), "site_dir": str(tmp_path / "site")}
    config = load_config(str(ROOT / "mkdocs.yml"), **places, nav=[], plugins=[], theme="mkdocs", strict=True)
    if warning:
        with pytest.raises(Abort):
            build(config)
        assert warning in caplog.text
    else:
        build(config)
