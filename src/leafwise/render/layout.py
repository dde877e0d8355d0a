"""How long an outline may be, which names fold into a run, and how it fits into a width: which columns stay, how long
names may be, and which notes go below their lines.

Where room is short, long names are shortened first, then columns are left out in the order of `Doc.drop`, then notes
go below their lines. At last, names become as short as it takes.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from leafwise.core.results.outline import Doc, Hint, Line, Span
from leafwise.render.shorten import short_labels, width_of

MAX_LINES = 60  # maximum length if no depth is given, including the footer
FOLD_FROM = 3  # this many similar neighbors or more become one line
SHOW_ALL = Hint("text(full=True) shows all", shell="--full shows all")

GAP = 2  # columns between two cells
BRANCH = 3  # columns per level
_USUAL = 60  # columns; if the width is not known, a name that is longer does not move the cells of the other lines
_RARE = 0.2  # share of the lines whose names are shorter or longer than it takes to align the cells
_SIDE_NOTE = 24  # columns; room is kept for notes up to this width
_SHORT_NAME = 10  # columns of a name for which room is kept
_LEAST_NAME = 14  # columns of a name on a deep level


def follows(a: str, b: str) -> bool:
    """Whether both names are numbers and the second follows the first.

    >>> follows("9", "10"), follows("a", "b")
    (True, False)
    """
    return a.isdecimal() and b.isdecimal() and max(len(a), len(b)) < 10 and int(b) == int(a) + 1


def _within(lines: Iterator[Line], space: int) -> list[Line] | None:
    """The lines, or None if there are more than there is room for."""
    taken = list(islice(lines, space + 1))
    return None if len(taken) > space else taken


def cut(lines: Iterator[Line], space: int) -> list[Line]:
    """The first lines, and a last line that says how many are left out."""
    taken = list(islice(lines, space - 1))
    return [*taken, Line(1, more(sum(1 for _ in lines)))]


def more(left_out: int) -> tuple[Span, Span]:
    """How many are left out, and what shows them."""
    return Span(f"… {left_out:,} more; ", "dim"), Span(SHOW_ALL, "dim")


def fitting(lines: Callable[[int], Iterator[Line]], space: int) -> list[Line]:
    """As many levels of an outline as fit; at least one, truncated if even that is too long. `lines` returns the lines
    down to a depth."""
    best, depth, step = _within(lines(1), space), 1, 1
    if best is None:
        return cut(lines(1), space)
    while step:
        # By doubling, then by halving: containers may be nested thousands deep.
        deeper = _within(lines(depth + step), space)
        if deeper is None:
            step //= 2
        elif len(deeper) == len(best):
            break
        else:
            depth, best, step = depth + step, deeper, step * 2
    return best


class Layout(NamedTuple):
    """How to draw an outline: its lines with names that fit, the columns that stay, the names of those left out, the
    widths of the labels and cells, the widest branch, for each line whether its note goes below, and
    the width of everything."""

    lines: list[Line]
    columns: list[int]
    left_out: list[str]
    label: int
    cells: dict[int, int]
    deepest: int | None
    below: list[bool]
    width: int | None


def laid_out(doc: Doc, width: int | None, dots: str = "…", *, branch: int = BRANCH, notes: int | None = None) -> Layout:
    """The layout of an outline. Without a width, nothing is shortened or left out. On a page, where long notes go on
    beside their lines, `notes` is the room to keep for them."""
    sizes = _Sizes(doc, branch)
    if notes is not None:
        sizes.notes = [min(note, notes) for note in sizes.notes]
    columns = list(range(len(sizes.cells)))
    if width is None:
        return _layout(doc, sizes, columns, sizes.usual_label(_USUAL), None)
    if sizes.fits(columns, width):
        return _layout(doc, sizes, columns, sizes.longest, width)
    columns, space = _choice(doc, sizes, columns, width, notes)
    label = sizes.longest
    if label > space:
        label = min(space, max(sizes.usual_label(2 * width // 5), 2 * width // 5))
    deepest = max((label - _LEAST_NAME) // branch, 2) * branch
    lines = _with_short_names(doc, sizes, label, width, deepest, dots)
    short = doc._replace(lines=lines)
    return _layout(short, _Sizes(short, branch, deepest), columns, label, width, deepest)


class _Sizes:
    """The widths of the parts of an outline."""

    def __init__(self, doc: Doc, branch: int, deepest: int | None = None) -> None:
        count = max((len(line.cells) for line in doc.lines), default=0)
        self.cells = [0] * count
        for line in doc.lines:
            for column, cell in enumerate(line.cells):
                if (width := width_of([cell])) > self.cells[column]:
                    self.cells[column] = width
        indents = [branch * line.level for line in doc.lines]
        if deepest is not None:
            indents = [min(indent, deepest) for indent in indents]
        self.indents = indents
        self.labels = [indent + width_of(line.label) for indent, line in zip(indents, doc.lines, strict=True)]
        self.notes = [width_of(line.note) for line in doc.lines]
        aligned = [any(cell.text for cell in line.cells) for line in doc.lines]
        if not any(aligned):
            aligned = [bool(line.note) for line in doc.lines]
        self.aligned = [label for label, is_aligned in zip(self.labels, aligned, strict=True) if is_aligned]
        self.longest = max(self.aligned, default=0)

    def of_cells(self, columns: Sequence[int]) -> int:
        return sum(GAP + self.cells[column] for column in columns if self.cells[column])

    def usual_label(self, usual: int) -> int:
        """The width of labels without the few that are wider than usual."""
        if self.longest <= usual:
            return self.longest
        if sum(label > usual for label in self.aligned) > _RARE * len(self.aligned):
            return self.longest
        return max(label for label in self.aligned if label <= usual)

    def fits(self, columns: Sequence[int], width: int) -> bool:
        """Whether every line fits as it is."""
        cells = self.of_cells(columns)
        if max(self.labels, default=0) > width or (self.aligned and self.longest + cells > width):
            return False
        return all(
            not note or max(label, self.longest) + cells + GAP + note <= width
            for label, note in zip(self.labels, self.notes, strict=True)
        )


def _choice(doc: Doc, sizes: _Sizes, columns: list[int], width: int, notes: int | None) -> tuple[list[int], int]:
    """The columns that stay, and the room for labels."""
    choices = list(_fewer(columns, doc.drop))
    # Names of deep levels need more room, because of the branches before them.
    deep = max((indent for indent, line in zip(sizes.indents, doc.lines, strict=True) if line.cells), default=0)
    enough = min(sizes.longest, max(2 * width // 5, min(deep + _SHORT_NAME, 3 * width // 5)))
    # A line without cells has room for its note in their place.
    with_cells = [note for line, note in zip(doc.lines, sizes.notes, strict=True) if line.cells]
    side_notes = [note for note in with_cells if 0 < note <= _SIDE_NOTE]
    side = max(side_notes, default=0 if any(sizes.notes) else -GAP) + GAP
    if notes is not None:
        side = max(sizes.notes) + GAP
    # A note below its line costs a line; a column that is left out costs more, unless most lines have a note.
    tried = len(choices) if 2 * len(side_notes) > len(with_cells) else 1 + len(choices) // 2
    beside = [] if doc.wraps and notes is None else [(side, columns) for columns in choices[:tried]]
    for note, columns in [*beside, *((0, columns) for columns in choices)]:
        space = width - sizes.of_cells(columns) - note
        if space >= enough:
            return columns, space
    return columns, max(width - sizes.of_cells(columns), 1)


def _fewer(columns: list[int], drop: Sequence[int]) -> Iterator[list[int]]:
    """The columns, then fewer and fewer of them."""
    yield columns
    for dropped in drop:
        if dropped in columns:  # a table without bars has no column for them
            columns = [column for column in columns if column != dropped]
            yield columns


def _with_short_names(doc: Doc, sizes: _Sizes, label: int, width: int, deepest: int, dots: str) -> list[Line]:
    spaces = []
    for line, indent in zip(doc.lines, sizes.indents, strict=True):
        has_cells = any(cell.text for cell in line.cells) or bool(line.note)
        space = width_of(line.label) if line.whole else (label if has_cells else width) - min(indent, deepest)
        spaces.append(max(space, 1))
    labels = short_labels([line.label for line in doc.lines], _parents(doc.lines), spaces, dots)
    return [line._replace(label=short) for line, short in zip(doc.lines, labels, strict=True)]


def _parents(lines: Sequence[Line]) -> list[int]:
    """The number of the line above each line, one level up; -1 if there is none."""
    above: list[int] = []  # the last line of each level
    parents = []
    for number, line in enumerate(lines):
        del above[line.level :]
        parents.append(above[-1] if above else -1)
        above += [number] * (line.level + 1 - len(above))
    return parents


def _layout(
    doc: Doc, sizes: _Sizes, columns: list[int], label: int, width: int | None, deepest: int | None = None
) -> Layout:
    cells = {column: sizes.cells[column] for column in columns if sizes.cells[column]}
    left_out = [name_of(doc, column) for column, size in enumerate(sizes.cells) if size and column not in cells]
    below = [False] * len(doc.lines)
    if width is not None:
        space = width - sizes.of_cells(columns) - GAP
        for number, (line, own, note) in enumerate(zip(doc.lines, sizes.labels, sizes.notes, strict=True)):
            if note:
                own = label if line.whole else max(own, label)
                below[number] = own + note > _space_for_note(line, cells, space, width)
    if doc.wraps and any(below):
        below = [bool(line.note) for line in doc.lines]
    return Layout(doc.lines, list(cells), left_out, label, cells, deepest, below, width)


def _space_for_note(line: Line, cells: dict[int, int], space: int, width: int) -> int:
    """The room for a label and a note: beside the cells, or in the place of the last cells if they are empty."""
    return space + sum(GAP + cells[column] for column in empty_at_end(line, cells)) if line.cells else width - GAP


def left_out_text(names: list[str]) -> str:
    """What to say about columns that are left out."""
    return f"column{'s' * (len(names) > 1)} left out at this width: {', '.join(names)}; "


def empty_at_end(line: Line, columns: Iterable[int]) -> list[int]:
    """The last columns, in which a line has no words."""
    filled = [column for column, cell in enumerate(line.cells) if cell.text]
    return [column for column in columns if column > max(filled, default=-1)]


def name_of(doc: Doc, column: int) -> str:
    """The name of a column: as given, or its heading."""
    if column < len(doc.columns) and doc.columns[column]:
        return doc.columns[column]
    heading = doc.lines[0].cells[column].text if column < len(doc.lines[0].cells) else ""
    return heading or f"column {column + 1}"
