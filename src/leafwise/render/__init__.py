"""Renders results as text, JSON, HTML or PNG.

Each kind of result (`class Stats(Table, kind="stats")`) has a module of that name in `results`, imported on first use,
with `to_doc(result, *, full, **options)`, which returns a `Doc`, and `to_json(result)`, which returns plain data; for a
table also `to_table(result)`, which returns `TableRows`. If a `Doc` is not the right form, the module has
`to_text(result, terminal, *, full, **options)`, `to_html(result)` or `to_png(result, bare)`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from leafwise.core.results.result import Result, Table, kind_of
from leafwise.errors import Error
from leafwise.render.data import TableRows
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

__all__ = ["for_stdout", "html_of", "json_of", "pandas_of", "png_of", "text_of"]


def text_of(result: Result, *, width: int | None = None, terminal: Terminal | None = None, **options: Any) -> str:
    """The result as text: plain unless a terminal is given, and `width` columns wide."""
    module, terminal = _module_of(result), terminal or Terminal()
    terminal = terminal if width is None else terminal._replace(width=width)
    if hasattr(module, "to_text"):
        return str(module.to_text(result, terminal, **options))
    return text(module.to_doc(result, **options), terminal)


def for_stdout(result: Result, *, shell: bool = False, **options: Any) -> str:
    """The result as `print` shows it: in color and fitted to the width if standard output is a terminal. With `shell`,
    hints are options of the command line."""
    return text_of(result, terminal=Terminal.of(sys.stdout, shell=shell), **options)


def html_of(result: Result) -> str:
    """The result as HTML, for a notebook."""
    module = _module_of(result)
    if hasattr(module, "to_html"):
        return str(module.to_html(result))
    from leafwise.render.html import html

    return html(module.to_doc(result))


def json_of(result: Result) -> dict[str, Any]:
    """The result as plain data."""
    data: dict[str, Any] = _module_of(result).to_json(result)
    return data


def pandas_of(result: Table) -> Any:
    """The table as a DataFrame of pandas."""
    try:
        pandas: Any = import_module("pandas")
    except ImportError as error:
        raise Error(f"{type(result).__name__}.pandas() needs pandas: pip install pandas") from error
    table: TableRows = _module_of(result).to_table(result)
    columns = {name: [row.get(name) for row in table.rows] for name in table.columns}
    frame = pandas.DataFrame(columns)
    for column, exact in columns.items():
        if any(isinstance(number, int) and abs(number) > 1 << 53 for number in exact):
            frame[column] = pandas.Series(exact, frame.index, dtype=object)  # as floats they would be rounded
    return frame if table.key is None else frame.set_index(table.key)


def png_of(result: Result, *, bare: bool = False) -> bytes:
    """The result as a PNG; `bare`: without title and scale."""
    return bytes(_module_of(result).to_png(result, bare))


def _module_of(result: Result) -> ModuleType:
    return import_module(f"leafwise.render.results.{kind_of(result)}")
