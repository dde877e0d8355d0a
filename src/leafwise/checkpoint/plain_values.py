"""The plain values of a tree. A list of dicts of numbers is one plain value.

A container of plain values only is saved and loaded as one value, so that it is restored unchanged. A container that
also contains arrays is saved in parts, and its type is recorded under its key.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from leafwise.core.capabilities.saving import Saving
from leafwise.core.columns import Columns
from leafwise.core.tree import Tree
from leafwise.errors import WalkError
from leafwise.files.plain_encoding import CONTAINERS, TooDeepError, encoded
from leafwise.files.record import HeaderRecord, NodeType
from leafwise.files.stored_file import StoredFile


def record_of(columns: Columns) -> HeaderRecord | None:
    """What leafwise recorded in the file that a tree was opened from; None for other files, and in memory."""
    root = columns.node_objects[0]
    return root.record if isinstance(root, StoredFile) else None


def is_whole_content(key: str) -> bool:
    """Whether this is the key of everything in a file. Even if that is plain, it is saved in parts, which have names.

    >>> is_whole_content(""), is_whole_content("config")
    (True, False)
    """
    return not key


class PlainValue(NamedTuple):
    """A plain value: its key relative to the tree, the node that it belongs to, its name there, and the value."""

    key: str
    node: int
    name: str
    value: Any


class PlainValues:
    """The plain values of a tree in the order of the walk, and the types of the containers that are not plain values.

    A container whose key is in `apart` is split into parts although it is plain: another tree has a node there."""

    def __init__(self, t: Tree, apart: Callable[[str], bool] = lambda key: False) -> None:
        self._tree, self._columns, self._apart = t, t.columns, apart
        self._inside: set[int] = set()  # nodes that are, or are part of, a plain value
        self.items: list[PlainValue] = self._collected()

    @cached_property
    def _prefixes(self) -> dict[int, str]:
        """The key of each node. A model and a file may have a million nodes, none of which can be a plain value; their
        keys are then never made."""
        return self._columns.node_keys(self._tree.root)

    def _collected(self) -> list[PlainValue]:
        columns, root = self._columns, self._tree.root
        keys = {root: ""}  # only of containers
        numbered: list[tuple[int, PlainValue]] = []
        for node in range(root, columns.node_ends[root]):
            parent = columns.node_parents[node]
            if parent in self._inside:
                self._inside.add(node)
            elif node != root and _may_be_plain(columns, node):
                key = columns.node_key(node, keys)
                if not self._apart(key) and _is_plain(columns, node):
                    self._inside.add(node)
                    value = PlainValue(key, parent, columns.node_names[node], columns.node_objects[node])
                    numbered.append((node, value))
        for key, node, name, value in columns.scalar_items(self._tree.root):
            if node not in self._inside:
                numbered.append((node, PlainValue(key, node, name, value)))
        return [value for _, value in sorted(numbered, key=lambda pair: pair[0])]

    @cached_property
    def node_keys(self) -> set[str]:
        """The keys of all nodes that are not part of a plain value."""
        return {key for node, key in self._prefixes.items() if node not in self._inside}

    def empty_nodes(self) -> set[str]:
        """The keys of the nodes in which nothing is, such as the states of optax that have no fields."""
        columns = self._columns
        with_values = {value.node for value in self.items}
        return {
            key
            for node, key in self._prefixes.items()
            if columns.node_ends[node] == node + 1 and columns.row_ranges[node][0] >= columns.row_ranges[node][1]
            if node not in with_values and node not in self._inside
        }

    def node_types(self) -> dict[str, NodeType]:
        """The types of containers and optimizers, by key; for a file, the types that were saved. A dict whose keys are
        all names is not listed."""
        columns = self._columns
        record = record_of(columns)
        if record is not None:
            prefix = "".join(f"{name}." for name in self._tree.path.names)
            return {key.removeprefix(prefix): kind for key, kind in record.nodes.items() if key.startswith(prefix)}
        types = {}
        for node, key in self._prefixes.items():
            obj = columns.node_objects[node]
            kind = None if node in self._inside else columns.home(obj).capability(Saving).node_type(obj)
            if kind is not None:
                types[key] = NodeType(kind[0], _encodable(kind[1]))
        return types


# Types of containers that can be rebuilt from their items. For other types, the target must already have a container.
_MAKERS: dict[str, Callable[[dict[Any, Any]], Any]] = {
    "dict": dict,
    "list": lambda items: [items[str(number)] for number in range(len(items))],
    "tuple": lambda items: tuple(items[str(number)] for number in range(len(items))),
    "collections.OrderedDict": OrderedDict,
}


def can_be_made(kind: NodeType) -> bool:
    """Whether a container of this type can be rebuilt from its items."""
    return kind.type in _MAKERS


def assembled(flat: Mapping[str, Any], types: Mapping[str, NodeType]) -> Any:
    """Rebuilds nested containers from their items, given by dotted keys, and from their types.

    >>> types = {"old": NodeType("list"), "by": NodeType("dict", (("7", 7),))}
    >>> assembled({"step": 1, "old.0": 2, "old.1": 3, "by.7": 4}, types)
    {'step': 1, 'old': [2, 3], 'by': {7: 4}}
    """
    below = names_below((*flat, *types))

    def made(key: str) -> Any:
        if key in flat:
            return flat[key]
        kind = types.get(key)
        prefix = f"{key}." if key else ""
        if kind is not None and kind.keys is not None:
            items = {original: made(prefix + name) for name, original in kind.keys}
        else:
            items = {name: made(prefix + name) for name in below.get(key, ())}
        return items if kind is None else _MAKERS[kind.type](items)

    return made("")


def prefixes_of(name: str) -> list[str]:
    """The names of the nodes that a name is below, except the root.

    >>> prefixes_of("layers.0.weight")
    ['layers', 'layers.0']
    """
    entries = name.split(".")
    return [".".join(entries[:length]) for length in range(1, len(entries))]


def names_below(keys: Iterable[str]) -> dict[str, dict[str, None]]:
    """For each node above some dotted keys, the names directly below it, in order.

    >>> names_below(["old.0", "old.1"])
    {'': {'old': None}, 'old': {'0': None, '1': None}}
    """
    below: dict[str, dict[str, None]] = {}
    for key in keys:
        prefix = ""
        for name in key.split("."):
            below.setdefault(prefix, {})[name] = None
            prefix = f"{prefix}.{name}" if prefix else name
    return below


def _may_be_plain(columns: Columns, node: int) -> bool:
    """Whether a node is a container without arrays."""
    if type(columns.node_objects[node]) not in CONTAINERS:
        return False
    first, last = columns.row_ranges[node]
    return first >= last


def _is_plain(columns: Columns, node: int) -> bool:
    """Whether a container without arrays can be stored as JSON and restored unchanged."""
    try:
        encoded(columns.node_objects[node])
    except TooDeepError as error:
        raise WalkError(f"cannot save or load {columns.node_text(node)}: {error}") from error
    except (TypeError, ValueError):
        return False
    return True


def _encodable(keys: tuple[tuple[str, Any], ...] | None) -> tuple[tuple[str, Any], ...] | None:
    try:
        for _, key in keys or ():
            encoded(key)
    except (TypeError, ValueError):
        return None
    return keys
