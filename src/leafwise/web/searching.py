"""The query language of the search field: words and globs that paths must match, and filters such as `role:norm.*`."""

import re
from collections.abc import Callable
from typing import Any

from leafwise.core.path import escape
from leafwise.core.query import where
from leafwise.core.tree import Tree
from leafwise.errors import QueryError
from leafwise.web.lines import VALUE, TreeLines

_YES_OR_NO = {"yes": True, "true": True, "no": False, "false": False}
# Filter → whether it takes yes or no, a number, or text; and an example.
_FILTERS = {
    "role": (str, "norm.*"), "owner": (str, "Linear"), "kind": (str, "buffer"), "section": (str, "optimizer"),
    "dtype": (str, "bfloat16"), "device": (str, "cpu"), "trainable": (bool, "no"), "persistent": (bool, "no"),
    "tied": (bool, "yes"), "ndim": (int, "2"),
}  # fmt: skip
_FILTER = re.compile(r"([a-z_]+):(\S*)")
_QUERY_CHARACTERS = 1_000  # characters


def _selected(t: Tree, query: str) -> tuple[Tree, list[str], dict[str, Any]]:
    """The leaves that match a query, and its words and filters."""
    if len(query) > _QUERY_CHARACTERS:
        raise QueryError(f"the query has {len(query):,} characters; at most {_QUERY_CHARACTERS:,} are allowed")
    words, filters = parsed(query)
    selection: Tree = t.select(where(**filters)) if filters else t
    return selection.find(*words) if words else selection, words, filters


def why_nothing(t: Tree, query: str) -> str | None:
    """Why a query matches nothing, if that is surprising: files that other tools wrote name no layers."""
    asks_for_layers = parsed(query)[1].keys() & {"role", "owner"}
    if not asks_for_layers or any(role is not None for role, _ in t.columns.row_roles(t.rows)):
        return None
    return "nothing here says which layers the leaves belong to, so that they have no roles and owners"


def path_test(t: Tree, query: str) -> Callable[[str], bool]:
    """A test of paths: leaves of this tree must match the query, and other paths must contain all its words."""
    if not query:
        return lambda path: True
    selection, words, filters = _selected(t, query)
    matches, leaves = (set(map(escape, t.columns.row_texts(tree.rows))) for tree in (selection, t))

    def test(path: str) -> bool:
        path = escape(path)
        return path in matches or (
            path not in leaves
            and not filters
            and all(word in (path.lower() if word == word.lower() else path) for word in words)
        )

    return test


def matching_lines(lines: TreeLines, query: str) -> set[int]:
    """The lines that match a query: all names of leaves that match, and plain values whose path contains all words."""
    selection, words, filters = _selected(lines.tree, query)
    by_row = lines.lines_of_rows
    matches = {by_row[row] for row in selection.rows if row in by_row}
    if words and not filters:
        matches |= _values(lines, words)
    return matches


def parsed(query: str) -> tuple[list[str], dict[str, Any]]:
    """The words and the filters of a query.

    >>> parsed("q_proj dtype:bfloat16 tied:yes")
    (['q_proj'], {'dtype': 'bfloat16', 'tied': True})
    """
    words: list[str] = []
    filters: dict[str, Any] = {}
    for part in query.split():
        match = _FILTER.fullmatch(part)
        if match is None:
            words.append(part)
            continue
        name, text = match.groups()
        if name not in _FILTERS:
            raise QueryError(f"{name}: is not a filter; there are {', '.join(f'{known}:' for known in _FILTERS)}")
        filters[name] = _value(name, text)
    return words, filters


def _value(name: str, text: str) -> Any:
    kind, example = _FILTERS[name]
    if not text:
        raise QueryError(f"{name}: needs a value, such as {name}:{example}")
    if kind is bool:
        if text not in _YES_OR_NO:
            raise QueryError(f"{name}: takes yes or no, not {text!r}")
        return _YES_OR_NO[text]
    if kind is int:
        if not text.isdecimal() or len(text) > 3:
            raise QueryError(f"{name}: takes a number, not {text!r}")
        return int(text)
    return None if name == "role" and text == "none" else text


def _values(lines: TreeLines, words: list[str]) -> set[int]:
    """Plain values have no facts that a query could ask for, only a path."""
    lower = [word.lower() for word in words]
    return {
        line
        for line, kind in enumerate(lines.kinds)
        if kind == VALUE and all(word in lines.path(line).lower() for word in lower)
    }
