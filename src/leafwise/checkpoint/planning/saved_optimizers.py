"""Where the source stores the optimizers of the target, and what it stores for them."""

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from leafwise.checkpoint.plain_values import PlainValues, prefixes_of, record_of
from leafwise.core.dotted import VirtualNode
from leafwise.core.pairing.plain_pairs import same_plain
from leafwise.core.pairing.row_matching import Renaming
from leafwise.core.pairing.row_pairs import saved_rows
from leafwise.core.path import Path
from leafwise.core.roles.section_keys import OPTIMIZER
from leafwise.core.tree import Tree
from leafwise.files.arrays.stored import same_values

_GROUPS = "param_groups."
_FIRST_GROUP = f"{_GROUPS}0.params"  # below the prefix of an optimizer; identifies an optimizer in a source


class OptimizerPrefixes:
    """The optimizers of a target, by node, and where the source stores each of them: `source_of` maps the prefix of its
    names in the target to their prefix in the source."""

    def __init__(self, target: Tree, source: Tree, new_name: Renaming) -> None:
        columns = target.columns
        self.nodes = columns.optimizers(target.root)
        keys = columns.node_keys(target.root) if self.nodes else {}
        wanted = {f"{keys[node]}." if keys[node] else "" for node in self.nodes}
        self.source_of: dict[str, str] = {}
        if wanted:
            by_groups = _prefixes_by_groups(source, new_name)
            self.source_of = {new: prefix for new, prefix in by_groups.items() if new in wanted}
            self.source_of |= _prefixes_by_names(source, new_name, wanted - self.source_of.keys())
            self.source_of |= _only_one(wanted - self.source_of.keys(), by_groups, self.source_of)
        self._target_rows = [columns.row_ranges[node] for node in self.nodes]

    def has_target_row(self, row: int) -> bool:
        """Whether a row of the target belongs to one of its optimizers."""
        return any(start <= row < stop for start, stop in self._target_rows)

    def has_source_name(self, name: str) -> bool:
        """Whether a name of the source belongs to an optimizer that is also in the target."""
        return any(name.startswith(prefix) for prefix in self.source_of.values())


def _prefixes_by_groups(source: Tree, new_name: Renaming) -> dict[str, str]:
    """Where the source stores optimizers: their prefixes after renaming, mapped to those in the source."""
    prefixes = {}
    for key, _, name, _ in source.columns.scalar_items(source.root):
        end = _FIRST_GROUP if name == "params" and f".{key}".endswith(f".{_FIRST_GROUP}") else _option(key)
        new = new_name(key) if end else None
        if new is not None and f".{new}".endswith(f".{end}"):
            prefixes[new.removesuffix(end)] = key.removesuffix(end)
    return prefixes


def _option(key: str) -> str:
    """The end of the name of an option in a state dict that PyTorch flattened, such as `param_groups.0.weight.lr`: it
    has the options of each parameter instead of groups. Empty if it is not one.

    >>> _option("optimizer.param_groups.0.weight.lr"), _option("optimizer.param_groups.0.lr")
    ('param_groups.0.weight.lr', '')
    """
    _, groups, rest = f".{key}".partition(f".{_GROUPS}")
    parameter, _, option = rest.rpartition(".")
    return f"{_GROUPS}{rest}" if groups and option and parameter and not parameter.isdecimal() else ""


def _only_one(wanted: set[str], saved: dict[str, str], used: dict[str, str]) -> dict[str, str]:
    """If one optimizer has no counterpart, and the source has one that nothing else uses, under a name that training
    programs use for it, it is meant."""
    left = {new: prefix for new, prefix in saved.items() if prefix not in used.values()}
    if len(wanted) != 1 or len(left) != 1:
        return {}
    ((new, prefix),) = left.items()
    names = {re.sub(r"_?\d+$", "", name) for name in new.lower().split(".") if not name.isdecimal()} - {""}
    return dict.fromkeys(wanted, prefix) if names <= OPTIMIZER else {}


def _prefixes_by_names(source: Tree, new_name: Renaming, wanted: set[str]) -> dict[str, str]:
    """Where the source stores the state dicts of optimizers that write their own. They have no groups to identify them,
    so they are searched for under the names that they have in the target."""
    prefixes: dict[str, str] = {}
    if not wanted:
        return prefixes
    columns = source.columns
    keys = columns.keys(saved_rows(source), source.root)
    for key in [*keys, *(key for key, _, _, _ in columns.scalar_items(source.root))]:
        if (new := new_name(key)) is None:
            continue
        for prefix in wanted - prefixes.keys():
            rest = new[len(prefix) :]
            if new.startswith(prefix) and key.endswith(rest):
                prefixes[prefix] = key.removesuffix(rest)
    return prefixes


