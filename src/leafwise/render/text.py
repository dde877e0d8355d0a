"""An outline as text."""

from collections.abc import Sequence
from unicodedata import combining, east_asian_width

from leafwise.core.outline import Doc, Line, Span, Style
from leafwise.core.path import escape
from leafwise.render.terminal import Terminal

_COLORS: dict[Style, str] = {
    "name": "1",
    "type": "36",
    "number": "",
    "tie": "35",
    "dim": "2",
    "warn": "33",
}
_ASCII = str.maketrans({"├": "|", "─": "-", "└": "`", "│": "|", "→": "->", "×": "x", "…": "...", "·": "-", "▸": ">",
    "≤": "<=", "≥": ">=", "▁": ".", "▂": ":", "▃": "-", "▄": "=", "▅": "+", "▆": "*", "▇": "%", "█": "#"})  # fmt: skip
_GAP = "  "
_BRANCH = 3  # columns per level
_SHORTEST = 4  # minimum columns of a name, however narrow the terminal
_RARE = 0.2  # share of the lines whose names may be shortened to keep the columns
_INDENT = " " * 8  # before notes that continue on the next line


def in_ascii(text: str) -> str:
    """Text in which the characters that leafwise draws with are replaced by ASCII.

    >>> in_ascii("2×3 … → 4")
    '2x3 ... -> 4'
    """
    return text.translate(_ASCII)


def text(doc: Doc, terminal: Terminal) -> str:
    """The outline with branches and aligned cells, then the footer."""
    columns = list(range(max((len(line.cells) for line in doc.lines), default=0)))
    drop = list(doc.drop)
    if drop and terminal.width is not None:
        doc = _without_rare_long_names(doc, columns, terminal.width, terminal.ascii)
    while True:
        rows = _laid_out(doc, columns, terminal.ascii)
        # Leaving out a column does not make a plain value any shorter.
        tabular = [row for row, line in zip(rows, doc.lines, strict=True) if line.cells]
        if terminal.width is None or not drop or max(map(width_of, tabular), default=0) <= terminal.width:
            break
        dropped = drop.pop(0)
        columns = [column for column in columns if column != dropped]  # it may be absent, as in a table without bars
    if doc.wraps and terminal.width is not None and max(map(width_of, rows), default=0) > terminal.width:
        rows = _wrapped(doc, columns, terminal)
    footer = [_spelled(line, terminal.ascii) for line in doc.footer]
    if doc.wraps and terminal.width is not None:
        footer = [part for line in footer for part in _folded(line, terminal.width)]
    rows += [[]] * bool(footer and rows) + footer
    return "\n".join(_written(row, terminal) for row in rows)


def _laid_out(doc: Doc, columns: Sequence[int], ascii_only: bool) -> list[list[Span]]:
    rows = []
    labels = [
        [Span(branch, "dim"), *_spelled(line.label, ascii_only)]
        for branch, line in zip(_branches(doc.lines, ascii_only), doc.lines, strict=True)
    ]
    cells = [_spelled(line.cells, ascii_only) for line in doc.lines]
    has_cells = [any(cell[column].text for column in columns if column < len(cell)) for cell in cells]
    label_width = max((width_of(label) for label, has in zip(labels, has_cells, strict=True) if has), default=0)
    widths = {
        column: max((width_of([cell[column]]) for cell in cells if column < len(cell)), default=0) for column in columns
    }
    for label, cell, line in zip(labels, cells, doc.lines, strict=True):
        if not line.cells and not line.note:
            rows.append(label)
            continue
        row = [*label, Span(" " * (label_width - width_of(label)))]
        for column in columns:
            if widths[column]:
                span = cell[column] if column < len(cell) else Span("")
                pad = Span(" " * (widths[column] - width_of([span])))
                row += [Span(_GAP), pad, span] if column in doc.right else [Span(_GAP), span, pad]
        if line.note:
            row += [Span(_GAP), *_spelled(line.note, ascii_only)]
        rows.append(row)
    return rows


