"""Which leaves the optimizers step, what else they step, and the state that they keep."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from leafwise.core import registry as homes
from leafwise.core.capabilities.stepping import Stepping, check_known, is_optimizer
from leafwise.core.home import Spec
from leafwise.core.query import where
from leafwise.core.tree import Tree
from leafwise.core.walk import walk
from leafwise.errors import WalkError
from leafwise.inspect.check.leaf_evidence import LeafEvidence
from leafwise.inspect.indices import Places
from leafwise.inspect.stats.rows import Row
from leafwise.inspect.stats.statistics import Stats, stats
from leafwise.share.find import OptimizerMismatch, optimizer_mismatches

if TYPE_CHECKING:
    from leafwise.inspect.check.evidence import Evidence


class OptimizerCoverage:
    """Which leaves the optimizers step: those passed as `optimizer=`, or else those in the tree."""

    def __init__(self, evidence: "Evidence", optimizer: Any) -> None:
        self._evidence, self.columns = evidence, evidence.columns
        self.passed = _as_list(optimizer)
        if self.passed and evidence.tree.is_file:
            raise WalkError(
                "cannot check optimizer= against a file, since it steps the parameters of a live model; give the model"
            )
        self.optimizers = self.passed or self._in_tree()

    def __bool__(self) -> bool:
        return bool(self.optimizers)

    def _in_tree(self) -> list[Any]:
        t = self._evidence.tree
        nodes = self.columns.optimizers(t.root) if t.is_whole else []
        return [self.columns.node_objects[node] for node in nodes]

    @cached_property
    def problems(self) -> list[OptimizerMismatch]:
        """Parameters that are stepped twice, or that are stepped but not in the tree."""
        if any(optimizer is self.columns.node_objects[0] for optimizer in self.optimizers):
            return []  # the tree of an optimizer alone has no parameters to compare with
        tree = self._evidence.tree
        return [problem for optimizer in self.optimizers for problem in optimizer_mismatches(tree, optimizer)]

    @cached_property
    def _step_counts(self) -> Counter[int]:
        """How many optimizers step an array, by the identity of the array."""
        held = [{id(value) for _, value in self._stepped_by(optimizer)} for optimizer in self.optimizers]
        return Counter(chain.from_iterable(held))

    def _stepped_by(self, optimizer: Any) -> Iterable[tuple[Any, Any]]:
        return self._stepping(optimizer).held_by(optimizer)

    def steps(self, leaf: LeafEvidence) -> bool:
        """Whether any optimizer steps a leaf."""
        return self.optimizer_count(leaf) > 0

    def optimizer_count(self, leaf: LeafEvidence) -> int:
        """How many optimizers step a leaf."""
        columns, counts = self.columns, self._step_counts
        return max(counts[id(columns.row_values[row])] for row in columns.rows_of(leaf.number)) if counts else 0

    @cached_property
    def specs_outside_tree(self) -> list[Spec]:
        """The specs of arrays that the optimizers step but that are not in the tree."""
        in_tree = set(map(id, self.columns.row_values))
        values = (value for optimizer in self.optimizers for _, value in self._stepped_by(optimizer))
        return [self.columns.home(value).spec(value) for value in values if id(value) not in in_tree]

    def unstepped_part(self, leaf: LeafEvidence) -> str | None:
        """The name of the model that a leaf is in, if the tree is a plain container of several models and no optimizer
        steps any leaf of this model; None otherwise."""
        return self._unstepped_parts.get(self._part(leaf.number))

    def _part(self, row: int) -> int:
        """The node directly below the root that contains a row."""
        parents, node = self.columns.node_parents, self.columns.row_nodes[row]
        while node > 0 and parents[node] > 0:
            node = parents[node]
        return node

    @cached_property
    def _unstepped_parts(self) -> dict[int, str]:
        columns = self.columns
        if not isinstance(columns.node_objects[0], Mapping | list | tuple):
            return {}
        stepped = {self._part(leaf.number) for leaf in self._evidence.leaves if self.steps(leaf)}
        return {node: columns.node_text(node) for node in columns.children(0) if node not in stepped}

    def state_of(self, leaf: LeafEvidence) -> Any:
        """Optimizer state of a leaf that is zero wherever no step has changed the leaf; None if there is no such
        state."""
        value = self.columns.row_values[leaf.number]
        states = (self._stepping(optimizer).reached(optimizer, value) for optimizer in self.optimizers)
        return next((state for state in states if state is not None), None)

    def _stepping(self, optimizer: Any) -> Stepping:
        entry = homes.find(type(optimizer))
        if entry is not None:
            check_known(entry[0], optimizer)
        if entry is None or not is_optimizer(entry[0], optimizer):
            raise WalkError(f"optimizer= takes an optimizer, not {type(optimizer).__name__}")
        return entry[0].capability(Stepping)

    @cached_property
    def nonfinite_state(self) -> list[tuple[str, Row, Places]]:
        """State with NaN or infinite values, of the optimizers passed as `optimizer=`: its path, as if the optimizers
        were in the tree, its statistics, and where the values are."""
        if self._evidence.ranks is not None:
            self._evidence.ranks.on_all_ranks("measured_state")
        rows = []
        for name, measured in self.measured_state().items():
            for path, places in measured.nonfinite.items():
                shown = path.replace(f"{name}.state.model.", f"{name}.state.", 1)
                rows.append((shown, measured[path], places))
        return rows

    def passed_state(self) -> dict[str, Tree]:
        """The state of the optimizers passed as `optimizer=`, by the name that they have in paths."""
        root = self.columns.node_objects[self._evidence.tree.root]
        named = {f"optimizer{number or ''}": optimizer for number, optimizer in enumerate(self.passed)}
        return {
            name: Tree(walk({"model": root, name: optimizer})).select(where(kind="state"))
            for name, optimizer in named.items()
        }

    def measured_state(self) -> dict[str, Stats]:
        """The statistics of this state, where there is any."""
        return {name: stats(state) for name, state in self.passed_state().items() if len(state)}


def _as_list(optimizer: Any) -> list[Any]:
    """The value of `optimizer=`, one optimizer or several, as a list."""
    if optimizer is None:
        return []
    if isinstance(optimizer, Mapping):
        return list(optimizer.values())
    return list(optimizer) if type(optimizer) in (list, tuple) else [optimizer]
