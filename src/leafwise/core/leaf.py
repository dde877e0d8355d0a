"""Leaf, Name, Node and Tie. Leaf and Node are thin views of the columns of a walk."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.home import Axes, Home, Spec
from leafwise.core.memory.ops import Op
from leafwise.core.memory.sharding import Sharding
from leafwise.core.path import Path, escape
from leafwise.errors import Error, Unsupported, WalkError, WriteError

if TYPE_CHECKING:
    from leafwise.core.columns import Columns

T = TypeVar("T")


class Name(NamedTuple):
    """One of the names of a leaf.

    `path` is its path, and `owner` is the type of the module or container that has it there. `role` and `axes` are
    those of the leaf under this name; a tied weight may have another role under each name. `op` says how the name
    views the leaf: `same`, `transpose` or `view`.

    >>> import torch, leafwise as lw
    >>> model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(100, 16), "head": torch.nn.Linear(16, 100)})
    >>> model["head"].weight = model["embed"].weight
    >>> for name in lw.tree(model)["embed.weight"].names:
    ...     print(name.path, name.owner, name.role, name.op)
    embed.weight Embedding embedding.table same
    head.weight Linear linear.weight same
    """

    path: Path
    owner: str
    role: str | None
    axes: Axes
    op: Op


class Leaf:
    """A parameter, buffer or other array of a tree. A tied leaf has several names for one value.

    `value` and `grad` are the framework's own arrays. For a leaf of a file, `value` reads from the file.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    >>> leaf = lw.tree(net)["0.weight"]
    >>> leaf
    <Leaf 0.weight: parameter 8×4 float32>
    >>> leaf.role, leaf.axes, leaf.owner
    ('linear.weight', ('out', 'in'), 'Linear')
    >>> leaf.value is net[0].weight
    True

    For contributors: `columns` is the result of the walk, `number` is the number of the leaf in it, and `row` is the
    row of the name by which the leaf was reached.
    """

    __slots__ = ("__weakref__", "columns", "number", "row")

    def __init__(self, columns: "Columns", number: int, row: int) -> None:
        self.columns = columns
        self.number = number
        self.row = row

    # -- names -----------------------------------------------------------------------------------------

    @property
    def names(self) -> tuple[Name, ...]:
        """All names of the leaf; the first one has the path `path`."""
        columns = self.columns
        rows = columns.rows_of(self.number)
        rows = [self.row, *(row for row in rows if row != self.row)]
        return tuple([columns.name(row) for row in rows])

    @property
    def paths(self) -> tuple[Path, ...]:
        """The paths of all names."""
        return tuple([name.path for name in self.names])

    @property
    def path(self) -> Path:
        """The path of the leaf, from the root of the model; the first one if it has several."""
        return self.columns.row_path(self.row)

    @property
    def owner(self) -> str:
        """The type of the module or container that has the leaf, such as `Linear`."""
        return self.columns.type_name(self.columns.row_nodes[self.row])

    @property
    def role(self) -> str | None:
        """What the leaf is for, such as `linear.weight`; None if that is not known."""
        return self.columns.row_role(self.row)[0]

    @property
    def axes(self) -> Axes:
        """What each dimension means, such as `("out", "in")`; None if that is not known."""
        return self.columns.row_role(self.row)[1]

    # -- facts -----------------------------------------------------------------------------------------

    @property
    def kind(self) -> Literal["parameter", "buffer", "state"]:
        """`parameter`, `buffer`, or `state` for the state of an optimizer or of anything else that is not a model."""
        return self.columns.leaf_kind(self.number)

    @property
    def section(self) -> Literal["weights", "optimizer", "rest"]:
        """The part of a training checkpoint to which it belongs: `weights` for parameters and buffers, `optimizer` for
        the state of an optimizer, `rest` for random states, counters, metrics and other state."""
        return self.columns.leaf_section(self.number)

    @property
    def persistent(self) -> bool:
        """Whether it is saved in checkpoints: False for buffers registered with `persistent=False`."""
        return self.columns.row_kinds[self.number] != "transient"

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape; None if it is not known yet, as in a lazy layer."""
        return self._facts().shape

    @property
    def ndim(self) -> int | None:
        """The number of dimensions; None if the shape is not known yet."""
        shape = self._facts().shape
        return None if shape is None else len(shape)

    @property
    def dtype(self) -> str:
        """The name of the dtype, such as `float32`, `bfloat16` or `float8_e4m3fn`."""
        return self._facts().dtype

    @property
    def device(self) -> str:
        """The name of the device, such as `cpu` or `cuda:0`; `file` for a leaf of a file."""
        return self._facts().device

    @property
    def size(self) -> int:
        """The number of elements; 0 if the shape is not known yet."""
        return self._facts().size

    @property
    def nbytes(self) -> int:
        """The size of the value in bytes."""
        return self._facts().nbytes

    @property
    def sharding(self) -> Sharding | None:
        """How the leaf is split over several processes, or, in JAX, over several devices, such as `shard(0) over dp=4`;
        None if it is in one place. `shape`, `size` and `nbytes` are those of the whole leaf."""
        return self._facts().split

    @property
    def local_nbytes(self) -> int:
        """The size in bytes of what this process has of the value."""
        return self._facts().nbytes_here

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
    def local(self) -> Any:
        """The framework's own array of what this process has of the value, never a copy. If the leaf is not sharded,
        it is `value`."""
        return self._ask(lambda home, raw: home.capability(Distributing).local(raw), "getting its local value")

    @property
    def grad(self) -> Any:
        """The gradient, or None before the first backward."""
        return self._ask(lambda home, raw: home.grads([raw])[0], "getting its gradient")

    def numpy(self, index: Any = ()) -> Any:
        """The value as a NumPy array, without a copy if possible.

        With `index`, only that part is returned, and only that part is read from a file:
        `leaf.numpy((slice(0, 10), 3))`.
        """
        if reason := self._ask(lambda home, raw: home.cannot_read(raw), "reading its value"):
            raise Unsupported(self.columns.home(self.columns.current(self.row)).name, f"read {self.path}", reason)
        if isinstance(index, tuple) and not index:
            value = self.value  # for a file, an array mapped over it; nothing is read yet
            return self._ask(lambda home, raw: self.columns.home(value).read(value), "reading its value")
        return self._ask(lambda home, raw: home.read(raw, index), "reading its value")

    def write(self, array: Any) -> None:
        """Writes new values into the leaf, in place. If shape or dtype differ, raises an error and changes nothing.

        >>> import torch, leafwise as lw
        >>> state = {"weight": torch.zeros(2)}
        >>> lw.tree(state)["weight"].write(torch.ones(2))
        >>> state["weight"]
        tensor([1., 1.])
        """
        try:
            self._ask(lambda home, raw: home.write(raw, array), "writing to it")
        except Unsupported as error:
            error.args = (f"{self.path}: {error}; nothing was changed",)
            raise
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
    """A module or a container in a tree, with its path, type and children. Modules without parameters are nodes, too.

    >>> import torch, leafwise as lw
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> [(str(node.path), node.type) for node in lw.tree(net).nodes]
    [('', 'Sequential'), ('0', 'Linear'), ('1', 'ReLU')]

    For contributors: `columns` is the result of the walk, and `number` is the number of the node in it.
    """

    __slots__ = ("columns", "number")

    def __init__(self, columns: "Columns", number: int) -> None:
        self.columns = columns
        self.number = number

    @property
    def path(self) -> Path:
        """The path of the node; empty for the root."""
        return self.columns.node_path(self.number)

    @property
    def type(self) -> str:
        """The name of its type, such as `Linear` or `dict`."""
        return self.columns.type_name(self.number)

    @property
    def value(self) -> Any:
        """The module or container itself."""
        return self.columns.node_objects[self.number]

    @property
    def children(self) -> "tuple[Node, ...]":
        """The nodes directly below this one."""
        return tuple([Node(self.columns, child) for child in self.columns.children(self.number)])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Node):
            return NotImplemented
        return self.columns is other.columns and self.number == other.number

    def __hash__(self) -> int:
        return hash((id(self.columns), self.number))

    def __repr__(self) -> str:
        return escape(f"<Node {str(self.path) or 'root'}: {self.type}>")


