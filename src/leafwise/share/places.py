"""The rows, nodes and places that paths and queries refer to."""

from collections.abc import Sequence
from typing import Any

from leafwise.core.capabilities.tying import Keep, Place, TiedPlaces, Tying
from leafwise.core.columns import Columns
from leafwise.core.glob import Glob
from leafwise.core.home import Home, offer
from leafwise.core.path import Path, quote
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.errors import PathError, TieError


def place_of(columns: Columns, row: int) -> Place:
    """The owner, name and path of a row, as `Tying` expects them."""
    return Place(columns.node_objects[columns.row_nodes[row]], columns.row_names[row], columns.row_text(row))


def home_of(columns: Columns, row: int) -> Home:
    """The home of a row's owner, which can replace the array there."""
    return columns.home(columns.node_objects[columns.row_nodes[row]])


def rows_by_home(columns: Columns, rows: Sequence[int]) -> dict[Home, list[int]]:
    """The rows by the home of their owners, which may differ from the home of their arrays."""
    owners = [columns.node_objects[columns.row_nodes[row]] for row in rows]
    return {home: [rows[position] for position in positions] for home, positions in columns.by_home(owners).items()}


def query_text(where: Any) -> str:
    """A path or a query, as messages quote it."""
    return f'"{where}"' if isinstance(where, str | Path) else repr(where)


def rows_matching(tree: Tree, where: Any) -> list[int]:
    """The rows that match a path, a glob or any other query."""
    return Query.of(where).names(tree.columns, tree.root, tree.rows)


def nodes_matching(tree: Tree, where: Any) -> list[int]:
    """The nodes that match a path or a glob."""
    if isinstance(where, Path):
        where = ".".join(map(quote, where.names))
    return Glob(where).nodes(tree.columns, tree.root) if isinstance(where, str) and where else []


def nothing_matches(tree: Tree, where: Any) -> PathError:
    """The error for a path or a query that matches no leaf of this tree."""
    if isinstance(where, str | Path) and not any(sign in str(where) for sign in "*?{"):
        try:
            match = tree[where]
        except PathError as error:
            return error
        if isinstance(match, Tree):
            return PathError(f'"{where}" is a node, not a leaf; write "{where}.**" for the leaves below it')
    return PathError(f"no leaf matches {where!r}")


def tied_places(columns: Columns, rows: Sequence[int]) -> TiedPlaces:
    """The tie of these rows; the first is the source."""
    places: list[Place] = []
    ops = []
    names = []
    numbers: dict[tuple[int, str], int] = {}
    for row in rows:
        place = place_of(columns, row)
        number = numbers.setdefault((id(place.owner), place.name), len(places))
        if number == len(places):
            places.append(place)
            ops.append(columns.row_op(row))
        names.append(number)
    below: dict[int, list[tuple[int, str]]] = {}
    for number, row in enumerate(rows):
        for node in _upwards(columns, columns.row_nodes[row]):
            below.setdefault(node, []).append((number, _key(columns, node, row)))
    above = [(columns.node_objects[node], tuple(keys)) for node, keys in below.items() if len(keys) > 1]
    return TiedPlaces(tuple(places), tuple(ops), tuple(names), tuple(above))


def _upwards(columns: Columns, node: int) -> list[int]:
    """A node and all nodes above it."""
    nodes = []
    while node >= 0:
        nodes.append(node)
        node = columns.node_parents[node]
    return nodes


def _key(columns: Columns, above: int, row: int) -> str:
    """The path of a row from a node above it."""
    names = [columns.row_names[row]]
    node = columns.row_nodes[row]
    while node != above:
        names.append(columns.node_names[node])
        node = columns.node_parents[node]
    return ".".join(reversed(names))


def names_outside(columns: Columns, row: int) -> list[str]:
    """The names outside the tree that a row is kept tied to."""
    tying = offer(home_of(columns, row), Tying)
    if tying is None:
        return []
    known = [place_of(columns, leaf_row) for leaf_row in columns.rows_of(columns.ties.get(row, row))]
    return tying.tied_elsewhere(place_of(columns, row), known)


def keep_leaf_ties(tree: Tree, leaves: Sequence[int], keep: Keep | None = None) -> None:
    """Lets the homes of the owners keep the ties of these leaves from now on."""
    columns = tree.columns
    for home, home_leaves in rows_by_home(columns, leaves).items():
        ties = [tied_places(columns, columns.rows_of(leaf)) for leaf in home_leaves]
        home.capability(Tying, "keep ties").keep_ties(columns.node_objects[0], columns.node_objects, ties, keep)


def check_keep(keep: Any) -> None:
    """Raises if `keep=` is not one of the known values."""
    if keep not in (None, "source", "target", "mean"):
        raise TieError(f'keep= must be "source", "target" or "mean", not {keep!r}')
