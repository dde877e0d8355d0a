"""An outline as HTML: collapsible, for dark and light themes, without scripts."""

from collections.abc import Iterable, Sequence
from html import escape as html_escape
from itertools import zip_longest

from leafwise.core.path import escape
from leafwise.core.results.outline import Doc, Line, Span, Style
from leafwise.render.layout import GAP, empty_at_end, laid_out, left_out_text, name_of
from leafwise.render.shorten import width_of

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
.leafwise summary>.lw-label::before{content:"▸\\a0";opacity:.6}
.leafwise details[open]>summary>.lw-label::before{content:"▾\\a0"}
.leafwise .lw-row>.lw-label::before{content:"\\a0\\a0"}
.leafwise summary>.lw-whole,.leafwise .lw-row>.lw-whole{white-space:pre-wrap;overflow-wrap:anywhere;
box-sizing:border-box;flex:0 1 auto}
.leafwise .lw-narrow{display:none}
.leafwise .lw-right{text-align:right}
.leafwise .lw-name{font-weight:600}
.leafwise .lw-type{color:#0b7a75}
.leafwise .lw-tie{color:#8a3ffc}
.leafwise .lw-dim{opacity:.6}
.leafwise .lw-warn{color:#b25e00}
.leafwise .lw-error{color:#c62828}
.leafwise .lw-foot{padding-left:2ch;text-indent:-2ch;white-space:pre-wrap}
@media (max-width:600px){.leafwise summary,.leafwise .lw-row{flex-wrap:wrap;gap:0 2ch;padding-left:4ch}
.leafwise summary>.lw-label,.leafwise .lw-row>.lw-label{flex:1 0 calc(100% + 4ch);min-width:0!important;
max-width:none!important}
.leafwise summary>.lw-wide,.leafwise .lw-row>.lw-wide,.leafwise>.lw-wide{display:none}
.leafwise .lw-narrow{display:block}
.leafwise .lw-label:empty,.lw-free summary>span:empty,.lw-free .lw-row>span:empty{display:none}
.leafwise .lw-label{white-space:pre-wrap;overflow-wrap:anywhere;text-indent:-2ch!important;padding-left:2ch!important}
.leafwise .lw-label{box-sizing:border-box;margin-left:-4ch}
.lw-below .lw-below .lw-below .lw-below .lw-below .lw-below .lw-below .lw-below{margin:0;padding:0;border:0}}
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
_LEAST_NOTE = 16  # characters of a note that are in one line
_NARROW = 44  # characters that fit into 360 pixels, the width of a phone
_DEEP = 4  # levels; on a narrow page, the figures of deeper levels may take two lines
_BELOW_NAME = 4  # characters before the figures, which are below their name on a narrow page


def html(doc: Doc) -> str:
    """The outline as nested `<details>`, together with its style sheet."""
    # Without headings, a figure below its name need not be where it is in other lines.
    headed = bool(doc.lines) and all(cell.style == "dim" for cell in doc.lines[0].cells if cell.text)
    parts = [f'<div class="leafwise{"" if headed else " lw-free"}"><style>{_CSS}</style>']
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
    parts += [f'<div class="lw-foot">{_spans(line)}</div>' for line in doc.footer]
    parts += [rows.left_out(), "</div>"]
    return "".join(parts)


class _HtmlRows:
    """Lines as rows whose cells are aligned across all levels. Names that are too long are shortened, and shown whole
    when the pointer is on them."""

    def __init__(self, doc: Doc) -> None:
        self.doc = doc
        self.layout = laid_out(doc, _WIDTH - _INDENT, branch=_INDENT, notes=_NOTE)
        self.narrow = self._narrow_columns()

    def row(self, number: int) -> str:
        line = self.layout.lines[number]
        parts = [self._label(number)]
        if any(cell.text for cell in line.cells):
            for column, size in self._cells(line).items():
                kinds = ["lw-right"] * (column in self.doc.right) + ["lw-wide"] * (column not in self.narrow)
                where = f' class="{" ".join(kinds)}"' if kinds else ""
                cell = _spans(line.cells[column : column + 1])
                parts.append(f'<span{where} style="min-width:{size}ch">{cell}</span>')
        if line.note:
            short = width_of(line.note)
            style = f' style="min-width:{short}ch"' if short < _LEAST_NOTE else ""
            parts.append(f'<span class="lw-note"{style}>{_spans(line.note)}</span>')
        return "".join(parts)

    def _cells(self, line: Line) -> dict[int, int]:
        """The columns of a line and their widths: a long note is drawn in the place of the last cells if they are
        empty."""
        layout = self.layout
        space = _WIDTH - _INDENT - layout.label - sum(GAP + size for size in layout.cells.values())
        beside = not line.note or GAP + width_of(line.note) <= space
        empty = [] if beside else empty_at_end(line, layout.cells)
        return {column: size for column, size in layout.cells.items() if column not in empty}

    def _label(self, number: int) -> str:
        line, given = self.layout.lines[number], self.doc.lines[number].label
        width = max(self.layout.label - _INDENT * (line.level - 1), 0)
        title = "" if given == line.label else f' title="{styled("".join(span.text for span in given), "")}"'
        kind, style = "lw-label", f"min-width:{width}ch"
        if line.whole and width_of(line.label) + _INDENT > width:
            hanging = _INDENT + (width_of(line.label[:1]) if len(line.label) > 1 else _INDENT)
            kind = "lw-label lw-whole"
            if any(cell.text for cell in line.cells):
                style += f";max-width:{width}ch"
            style += f";padding-left:{hanging}ch;text-indent:-{hanging}ch"
        return f'<span class="{kind}" style="{style}"{title}>{_spans(line.label)}</span>'

    def _narrow_columns(self) -> set[int]:
        """The columns for which there is room on a narrow page, in one line below the name."""
        cells, lines = self.layout.cells, self.doc.lines
        deepest = max((line.level for line in lines if any(cell.text for cell in line.cells)), default=0)
        space = _NARROW - _BELOW_NAME - _INDENT * min(deepest, _DEEP)
        kept = dict(cells)
        for column in self.doc.drop:
            if sum(size + GAP for size in kept.values()) - GAP <= space:
                break
            kept.pop(column, None)
        return set(kept)

    def left_out(self) -> str:
        """The line that names the columns for which there is no room, on a page that is wide or narrow."""
        wide, hidden = self.layout.left_out, [name_of(self.doc, column) for column in self.layout.columns]
        hidden = [name for name, column in zip(hidden, self.layout.columns, strict=True) if column not in self.narrow]
        if not hidden:
            return _left_out_line("lw-foot", wide)
        return _left_out_line("lw-foot lw-wide", wide) + _left_out_line("lw-foot lw-narrow", [*wide, *hidden])


def _left_out_line(kind: str, names: list[str]) -> str:
    return f'<div class="{kind}">{styled(left_out_text(names) + "use json()", "dim")}</div>' if names else ""


def _spans(spans: Iterable[Span] | Sequence[Span]) -> str:
    return "".join(styled(words, style) for words, style in spans if words)


def styled(words: str, style: Style) -> str:
    """Escaped words as HTML; every name from a file, a model or a URL passes through here.

    >>> styled("<b>\\x1b", "name")
    '<span class="lw-name">&lt;b&gt;\\\\u001b</span>'
    """
    shown = html_escape(escape(words))
    return f'<span class="lw-{style}">{shown}</span>' if style else shown
