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
    """An outline and the lines below it.

    `right` are the columns that align to the right, `drop` those that go first where room is short. With `wraps`,
    notes that are too long go on in lines of their own instead of being cut.
    """

    lines: list[Line]
    footer: list[tuple[Span, ...]]
    right: frozenset[int] = frozenset()
    drop: tuple[int, ...] = ()
    wraps: bool = False


class Shown:
    """A result that prints as a picture. `leafwise.render`, imported when something is drawn, draws it.

    `result_kind` is the kind of result, given as `class Stats(Shown, kind="stats")`; the table `RESULTS` of
    `leafwise.render` names the module that draws that kind.
    """

    result_kind: str

    def __init_subclass__(cls, kind: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind:
            cls.result_kind = kind

    def text(self) -> str:
        """The picture as plain text."""
        return self.render_text()

    def json(self) -> dict[str, Any]:
        """The same as plain data, for `json.dump`."""
        data: dict[str, Any] = import_module("leafwise.render").json_of(self)
        return data

    def render_text(self, **options: Any) -> str:
        """The picture as plain text, with the options of this kind of result; `text` of each result names them."""
        return str(import_module("leafwise.render").text_of(self, **options))

    def __str__(self) -> str:
        return str(import_module("leafwise.render").for_stdout(self))

    def __repr__(self) -> str:
        return str(self)

    def __format__(self, spec: str) -> str:
        return format(self.text(), spec)

    def _repr_html_(self) -> str:
        return str(import_module("leafwise.render").html_of(self))
