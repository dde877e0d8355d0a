"""A result in; text, JSON, HTML or a picture out."""

import sys
from typing import TYPE_CHECKING, Any

from leafwise.render.outline import tree_doc
from leafwise.render.plain import tree_json
from leafwise.render.sharing import ties_doc, ties_json
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

if TYPE_CHECKING:
    from leafwise.checkpoint.plans import Plan
    from leafwise.core.tree import Tree
    from leafwise.iterate.grouping import Groups
    from leafwise.share.find import Ties

__all__ = [
    "groups_for_stdout",
    "groups_html",
    "groups_json",
    "groups_text",
    "plan_for_stdout",
    "plan_html",
    "plan_json",
    "plan_text",
    "ties_doc",
    "ties_for_stdout",
    "ties_html",
    "ties_json",
    "ties_text",
    "tree_doc",
    "tree_for_stdout",
    "tree_html",
    "tree_json",
    "tree_text",
]


def tree_text(tree: "Tree", *, depth: int | None = None, full: bool = False, terminal: Any = None) -> str:
    """The picture as text, plain unless a terminal is given."""
    return text(tree_doc(tree, depth=depth, full=full), terminal or Terminal())


def tree_for_stdout(tree: "Tree") -> str:
    """The picture as `print` shows it: coloured and fitted where standard output is a terminal."""
    return tree_text(tree, terminal=Terminal.of(sys.stdout))


def tree_html(tree: "Tree") -> str:
    """The picture for a notebook: everything is there, deeper levels closed."""
    from leafwise.render.html import html

    return html(tree_doc(tree, max_lines=2_000))


def ties_text(ties: "Ties", *, terminal: Any = None) -> str:
    """The table as text, plain unless a terminal is given."""
    return text(ties_doc(ties), terminal or Terminal())


def ties_for_stdout(ties: "Ties") -> str:
    """The table as `print` shows it."""
    return ties_text(ties, terminal=Terminal.of(sys.stdout))


def ties_html(ties: "Ties") -> str:
    """The table for a notebook."""
    from leafwise.render.html import html

    return html(ties_doc(ties))


def plan_text(plan: "Plan", *, full: bool = False, terminal: Any = None) -> str:
    """The table as text, plain unless a terminal is given."""
    from leafwise.render.planning import plan_doc

    return text(plan_doc(plan, full=full), terminal or Terminal())


def plan_for_stdout(plan: "Plan") -> str:
    """The table as `print` shows it."""
    return plan_text(plan, terminal=Terminal.of(sys.stdout))


def plan_json(plan: "Plan") -> dict[str, Any]:
    """The plan as plain data."""
    from leafwise.render import planning

    return planning.plan_json(plan)


def plan_html(plan: "Plan") -> str:
    """The table for a notebook."""
    from leafwise.render.html import html
    from leafwise.render.planning import plan_doc

    return html(plan_doc(plan))


def groups_text(groups: "Groups", *, terminal: Any = None) -> str:
    """The account as text, plain unless a terminal is given."""
    from leafwise.render.grouping import groups_doc

    return text(groups_doc(groups), terminal or Terminal())


def groups_for_stdout(groups: "Groups") -> str:
    """The account as `print` shows it."""
    return groups_text(groups, terminal=Terminal.of(sys.stdout))


def groups_json(groups: "Groups") -> dict[str, Any]:
    """The account as plain data."""
    from leafwise.render import grouping

    return grouping.groups_json(groups)


def groups_html(groups: "Groups") -> str:
    """The account for a notebook."""
    from leafwise.render.grouping import groups_doc
    from leafwise.render.html import html

    return html(groups_doc(groups))