class Tie(NamedTuple):
    """A leaf that has several names; see `lw.ties`.

    `leaf` is the leaf, and `names` are all its names. `op` is `same` if each name is the whole leaf as it is; otherwise
    it says how the first name that differs views the leaf: `transpose` or `view`.

    >>> import torch, leafwise as lw
    >>> shared = torch.nn.Linear(4, 4, bias=False)
    >>> tie = lw.ties(torch.nn.Sequential(shared, torch.nn.ReLU(), shared))[0]
    >>> [str(name.path) for name in tie.names], tie.op == "same", tie.leaf.shape
    (['0.weight', '2.weight'], True, (4, 4))
    """

    leaf: Leaf
    names: tuple[Name, ...]
    op: Op


class SharedMemory(NamedTuple):
    """Leaves that share memory but are not tied, because each has its own gradient, or because they only overlap.

    `reason` is "shared memory, separate gradients" or "partly shared memory".

    >>> import torch, leafwise as lw
    >>> a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    >>> b.weight.data = a.weight.data
    >>> shared = lw.tree(torch.nn.Sequential(a, b)).shared_memory[0]
    >>> [str(leaf.path) for leaf in shared.leaves], shared.reason
    (['0.weight', '1.weight'], 'shared memory, separate gradients')
    """

    leaves: tuple[Leaf, ...]
    reason: str


class UndoneTie(NamedTuple):
    """A tie that was declared with `lw.tie` or `lw.keep_ties`, and that was undone later, as by an assignment.

    `path` was another name of `source`, and `op` says how it viewed that leaf. `repair()` says what to type.

    >>> import torch, warnings, leafwise as lw
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    >>> model = lw.tie(model, "1.weight", to="0.weight", keep="source")
    >>> model[1].weight = torch.nn.Parameter(torch.zeros(4, 4))
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore", lw.TieWarning)
    ...     print(lw.tree(model).undone[0])
    declared tie undone: 1.weight is no longer 0.weight
    """

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
        """What to type to tie the names again, or to make their separation final."""
        if self.gone:
            return f'to accept this: lw.untie(model, "{self.source}")'
        return (
            f'to tie them again: lw.tie(model, "{self.path}", to="{self.source}", …); '
            f'to leave them untied: lw.untie(model, "{self.path}")'
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
