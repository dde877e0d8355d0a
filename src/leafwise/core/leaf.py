"""Leaf, Name, Node and Tie: thin views of the columns of a walk."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from leafwise.core.home import Axes, Home, Spec
from leafwise.core.memory import Op
from leafwise.core.path import Path, escape
from leafwise.errors import Error, WalkError, WriteError

if TYPE_CHECKING:
    from leafwise.core.columns import Columns

T = TypeVar("T")


class Name(NamedTuple):
    """One name of a leaf: its path, the type of its owner, its role and axes there, and how it views the leaf."""

    path: Path
    owner: str
    role: str | None
    axes: Axes
    op: Op


class Leaf:
    """One array with one gradient, under one or several names.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> leaf = lw.tree(net)["0.weight"]
    >>> leaf
    <Leaf 0.weight: parameter 8×4 float32>
    >>> leaf.role, leaf.axes, leaf.owner
    ('linear.weight', ('out', 'in'), 'Linear')
    >>> leaf.value is net[0].weight
    True
    """

    __slots__ = ("__weakref__", "columns", "number", "row")

    def __init__(self, columns: "Columns", number: int, row: int) -> None:
        self.columns = columns
        self.number = number
        self.row = row

    # -- names -----------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[Name, ...]:
        """All names, this one first."""
        columns = self.columns
        rows = columns.rows_of(self.number)
        rows = [self.row, *(row for row in rows if row != self.row)]
        return tuple([columns.name(row) for row in rows])

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple([name.path for name in self.names])

    @property
    def path(self) -> Path:
        return self.columns.row_path(self.row)

    @property
    def owner(self) -> str:
        return self.columns.type_name(self.columns.row_nodes[self.row])

    @property
    def role(self) -> str | None:
        return self.columns.row_role(self.row)[0]

    @property
    def axes(self) -> Axes:
        return self.columns.row_role(self.row)[1]

    # -- facts -----------------------------------------------------------------------------------------

    @property
    def kind(self) -> Literal["parameter", "buffer", "state"]:
        return self.columns.leaf_kind(self.number)

    @property
    def persistent(self) -> bool:
        """Whether checkpoints contain it; False for buffers registered with `persistent=False`."""
        return self.columns.row_kinds[self.number] != "transient"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """None as long as it is not known, as in a lazy layer."""
        return self._facts().shape

    @property
    def ndim(self) -> int | None:
        shape = self._facts().shape
        return None if shape is None else len(shape)

    @property
    def dtype(self) -> str:
        """A plain name: `float32`, `bfloat16`, `float8_e4m3fn`."""
        return self._facts().dtype

    @property
    def device(self) -> str:
        return self._facts().device

    @property
    def size(self) -> int:
        """How many numbers it has; 0 as long as the shape is not known."""
        return self._facts().size

    @property
    def nbytes(self) -> int:
        return self._facts().nbytes

    @property
    def trainable(self) -> bool | None:
        """Whether training changes it: False if it is frozen, None if that is not known, as in a file."""
        if self.kind == "buffer" and self.columns.is_held(self.row):
            return False
        return self._facts().trainable

    # -- handle ----------------------------------------------------------------------------------------

    @property
    def value(self) -> Any:
        """The framework's own array, never a copy."""
        return self._ask(lambda home, raw: home.value(raw), "getting its value")

    @property
    def grad(self) -> Any:
        """The gradient, or None before the first backward."""
        return self._ask(lambda home, raw: home.grads([raw])[0], "getting its gradient")

    def numpy(self, index: Any = ()) -> Any:
        """The value as a NumPy array, or the part of it at `index`; without a copy if possible.

        From a file, only that part is read: `leaf.numpy((slice(0, 10), 3))`.
        """
        if isinstance(index, tuple) and not index:
            value = self.value  # for a file, an array mapped over it; nothing is read yet
            return self._ask(lambda home, raw: self.columns.home(value).read(value), "reading its value")
        return self._ask(lambda home, raw: home.read(raw, index), "reading its value")

    def write(self, array: Any) -> None:
        """Writes in place, under all names of the leaf. If shape or dtype differ, raises an error and changes nothing.

        >>> import torch, leafwise as lw
        >>> state = {"weight": torch.zeros(2)}
        >>> lw.tree(state)["weight"].write(torch.ones(2))
        >>> state["weight"]
        tensor([1., 1.])
        """
        try:
            self._ask(lambda home, raw: home.write(raw, array), "writing to it")
        except (WriteError, WalkError) as error:
            reason = str(error).removeprefix(f"{self.path}: ")
            raise WriteError(f"{self.path}: {reason}; nothing was changed") from error

    # --------------------------------------------------------------------------------------------------

    def _facts(self) -> Spec:
        return self._ask(lambda home, raw: home.spec(raw), "getting its shape and dtype")

    def _ask(self, question: Callable[[Home, Any], T], action: str) -> T:
        raw = self.columns.current(self.row)
        try:
            return question(self.columns.home(raw), raw)
        except Error:
            raise
        except Exception as error:
            raise asking_raised(str(self.path), action, error) from error

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Leaf):
            return NotImplemented
        return self.columns is other.columns and self.number == other.number

    def __hash__(self) -> int:
        return hash((id(self.columns), self.number))

    def __repr__(self) -> str:
        further = len(self.columns.rows_of(self.number)) - 1
        also = f", {further + 1} names" if further else ""
        return escape(f"<Leaf {self.path}: {self.kind} {shape_text(self.shape)} {self.dtype}{also}>")


