"""What results lower to: lines of styled words, which know nothing of terminals or pages.

A verb returns a result; `render` lowers it to a `Doc`; text and HTML differ only in the last step.
"""

from importlib import import_module
from typing import Any, Literal, NamedTuple

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
    """An outline and what is said below it.

    `right` are the columns that align to the right, `drop` those that go first where room is short.
    """

    lines: list[Line]
    footer: list[tuple[Span, ...]]
    right: frozenset[int] = frozenset()
    drop: tuple[int, ...] = ()


class Shown:
    """A result that prints as a picture: render, imported when something is drawn, has a function for each way, named
    after the kind of result."""

    _kind: str

    def __init_subclass__(cls, kind: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if kind:
            cls._kind = kind

    def text(self) -> str:
        """The picture as plain text."""
        raise NotImplementedError

    def _drawn(self, way: str) -> str:
        return str(getattr(import_module("leafwise.render"), f"{self._kind}_{way}")(self))

    def __str__(self) -> str:
        return self._drawn("for_stdout")

    def __repr__(self) -> str:
        return self._drawn("for_stdout")

    def __format__(self, spec: str) -> str:
        return format(self.text(), spec)

    def _repr_html_(self) -> str:
        return self._drawn("html")
