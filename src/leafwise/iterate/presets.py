"""Presets: rules that most training runs want, for weight decay and for learning rates by depth."""

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.columns import Columns
from leafwise.core.path import escape, listed
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.errors import RuleError
from leafwise.iterate.blocks import BlocksError
from leafwise.iterate.depths import depths, nodes_answering
from leafwise.iterate.rules import Rule

# Roles of leaves that weight decay would harm.
_NOT_DECAYED = re.compile(r"norm\..*|(.*\.)?bias(_\w+)?(\.\w+)?|activation\.slope")


def no_decay() -> Rule:
    """A rule that turns weight decay off for biases, norms and scalars. It goes by role, not by name.

    A leaf without a role is decayed if at least two of its dimensions are longer than 1: a scale or a temperature is
    not decayed, whether its shape is `()`, `(8,)` or `(8, 1, 1)`. Leaves that the model lists in `no_weight_decay()`,
    as timm's models do, are not decayed. Unlike other rules, this one may match nothing.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm([2, 4]))
    >>> [group["param_names"] for group in lw.groups(net, [lw.no_decay()])]
    [['0.weight'], ['0.bias', '1.weight', '1.bias']]
    """
    return _NoDecay()


_BY_MODEL = "by the model's no_weight_decay()"


class _NoDecay(Rule):
    may_match_nothing = True  # some models have no biases, and no scales in their norms

    def __init__(self) -> None:
        super().__init__(Query("no_decay()", _rows_not_decayed), weight_decay=0.0)

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        by_role = _rows_by_role(tree.columns, rows)
        by_model = _rows_by_model(tree.columns, tree.root, rows).difference(by_role)
        return [*((row, None) for row in by_role), *((row, _BY_MODEL) for row in sorted(by_model))]

    def note(self, columns: Columns, placed: Sequence[tuple[int, Hashable]]) -> str:
        keys = columns.keys([row for row, place in placed if place == _BY_MODEL])
        return f"{len(keys)} {_BY_MODEL}: {listed(keys, 3)}" if keys else ""

    def __repr__(self) -> str:
        return "no_decay()"


def _rows_not_decayed(columns: Columns, node: int, rows: Collection[int]) -> Iterable[int]:
    return sorted({*_rows_by_role(columns, rows), *_rows_by_model(columns, node, rows)})


def _rows_by_role(columns: Columns, rows: Collection[int]) -> list[int]:
    """The rows that are not decayed because of their role, or if they have no role, because of their shape."""
    rows = list(rows)
    roles = zip(rows, columns.row_roles(rows), strict=True)
    return [row for row, (role, _) in roles if not (_is_matrix(columns, row) if role is None else _decays(role))]


@cache
def _decays(role: str) -> bool:
    return _NOT_DECAYED.fullmatch(role) is None


def _is_matrix(columns: Columns, row: int) -> bool:
    shape = columns.facts([row])[0].spec.shape
    return shape is None or sum(size > 1 for size in shape) > 1


def _rows_by_model(columns: Columns, node: int, rows: Collection[int]) -> set[int]:
    """The rows of leaves that the model, or a model inside it, lists as not decayed, under any of their names."""
    leaves: set[int] = set()
    for model in nodes_answering(columns, node, lambda home, cls: home.capability(Grouping).undecayed_by(cls)):
        obj = columns.node_objects[model]
        ask = columns.home(obj).capability(Grouping).undecayed_by(type(obj))
        assert ask is not None
        below = [row for row in range(*columns.row_ranges[model]) if columns.row_kinds[row] in ("parameter", "array")]
        try:
            answers = ask(obj, columns.keys(below, model))
        except Exception as error:  # raised by the model's own method
            raise RuleError(
                f"no_decay(): {columns.type_name(model)}.no_weight_decay() at {columns.node_text(model) or '(root)'} "
                f"failed: {type(error).__name__}: {error}; fix the method, or replace no_decay() by rules such "
                'as lw.Rule("**.bias", weight_decay=0.0)'
            ) from error
        leaves.update(columns.ties.get(row, row) for row, undecayed in zip(below, answers, strict=True) if undecayed)
    return {row for row in rows if columns.ties.get(row, row) in leaves} if leaves else set()


