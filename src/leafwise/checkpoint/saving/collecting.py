"""What of a tree goes into a file: which rows are stored and which are tied to them, and the plain values."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from leafwise.checkpoint.plain_values import PlainValues
from leafwise.checkpoint.saving.write_arguments import is_text
from leafwise.core.columns import Columns
from leafwise.core.dotted import VirtualNode
from leafwise.core.home import Spec
from leafwise.core.memory.ops import SAME, Op
from leafwise.core.opaque import Opaque
from leafwise.core.path import escape
from leafwise.errors import WalkError
from leafwise.files.arrays.stored import ITEM_BYTES
from leafwise.files.formats.safetensors import CODES
from leafwise.files.plain_encoding import copied
from leafwise.files.record import KINDS

METADATA = "__metadata__"  # the key of the metadata of a file
LETTERS = {"parameter": "p", "buffer": "b", "state": "s"}  # of the kinds of leaves, in a file
assert set(LETTERS.values()) == set(KINDS)
_OWNERS = {"dcp": "PyTorch", "orbax": "Orbax"}  # formats that have every dtype that leafwise stores


def stored_and_tied(
    columns: Columns, rows: list[int], copies: bool = False, apart: Collection[int] = ()
) -> tuple[list[int], dict[int, tuple[int, Op]]]:
    """The rows to write; and those that are not written, because they are other names of rows that are. With `copies`,
    all rows are written. Rows in `apart` are written by themselves, whatever they are tied to."""
    if not columns.ties:
        return rows, {}
    chosen = set(rows).difference(apart)
    # If the first name of a leaf is not written, another name of all of it takes its place.
    bases = {leaf: leaf for leaf in chosen}
    for row in rows:
        if row in chosen and columns.row_op(row) == "same":
            bases.setdefault(columns.ties.get(row, row), row)
    first: dict[tuple[int, object], int] = {}  # leaf and view of it → the row that is written for it
    stored: list[int] = []
    tied: dict[int, tuple[int, Op]] = {}
    for row in rows:
        if row in apart:
            stored.append(row)
            continue
        leaf = columns.ties.get(row, row)
        op = columns.row_op(row)
        # A view that slices and an order of axes cannot describe is written separately.
        seen = (op, repr(op.slices), op.order) if op.is_described else row
        base = bases.get(leaf)
        if base is not None and row != base and op.is_described:
            tied[row] = base, op
        elif (leaf, seen) in first:
            tied[row] = first[leaf, seen], SAME
        else:
            first[leaf, seen] = row
            stored.append(row)
    if copies:
        return rows, tied
    return stored, tied


def plain_values_to_save(
    columns: Columns, values: PlainValues, of_file: bool, objects: dict[str, str] | None = None
) -> dict[str, Any]:
    """Copies of the plain values, by name. Raises for a value that a file cannot contain; with `objects`, it is added
    there instead, with what it is."""
    scalars: dict[str, Any] = {}
    for key, node, name, value in values.items:
        try:
            value = copied(value)  # so that changes during a background save do not affect the file
        except (TypeError, ValueError) as error:
            if objects is not None:
                objects[key] = str(error)
                continue
            if isinstance(value, Opaque):
                raise WalkError(
                    f"cannot save {columns.scalar_path(node, name, value)}: it is {error}; save only the part that you "
                    "need, as in lw.save(t['state_dict'], path), or convert the file with leafwise convert"
                ) from error
            raise WalkError(
                f"cannot save {columns.scalar_path(node, name, value)}: leafwise does not save {error}; leave the "
                "value out, or convert it to arrays, numbers, strings, bytes, None, or lists, tuples, sets and dicts "
                "of these"
            ) from error
        if key in scalars:
            where = columns.scalar_path(node, name, value)
            raise WalkError(f"cannot save {where}: another value has the name {key!r}, too; rename one of them")
        is_file_metadata = of_file and key.partition(".")[0] == METADATA
        if not is_file_metadata and (reason := cannot_be_a_name(key)):
            raise WalkError(f"cannot save {escape(key) or 'a value'}: {reason}")
        scalars[key] = value
    return scalars


def keyed_nodes(columns: Columns, below: int) -> frozenset[str]:
    """The names of the nodes that are directly in a dict or a list, without those that only stand for a part of a
    dotted key."""
    keys = columns.node_keys(below)
    return frozenset(
        key
        for node, key in keys.items()
        if node != below
        and isinstance(columns.node_objects[columns.node_parents[node]], dict | list | tuple)
        and not isinstance(columns.node_objects[node], VirtualNode)
    )


def cannot_store(dtype: str, format_name: str | None) -> str:
    """Why a format cannot store arrays of a dtype; empty if it can."""
    if dtype in ITEM_BYTES and (format_name in _OWNERS or dtype in CODES):
        return ""
    return f"{_OWNERS.get(format_name or '', 'safetensors')} cannot store {dtype}; cast it first"


def has_no_values(spec: Spec) -> str:
    """Why an array has no values that could be stored; empty if it has."""
    if spec.shape is None:
        return "its shape is not known yet; run a forward pass first"
    return "it is on meta and has no values; load or initialize the model first" if spec.device == "meta" else ""


def check_circles(columns: Columns, below: int) -> None:
    """Raises for nodes that the walk does not list, because they contain themselves or are repeated too often: they
    would be missing from the file."""
    for node in sorted(node for node in columns.listed_elsewhere if below < node < columns.node_ends[below]):
        first = columns.repeats[node]
        why = "which contains it" if node < columns.node_ends[first] else "which is repeated too often to be listed"
        raise WalkError(f"cannot save {columns.node_text(node)}: it is {columns.node_text(first) or 'the root'}, {why}")


def check_containers(scalars: Mapping[str, Any], arrays: Iterable[str]) -> None:
    """Raises if something in the file has a name below that of a container, whose items have such names, too."""
    containers = [name for name, value in scalars.items() if isinstance(value, list | tuple | dict) and value]
    names = sorted([*scalars, *arrays]) if containers else []
    for prefix in containers:
        at = bisect_left(names, f"{prefix}.")
        if at < len(names) and names[at].startswith(f"{prefix}."):
            raise WalkError(
                f"cannot save {escape(names[at])}: {escape(prefix)} is also a "
                f"{type(scalars[prefix]).__name__}, whose items have such names; rename one of them"
            )


def cannot_be_a_name(name: str) -> str:
    """Why a name cannot be used in a file; empty if it can."""
    if not is_text(name):
        return "its name contains an unpaired surrogate, which cannot be written as UTF-8"
    if name.partition(".")[0] == METADATA:
        return f"safetensors reserves the name {METADATA!r}; rename it"
    return "" if all(name.split(".")) else f"{name!r} has an empty entry, which a path cannot contain; rename it"
