"""Totals of a tree: its largest leaves, and sums by dtype, module or another property. They add up to `counts`."""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from leafwise.core.capabilities.saving import Saving
from leafwise.core.columns import Facts
from leafwise.core.parts import bytes_counted_twice, first_rows
from leafwise.core.path import quote, shown_url
from leafwise.core.results.result import RowTable, whole_number
from leafwise.core.tree import BY, Tree
from leafwise.errors import QueryError


class LargeLeaf(NamedTuple):
    """A row of `t.top()`: a leaf with its size. `share` is its part of the bytes of the tree, from 0 to 1.

    >>> import torch, leafwise as lw
    >>> [row] = lw.tree(torch.nn.Linear(4, 8)).top(1)
    >>> row.path, row.shape, row.dtype, row.bytes, row.tied
    ('weight', (8, 4), 'float32', 128, ())
    """

    path: str
    shape: tuple[int, ...] | None
    dtype: str
    elements: int
    bytes: int
    share: float
    tied: tuple[str, ...]


class Total(NamedTuple):
    """A row of `t.by()`: how many leaves, parameters, elements and bytes a group has.

    `elements` also counts buffers and state. `share` is the part of the bytes of the tree, from 0 to 1. `tied` is the
    number of names in this group whose leaf is counted in another group.

    >>> import torch, leafwise as lw
    >>> [row] = lw.tree(torch.nn.Linear(4, 8)).by("dtype")
    >>> row.name, row.leaves, row.parameters, row.bytes, row.share
    ('float32', 2, 40, 160, 1.0)
    """

    name: str
    leaves: int
    parameters: int
    elements: int
    bytes: int
    share: float
    tied: int


class Largest(RowTable[LargeLeaf], kind="largest"):
    """The result of `t.top()`: a sequence of `LargeLeaf`, the largest first. Prints as a table.

    `leaves` and `bytes` are those of the whole tree.

    >>> import torch, leafwise as lw
    >>> top = lw.tree(torch.nn.Linear(4, 8)).top(1)
    >>> len(top), top.leaves, top.bytes
    (1, 2, 160)
    """

    def __init__(self, tree: Tree, rows: list[LargeLeaf]) -> None:
        counts = tree.counts
        self.leaves, self.bytes, self.shared_bytes = counts.leaves, counts.bytes, bytes_counted_twice(tree)
        self._rows = rows


class Totals(RowTable[Total], kind="totals"):
    """The result of `t.by()`: a sequence of `Total`, the largest first. Prints as a table.

    `what` is the property, `leaves`, `parameters` and `bytes` are the counts of the tree. `shared_bytes` are bytes that
    several leaves share without being tied: the sum of all rows counts them several times, and `bytes` only once.
    `others` is the number of groups in the last row, if `top=` left some out.

    >>> import torch, leafwise as lw
    >>> totals = lw.tree(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 4))).by("module")
    >>> [row.name for row in totals], totals.bytes, totals.others
    (['0', '1'], 304, 0)
    """

    def __init__(self, tree: Tree, what: str, rows: list[Total], others: int) -> None:
        counts = tree.counts
        self.leaves, self.parameters, self.bytes = counts.leaves, counts.parameters, counts.bytes
        self.shared_bytes = bytes_counted_twice(tree)
        self.what, self.others, self._rows = what, others, rows


def largest(tree: Tree, count: int) -> Largest:
    """The largest leaves of a tree, by bytes; of equal ones, the first."""
    columns, rows = tree.columns, first_rows(tree)
    limit = whole_number(count, "count", 1) or 1
    facts = columns.facts(rows)
    order = sorted(range(len(rows)), key=lambda position: -facts[position].spec.nbytes)[:limit]
    whole = sum(fact.spec.nbytes for fact in facts) - bytes_counted_twice(tree)
    chosen = []
    for position in order:
        row, spec = rows[position], facts[position].spec
        others = [name for name in columns.rows_of(columns.ties.get(row, row)) if name != row]
        tied = tuple(columns.row_text(name) for name in others)
        share = spec.nbytes / whole if whole else 0.0
        chosen.append(LargeLeaf(columns.row_text(row), spec.shape, spec.dtype, spec.size, spec.nbytes, share, tied))
    return Largest(tree, chosen)