class Node:
    """A module or container: its path, its type, its children. A module without parameters is a node, too.

    `columns` is the result of the walk, and `number` the number of the node in it.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> [(str(node.path), node.type) for node in lw.tree(net).nodes]
    [('', 'Sequential'), ('0', 'Linear'), ('1', 'ReLU')]
    """

    __slots__ = ("columns", "number")

    def __init__(self, columns: "Columns", number: int) -> None:
        self.columns = columns
        self.number = number

    @property
    def path(self) -> Path:
        return self.columns.node_path(self.number)

    @property
    def type(self) -> str:
        return self.columns.type_name(self.number)

    @property
    def value(self) -> Any:
        """The module or container itself."""
        return self.columns.node_objects[self.number]

    @property
    def children(self) -> "tuple[Node, ...]":
        return tuple([Node(self.columns, child) for child in self.columns.children(self.number)])

    @property
    def same_as(self) -> Path | None:
        """The first path of the same object, if it is used more than once."""
        first = self.columns.repeats.get(self.number)
        return None if first is None else self.columns.node_path(first)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        return self.columns is other.columns and self.number == other.number

    def __hash__(self) -> int:
        return hash((id(self.columns), self.number))

    def __repr__(self) -> str:
        return escape(f"<Node {str(self.path) or 'root'}: {self.type}>")


class Tie(NamedTuple):
    """Several names, one leaf.

    `op` is `same` if every name is the whole leaf as it is; otherwise the first op that differs.
    """

    leaf: Leaf
    names: tuple[Name, ...]
    op: Op


class SharedMemory(NamedTuple):
    """Leaves that share memory and are not one leaf, because each has its own gradient, or because they overlap only
    partly.

    `reason` says which: "shared memory, separate gradients" or "partly shared memory".
    """

    leaves: tuple[Leaf, ...]
    reason: str


class UndoneTie(NamedTuple):
    """A tie that was declared, by `lw.tie` or `lw.keep_ties`, and was undone: `path` was `source`, viewed by `op`."""

    path: Path
    source: Path
    op: Op
    gone: bool = False  # there is nothing at `path` any more

    def __str__(self) -> str:
        if self.gone:
            was = f"{self.source}{self.op.describe()}"
            return escape(f"declared tie undone: {self.path}, which was {was}, no longer exists")
        return escape(f"declared tie undone: {self.path} is no longer {self.source}{self.op.describe()}")

    def repair(self) -> str:
        """What to type to tie the names again, or to accept that they are untied."""
        if self.gone:
            return f'lw.untie(model, "{self.source}") accepts it'
        return (
            f'lw.tie(model, "{self.path}", to="{self.source}", …) ties them again, '
            f'lw.untie(model, "{self.path}") accepts it'
        )


def asking_raised(path: str, action: str, error: Exception) -> WalkError:
    """The error for an array that raised an exception of its own; `action` is what leafwise was doing."""
    return WalkError(f"{path}: {action} raised {type(error).__name__}: {error}")


def shape_text(shape: tuple[int, ...] | None) -> str:
    """A shape as the picture shows it.

    >>> shape_text((8, 4)), shape_text(()), shape_text(None)
    ('8×4', 'scalar', '?')
    """
    if shape is None:
        return "?"
    return "×".join(map(str, shape)) or "scalar"
