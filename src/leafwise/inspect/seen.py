"""A leaf as the rules of `lw.check` see it."""

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from leafwise.core.columns import Facts
from leafwise.core.home import Axes
from leafwise.core.leaf import Leaf
from leafwise.core.pairing import NamedArray
from leafwise.core.path import spelled
from leafwise.core.reading import Read, reader
from leafwise.inspect.reading import bands
from leafwise.inspect.rows import Row

if TYPE_CHECKING:
    from leafwise.inspect.looking import Looked

Of = Literal["value", "grad", "state"]  # state: what an optimizer keeps of it


class Seen:
    """A leaf as the rules see it: its facts, what it is for, and, by way of what looked at it, its statistics."""

    __slots__ = ("_looked", "axes", "kind", "leaf", "path", "persistent", "role", "roles", "spec")

    def __init__(self, looked: "Looked", leaf: int, path: str, facts: Facts, roles: list[tuple[str | None, Axes]]):
        self._looked, self.leaf, self.path = looked, leaf, path
        self.spec, self.kind, self.persistent = facts
        self.role, self.axes = roles[0]
        self.roles = {role for role, _ in roles}  # of all its names

    @property
    def handle(self) -> Leaf:
        return self._looked.columns.leaf_of(self.leaf)

    @property
    def held(self) -> NamedArray:
        value = self._looked.columns.current(self.leaf)
        return NamedArray(self.leaf, self._looked.columns.home(value), value, self.spec, self.path)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape or ()

    @property
    def row(self) -> Row | None:
        """The statistics of its values; None where there are none."""
        return self._looked.rows.get(self.leaf)

    @property
    def grad(self) -> Row | None:
        """The statistics of its gradient."""
        return self._looked.grad_rows.get(self.leaf)

    @property
    def has_grad(self) -> bool:
        return self.leaf in self._looked.gradients

    @property
    def is_float(self) -> bool:
        # What is quantised goes by the name of its blocks, and stands for numbers.
        return not self.spec.dtype.startswith(("int", "uint", "bool", "complex"))

    @property
    def is_fixed(self) -> bool:
        """Whether it is frozen, so that it is as somebody made it."""
        return self.spec.trainable is False

    @property
    def pulls(self) -> bool:
        """Whether it has a gradient that would move it: one that is not all zero, as far as anybody knows."""
        return self.has_grad and (self.grad is None or self.grad.zeros < self.grad.count)

    @property
    def padding(self) -> int | None:
        """The row of an embedding that stands for nothing, and is never trained."""
        columns = self._looked.columns
        found = getattr(columns.node_objects[columns.row_nodes[self.leaf]], "padding_idx", None)
        return found % self.shape[0] if isinstance(found, int) and self.shape else None

    @property
    def is_weight(self) -> bool:
        """Whether it leads from inputs to outputs, under all of its names; None of that is known in most files."""
        axes = self.axes or ()
        return "out" in axes and any(axis.startswith("in") for axis in axes) and "embedding.table" not in self.roles

    @property
    def is_matrix(self) -> bool:
        """Whether it is a parameter with rows and columns, for whatever it is."""
        shape = self.shape
        return self.kind == "parameter" and self.is_float and len(shape) > 1 and shape[0] > 1 and prod(shape[1:]) > 1

    @property
    def out_axis(self) -> int:
        """The axis along which its units are; the first, where nobody says."""
        return self.axes.index("out") if self.axes and "out" in self.axes else 0

    @property
    def drawn_anew(self) -> str:
        """What to do for new initial values, of this leaf alone."""
        if self._looked.tree.is_file:
            return "initialise it in the model that this was saved from"
        if self.is_fixed:
            return "it is frozen, and may be meant so"
        init = 'init="kaiming_normal"' if self.is_weight else 'init="normal", std=0.02'
        return f"lw.initialize(lw.tree(model).select({self.spelled}), [lw.Rule({self.spelled}, {init})])"

    @property
    def spelled(self) -> str:
        """Its path as Python has it."""
        return spelled(self.path)

    def reader(self) -> Read:
        """What gives parts of its values as NumPy arrays."""
        held = self.held
        return reader(held.home, held.value)

    def bands(self, of: Of = "value") -> "Iterator[tuple[int, Any]]":
        """Its values as NumPy arrays, some rows at a time, each with the number of the first."""
        looked = self._looked
        if of == "value":
            value = looked.columns.current(self.leaf)
        else:
            value = looked.gradients[self.leaf] if of == "grad" else looked.stepped.reached(self)
        return bands(looked.columns.home(value), value, self.shape)
