"""A result in; text, JSON, HTML or a picture out.

The module of a result has `lower(result, **options)`, which gives a `Doc`, and `to_json(result)`, which gives plain
data. Where the lines of a `Doc` are not what is to be shown, it has `to_text(result, terminal, **options)`,
`to_html(result)` or `to_png(result)`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from leafwise.core.outline import Shown
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

__all__ = ["RESULTS", "for_stdout", "html_of", "json_of", "png_of", "text_of"]

# Kind of result (`class Stats(Shown, kind="stats")`) → the module that draws it, imported when one is drawn.
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
    """The picture as text, plain unless a terminal is given."""
    module, terminal = _module_of(result), terminal or Terminal()
    if hasattr(module, "to_text"):
        return str(module.to_text(result, terminal, **options))
    return text(module.lower(result, **options), terminal)


def for_stdout(result: Shown, **options: Any) -> str:
    """The picture as `print` shows it: colored and fitted where standard output is a terminal."""
    return text_of(result, terminal=Terminal.of(sys.stdout), **options)


def html_of(result: Shown) -> str:
    """The picture for a notebook."""
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
