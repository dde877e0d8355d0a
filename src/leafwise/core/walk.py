"""The one walk.

`walk` visits an object and everything in it once, and writes columns. Nothing else is computed: `Node`, `Leaf` and
`Tree` are thin views of the columns.
"""

from collections.abc import Callable, Iterator
from typing import Any

from leafwise.core import registry as homes
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.dotted import ListedNode, Listing
from leafwise.core.home import Home, LeafKind, Visit, capability_or_none
from leafwise.core.memory.overlaps import find_overlaps, find_undone
from leafwise.core.path import Path, quote
from leafwise.errors import Error, WalkError

# A module that is reachable by very many paths is listed under the first of them; later ones refer to these.
MAX_REPEATED_NODES = 1_000_000


def walk(root: Any) -> Columns:
    """The columns of `root`; see the docstring of the module."""
    columns, lookup = _walk(root, {})
    if lookup.missed:
        # An optimizer came before its model, but its state is named after the parameters of the model. If they are
        # sharded, other arrays may stand for them, which are known only now.
        paths = lookup.all_paths() if columns.may_be_sharded else lookup.missed_paths()
        if paths:
            columns, _ = _walk(root, paths)
    find_undone(columns)
    return columns


class _PathLookup:
    """The paths of the values that the walk has found so far. Optimizers look up their parameters in it."""

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

    def missed_paths(self) -> dict[int, Path]:
        """The paths of values that were looked up before the walk found them, by identity."""
        rows = ((key, self._row(key)) for key in self.missed)
        return {key: self.columns.row_path(row) for key, row in rows if row is not None}

    def all_paths(self) -> dict[int, Path]:
        """The paths of all values, by identity."""
        return {
            id(value): self.columns.row_path(row) for row, value in reversed(list(enumerate(self.columns.row_values)))
        }

    def _row(self, key: int) -> int | None:
        values = self.columns.row_values
        for row in range(self._indexed, len(values)):
            self._rows.setdefault(id(values[row]), row)
        self._indexed = len(values)
        return self._rows.get(key)


_LEAF: Visit = ((), (), None)  # what the visitor of a leaf type returns


def _walk(root: Any, known: dict[int, Path]) -> tuple[Columns, _PathLookup]:  # noqa: C901
    # The hot loop of leafwise, without recursion: about 1.5 microseconds per node.
    columns = Columns()
    parents, names, objects = columns.node_parents, columns.node_names, columns.node_objects
    row_nodes, row_names = columns.row_nodes, columns.row_names
    values, kinds = columns.row_values, columns.found_kinds
    lookup = _PathLookup(columns, known)
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
                    visit = visitors[type(value)] = _visitor(columns, type(value), lookup)
                first = seen.get(id(value))
                if first is not None and (first in cyclic or _closes_cycle(parents, node, first, cyclic)):
                    # Not visited again, because it contains itself.
                    columns.repeats[len(objects)] = first
                    columns.listed_elsewhere.add(len(objects))
                    parents.append(node)
                    names.append(name)
                    objects.append(value)
                    continue
                content = visit(value)
                if content is None:
                    if type(value) is Listing:
                        _add_listing(columns, value, node, kind, lookup)
                    else:
                        columns.scalars.append((node, name, value))
                    continue
                if content is _LEAF:
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
                        columns.listed_elsewhere.add(child)
                        continue
                leaves, children, kind_below = content
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
        raise WalkError(f"cannot walk {path}: visiting it raised {type(error).__name__}: {error}") from error
    if not objects:
        handled = homes.find(type(root))
        if handled is None or handled[1] != "node" or not hasattr(root, "__len__") or len(root):
            raise homes.unwalkable(root)
        # An empty container is a plain value, except as the root, where it is an empty tree.
        parents.append(-1)
        names.append("")
        objects.append(root)
        columns.scalars.clear()
    _find_ties(columns)
    return columns, lookup


def _add_listing(columns: Columns, listing: Listing, node: int, kind: LeafKind, lookup: _PathLookup) -> None:
    """Adds the leaves of a listing, and the nodes above them, below a node."""
    names, values = listing.names, listing.values()
    for cls in {ListedNode} | set(map(type, values)):
        _visitor(columns, cls, lookup)
    above = len(columns.node_objects) - 1  # added to the numbers of nodes, except to 0, which is `node`

    def numbered(nodes: list[int]) -> list[int]:
        return nodes if above == node == 0 else [listed + above if listed else node for listed in nodes]

    columns.node_parents += numbered(names.parents)
    columns.node_names += names.node_names
    columns.node_objects += listing.nodes()
    columns.row_nodes += numbered(names.row_nodes)
    columns.row_names += names.row_names
    columns.row_values += values
    columns.found_kinds += [kind] * len(values)


