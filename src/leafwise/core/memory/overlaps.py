"""Leaves that share memory, and declared ties that were undone."""

from math import prod

from leafwise.core.capabilities.tying import Tying
from leafwise.core.columns import Columns
from leafwise.core.home import Memory, capability_or_none
from leafwise.core.leaf import UndoneTie, asking_raised
from leafwise.core.memory.ops import Overlap, Region, compare, extent
from leafwise.core.path import Entry, Path


def find_overlaps(columns: Columns, merge: bool) -> list[Overlap]:
    """Leaves that share memory without being one leaf. With `merge`, arrays that are another name of a leaf are tied to
    it."""
    every = range(len(columns.row_values))
    keys = columns.ask(every, columns.row_values, "finding its memory", lambda home, values: home.storages(values))
    if keys.count(None) == len(keys) or len(set(keys)) == len(keys):  # as in most files and most models
        return []
    storages: dict[object, list[int]] = {}
    for row, storage in enumerate(keys):
        if storage is not None and row not in columns.ties:
            storages.setdefault(storage, []).append(row)
    overlaps: list[Overlap] = []
    for leaves in storages.values():
        if len(leaves) < 2:
            continue
        regions = []
        for leaf in leaves:
            memory, own_gradient = _memory(columns, leaf)
            if memory is not None:
                regions.append(Region(leaf, memory, own_gradient))
        further_names, overlapping = compare(regions)
        overlaps.extend(overlapping)
        further_rows: dict[int, list[int]] = {}  # of each target; tied together, as there may be very many
        for leaf, (target, op) in further_names.items() if merge else ():
            rows = columns.rows_of(leaf)
            columns.further_rows.pop(leaf, None)
            further_rows.setdefault(target, []).extend(rows)
            columns.row_ops.update(dict.fromkeys(rows, op))
        for target, rows in further_rows.items():
            columns.tie(rows, target)
    return overlaps


def _memory(columns: Columns, row: int) -> tuple[Memory | None, bool]:
    value = columns.row_values[row]
    home = columns.home(value)
    try:
        return home.memory(value), home.own_gradient(value)
    except Exception as error:
        raise asking_raised(columns.row_text(row), "finding its memory", error) from error


def find_undone(columns: Columns) -> None:
    """Finds declared ties that were undone."""
    for tying in [tying for home in columns.homes if (tying := capability_or_none(home, Tying)) is not None]:
        for node, declared in tying.declared(columns.node_objects):
            places = [(key, op, _row_at(columns, node, key)) for key, op in declared.keys]
            rows = [row for _, _, row in places if row is not None]
            if not rows:
                continue
            source = columns.row_path(rows[0])
            leaf = columns.ties.get(rows[0], rows[0])
            for key, op, row in places:
                if row is None:
                    # A missing name does not undo a tie if the leaf still has another name.
                    lost = leaf not in columns.further_rows and len(rows) == 1
                    path = Path((*columns.node_entries(node), *(Entry(name, "any") for name in key.split("."))))
                else:
                    lost, path = columns.ties.get(row, row) != leaf, columns.row_path(row)
                if lost:
                    # A tie is declared at every node above it; the dict keeps it once.
                    columns.undone[UndoneTie(path, source, op, row is None)] = (
                        rows[0],
                        rows[0] if row is None else row,
                    )


def _row_at(columns: Columns, node: int, key: str) -> int | None:
    """The row at a dotted key below a node; None if there is none."""
    *above, last = key.split(".")
    nodes = columns.nodes_at_path(node)
    for name in above:
        children = (child for shown in nodes for child in columns.children(shown))
        child = next((child for child in children if columns.node_names[child] == name), None)
        if child is None:
            return None
        nodes = columns.nodes_at_path(child)
    rows = (row for shown in nodes for row in columns.own_rows(shown))
    return next((row for row in rows if columns.row_names[row] == last), None)


def bytes_shared(columns: Columns, leaves: set[int]) -> int:
    """How many bytes a sum over these leaves counts more than once."""
    extra = 0
    for members, _ in columns.overlaps:
        spans = []
        for leaf in leaves.intersection(members):
            memory, _ = _memory(columns, leaf)
            assert memory is not None
            spans.append((*extent(memory), prod(memory.shape) * memory.itemsize))
        covered = last_stop = 0
        for start, stop, _ in sorted(spans):
            covered += max(0, stop - max(start, last_stop))
            last_stop = max(last_stop, stop)
        extra += max(0, sum(nbytes for _, _, nbytes in spans) - covered)
    return extra
