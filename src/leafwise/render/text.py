"""An outline as text."""

from collections.abc import Sequence

from leafwise.core.path import escape
from leafwise.core.results.outline import Doc, Hint, Line, Span, Style
from leafwise.render.layout import BRANCH, GAP, Layout, empty_at_end, laid_out, left_out_text
from leafwise.render.shorten import beginning, width_of
from leafwise.render.terminal import Terminal
from leafwise.render.wrapping import wrapped

_COLORS: dict[Style, str] = {"name": "1", "type": "36", "tie": "35", "dim": "2", "warn": "33", "error": "31"}
_ASCII = str.maketrans({"├": "|", "─": "-", "└": "`", "│": "|", "→": "->", "←": "<-", "×": "x", "…": "...", "·": "-",
    "▸": ">", "≤": "<=", "≥": ">=", "▁": ".", "▂": ":", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%",
    "█": "#"})  # fmt: skip
_INDENT = 8  # columns before notes that go below their line
_WIDER = Hint("widen the terminal, or use json()", shell="widen the terminal, or use --json")


def in_ascii(text: str) -> str:
    """Text in which the characters that leafwise draws with are replaced by ASCII.

    >>> in_ascii("2×3 … → 4")
    '2x3 ... -> 4'
    """
    return text.translate(_ASCII)


def text(doc: Doc, terminal: Terminal) -> str:
    """The outline with branches and aligned cells, then the footer. Nothing is wider than the terminal."""
    doc = _spelled_doc(doc, terminal)
    layout = laid_out(doc, terminal.width, "..." if terminal.ascii else "…")
    rows = _rows(doc, layout, terminal)
    footer = [list(line) for line in doc.footer if any(span.text for span in line)]  # a hint may be for programs only
    if layout.left_out:
        footer.append(_spelled([Span(left_out_text(layout.left_out), "dim"), Span(_WIDER, "dim")], terminal))
    if terminal.width is not None:
        footer = [part for line in footer for part in wrapped(line, terminal.width, "  ")]
    rows += [[]] * bool(footer and rows) + footer
    return "\n".join(_written(row, terminal) for row in rows)


def _rows(doc: Doc, layout: Layout, terminal: Terminal) -> list[list[Span]]:
    rows = []
    for line, (own, under), below in zip(layout.lines, _branches(layout, terminal.ascii), layout.below, strict=True):
        label, *more = _label_lines(line, len(own), layout)
        row = [Span(own, "dim"), *label]
        if not line.cells and (not line.note or below):
            rows.append(row)
        else:
            rows.append(_row(row, line, layout, doc.right, below))
        rows += [[Span(under.ljust(len(own)), "dim"), *part] for part in more]
        if below:
            assert terminal.width is not None
            indent = under + " " * max(min(_INDENT, terminal.width // 4) - len(under), 2 if under else 0)
            parts = wrapped(line.note, max(terminal.width - len(indent), 8))
            rows += [[Span(indent, "dim"), *part] for part in parts]
    return rows


def _label_lines(line: Line, indent: int, layout: Layout) -> list[list[Span]]:
    """The label, on several lines if it must stay whole and does not fit."""
    if not line.whole or layout.width is None:
        return [list(line.label)]
    space = (layout.label if line.cells or line.note else layout.width) - indent
    hanging = width_of(line.label[:1]) if len(line.label) > 1 else 2
    return wrapped(line.label, space, " " * (hanging if hanging <= space // 2 else 2))


def _row(row: list[Span], line: Line, layout: Layout, right: frozenset[int], below: bool) -> list[Span]:
    row.append(Span(" " * (layout.label - width_of(row))))
    cells = dict(layout.cells)
    if line.note and not below and layout.width is not None:
        far = width_of(row) + sum(GAP + width for width in cells.values()) + GAP + width_of(line.note)
        if far > layout.width:  # the last cells are empty: the note is drawn in their place
            for column in empty_at_end(line, layout.cells):
                del cells[column]
    for column, width in cells.items():
        span = line.cells[column] if column < len(line.cells) else Span("")
        pad = Span(" " * (width - width_of([span])))
        row += [Span(" " * GAP), pad, span] if column in right else [Span(" " * GAP), span, pad]
    if line.note and not below:
        row += [Span(" " * GAP), *line.note]
    return row


def _branches(layout: Layout, ascii_only: bool) -> list[tuple[str, str]]:
    """The branch before each line, and before what goes on below it; made from the last line up, so that it is known
    whether a level continues. Of a branch that is too wide, the middle is left out."""
    branches = []
    goes_on: set[int] = set()
    for line in reversed(layout.lines):
        level = line.level
        opens = level + 1 in goes_on
        goes_on = {upper for upper in goes_on if upper <= level}
        above = "".join("│  " if upper in goes_on else "   " for upper in range(1, level))
        own = ("├─ " if level in goes_on else "└─ ") if level else ""
        under = (("│  " if level in goes_on else "   ") if level else "") + ("│  " if opens else "")
        pair = _shallow(above + own, layout.deepest), _shallow(above + under, layout.deepest)
        branches.append((pair[0].translate(_ASCII), pair[1].translate(_ASCII)) if ascii_only else pair)
        goes_on.add(level)
    return branches[::-1]


def _shallow(branch: str, deepest: int | None) -> str:
    if deepest is None or len(branch) <= deepest:
        return branch
    return f"{branch[: deepest - 2 * BRANCH]}·  {branch[-BRANCH:]}"


def _spelled_doc(doc: Doc, terminal: Terminal) -> Doc:
    lines = []
    for line in doc.lines:
        label, cells, note = (tuple(_spelled(part, terminal)) for part in (line.label, line.cells, line.note))
        # Cells without words need no room.
        lines.append(Line(line.level, label, cells if any(cell.text for cell in cells) else (), note, line.whole))
    return doc._replace(lines=lines, footer=[tuple(_spelled(line, terminal)) for line in doc.footer])


def _spelled(spans: Sequence[Span], terminal: Terminal) -> list[Span]:
    """Words with unprintable characters escaped; every name from a file, a model or a URL passes through here."""
    if terminal.shell:
        spans = [Span(span.text.shell, span.style) if isinstance(span.text, Hint) else span for span in spans]
    if not terminal.ascii:
        return [span if span.text.isprintable() else Span(escape(span.text), span.style) for span in spans]
    return [
        Span(escape(span.text).translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii"), span.style)
        for span in spans
    ]


def _written(row: Sequence[Span], terminal: Terminal) -> str:
    if terminal.width is not None and width_of(row) > terminal.width:
        row = _cut(row, terminal.width, "..." if terminal.ascii else "…")
    parts = []
    for words, style in row:
        code = _COLORS.get(style, "") if terminal.color else ""
        parts.append(f"\x1b[{code}m{words}\x1b[0m" if code and words else words)
    return "".join(parts).rstrip()


def _cut(row: Sequence[Span], width: int, dots: str) -> list[Span]:
    """The beginning of a row whose cells alone are too wide, in a terminal of a few columns."""
    kept: list[Span] = []
    space = width - len(dots)
    for words, style in row:
        short = beginning(words, space)
        kept.append(Span(short, style))
        space -= width_of(kept[-1:])
        if len(short) < len(words):
            break
    return [*kept, Span(dots[:width], "dim")]
