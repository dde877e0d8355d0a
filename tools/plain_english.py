"""Plain English: phrases and names that the words page in CONTRIBUTING.md rules out are in neither code nor pages.

    python -m tools.plain_english

`make check` runs it. It prints each place, and what to write instead.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("packages/**/*.md")]
MODULES = [*(ROOT / "src").rglob("*.py"), *ROOT.glob("packages/*/src/**/*.py")]

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

# A word in a name of a module, class, function, argument, attribute or variable, and what to write instead.
WORDS_IN_NAMES = {
    "front": "prefix", "fronts": "prefixes", "told": "shown, or what was said", "tells": "shows", "said": "message",
    "alike": "duplicate, or equal", "offer": "what is returned", "knows": "is_, has_ or supports_",
    "mistaken": "what it is instead", "thereof": "of it", "hence": "so", "heed": "follow", "shall": "must",
    "crew": "workers", "crews": "workers", "room": "space, or buffer", "rooms": "spaces, or buffers",
}  # fmt: skip


def names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a module defines, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def problems_of_names(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    for line, name in [(1, module), *names(tree)]:
        for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name):
            if word.lower() in WORDS_IN_NAMES:
                yield line, f"the name {name}: write {WORDS_IN_NAMES[word.lower()]}"


def problems_of_text(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for line, text in lines:
        for pattern, instead in PHRASES.items():
            for match in re.finditer(pattern, text):
                yield line, f"{match.group()!r}: write {instead}"


def strings_and_comments(text: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, re.sub(r"\s+", " ", node.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def problems(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text("utf-8")
    if path.suffix == ".md":
        yield from problems_of_text(iter(enumerate(text.splitlines(), 1)))
        return
    tree = ast.parse(text)
    yield from problems_of_text(strings_and_comments(text, tree))
    yield from problems_of_names(tree, path.stem)


def main() -> int:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for path in sorted([*PAGES, *MODULES])
        for line, problem in problems(path)
    ]
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
