"""What results are converted to: lines of styled words, which know nothing of terminals or pages.

A verb returns a result; `render` lowers it to a `Doc`; text and HTML differ only in the last step.
"""

from typing import Literal, NamedTuple

Style = Literal["", "name", "type", "number", "tie", "dim", "warn", "error"]


class Hint(str):
    """Words on what to type: a function's arguments, or `shell`, the options of the command line.

    >>> Hint("text(full=True) shows all", shell="--full shows all").shell
    '--full shows all'
    """

    shell: str

    def __new__(cls, words: str, shell: str) -> "Hint":
        hint = super().__new__(cls, words)
        hint.shell = shell
        return hint


class Span(NamedTuple):
    """Some words in one style."""

    text: str
    style: Style = ""


class Line(NamedTuple):
    """A line of an outline: how deep it stands, what it is called, and its cells, which align in columns.

    A label that is `whole` is not a name, and has nothing in it that may be left out: if it is too long, it goes on in
    the next line, below its second span.
    """

    level: int
    label: tuple[Span, ...]
    cells: tuple[Span, ...] = ()
    note: tuple[Span, ...] = ()
    whole: bool = False


class Doc(NamedTuple):
    """An outline and the lines below it.

    `right` are the columns that align to the right, `drop` those that go first where room is short, and `columns` their
    names, for the line that says so. A note that does not fit beside its line goes below it; with `wraps`, all notes do
    if one does. A page opens the first `open_levels` levels.
    """

    lines: list[Line]
    footer: list[tuple[Span, ...]]
    right: frozenset[int] = frozenset()
    drop: tuple[int, ...] = ()
    wraps: bool = False
    columns: tuple[str, ...] = ()
    open_levels: int = 2
