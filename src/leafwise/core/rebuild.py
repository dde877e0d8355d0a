"""Replacing leaves: in place if the node can change, otherwise in a new node."""

from collections.abc import Iterable
from typing import Any

from leafwise.core import registry as homes
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.dotted import VirtualNode
from leafwise.core.tree import Tree
from leafwise.errors import Unsupported, WriteError


def rebuilt(columns: Columns, below: int, changes: dict[int, dict[str, Any]], copied: bool = False) -> Any:
    """The object of the node `below` with some leaves, children and plain values replaced, given by node and name.

    Works from the leaves up: a node that cannot change is replaced by a new one, and so are its parents. A container
    of arrays that cannot change, such as a dict of JAX arrays, is replaced by a new one, too, and stays as it was.
    With `copied`, so is every other container. Nodes outside of `below`, where a changed leaf has another name, must be
    able to change in place.
    """
    check_part(columns, below)
    root = columns.node_objects[below]
    changes = {node: dict(names) for node, names in changes.items()}
    for node in [node for node in changes if not below <= node < columns.node_ends[below]]:
        owner = columns.node_objects[node]
        columns.home(owner).capability(Rebuilding).replace(owner, changes.pop(node))
    done: dict[int, Any] = {}  # by the first node of the same object
    are_new: set[int] = set()  # nodes with a new array, or a new node, because arrays cannot change
    for node in range(columns.node_ends[below] - 1, below - 1, -1) if changes else ():
        if node not in changes:
            continue
        obj, parent = columns.node_objects[node], columns.node_parents[node]
        if copied or node in are_new or any(_is_value(value) for value in changes[node].values()):
            are_new.add(node)
        if type(obj) is VirtualNode:  # it represents keys of the mapping above it
            while type(columns.node_objects[parent]) is VirtualNode:
                parent = columns.node_parents[parent]
            whole_keys = {obj.prefix + name: value for name, value in changes[node].items()}
            changes.setdefault(parent, {}).update(whole_keys)
            if node in are_new:
                are_new.add(parent)
            continue
        first = columns.repeats.get(node, node)
        if first not in done:
            rebuilding = columns.home(obj).capability(Rebuilding)
            replace = rebuilding.replaced_copy if node in are_new else rebuilding.replace
            done[first] = replace(obj, changes[node])
        if node > below:
            changes.setdefault(parent, {})[columns.node_names[node]] = done[first]
            if node in are_new and done[first] is not obj:
                are_new.add(parent)
        else:
            root = done[first]
    return root


def check_part(columns: Columns, node: int) -> None:
    """Raises if a part of a tree cannot be changed or returned without the node that contains it."""
    part = node
    while node > 0:
        node = columns.node_parents[node]
        obj = columns.node_objects[node]
        home = columns.home(obj)
        if why := home.capability(Rebuilding).why_only_whole(obj):
            whole = columns.node_text(node) or "the whole model"
            raise Unsupported(home.name, f"change {columns.node_text(part)} by itself", f"{why}; pass {whole}")


def _is_value(value: Any) -> bool:
    """Whether a new leaf is an array that cannot change."""
    handled = homes.find(type(value))
    return handled is not None and handled[1] == "leaf" and not handled[0].in_place


def with_leaves(tree: Tree, new: dict[int, Any], copied: bool = False) -> Any:
    """The object of a tree with some of its leaves replaced, under all their names; `new` are the arrays by leaf. With
    `copied`, containers stay as they are, and the result has new ones."""
    columns = tree.columns
    changes: dict[int, dict[str, Any]] = {}
    inside = range(tree.root, columns.node_ends[tree.root])
    for row in [row for leaf in new for row in columns.rows_of(leaf)]:
        array = new[columns.ties.get(row, row)]
        op, home, node = columns.row_op(row), columns.home(array), columns.row_nodes[row]
        if op != "same" and home.in_place:
            continue  # a view of a replaced leaf follows it automatically
        value = array if op == "same" else home.capability(Viewing).seen_through(array, op)
        if node in inside or home.in_place:
            changes.setdefault(node, {})[columns.row_names[row]] = value
    return rebuilt(columns, tree.root, changes, copied)


def replaced_leaves(tree: Tree, leaves: list[int]) -> set[int]:
    """Those of the leaves that get new arrays when all of them get new values. These are the arrays that cannot change;
    if there are any, the result is a new tree, and NumPy arrays get new ones there, too, so that the caller's tree is
    not half old and half new."""
    columns = tree.columns
    by_home = columns.by_home(columns.current_arrays(leaves))
    if all(home.in_place for home in by_home):
        return set()
    replaced: set[int] = set()
    for home, numbers in by_home.items():
        if not home.in_place:
            replaced.update(leaves[number] for number in numbers)
        elif home.capability(Rebuilding).renews_beside_values:
            of_home = [leaves[number] for number in numbers]
            for row in [row for leaf in of_home for row in columns.rows_of(leaf) if columns.row_op(row) != "same"]:
                raise WriteError(
                    f"{columns.row_text(row)} is a view of {columns.row_text(columns.ties[row])}, in a tree with "
                    "arrays that cannot change, so that a new tree would not have the view; nothing was changed; give "
                    "it memory of its own (.copy())"
                )
            replaced.update(of_home)
    return replaced


def recomputed(columns: Columns, rows: Iterable[int]) -> tuple[dict[int, Any], list[int]]:
    """For rows on meta: the values that homes can compute, by row, and the rows that they cannot compute."""
    by_node: dict[int, list[int]] = {}
    for row in rows:
        value = columns.current(row)
        if columns.home(value).spec(value).device == "meta":
            by_node.setdefault(columns.row_nodes[row], []).append(row)
    changed = list(by_node)
    values = {}
    for home, numbers in columns.by_home([columns.node_objects[node] for node in changed]).items():
        nodes = [changed[number] for number in numbers]
        places = [(columns.lineage(node), [columns.row_names[row] for row in by_node[node]]) for node in nodes]
        for node, made in zip(nodes, home.capability(Rebuilding).recompute(places), strict=True):
            values.update({row: made[name] for row in by_node[node] if (name := columns.row_names[row]) in made})
    return values, [row for node_rows in by_node.values() for row in node_rows if row not in values]
