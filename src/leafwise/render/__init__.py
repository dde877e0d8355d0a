"""A result in; text, JSON, HTML or a picture out."""

import sys
from typing import TYPE_CHECKING, Any

from leafwise.render.html import html
from leafwise.render.outline import tree_doc
from leafwise.render.plain import tree_json
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

if TYPE_CHECKING:
    from leafwise.core.tree import Tree

__all__ = ["tree_doc", "tree_for_stdout", "tree_html", "tree_json", "tree_text"]


def tree_text(tree: "Tree", *, depth: int | None = None, full: bool = False, terminal: Any = None) -> str:
    """The picture as text, plain unless a terminal is given."""
    return text(tree_doc(tree, depth=depth, full=full), terminal or Terminal())


def tree_for_stdout(tree: "Tree") -> str:
    """The picture as `print` shows it: coloured and fitted where standard output is a terminal."""
    return tree_text(tree, terminal=Terminal.of(sys.stdout))


def tree_html(tree: "Tree") -> str:
    """The picture for a notebook: everything is there, deeper levels closed."""
    return html(tree_doc(tree, max_lines=2_000))
