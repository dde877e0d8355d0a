"""A result in; text, JSON, HTML or a picture out."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from leafwise.core.doc import Doc, Shown
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

__all__ = ["for_stdout", "html_of", "json_of", "png_of", "text_of"]

# The modules here that have `…_doc` and `…_json` of each kind of result.
_LOWERED = {
    "findings": ("finding", "finding"),
    "diff": ("differing", "differing"),
    "groups": ("grouping", "grouping"),
    "plan": ("planning", "planning"),
    "stats": ("measuring", "measuring"),
    "ties": ("sharing", "sharing"),
    "tree": ("outline", "plain"),
}
# Those that are more than lines of words: the module that has `…_text`, `…_html`, `…_json` and `…_png` of them.
_DRAWN = {"image": "imaging"}
_IN_NOTEBOOKS = {"tree": {"max_lines": 2_000}}  # where everything is there, deeper levels closed


def _doc(result: Shown, options: dict[str, Any]) -> Doc:
    kind = result._kind
    lowered: Doc = getattr(import_module(f"leafwise.render.{_LOWERED[kind][0]}"), f"{kind}_doc")(result, **options)
    return lowered


def _drawing(result: Shown, what: str) -> Callable[..., Any]:
    kind = result._kind
    found: Callable[..., Any] = getattr(import_module(f"leafwise.render.{_DRAWN[kind]}"), f"{kind}_{what}")
    return found


def text_of(result: Shown, *, terminal: Terminal | None = None, **options: Any) -> str:
    """The picture as text, plain unless a terminal is given."""
    if result._kind in _DRAWN:
        return str(_drawing(result, "text")(result, terminal or Terminal(), **options))
    return text(_doc(result, options), terminal or Terminal())


def for_stdout(result: Shown, **options: Any) -> str:
    """The picture as `print` shows it: coloured and fitted where standard output is a terminal."""
    return text_of(result, terminal=Terminal.of(sys.stdout), **options)


def html_of(result: Shown) -> str:
    """The picture for a notebook."""
    if result._kind in _DRAWN:
        return str(_drawing(result, "html")(result))
    from leafwise.render.html import html

    return html(_doc(result, _IN_NOTEBOOKS.get(result._kind, {})))


def json_of(result: Shown) -> dict[str, Any]:
    """The result as plain data."""
    if result._kind in _DRAWN:
        return dict(_drawing(result, "json")(result))
    kind = result._kind
    data: dict[str, Any] = getattr(import_module(f"leafwise.render.{_LOWERED[kind][1]}"), f"{kind}_json")(result)
    return data


def png_of(result: Shown) -> bytes:
    """The result as a PNG."""
    return bytes(_drawing(result, "png")(result))
