"""Renders results as text, JSON, HTML or PNG.

The module of each result has `lower(result, **options)`, which returns a `Doc`, and `to_json(result)`, which returns
plain data. If a `Doc` is not the right form, the module has `to_text(result, terminal, **options)`, `to_html(result)`
or `to_png(result)`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from leafwise.core.outline import Shown
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

__all__ = ["RESULTS", "for_stdout", "html_of", "json_of", "png_of", "text_of"]

# The module that renders each kind of result (`class Stats(Shown, kind="stats")`), imported on first use.
RESULTS = {
    "diff": "leafwise.render.diff",
    "findings": "leafwise.render.findings",
    "groups": "leafwise.render.groups",
    "image": "leafwise.render.image",
    "plan": "leafwise.render.plan",
    "stats": "leafwise.render.stats",
    "ties": "leafwise.render.ties",
    "tree": "leafwise.render.tree",
}


def text_of(result: Shown, *, terminal: Terminal | None = None, **options: Any) -> str:
    """The result as text, plain unless a terminal is given."""
    module, terminal = _module_of(result), terminal or Terminal()
    if hasattr(module, "to_text"):
        return str(module.to_text(result, terminal, **options))
    return text(module.lower(result, **options), terminal)


def for_stdout(result: Shown, **options: Any) -> str:
    """The result as `print` shows it: in color and fitted to the width if standard output is a terminal."""
    return text_of(result, terminal=Terminal.of(sys.stdout), **options)


def html_of(result: Shown) -> str:
    """The result as HTML, for a notebook."""
    module = _module_of(result)
    if hasattr(module, "to_html"):
        return str(module.to_html(result))
    from leafwise.render.html import html

    return html(module.lower(result))


def json_of(result: Shown) -> dict[str, Any]:
    """The result as plain data."""
    data: dict[str, Any] = _module_of(result).to_json(result)
    return data


def png_of(result: Shown) -> bytes:
    """The result as a PNG."""
    return bytes(_module_of(result).to_png(result))


def _module_of(result: Shown) -> ModuleType:
    return import_module(RESULTS[result.result_kind])
