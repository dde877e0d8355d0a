"""`lw.untie`: gives tied names memory of their own."""

from typing import Any, TypeVar, overload

from leafwise.core.capabilities.tying import Place, Tying
from leafwise.core.columns import Columns
from leafwise.core.parts import check_not_gathered, rows_below
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import PathError, TieError
from leafwise.share.places import (
    check_not_sharded,
    names_outside,
    nodes_matching,
    nothing_matches,
    part_of,
    place_of,
    query_text,
    rows_by_home,
    rows_matching,
)

M = TypeVar("M")
_Slot = tuple[int, str]  # the id of a row's owner, and the name of the row in it


@overload
def untie(model: Tree, where: Any) -> Any: ...
@overload
def untie(model: M, where: Any) -> M: ...
def untie(model: Any, where: Any) -> Any:
    """Unties a name: gives it its own memory, with equal values. Returns the model.

    `where` is the path of a leaf, a glob, or the path of a module. For a module, every leaf below it that is tied to a
    leaf outside becomes independent, and a module that is used in several places is copied for this place.

    >>> import torch, leafwise as lw
    >>> shared = torch.nn.Linear(4, 4)
    >>> model = lw.untie(torch.nn.Sequential(shared, shared), "1")
    >>> model[1].weight is model[0].weight, torch.equal(model[1].weight, model[0].weight)
    (False, True)
    """
    with opened(model, "untie", live=True) as t:
        check_not_gathered(t, "untie")
        return _untied(t, where)


def _untied(t: Tree, where: Any) -> Any:
    columns = t.columns
    rows = rows_matching(t, where)
    nodes = [] if rows else nodes_matching(t, where)
    if not rows and not nodes:
        raise PathError(f"cannot untie {query_text(where)}: {nothing_matches(t, where)}")
    repeated = [node for node in nodes if _is_used_elsewhere(columns, node)]
    for node in repeated:
        outer = columns.node_text(_outermost_shared(columns, node))
        if outer != columns.node_text(node):
            raise TieError(
                f"cannot untie {columns.node_text(node)}: it is in {outer}, which is used in several places itself; "
                f'lw.untie(model, "{outer}") gives that place a module of its own'
            )
        if len(rows_below(t, node)) < len(range(*columns.row_ranges[node])):
            raise TieError(
                f"cannot untie {columns.node_text(node)}: it is a module that is used in several places, and only some "
                f'of its leaves are selected; lw.untie(model, "{columns.node_text(node)}") copies the whole module'
            )
    chosen = set(t.rows)
    inside = [row for node in nodes if node not in repeated for row in _tied_outside(columns, node) if row in chosen]
    rows = _rows_to_untie(columns, [row for row in rows if _is_tied(columns, row)] + inside)
    if not rows and not repeated:
        raise TieError(f"cannot untie {query_text(where)}: it is not tied to anything{_never_tied(t, where)}")
    check_not_sharded(t, rows + [row for node in repeated for row in rows_below(t, node)], "untie")
    root, objects = columns.node_objects[0], columns.node_objects
    for node in repeated:
        parent = objects[columns.node_parents[node]]
        place = Place(parent, columns.node_names[node], columns.node_text(node))
        root = columns.home(parent).capability(Tying, "untie").separate(root, objects, [place])
    for home, home_rows in rows_by_home(columns, rows).items():
        places = [place_of(columns, row) for row in home_rows]
        root = home.capability(Tying, "untie").untie(root, objects, places)
    return part_of(t, root)


def _never_tied(t: Tree, where: Any) -> str:
    """Why leaves cannot be tied at all, for a message; empty if they can."""
    rows = rows_matching(t, where) or [row for node in nodes_matching(t, where) for row in rows_below(t, node)]
    if not rows or any(t.columns.home(t.columns.current(row)).ties_by_identity for row in rows):
        return ""
    return "; the same array at two places of a pytree is two leaves already"


def _is_tied(columns: Columns, row: int) -> bool:
    """Whether a row is one of several names of a leaf, or was declared to be."""
    if row in columns.ties or row in columns.further_rows or any(row in rows for rows in columns.undone.values()):
        return True
    return bool(names_outside(columns, row))


def _is_used_elsewhere(columns: Columns, node: int) -> bool:
    return node > 0 and (node in columns.repeats or node in columns.repeats.values())


def _outermost_shared(columns: Columns, node: int) -> int:
    """The outermost node that is used in several places, among a node and its ancestors. Separating an inner one would
    change all of these places."""
    outermost = node
    while node > 0:
        if _is_used_elsewhere(columns, node):
            outermost = node
        node = columns.node_parents[node]
    return outermost


def _tied_outside(columns: Columns, node: int) -> list[int]:
    """The rows below a node whose leaf also has a name outside it."""
    inside = range(*columns.row_ranges[node])
    tied = [row for row in inside if _is_tied(columns, row)]
    return [row for row in tied if any(name not in inside for name in columns.rows_of(columns.ties.get(row, row)))]


def _rows_to_untie(columns: Columns, rows: list[int]) -> list[int]:
    """The rows to untie, one for each slot. If every name of a leaf is to be untied, the first keeps the memory."""
    all_slots = {_slot(columns, row) for row in rows}
    chosen: dict[_Slot, int] = {}
    for row in rows:
        leaf = columns.ties.get(row, row)
        slot = _slot(columns, row)
        leaf_rows = columns.rows_of(leaf)
        leaf_slots = {_slot(columns, leaf_row) for leaf_row in leaf_rows}
        if len(leaf_slots) == 1 and len(leaf_rows) > 1:
            module = columns.node_text(_outermost_shared(columns, columns.row_nodes[row]))
            names = [columns.row_text(leaf_row) for leaf_row in leaf_rows if leaf_row != row]
            raise TieError(
                f"cannot untie {columns.row_text(row)} from {', '.join(names[:4])}: they are one parameter of one "
                f'module, used in several places; lw.untie(model, "{module}") gives that place a module of its own'
            )
        stays = leaf_slots <= all_slots and len(leaf_slots) > 1 and slot == _slot(columns, leaf)
        if not stays:
            chosen.setdefault(slot, row)
    return list(chosen.values())


def _slot(columns: Columns, row: int) -> _Slot:
    """The slot of a row. A module that is used in several places has several rows with one slot."""
    return id(columns.node_objects[columns.row_nodes[row]]), columns.row_names[row]