def _visitor(columns: Columns, cls: type, lookup: _PathLookup) -> Callable[[Any], Visit | None]:
    handled = homes.find(cls)
    if handled is None:
        return lambda value: None
    home, kind = handled
    columns.remember_home(cls, home)
    if kind == "leaf":
        return lambda value: _LEAF
    child = home.wrapped_child(cls)
    if child is not None:
        columns.wrapped[cls] = child
    viewing = capability_or_none(home, Viewing)
    views = viewing.view_names(cls) if viewing is not None else None
    if views:
        columns.views[cls] = views
    return home.visitor(cls, lookup)


def _closes_cycle(parents: list[int], above: int, first: int, cyclic: set[int]) -> bool:
    """Called when an object is found again below the node `above`: whether its first node, `first`, is that node or one
    of its parents. If so, all nodes between them are on the cycle."""
    between = []
    while above > first:
        between.append(above)
        above = parents[above]
    if above != first:
        return False
    cyclic.update(between, (first,))
    return True


def _find_ties(columns: Columns) -> None:
    """Ties rows with the same object, and rows over the same memory."""
    values = columns.row_values
    is_repeated = len(set(map(id, values))) < len(values)
    if columns.repeats or is_repeated:
        _forget_repeated_values(columns)
    if columns.views or is_repeated:
        first_rows = dict(zip(map(id, reversed(values)), range(len(values) - 1, -1, -1), strict=True))
        for row, first in enumerate(_first_rows_of_leaves(columns, first_rows)):
            if first != row:
                columns.ties[row] = first
                columns.further_rows.setdefault(first, []).append(row)
        if columns.views:
            _tie_views(columns, first_rows)
    kinds = columns.found_kinds
    if columns.views or set(kinds) - {"parameter"}:
        # Only an array without a gradient of its own can be another name of a leaf.
        find_overlaps(columns, merge=True)
        for leaf, rows in columns.further_rows.items():
            # A buffer that is saved under any of its names is saved; in a file, it may even be a parameter.
            if kinds[leaf] == "transient" and (others := {kinds[row] for row in rows} - {"transient"}):
                kinds[leaf] = "recorded" if "recorded" in others else "buffer"


def _home_by_type(columns: Columns) -> dict[type, Home]:
    examples = {type(value): value for value in columns.row_values}
    return {cls: columns.home(example) for cls, example in examples.items()}


def _forget_repeated_values(columns: Columns) -> None:
    """If a node is a value, such as a dict of JAX arrays, the same object at two places is two nodes."""
    homes_by_type = _home_by_type(columns).items()
    types = {cls for cls, home in homes_by_type if not (home.ties_by_identity and home.nodes_by_reference)}
    if not types:
        return
    for node in [node for node in columns.repeats if node not in columns.listed_elsewhere]:
        if not columns.home(columns.node_objects[node]).nodes_by_reference:
            rows = range(*columns.row_ranges[node])
            if any(type(columns.row_values[row]) in types for row in rows):
                del columns.repeats[node]


def _first_rows_of_leaves(columns: Columns, first_rows: dict[int, int]) -> Iterator[int]:
    """For each row, the first row with the same object. An array that is a value is the same leaf only in a node that
    is shared."""
    types = {cls for cls, home in _home_by_type(columns).items() if not home.ties_by_identity}
    if not types:
        yield from map(first_rows.__getitem__, map(id, columns.row_values))
        return
    first_in_node: dict[tuple[int, str], int] = {}
    for row, (node, value) in enumerate(zip(columns.row_nodes, columns.row_values, strict=True)):
        if type(value) not in types:
            yield first_rows[id(value)]
            continue
        owner = columns.node_objects[node]
        is_shared = columns.home(owner).nodes_by_reference
        yield first_in_node.setdefault((id(owner), columns.row_names[row]), row) if is_shared else row


def _tie_views(columns: Columns, first_rows: dict[int, int]) -> None:
    """Ties names that are views of a leaf elsewhere according to their home; works on meta, too, without memory."""
    for row, node in enumerate(columns.row_nodes):
        owner = columns.node_objects[node]
        if columns.row_names[row] not in columns.views.get(type(owner), ()):
            continue
        source = columns.home(owner).capability(Viewing).view_source(owner, columns.row_names[row])
        if source is not None and id(source[0]) in first_rows:
            columns.tie([row], first_rows[id(source[0])])
            columns.row_ops[row] = source[1]
