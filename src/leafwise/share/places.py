"""From paths and queries to the places that they mean."""

from collections.abc import Iterable
from typing import Any

from leafwise.core.capabilities.tying import Place, TiedPlaces, Tying
from leafwise.core.columns import Columns
from leafwise.core.glob import Glob
from leafwise.core.home import Home
from leafwise.core.path import Path, quote
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.errors import PathError, TieError


def place(columns: Columns, row: int) -> Place:
    return Place(columns.node_objects[columns.row_nodes[row]], columns.row_names[row], columns.row_text(row))


def home_of(columns: Columns, row: int) -> Home:
    """The home that can change what stands at a row: that of its owner."""
    return columns.home(columns.node_objects[columns.row_nodes[row]])


def rows_matching(tree: Tree, where: Any) -> list[int]:
    """The names that a path, a glob or any other query means."""
    return Query.of(where).names(tree.columns, tree.root, tree.rows)


def nodes_matching(tree: Tree, where: Any) -> list[int]:
    """The nodes that a path or a glob means."""
    if isinstance(where, Path):
        where = ".".join(map(quote, where.names))
    return Glob(where).nodes(tree.columns, tree.root) if isinstance(where, str) and where else []


def nothing_matches(tree: Tree, where: Any) -> PathError:
    """The error for a path or a query that means nothing here."""
    if isinstance(where, str | Path) and not any(sign in str(where) for sign in "*?{"):
        try:
            found = tree[where]
        except PathError as error:
            return error
        if isinstance(found, Tree):
            return PathError(f'"{where}" is a node; "{where}.**" means the leaves below it')
    return PathError(f"no leaf matches {where!r}")


def group_of(columns: Columns, rows: Iterable[int]) -> TiedPlaces:
    """The tie of these rows, the first of them the source."""
    rows = list(rows)
    places: list[Place] = []
    ops = []
    names = []
    numbers: dict[tuple[int, str], int] = {}
    for row in rows:
        here = place(columns, row)
        number = numbers.setdefault((id(here.owner), here.name), len(places))
        if number == len(places):
            places.append(here)
            ops.append(columns.row_op(row))
        names.append(number)
    below: dict[int, list[tuple[int, str]]] = {}
    for number, row in enumerate(rows):
        for node in _upwards(columns, columns.row_nodes[row]):
            below.setdefault(node, []).append((number, _key(columns, node, row)))
    above = [(columns.node_objects[node], tuple(keys)) for node, keys in below.items() if len(keys) > 1]
    return TiedPlaces(tuple(places), tuple(ops), tuple(names), tuple(above))


def _upwards(columns: Columns, node: int) -> list[int]:
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = columns.node_parents[node]
    return nodes


def _key(columns: Columns, above: int, row: int) -> str:
    names = [columns.row_names[row]]
    node = columns.row_nodes[row]
    while node != above:
        names.append(columns.node_names[node])
        node = columns.node_parents[node]
    return ".".join(reversed(names))


def guard(tree: Tree, leaves: Iterable[int], keep: Any = None) -> None:
    """Has the ties of these leaves kept by their home."""
    columns = tree.columns
    groups: dict[Home, list[TiedPlaces]] = {}
    for leaf in leaves:
        groups.setdefault(home_of(columns, leaf), []).append(group_of(columns, columns.rows_of(leaf)))
    for home, its in groups.items():
        home.capability(Tying, "keep ties").keep_ties(columns.node_objects[0], columns.node_objects, its, keep)


def check_keep(keep: Any) -> None:
    if keep not in (None, "source", "target", "mean"):
        raise TieError(f'keep= takes "source", "target" or "mean", not {keep!r}')
