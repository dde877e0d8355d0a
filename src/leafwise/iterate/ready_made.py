"""Rules that most people want: no decay where it does harm, and learning rates by depth."""

import re
from collections.abc import Collection, Hashable, Iterable
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from leafwise.core.columns import Columns
from leafwise.core.glob import Glob
from leafwise.core.query import Query
from leafwise.core.tree import Tree
from leafwise.errors import RuleError
from leafwise.iterate.rules import Rule

if TYPE_CHECKING:
    from leafwise.core.home import Spec

# Roles of leaves that weight decay would only pull away from where they belong.
_NOT_DECAYED = re.compile(r"norm\..*|(.*\.)?bias(_\w+)?|activation\.slope")


def no_decay() -> Rule:
    """No weight decay for biases, norms and scalars, identified by role, whatever they are called.

    A model may have none of them: then the rule matches nothing, and the account says so. A leaf without a role is
    decayed if it has at least two axes that are longer than one: a scale or a temperature is not, whether its shape
    is `()`, `(8,)` or `(8, 1, 1)`.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm([2, 4]))
    >>> [group["param_names"] for group in lw.groups(net, [lw.no_decay()])]
    [['0.weight'], ['0.bias', '1.weight', '1.bias']]
    """
    return _NoDecay()


class _NoDecay(Rule):
    may_match_nothing = True  # there are models without biases and without scales in their norms

    def __init__(self) -> None:
        super().__init__(Query("no_decay()", _rows_not_decayed), weight_decay=0.0)

    def __repr__(self) -> str:
        return "no_decay()"


def _rows_not_decayed(columns: Columns, node: int, rows: Collection[int]) -> Iterable[int]:
    by_role: dict[str, bool] = {}
    found = []
    rows = list(rows)
    for row, (role, _) in zip(rows, columns.row_roles(rows), strict=True):
        if role is None:
            decayed = _is_matrix(columns.facts([row])[0].spec)
        elif role in by_role:
            decayed = by_role[role]
        else:
            decayed = by_role[role] = _NOT_DECAYED.fullmatch(role) is None
        if not decayed:
            found.append(row)
    return found


def _is_matrix(spec: "Spec") -> bool:
    return spec.shape is None or sum(size > 1 for size in spec.shape) > 1


def layer_decay(decay: float, where: Any = "**", *, blocks: str | None = None) -> Rule:
    """Learning rates that fall with the distance from the end: each block has `decay` times that of the next.

    Scales the `lr` given to `lw.groups(..., lr=)`, or by an earlier rule. Blocks are the repeated children of the tree
    (`layers.0`, `layers.1`, …), found in the tree, or named by the glob `blocks`. What comes before the first block is
    one step below it, what comes after the last has the whole learning rate. `where` limits the rule to a part of the
    model, so that each tower of several gets a rule of its own.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(*[torch.nn.Linear(4, 4, bias=False) for _ in range(3)])
    >>> [(group["param_names"], group["lr"]) for group in lw.groups(net, [lw.layer_decay(0.5)], lr=1.0)]
    [(['0.weight'], 0.125), (['1.weight'], 0.25), (['2.weight'], 0.5)]
    """
    factor: Any = decay
    if not isinstance(factor, int | float) or not 0 < factor <= 1:
        raise RuleError(f"layer_decay takes a factor above 0 and at most 1, not {decay!r}")
    named: Any = blocks
    if not isinstance(named, str | None):
        raise RuleError(f"blocks= is a glob over the paths of nodes, such as 'encoder.*', not {blocks!r}")
    return _LayerDecay(decay, where, blocks)


