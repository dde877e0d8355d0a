"""What optimizers step, of a tree and besides, and what they keep."""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Any

from leafwise.core import registry as homes
from leafwise.core.capabilities.stepping import Stepping, is_optimizer
from leafwise.core.home import Spec
from leafwise.core.query import where
from leafwise.core.tree import Tree
from leafwise.core.walk import walk
from leafwise.errors import WalkError
from leafwise.inspect.rows import Row
from leafwise.inspect.seen import Seen
from leafwise.inspect.stats import stats
from leafwise.share.find import HeldWrongly, held_wrongly

if TYPE_CHECKING:
    from leafwise.inspect.looking import Looked


class Stepped:
    """The optimizers that were given beside a tree, or that are in it, and the leaves that they step."""

    def __init__(self, looked: "Looked", given: Any) -> None:
        self._looked, self.columns = looked, looked.columns
        self.given = _several(given)
        if self.given and looked.tree.is_file:
            raise WalkError("optimizer= steps the parameters of a live model, and this is a file; give the model")
        self.optimizers = self.given or self._in_tree()

    def __bool__(self) -> bool:
        return bool(self.optimizers)

    def _in_tree(self) -> list[Any]:
        t = self._looked.tree
        nodes = self.columns.nodes_where(is_optimizer, t.root) if t.is_whole else []
        return [self.columns.node_objects[node] for node in nodes]

    @cached_property
    def wrongly(self) -> list[HeldWrongly]:
        """What is stepped twice, or is stepped and not in the tree."""
        if self.columns.node_objects[0] in self.optimizers:
            return []  # the tree of an optimizer alone has no parameters to compare with
        return [found for one in self.optimizers for found in held_wrongly(self._looked.tree, one)]

    @cached_property
    def _held(self) -> Counter[int]:
        """The identities of what the optimizers step, each with how many of them do."""
        each = [{id(value) for _, value in self._stepping_of(one).held_by(one)} for one in self.optimizers]
        return Counter(chain.from_iterable(each))

    def steps(self, seen: Seen) -> bool:
        """Whether some optimizer steps a leaf."""
        return self.times(seen) > 0

    def times(self, seen: Seen) -> int:
        """How many optimizers step a leaf."""
        columns = self.columns
        return max(self._held[id(columns.row_values[row])] for row in columns.rows_of(seen.leaf)) if self._held else 0

    @cached_property
    def elsewhere(self) -> list[Spec]:
        """The specs of what optimizers step and the tree does not have."""
        here = set(map(id, self.columns.row_values))
        values = (value for one in self.optimizers for _, value in self._stepping_of(one).held_by(one))
        return [self.columns.home(value).spec(value) for value in values if id(value) not in here]

    def part_apart(self, seen: Seen) -> str | None:
        """Of a plain container of several models, the name of that which a leaf is in, if no optimizer steps any of its
        leaves."""
        return self._parts_apart.get(self._part(seen.leaf))

    def _part(self, row: int) -> int:
        """The node below the root that a row is in."""
        parents, node = self.columns.node_parents, self.columns.row_nodes[row]
        while node > 0 and parents[node] > 0:
            node = parents[node]
        return node

    @cached_property
    def _parts_apart(self) -> dict[int, str]:
        columns = self.columns
        if not isinstance(columns.node_objects[0], Mapping | list | tuple):
            return {}
        stepped = {self._part(seen.leaf) for seen in self._looked.leaves if self.steps(seen)}
        return {node: columns.node_text(node) for node in columns.children(0) if node not in stepped}

    def reached(self, seen: Seen) -> Any:
        """What an optimizer keeps of a leaf that is zero where no step has reached it; None where there is nothing."""
        value = self.columns.row_values[seen.leaf]
        found = (self._stepping_of(one).reached(one, value) for one in self.optimizers)
        return next((one for one in found if one is not None), None)

    def _stepping_of(self, optimizer: Any) -> Stepping:
        handled = homes.find(type(optimizer))
        if handled is None or not is_optimizer(handled[0], optimizer):
            raise WalkError(f"optimizer= takes an optimizer, not {type(optimizer).__name__}")
        return handled[0].capability(Stepping)

    @cached_property
    def state_rows(self) -> list[tuple[str, Row]]:
        """The statistics of the state of optimizers that were given beside the tree, as if they were in it."""
        root, found = self.columns.node_objects[self._looked.tree.root], []
        for number, optimizer in enumerate(self.given):
            called = f"optimizer{number or ''}"
            both = Tree(walk({"model": root, called: optimizer})).select(where(kind="state"))
            for path, row in stats(both).items() if len(both) else ():
                found.append((path.replace(f"{called}.state.model.", f"{called}.state.", 1), row))
        return found


def _several(optimizer: Any) -> list[Any]:
    """The optimizers that were given: one, or some."""
    if optimizer is None:
        return []
    if isinstance(optimizer, Mapping):
        return list(optimizer.values())
    return list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
