"""Plain values of two trees, and keys of dicts: which belong together, and whether they are the same."""

from collections import deque
from enum import Enum
from math import copysign
from typing import Any

from leafwise.core.dotted import DistinctNames
from leafwise.core.opaque import Opaque, same_records
from leafwise.core.pairing.row_matching import Rename, Renaming, match_keys
from leafwise.core.path import quote
from leafwise.core.tree import Tree
from leafwise.errors import Unsupported


class PlainPairs:
    """Plain values of a source and a target that belong together by name, and values that only one of them has; each
    with its path. `keys` are pairs of keys that are objects of files: their names do not say all about them."""

    def __init__(self, source: Tree, target: Tree, rename: Rename) -> None:
        values, partners = _values_of(source), _values_of(target)
        keys, other_keys = _keys_of(source), _keys_of(target)
        self.keys = [(path, key, other_keys[path]) for path, key in keys.items() if path in other_keys]
        new_name = Renaming(rename)
        new_names = {key: new for key in values if (new := new_name(key)) is not None}
        partner_of = {new: partner for partner, new in match_keys(partners, new_names.values()).items()}
        self.pairs = [(values[key], partners[partner_of[new]]) for key, new in new_names.items() if new in partner_of]
        self.removed = [values[key] for key, new in new_names.items() if new not in partner_of]
        taken = set(partner_of.values())
        self.added = [value for key, value in partners.items() if key not in taken]


def _values_of(t: Tree) -> dict[str, tuple[str, Any]]:
    """The plain values of a tree with their paths, by name; without a file's metadata. Objects that were not loaded and
    contain arrays are among them, because their other attributes are nowhere else."""
    columns = t.columns
    if not t.is_whole:
        return {}
    objects: dict[str, tuple[str, Any]] = {}
    end = 0
    for node in columns.nodes_where(lambda home, obj: isinstance(obj, Opaque), t.root):
        if node >= end:  # not inside another one
            end = columns.node_ends[node]
            objects[f"{columns.node_text(node)} (object)"] = columns.node_text(node), columns.node_objects[node]
    return objects | {
        key: (str(columns.scalar_path(node, name, value)), value)
        for key, node, name, value in columns.scalar_items(t.root)
        if not (t.is_file and key.startswith("__metadata__."))
    }


def _keys_of(t: Tree) -> dict[str, Opaque]:
    """The keys of dicts that are objects which were not loaded, by paths that end with "(key)"."""
    columns = t.columns
    keys: dict[str, Opaque] = {}
    dicts = columns.nodes_where(lambda home, obj: isinstance(obj, dict), t.root) if t.is_file and t.is_whole else ()
    for node in dicts:
        objects = [key for key in columns.node_objects[node] if isinstance(key, Opaque)]
        names, prefix = DistinctNames(), [columns.node_text(node)] if objects and node else []
        for key in objects:
            keys[".".join([*prefix, quote(f"{names.of(str(key), '')} (key)")])] = key
    return keys


def compare_keys(key: Opaque, partner: Opaque) -> str:
    """Whether two keys with the same name are the `same` or `changed`; `unknown` if their arrays cannot be read."""
    try:
        return "same" if same_records(key, partner, with_arrays=True) else "changed"
    except Unsupported:
        return "unknown"


def compare_plain(value: Any, partner: Any) -> str:
    """Whether two plain values are the `same` or `changed`; `unknown` if that cannot be decided. A list equals a tuple
    with the same items, and a NumPy number the same Python number; nan equals nan, and -0.0 differs from 0.0."""
    try:
        return _compared(value, partner)
    except (RecursionError, Unsupported):  # it contains itself, or keys with arrays that cannot be read
        return "unknown"


def _compared(value: Any, partner: Any) -> str:
    value, partner = _as_number(value), _as_number(partner)
    are_deques = isinstance(value, deque) and isinstance(partner, deque)
    if are_deques or (isinstance(value, list | tuple) and isinstance(partner, list | tuple)):
        if len(value) != len(partner) or getattr(value, "maxlen", None) != getattr(partner, "maxlen", None):
            return "changed"
        kinds = set(map(_compared, value, partner))
        return next((kind for kind in ("changed", "unknown") if kind in kinds), "same")
    if isinstance(value, _PLAIN) and isinstance(partner, _PLAIN):
        return "same" if _same_number(value, partner) else "changed"
    if type(value) is not type(partner):
        return "changed"
    if isinstance(value, set | frozenset):
        texts = (sorted(f"{type(item).__name__} {item!r}" for item in items) for items in (value, partner))
        return "same" if next(texts) == next(texts) else "changed"
    if isinstance(value, Opaque):
        return "same" if same_records(value, partner) else "changed"
    return "same" if value is partner else _equal(value, partner)


def same_plain(value: Any, partner: Any) -> bool:
    """Whether two plain values are known to be the same."""
    return value is partner or compare_plain(value, partner) == "same"


_PLAIN = (str, bytes, int, float, complex, type(None))


def _as_number(value: Any) -> Any:
    """A NumPy number as a Python number; other values unchanged."""
    is_scalar = type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_scalar else value


def _same_number(value: Any, partner: Any) -> bool:
    if isinstance(value, bool) != isinstance(partner, bool):
        return False
    if isinstance(value, complex) or isinstance(partner, complex):
        are_numbers = all(isinstance(number, int | float | complex) for number in (value, partner))
        return are_numbers and _same_number(value.real, partner.real) and _same_number(value.imag, partner.imag)
    if value == partner:
        are_floats = isinstance(value, float) and isinstance(partner, float)
        return not are_floats or copysign(1, value) == copysign(1, partner)
    return bool(value != value and partner != partner)


def _equal(value: Any, partner: Any) -> str:
    """Compares two objects of one type with their own methods; dicts by their items, which may be unknown."""
    try:
        kind: Any = type(value)
        if isinstance(value, dict):
            if value.keys() == partner.keys():
                return _compared([*value.values()], [partner[key] for key in value])
            return _compared([*value.items()], [*partner.items()])
        if kind.__eq__ is object.__eq__:
            # For types with one object per value, such as enums and dtypes, another object is another value.
            return "changed" if isinstance(value, Enum | type) or isinstance(value.__reduce__(), str) else "unknown"
        results = (value == partner, value == value)  # of NumPy and PyTorch, they may be arrays
        equal, equals_itself = (each.item() if hasattr(each, "item") else each for each in results)
        if isinstance(equal, bool) and isinstance(equals_itself, bool):
            if equal or (not equals_itself and partner != partner):
                return "same"
            # A namespace or dataclass differs from another one if only an attribute cannot be compared.
            is_unknown = hasattr(value, "__dict__") and _equal(vars(value), vars(partner)) == "unknown"
            return "unknown" if is_unknown else "changed"
    except Exception:
        pass  # raised by the objects: nothing is known then
    return "unknown"
