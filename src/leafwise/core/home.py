"""What a home must say.

A home is where parameters live: PyTorch modules, optimizers, plain containers, files. It states only what
differs. The walk, ties, queries and the picture are made here in core, from what it says.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from leafwise.core.path import Entry, Path
from leafwise.errors import Unsupported

if TYPE_CHECKING:
    from leafwise.core.iterating import Draw, PackedPart, Slot, Stretch
    from leafwise.core.memory import Op
    from leafwise.core.moments import Moments
    from leafwise.core.runs import Run
    from leafwise.core.sharing import Declared, Group, Keep, Place, Use

# What the walk writes down about a leaf. "transient" is a buffer that no checkpoint holds; "array" is an
# array found in a plain container, which counts as a parameter because nothing says otherwise.
LeafKind = Literal["parameter", "buffer", "transient", "state", "array"]

Pairs = Collection[tuple[str, Any]]


# What a node holds: leaves by kind, known to be leaves; children, told apart by their type; and the kind of
# every array below that is not listed as a leaf, where the node knows it. A bare tuple, because the walk
# makes one for each module and a named one costs a fifth of the walk.
Visit = tuple[tuple[tuple[LeafKind, Pairs], ...], Pairs, LeafKind | None]

Axes = tuple[str, ...] | None

# What an optimizer's node holds besides `param_groups` and `state`: state that belongs to no parameter; and, beside a
# state dict of its own making, which numbers parameters, their names in the order of the numbers.
GLOBAL_STATE = "global_state"
PARAMETERS = "parameters"


class Spec(NamedTuple):
    """The facts of an array that need no look at its elements.

    `trainable` is whether training changes it; None where nobody says, as in a file.
    """

    shape: tuple[int, ...] | None
    dtype: str
    device: str
    size: int
    nbytes: int
    trainable: bool | None = None


class Memory(NamedTuple):
    """Which bytes of which storage an array covers; everything counted in bytes."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str


