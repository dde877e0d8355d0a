"""Plain English: phrases that the words page in CONTRIBUTING.md rules out are found in neither code nor pages."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
MODULES = sorted((ROOT / "src" / "leafwise").rglob("*.py"))

# A pattern, and what to write instead.
PHRASES = {
    r"\b(has|have|had|does|do) not[.,;:)\"]": "say it in full: 'is not in the model'",
    r"(?<!there )(?<!There )\b(is|are|was) no (?!longer\b|more\b|(larg|small|fast|slow)er\b)": "'is not a …'",
    r"\b(told|tells|telling)\b": "'reports', 'shows', 'says', 'lists'",
    r"\bneither knows\b": "'does not load', 'does not support'",
    r"\bfronts?\b(?! end|-end)(?<!in front)(?<!up front)": "'prefix'",
    r"\bshall\b": "'must' or 'will'",
    r"\b(heeds?|heeded|thereof|hitherto|therein|alike|hence)\b": "a word people say",
    r"\b(that|these|those|the|this) very\b": "leave 'very' out",
    r"\bin silence\b|\bwithout a word\b": "'silently'",
    r"\b(lies|stands) (in|at|on|over|there|under|where|outside|elsewhere|below|above|behind|beside)\b": "'is in'",
    r"\bof such\b[.,;:)]|\bsuch of\b": "name the things",
    r"\blook(s|ed|ing)? (once )?at (the |every |each |all )?(value|gradient|leaf|leaves)": "'measure' or 'read'",
    r"\bbut one\b": "'only one'",
    r"\ball that (is|was) wrong\b": "'every problem'",
    r"\bmeant so\b|\bis so that\b": "say it in ordinary order",
    r"\b(?<!as )so (it|they|that) (is|are) (said|told)\b": "say it in ordinary order",
}


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


@pytest.mark.parametrize("path", [*PAGES, *MODULES], ids=lambda path: str(path.relative_to(ROOT)))
def test_the_words_are_those_people_use(path: Path) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {match.group()!r}: write {instead}"
        for line, text in _prose(path)
        for pattern, instead in PHRASES.items()
        for match in re.finditer(pattern, text)
    ]
    assert not wrong, "\n".join(wrong)
