"""Finding leaves by words, and what to suggest if a query matches nothing."""

from itertools import islice
from typing import TYPE_CHECKING, Any

from leafwise.core.glob import Glob, has_wildcards
from leafwise.core.leaf import Leaf
from leafwise.core.parts import node_numbers, nodes_at, rows_below
from leafwise.core.path import Path, listed, quote, spelled
from leafwise.core.query import Query, where
from leafwise.errors import PathError, QueryError

if TYPE_CHECKING:
    from leafwise.core.tree import Tree

_EXAMPLES = 3  # paths in a message


def words_query(tree: "Tree", words: tuple[Any, ...]) -> Query:
    """The query for leaves that match every word. A word is a glob if it has wildcards or braces, a path if there is a
    leaf or a node at that path, and otherwise a part of a path."""
    if not words or not all(isinstance(word, str) and word for word in words):
        raise QueryError(f"cannot find {words!r}; give one or more parts of a path, such as 'q_proj'")
    query: Query | None = None
    for word in words:
        by_word = Query.of(word) if _is_query(tree, word) else where(contains=word)
        query = by_word if query is None else query & by_word
    assert query is not None
    return query


def _is_query(tree: "Tree", word: str) -> bool:
    if _is_glob(word):
        return True
    try:
        there = tree[word]
    except (PathError, QueryError):
        return False
    return isinstance(there, Leaf) or (hasattr(there, "columns") and len(there) > 0)


def no_match(tree: "Tree", query: Any) -> str:
    """Why a query matches no leaf of a tree, and what to write instead."""
    if isinstance(query, str | Path) and not _is_glob(str(query)):
        try:
            there = tree[query]
        except PathError as error:
            reason = str(error.args[0])
            return reason if "did you mean" in reason else reason + suggestion(tree, query)
        kind = "a node without leaves" if hasattr(there, "columns") else "a plain value, not a leaf"
        return f'"{query}" is {kind}' if not isinstance(there, Leaf) else f'no leaf matches "{query}" in this part'
    part = f" in {tree.path}; paths are relative to it" if tree.root else ""
    return f"no leaf matches {query!r}{part}{suggestion(tree, query)}"


def suggestion(tree: "Tree", query: Any) -> str:
    """What to write instead of a query that matches no leaf, as the end of a message; empty if nothing is similar."""
    if not isinstance(query, str | Path):
        return ""
    text = str(query)
    if _is_glob(text):
        only_nodes = text.endswith(".*") and any(
            rows_below(tree, node) for node in Glob(text).nodes(tree.columns, tree.root)
        )
        return f'; it matches only nodes: write "{text}*" for the leaves below them' if only_nodes else ""
    deep = f"**.{text}"
    if len(matches := tree.select(deep)):
        return f"; did you mean {spelled(deep)}, which matches {_count(matches)}?"
    if len(matches := tree.select(where(contains=text))):
        paths = listed([str(path) for path, _ in matches.items()], _EXAMPLES)
        return f"; find({spelled(text)}) finds {_count(matches)}: {paths}"
    return nearest(tree, text)


def nearest(tree: "Tree", word: str) -> str:
    """Names in the tree that resemble a word, as the end of a message; empty if there are none."""
    from difflib import get_close_matches

    columns = tree.columns
    names = {columns.row_names[row] for row in tree.rows}
    names |= {columns.node_names[node] for node in node_numbers(tree) if node != tree.root}
    close = get_close_matches(word.rpartition(".")[2], sorted(names), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(map(quote, close))}?" if close else ""


def _is_glob(text: str) -> bool:
    return "{" in text or has_wildcards(text)


def _count(tree: "Tree") -> str:
    return f"{len(tree):,} {'leaf' if len(tree) == 1 else 'leaves'}"


def nothing_at(tree: "Tree", names: tuple[str, ...]) -> str:
    """The message for a path at which there is nothing, with similar paths."""
    columns = tree.columns
    depth = next(d for d in range(len(names) - 1, -1, -1) if nodes_at(tree, names[:d]))
    siblings: list[str] = []
    for node in nodes_at(tree, names[:depth]):
        siblings += [columns.node_names[child] for child in columns.children(node) if not columns.hidden(child)]
        siblings += [columns.row_names[row] for row in columns.own_rows(node)]
        siblings += [name for name, _ in columns.own_scalars.get(node, ())]
    prefix = ".".join(map(quote, names[:depth]))
    from difflib import get_close_matches

    close = set(get_close_matches(names[depth], siblings, n=3, cutoff=0.6))
    suggestions = [name for name in dict.fromkeys(siblings) if name in close]
    near = [f"{prefix}.{quote(name)}" if prefix else quote(name) for name in suggestions]
    near += _paths_ending(tree, names)
    path = ".".join(map(quote, names))
    text = f'nothing at "{path}"'
    if path in near:  # in the whole tree, but not in this part
        return f"{text} in this part of the tree"
    if near:
        quoted = " or ".join(f'"{suggestion}"' for suggestion in dict.fromkeys(near))
        return f"{text}; did you mean {quoted}?"
    root = f"{tree.path}, to which paths are relative," if tree.root else "the root"
    if not siblings:
        return f"{text}; there is nothing below {prefix or root}"
    listed = ", ".join(map(quote, dict.fromkeys(siblings[:8]))) + (", …" if len(siblings) > 8 else "")
    return f"{text}; below {prefix or root} there are: {listed}"


def _paths_ending(tree: "Tree", names: tuple[str, ...]) -> list[str]:
    """Paths of leaves with the same ending, in case the prefix was forgotten."""
    columns = tree.columns
    rows = (row for row in tree.rows if columns.row_names[row] == names[-1])
    texts = (columns.row_text(row) for row in rows)
    end = "." + ".".join(map(quote, names[-2:]))
    return list(islice((text for text in texts if f".{text}".endswith(end)), 3)) if len(names) > 1 else []
