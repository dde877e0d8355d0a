"""Pages that are written for GitHub, as the documentation site must have them; no more than text, without MkDocs.

Links lead from docs/ to any file of the repository: the site has a page for each that is linked. Anchors are those that
GitHub makes; lists are read as GitHub reads them.
"""

import ast
import posixpath
import re
from collections.abc import Iterable, Iterator
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import quoteattr

ROOT = Path(__file__).parent.parent
OUTSIDE = "repository"  # the folder of the site for what is not in docs/
WITH_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/RESULTS.md")  # whether linked or not
LANGUAGES = {".c": "c", ".h": "c", ".py": "python", ".toml": "toml", ".yml": "yaml"}

# -- links -------------------------------------------------------------------------------------------------

_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)[^)]*\)|^\[[^\]]+\]:\s*(\S+)|\b(?:href|src)=\"([^\"]+)\"", re.MULTILINE)
_FENCE = re.compile(r"^(\s*)(`{3,}|~{3,})(.*)$")
_CODE = re.compile(r"(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)


def without_code(markdown: str) -> str:
    """A page without its blocks of code; spans of code are kept, because headings may have some."""
    lines, fence = [], ""
    for line in markdown.splitlines():
        mark = _FENCE.match(line)
        if mark and not fence:
            fence = mark[2]
        elif mark and mark[2].startswith(fence) and not mark[3].strip():
            fence = ""
        elif not fence:
            lines.append(line)
    return "\n".join(lines)


def links(markdown: str) -> list[str]:
    """What a page links to."""
    text = _CODE.sub("", without_code(markdown))
    return [next(filter(None, match.groups())) for match in _LINK.finditer(text)]


def target_of(link: str, source: str) -> tuple[str, str] | None:
    """The path in the repository and the anchor that a link of the file `source` leads to; None where it leads to the
    web."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc or parts.path.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), unquote(parts.path)))
    return (path if parts.path else source), unquote(parts.fragment)


def slug(heading: str, separator: str = "-") -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def anchors(markdown: str) -> set[str]:
    """The anchors of a page on GitHub."""
    seen: dict[str, int] = {}
    for heading in re.findall(r"^#{1,6} +(.*?)(?: +#+)?$", without_code(markdown), re.MULTILINE):
        anchor = slug(re.sub(r"\[([^\]]*)\]\([^)]*\)|[`*]", r"\1", heading))
        seen[anchor] = seen.get(anchor, -1) + 1
    repeated = {f"{anchor}-{n}" for anchor, count in seen.items() for n in range(1, count + 1)}
    return {*seen, *repeated, *re.findall(r"<a (?:id|name)=\"([^\"]+)\"", markdown)}


def source_of(uri: str) -> str:
    """The file of the repository that a page of the site is made from."""
    if not uri.startswith(f"{OUTSIDE}/"):
        return f"docs/{uri}"
    path = uri.removeprefix(f"{OUTSIDE}/")
    return path if (ROOT / path).is_file() else path.removesuffix(".md")


def page_of(path: str) -> str:
    """The page of the site for a file of the repository."""
    if path == "docs":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"{OUTSIDE}/{path}" if path.endswith(".md") else f"{OUTSIDE}/{path}.md"


def linked_outside(pages: Iterable[str]) -> Iterator[str]:
    """The files and folders outside docs/ that pages link to, and that these link to."""
    waiting, seen = list(pages), {"docs", *pages}
    while waiting:
        source = waiting.pop()
        if not source.startswith("docs/"):
            yield source
        if not source.endswith(".md"):
            continue
        for link in links((ROOT / source).read_text("utf-8")):
            target = target_of(link, source)
            if target and target[0] not in seen and (ROOT / target[0]).exists():
                seen.add(target[0])
                waiting.append(target[0])


def text_of(path: str) -> str:
    """The page for a file or folder outside docs/: pages as they are, other files as code, folders as lists."""
    place = ROOT / path
    if place.is_dir():
        return "\n".join([f"# {path}", "", *(f"- `{child.name}`" for child in sorted(place.iterdir()))])
    text = place.read_text("utf-8")
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n~~~~~~ {LANGUAGES.get(place.suffix, 'text')}\n{text}\n~~~~~~\n"


# -- Markdown ----------------------------------------------------------------------------------------------

_ITEM = re.compile(r" {0,3}([-*+]|\d{1,9}[.)]) +")
_NOT_TEXT = re.compile(r"\s*$|#{1,6} |\||<!--|</?\w+[^>]*>$")  # lines that a list may follow


def as_python_markdown(markdown: str) -> str:
    """A page as Python-Markdown must have it to mean what it means on GitHub.

    A list may follow a paragraph without a blank line; what belongs to an item is indented as far as its text, not by
    four spaces; and examples with a prompt are sessions.

    >>> print(as_python_markdown("Two:\\n1. one\\n   - more\\n2. two"))
    Two:
    <BLANKLINE>
    1. one
        - more
    2. two
    """
    lines: list[str] = []
    columns: list[int] = []  # where the text of each open item begins
    fence = before = ""
    for line in markdown.splitlines():
        width = len(line) - len(line.lstrip())
        mark = _FENCE.match(line)
        in_list = bool(columns)
        if not fence and line.strip() and (not before.strip() or mark or _ITEM.match(line) or _NOT_TEXT.match(line)):
            while columns and width < columns[-1]:
                columns.pop()
        text = line[min(width, columns[-1] if columns else 0) :]
        item = None if fence else _ITEM.match(text)
        if item and not in_list and not _NOT_TEXT.match(before):
            lines.append("")
        lines.append("    " * len(columns) + text if line.strip() else "")
        if item:
            columns.append(width + item.end() if not columns else columns[-1] + item.end())
        if mark and not fence:
            fence = mark[2]
        elif mark and mark[2].startswith(fence) and not mark[3].strip():
            fence = ""
        before = line
    return re.sub(r"^( *```)python(?=\n *>>> )", r"\1pycon", "\n".join(lines), flags=re.MULTILINE)


_SESSION = re.compile(r'(<div class="highlight")(><pre><span></span><code><span class="gp">.*?</div>)', re.DOTALL)


def with_code_to_copy(html: str) -> str:
    """A page whose copy buttons give the code of a session: without prompts, and without what it prints."""
    return _SESSION.sub(lambda session: f"{session[1]} data-copy={quoteattr(_code(session[2]))}{session[2]}", html)


def _code(session: str) -> str:
    lines = unescape(re.sub(r"<[^>]+>", "", session[1:])).splitlines()
    return "\n".join(line[4:] for line in lines if re.match(r">>> |\.\.\.( |$)", line))


# -- docstrings --------------------------------------------------------------------------------------------


def public_names() -> list[str]:
    """`leafwise.__all__`, without importing leafwise."""
    module = ast.parse((ROOT / "src" / "leafwise" / "__init__.py").read_text("utf-8"))
    for statement in module.body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return list(ast.literal_eval(statement.value))
    raise LookupError("leafwise has no __all__")


def as_page(docstring: str, public: Iterable[str] = ()) -> str:
    """A docstring as Markdown: examples as blocks of code, public names as links."""
    lines, in_example = [], False
    for line in docstring.splitlines():
        if line.lstrip().startswith(">>> ") and not in_example:
            in_example = True
            lines.append("```pycon")
        elif not line.strip() and in_example:
            in_example = False
            lines.append("```")
        if not in_example:
            line = re.sub(r"`lw\.(\w+)`", lambda name: _linked(name, public), line)
        lines.append("" if in_example and line.strip() == "<BLANKLINE>" else line)
    return "\n".join([*lines, "```"] if in_example else lines)


def _linked(name: re.Match[str], public: Iterable[str]) -> str:
    return f"[{name[0]}][leafwise.{name[1]}]" if name[1] in public else name[0]
