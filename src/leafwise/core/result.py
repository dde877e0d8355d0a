"""What verbs return: one family of results, which print, and become text, JSON, HTML or a DataFrame."""

from importlib import import_module
from operator import index
from typing import Any

from leafwise.errors import QueryError

_RENDER = "leafwise.render"  # imported when something is drawn, because core may not import render


class Result:
    """A result of leafwise. It prints, and a notebook shows it.

    Every result has `text()`, `json()` and `_repr_html_()`; a `Table` has `pandas()`, too.
    """

    # The kind of result, given as `class Stats(Table, kind="stats")`. The table `RESULTS` of `leafwise.render` names
    # the module that draws it.
    result_kind: str

    def __init_subclass__(cls, kind: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind:
            cls.result_kind = kind

    def text(self, *, width: int | None = None, full: bool = False) -> str:
        """The result as plain text. `width` fits it into so many columns; `full` leaves nothing out."""
        return self.render_text(width=width, full=full)

    def json(self) -> dict[str, Any]:
        """The result as plain data, for `json.dump`."""
        data: dict[str, Any] = import_module(_RENDER).json_of(self)
        return data

    def render_text(self, *, width: int | None = None, **options: Any) -> str:
        """The text, with the options of this kind of result; `text` of each result lists them."""
        return str(import_module(_RENDER).text_of(self, width=whole_number(width, "width", 1), **options))

    def __str__(self) -> str:
        return str(import_module(_RENDER).for_stdout(self))

    def __repr__(self) -> str:
        return str(self)

    def __format__(self, spec: str) -> str:
        return format(self.text(), spec)

    def _repr_html_(self) -> str:
        return str(import_module(_RENDER).html_of(self))


class Table(Result):
    """A result that is a table."""

    def pandas(self) -> Any:
        """The result as a DataFrame of pandas."""
        return import_module(_RENDER).pandas_of(self)


def whole_number(number: Any, name: str, least: int) -> int | None:
    """The number as an int, or None where none was given; raises where it is not a whole number, or too small."""
    if number is None:
        return None
    try:
        count = -1 if isinstance(number, bool) else index(number)
    except TypeError:
        count = -1
    if count < least:
        raise QueryError(f"{name}= takes a whole number of at least {least}, not {number!r}")
    return count
