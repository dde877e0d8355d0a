"""The base classes of results, which print, and convert to text, JSON, HTML or a DataFrame; and writing small files."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from operator import index
from typing import Any, TypeVar, overload

from leafwise.errors import FileError, QueryError

T = TypeVar("T")

_RENDER = "leafwise.render"  # imported when something is drawn, because core may not import render


class Result:
    """The base class of all results. A result prints as text, and a notebook displays it.

    >>> import torch, leafwise as lw
    >>> print(lw.ties(torch.nn.Linear(4, 2)).text())
    no ties
    """

    # The kind of result, given as `class Stats(Table, kind="stats")`. The module of this name in
    # `leafwise.render.results` draws it.
    _kind: str

    def __init_subclass__(cls, kind: str = "", **options: Any) -> None:
        super().__init_subclass__(**options)
        if kind:
            cls._kind = kind

    def text(self, *, width: int | None = None, full: bool = False) -> str:
        """The result as plain text, `width` columns wide. `full=True` leaves nothing out."""
        return rendered(self, width, full=full)

    def json(self) -> dict[str, Any]:
        """The result as plain data, for `json.dump`."""
        data: dict[str, Any] = import_module(_RENDER).json_of(self)
        return data

    def __str__(self) -> str:
        return str(import_module(_RENDER).for_stdout(self))

    def __repr__(self) -> str:
        return str(self)

    def __format__(self, spec: str) -> str:
        return format(self.text(), spec)

    def _repr_html_(self) -> str:
        return str(import_module(_RENDER).html_of(self))


def kind_of(result: Result | type[Result]) -> str:
    return result._kind


def rendered(result: Result, width: int | None, **options: Any) -> str:
    """The text, with the options that this kind of result supports. Each `text` method lists its own."""
    return str(import_module(_RENDER).text_of(result, width=whole_number(width, "width", 1), **options))


class Table(Result):
    """A result that can be converted to a DataFrame.

    >>> import torch, leafwise as lw
    >>> from leafwise.results import Table
    >>> isinstance(lw.stats(torch.nn.Linear(4, 2)), Table)
    True
    """

    def pandas(self) -> Any:
        """The result as a pandas DataFrame. Needs pandas."""
        return import_module(_RENDER).pandas_of(self)


class RowTable(Table, Sequence[T]):
    """A table that is the sequence of its rows."""

    _rows: list[T]

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        return self._rows[index]

    def __iter__(self) -> Iterator[T]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def whole_number(number: Any, name: str, least: int) -> int | None:
    """The number as an int, or None if it is None. Raises if it is not a whole number, or if it is too small."""
    if number is None:
        return None
    try:
        count = -1 if isinstance(number, bool) else index(number)
    except TypeError:
        count = -1
    if count < least:
        raise QueryError(f"{name}= takes a whole number of at least {least}, not {number!r}")
    return count


def write_small_file(path: str, data: bytes) -> None:
    """Writes a picture or a report next to its place, and moves it there. If that fails, an existing file stays as it
    was."""
    target = os.path.realpath(path)
    staged = os.path.join(os.path.dirname(target), f".{os.urandom(8).hex()}.part")
    try:
        with open(staged, "xb") as file:
            file.write(data)
        os.replace(staged, target)
    except OSError as error:
        raise FileError(f"cannot write {path!r}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            os.remove(staged)
