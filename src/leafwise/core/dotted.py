"""Flat mappings with dotted keys (a state dict, a file) as nested nodes."""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import accumulate, repeat
from typing import Any, NamedTuple

from leafwise.core.path import Entry

# A key with more dots is not split: no model is that deep, and a hostile file must not take long.
MAX_DOTS = 200


class VirtualNode:
    """A node of the tree without an object of its own, such as the common prefix of some dotted keys.

    `prefix` ends with its dot, so that prefix and name together are the whole key.
    """

    __slots__ = ("children", "prefix")

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        # Pairs, not a dict: a file may have both `weight` and `weight.scale`.
        self.children: list[tuple[str, Any]] = []

    def entry(self, name: str, value: Any) -> Entry:
        """The entry of a child. A part of a key fetches nothing by itself; the last part fetches the whole key."""
        return Entry(name, "part") if isinstance(value, VirtualNode) else Entry(name, "key", self.prefix + name)


class DistinctNames:
    """Names for children of a node. Where 1 and "1" are both keys, the later one is called "1 (int)"; the next of the
    same type is "1 (int 2)". Without a type, they are numbered: "x (2)"."""

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._counts: dict[tuple[str, str], int] = {}

    def of(self, name: str, kind: str) -> str:
        """The name, or a variant that is not taken yet. It is taken afterwards."""
        distinct = name
        while distinct in self._taken:
            count = self._counts[name, kind] = self._counts.get((name, kind), 0) + 1
            if not kind:
                distinct = f"{name} ({count + 1})"
            else:
                distinct = f"{name} ({kind})" if count == 1 else f"{name} ({kind} {count})"
        self._taken.add(distinct)
        return distinct


def split(items: Iterable[tuple[str, Any]], make: Callable[[str], VirtualNode] = VirtualNode) -> VirtualNode:
    """The nodes that dotted keys describe, in the order of the keys.

    >>> root = split([("0.weight", 1), ("0.bias", 2), ("scale", 3)])
    >>> [name for name, _ in root.children]
    ['0', 'scale']
    """
    root = make("")
    nodes = {"": root}  # by their prefixes, each of which ends with its dot
    for key, value in items:
        head, dot, last = key.rpartition(".") if key.count(".") <= MAX_DOTS else ("", "", key)
        prefix = head + dot
        node = nodes.get(prefix)
        if node is None:
            # Almost always only the last node is missing.
            above, dot, name = head.rpartition(".")
            parent = nodes.get(above + dot)
            if parent is None:
                node = _add(nodes, prefix, make)
            else:
                node = nodes[prefix] = make(prefix)
                parent.children.append((name, node))
        node.children.append((last, value))
    return root


def prefixes_of(keys: Iterable[str]) -> set[str]:
    """The paths of the nodes that `split` makes for dotted keys. A plain value could not be reached at one of them.

    >>> sorted(prefixes_of(["a.b.c", "a.d", "e"]))
    ['a', 'a.b']
    """
    return {
        prefix
        for key in keys
        if key.count(".") <= MAX_DOTS
        for prefix in accumulate(key.split(".")[:-1], "{}.{}".format)
    }


def _add(nodes: dict[str, VirtualNode], prefix: str, make: Callable[[str], VirtualNode]) -> VirtualNode:
    """Makes the node of a prefix, and the missing nodes above it."""
    missing = []
    while prefix not in nodes:
        head, dot, name = prefix[:-1].rpartition(".")
        missing.append((prefix, name))
        prefix = head + dot
    node = nodes[prefix]
    for prefix, name in reversed(missing):
        below = nodes[prefix] = make(prefix)
        node.children.append((name, below))
        node = below
    return node


class PrefixPlaces(NamedTuple):
    """Where the prefixes of nodes are in a text of many names; one for each node, beginning with node 1."""

    text: str  # each name ends with a newline
    starts: Sequence[int]
    stops: Sequence[int]

    def names(self) -> list[str]:
        return self.text[:-1].split("\n")

    def prefix_of(self, node: int) -> str:
        return self.text[self.starts[node - 1] : self.stops[node - 1]]


class SplitNames(NamedTuple):
    """The nodes that dotted names describe, as columns in the order of a walk. Node 0 is above all of them, and the
    columns of nodes begin with node 1."""

    row_nodes: list[int]
    row_names: list[str]
    parents: list[int]
    node_names: list[str]
    prefixes: PrefixPlaces
    order: list[int] | None  # the position of each row among the names; None if they are in the order of a walk already


class Listing:
    """Many leaves with dotted names, whose nodes are already known. The walk copies the columns, instead of visiting
    one node after the other."""

    def __init__(self, names: SplitNames, leaves: list[Any]) -> None:
        self.names = names
        self.leaves = leaves  # in the order of the names

    def values(self) -> list[Any]:
        """The leaves in the order of a walk."""
        order = self.names.order
        return self.leaves if order is None else [self.leaves[position] for position in order]

    def nodes(self) -> "list[ListedNode]":
        """The nodes, beginning with node 1."""
        return list(map(ListedNode, repeat(self), range(1, len(self.names.parents) + 1)))

    @cached_property
    def nested(self) -> dict[str, VirtualNode]:
        """The same nodes with their children, by their prefixes."""
        nodes: dict[str, VirtualNode] = {}

        def make(prefix: str) -> VirtualNode:
            return nodes.setdefault(prefix, VirtualNode(prefix))

        split(zip(self.names.prefixes.names(), self.leaves, strict=True), make)
        return nodes


class ListedNode(VirtualNode):
    """A node of a listing. Its prefix and children are found when they are needed."""

    __slots__ = ("listing", "number")

    def __init__(self, listing: Listing, number: int) -> None:
        self.listing = listing
        self.number = number

    @property
    def prefix(self) -> str:  # type: ignore[override]
        return self.listing.names.prefixes.prefix_of(self.number)

    @property
    def children(self) -> list[tuple[str, Any]]:  # type: ignore[override]
        return self.listing.nested[self.prefix].children