class _LayerDecay(Rule):
    def __init__(self, decay: float, where: Any, blocks: str | None) -> None:
        super().__init__(where, lr=f"× {decay:g} a block")
        self._decay, self._blocks = decay, blocks

    def places(self, tree: Tree, rows: Collection[int]) -> Iterable[tuple[int, Hashable]]:
        columns = tree._columns
        matched = sorted(self.query.names(columns, tree._node, rows))
        if not matched:
            return []
        spans = self._spans(tree, matched)
        last = len(spans) + 1
        found = []
        depth = reached = 0
        for row in matched:
            # Between blocks, and inside of them, a leaf is as deep as the block that began last.
            while reached < len(spans) and row >= spans[reached][0]:
                reached += 1
                depth = reached
            if reached == len(spans) and row >= spans[-1][1]:
                depth = last
            found.append((row, last - depth))
        return found

    def at(self, place: Hashable, before: dict[str, Any]) -> dict[str, Any]:
        if before.get("lr") is None or isinstance(before["lr"], str):
            raise RuleError(f"{self!r} scales a learning rate, and there is none; give it: lw.groups(…, lr=3e-4)")
        return {"lr": before["lr"] * self._decay**place}  # type: ignore[operator]

    def _spans(self, tree: Tree, matched: list[int]) -> list[tuple[int, int]]:
        """The rows of each block, in order."""
        columns = tree._columns
        search = _BlockSearch(columns, matched)
        if self._blocks is not None:
            nodes = [node for node in Glob(self._blocks).nodes(columns, tree._node) if search.size(node)]
            if not nodes:
                raise RuleError(f"{self!r}: no node with parameters matches blocks={self._blocks!r}")
        else:
            nodes = self._found(search, columns, tree._node)
        spans = sorted(columns.row_ranges[node] for node in nodes)
        for (_, end), (start, _) in pairwise(spans):
            if start < end:
                raise RuleError(f"{self!r}: blocks={self._blocks!r} matches nodes of which one lies inside another")
        return spans

    def _found(self, search: "_BlockSearch", columns: Columns, node: int) -> list[int]:
        stacks = sorted(search.stacks(node), key=search.total, reverse=True)
        if not stacks:
            raise RuleError(
                f"{self!r} finds no repeated blocks here; name them: layer_decay({self._decay:g}, blocks='encoder.*')"
            )
        rivals = [stack for stack in stacks if 2 * search.total(stack) >= search.total(stacks[0])]
        if len(rivals) > 1:
            fronts = [columns.node_text(columns.node_parents[stack[0]]) for stack in sorted(rivals)]
            raise RuleError(
                f"{self!r} finds several stacks of blocks: {', '.join(fronts)}; give each a rule of its own: "
                + ", ".join(f"layer_decay({self._decay:g}, '{front}.**')" for front in _telling(fronts))
            )
        return stacks[0]

    def __repr__(self) -> str:
        where = f", {self.where!r}" if self.where != "**" else ""
        blocks = f", blocks={self._blocks!r}" if self._blocks is not None else ""
        return f"layer_decay({self._decay:g}{where}{blocks})"


def _telling(fronts: list[str]) -> list[str]:
    """The shortest beginnings of paths that tell them apart, so that what comes before the blocks is meant, too.

    >>> _telling(["text.encoder.layers", "vision.encoder.layers"]), _telling(["a.layers", "a.layers2"])
    (['text', 'vision'], ['a.layers', 'a.layers2'])
    """
    names = [front.split(".") for front in fronts]
    for depth in range(1, min(map(len, names)) + 1):
        if len({tuple(one[:depth]) for one in names}) == len(names):
            return [".".join(one[:depth]) for one in names]
    return fronts


class _BlockSearch:
    """Looks for children of one type, numbered (`0`, `1`, … or `layer1`, `layer2`, …), that hold most of a node."""

    def __init__(self, columns: Columns, rows: list[int]) -> None:
        self._columns = columns
        sizes = [0] * len(columns.row_nodes)
        for row, facts in zip(rows, columns.facts(rows), strict=True):
            # By the leaf and one more, so that leaves whose shapes are not known yet count, too.
            sizes[row] = facts.spec.size + 1
        self._before = [0, *accumulate(sizes)]

    def size(self, node: int) -> int:
        """How much of what is looked at lies below a node."""
        first, last = self._columns.row_ranges[node]
        return self._before[last] - self._before[first]

    def total(self, nodes: list[int]) -> int:
        return sum(map(self.size, nodes))

    def stacks(self, node: int) -> list[list[int]]:
        """The outermost stacks below a node, each the list of its blocks."""
        while True:
            run = self._run(node)
            if run:
                return [self._opened(run)]
            children = [child for child in self._columns.children(node) if self.size(child)]
            if len(children) != 1:
                return [stack for child in children for stack in self.stacks(child)]
            node = children[0]

    def _run(self, node: int) -> list[int]:
        """Children that repeat, and hold most of what is below the node."""
        columns = self._columns
        runs: dict[tuple[type, str], list[int]] = {}
        for child in columns.children(node):
            numbered = re.fullmatch(r"(.*?)\d+", columns.node_names[child])
            if numbered and self.size(child):
                runs.setdefault((type(columns.node_objects[child]), numbered[1]), []).append(child)
        longest = max(runs.values(), key=self.total, default=[])
        return longest if len(longest) > 1 and 2 * self.total(longest) > self.size(node) else []

    def _opened(self, run: list[int]) -> list[int]:
        """Where every block is nothing but a stack itself, as the stages of a ResNet, the blocks of those."""
        inner = [self._run(block) for block in run]
        if all(blocks and self.total(blocks) == self.size(block) for block, blocks in zip(run, inner, strict=True)):
            return [found for blocks in inner for found in self._opened(blocks)]
        return run
