"""Plain English: phrases that the words page in CONTRIBUTING.md rules out are found in neither code nor pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.words import PHRASES

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("packages/**/*.md")]
)
MODULES = sorted([*(ROOT / "src").rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py")])


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a page; the strings and comments of a module."""
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        yield from enumerate(text.splitlines(), 1)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, re.sub(r"\s+", " ", node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


# All files in one test: a test for each of 800 files takes longer to collect than to run.
@pytest.mark.slow
@pytest.mark.parametrize("paths", [PAGES, MODULES], ids=["pages", "modules"])
def test_the_words_are_those_people_use(paths: list[Path]) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {match.group()!r}: write {instead}"
        for path in paths
        for line, text in _prose(path)
        for pattern, instead in PHRASES.items()
        for match in re.finditer(pattern, text)
    ]
    assert not wrong, "\n".join(wrong)
