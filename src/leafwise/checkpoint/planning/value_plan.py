"""Plans the plain values: which values of the source become values of the target.

The source may have plain numbers of the model as arrays: the step of a training run in JAX is a Python int at first,
and an array after the first step that was compiled.
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, NamedTuple

from leafwise.checkpoint.plain_values import PlainValue, PlainValues, record_of
from leafwise.checkpoint.planning.plan import Plan, few, the_source
from leafwise.checkpoint.planning.saved_optimizers import OptimizerPrefixes
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.columns import Columns
from leafwise.core.dtypes import DTYPES
from leafwise.core.leaf import shape_text
from leafwise.core.opaque import Opaque
from leafwise.core.pairing.row_matching import Renaming, match_keys
from leafwise.core.pairing.row_pairs import Pairing
from leafwise.core.path import listed, plural
from leafwise.core.tree import Tree
from leafwise.errors import QueryError
from leafwise.files.arrays.stored import Stored
from leafwise.files.plain_encoding import as_loaded, identical
from leafwise.files.reading import checked_reads

# The kinds of arrays whose single value is exactly a value of the type.
_KINDS: dict[type, str] = {bool: "bool", int: "int", float: "float"}


class StoredNumbers(NamedTuple):
    """`values` are the numbers by the key that the model has for them, and `misfits` say why others cannot be used."""

    values: dict[str, Any]
    misfits: dict[str, str]


def stored_numbers(plan: Plan, pairing: Pairing, wanted: dict[str, PlainValue]) -> StoredNumbers:
    """Finds the arrays of the source that are plain numbers in the model. Those that are used are no longer left."""
    stored = StoredNumbers({}, {})
    numbers = [key for key, plain in wanted.items() if type(plain.value) in _KINDS]
    if not numbers or not pairing.sources_left or plan.is_carried:
        return stored
    new_names = {pairing.new_name(pairing.source.name_of[row]): row for row in pairing.sources_left}
    columns = plan.source.columns
    used = set()
    for key, new in match_keys(numbers, [name for name in new_names if name is not None]).items():
        row, kind = new_names[new], type(wanted[key].value)
        value = columns.current(row)
        home = columns.home(value)
        spec = home.spec(value)
        if spec.shape != () or spec.dtype not in DTYPES or DTYPES[spec.dtype].kind != _KINDS[kind]:
            article = "an" if kind is int else "a"
            stored.misfits[key] = (
                f"{key} is {article} {kind.__name__} in the model but an array ({shape_text(spec.shape)} {spec.dtype}) "
                f"in {the_source(plan.source)}; make it such an array in the model"
            )
        elif not home.cannot_read(value):
            if isinstance(value, Stored):
                checked_reads.verify_arrays([(key, value)])
            stored.values[key] = kind(home.read(value))
            used.add(row)
    pairing.sources_left = [row for row in pairing.sources_left if row not in used]
    return stored


def plan_values(
    plan: Plan,
    new_name: Renaming,
    optimizers: OptimizerPrefixes,
    target: tuple[PlainValues, dict[str, PlainValue], StoredNumbers],
) -> None:
    target_values, wanted, numbers = target

    def has_node(key: str) -> bool:
        return not _is_metadata(plan.source, key) and new_name(key) in target_values.node_keys

    source_values = PlainValues(plan.source, apart=has_node)
    given: dict[str, Any] = {}  # values of the source by their new names
    for key, plain in values_of(plan.source, source_values).items():
        if optimizers.has_source_name(key):
            continue
        new = new_name(key)
        if new in given:
            raise QueryError(f"rename= gives two values the same name, {new!r}")
        if new is not None:
            given[new] = as_loaded(plain.value) if plan.source.is_file else _copied(plain.value)
    source_of = match_keys(wanted, given)
    is_in_pieces = _in_pieces(plan.source, new_name, source_values)
    taken: set[str] = set()
    missing: dict[str, int] = {}  # values that the source does not have, and the nodes that they belong to
    for key, (_, node, name, now) in wanted.items():
        if key in source_of:
            taken.add(source_of[key])
            value = given[source_of[key]]
            if isinstance(value, Opaque):
                message = (
                    f"{key} is an object of class {value.class_name} in {the_source(plan.source)}, which leafwise does "
                    f"not load; leave {key} out of what you load into, or load it with PyTorch"
                )
                plan.add("unsupported", key, message)
            else:
                plan.scalars[node, name] = value
            continue
        if key in numbers.values:
            plan.scalars[node, name] = numbers.values[key]
            continue
        prefix = f"{key}."
        inside = {name[len(prefix) :]: value for name, value in given.items() if name.startswith(prefix)}
        if inside and not is_in_pieces(key) and set(inside) == (parts := _parts(now)).keys():
            # A container that is one value here but in parts in the source, as in distributed checkpoints of PyTorch.
            taken.update(prefix + part for part in inside)
            plan.scalars[node, name] = _with_parts(now, {parts[part]: value for part, value in inside.items()})
        elif inside:
            taken.update(prefix + part for part in inside)
            plan.add("missing", key, _in_pieces_message(plan, key, now, list(inside), is_in_pieces(key)))
        else:
            missing[key] = node
    _report_missing(plan, missing, numbers.misfits)
    _refuse_irreplaceable(plan, wanted)
    _refuse_contradictions(plan, wanted)
    _report_unused(plan, {key: value for key, value in given.items() if key not in taken}, target_values)


def _copied(value: Any) -> Any:
    """A copy, so that a live source and the target do not share a list."""
    try:
        return deepcopy(value)
    except Exception:  # of a lock, a generator or the like
        return Opaque(f"{type(value).__module__}.{type(value).__qualname__}")


def _stands_for_empty(key: str, value: Any, empty: set[str]) -> bool:
    """Whether a value of a file without leafwise's record stands for nodes in which nothing is. Orbax stores None for
    an `EmptyState` of optax, also below it, if it is in a Variable of Flax NNX."""
    if value is None:
        return key in empty or key.rpartition(".")[0] in empty
    if type(value) not in (dict, list) or not value:
        return False
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    return all(_stands_for_empty(f"{key}.{name}", item, empty) for name, item in items)


def _report_missing(plan: Plan, missing: dict[str, int], misfits: Mapping[str, str]) -> None:
    """Reports values that the source does not have, or not as plain values, for the reasons in `misfits`. Layers of
    another framework have other settings, so those of the model keep their values."""
    kept = [
        key
        for key, node in missing.items()
        if plan.may_be_carried and key not in misfits and _is_in_layer(plan.target.columns, node)
    ]
    for key in (key for key in missing if key not in set(kept)):
        reason = misfits.get(key) or f"{key} is in the model but not in {the_source(plan.source)}"
        plan.add("missing", key, reason)
    if kept:
        values = plural(len(kept), "plain value keeps its value", "plain values keep their values")
        plan.notes.append(f"{values}, because settings are not carried between frameworks: {listed(kept, 3)}")


def _is_in_layer(columns: Columns, node: int) -> bool:
    """Whether a node is a layer or is inside one."""
    while not columns.home(columns.node_objects[node]).roles_by_class:
        if not node:
            return False
        node = columns.node_parents[node]
    return True


def _refuse_irreplaceable(plan: Plan, wanted: dict[str, PlainValue]) -> None:
    """Refuses plain values that would change but belong to nodes whose values cannot be replaced."""
    columns = plan.target.columns
    for key, (_, node, name, now) in wanted.items():
        if (node, name) in plan.scalars:
            owner = columns.node_objects[node]
            reason = columns.home(owner).capability(Rebuilding).cannot_replace(owner)
            if reason and identical(plan.scalars[node, name], now):
                del plan.scalars[node, name]
            elif reason:
                new = plan.scalars[node, name]
                message = f"{key} is {now!r} in the model but {new!r} in {the_source(plan.source)}; {reason}"
                plan.add("unsupported", key, message)


def _refuse_contradictions(plan: Plan, wanted: dict[str, PlainValue]) -> None:
    """Refuses two different values for a container that has two names in the target."""
    columns = plan.target.columns
    first: dict[tuple[int, str], tuple[str, Any]] = {}
    for key, (_, node, name, _) in wanted.items():
        if (node, name) not in plan.scalars:
            continue
        value = plan.scalars[node, name]
        first_key, first_value = first.setdefault((id(columns.node_objects[node]), name), (key, value))
        if first_key != key and not identical(value, first_value):
            message = (
                f"{first_key} and {key} are the same value in the model, but {the_source(plan.source)} has different "
                "values for them"
            )
            plan.add("unsupported", key, message)


def _in_pieces(source: Tree, new_name: Renaming, values: PlainValues) -> Callable[[str], bool]:
    """Whether the source records that a container contains arrays, or is of a type that leafwise cannot rebuild."""

    @cache
    def new_keys() -> list[str]:  # made when they are needed: there may be a million names, and no container
        keys = [*values.node_types(), *source.columns.keys(source.rows, source.root)]
        return [new for key in keys if (new := new_name(key)) is not None]

    return lambda container: any(key == container or key.startswith(f"{container}.") for key in new_keys())


def _in_pieces_message(plan: Plan, key: str, now: Any, parts: list[str], is_known: bool) -> str:
    names = few([f"{key}.{part}" for part in parts])
    reason = (
        "because it contained arrays or is of a type that leafwise cannot rebuild; the model needs a container of the "
        "same kind"
        if is_known
        else "and its type is not known; the model needs a container with exactly these parts"
    )
    return f"{key} is stored in parts in {the_source(plan.source)} ({names}), {reason}, but has {now!r:.60}"


ItemPath = tuple[Any, ...]
_NEVER_IN_PIECES = frozenset({str, int, float, complex, bool, bytes, type(None)})  # a list of these is one value


def _parts(value: Any, item_path: ItemPath = (), names: tuple[str, ...] = ()) -> dict[str, ItemPath]:
    """The keys and indices that lead to each value inside a container, by its path below the container."""
    items: Iterable[tuple[Any, Any]] = ()
    if type(value) is dict:
        items = value.items()
    elif type(value) in (list, tuple) and not _NEVER_IN_PIECES.issuperset(map(type, value)):
        items = enumerate(value)
    parts: dict[str, ItemPath] = {}
    for item_key, item in items:
        parts |= _parts(item, (*item_path, item_key), (*names, str(item_key)))
    return parts or {".".join(names): item_path}


def _with_parts(value: Any, new: dict[ItemPath, Any], item_path: ItemPath = ()) -> Any:
    """A copy of a container with new values, given by the keys and indices that lead to them."""
    if item_path in new:
        return new[item_path]
    if type(value) is dict:
        return {key: _with_parts(item, new, (*item_path, key)) for key, item in value.items()}
    return type(value)(_with_parts(item, new, (*item_path, number)) for number, item in enumerate(value))


def _report_unused(plan: Plan, values: Mapping[str, Any], target_values: PlainValues) -> None:
    """Reports values of the source that are not used. A value inside a container that the target has would be lost, so
    it is unexpected; other values are only noted. Settings of another framework are not even noted."""
    if plan.is_carried:
        return
    unused = list(values)
    if unused and record_of(plan.source.columns) is None:
        empty = target_values.empty_nodes()
        unused = [key for key in unused if not _stands_for_empty(key, values[key], empty)]
    columns = plan.target.columns
    keys = columns.node_keys(plan.target.root) if unused else {}
    holding = {key for node, key in keys.items() if key and _must_be_whole(columns, node)}
    root = columns.node_objects[plan.target.root]
    lost = [
        key
        for key in unused
        if isinstance(root, list | tuple) or any(key.startswith(f"{prefix}.") for prefix in holding)
    ]
    for key in lost:
        plan.add("unexpected", key, f"the value {key} is in {the_source(plan.source)} but not in the model")
    unused = [key for key in unused if key not in set(lost)] if lost else unused
    if unused:
        count = plural(len(unused), "plain value", "plain values")
        plan.notes.append(f"{count} of {the_source(plan.source)} not used: {few(unused, 4)}")


def _must_be_whole(columns: Columns, node: int) -> bool:
    """Whether a node of the target must be restored exactly as it was saved: a container below the outermost one, or an
    object with a state dict."""
    obj = columns.node_objects[node]
    rebuilding = columns.home(obj).capability(Rebuilding)
    return rebuilding.shows_copies(obj) or rebuilding.is_container(obj)


def values_of(t: Tree, values: PlainValues, excluded: Iterable[int] = ()) -> dict[str, PlainValue]:
    """The plain values of a tree by name, without the metadata of a file and without values below excluded nodes."""
    if not t.is_whole:
        return {}
    skipped = [range(node, t.columns.node_ends[node]) for node in excluded]
    return {
        value.key: value
        for value in values.items
        if not any(value.node in nodes for nodes in skipped) and not _is_metadata(t, value.key)
    }


def _is_metadata(t: Tree, key: str) -> bool:
    """Whether a plain value belongs to the metadata of a file."""
    return t.is_file and f"{key}.".startswith("__metadata__.")
