"""The columns that a walk writes, and what is derived from them.

There is a line for every node, and a row for every name of a leaf. A leaf is identified by the number of its first row.
Facts (shape, dtype, role) come from the home when they are needed. Everything that can be derived from the columns
(where a subtree ends, which rows it has) is computed on first use.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from operator import attrgetter, le
from typing import Any, Literal, NamedTuple, TypeVar, cast
from weakref import WeakValueDictionary

from leafwise.core import registry as homes
from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.stepping import is_optimizer
from leafwise.core.home import Axes, Home, LeafKind, Spec, capability_or_none
from leafwise.core.leaf import Leaf, Name, UndoneTie, asking_raised
from leafwise.core.memory.ops import SAME, Op, Overlap
from leafwise.core.path import Entry, Path, quote
from leafwise.core.roles.sections import resolve_kinds

PlainKind = Literal["parameter", "buffer", "state"]
Section = Literal["weights", "optimizer", "rest"]
SECTIONS: tuple[Section, ...] = ("weights", "optimizer", "rest")
_PLAIN_KINDS: dict[LeafKind, tuple[PlainKind, Section]] = {
    "parameter": ("parameter", "weights"),
    "array": ("parameter", "weights"),
    "recorded": ("parameter", "weights"),
    "buffer": ("buffer", "weights"),
    "transient": ("buffer", "weights"),
    "state": ("state", "optimizer"),
    "rest": ("state", "rest"),
}
T = TypeVar("T")


class Facts(NamedTuple):
    """What is known about a leaf without its values and its names."""

    spec: Spec
    kind: PlainKind
    persistent: bool
    section: Section


def tally(facts: Collection[Facts]) -> list[tuple[Facts, int]]:
    """The distinct facts, and how often each occurs. Compares by identity: equal facts of one walk are one object."""
    by_identity = {id(leaf_facts): leaf_facts for leaf_facts in facts}
    return [(by_identity[key], times) for key, times in Counter(map(id, facts)).items()]


class Batch(NamedTuple):
    """Arrays of one home: their positions in the list that was split into batches, their rows, and the arrays."""

    columns: "Columns"
    home: Home
    positions: Sequence[int]
    rows: Sequence[int]
    values: list[Any]

    @property
    def specs(self) -> list[Spec]:
        return self.home.specs(self.values)

    @property
    def paths(self) -> list[str]:
        """The paths of the rows, as they print."""
        return [self.columns.row_text(row) for row in self.rows]


class RowRanges:
    """For each node, its first row, and its last row plus one; 0 and 0 if it has none. A million nodes take 16 MB."""

    def __init__(self, first: "array[int]", last: "array[int]") -> None:
        self._first, self._last = first, last

    def __getitem__(self, node: int) -> tuple[int, int]:
        first, last = self._first[node], self._last[node]
        return (first, last) if first < last else (0, 0)


class Columns:
    """The result of one walk. Nodes are in preorder, so a subtree is a range of nodes and of rows."""

    def __init__(self) -> None:
        # Nodes.
        self.node_parents: list[int] = []
        self.node_names: list[str] = []
        self.node_objects: list[Any] = []
        # Node → the earlier node that is the same object. For nodes in `listed_elsewhere`, only that node has content.
        self.repeats: dict[int, int] = {}
        self.listed_elsewhere: set[int] = set()
        # Rows: a row is one name of one leaf, with the array that has this name.
        self.row_nodes: list[int] = []
        self.row_names: list[str] = []
        self.row_values: list[Any] = []
        self.found_kinds: list[LeafKind] = []  # as the walk found them; see `row_kinds`
        # Only for leaves with several names: row → its leaf, leaf → its further rows, and row → its op, unless that is
        # `same`.
        self.ties: dict[int, int] = {}
        self.further_rows: dict[int, list[int]] = {}
        self.row_ops: dict[int, Op] = {}
        # Plain values: node, name, value.
        self.scalars: list[tuple[int, str, Any]] = []
        self.wrapped: dict[type, str] = {}  # wrapper → the child that paths do not show
        self.views: dict[type, frozenset[str]] = {}  # type → its leaves that are views of a leaf elsewhere
        self.first_added: int | None = None  # from this row on, arrays that `extended` added, which no node has
        # Declared ties that were undone, each with its rows.
        self.undone: dict[UndoneTie, tuple[int, ...]] = {}
        self._homes: dict[type, Home] = {}
        self._entries: dict[int, Entry] = {}
        # Weak references: a leaf refers to its columns, and a cycle would keep an unused model alive.
        self.made_leaves: WeakValueDictionary[int, Leaf] = WeakValueDictionary()

    def __getstate__(self) -> dict[str, Any]:
        # Homes and their caches belong to the process. A copy has only the types, and finds their homes again.
        return {**self.__dict__, "made_leaves": None, "_homes": list(self._homes)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        known = {cls: handled[0] for cls in state["_homes"] if (handled := homes.find(cls)) is not None}
        self.__dict__.update(state, made_leaves=WeakValueDictionary(), _homes=known)

    # -- derived from the columns, once ----------------------------------------------------------------

    @cached_property
    def node_ends(self) -> Sequence[int]:
        """For each node, the number of the last node below it, plus one."""
        ends = array("q", range(1, len(self.node_parents) + 1))
        for node in range(len(ends) - 1, 0, -1):
            parent = self.node_parents[node]
            if ends[node] > ends[parent]:
                ends[parent] = ends[node]
        return ends

    @cached_property
    def row_ranges(self) -> "RowRanges":
        """For each node, the rows of all names below it, as a range."""
        first = array("q", [len(self.row_nodes)]) * len(self.node_parents)
        last = array("q", [0]) * len(first)
        for row, node in enumerate(self.row_nodes):
            if row < first[node]:
                first[node] = row
            last[node] = row + 1
        for node in range(len(first) - 1, 0, -1):
            parent = self.node_parents[node]
            if first[node] < first[parent]:
                first[parent] = first[node]
            if last[node] > last[parent]:
                last[parent] = last[node]
        return RowRanges(first, last)

    def own_rows(self, node: int) -> Sequence[int]:
        """The rows of a node's own leaves."""
        rows, nodes = self._rows_by_node
        return rows[bisect_left(nodes, node) : bisect_right(nodes, node)]

    @cached_property
    def _rows_by_node(self) -> tuple[Sequence[int], list[int]]:
        """The rows sorted by node, and their nodes. For modules they are sorted already."""
        nodes = self.row_nodes
        if all(map(le, nodes, islice(nodes, 1, None))):
            return range(len(nodes)), nodes
        rows = sorted(range(len(nodes)), key=nodes.__getitem__)
        return rows, [nodes[row] for row in rows]

    @cached_property
    def own_scalars(self) -> dict[int, list[tuple[str, Any]]]:
        scalars: dict[int, list[tuple[str, Any]]] = {}
        for node, name, value in self.scalars:
            scalars.setdefault(node, []).append((name, value))
        return scalars

    @cached_property
    def row_kinds(self) -> list[LeafKind]:
        """The kind of each row. Those of arrays in plain containers are decided when they are first asked for."""
        return resolve_kinds(self)[0]

    @cached_property
    def overlaps(self) -> list[Overlap]:
        """Leaves that share memory and are not one leaf, by their numbers."""
        from leafwise.core.memory.overlaps import find_overlaps  # it imports this module

        return find_overlaps(self, merge=False)

    def extended(self, node: int, added: Sequence[tuple[str, Any]]) -> "Columns":
        """A copy with further rows at a node, given by name and array. The rows that exist keep their numbers."""
        copy = Columns()
        own = copy.__dict__.keys() - {"made_leaves"}  # without what was derived from fewer rows
        copy.__dict__.update({name: self.__dict__[name] for name in own})
        copy.first_added = len(self.row_nodes)
        copy.row_nodes = [*self.row_nodes, *[node] * len(added)]
        copy.row_names = [*self.row_names, *(name for name, _ in added)]
        copy.row_values = [*self.row_values, *(value for _, value in added)]
        copy.row_kinds = [*self.row_kinds, *cast("list[LeafKind]", ["array"]) * len(added)]
        return copy

    def tie(self, rows: list[int], leaf: int) -> None:
        """Makes these rows further names of the leaf."""
        self.ties.update(dict.fromkeys(rows, leaf))
        self.further_rows[leaf] = sorted([*self.further_rows.get(leaf, ()), *rows])

    # -- nodes -----------------------------------------------------------------------------------------

    def children(self, node: int) -> Iterator[int]:
        child, end = node + 1, self.node_ends[node]
        while child < end:
            yield child
            child = self.node_ends[child]

    def children_named(self, nodes: Sequence[int], name: str) -> list[int]:
        """The children of nodes that have a name, without those that paths do not show."""
        return [
            child
            for node in nodes
            for child in self.children(node)
            if self.node_names[child] == name and not self.hidden(child)
        ]

    def objects_of(self, nodes: Sequence[int]) -> list[Any]:
        """The objects of nodes; the column itself if these are all nodes."""
        return _take(self.node_objects, nodes)

    def hidden(self, node: int) -> bool:
        """Whether this node is wrapped by a wrapper, so that paths do not show it."""
        parent = self.node_parents[node]
        if parent < 0 or not self.wrapped:
            return False
        return self.wrapped.get(type(self.node_objects[parent])) == self.node_names[node]

    def nodes_at_path(self, node: int) -> list[int]:
        """The nodes with the same path as a node: itself, or the node where it is listed; then the nodes it wraps."""
        layers = [self.repeats[node] if node in self.listed_elsewhere else node]
        # Only the children of wrappers are searched: they are few, while another node may have a million.
        while type(self.node_objects[layers[-1]]) in self.wrapped:
            inner = next((child for child in self.children(layers[-1]) if self.hidden(child)), None)
            if inner is None:
                break
            layers.append(self.repeats[inner] if inner in self.listed_elsewhere else inner)
        return layers

    def type_name(self, node: int) -> str:
        obj = self.node_objects[node]
        return self.home(obj).type_name(obj)

    def lineage(self, node: int) -> tuple[Any, ...]:
        """The object of a node, then of its parent, and so on up to the root."""
        objects = []
        while node >= 0:
            objects.append(self.node_objects[node])
            node = self.node_parents[node]
        return tuple(objects)

    # -- paths -----------------------------------------------------------------------------------------

    def node_entries(self, node: int) -> tuple[Entry, ...]:
        entries = []
        while node > 0:
            entry = self._entries.get(node)
            if entry is None:
                owner = self.node_objects[self.node_parents[node]]
                entry = self.home(owner).entry(owner, self.node_names[node], self.node_objects[node])
                entry = self._entries[node] = entry._replace(hidden=True) if self.hidden(node) else entry
            entries.append(entry)
            node = self.node_parents[node]
        return tuple(reversed(entries))

    def node_path(self, node: int) -> Path:
        return Path(self.node_entries(node))

    def row_path(self, row: int) -> Path:
        node = self.row_nodes[row]
        owner = self.node_objects[node]
        entry = self.home(owner).entry(owner, self.row_names[row], self.row_values[row])
        return Path((*self.node_entries(node), entry))

    def scalar_path(self, node: int, name: str, value: Any) -> Path:
        owner = self.node_objects[node]
        return Path((*self.node_entries(node), self.home(owner).entry(owner, name, value)))

    def node_keys(self, below: int = 0) -> dict[int, str]:
        """For `below` and each node under it, the names from `below` to the node, joined by dots and not quoted."""
        keys = {below: ""}
        hidden = self.hidden if self.wrapped else None
        for node in range(below + 1, self.node_ends[below]):
            prefix, name = keys[self.node_parents[node]], self.node_names[node]
            keys[node] = prefix if hidden is not None and hidden(node) else f"{prefix}.{name}" if prefix else name
        return keys

    def node_key(self, node: int, known: dict[int, str]) -> str:
        """What `node_keys` has for one node. Begin with `known = {below: ""}`; keys are added to it."""
        for above in self._up_to(node, known):
            prefix, name = known[self.node_parents[above]], self.node_names[above]
            known[above] = prefix if self.hidden(above) else f"{prefix}.{name}" if prefix else name
        return known[node]

    def nodes_where(self, ask: Callable[[Home, Any], object], below: int = 0) -> list[int]:
        """The nodes from `below` downwards for which `ask(home, object)` is true. It is called once for each type; the
        answer must depend on the type alone."""
        answers: dict[type, object] = {}
        nodes = []
        for node in range(below, self.node_ends[below]):
            obj = self.node_objects[node]
            if type(obj) not in answers:
                answers[type(obj)] = ask(self.home(obj), obj)
            if answers[type(obj)]:
                nodes.append(node)
        return nodes

    def optimizers(self, below: int = 0) -> list[int]:
        """The nodes from `below` downwards that are optimizers."""
        return [node for node in self._optimizers if below <= node < self.node_ends[below]]

    @cached_property
    def _optimizers(self) -> list[int]:
        return self.nodes_where(is_optimizer)

    def scalar_items(self, below: int = 0) -> Iterator[tuple[str, int, str, Any]]:
        """Each plain value from a node downwards: its key relative to that node, its own node, its name, its value."""
        nodes = range(below, self.node_ends[below]) if self.scalars else range(0)
        prefixes = {below: ""}  # only for nodes with plain values: a checkpoint may have a million nodes without any
        for node, name, value in self.scalars:
            if node in nodes:
                for above in self._up_to(node, prefixes):
                    prefix = prefixes[self.node_parents[above]]
                    prefixes[above] = prefix if self.hidden(above) else f"{prefix}{self.node_names[above]}."
                yield prefixes[node] + name, node, name, value

    def keys(self, rows: Sequence[int], below: int = 0) -> list[str]:
        """The key of each row in a state dict of the node `below`: its names, joined by dots and not quoted."""
        prefixes = self.key_prefixes(below)
        nodes, names = self.row_nodes, self.row_names
        return [prefixes[nodes[row]] + names[row] for row in rows]

    @cached_property
    def all_keys(self) -> list[str]:
        """The key of every row in a state dict of the root."""
        return self.keys(range(len(self.row_names)))

    @cached_property
    def has_unique_keys(self) -> bool:
        """Whether no two rows have the same key."""
        return len(set(self.all_keys)) == len(self.all_keys)

    def _up_to(self, node: int, known: Collection[int]) -> list[int]:
        """The nodes from the nearest known one above a node, without it, down to the node."""
        nodes = []
        while node not in known:
            nodes.append(node)
            node = self.node_parents[node]
        return nodes[::-1]

    def key_prefixes(self, below: int, spelled: Callable[[str], str] = str) -> dict[int, str]:
        """For `below` and each node under it, the prefix of its keys, with the dot, because a name may be empty."""
        prefixes = {below: ""}
        hidden = self.hidden if self.wrapped else None
        for node in range(below + 1, self.node_ends[below]):
            above = prefixes[self.node_parents[node]]
            is_shown = hidden is None or not hidden(node)
            prefixes[node] = f"{above}{spelled(self.node_names[node])}." if is_shown else above
        return prefixes

    def node_text(self, node: int) -> str:
        """The path of a node as it prints; faster than `str(node_path(node))`."""
        names = []
        while node > 0:
            if not self.hidden(node):
                names.append(quote(self.node_names[node]))
            node = self.node_parents[node]
        return ".".join(reversed(names))

    def row_text(self, row: int) -> str:
        prefix = self.node_text(self.row_nodes[row])
        name = quote(self.row_names[row])
        return f"{prefix}.{name}" if prefix else name

    def row_texts(self, rows: Sequence[int]) -> list[str]:
        """`row_text` of each row, but faster for many: each node is spelled once."""
        prefixes = self.key_prefixes(0, quote)
        nodes, names = self.row_nodes, self.row_names
        quoted = {name: quote(name) for name in {names[row] for row in rows}}
        return [prefixes[nodes[row]] + quoted[names[row]] for row in rows]

    # -- leaves ----------------------------------------------------------------------------------------

    def home(self, obj: Any) -> Home:
        home = self._homes.get(type(obj))
        if home is None:
            handled = homes.find(type(obj))
            if handled is None:
                raise homes.unwalkable(obj)
            home = self._homes[type(obj)] = handled[0]
        return home

    @property
    def homes(self) -> set[Home]:
        """The homes of all nodes and leaves of the walk."""
        return set(self._homes.values())

    @cached_property
    def may_be_sharded(self) -> bool:
        """Whether any array of the walk may be sharded over processes, so that it stands for another one in its node; a
        fast check of the types."""
        sharding = [home.capability(Distributing) for home in self.homes]
        sharding = [distributing for distributing in sharding if type(distributing) is not Distributing]
        # The types of the arrays themselves: the walk remembers the types of modules, not of their parameters.
        types = set(map(type, self.row_values)) if sharding else ()
        return any(distributing.may_shard(types) for distributing in sharding)

    def batches(self, rows: Sequence[int], values: list[Any] | None = None) -> "list[Batch]":
        """The arrays at these rows, one batch for each home, so that a home is called once. They are the current
        arrays, or `values`, one for each row."""
        values = self.current_arrays(rows) if values is None else values
        return [
            Batch(self, home, positions, _take(rows, positions), _take(values, positions))
            for home, positions in self.by_home(values).items()
        ]

    def by_home(self, values: list[Any]) -> dict[Home, Sequence[int]]:
        """The numbers of values by their home; usually all values have the same home."""
        if len(set(map(type, values))) == 1:
            return {self.home(values[0]): range(len(values))}
        numbers: dict[Home, list[int]] = {}
        for number, value in enumerate(values):
            numbers.setdefault(self.home(value), []).append(number)
        return dict(numbers)

    def homes_of(self, objects: Sequence[Any]) -> set[Home]:
        """The homes of nodes or leaves."""
        types = set(map(type, objects))
        if types <= self._homes.keys():  # as all types that the walk has found
            return {self._homes[cls] for cls in types}
        return {self.home(example) for example in {type(obj): obj for obj in objects}.values()}

    def home_of_each(self, objects: Sequence[Any]) -> list[Home]:
        """The home of each node or leaf."""
        examples = dict(zip(map(type, objects), objects, strict=True))
        by_type = {cls: self.home(example) for cls, example in examples.items()}
        return list(map(by_type.__getitem__, map(type, objects)))

    def remember_home(self, cls: type, home: Home) -> None:
        self._homes[cls] = home

    def current(self, row: int) -> Any:
        """The array that is at a row now; moving a module, for example, replaces its buffers."""
        if self.first_added is not None and row >= self.first_added:
            return self.row_values[row]
        owner = self.node_objects[self.row_nodes[row]]
        return self.home(owner).current(owner, self.row_names[row], self.row_values[row])

    def current_arrays(self, rows: Sequence[int]) -> list[Any]:
        """The arrays that are at rows now: `current` of each, but faster for thousands."""
        if self.first_added is not None:
            return [self.current(row) for row in rows]
        if rows == range(len(self.row_names)) and (arrays := self._arrays_of_one_owner()):
            return arrays
        owners, names = _take(self._owners, rows), _take(self.row_names, rows)
        homes_of_owners = self.homes_of(owners)
        if all(type(home).current is Home.current for home in homes_of_owners):  # nothing is ever replaced
            return _take(self.row_values, rows)
        if self.may_be_sharded:
            return [self.current(row) for row in rows]
        arrays_in = homes_of_owners.pop().arrays_in if len(homes_of_owners) == 1 else ""
        if not arrays_in:
            return [self.current(row) for row in rows]
        return [
            array if name in arrays and (array := arrays[name]) is not None else self.current(row)
            for row, name, arrays in zip(rows, names, map(attrgetter(arrays_in), owners), strict=True)
        ]

    def _arrays_of_one_owner(self) -> list[Any]:
        """The arrays that are at all rows now, if they belong to one node, such as a list of parameters, which has no
        others; empty if not, or if one of them is no longer there."""
        if self._only_owner is None or self.may_be_sharded:
            return []
        arrays_in = self.home(self._only_owner).arrays_in
        arrays_by_name = getattr(self._only_owner, arrays_in) if arrays_in else None
        if type(arrays_by_name) is not dict or list(arrays_by_name) != self.row_names:
            return []
        arrays = list(arrays_by_name.values())
        # By their types, because arrays define `==` in their own way.
        return arrays if type(None) not in set(map(type, arrays)) else []

    @cached_property
    def _only_owner(self) -> Any:
        """The object of the node that all rows belong to; None if there are several nodes, or no rows."""
        return self.node_objects[self.row_nodes[0]] if len(set(self.row_nodes)) == 1 else None

    @cached_property
    def _owners(self) -> list[Any]:
        """For each row, the object of its node."""
        return [self.node_objects[node] for node in self.row_nodes]

    def is_held(self, row: int) -> bool:
        """Whether the array at a row is a frozen buffer."""
        owner = self.node_objects[self.row_nodes[row]]
        freezing = capability_or_none(self.home(owner), Freezing)
        return freezing is not None and freezing.is_held(owner, self.row_names[row])

    def leaf_kind(self, leaf: int) -> PlainKind:
        return _PLAIN_KINDS[self.row_kinds[leaf]][0]

    def leaf_section(self, leaf: int) -> Section:
        return _PLAIN_KINDS[self.row_kinds[leaf]][1]

    def facts(self, rows: Sequence[int]) -> list[Facts]:
        """The facts of each row. Equal facts are the same object, because a model repeats a few of them many times."""
        fresh: dict[int, Spec] = {}
        if "row_kinds" not in self.__dict__:
            self.row_kinds, fresh = resolve_kinds(self)
        values, kinds = _take(self.row_values, rows), _take(self.row_kinds, rows)
        distinct_kinds = set(kinds)
        if not distinct_kinds <= {"parameter", "array"}:
            values = [
                value if kind in ("parameter", "array") else self.current(row)
                for row, value, kind in zip(rows, values, kinds, strict=True)
            ]
        if self.ties and distinct_kinds != {"parameter"}:
            kinds = [self.row_kinds[self.ties.get(row, row)] for row in rows]
            distinct_kinds = set(kinds)
        if len(fresh) == len(rows) == len(self.row_values):  # asked a moment ago
            specs = [fresh[row] for row in rows]
        else:
            specs = self.ask(rows, values, "getting its shape and dtype", lambda home, arrays: home.specs(arrays))
        if distinct_kinds & {"buffer", "transient"}:
            specs = [
                spec._replace(trainable=False) if kind in ("buffer", "transient") and self.is_held(row) else spec
                for row, kind, spec in zip(rows, kinds, specs, strict=True)
            ]
        distinct: dict[Facts, Facts] = {}

        def one(spec: Spec, kind: LeafKind) -> Facts:
            plain, section = _PLAIN_KINDS[kind]
            facts = Facts(spec, plain, kind != "transient", section)
            return distinct.setdefault(facts, facts)

        if len(distinct_kinds) == 1:  # as in a file; saves a tuple for each row
            [kind] = distinct_kinds
            ids = list(map(id, specs))
            by_id = {key: one(spec, kind) for key, spec in dict(zip(ids, specs, strict=True)).items()}
            return list(map(by_id.__getitem__, ids))
        keys = list(zip(map(id, specs), kinds, strict=True))
        by_key = {key: one(spec, key[1]) for key, spec in dict(zip(keys, specs, strict=True)).items()}
        return list(map(by_key.__getitem__, keys))

    def ask(
        self, rows: Sequence[int], values: list[Any], action: str, ask: Callable[[Home, list[Any]], list[T]]
    ) -> list[T]:
        """The answers of the homes of the values. Almost always there is one home, which is asked once for all values.
        `action` is what the error says leafwise was doing."""
        homes_of_values = self.homes_of(values)
        try:
            if len(homes_of_values) == 1:
                return ask(homes_of_values.pop(), values)
        except Exception:
            pass  # called for each array below, to report the path of the array that raises
        answers: list[T] = []
        for row, value in zip(rows, values, strict=True):
            try:
                answers += ask(self.home(value), [value])
            except Exception as error:
                raise asking_raised(self.row_text(row), action, error) from error
        return answers

    def rows_of(self, leaf: int) -> list[int]:
        """The rows of a leaf. The first one shows the whole leaf."""
        return [leaf, *self.further_rows.get(leaf, ())]

    def name(self, row: int) -> Name:
        role, axes = self.row_role(row)
        owner = self.type_name(self.row_nodes[row])
        return Name(self.row_path(row), owner, role, axes, self.row_op(row))

    def row_role(self, row: int) -> tuple[str | None, Axes]:
        node = self.row_nodes[row]
        owner = self.node_objects[node]
        name, value = self.row_names[row], self.row_values[row]
        return self.home(owner).role(owner, name, value, lambda: self.lineage(node))

    def row_roles(self, rows: Sequence[int]) -> list[tuple[str | None, Axes]]:
        """The roles and axes of many rows. A model has few kinds of leaves, and its home is called once for each."""
        known: dict[object, tuple[str | None, Axes]] = {}
        roles = []
        nodes, objects, names, values, home_of = (
            self.row_nodes, self.node_objects, self.row_names, self.row_values, self.home
        )  # fmt: skip
        for row in rows:
            owner = objects[nodes[row]]
            home = home_of(owner)
            key = home.role_key(owner, names[row], values[row])
            role = known.get(key) if key is not None else None
            if role is None:
                role = home.role(owner, names[row], values[row], partial(self.lineage, nodes[row]))
                if key is not None:
                    known[key] = role
            roles.append(role)
        return roles

    def leaf_of(self, row: int) -> Leaf:
        """The leaf of a row; for a view, as it is under that name. The same object while it is in use."""
        if row not in self.row_ops or self.row_ops[row] == "same":
            row = self.ties.get(row, row)
        leaf = self.made_leaves.get(row)
        if leaf is None:
            leaf = self.made_leaves[row] = Leaf(self, self.ties.get(row, row), row)
        return leaf

    def row_op(self, row: int) -> Op:
        return self.row_ops.get(row, SAME)


def _take(column: Sequence[T], rows: Sequence[int]) -> list[T]:
    """The values of a column at some rows; the column itself if these are all rows."""
    if rows == range(len(column)):
        return column if isinstance(column, list) else list(column)
    return [column[row] for row in rows]
