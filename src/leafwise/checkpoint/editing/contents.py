"""What a checkpoint contains, in a form that can be changed before it is written."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

from leafwise.checkpoint.plain_values import PlainValues, is_whole_content, prefixes_of, record_of
from leafwise.checkpoint.saving.collecting import (
    LETTERS,
    METADATA,
    has_no_values,
    plain_values_to_save,
    stored_and_tied,
)
from leafwise.core.home import Spec
from leafwise.core.memory.ops import Op
from leafwise.core.pairing.row_pairs import saved_rows
from leafwise.core.parts import not_understood
from leafwise.core.query import Query
from leafwise.core.roles.recipes import Recipe, Taken
from leafwise.core.tree import Tree
from leafwise.files.arrays.assembled import Assembled
from leafwise.files.arrays.live import Live
from leafwise.files.arrays.stored import ITEM_BYTES, Stored
from leafwise.files.casts import CastArray
from leafwise.files.orbax.zarr_arrays import SMALL_INTEGERS
from leafwise.files.record import NodeType, Role
from leafwise.files.stored_file import StoredFile

_INDEX_TOTALS = ("total_size", "total_parameters")  # in the metadata of an index of shards; they describe the source


@dataclass
class EditedArray:
    """An array to write: the recipe that makes it from arrays of the source, its dtype, kind and role, and what was
    changed."""

    recipe: Recipe
    dtype: str
    kind: str
    role: Role
    order: tuple[int, ...] | None = None  # the order of axes in memory, if it was saved from another than C order
    changes: list[str] = field(default_factory=list)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.recipe.shape

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def changed(self, recipe: Recipe, how: str) -> None:
        """Replaces the recipe."""
        self.recipe = recipe
        self.order = None
        self.changes.append(how)


class TiedName(NamedTuple):
    """A further name: the array that it is a name of, and which view of it."""

    of: str
    op: Op
    role: Role


class Contents:
    """The arrays, ties, plain values, types of nodes and metadata of a checkpoint.

    `values` are the arrays that recipes refer to, by their names in the source. `objects` are values that a file cannot
    contain, with what they are."""

    def __init__(self) -> None:
        self.values: dict[str, Stored] = {}
        self.arrays: dict[str, EditedArray] = {}
        self.ties: dict[str, TiedName] = {}
        self.scalars: dict[str, Any] = {}
        self.nodes: dict[str, NodeType] = {}
        self.empty_nodes: frozenset[str] = frozenset()  # nodes that were empty in the source
        self.metadata: dict[str, str] = {}
        self.objects: dict[str, str] = {}

    def names(self) -> list[str]:
        """All names of arrays."""
        return [*self.arrays, *self.ties]

    def stored_name(self, name: str) -> str:
        """The name under which the array with this name is stored."""
        return self.ties[name].of if name in self.ties else name

    def value_of(self, recipe: Recipe) -> Stored:
        """The array that a recipe makes, in the dtype of its inputs."""
        if isinstance(recipe, Taken):
            return self.values[recipe.name]
        return Assembled(recipe, {name: self.values[name] for name in recipe.names()})

    def names_of(self, stored: str) -> list[str]:
        """All names of a stored array."""
        return [stored, *(name for name, tied in self.ties.items() if tied.of == stored)]


class SourceRows:
    """The rows of a tree that an edit starts from, by name."""

    def __init__(self, t: Tree) -> None:
        columns = t.columns
        rows = saved_rows(t)
        self.tree, self.columns = t, columns
        keys = columns.keys(rows, t.root)
        self.rows: dict[str, int] = dict(zip(keys, rows, strict=True))
        # A key with a dot and a key in a nested dict may have the same name.
        self.ambiguous = (
            sorted({key for key, times in Counter(keys).items() if times > 1}) if len(self.rows) < len(rows) else []
        )
        self.not_stored = len(t.rows) - len(rows)  # arrays that are not part of a state dict

    @cached_property
    def names_by_row(self) -> dict[int, str]:
        return {row: name for name, row in self.rows.items()}

    def spec(self, name: str) -> Spec:
        value = self.columns.current(self.rows[name])
        return self.columns.home(value).spec(value)

    def op(self, name: str) -> Op:
        """Which view of its leaf a name is."""
        return self.columns.row_op(self.rows[name])

    def is_tied(self, name: str, to: str, op: Op) -> bool:
        """Whether two names are names of one leaf: the second of all of it, and the first as `op` says."""
        ties = self.columns.ties
        row, other = self.rows[name], self.rows[to]
        own = self.op(name)
        if ties.get(row, row) != ties.get(other, other) or self.op(to) != "same":
            return False
        return (own, own.slices, own.order) == (op, op.slices, op.order)

    def matching(self, query: Any) -> list[str]:
        """The names that a query matches."""
        names = self.names_by_row
        rows = Query.of(query).names(self.columns, self.tree.root, list(names))
        return [names[row] for row in rows if row in names]

    def value(self, name: str) -> Stored:
        """The array with this name, in a dtype that can be computed with and stored."""
        row = self.rows[name]
        value = self.columns.current(row)
        if not isinstance(value, Stored):
            return Live(self.columns.home(value), value)
        dtype = value.spec.dtype if value.spec.dtype in ITEM_BYTES else "float32"
        # Quantized, packed and sparse values are decoded, so that they have as many bytes as elements.
        is_plain = dtype == value.spec.dtype and value.spec.nbytes == value.spec.size * ITEM_BYTES[dtype]
        return value if is_plain else CastArray(value, dtype)


def add_arrays(
    contents: Contents,
    source: SourceRows,
    names: Collection[str],
    apart: Collection[str],
    values: Mapping[str, Stored],
) -> None:
    """Adds the arrays with these names and their ties. Names in `apart` are stored by themselves. `values` replaces
    values of the source."""
    columns = source.columns
    rows = [source.rows[name] for name in names]
    stored, tied = stored_and_tied(columns, rows, apart={source.rows[name] for name in apart})
    names_by_row = source.names_by_row
    record = record_of(columns) if not source.tree.root else None
    orders = {} if record is None else record.orders
    for row, facts, role in zip(stored, columns.facts(stored), columns.row_roles(stored), strict=True):
        name = names_by_row[row]
        value = values[name] if name in values else source.value(name)
        contents.values[name] = value
        recipe = Taken(name, value.spec.shape or ())
        contents.arrays[name] = EditedArray(recipe, value.spec.dtype, LETTERS[facts.kind], role, orders.get(name))
    for row, (of, op) in tied.items():
        name = names_by_row[row]
        contents.values[name] = values[name] if name in values else source.value(name)
        contents.ties[name] = TiedName(names_by_row[of], op, columns.row_role(row))


def add_plain_values(contents: Contents, t: Tree) -> None:
    """Adds the plain values of a tree, the types of its nodes, and the metadata of its file."""
    values = PlainValues(t, apart=is_whole_content)
    contents.scalars = plain_values_to_save(t.columns, values, t.is_file, contents.objects)
    contents.nodes = values.node_types()
    used = (*t.columns.keys(list(t.rows), t.root), *contents.scalars, *contents.objects)
    inner = {prefix for name in used for prefix in ("", *prefixes_of(name))}
    contents.empty_nodes = frozenset(contents.nodes.keys() - inner)
    root = t.columns.node_objects[0]
    metadata = root.metadata if isinstance(root, StoredFile) and not t.root else {}
    contents.metadata = {str(key): value for key, value in metadata.items() if isinstance(value, str)}
    # Text goes into the header, as in the source. Other values, such as those of GGUF, stay plain values.
    others = contents.scalars.get(METADATA)
    if isinstance(others, dict):
        others = {
            key: value for key, value in others.items() if not isinstance(value, str) and key not in _INDEX_TOTALS
        }
        contents.scalars = {**contents.scalars, METADATA: others}
    if not others:
        contents.scalars.pop(METADATA, None)
    # The files of a pipeline have metadata, too, each below the name of its component.
    for name in [name for name in contents.scalars if METADATA in name.split(".")[1:]]:
        del contents.scalars[name]


def unreadable(source: SourceRows, names: Sequence[str]) -> dict[str, str]:
    """Why some of the arrays cannot be read, by name."""
    columns = source.columns
    reasons: dict[str, str] = {}
    names_by_row = source.names_by_row
    for row, reason in not_understood(source.tree).items():
        further = columns.rows_of(columns.ties.get(row, row))
        reasons |= {names_by_row[other]: reason for other in further if other in names_by_row}
    for name in names:
        value = columns.current(source.rows[name])
        spec = columns.home(value).spec(value)
        if reason := columns.home(value).cannot_read(value) or has_no_values(spec):
            reasons.setdefault(name, reason)
        elif spec.dtype in SMALL_INTEGERS:
            reasons.setdefault(name, f"leafwise does not convert {spec.dtype}; drop it, or cast it where it was made")
    return {name: reason for name, reason in reasons.items() if name in set(names)}