def totals(tree: Tree, what: str, depth: int | None = None, top: int | None = None) -> Totals:
    """The sums of a tree by a property of its leaves."""
    if what not in BY:
        raise QueryError(f"cannot total by {what!r}; give one of {', '.join(BY)}")
    if depth is not None and what != "module":
        raise QueryError(f"cannot total by {what} with depth=: it is only for 'module'")
    limit = whole_number(top, "top", 1)
    rows = list(first_rows(tree))
    facts = tree.columns.facts(rows)
    group_of = _groups(tree, what, rows, facts, whole_number(depth, "depth", 1))
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
    for name, fact in zip(group_of(rows), facts, strict=True):
        size, nbytes = fact.spec.size, fact.spec.nbytes
        total = sums[name]
        total[0] += 1
        total[1] += size if fact.kind == "parameter" else 0
        total[2] += size
        total[3] += nbytes
    for name, times in _names_elsewhere(tree, rows, group_of).items():
        sums[name][4] += times
    whole = sum(total[3] for total in sums.values()) - bytes_counted_twice(tree)
    table = []
    for name, (leaves, parameters, elements, nbytes, tied) in sums.items():
        table.append(Total(name, leaves, parameters, elements, nbytes, nbytes / whole if whole else 0.0, tied))
    if what == "depth" and limit is None:
        table.sort(key=lambda total: int(total.name))
    else:
        table.sort(key=lambda total: -total.bytes)  # groups of the same size stay in the order of the tree
    others = [] if limit is None else table[limit:]
    if others:
        table = [*table[:limit], _together(others)]
    return Totals(tree, what, table, len(others))


def _together(others: list[Total]) -> Total:
    sums = (sum(column) for column in zip(*(total[1:] for total in others), strict=True))
    leaves, parameters, elements, nbytes, share, tied = sums
    name = f"… {len(others):,} {'other' if len(others) == 1 else 'others'}"
    return Total(name, int(leaves), int(parameters), int(elements), int(nbytes), float(share), int(tied))


_GroupOf = Callable[[list[int]], list[str]]


def _groups(tree: Tree, what: str, rows: list[int], facts: list[Facts], depth: int | None) -> _GroupOf:
    """A function that returns the name of the group of each row."""
    columns = tree.columns
    if what in ("dtype", "kind", "section", "device"):
        return lambda some: [_fact(fact, what) for fact in (facts if some is rows else columns.facts(some))]
    if what == "role":
        return lambda some: [role or "(no role)" for role, _ in columns.row_roles(some)]
    if what == "type":
        return lambda some: [columns.type_name(columns.row_nodes[row]) or "(unknown)" for row in some]
    if what == "file":
        return _files(tree)
    names = _node_names(tree)
    owners = {columns.row_nodes[row] for row in tree.rows}
    if what == "depth":
        labels = {node: str(len(names[node]) + 1) for node in owners}
    else:
        levels = depth or _first_split({names[node] for node in owners})
        texts = {
            entries: ".".join(map(quote, entries)) or "(root)" for entries in {names[node][:levels] for node in owners}
        }
        labels = {node: texts[names[node][:levels]] for node in owners}
    return lambda some: [labels[columns.row_nodes[row]] for row in some]


def _fact(fact: Facts, what: str) -> str:
    return str(getattr(fact.spec if what in ("dtype", "device") else fact, what))


def _node_names(tree: Tree) -> dict[int, tuple[str, ...]]:
    """The names from the root of the tree to each node."""
    columns = tree.columns
    names: dict[int, tuple[str, ...]] = {tree.root: ()}
    hidden = columns.hidden if columns.wrapped else None
    for node in range(tree.root + 1, columns.node_ends[tree.root]):
        above = names[columns.node_parents[node]]
        names[node] = above if hidden is not None and hidden(node) else (*above, columns.node_names[node])
    return names


def _first_split(modules: set[tuple[str, ...]]) -> int:
    """The number of entries at which the paths of modules first differ: a model below a single key is not one group."""
    longest = max(map(len, modules), default=0)
    return next((level for level in range(1, longest) if len({path[:level] for path in modules}) > 1), max(longest, 1))


def _names_elsewhere(tree: Tree, rows: list[int], group_of: _GroupOf) -> dict[str, int]:
    """For each group, how many of its names belong to leaves that are counted in another group."""
    columns = tree.columns
    if not columns.ties:
        return {}
    counted = {columns.ties.get(row, row): row for row in rows}
    further = [row for row in tree.rows if counted[columns.ties.get(row, row)] != row]
    first = [counted[columns.ties.get(row, row)] for row in further]
    times: dict[str, int] = defaultdict(int)
    for here, there in zip(group_of(further), group_of(first), strict=True):
        times[here] += here != there
    return {name: count for name, count in times.items() if count}


def _files(tree: Tree) -> _GroupOf:
    if not tree.is_file:
        raise QueryError("cannot total by file: this tree is in memory, not a checkpoint")
    columns, rows = tree.columns, list(tree.rows)
    whole = str(getattr(columns.node_objects[0], "path", ""))
    names: dict[int, str] = {}
    for batch in columns.batches(rows):
        files = batch.home.capability(Saving).files_of(batch.values)
        names |= {row: name or whole for row, name in zip(batch.rows, files, strict=True)}
    distinct = set(names.values())
    short = {name: shown_url(name).rstrip("/").rpartition("/")[2] for name in distinct}
    if len(set(short.values())) < len(distinct):  # files of one name in several folders
        short = {name: shown_url(name) for name in distinct}
    return lambda some: [short[names[row]] for row in some]
