"""What results lower to: lines of styled words, which know nothing of terminals or pages.

A verb returns a result; `render` lowers it to a `Doc`; text and HTML differ only in the last step.
"""

from typing import Literal, NamedTuple

Style = Literal["", "name", "type", "number", "tie", "dim", "warn"]


class Span(NamedTuple):
    """Some words in one style."""

    text: str
    style: Style = ""


class Line(NamedTuple):
    """A line of an outline: how deep it stands, what it is called, and its cells, which align in columns."""

    level: int
    label: tuple[Span, ...]
    cells: tuple[Span, ...] = ()
    note: tuple[Span, ...] = ()


class Doc(NamedTuple):
    """An outline and the lines below it.

    `right` are the columns that align to the right, `drop` those that go first where room is short. With `wraps`,
    notes that are too long go on in lines of their own instead of being cut.
    """

    lines: list[Line]
    footer: list[tuple[Span, ...]]
    right: frozenset[int] = frozenset()
    drop: tuple[int, ...] = ()
    wraps: bool = False