def layer_decay(
    decay: float, where: Any = "**", *, blocks: str | None = None, first: Any = None, last: Any = None
) -> Rule:
    """A rule for layer-wise learning rates: the learning rate of each block is `decay` times that of the next block.

    It scales the `lr` that is passed to `lw.groups(..., lr=)` or set by an earlier rule. Leaves before the first block
    are one level below it; leaves after the last block get the full learning rate.

    The blocks are the nodes that match the glob `blocks`. Without it, they come from the model's `group_matcher()`, if
    it has one as timm's models do, or else from the repeated children in the tree (`layers.0`, `layers.1`, …). If there
    are several stages, blocks are counted through all of them. `where` limits the rule to a part of the model; a model
    with several towers needs a rule for each.

    `first` and `last` are queries for leaves before the first block and after the last one. JAX sorts dicts and NNX
    modules by name, so order does not say where other leaves are: embeddings, patches and stems are before the blocks
    there, heads and final norms are after them, and anything else must be in `first` or `last`.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(3)])
    >>> [(group["param_names"], group["lr"]) for group in lw.groups(net, [lw.layer_decay(0.5)], lr=1.0)]
    [(['0.weight'], 0.125), (['1.weight'], 0.25), (['2.weight'], 0.5)]
    """
    factor: Any = decay
    if not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise RuleError(f"decay= takes a number above 0 and at most 1, not {decay!r}")
    named: Any = blocks
    if not isinstance(named, str | None):
        raise RuleError(f"blocks= takes a glob for the paths of nodes, such as 'encoder.*', not {blocks!r}")
    return _LayerDecay(decay, where, blocks, _EndQueries(first, last))


class _DepthLevel(NamedTuple):
    """How many blocks a leaf is below the top, and where that comes from."""

    below_top: int
    by: str


class _EndQueries(NamedTuple):
    """Queries for the leaves before the first block, and after the last one."""

    first: Any
    last: Any

    def rows(self, tree: Tree, matched: Sequence[int]) -> list[set[int]]:
        """The rows of both; raises if a query matches nothing, or if both match a row."""
        both: list[set[int]] = []
        for name, where in zip(self._fields, self, strict=True):
            matching = set() if where is None else set(Query.of(where).names(tree.columns, tree.root, matched))
            if where is not None and not matching:
                raise BlocksError(f"{name}={where!r} matches none of its leaves", has_fix=True)
            both.append(matching)
        if twice := both[0] & both[1]:
            name = tree.columns.row_text(min(twice))
            raise BlocksError(f"{name} is in first= and in last=; leave it out of one", has_fix=True)
        return both


class _LayerDecay(Rule):
    def __init__(self, decay: float, where: Any, blocks: str | None, ends: _EndQueries) -> None:
        super().__init__(where, lr=f"× {decay:g} a block")
        self._decay, self._blocks, self._ends = decay, blocks, ends

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        matched = sorted(self.query.names(tree.columns, tree.root, rows))
        if not matched:
            return []
        try:
            levels = depths(tree, matched, self._blocks, *self._ends.rows(tree, matched))
        except BlocksError as error:
            raise RuleError(f"{self!r}: {error}{self._repair(error)}") from error
        return [(row, _DepthLevel(below_top, levels.by)) for row, below_top in levels.below_top.items()]

    def at(self, place: Hashable, before: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(place, _DepthLevel)
        if before.get("lr") is None or isinstance(before["lr"], str):
            raise RuleError(f"{self!r} needs a learning rate to scale; pass one: lw.groups(…, lr=3e-4)")
        if callable(before["lr"]):
            raise RuleError(
                f"{self!r} scales a number, and lr is a schedule; pass the scale of each group instead: lw.groups(…, "
                "lr=1.0), and groups.optax(lambda lr: optax.adam(lambda step: lr * schedule(step)))"
            )
        return {"lr": before["lr"] * self._decay**place.below_top}

    def note(self, columns: Columns, placed: Sequence[tuple[int, Hashable]]) -> str:
        levels = {place for _, place in placed}
        by = next((place.by for place in levels if isinstance(place, _DepthLevel)), "")
        return f"{len(levels)} levels by {by}" if levels else ""

    def _repair(self, error: BlocksError) -> str:
        if error.stack_paths:
            prefixes = _distinct_prefixes(error.stack_paths)
            rules = [f"layer_decay({self._decay:g}, '{prefix}.**')" for prefix in prefixes]
            return f"; write a rule for each: {', '.join(rules)}"
        if self._blocks is None and not error.has_fix:
            return f"; name the blocks: layer_decay({self._decay:g}, blocks='encoder.*')"
        return ""

    def __repr__(self) -> str:
        where = f", {self.where!r}" if self.where != "**" else ""
        blocks = f", blocks={self._blocks!r}" if self._blocks is not None else ""
        ends = "".join(f", {name}={query!r}" for name, query in self._ends._asdict().items() if query is not None)
        return escape(f"layer_decay({self._decay:g}{where}{blocks}{ends})")


def _distinct_prefixes(paths: list[str]) -> list[str]:
    """The shortest prefixes that distinguish the paths. Short ones also match the leaves before the blocks.

    >>> _distinct_prefixes(["text.encoder.layers", "vision.encoder.layers"])
    ['text', 'vision']
    >>> _distinct_prefixes(["a.layers", "a.layers2"])
    ['a.layers', 'a.layers2']
    """
    split_paths = [path.split(".") for path in paths]
    for depth in range(1, min(map(len, split_paths)) + 1):
        prefixes = [".".join(names[:depth]) for names in split_paths]
        if len(set(prefixes)) == len(paths):
            return prefixes
    return paths
