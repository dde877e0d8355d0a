"""Where a source keeps the optimizers of a target, and what it holds of them."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

from leafwise.checkpoint.plain_values import PlainValues
from leafwise.core.capabilities.stepping import is_optimizer
from leafwise.core.columns import Columns
from leafwise.core.match import Renaming
from leafwise.core.pairing import saved_rows
from leafwise.core.path import Path
from leafwise.core.tree import Tree
from leafwise.files.stored_file import StoredFile

_FIRST_GROUP = "param_groups.0.params"  # below the front of an optimizer; what it is known by in a source


class OptimizerFronts:
    """The optimizers of a target, by their nodes, and where the source keeps each: what the names of its state begin
    with in the target, and in the source."""

    def __init__(self, target: Tree, source: Tree, new_name: Renaming) -> None:
        columns = target.columns
        self.nodes = optimizer_nodes(columns, target.root)
        keys = columns.node_keys(target.root) if self.nodes else {}
        wanted = {f"{keys[node]}." if keys[node] else "" for node in self.nodes}
        self.source_of: dict[str, str] = {}
        if wanted:
            by_groups = _fronts_by_groups(source, new_name)
            self.source_of = {new: front for new, front in by_groups.items() if new in wanted}
            self.source_of |= _fronts_by_names(source, new_name, wanted - self.source_of.keys())
        self._target_rows = [columns.row_ranges[node] for node in self.nodes]

    def has_target_row(self, row: int) -> bool:
        """Whether a row of the target belongs to one of its optimizers."""
        return any(start <= row < stop for start, stop in self._target_rows)

    def has_source_name(self, name: str) -> bool:
        """Whether something in the source belongs to an optimizer that the target has, too."""
        return any(name.startswith(front) for front in self.source_of.values())


def optimizer_nodes(columns: Columns, below: int) -> list[int]:
    """The nodes that are optimizers."""
    return columns.nodes_where(is_optimizer, below)


def _fronts_by_groups(source: Tree, new_name: Renaming) -> dict[str, str]:
    """Where the source keeps optimizers: by the front that a rename gives it, the one it has."""
    fronts = {}
    for key, _, name, _ in source.columns.scalar_items(source.root):
        if name == "params" and f".{key}".endswith(f".{_FIRST_GROUP}"):
            new = new_name(key)
            if new is not None and f".{new}".endswith(f".{_FIRST_GROUP}"):
                fronts[new.removesuffix(_FIRST_GROUP)] = key.removesuffix(_FIRST_GROUP)
    return fronts


def _fronts_by_names(source: Tree, new_name: Renaming, wanted: set[str]) -> dict[str, str]:
    """Where the source keeps the state dicts of optimizers that write their own. These have no groups to know them by,
    and are looked for where the target has them."""
    fronts: dict[str, str] = {}
    if not wanted:
        return fronts
    columns = source.columns
    keys = columns.keys(saved_rows(source), source.root)
    for key in [*keys, *(key for key, _, _, _ in columns.scalar_items(source.root))]:
        new = new_name(key)
        for front in wanted - fronts.keys() if new is not None else ():
            assert new is not None
            rest = new[len(front) :]
            if new.startswith(front) and key.endswith(rest):
                fronts[front] = key.removesuffix(rest)
    return fronts


class SavedOptimizers:
    """Rows and plain values of the source by name; those of optimizers, whose names begin with `fronts`, as the
    optimizers' state dicts have them."""

    def __init__(self, source: Tree, fronts: Iterable[str]) -> None:
        columns = source.columns
        fronts = list(fronts)
        self.rows = dict(zip(columns.keys(source.rows, source.root), source.rows, strict=True))
        self._path = source.path.names
        single_values = {key: value for key, _, _, value in columns.scalar_items(source.root)}
        apart = {front.removesuffix(".") for front in fronts}
        for front in fronts:
            apart |= {f"{front}param_groups", f"{front}state"}
            for number, names in enumerate(self._groups(single_values, front)):
                apart.add(f"{front}param_groups.{number}")
                apart.update(_lineage(f"{front}state", names))
        self._names_beside_numbers = {
            key.removesuffix(".param_names"): value
            for key, value in single_values.items()
            if key.endswith(".param_names")
        }
        self._tree, self._fronts = source, {front.removesuffix(".") for front in fronts}
        plain_values = PlainValues(source, apart=apart.__contains__)
        self.values = {value.key: value.value for value in plain_values.items}
        self.types = plain_values.node_types()
        root = columns.node_objects[0]
        self.is_own_file = isinstance(root, StoredFile) and root.record is not None

    @cached_property
    def whole_values(self) -> dict[str, Any]:
        """Plain values as they were saved, also where they belong to an optimizer."""
        return {value.key: value.value for value in PlainValues(self._tree, apart=self._fronts.__contains__).items}

    def groups(self, front: str) -> list[list[str]]:
        """The names of the parameters of each group of an optimizer, seen from the tree."""
        return self._groups(self.values, front)

    def names_beside_numbers(self, front: str) -> list[list[str] | None]:
        """For each group of an optimizer, the names that PyTorch wrote beside the numbers of its parameters."""
        groups = range(len(self.groups(front)))
        return [self._names_beside_numbers.get(f"{front}param_groups.{number}") for number in groups]

    def _groups(self, values: dict[str, Any], front: str) -> list[list[str]]:
        groups: list[list[str]] = []
        while isinstance(params := values.get(f"{front}param_groups.{len(groups)}.params"), list | tuple):
            groups.append([seen_from(self._path, str(name)) for name in params])
        return groups


def _lineage(front: str, names: list[str]) -> set[str]:
    """The keys of all that leads to the state of parameters, and of these states."""
    keys = set()
    for name in names:
        key = front
        for part in name.split("."):
            key = f"{key}.{part}"
            keys.add(key)
    return keys


def seen_from(path: tuple[str, ...], name: str) -> str:
    """A name, given from the root, as seen from a path; the same where it is elsewhere."""
    names = Path.parse(name).names
    return ".".join(names[len(path) :] if path and names[: len(path)] == path else names)


def below(flat: dict[str, Any], front: str) -> dict[str, Any]:
    """What stands below a front, by what comes after it."""
    return {key[len(front) :]: value for key, value in flat.items() if key.startswith(front) and key != front}
