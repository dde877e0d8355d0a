"""The rows, nodes and places that paths and queries refer to."""

from collections.abc import Sequence
from typing import Any

from leafwise.core.capabilities.tying import Keep, Place, TiedPlaces, Tying
from leafwise.core.columns import Columns
from leafwise.core.find import no_match
from leafwise.core.glob import Glob
from leafwise.core.home import Home, capability_or_none
from leafwise.core.parts import node_numbers, rows_below
from leafwise.core.path import Path, quote
from leafwise.core.query import Query
from leafwise.core.rebuild import check_part
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
    """The rows that match a path, a glob or any other query. A path of a node matches no row: see `nodes_matching`."""
    return Query.of(where, nodes=False).names(tree.columns, tree.root, tree.rows)


def leaves_matching(tree: Tree, where: Any) -> set[int]:
    """The leaves that match a query; raises if there are none."""
    leaves = Query.of(where).leaves(tree.columns, tree.root, tree.rows)
    if not leaves:
        raise nothing_matches(tree, where)
    return leaves


def nodes_matching(tree: Tree, where: Any) -> list[int]:
    """The nodes that match a path or a glob."""
    if isinstance(where, Path):
        above = tree.path.names  # a Path that leads through the root of this tree is absolute
        names = where.names[len(above) :] if where.names[: len(above)] == above else where.names
        where = ".".join(map(quote, names))
    nodes = Glob(where).nodes(tree.columns, tree.root) if isinstance(where, str) and where else []
    return nodes if tree.is_whole else [node for node in nodes if rows_below(tree, node)]


def nothing_matches(tree: Tree, where: Any) -> PathError:
    """The error for a path or a query that matches no leaf of this tree."""
    return PathError(no_match(tree, where))


def tied_places(columns: Columns, rows: Sequence[int], top: int = 0) -> TiedPlaces:
    """The tie of these rows; the first is the source. It is declared at nodes from `top` downwards."""
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
    below: dict[int, list[tuple[int, str]]] = {}  # node → the number of each name below it, and its key from there
    for number, row in enumerate(rows):
        node, key = columns.row_nodes[row], columns.row_names[row]
        while node >= top:
            below.setdefault(node, []).append((number, key))
            node, key = columns.node_parents[node], f"{columns.node_names[node]}.{key}"
    above = [(columns.node_objects[node], tuple(keys)) for node, keys in below.items() if len(keys) > 1]
    return TiedPlaces(tuple(places), tuple(ops), tuple(names), tuple(above))


def names_outside(columns: Columns, row: int) -> list[str]:
    """The names outside the tree that a row is kept tied to."""
    tying = capability_or_none(home_of(columns, row), Tying)
    if tying is None:
        return []
    known = [place_of(columns, leaf_row) for leaf_row in columns.rows_of(columns.ties.get(row, row))]
    return tying.tied_elsewhere(place_of(columns, row), known)


def keep_leaf_ties(tree: Tree, leaves: Sequence[int], keep: Keep | None = None) -> Any:
    """Keeps the ties between the names of these leaves in this tree from now on. Returns the root of the walk."""
    columns = tree.columns
    root, objects = columns.node_objects[0], [columns.node_objects[node] for node in node_numbers(tree)]
    inside = set(tree.rows)
    groups = {rows[0]: rows for leaf in leaves if len(rows := rows_to_keep(columns, leaf, inside)) > 1}
    for home, firsts in rows_by_home(columns, list(groups)).items():
        ties = [tied_places(columns, groups[row], tree.root if inside.issuperset(groups[row]) else 0) for row in firsts]
        root = home.capability(Tying, "keep ties").keep_ties(root, objects, ties, keep)
    return root


def rows_to_keep(columns: Columns, leaf: int, inside: set[int]) -> list[int]:
    """The names under which the tie of a leaf is kept: those `inside` a tree, and those outside that are kept tied to
    them already. The first is the source of the others; empty where none of them can be."""
    rows = columns.rows_of(leaf)
    if not inside.issuperset(rows):
        places = [place_of(columns, row) for row in rows if row in inside]
        rows = [row for row in rows if row in inside or _is_kept_with(columns, row, places)]
    return rows if rows and columns.row_op(rows[0]) == "same" else []


def _is_kept_with(columns: Columns, row: int, places: list[Place]) -> bool:
    """Whether a row is kept tied to one of the places."""
    tying = capability_or_none(home_of(columns, row), Tying)
    if tying is None:
        return False
    place = place_of(columns, row)
    return len(tying.tied_elsewhere(place, places)) < len(tying.tied_elsewhere(place, []))


def check_not_sharded(tree: Tree, rows: Sequence[int], verb: str) -> None:
    """Raises if one of these rows is sharded over several processes: what shards it keeps its own record of which
    names are one parameter."""
    columns = tree.columns
    if not columns.may_be_sharded:
        return
    for row, facts in zip(rows, columns.facts(rows), strict=True):
        if facts.spec.sharding is not None:
            raise TieError(
                f"cannot {verb} {columns.row_text(row)}: it is sharded ({facts.spec.sharding}); {verb} it before the "
                "model is sharded, and then pass lw.shard_units(model, …) to fully_shard"
            )


def part_of(tree: Tree, root: Any) -> Any:
    """What a verb returns: the object that the tree begins at, of the root that the verb has changed or rebuilt."""
    check_part(tree.columns, tree.root)
    if root is tree.columns.node_objects[0]:
        return tree.columns.node_objects[tree.root]
    return tree.path.fetch(root)


def check_keep(keep: Any) -> None:
    """Raises if `keep=` is not one of the known values."""
    if keep not in (None, "source", "target", "mean"):
        raise TieError(f'keep= takes "source", "target" or "mean", not {keep!r}')