def _wrapped(doc: Doc, columns: Sequence[int], terminal: Terminal) -> list[list[Span]]:
    """Each line without its note, and the note wrapped below it. Names that leave no room for the cells are
    shortened."""
    assert terminal.width is not None
    bare = doc._replace(lines=[line._replace(note=()) for line in doc.lines])
    laid_out = _laid_out(bare, columns, terminal.ascii)
    over = max(map(width_of, laid_out), default=0) - terminal.width
    if over > 0:
        laid_out = _laid_out(_with_short_names(bare, over, terminal.ascii), columns, terminal.ascii)
    rows = []
    for row, line in zip(laid_out, doc.lines, strict=True):
        rows.append(row)
        words = "".join(span.text for span in _spelled(line.note, terminal.ascii))
        lines = _wrap(words, max(terminal.width - len(_INDENT), 20))
        rows += [[Span(_INDENT), Span(part, line.note[0].style)] for part in lines]
    return rows


def _with_short_names(doc: Doc, over: int, ascii_only: bool) -> Doc:
    """The outline with names shortened, so that lines with cells are `over` columns narrower."""
    longest = max((_BRANCH * line.level + width_of(line.label) for line in doc.lines if line.cells), default=0)
    lines = []
    for line in doc.lines:
        room = max(longest - over - _BRANCH * line.level, _SHORTEST)
        short = _cut(line.label, room, "..." if ascii_only else "…") if width_of(line.label) > room else line.label
        lines.append(line._replace(label=tuple(short)) if line.cells else line)
    return doc._replace(lines=lines)


def _without_rare_long_names(doc: Doc, columns: Sequence[int], width: int, ascii_only: bool) -> Doc:
    """The outline with names shortened that would take more than half of the width, if they are few: a callback whose
    name contains all its options must not push the columns of every other line out of sight."""
    widths = [_BRANCH * line.level + width_of(line.label) for line in doc.lines if line.cells]
    long = sum(label > width // 2 for label in widths)
    if not long or long > _RARE * len(widths) or max(map(width_of, _laid_out(doc, columns, ascii_only))) <= width:
        return doc
    usual = max(label for label in widths if label <= width // 2)
    return _with_short_names(doc, max(widths) - max(usual, 2 * width // 5), ascii_only)


def _folded(line: list[Span], width: int) -> list[list[Span]]:
    """A line of the footer, wrapped."""
    if width_of(line) <= width:
        return [line]
    words = "".join(span.text for span in line)
    return [[Span(part, line[0].style)] for part in _wrap(words, max(width, 20))]


def _wrap(words: str, width: int) -> list[str]:
    from textwrap import wrap  # only here, because it compiles regular expressions

    return wrap(words, width, break_on_hyphens=False)


def _branches(lines: Sequence[Line], ascii_only: bool) -> list[str]:
    """The branch before each line; made from the last line up, so that it is known whether a level continues."""
    branches = []
    goes_on: set[int] = set()
    for line in reversed(lines):
        level = line.level
        goes_on = {upper for upper in goes_on if upper <= level}
        above = "".join("│  " if upper in goes_on else "   " for upper in range(1, level))
        own = ("├─ " if level in goes_on else "└─ ") if level else ""
        branches.append((above + own).translate(_ASCII) if ascii_only else above + own)
        goes_on.add(level)
    return branches[::-1]


def _spelled(spans: Sequence[Span], ascii_only: bool) -> list[Span]:
    """Words with unprintable characters escaped; every name from a file, a model or a URL passes through here."""
    if not ascii_only:
        return [span if span.text.isprintable() else Span(escape(span.text), span.style) for span in spans]
    return [
        Span(escape(span.text).translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii"), span.style)
        for span in spans
    ]


def width_of(spans: Sequence[Span]) -> int:
    """The width of words in columns of a fixed-width font."""
    return sum(len(text) if text.isascii() else sum(map(_char_width, text)) for text, _ in spans)


def _char_width(char: str) -> int:
    if combining(char):
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def _written(row: Sequence[Span], terminal: Terminal) -> str:
    if terminal.width is not None and width_of(row) > terminal.width:
        row = _cut(row, terminal.width, "..." if terminal.ascii else "…")
    parts = []
    for words, style in row:
        code = _COLORS.get(style, "") if terminal.color else ""
        parts.append(f"\x1b[{code}m{words}\x1b[0m" if code and words else words)
    return "".join(parts).rstrip()


def _cut(row: Sequence[Span], width: int, end: str) -> list[Span]:
    kept: list[Span] = []
    room = width - len(end)
    for words, style in row:
        short = ""
        for char in words:
            room -= _char_width(char)
            if room < 0:
                return [*kept, Span(short, style), Span(end, "dim")]
            short += char
        kept.append(Span(words, style))
    return kept