class SavedOptimizers:
    """Rows and plain values of the source by name. Below `prefixes`, which are those of optimizers, plain values are
    split as in the state dicts of optimizers."""

    def __init__(self, source: Tree, prefixes: Iterable[str]) -> None:
        columns = source.columns
        prefixes = list(prefixes)
        self.rows = dict(zip(columns.keys(source.rows, source.root), source.rows, strict=True))
        self._path = source.path.names
        single_values = {key: value for key, _, _, value in columns.scalar_items(source.root)}
        apart = {prefix.removesuffix(".") for prefix in prefixes}
        for prefix in prefixes:
            apart |= {f"{prefix}param_groups", f"{prefix}state"}
            for number, names in enumerate(self._groups(single_values, prefix)):
                apart.add(f"{prefix}param_groups.{number}")
                apart.update(_lineage(f"{prefix}state", names))
            flattened = self._flattened(single_values, prefix)
            apart.update(_lineage(f"{prefix}param_groups", flattened))
            apart.update(_lineage(f"{prefix}state", flattened))
        self._single_values = single_values
        self._tree, self._prefixes = source, {prefix.removesuffix(".") for prefix in prefixes}
        plain_values = PlainValues(source, apart=apart.__contains__)
        self.values = {value.key: value.value for value in plain_values.items}
        self.types = plain_values.node_types()
        self.is_own_file = record_of(columns) is not None
        nodes = ((node, key) for node, key in columns.node_keys(source.root).items() if key.startswith(tuple(prefixes)))
        # As in a distributed checkpoint that PyTorch wrote, whose names do not show what containers they are in.
        self.has_only_names = any(isinstance(columns.node_objects[node], VirtualNode) for node, _ in nodes)

    @cached_property
    def whole_values(self) -> dict[str, Any]:
        """Plain values as they were saved, also those of optimizers."""
        return {value.key: value.value for value in PlainValues(self._tree, apart=self._prefixes.__contains__).items}

    def groups(self, prefix: str) -> list[list[str]]:
        """The names of the parameters in each group of an optimizer, relative to the tree."""
        return self._groups(self.values, prefix)

    def flattened(self, prefix: str) -> list[str]:
        """The names of the parameters of an optimizer whose state dict PyTorch flattened, so that it has no groups."""
        return self._flattened({**self.values, **self.rows}, prefix)

    def _flattened(self, values: Mapping[str, Any], prefix: str) -> list[str]:
        begin = f"{prefix}{_GROUPS}"
        if f"{begin}0.params" in values:
            return []
        names = (key[len(begin) :].rpartition(".")[0] for key in values if key.startswith(begin))
        return list(dict.fromkeys(name for name in names if name and not name.isdecimal()))

    def group_options(self, prefix: str, groups: list[list[str]]) -> list[str]:
        """Gives groups to an optimizer whose state dict PyTorch flattened: each gets the options of its parameters.
        Returns the names of options that differ between parameters of one group."""
        begin, differing = f"{prefix}{_GROUPS}", []
        for flat, same in ((self.values, same_plain), (self.rows, self._same_arrays)):
            options: dict[str, Any] = {}
            for number, names in enumerate(groups):
                for name in names:
                    for option, value in below(flat, f"{begin}{name}.").items():
                        if not same(options.setdefault(f"{begin}{number}.{option}", value), value):
                            differing.append(f"{begin}{name}.{option}")
            for key in [key for key in flat if key.startswith(begin)]:
                del flat[key]
            flat.update(options)
        return differing

    def _same_arrays(self, first: int, second: int) -> bool:
        values = [self._tree.columns.current(row) for row in (first, second)]
        return same_values(*(self._tree.columns.home(value).read(value, ()) for value in values))

    def names_beside_numbers(self, prefix: str) -> list[list[str] | None]:
        """For each group of an optimizer, the names that PyTorch stored beside the numbers of its parameters."""
        groups = range(len(self.groups(prefix)))
        return [self._single_values.get(f"{prefix}{_GROUPS}{number}.param_names") for number in groups]

    def _groups(self, values: dict[str, Any], prefix: str) -> list[list[str]]:
        groups: list[list[str]] = []
        while isinstance(params := values.get(f"{prefix}param_groups.{len(groups)}.params"), list | tuple):
            groups.append([seen_from(self._path, str(name)) for name in params])
        return groups


def _lineage(prefix: str, names: list[str]) -> set[str]:
    """The keys of the states of parameters, and of every node above them."""
    return {f"{prefix}.{above}" for name in names for above in (*prefixes_of(name), name)}


def seen_from(path: tuple[str, ...], name: str) -> str:
    """A name, given from the root, relative to a path; unchanged if it is not below that path."""
    names = Path.parse(name).names
    return ".".join(names[len(path) :] if path and names[: len(path)] == path else names)


def below(flat: dict[str, Any], prefix: str) -> dict[str, Any]:
    """The items whose keys start with a prefix, by the rest of their keys."""
    return {key[len(prefix) :]: value for key, value in flat.items() if key.startswith(prefix) and key != prefix}
