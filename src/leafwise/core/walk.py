"""The one walk.

`walk` goes over an object once and writes columns. Nothing else is computed: `Node`, `Leaf` and `Tree` are thin
views of the columns.
"""

from collections.abc import Callable, Iterator
from typing import Any

from leafwise.core import registry as homes
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.home import LeafKind, Visit, offer
from leafwise.core.overlaps import find_overlaps, find_undone
from leafwise.core.path import Path, quote
from leafwise.errors import Error, WalkError

# A module that is reachable by very many paths is listed under its first ones, and then referred to.
MAX_REPEATED_NODES = 1_000_000


def walk(root: Any) -> Columns:
    """Goes over `root` once; see the module's docstring."""
    columns, naming = _walk(root, {})
    if naming.missed:
        # An optimizer came before the model whose parameters it names its state after.
        paths = naming.found_later()
        if paths:
            columns, _ = _walk(root, paths)
    find_undone(columns)
    return columns


class _PathLookup:
    """Where the walk has met a value so far: how an optimizer learns what its parameters are called."""

    def __init__(self, columns: Columns, known: dict[int, Path]) -> None:
        self.columns = columns
        self.known = known
        self.missed: set[int] = set()
        self._rows: dict[int, int] = {}
        self._indexed = 0

    def __call__(self, value: Any) -> Path | None:
        path = self.known.get(id(value))
        if path is not None:
            return path
        row = self._row(id(value))
        if row is None:
            self.missed.add(id(value))
            return None
        return self.columns.row_path(row)

    def found_later(self) -> dict[int, Path]:
        """The paths of values that were asked for before the walk came to them."""
        rows = ((key, self._row(key)) for key in self.missed)
        return {key: self.columns.row_path(row) for key, row in rows if row is not None}

    def _row(self, key: int) -> int | None:
        values = self.columns.row_values
        for row in range(self._indexed, len(values)):
            self._rows.setdefault(id(values[row]), row)
        self._indexed = len(values)
        return self._rows.get(key)


_LEAF: Visit = ((), (), None)  # what the visitor of a leaf type answers


def _walk(root: Any, known: dict[int, Path]) -> tuple[Columns, _PathLookup]:  # noqa: C901
    # The hot loop of leafwise: about a microsecond and a half for each node, and no recursion.
    columns = Columns()
    parents, names, objects = columns.node_parents, columns.node_names, columns.node_objects
    row_nodes, row_names = columns.row_nodes, columns.row_names
    values, kinds = columns.row_values, columns.row_kinds
    naming = _PathLookup(columns, known)
    visitors: dict[type, Callable[[Any], Visit | None]] = {}
    seen: dict[int, int] = {}
    cyclic: set[int] = set()
    frames: list[tuple[Iterator[tuple[str, Any]], int, LeafKind]] = []
    node = -1
    kind: LeafKind = "array"
    name = ""
    pairs: Iterator[tuple[str, Any]] = iter([("", root)])
    try:
        while True:
            for name, value in pairs:
                visit = visitors.get(type(value))
                if visit is None:
                    visit = visitors[type(value)] = _visitor(columns, type(value), naming)
                first = seen.get(id(value))
                if first is not None and (first in cyclic or _closes_cycle(parents, node, first, cyclic)):
                    # Not visited again: it may hold itself any number of times.
                    columns.repeats[len(objects)] = first
                    columns.unlisted.add(len(objects))
                    parents.append(node)
                    names.append(name)
                    objects.append(value)
                    continue
                found = visit(value)
                if found is None:
                    columns.scalars.append((node, name, value))
                    continue
                if found is _LEAF:
                    row_nodes.append(node)
                    row_names.append(name)
                    values.append(value)
                    kinds.append(kind)
                    continue
                child = len(objects)
                parents.append(node)
                names.append(name)
                objects.append(value)
                if first is None:
                    seen[id(value)] = child
                else:
                    columns.repeats[child] = first
                    if child - len(seen) > MAX_REPEATED_NODES:
                        columns.unlisted.add(child)
                        continue
                leaves, children, kind_below = found
                for leaf_kind, slots in leaves:
                    for leaf_name, leaf in slots:
                        if leaf is not None:
                            row_nodes.append(child)
                            row_names.append(leaf_name)
                            values.append(leaf)
                            kinds.append(leaf_kind)
                if children:
                    frames.append((pairs, node, kind))
                    pairs, node, kind = iter(children), child, kind_below or kind
                    break
            else:
                if not frames:
                    break
                pairs, node, kind = frames.pop()
    except Error:
        raise
    except Exception as error:
        at = columns.node_path(node).names if node >= 0 else ()
        path = ".".join(map(quote, (*at, name) if name else at)) or "the root"
        raise WalkError(f"cannot walk {path}: looking at it raised {type(error).__name__}: {error}") from error
    if not objects:
        handled = homes.find(type(root))
        if handled is None or handled[1] != "node" or not hasattr(root, "__len__") or len(root):
            raise homes.unwalkable(root)
        # An empty container is a value wherever it stands, and a tree with nothing in it as the root.
        parents.append(-1)
        names.append("")
        objects.append(root)
        columns.scalars.clear()
    _find_ties(columns)
    return columns, naming


