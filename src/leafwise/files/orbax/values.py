"""What goes into an Orbax checkpoint: the keys of arrays and plain values, and how Orbax stores each."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from leafwise.core.path import escape
from leafwise.errors import WalkError
from leafwise.files.orbax.metadata import SCALAR, STRING, Keys, OrbaxKey, stored_name
from leafwise.files.plain_encoding import decoded, encoded
from leafwise.files.record import NodeType
from leafwise.files.sources.source import Source

NNX = "flax.nnx."  # begins the types of the modules and states of Flax NNX
_SEQUENCES = ("list", "tuple")
_EMPTY: dict[type, str] = {type(None): "None", dict: "Dict", list: "List", tuple: "Tuple"}


class OrbaxNames:
    """The keys of dotted names. The types of nodes say which are positions in lists, and which keys contain dots. In
    modules of Flax NNX no key is a position: their states have dicts for lists."""

    def __init__(self, nodes: Mapping[str, NodeType]) -> None:
        self._nodes = nodes
        self._dotted = {
            prefix: {name for name, _ in node.keys or () if "." in name} for prefix, node in nodes.items() if node.keys
        }

    def keys(self, name: str) -> Keys:
        """The keys of a dotted name.

        >>> OrbaxNames({"layers": NodeType("list")}).keys("layers.0.weight")
        (OrbaxKey(name='layers', is_position=False), OrbaxKey(name='0', is_position=True),
         OrbaxKey(name='weight', is_position=False))
        """
        keys: list[OrbaxKey] = []
        is_in_nnx = False
        prefix, parts = "", name.split(".")
        while parts:
            taken = 1
            if dotted := self._dotted.get(prefix):
                taken = next((end for end in range(len(parts), 1, -1) if ".".join(parts[:end]) in dotted), 1)
            key, parts = ".".join(parts[:taken]), parts[taken:]
            node = self._nodes.get(prefix)
            is_in_nnx = is_in_nnx or (node is not None and node.type.startswith(NNX))
            keys.append(OrbaxKey(key, node is not None and node.type in _SEQUENCES and not is_in_nnx))
            prefix = f"{prefix}.{key}" if prefix else key
        return tuple(keys)


class PlainLeaf(NamedTuple):
    """A plain value without parts: what Orbax calls its type, and the value."""

    kind: str
    value: Any


def plain_leaves(keys: Keys, value: Any) -> Iterator[tuple[Keys, PlainLeaf]]:
    """The parts of a plain value, each with its keys. Raises for one that Orbax cannot store."""
    kind = type(value)
    if value is None or (kind in _EMPTY and not value):
        yield keys, PlainLeaf(_EMPTY[kind], None)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from plain_leaves((*keys, OrbaxKey(str(key), False)), item)
    elif kind in (list, tuple):
        for number, item in enumerate(value):
            yield from plain_leaves((*keys, OrbaxKey(str(number), True)), item)
    elif kind is str:
        yield keys, PlainLeaf(STRING, value)
    elif kind in (bool, float) or (kind is int and -(1 << 63) <= value < 1 << 63) or _is_number(value):
        yield keys, PlainLeaf(SCALAR, value)
    else:
        what = f"the number {value:.3e}" if kind is int else f"a value of type {kind.__name__}"
        raise WalkError(
            f"cannot save {escape(stored_name(keys))}: Orbax cannot store {what}; leave it out, or save as safetensors"
        )


def _is_number(value: Any) -> bool:
    import numpy as np

    return isinstance(value, np.bool_ | np.integer | np.floating)


# -- types that Orbax does not keep --------------------------------------------------------------------------------


def type_rows(values: list[tuple[Keys, Any]]) -> list[Any]:
    """The plain values whose types Orbax does not keep, such as tuples, as JSON: the keys and the encoded value."""
    return [[[key.name for key in keys], encoded(value)] for keys, value in values if not _keeps_types(value)]


def restore_types(rows: Any, content: Any, source: Source) -> None:
    """Gives plain values in a tree the types of `type_rows`. A row is ignored if Orbax has other values there."""
    try:
        for names, row in rows:
            below = content
            for name in names[:-1]:
                below = below[int(name)] if isinstance(below, list) else below[name]
            last = int(names[-1]) if isinstance(below, list) else names[-1]
            value = decoded(row)
            if _flattened(value) == _flattened(below[last]):
                below[last] = value
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, WalkError) as error:
        raise source.error(0, f"leafwise's entry in it cannot be read ({error!r:.200})") from error


def _keeps_types(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and _keeps_types(item) for key, item in value.items())
    if type(value) is list:
        return all(map(_keeps_types, value))
    return type(value) in (type(None), bool, int, float, str) or value == ()


def _flattened(value: Any) -> dict[Keys, tuple[str, str]]:
    """What Orbax stores of a plain value."""
    leaves = plain_leaves((), value)
    return {
        keys: (leaf.kind, repr(leaf.value.item() if _is_number(leaf.value) else leaf.value)) for keys, leaf in leaves
    }


def with_whole_lists(all_keys: list[Keys]) -> list[Keys]:
    """The keys with positions only in lists without gaps: in others, Orbax would move the items up."""
    below: dict[Keys, set[str]] = {}
    for keys in all_keys:
        for depth, key in enumerate(keys):
            below.setdefault(keys[:depth], set()).add(key.name)
    whole = {keys for keys, names in below.items() if names == {str(number) for number in range(len(names))}}
    return [
        tuple(OrbaxKey(key.name, key.is_position and keys[:depth] in whole) for depth, key in enumerate(keys))
        for keys in all_keys
    ]
