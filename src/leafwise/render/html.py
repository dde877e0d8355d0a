"""An outline as HTML: collapsible, for dark and light themes, without scripts."""

from collections.abc import Iterable, Sequence
from html import escape as html_escape
from itertools import zip_longest

from leafwise.core.outline import Doc, Span, Style
from leafwise.core.path import escape
from leafwise.render.layout import laid_out

# Colors that are readable on white and on near-black; plain text has the color of the page.
_CSS = """
.leafwise{font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-x:auto;text-align:left}
.leafwise details{margin:0}
.leafwise .lw-below{margin-left:.5ch;padding-left:calc(1.5ch - 1px);border-left:1px solid rgba(128,128,128,.35)}
.leafwise summary,.leafwise .lw-row{display:flex;gap:2ch;white-space:pre;list-style:none}
.leafwise summary>span,.leafwise .lw-row>span{flex:none}
.leafwise summary>.lw-note,.leafwise .lw-row>.lw-note{flex:1 1 24ch;min-width:16ch;white-space:pre-wrap}
.leafwise .lw-note,.leafwise .lw-foot{overflow-wrap:anywhere}
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
.leafwise .lw-error{color:#c62828}
.leafwise .lw-foot{padding-left:2ch;text-indent:-2ch;white-space:pre-wrap}
@media (max-width:600px){.leafwise summary,.leafwise .lw-row{flex-wrap:wrap;gap:0 2ch;padding-left:4ch}
.leafwise summary>.lw-label,.leafwise .lw-row>.lw-label{flex:1 0 calc(100% + 4ch);min-width:0!important}
.leafwise .lw-label{white-space:pre-wrap;overflow-wrap:anywhere;text-indent:-2ch;padding-left:2ch}
.leafwise .lw-label{box-sizing:border-box;margin-left:-4ch}}
.leafwise .lw-row+.lw-foot,.leafwise details+.lw-foot{margin-top:.6em}
@media (prefers-color-scheme:dark){
.leafwise .lw-type{color:#4fd1c5}.leafwise .lw-tie{color:#c4a1ff}.leafwise .lw-warn{color:#f0a95b}
.leafwise .lw-error{color:#ff7b72}}
[data-jp-theme-light="true"] .leafwise .lw-type{color:#0b7a75}
[data-jp-theme-light="true"] .leafwise .lw-tie{color:#8a3ffc}
[data-jp-theme-light="true"] .leafwise .lw-warn{color:#b25e00}
[data-jp-theme-light="true"] .leafwise .lw-error{color:#c62828}
[data-jp-theme-light="false"] .leafwise .lw-type{color:#4fd1c5}
[data-jp-theme-light="false"] .leafwise .lw-tie{color:#c4a1ff}
[data-jp-theme-light="false"] .leafwise .lw-warn{color:#f0a95b}
[data-jp-theme-light="false"] .leafwise .lw-error{color:#ff7b72}
"""

_INDENT = 2  # characters of indentation per level, and of the marker before a label
_WIDTH = 120  # characters that fit into 1,000 pixels
_NOTE = 48  # characters of a note, before it goes on in the next line


def html(doc: Doc) -> str:
    """The outline as nested `<details>`, together with its style sheet."""
    parts = [f'<div class="leafwise"><style>{_CSS}</style>']
    rows = _HtmlRows(doc)
    levels: list[int] = []  # levels of the open `<details>` elements
    for number, (line, following) in enumerate(zip_longest(doc.lines, doc.lines[1:])):
        while levels and levels[-1] >= line.level:
            levels.pop()
            parts.append("</div></details>")
        row = rows.row(number)
        if following is not None and following.level > line.level:
            opened = " open" if line.level < doc.open_levels else ""
            parts.append(f'<details{opened}><summary>{row}</summary><div class="lw-below">')
            levels.append(line.level)
        else:
            parts.append(f'<div class="lw-row">{row}</div>')
    parts.append("</div></details>" * len(levels))
    parts += [f'<div class="lw-foot">{_spans(line)}</div>' for line in [*doc.footer, *rows.left_out()]]
    parts.append("</div>")
    return "".join(parts)


class _HtmlRows:
    """Lines as rows whose cells are aligned across all levels. Names that are too long are shortened, and shown whole
    when the pointer is on them."""

    def __init__(self, doc: Doc) -> None:
        self.doc = doc
        self.layout = laid_out(doc, _WIDTH - _INDENT, branch=_INDENT, notes=_NOTE)

    def row(self, number: int) -> str:
        line, layout = self.layout.lines[number], self.layout
        width = layout.label - _INDENT * (line.level - 1)
        whole = "".join(span.text for span in self.doc.lines[number].label)
        title = "" if whole == "".join(span.text for span in line.label) else f' title="{styled(whole, "")}"'
        parts = [f'<span class="lw-label" style="min-width:{max(width, 0)}ch"{title}>{_spans(line.label)}</span>']
        if line.cells:
            for column, size in layout.cells.items():
                where = ' class="lw-right"' if column in self.doc.right else ""
                cell = _spans(line.cells[column : column + 1])
                parts.append(f'<span{where} style="min-width:{size}ch">{cell}</span>')
        if line.note:
            parts.append(f'<span class="lw-note">{_spans(line.note)}</span>')
        return "".join(parts)

    def left_out(self) -> list[tuple[Span, ...]]:
        """The line that names the columns for which there is no room."""
        words = f"left out for want of room: {', '.join(self.layout.left_out)}; use json()"
        return [(Span(words, "dim"),)] if self.layout.left_out else []


def _spans(spans: Iterable[Span] | Sequence[Span]) -> str:
    return "".join(styled(words, style) for words, style in spans)


def styled(words: str, style: Style) -> str:
    """Escaped words as HTML; every name from a file, a model or a URL passes through here.

    >>> styled("<b>\\x1b", "name")
    '<span class="lw-name">&lt;b&gt;\\\\u001b</span>'
    """
    shown = html_escape(escape(words))
    return f'<span class="lw-{style}">{shown}</span>' if style else shown
