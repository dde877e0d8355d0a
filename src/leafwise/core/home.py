"""The interface of a home, and the records that it exchanges with core.

A home is where parameters live: PyTorch modules, optimizers, plain containers, files. It implements only what differs
from the other homes. The walk, ties, queries and the picture are made in core from the methods here; verbs that need
more ask for a capability, see `core.capabilities`. A new home needs `handles`, `visit`, `spec` and `read`, and is
registered in `core.registry`.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast

from leafwise.core.capabilities import Capability
from leafwise.core.path import Entry, Path
from leafwise.errors import Unsupported

# "transient" is a buffer that no checkpoint holds; "array" is an array in a plain container, which counts as a
# parameter because nothing says otherwise.
LeafKind = Literal["parameter", "buffer", "transient", "state", "array"]

Pairs = Collection[tuple[str, Any]]

# The content of a node: its leaves by kind; its children, which may be nodes, leaves or plain values, depending on
# their type; and the kind of all arrays below it that are not listed as leaves, if the node knows it. A bare tuple,
# because the walk makes one for each module, and a named tuple would make it a fifth slower.
Visit = tuple[tuple[tuple[LeafKind, Pairs], ...], Pairs, LeafKind | None]

Axes = tuple[str, ...] | None

# Where each capability of a home is implemented: a class, or "module:class".
Capabilities = Mapping[type[Capability], type[Capability] | str]
C = TypeVar("C", bound=Capability)


class Spec(NamedTuple):
    """What is known about an array without reading its elements.

    `trainable` is whether training changes it; None where that is not known, as in a file.
    """

    shape: tuple[int, ...] | None
    dtype: str
    device: str
    size: int
    nbytes: int
    trainable: bool | None = None


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
    `capabilities` says where each capability is implemented: a class, or "module:class", which is imported when it is
    first asked for.
    """

    name: ClassVar[str] = "home"
    walks: ClassVar[str] = ""
    in_place: ClassVar[bool] = True
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
        """The present value of `name` in `owner`, where the walk met `value`."""
        return value

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        """The step from `owner` to the child or leaf `value` called `name`."""
        return Entry(name, "attribute")

    def type_name(self, obj: Any) -> str:
        return type(obj).__name__

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        """The role of the leaf `name`, and its axes. `lineage()` is its owner, the owner's parent, and so on up."""
        return None, None

    def role_key(self, owner: Any, name: str, value: Any) -> Hashable | None:
        """A key that determines the role, so that a model that repeats layers is asked once for each kind of leaf; None
        where the role may depend on more."""
        return None

    # -- a leaf --------------------------------------------------------------------------------------

    def spec(self, value: Any) -> Spec:
        raise NotImplementedError

    def specs(self, values: list[Any]) -> list[Spec]:
        """The specs of many arrays; a home may override it to be faster."""
        return [self.spec(value) for value in values]

    def value(self, value: Any) -> Any:
        """The framework's own array, never a copy."""
        return value

    def grads(self, values: list[Any]) -> list[Any]:
        """The gradient of each array, None where there is none. Gradients may be arrays of another home."""
        return [None] * len(values)

    def cannot_read(self, value: Any) -> str:
        """Why the values of an array cannot be read; empty where they can."""
        return ""

    def read(self, value: Any, index: Any = ()) -> Any:
        """The array as a NumPy array of the dtype that `spec` says, or the part that `index` takes."""
        raise Unsupported(self.name, "convert to a NumPy array")

    def write(self, value: Any, array: Any) -> None:
        """Writes all values in place. Raises `WriteError`, before anything changes, where shape or dtype differ."""
        raise Unsupported(self.name, "write in place")

    # -- memory --------------------------------------------------------------------------------------

    def storages(self, values: list[Any]) -> list[object | None]:
        """For each array, a key that arrays over the same storage have in common; None if it has no memory."""
        return [None] * len(values)

    def memory(self, value: Any) -> Memory | None:
        """Where in its storage the array lies; None where that is not known."""
        return None

    def own_gradient(self, value: Any) -> bool:
        """Whether the array has a gradient of its own. If so, it is a leaf even if it shares memory with another. Must
        not depend on whether it is frozen now."""
        return False

    # -- capabilities --------------------------------------------------------------------------------

    def capability(self, kind: type[C], action: str = "") -> C:
        """The capability of this kind that the home implements, or its defaults. If there is none, raises
        `Unsupported`; `action` is what the message says that the home cannot do."""
        offered = offer(self, kind)
        if offered is None:
            raise Unsupported(self.name, action or kind.action, kind.why)
        return offered


def offer(home: Home, kind: type[C]) -> C | None:
    """As `Home.capability`, but None if there is none. Each capability is made once for a home."""
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
