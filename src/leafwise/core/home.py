"""The interface of a home, and the records that it exchanges with core.

A home is where parameters live: PyTorch modules, optimizers, plain containers, files. It implements only what is
different from other homes. The walk, ties, queries and the picture are built in core from the methods here; verbs that
need more use a capability, see `core.capabilities`. A new home needs `handles`, `visit`, `spec` and `read`, and is
registered in `core.registry`.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast

from leafwise.core.capabilities import Capability
from leafwise.core.memory.sharding import Sharding
from leafwise.core.path import Entry, Path
from leafwise.errors import Unsupported

# "transient" is a buffer that is not part of any checkpoint. "state" is the state of an optimizer, and "rest" is other
# state, such as that of a scheduler. "array" is an array in a plain container, whose kind `core.roles.sections`
# decides; it counts as a parameter if nothing says otherwise. "recorded" is an array that its file records as a
# parameter.
LeafKind = Literal["parameter", "buffer", "transient", "state", "rest", "array", "recorded"]

MANY_VALUES = 10_000  # a dict with more plain values, and nothing else, is one plain value, such as a vocabulary

Pairs = Collection[tuple[str, Any]]

# The content of a node: its leaves by kind; its children, which may be nodes, leaves or plain values, depending on
# their type; and the kind of all arrays below it that are not listed as leaves, if the node knows it. This is a bare
# tuple, because the walk makes one for each module, and a named tuple would make the walk a fifth slower.
Visit = tuple[tuple[tuple[LeafKind, Pairs], ...], Pairs, LeafKind | None]

Axes = tuple[str, ...] | None

# Where each capability of a home is implemented: a class, or "module:class".
Capabilities = Mapping[type[Capability], type[Capability] | str]
C = TypeVar("C", bound=Capability)


class Spec(NamedTuple):
    """What is known about an array without reading its elements.

    `trainable` is whether training changes it; None if that is not known, as in a file. If the array is sharded over
    several processes, `sharding` says how, shape and sizes are those of the whole array, and `local_nbytes` is the
    number of bytes in this process. Both are None if it is whole. `kind` is what the array is, if it says so itself, as
    a typed random key does. `on_devices` says how an array is split that one object of the framework spreads over
    several devices, as JAX does; it is read and written like a whole one.
    """

    shape: tuple[int, ...] | None
    dtype: str
    device: str
    size: int
    nbytes: int
    trainable: bool | None = None
    sharding: Sharding | None = None
    local_nbytes: int | None = None
    kind: LeafKind | None = None
    on_devices: Sharding | None = None

    @property
    def split(self) -> Sharding | None:
        """How the array is split, over processes or over devices; None if it is in one place."""
        return self.on_devices if self.sharding is None else self.sharding

    @property
    def nbytes_here(self) -> int:
        """The number of bytes in this process."""
        return self.nbytes if self.local_nbytes is None else self.local_nbytes


class Memory(NamedTuple):
    """Which bytes of its storage an array covers; offset and strides in bytes."""

    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    dtype: str


class Home:
    """The base of every home.

    `walks` names the objects that users can pass to `lw.tree`, for the error about an object that cannot be walked.
    `in_place` is whether values are written into existing arrays; if not, the capability `Rebuilding` makes new ones.
    `why_immutable` says why there is no `write`, and what to do instead.
    `arrays_in` is the attribute of nodes that maps the names of most of their arrays to the current arrays, if there is
    one: it is faster than `current`. `ties_by_identity` is whether one array at two places is one leaf; it is not in
    JAX, where arrays are values. `nodes_by_reference` is whether one node at two places is shared, as a module is, and
    not a value that is there twice. `roles_by_class` is whether roles follow from the types of nodes, so that
    `lw.add_roles` accepts these types, and `roles_by_name` whether `role` also knows the roles of arrays in plain
    containers. `capabilities` says where each capability is implemented: a class, or
    "module:class", which is imported on first use.
    """

    name: ClassVar[str] = "home"
    walks: ClassVar[str] = ""
    in_place: ClassVar[bool] = True
    why_immutable: ClassVar[str] = ""
    arrays_in: ClassVar[str] = ""
    ties_by_identity: ClassVar[bool] = True
    nodes_by_reference: ClassVar[bool] = True
    roles_by_class: ClassVar[bool] = False
    roles_by_name: ClassVar[bool] = False
    capabilities: ClassVar[Capabilities] = {}

    # -- the walk ------------------------------------------------------------------------------------

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        """Whether objects of this type are nodes or leaves of this home."""
        raise NotImplementedError

    def visit(self, obj: Any) -> Visit | None:
        """The leaves and children of a node; None if this object is a plain value."""
        raise NotImplementedError

    def visitor(self, cls: type, path_of: Callable[[Any], Path | None]) -> Callable[[Any], Visit | None]:
        """`visit` for objects of one type. `path_of(value)` is the path of a value in the same tree, if it has one."""
        return self.visit

    def wrapped_child(self, cls: type) -> str | None:
        """If the type is a wrapper, the name of the child that it wraps, which paths do not show."""
        return None

    def current(self, owner: Any, name: str, value: Any) -> Any:
        """The current value of `name` in `owner`; the walk found `value` there."""
        return value

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        """The path entry from `owner` to the child or leaf `value` called `name`."""
        return Entry(name, "attribute")

    def type_name(self, obj: Any) -> str:
        """What a picture of the tree calls a node."""
        return type(obj).__name__

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        """The role of the leaf `name`, and its axes. `lineage()` is its owner, the owner's parent, and so on up."""
        return None, None

    def role_key(self, owner: Any, name: str, value: Any) -> Hashable | None:
        """A key that determines the role, so that `role` is called once for each kind of leaf in a model with repeated
        layers; None if the role may depend on more."""
        return None

    # -- a leaf --------------------------------------------------------------------------------------

    def spec(self, value: Any) -> Spec:
        """The shape of an array, its dtype (a name of `core.dtypes`), its device, and what else is known."""
        raise NotImplementedError

    def specs(self, values: list[Any]) -> list[Spec]:
        """The specs of many arrays; a home may override it to be faster."""
        return [self.spec(value) for value in values]

    def value(self, value: Any) -> Any:
        """The framework's own array, never a copy."""
        return value

    def grads(self, values: list[Any]) -> list[Any]:
        """The gradient of each array, or None. Gradients may be arrays of another home."""
        return [None] * len(values)

    def cannot_read(self, value: Any) -> str:
        """Why the values of an array cannot be read; empty if they can."""
        return ""

    def read(self, value: Any, index: Any = ()) -> Any:
        """The array, or the part at `index`, as a NumPy array of the dtype in its `spec`."""
        raise Unsupported(self.name, "convert to a NumPy array")

    def write(self, value: Any, array: Any) -> None:
        """Writes all values in place. If shape or dtype differ, raises `WriteError` before anything changes."""
        raise Unsupported(self.name, "write in place", self.why_immutable)

    # -- memory --------------------------------------------------------------------------------------

    def storages(self, values: list[Any]) -> list[object | None]:
        """For each array, a key that is equal for arrays over the same storage; None if it has no memory."""
        return [None] * len(values)

    def memory(self, value: Any) -> Memory | None:
        """Where the array is in its storage; None if that is not known."""
        return None

    def own_gradient(self, value: Any) -> bool:
        """Whether the array has its own gradient. If so, it is a leaf even if it shares memory with another array. Must
        not depend on whether it is frozen now."""
        return False

    # -- capabilities --------------------------------------------------------------------------------

    def capability(self, kind: type[C], action: str = "") -> C:
        """The capability of this kind that the home implements, or its defaults. If there is none, raises
        `Unsupported`; its message says that the home cannot `action`."""
        offered = capability_or_none(self, kind)
        if offered is None:
            raise Unsupported(self.name, action or kind.action, kind.why)
        return offered


def capability_or_none(home: Home, kind: type[C]) -> C | None:
    """Like `Home.capability`, but returns None if there is none. Each capability is created once for a home."""
    made: dict[type[Capability], Capability | None] | None = home.__dict__.get("_offers")
    if made is None:
        made = home.__dict__["_offers"] = {}
    elif kind in made:
        return cast("C | None", made[kind])
    listed = home.capabilities.get(kind, kind if kind.has_defaults else None)
    if isinstance(listed, str):
        module, _, name = listed.partition(":")
        listed = cast("type[Capability]", getattr(import_module(module), name))
    made[kind] = None if listed is None else listed(home)
    return cast("C | None", made[kind])
