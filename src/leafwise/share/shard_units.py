"""`lw.shard_units`: the units in which a model is sharded, grouped so that its ties are kept.

FSDP2 shards and gathers the parameters of each module that is passed to `fully_shard` together: they are a unit. A
parameter belongs to the innermost unit that contains its module. A tie is kept if all of its names belong to one unit.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, overload

from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.columns import Columns
from leafwise.core.leaf import Node, Tie
from leafwise.core.parts import check_not_gathered
from leafwise.core.path import Path
from leafwise.core.results.result import Result
from leafwise.core.tree import Tree
from leafwise.core.verbs import opened
from leafwise.errors import PathError, QueryError, TieError
from leafwise.share.places import nodes_matching, nothing_matches, query_text


class UnitTie(NamedTuple):
    """A tie, and whether it is kept by the units that were passed to `lw.shard_units`.

    `units` has the paths of the units that the names of the tie belong to; the path of the model itself is empty. They
    are the units as they were given, before leafwise groups them.

    >>> import torch, leafwise as lw
    >>> model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.Linear(4, 8, bias=False))
    >>> model[1].weight = model[0].weight
    >>> lw.shard_units(model, ["0", "1"]).ties[0][1:]
    (('0', '1'), False)
    """

    tie: Tie
    units: tuple[str, ...]
    kept: bool


class ShardUnits(Result, Sequence[list[Any]], kind="shard_units"):
    """The result of `lw.shard_units`: lists of modules, each for one call of `fully_shard`, in the order of the calls.

    `paths` has the paths of these modules, and the last one is the model itself. `ties` says of each tie whether it is
    kept by the units as they were given. The units of this result keep all of them.

    >>> import torch, leafwise as lw
    >>> model = torch.nn.Sequential(torch.nn.Embedding(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 8, bias=False))
    >>> model[2].weight = model[0].weight
    >>> units = lw.shard_units(model, ["0", "2"])
    >>> units.paths, units.ok
    ([['0', '2'], ['']], False)
    """

    def __init__(self, modules: list[list[Any]], paths: list[list[str]], ties: list[UnitTie]) -> None:
        self._modules, self.paths, self.ties = modules, paths, ties

    @property
    def ok(self) -> bool:
        """Whether the units as they were given keep every tie."""
        return all(tie.kept for tie in self.ties)

    @overload
    def __getitem__(self, index: int) -> list[Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[Any]]: ...
    def __getitem__(self, index: int | slice) -> list[Any] | list[list[Any]]:
        return self._modules[index]

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self._modules)

    def __len__(self) -> int:
        return len(self._modules)


def shard_units(model: Any, units: Any) -> ShardUnits:
    """Says before sharding which ties FSDP2 would break, and groups the units so that it keeps them.

    `units` are the modules that you are about to pass to `fully_shard`: a list of modules, paths, or globs such as
    `"layers.*"`. Modules in an inner list are one unit. The model itself is always the last unit, and has everything
    that is in no other.

    The result is a list of units to pass to `fully_shard` one after another. If names of a tie would be in different
    units, the modules that have these names become a unit of their own. If that is not possible, units that separate
    the names are left out, so that a unit around them has both. A transposed or sliced tie is also kept if the unit of
    its source contains the other name. Nothing is changed here.

    >>> import torch, leafwise as lw
    >>> class LanguageModel(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.embed = torch.nn.Embedding(100, 16)
    ...         self.layers = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 16))
    ...         self.head = torch.nn.Linear(16, 100, bias=False)
    ...         self.head.weight = self.embed.weight
    ...     def forward(self, tokens):
    ...         return self.head(self.layers(self.embed(tokens)))
    >>> model = LanguageModel()
    >>> print(lw.shard_units(model, ["layers.*", "head"]))
    embed.weight  broken: in the model itself, and in head
    └─ head.weight
    <BLANKLINE>
    pass these to fully_shard, in this order:
      layers.0
      layers.1
      [embed, head]
      the model

    To shard the model: `for unit in lw.shard_units(model, ["layers.*", "head"]): fully_shard(unit)`.
    """
    with opened(model, "shard_units", live=True) as t:
        check_not_gathered(t, "shard")
        planned = _Units(t, units)
        rows = [t.columns.rows_of(tie.leaf.number) for tie in t.ties]
        ties = []
        for tie, tie_rows in zip(t.ties, rows, strict=True):
            numbers = list(dict.fromkeys(planned.unit_of(row) for row in tie_rows))
            texts = tuple(", ".join(planned.paths(number)) for number in numbers)
            ties.append(UnitTie(tie, texts, planned.keeps(tie_rows)))
        for tie_rows in rows:
            planned.keep(tie_rows)
        for tie_rows in rows:  # a later tie may have moved modules of an earlier one
            planned.give_up_units(tie_rows)
        order = planned.in_order()
        modules = [[planned.modules[node] for node in planned.units[number]] for number in order]
        return ShardUnits(modules, [planned.paths(number) for number in order], ties)


class _Units:
    """Units of a model: lists of nodes, by number. Unit 0 is the root. Modules that are used in several places are
    identified by the first of their nodes."""

    def __init__(self, t: Tree, units: Any) -> None:
        self.tree, self.columns = t, t.columns
        columns: Columns = t.columns
        self.modules: dict[int, Any] = {}
        self._first: dict[int, int] = {}  # the id of a module → its first node
        self._places: dict[int, list[int]] = {}  # the first node of a module → all its nodes
        for node in range(t.root, columns.node_ends[t.root]):
            first = self._first.setdefault(id(columns.node_objects[node]), node)
            self.modules[first] = columns.node_objects[node]
            self._places.setdefault(first, []).append(node)
        self.units: dict[int, list[int]] = {0: [t.root]}
        self._check(t.root)
        given = [units] if _is_single(units) else list(units)
        for unit in given:
            is_group = isinstance(unit, list | tuple)
            nodes = [node for part in (unit if is_group else [unit]) for node in self._nodes(part)]
            for group in [nodes] if is_group else [[node] for node in nodes]:
                self._add(list(dict.fromkeys(group)))

    def _nodes(self, unit: Any) -> list[int]:
        """The first nodes of the modules that a path, a glob, a module or a node of a tree refers to."""
        columns = self.columns
        if isinstance(unit, Node):
            unit = unit.path
        if isinstance(unit, str | Path):
            nodes = nodes_matching(self.tree, unit)
            if not nodes and not (isinstance(unit, str) and not unit):
                raise PathError(f"cannot use {query_text(unit)} as a unit: {nothing_matches(self.tree, unit)}")
            nodes = nodes or [self.tree.root]
        elif id(unit) in self._first:
            nodes = [self._first[id(unit)]]
        else:
            raise QueryError(
                f'units= takes modules of the model, paths, and globs such as "layers.*", not {type(unit).__name__}'
                " that is not in the model"
            )
        return list(dict.fromkeys(self._first[id(columns.node_objects[node])] for node in nodes))

    def _check(self, node: int) -> None:
        if reason := self._cannot_be_unit(node):
            path = self.columns.node_text(node)
            raise QueryError(f"cannot use {path or 'the model'} as a unit: {reason}")

    def _cannot_be_unit(self, node: int) -> str:
        module = self.modules[node]
        return self.columns.home(module).capability(Distributing).cannot_be_unit(module)

    def _add(self, nodes: list[int]) -> None:
        """Adds a unit. Modules inside another one of the same unit are left out, because it contains them."""
        nodes = [node for node in nodes if node != self.tree.root]
        known = {node for unit in self.units.values() for node in unit}
        for node in nodes:
            self._check(node)
            if node in known:
                raise QueryError(f"{self.columns.node_text(node)} is in two units; list it once")
        if nodes:
            self.units[max(self.units) + 1] = self._outermost(nodes)

    def _outermost(self, nodes: list[int]) -> list[int]:
        return [node for node in nodes if not any(self._contains(other, node) for other in nodes if other != node)]

    def _contains(self, outer: int, node: int) -> bool:
        """Whether a module contains another one, at any of the places where that is used."""
        ends = self.columns.node_ends
        return any(start < place < ends[start] for start in self._places[outer] for place in self._places[node])

    # -- which unit ------------------------------------------------------------------------------------

    def _units_above(self, row: int) -> list[int]:
        """The units that contain a row, the innermost first."""
        columns = self.columns
        number_of = {node: number for number, nodes in self.units.items() for node in nodes}
        node, numbers = columns.row_nodes[row], []
        while node >= self.tree.root:
            number = number_of.get(self._first[id(columns.node_objects[node])])
            if number is not None and number not in numbers:
                numbers.append(number)
            node = columns.node_parents[node]
        return numbers

    def unit_of(self, row: int) -> int:
        return self._units_above(row)[0]

    def paths(self, number: int) -> list[str]:
        return [self.columns.node_text(node) for node in self.units[number]]

    def keeps(self, rows: Sequence[int]) -> bool:
        """Whether the names of a tie, its source first, stay tied."""
        columns = self.columns
        if columns.leaf_kind(columns.ties.get(rows[0], rows[0])) != "parameter":
            return True  # buffers are not sharded
        source = self.unit_of(rows[0])
        for row in rows[1:]:
            above = self._units_above(row)
            # A view reads its source when its module runs, and the source is gathered while its unit runs.
            is_kept = above[0] == source if columns.row_op(row) == "same" else source in above
            if not is_kept:
                return False
        return True

    # -- keeping ties ----------------------------------------------------------------------------------

    def keep(self, rows: Sequence[int]) -> None:
        """Changes the units so that the names of a tie stay tied."""
        if self.keeps(rows):
            return
        columns = self.columns
        owners = list(dict.fromkeys(self._first[id(columns.node_objects[columns.row_nodes[row]])] for row in rows))
        is_possible = self.tree.root not in owners and len(self._outermost(owners)) == len(owners)
        if not is_possible or any(map(self._cannot_be_unit, owners)):
            self.give_up_units(rows)
            return
        joined = {number for number, nodes in self.units.items() if number and set(nodes) & set(owners)}
        members = sorted({*owners, *(node for number in joined for node in self.units[number])})
        members = self._outermost(members)
        for number in joined:
            del self.units[number]
        self.units[max(self.units) + 1] = members

    def give_up_units(self, rows: Sequence[int]) -> None:
        """Leaves out units that separate the names of a tie, from the innermost on, until one unit has all names."""
        while not self.keeps(rows):
            above = [self._units_above(row) for row in rows]
            depth = max(map(len, above))
            number = next(numbers[0] for numbers in above if len(numbers) == depth)
            if not number:
                names = [self.columns.row_text(row) for row in rows]
                raise TieError(
                    f"cannot find units that keep {', '.join(names)} tied; leave out their modules in units="
                )
            del self.units[number]

    def in_order(self) -> list[int]:
        """The numbers of units, inner ones before those that contain them, the root last."""
        order: list[int] = []
        for number in [*(number for number in self.units if number), 0]:
            self._visit(number, order, set())
        return order

    def _visit(self, number: int, order: list[int], above: set[int]) -> None:
        if number in order:
            return
        if number in above:
            paths = ", ".join(self.paths(number))
            raise QueryError(f"the unit {paths} contains a part of a unit that contains a part of it; separate them")
        for other in self.units:
            if other not in (0, number) and self._is_inside(other, number):
                self._visit(other, order, {*above, number})
        order.append(number)

    def _is_inside(self, inner: int, outer: int) -> bool:
        return any(self._contains(a, b) for a in self.units[outer] for b in self.units[inner])


def _is_single(units: Any) -> bool:
    return isinstance(units, str | Path | Node) or not isinstance(units, Iterable) or hasattr(units, "named_modules")