def _visitor(columns: Columns, cls: type, naming: _PathLookup) -> Callable[[Any], Visit | None]:
    found = homes.find(cls)
    if found is None:
        return lambda value: None
    home, handled = found
    columns.remember_home(cls, home)
    if handled == "leaf":
        return lambda value: _LEAF
    child = home.wrapped_child(cls)
    if child is not None:
        columns.wrapped[cls] = child
    viewing = offer(home, Viewing)
    views = viewing.view_names(cls) if viewing is not None else None
    if views:
        columns.views[cls] = views
    return home.visitor(cls, naming)


def _closes_cycle(parents: list[int], above: int, first: int, cyclic: set[int]) -> bool:
    """Whether `first` is the node `above`, or above that, where the same object is met again; then all between them go
    round."""
    between = []
    while above > first:
        between.append(above)
        above = parents[above]
    if above != first:
        return False
    cyclic.update(between, (first,))
    return True


def _find_ties(columns: Columns) -> None:
    """Rows that hold one object are one leaf; and so are rows that see the same memory."""
    values = columns.row_values
    first_rows = dict(zip(map(id, reversed(values)), range(len(values) - 1, -1, -1), strict=True))
    if len(first_rows) < len(values):
        for row, first in enumerate(map(first_rows.__getitem__, map(id, values))):
            if first != row:
                columns.ties[row] = first
                columns.further_rows.setdefault(first, []).append(row)
    if columns.views:
        _tie_views(columns, first_rows)
    if columns.views or set(columns.row_kinds) - {"parameter"}:
        # Only arrays without a gradient of their own can be a second name of somebody else.
        find_overlaps(columns, merge=True)
        for leaf, rows in columns.further_rows.items():
            # A buffer that is saved under any of its names is saved.
            if columns.row_kinds[leaf] == "transient" and {columns.row_kinds[row] for row in rows} - {"transient"}:
                columns.row_kinds[leaf] = "buffer"


def _tie_views(columns: Columns, first_rows: dict[int, int]) -> None:
    """Names that a home knows to be views of a leaf elsewhere, on meta too, where no memory would tell."""
    for row, node in enumerate(columns.row_nodes):
        owner = columns.node_objects[node]
        if columns.row_names[row] not in columns.views.get(type(owner), ()):
            continue
        source = columns.home(owner).capability(Viewing).view_source(owner, columns.row_names[row])
        if source is not None and id(source[0]) in first_rows:
            columns.tie([row], first_rows[id(source[0])])
            columns.row_ops[row] = source[1]
