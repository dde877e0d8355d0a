"""A result in; text, JSON, HTML or a picture out."""

import sys
from importlib import import_module
from typing import Any

from leafwise.core.doc import Doc, Shown
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

__all__ = ["for_stdout", "html_of", "json_of", "text_of"]

# The modules here that have `…_doc` and `…_json` of each kind of result.
_LOWERED = {
    "findings": ("finding", "finding"),
    "groups": ("grouping", "grouping"),
    "plan": ("planning", "planning"),
    "stats": ("measuring", "measuring"),
    "ties": ("sharing", "sharing"),
    "tree": ("outline", "plain"),
}
_IN_NOTEBOOKS = {"tree": {"max_lines": 2_000}}  # where everything is there, deeper levels closed


def _doc(result: Shown, options: dict[str, Any]) -> Doc:
    kind = result._kind
    lowered: Doc = getattr(import_module(f"leafwise.render.{_LOWERED[kind][0]}"), f"{kind}_doc")(result, **options)
    return lowered


def text_of(result: Shown, *, terminal: Terminal | None = None, **options: Any) -> str:
    """The picture as text, plain unless a terminal is given."""
    return text(_doc(result, options), terminal or Terminal())


def for_stdout(result: Shown, **options: Any) -> str:
    """The picture as `print` shows it: coloured and fitted where standard output is a terminal."""
    return text_of(result, terminal=Terminal.of(sys.stdout), **options)


def html_of(result: Shown) -> str:
    """The picture for a notebook."""
    from leafwise.render.html import html

    return html(_doc(result, _IN_NOTEBOOKS.get(result._kind, {})))


def json_of(result: Shown) -> dict[str, Any]:
    """The result as plain data."""
    kind = result._kind
    data: dict[str, Any] = getattr(import_module(f"leafwise.render.{_LOWERED[kind][1]}"), f"{kind}_json")(result)
    return data
