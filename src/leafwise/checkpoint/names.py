"""The names of target and source, and which belong together."""

from collections.abc import Callable, Sequence
from typing import Any

from leafwise.checkpoint.plans import Plan
from leafwise.core.capabilities.stepping import is_optimizer
from leafwise.core.columns import Columns
from leafwise.core.families import Unmatched
from leafwise.core.match import Matching, match, new_name, renamer
from leafwise.core.proposals import certain_pairs, propose, unmatched
from leafwise.core.tree import Tree


class Match:
    """The rows of both sides, their names, and which belong together."""

    def __init__(self, plan: Plan, rename: Any) -> None:
        t, s = plan.target, plan.source
        columns, theirs = t.columns, s.columns
        self.target_nodes = optimizer_nodes(columns, t.root)
        inside = [columns.row_ranges[node] for node in self.target_nodes]
        self.rows = [row for row in t.rows if columns.row_kinds[columns.ties.get(row, row)] != "transient"]
        if inside:
            self.rows = [row for row in self.rows if not any(start <= row < stop for start, stop in inside)]
        self.names = columns.keys(self.rows, t.root)
        keys = columns.node_keys(t.root) if self.target_nodes else {}
        fronts = {f"{keys[node]}." if keys[node] else "" for node in self.target_nodes}
        self.source_rows: Sequence[int] = s.rows
        if "transient" in theirs.row_kinds:
            kinds, ties = theirs.row_kinds, theirs.ties
            self.source_rows = [row for row in s.rows if kinds[ties.get(row, row)] != "transient"]
        self.source_names = theirs.keys(self.source_rows, s.root)
        self.give = giver(rename)
        # Where the source keeps the optimizers of the target: by the front in the target, the one in the source.
        self.optimizer_fronts = _optimizer_fronts(s, self.give) if fronts else {}
        self.optimizer_fronts = {new: raw for new, raw in self.optimizer_fronts.items() if new in fronts}
        self.optimizer_fronts |= _own_fronts(s, self.source_names, self.give, fronts - self.optimizer_fronts.keys())
        if self.optimizer_fronts:
            kept = [
                (row, name)
                for row, name in zip(self.source_rows, self.source_names, strict=True)
                if not self.is_optimizers(name)
            ]
            self.source_rows, self.source_names = [row for row, _ in kept], [name for _, name in kept]
        self.matching = self._matched(plan, rename)
        self.source_of = {self.rows[a]: self.source_rows[b] for a, b in self.matching.sources.items()}
        self.target_of = {b: a for a, b in self.source_of.items()}
        self.name_of = dict(zip(self.rows, self.names, strict=True))
        self.source_name_of = dict(zip(self.source_rows, self.source_names, strict=True))
        self.unused: list[int] = []  # rows of the source that were matched, and cannot be taken

    def _matched(self, plan: Plan, rename: Any) -> Matching:
        auto = isinstance(rename, str) and rename == "auto"
        found = match(self.names, self.source_names, None if auto else rename)
        if found.targets_left and found.sources_left:
            targets, sources = self._unmatched(plan, found)
            plan.proposals = propose(targets, sources)
            if auto:
                plan.applied = [proposal for proposal in plan.proposals if proposal.certain]
                plan.proposals = [proposal for proposal in plan.proposals if not proposal.certain]
                found = found.joined(certain_pairs(plan.applied, self.names, self.source_names))
                if plan.proposals:
                    plan.notes.append(_not_taken(plan))
        plan.prefixes = found.prefixes
        plan.notes += [f"rename: {rule!r} fits no name of the source" for rule in found.idle]
        if found.left_out:
            count = len(found.left_out)
            plan.notes.append(f"rename left out {count:,} {'leaf' if count == 1 else 'leaves'} of the source")
        return found

    def _unmatched(self, plan: Plan, found: Matching) -> tuple[list[Unmatched], list[Unmatched]]:
        """What is left to be paired. A tied leaf that gets a value by one of its names needs none by the others."""
        columns, theirs = plan.target.columns, plan.source.columns
        filled: set[int] = set()
        spent: set[int] = set()  # leaves of the source that fill a tied leaf: their other names are not needed, either
        for target, source in found.sources.items():
            row, other = self.rows[target], self.source_rows[source]
            if columns.row_op(row).slices is None:
                leaf = columns.ties.get(row, row)
                filled.add(leaf)
                if leaf in columns.further_rows:
                    spent.add(theirs.ties.get(other, other))
        return (
            unmatched(columns, self.rows, self.names, found.targets_left, filled),
            unmatched(theirs, self.source_rows, self.source_names, found.sources_left, spent, found.fronts),
        )

    def is_optimizers(self, name: str) -> bool:
        """Whether something of the source belongs to an optimizer that the target has, too."""
        return any(name.startswith(front) for front in self.optimizer_fronts.values())


def _not_taken(plan: Plan) -> str:
    count = sum(len(proposal.pairs) for proposal in plan.proposals)
    names = "1 rename is" if count == 1 else f"{count:,} renames are"
    return f'{names} not certain, and rename="auto" did not apply {"it" if count == 1 else "them"}'


def giver(rename: Any) -> Callable[[str], str | None]:
    """What gives names of the source their new ones, those of plain values, too."""
    if rename is None or (isinstance(rename, str) and rename == "auto"):
        return lambda name: name
    give = renamer(rename)[0]
    return lambda name: new_name(give, name)


def _optimizer_fronts(s: Tree, give: Callable[[str], str | None]) -> dict[str, str]:
    """Where the source keeps optimizers: by the front that a rename gives it, the one it has."""
    found = {}
    for key, _, name, _ in s.columns.scalar_items(s.root):
        if name == "params" and f".{key}".endswith(".param_groups.0.params"):
            front = key.removesuffix("param_groups.0.params")
            new = give(key)
            if new is not None and f".{new}".endswith(".param_groups.0.params"):
                found[new.removesuffix("param_groups.0.params")] = front
    return found


def _own_fronts(s: Tree, names: list[str], give: Callable[[str], str | None], fronts: set[str]) -> dict[str, str]:
    """Where the source keeps the state dicts of optimizers that write their own; these have no groups to know them
    by, and are looked for where the target has them."""
    found: dict[str, str] = {}
    for key in [*names, *(key for key, _, _, _ in s.columns.scalar_items(s.root))] if fronts else ():
        new = give(key)
        for front in fronts - found.keys() if new is not None else ():
            assert new is not None
            rest = new[len(front) :]
            if new.startswith(front) and key.endswith(rest):
                found[front] = key.removesuffix(rest)
    return found


def optimizer_nodes(columns: Columns, below: int) -> list[int]:
    """The nodes that are optimizers."""
    return columns.nodes_where(is_optimizer, below)
