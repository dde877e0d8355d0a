"""The file `_METADATA` of an Orbax checkpoint: the keys of each value, and how the value is stored."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from leafwise.core.dotted import MAX_DOTS
from leafwise.core.opaque import Opaque
from leafwise.files.formats.safetensors import without_duplicates
from leafwise.files.limits import json_cost
from leafwise.files.sources.folder import Folder
from leafwise.files.sources.source import Source

METADATA = "_METADATA"
_VALUE = 1_000  # bytes of memory for a value, its keys and its array
SEQUENCE, MAPPING = 1, 2  # the types of keys

ARRAYS = frozenset({"jax.Array", "np.ndarray"})
SCALAR, STRING = "scalar", "string"
RANDOM_KEYS = "random_key_impl"
EMPTY: dict[str, Any] = {"None": None, "NamedTuple": None, "Dict": {}, "List": [], "Tuple": ()}


class OrbaxKey(NamedTuple):
    """A key of a path, and whether it is a position in a list or tuple."""

    name: str
    is_position: bool


Keys = tuple[OrbaxKey, ...]


def stored_name(keys: Keys) -> str:
    """The name under which Orbax stores a value."""
    return ".".join(key.name for key in keys)


class OrbaxValue(NamedTuple):
    """A value of the tree: its keys, and what Orbax calls its type."""

    keys: Keys
    kind: str

    @property
    def is_stored(self) -> bool:
        """Whether it is in zarr."""
        return self.kind in ARRAYS or self.kind == SCALAR

    @property
    def stored_name(self) -> str:
        return stored_name(self.keys)


class OrbaxMetadata(NamedTuple):
    """The content of the file."""

    values: list[OrbaxValue]
    is_database: bool
    zarr_version: int
    fills: bool  # whether chunks that are missing are zero
    custom: Any


def parsed_json(source: Source) -> Any:
    """The content of a JSON file, within the limits for opening a file."""
    source.limits.spend_bytes(source.size)
    text = bytes(source.read(0, source.size))
    source.limits.spend_bytes(3 * json_cost(text) // 2)  # the hook below builds lists of pairs
    try:
        return json.loads(text, object_pairs_hook=without_duplicates)
    except (ValueError, RecursionError) as error:
        raise source.error(0, "the file is not valid JSON; was the save or a copy of it interrupted?") from error


def json_in(folder: Folder, name: str) -> Any:
    """The content of a JSON file in a folder."""
    source = folder.open(name)
    try:
        return parsed_json(source)
    finally:
        source.close()


def under(content: Any, *keys: str) -> Any:
    """What nested dicts contain under some keys; None if it is missing, or something else than a dict is there."""
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def read(source: Source) -> OrbaxMetadata:
    """Reads the file."""
    content = parsed_json(source)
    rows = under(content, "tree_metadata")
    if not isinstance(rows, dict):
        raise source.error(0, "the file does not list the values of an Orbax checkpoint (tree_metadata)")
    source.limits.spend_bytes(_VALUE * len(rows))
    source.limits.spend_steps(20 * len(rows))
    flags = [content.get("use_ocdbt", True), content.get("use_zarr3", False)]
    if not all(type(flag) is bool for flag in flags):
        raise source.error(0, "use_ocdbt and use_zarr3 must be true or false")
    return OrbaxMetadata(
        [_value(source, name, row) for name, row in rows.items()],
        is_database=flags[0],
        zarr_version=3 if flags[1] else 2,
        fills=content.get("store_array_data_equal_to_fill_value") is not True,
        custom=content.get("custom_metadata"),
    )


def _value(source: Source, name: str, row: Any) -> OrbaxValue:
    keys, kind = under(row, "key_metadata"), under(row, "value_metadata", "value_type")
    if not isinstance(keys, list) or not isinstance(kind, str):
        raise source.error(0, f"the description of {name[:200]!a} has an unknown form")
    if len(keys) > MAX_DOTS:
        raise source.error(0, f"{name[:200]!a} has {len(keys):,} keys; leafwise reads at most {MAX_DOTS}")
    source.limits.spend_bytes(200 * len(keys))
    return OrbaxValue(tuple(_key(source, name, key) for key in keys), kind)


def _key(source: Source, name: str, key: Any) -> OrbaxKey:
    text, kind = under(key, "key"), under(key, "key_type")
    if not isinstance(text, str) or type(kind) is not int or kind not in (SEQUENCE, MAPPING):
        raise source.error(0, f"a key of {name[:200]!a} has an unknown form")
    return OrbaxKey(text, kind == SEQUENCE)


def nested(source: Source, values: list[tuple[OrbaxValue, Any]]) -> Any:
    """The tree of the values: dicts and lists. A list of which positions are missing becomes a dict."""
    if len(values) == 1 and not values[0][0].keys:
        return values[0][1]
    root: _Node = _Node()
    for value, content in values:
        if not value.keys:
            raise source.error(0, "a value without a key is beside other values")
        node = root
        for key in value.keys[:-1]:
            below = node.children.setdefault(key.name, _Node())
            if not isinstance(below, _Node):
                raise source.error(0, f"{key.name[:200]!a} is both a value and a container of others")
            node.positions.append(key.is_position)
            node = below
        last = value.keys[-1]
        if last.name in node.children:
            raise source.error(0, f"the value {value.stored_name[:200]!a} is there twice")
        node.positions.append(last.is_position)
        node.children[last.name] = content
    return root.made()


class _Node:
    """A container that is being filled: its children, and for each key that was added whether it is a position."""

    __slots__ = ("children", "positions")

    def __init__(self) -> None:
        self.children: dict[str, Any] = {}
        self.positions: list[bool] = []

    def made(self) -> Any:
        children = {name: child.made() if isinstance(child, _Node) else child for name, child in self.children.items()}
        numbers = [str(number) for number in range(len(children))]
        if self.positions and all(self.positions) and set(numbers) == children.keys():
            return [children[number] for number in numbers]
        return children


def text_of(values: Mapping[Keys, str], custom: dict[str, Any]) -> str:
    """The file for values, given by their keys, each with what Orbax calls its type; and for metadata of the user."""
    rows = {}
    for keys, kind in values.items():
        rows[str(tuple(key.name for key in keys))] = {
            "key_metadata": [{"key": key.name, "key_type": SEQUENCE if key.is_position else MAPPING} for key in keys],
            "value_metadata": {"value_type": kind, "skip_deserialize": kind in EMPTY},
        }
    return json.dumps(
        {
            "tree_metadata": rows,
            "use_ocdbt": True,
            "use_zarr3": False,
            "store_array_data_equal_to_fill_value": True,
            "custom_metadata": custom or None,
        }
    )


def empty_or_inert(kind: str) -> Any:
    """The value of a type that needs no file; for an unknown type, an object that stands for it."""
    if kind in EMPTY:
        value = EMPTY[kind]
        return value.copy() if isinstance(value, dict | list) else value
    return Opaque(kind[:200])