class Home:
    """The base of every home: says no to everything that a home does not say for itself."""

    name = "home"

    # -- the walk ------------------------------------------------------------------------------------

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        """Whether objects of this type are nodes or leaves of this home."""
        raise NotImplementedError

    def visit(self, obj: Any) -> Visit | None:
        """The leaves and the children of a node; None where it turns out to be a plain value."""
        raise NotImplementedError

    def visitor(self, cls: type, naming: Callable[[Any], Path | None]) -> Callable[[Any], Visit | None]:
        """`visit` for objects of one type; a home may name things after where `naming` finds them in the same tree."""
        return self.visit

    def wrapped_child(self, cls: type) -> str | None:
        """Of a wrapper, the name of the child that it wraps, whose step does not show in a path."""
        return None

    def current(self, owner: Any, name: str, value: Any) -> Any:
        """What stands at `name` in `owner` now, where the walk found `value`."""
        return value

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        """The step from `owner` to the child or leaf `value` called `name`."""
        return Entry(name, "attribute")

    def type_name(self, obj: Any) -> str:
        return type(obj).__name__

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        """What the leaf `name` is for, and its axes. `lineage()` is its owner, the owner's parent, and so on up."""
        return None, None

    def role_key(self, owner: Any, name: str, value: Any) -> Hashable | None:
        """What the role depends on, so that a model that repeats layers is asked once for each kind; None where it may
        depend on more."""
        return None

    # -- a leaf --------------------------------------------------------------------------------------

    def spec(self, value: Any) -> Spec:
        raise NotImplementedError

    def specs(self, values: list[Any]) -> list[Spec]:
        """The specs of many arrays; a home that can be quicker than one by one says how."""
        return [self.spec(value) for value in values]

    def value(self, value: Any) -> Any:
        """The framework's own array, never a copy."""
        return value

    def grads(self, values: list[Any]) -> list[Any]:
        """The gradient of each array, None where there is none."""
        return [None] * len(values)

    def numpy(self, value: Any) -> Any:
        raise Unsupported(self.name, "give a NumPy array")

    def read(self, value: Any, index: Any) -> Any:
        """A part of the array as a NumPy array; a home that can read just that says how."""
        whole = self.numpy(value)
        return whole if isinstance(index, tuple) and not index else whole[index]

    def reads_parts(self, value: Any) -> bool:
        """Whether a part is read without the rest. If not, whoever wants many parts asks for the whole, once."""
        return False

    def write(self, value: Any, array: Any) -> None:
        raise Unsupported(self.name, "write in place")

    # -- saving and loading; see `leafwise.checkpoint` -------------------------------------------------

    in_place = True  # whether values are written into the arrays that are there; if not, `replaced` gets new ones

    def pieces(self, value: Any) -> Iterator[Any]:
        """The values in C order as bytes: as they lie, or copied piece by piece; whole elements in each piece."""
        raise Unsupported(self.name, "be saved")

    def axis_order(self, value: Any) -> tuple[int, ...] | None:
        """The order of axes in which an array lies densely; None where that is C order, or none."""
        return None

    def snapshot(self, values: list[Any]) -> list[Any]:
        """Copies of arrays, which nobody else has."""
        raise Unsupported(self.name, "be copied")

    def buffer(self, value: Any) -> memoryview | None:
        """The memory of an array as writable bytes in C order; None where it lies otherwise, or elsewhere."""
        return None

    def lies_at(self, value: Any) -> "tuple[object, Memory] | None":
        """Where an array lies, so that arrays of any home can be compared: a space, and the place in it, counted in
        bytes from where that space begins. After its dtype stand marks, if the memory holds other bits than those of
        the values, as that of a conjugated view does. None where it is not known, or where there are no values."""
        return None

    def cannot_read(self, value: Any) -> str:
        """Why an array has no values to be read; empty where it has."""
        return ""

    def cannot_write(self, value: Any) -> str:
        """Why values cannot be written into an array that has memory; empty where they can."""
        return ""

    def may_be_foreign(self, values: list[Any]) -> bool:
        """Whether `not_understood` is worth asking of any of these arrays, some of which may be of other homes."""
        return False

    def not_understood(self, values: list[Any]) -> dict[int, str]:
        """Arrays whose bytes here are not their values, as of a library that shards or quantises them: by their number
        in the list, what they are and what to call instead."""
        return {}

    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        """Nodes that hold what the walk does not list: by their number in the list, which may have nodes of other
        homes, what that is and what to do about it."""
        return {}

    def saved_otherwise(self, objects: list[Any]) -> dict[int, str]:
        """Nodes that write down other things than the walk lists: by their number in the list, which may have nodes of
        other homes, what that is and what to do about it."""
        return {}

    def after_load(self, objects: list[Any]) -> None:
        """Has nodes do what they do when they are loaded, once they have their values. The list may have nodes of other
        homes."""

    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        """What a checkpoint must know of a node to make it again, or to tell it from another: the name of its type,
        and for a dict whose keys are not all names, the name that each key has in a path, with the key. None where its
        names say it all."""
        return None

    def is_container(self, obj: Any) -> bool:
        """Whether a node is nothing but what it holds, as a dict is."""
        return False

    def takes_back(self, obj: Any) -> bool:
        """Whether what a node shows below it are copies, that must be handed back to it when they are changed."""
        return False

    def blank(self, value: Any, shape: tuple[int, ...]) -> Any:
        """An array with memory, in place of one that has none yet."""
        raise Unsupported(self.name, "be given memory")

    def made(self, value: Any, array: Any) -> Any:
        """A NumPy array as one of this home's own, to take the place of `value`."""
        raise Unsupported(self.name, "take values from outside")

    def wrote(self, values: list[Any]) -> None:
        """Tells the framework that the memory of these arrays was written to."""

    def replaced(self, owner: Any, changes: dict[str, Any]) -> Any:
        """The owner with other leaves, children or plain values under these names: itself, or where it cannot change,
        another."""
        return owner

    def recompute(self, places: list[tuple[tuple[Any, ...], list[str]]]) -> list[dict[str, Any]]:
        """Values of leaves that no checkpoint holds, by name, as far as they can be computed. A place is a node, with
        its parents up to the root, and the names of its leaves. Nothing is changed."""
        return [{} for _ in places]

    def steps(self, obj: Any) -> bool:
        """Whether a node steps parameters and keeps state for each, as an optimizer does."""
        return False

    def reached(self, optimizer: Any, value: Any) -> Any:
        """What an optimizer keeps of an array, of the same shape, that is zero where no step reached it, or None."""
        return None

    def exchange(self, optimizer: Any, new: dict[int, Any]) -> None:
        """Has an optimizer step other parameters in place of those with these identities."""
        raise Unsupported(self.name, "exchange what it steps")

    def like_parameter(self, key: str) -> bool:
        """Whether the state of this name has the shape of its parameter."""
        return False

    def restore_state(
        self,
        optimizer: Any,
        states: dict[tuple[int, int], dict[str, Any]],
        options: dict[int, dict[str, Any]],
        whole: bool,
        more: dict[Any, Any],
    ) -> None:
        """Gives an optimizer the state of its parameters, by group and position in it, and the options of groups, by
        their numbers; where `whole`, these are all options that a group shall have. `more` is state that belongs to no
        parameter. Arrays come as NumPy arrays. A parameter that is not given keeps the state that it has."""
        raise Unsupported(self.name, "take the state of an optimizer")

    def keeps_own_state(self, optimizer: Any) -> bool:
        """Whether an optimizer keeps more than the state of its parameters and options of groups, so that only its own
        state dict is all of it."""
        return False

    def restore_own_state(self, optimizer: Any, state: Any) -> None:
        """Gives such an optimizer back what its state dict was. Arrays come as NumPy arrays."""
        raise Unsupported(self.name, "take the state of an optimizer")

    # -- iterating; see `leafwise.iterate` ---------------------------------------------------------------

    def optimizer_options(self, optimizer: Any) -> frozenset[str] | None:
        """The options that an optimizer takes for a group, or where none is given, that any does; None where nobody
        knows."""
        return None

    def depths_by(self, cls: type) -> Callable[[Any, list[str]], list[int | None]] | None:
        """For a type whose nodes say themselves how deep their leaves lie, a function that asks one of them. It takes
        the node and the names of leaves as seen from there, and gives the level of each, counted from 0; None for what
        comes after all levels."""
        return None

    def undecayed_by(self, cls: type) -> Callable[[Any, list[str]], list[bool]] | None:
        """For a type whose nodes say themselves which of their leaves are not to be decayed, a function that asks one
        of them. It takes the node and the names of leaves as seen from there."""
        return None

    def set_trainable(self, values: list[Any], trainable: bool) -> None:
        """Has arrays trained from now on, or not."""
        raise Unsupported(self.name, "freeze", "nothing in its arrays says whether they are trained")

    def cannot_train(self, value: Any, trainable: bool) -> str:
        """Why an array cannot be thawed, or frozen; empty where it can."""
        return ""

    def drifts(self, owner: Any, name: str) -> bool:
        """Whether training changes a buffer, as it does running statistics."""
        return False

    def hold_still(self, owner: Any, on: bool) -> None:
        """Keeps the drifting buffers of a node as they are; or lets go of them."""
        raise Unsupported(self.name, "hold buffers still")

    def is_held(self, owner: Any, name: str) -> bool:
        """Whether a buffer is kept as it is."""
        return False

    # Each of these gives the arrays as they are afterwards: the same ones, or where they cannot change, new ones.

    def first_of_other_shape(self, targets: list[Any], values: list[Any]) -> int | None:
        """The number of the first value whose shape is not that of its target; None where all agree."""
        pairs = zip(self.specs(targets), self.specs(values), strict=True)
        return next((number for number, (one, other) in enumerate(pairs) if one.shape != other.shape), None)

    def clone_many(self, values: list[Any], precise: bool) -> list[Any]:
        """Copies; of floating point with at least 32 bits where they shall be precise."""
        return values  # what cannot change needs no copy

    def copy_many(self, targets: list[Any], values: list[Any]) -> list[Any]:
        """The targets, holding these values."""
        return [self.made(target, self.numpy(value)) for target, value in zip(targets, values, strict=True)]

    def lerp_many(self, targets: list[Any], values: list[Any], weight: float) -> list[Any]:
        """The targets, moved by this share of the way to the values."""
        pairs = [(target, self.numpy(target), self.numpy(value)) for target, value in zip(targets, values, strict=True)]
        return [self.made(target, old + weight * (new - old)) for target, old, new in pairs]

    def is_stock(self, owner: Any) -> bool:
        """Whether a layer is of the framework's own making, so that it begins with what the framework says."""
        return False

    def cannot_fill(self, value: Any) -> str:
        """Why initial values cannot be written into an array; empty where they can."""
        return self.cannot_write(value)

    def local_parts(self, value: Any) -> list[tuple[Any, tuple[int, ...] | None]]:
        """The parts of an array that are here, each with where it begins; None where it is the whole."""
        return [(value, None)]

    def fill(self, value: Any, start: int, rows: Any) -> None:
        """Writes rows of an array from number `start` on; cast to its dtype."""
        raise Unsupported(self.name, "be filled")

    def draw(self, value: Any, start: int, stretch: "Stretch", draw: "Draw") -> bool:
        """Makes numbers of words, and writes them as `fill` does; says whether it could. A word stands for the point
        (word + ½) / 2³¹."""
        return False

    def drawn_at_a_time(self, value: Any) -> int:
        """How many elements of an array are best drawn at a time."""
        return 1 << 18

    def as_numpy(self, array: Any) -> Any:
        """What somebody made, one of this home's own arrays or not, as a NumPy array."""
        return import_module("numpy").asarray(array)

    def when_shaped(self, owner: Any, then: Callable[[Any], None]) -> None:
        """Calls with a layer once the shapes of its leaves are known."""
        raise Unsupported(self.name, "wait for shapes")

    def norms(self, values: list[Any]) -> list[float]:
        """The Euclidean norm of each array."""
        return [math.sqrt((abs(self.numpy(value)) ** 2).sum()) for value in values]

    def clip_together(self, values: list[Any], max_norm: float) -> list[float] | None:
        """Scales arrays so that together they are no longer than that, unless they are not finite; gives their norms as
        they were. None where that is not faster than asking for the norms and then scaling."""
        return None

    def scale_many(self, values: list[Any], factors: list[float]) -> list[Any]:
        """The arrays, each multiplied by its factor; by one for all, where there is one."""
        each = factors * len(values) if len(factors) == 1 else factors
        return [self.made(value, self.numpy(value) * factor) for value, factor in zip(values, each, strict=True)]

    def cannot_pack(self, value: Any) -> str:
        """Why an array cannot become a view of a vector; empty where it can."""
        return ""

    def slot(self, owner: Any, name: str) -> "Slot | None":
        """Where a node has a leaf or a child of this name; None where there is no dict that would say."""
        return None

    def pack(self, values: list[Any], slots: "list[list[Slot]]") -> "list[tuple[list[int], PackedPart]]":
        """Makes arrays views of a few vectors, each with the numbers of the arrays that are in it. `slots` lead to each
        array, from the root down."""
        raise Unsupported(self.name, "flatten", "its arrays cannot become views")

    def repoint(self, value: Any, view: Any) -> None:
        """Lets an array lie where another lies."""
        raise Unsupported(self.name, "flatten", "its arrays cannot become views")

    # -- statistics; see `leafwise.inspect` --------------------------------------------------------------

    def cannot_measure(self, value: Any) -> str:
        """Why there are no statistics of an array; empty where there are."""
        return self.cannot_read(value)

    def measure(
        self, values: list[Any], histogram: bool, count: Callable[[int], None]
    ) -> "Callable[[], list[Moments]]":
        """Has arrays looked at, once; what it gives waits until that is done. `count` is told how many bytes are."""
        arrays = [self.numpy(value) for value in values]
        found = import_module("leafwise.core.registry").find(type(arrays[0])) if arrays else None
        if found is None:
            raise Unsupported(self.name, "be measured")
        return found[0].measure(arrays, histogram, count)  # type: ignore[no-any-return]

    # -- comparing; see `leafwise.inspect` ---------------------------------------------------------------

    def cannot_compare(self, value: Any) -> str:
        """Why the values of an array cannot be compared with others; empty where they can."""
        return self.cannot_read(value)

    def run(self, value: Any) -> "Run | None":
        """Where the elements of an array lie, one after another in C order: in memory, or in a file of this machine.
        None where they lie otherwise, and must be asked for by `pieces`."""
        return None

    def unchanged(self, values: list[Any]) -> None:
        """Raises where what arrays are read from was written to since it was opened."""

    # -- sharing -------------------------------------------------------------------------------------

    def storage(self, value: Any) -> object | None:
        """A key that two arrays over one storage have in common; None for what has no memory."""
        return None

    def storages(self, values: list[Any]) -> list[object | None]:
        """The storages of many arrays."""
        return [self.storage(value) for value in values]

    def memory(self, value: Any) -> Memory | None:
        """Where in its storage the array lies; None where it does not say."""
        return None

    def own_gradient(self, value: Any) -> bool:
        """Whether the array has a gradient of its own, so that it is a leaf whatever memory it shares."""
        return False

    def view_names(self, cls: type) -> frozenset[str]:
        """The leaves of a node of this type that are views of a leaf elsewhere; see `view_source`."""
        return frozenset()

    def view_source(self, owner: Any, name: str) -> "tuple[Any, Op] | None":
        """The array that the leaf `name` is a view of, and how it sees it; None where it is none."""
        return None

    def declared(self, objects: list[Any]) -> "list[tuple[int, Declared]]":
        """The ties that shall be kept, by the number of the object that they are declared at."""
        return []

    def same_bits(self, a: Any, b: Any) -> bool:
        """Whether two arrays hold the same values, bit by bit; raises where there is nothing to compare."""
        raise Unsupported(self.name, "compare values")

    def fingerprint(self, value: Any) -> tuple[int, bool] | None:
        """A number that equal values have in common, in whatever order they lie, and whether they are all one value;
        None where there are no values."""
        raise Unsupported(self.name, "compare values")

    def seen_through(self, value: Any, op: "Op") -> Any:
        """The array as a name with this op sees it."""
        raise Unsupported(self.name, "make views")

    # -- sharing as a verb; see `leafwise.share` -------------------------------------------------------

    def cannot_tie(self, place: "Place", value: Any, op: "Op") -> str:
        """Why what stands at this place cannot be tied so; an empty string where it can."""
        raise Unsupported(self.name, "tie")

    def tied_elsewhere(self, place: "Place", here: "list[Place]") -> list[str]:
        """The names that this one is kept tied to, and that are not among those here: they lie outside of the tree."""
        return []

    def rebind(self, root: Any, groups: "list[Group]", keep: "Keep | None") -> Any:
        """Makes the further places of each group names of its source, after their values by `keep`."""
        raise Unsupported(self.name, "tie")

    def unbind(self, root: Any, objects: list[Any], places: "list[Place]") -> Any:
        """Gives each place an independent array with equal values."""
        raise Unsupported(self.name, "untie")

    def separate(self, root: Any, objects: list[Any], places: "list[Place]") -> Any:
        """Gives each place, which holds a node used elsewhere too, a node of its own with equal values."""
        raise Unsupported(self.name, "untie")

    def guard_ties(self, root: Any, objects: list[Any], groups: "list[Group]", keep: "Keep | None") -> Any:
        """Keeps the ties from now on; `objects` are all nodes of the tree. See `lw.keep_ties`."""
        raise Unsupported(self.name, "keep ties")

    def release_ties(self, root: Any, objects: list[Any]) -> Any:
        """Lets go of the ties that are kept among these objects."""
        raise Unsupported(self.name, "keep ties")

    def capture_uses(
        self, nodes: dict[int, list[str]], leaves: dict[str, Any]
    ) -> "AbstractContextManager[Callable[[], dict[str, dict[Use, Any]]]]":
        """While entered, records the gradient of each of the arrays `leaves`, use by use. `nodes` are the paths of each
        node by its identity. What is entered gives the gradients so far."""
        raise Unsupported(self.name, "tell uses apart")

    def held_by(self, optimizer: Any) -> list[tuple[str, Any]]:
        """What an optimizer steps: each array with a word for where it stands there."""
        raise Unsupported(self.name, "list what it steps")
