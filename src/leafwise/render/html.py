"""An outline as HTML: collapsible, for dark and light themes, without scripts."""

from collections.abc import Iterable, Sequence
from html import escape as html_escape
from itertools import zip_longest

from leafwise.core.outline import Doc, Line, Span, Style
from leafwise.core.path import escape
from leafwise.render.shorten import width_of

# Colors that are readable on white and on near-black; plain text has the color of the page.
_CSS = """
.leafwise{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-x:auto;text-align:left}
.leafwise details{margin:0}
.leafwise .lw-below{margin-left:.5ch;padding-left:calc(1.5ch - 1px);border-left:1px solid rgba(128,128,128,.35)}
.leafwise summary,.leafwise .lw-row{display:flex;gap:2ch;white-space:pre;list-style:none}
.leafwise summary>span,.leafwise .lw-row>span{flex:none}
.leafwise summary{cursor:pointer}
.leafwise summary::-webkit-details-marker{display:none}
.leafwise summary>.lw-label::before{content:"▸ ";opacity:.6}
.leafwise details[open]>summary>.lw-label::before{content:"▾ "}
.leafwise .lw-row>.lw-label::before{content:"  "}
.leafwise .lw-right{text-align:right}
.leafwise .lw-name{font-weight:600}
.leafwise .lw-type{color:#0b7a75}
.leafwise .lw-tie{color:#8a3ffc}
.leafwise .lw-dim{opacity:.6}
.leafwise .lw-warn{color:#b25e00}
.leafwise .lw-foot{margin-top:.6em;white-space:pre-wrap}
@media (prefers-color-scheme:dark){
.leafwise .lw-type{color:#4fd1c5}.leafwise .lw-tie{color:#c4a1ff}.leafwise .lw-warn{color:#f0a95b}}
[data-jp-theme-light="true"] .leafwise .lw-type{color:#0b7a75}
[data-jp-theme-light="true"] .leafwise .lw-tie{color:#8a3ffc}
[data-jp-theme-light="true"] .leafwise .lw-warn{color:#b25e00}
[data-jp-theme-light="false"] .leafwise .lw-type{color:#4fd1c5}
[data-jp-theme-light="false"] .leafwise .lw-tie{color:#c4a1ff}
[data-jp-theme-light="false"] .leafwise .lw-warn{color:#f0a95b}
"""

_OPEN = 2  # levels that are open at first
_INDENT = 2  # characters of indentation per level, and of the marker before a label


def html(doc: Doc) -> str:
    """The outline as nested `<details>`, together with its style sheet."""
    parts = [f'<div class="leafwise"><style>{_CSS}</style>']
    row_of = _HtmlRows(doc)
    levels: list[int] = []  # levels of the open `<details>` elements
    for line, following in zip_longest(doc.lines, doc.lines[1:]):
        while levels and levels[-1] >= line.level:
            levels.pop()
            parts.append("</div></details>")
        row = row_of(line)
        if following is not None and following.level > line.level:
            opened = " open" if line.level < _OPEN else ""
            parts.append(f'<details{opened}><summary>{row}</summary><div class="lw-below">')
            levels.append(line.level)
        else:
            parts.append(f'<div class="lw-row">{row}</div>')
    parts.append("</div></details>" * len(levels))
    parts += [f'<div class="lw-foot">{_spans(line)}</div>' for line in doc.footer]
    parts.append("</div>")
    return "".join(parts)


class _HtmlRows:
    """Lines as rows whose cells are aligned across all levels."""

    def __init__(self, doc: Doc) -> None:
        self.right = doc.right
        has_cells = [line for line in doc.lines if any(cell.text for cell in line.cells)]
        cells = [line.cells for line in doc.lines if line.cells]
        self.label = max((width_of(line.label) + _INDENT * (line.level + 1) for line in has_cells), default=0)
        self.cells = [max(width_of([cell]) for cell in column) for column in zip(*cells, strict=True)]

    def __call__(self, line: Line) -> str:
        width = self.label - _INDENT * line.level
        parts = [f'<span class="lw-label" style="min-width:{max(width, 0)}ch">{_spans(line.label)}</span>']
        for column, cell in enumerate(line.cells):
            where = ' class="lw-right"' if column in self.right else ""
            parts.append(f'<span{where} style="min-width:{self.cells[column]}ch">{_spans([cell])}</span>')
        if line.note:
            parts.append(f"<span>{_spans(line.note)}</span>")
        return "".join(parts)


def _spans(spans: Iterable[Span] | Sequence[Span]) -> str:
    return "".join(styled(words, style) for words, style in spans)


def styled(words: str, style: Style) -> str:
    """Escaped words as HTML; every name from a file, a model or a URL passes through here.

    >>> styled("<b>\\x1b", "name")
    '<span class="lw-name">&lt;b&gt;\\\\u001b</span>'
    """
    shown = html_escape(escape(words))
    return f'<span class="lw-{style}">{shown}</span>' if style else shown
