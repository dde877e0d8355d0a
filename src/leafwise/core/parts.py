"""What verbs ask about a tree: its rows and nodes, and whether its values can be used."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.vetting import Vetting
from leafwise.core.hidden_arrays import hidden_arrays
from leafwise.core.memory.overlaps import bytes_shared
from leafwise.core.path import escape
from leafwise.errors import WalkError

if TYPE_CHECKING:
    from leafwise.core.tree import Tree


def first_rows(tree: "Tree") -> Sequence[int]:
    """One row of a tree for each leaf: a row that shows the whole leaf, or else the first."""
    return tree._first_rows


def leaves_of(tree: "Tree") -> set[int]:
    ties = tree.columns.ties
    return {ties.get(row, row) for row in first_rows(tree)}


def rows_below(tree: "Tree", node: int) -> list[int]:
    """The rows of a tree, which may be a selection, that are below a node."""
    first, last = tree.columns.row_ranges[node]
    return [row for row in tree.rows if first <= row < last]


def node_numbers(tree: "Tree") -> Sequence[int]:
    """The numbers of all nodes in a tree; for a selection, those that lead to its leaves."""
    columns = tree.columns
    if tree.is_whole:
        return range(tree.root, columns.node_ends[tree.root])
    numbers = {tree.root}
    for row in tree.rows:
        node = columns.row_nodes[row]
        while node not in numbers:
            numbers.add(node)
            node = columns.node_parents[node]
    return sorted(numbers)


def nodes_at(tree: "Tree", names: tuple[str, ...]) -> list[int]:
    """The nodes at the end of the names; several if a wrapper and what it wraps have the same path."""
    columns = tree.columns
    nodes = columns.nodes_at_path(tree.root)
    for name in names:
        nodes = [layer for child in columns.children_named(nodes, name) for layer in columns.nodes_at_path(child)]
    return nodes


def bytes_counted_twice(tree: "Tree") -> int:
    """How many bytes are counted more than once if the bytes of all leaves are added up."""
    return bytes_shared(tree.columns, leaves_of(tree)) if tree.columns.overlaps else 0


def sharded_rows(tree: "Tree") -> list[int]:
    """The first rows of leaves that are sharded over several processes."""
    columns = tree.columns
    if not columns.may_be_sharded:
        return []
    rows = first_rows(tree)
    return [row for row, facts in zip(rows, columns.facts(rows), strict=True) if facts.spec.sharding is not None]


def unlisted(tree: "Tree", saved: bool = False) -> dict[str, str]:
    """The paths of objects with values that the walk does not list, with the reason; with `saved`, also of nodes whose
    state dict differs from their values."""
    columns, numbers = tree.columns, node_numbers(tree)
    objects = columns.objects_of(numbers)
    reasons_by_node: dict[int, str] = {}
    for home in columns.homes_of(objects):
        vetting = home.capability(Vetting)
        reasons = vetting.unlisted(objects) | (vetting.saved_otherwise(objects) if saved else {})
        reasons_by_node |= {numbers[number]: reason for number, reason in reasons.items()}
    topmost = [node for node in reasons_by_node if columns.node_parents[node] not in reasons_by_node]
    return {columns.node_text(node): reasons_by_node[node] for node in topmost} | hidden(tree)


def hidden(tree: "Tree") -> dict[str, str]:
    """The paths of objects in memory that hold arrays without being nodes or leaves, with the reason."""
    return {} if tree.is_file or not tree.is_whole else hidden_arrays(tree.columns, tree.root)


def not_understood(tree: "Tree", sharded: bool = False) -> dict[int, str]:
    """The first rows of leaves whose bytes in this process are not their values, with the reason. With `sharded`, those
    that are sharded are left out, if their values are in their parts (`Distributing.parts`)."""
    columns, rows = tree.columns, first_rows(tree)
    values = columns.row_values if rows == range(len(columns.row_values)) else [columns.row_values[row] for row in rows]
    if not any(home.capability(Vetting).may_be_foreign(values) for home in columns.homes_of(values)):
        return {}
    reasons_by_row: dict[int, str] = {}
    for batch in columns.batches(rows):
        reasons = batch.home.capability(Vetting).not_understood(batch.values)
        distributing = batch.home.capability(Distributing)
        for number, reason in reasons.items():
            value = batch.values[number]
            if sharded and distributing.sharding(value) is not None:
                reason = distributing.cannot_use_parts(value)
            if reason:
                reasons_by_row[batch.rows[number]] = reason
    return reasons_by_row


# -- checks: `verb` is what the error says cannot be done ------------------------------------------------------


def check_listed(tree: "Tree", verb: str) -> None:
    """Raises if an object has values that the walk does not list, because `verb` would silently leave them out."""
    for path, reason in unlisted(tree, saved=verb == "save").items():
        raise _cannot(verb, path, reason)


def check_found(tree: "Tree", verb: str) -> None:
    """Raises if an object holds arrays that the walk does not find, because `verb` would silently leave them out."""
    for path, reason in hidden(tree).items():
        raise _cannot(verb, path, reason)


def check_not_gathered(tree: "Tree", verb: str) -> None:
    """Raises if the arrays of a node are copies that were gathered for a forward: `verb` would change the copies only,
    or use arrays that are about to be replaced."""
    columns, numbers = tree.columns, node_numbers(tree)
    objects = columns.objects_of(numbers)
    for home in columns.homes:
        for number, reason in home.capability(Distributing).gathered(objects).items():
            raise _cannot(verb, columns.node_text(numbers[number]), reason)


def check_whole(tree: "Tree", verb: str) -> None:
    """Raises if a leaf is sharded over several processes, because `verb` needs whole arrays."""
    if rows := sharded_rows(tree):
        reasons = not_understood(tree)
        row = next((row for row in rows if row in reasons), rows[0])
        raise _cannot(verb, tree.columns.row_text(row), reasons[row])


def check_whole_leaves(tree: "Tree", verb: str, in_order: bool = False) -> None:
    """Raises if a name in a part is a slice of a leaf outside it: the function `verb` would work on that whole leaf.
    With `in_order`, it also needs the axes of leaves in their order."""
    columns = tree.columns
    if not columns.ties or (not tree.root and tree.is_whole):
        return
    for row in first_rows(tree):
        op = columns.row_op(row)
        if op != "same" and (in_order or op == "view"):
            leaf = columns.row_text(columns.ties.get(row, row))
            raise WalkError(
                f"lw.{verb} works on whole leaves, and {columns.row_text(row)} is {leaf}{op.describe()}, outside this "
                f'part; use a part that contains {leaf}, or untie it first: lw.untie(model, "{columns.row_text(row)}")'
            )


def _cannot(verb: str, path: str, reason: str) -> WalkError:
    return WalkError(f"cannot {verb} {escape(path) or 'this'}: {reason}")
