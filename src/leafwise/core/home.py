"""What every home must say.

A home is where parameters live: PyTorch modules, optimizers, plain containers, files. It states only what differs. The
walk, ties, queries and the picture are made in core, from what it says here; `core.capabilities` has what verbs ask for
beyond that. A new home needs `handles`, `visit`, `spec` and `read`, and is registered in `core.registry`.
"""

from collections.abc import Callable, Collection, Hashable, Mapping
from importlib import import_module
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, cast

from leafwise.core.capabilities import Capability
from leafwise.core.path import Entry, Path
from leafwise.errors import Unsupported

# What the walk writes down about a leaf. "transient" is a buffer that no checkpoint holds; "array" is an
# array found in a plain container, which counts as a parameter because nothing says otherwise.
LeafKind = Literal["parameter", "buffer", "transient", "state", "array"]

Pairs = Collection[tuple[str, Any]]

# What a node holds: leaves by kind, known to be leaves; children, told apart by their type; and the kind of
# every array below that is not listed as a leaf, where the node knows it. A bare tuple, because the walk
# makes one for each module and a named one costs a fifth of the walk.
Visit = tuple[tuple[tuple[LeafKind, Pairs], ...], Pairs, LeafKind | None]

Axes = tuple[str, ...] | None

# Where each capability of a home is implemented: a class, or "module:class".
Capabilities = Mapping[type[Capability], type[Capability] | str]
C = TypeVar("C", bound=Capability)


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
    """The base of every home.

    `in_place` is whether values are written into the arrays that are there; if not, the capability `Rebuilding` makes
    new ones. `capabilities` says where each capability is implemented: a class, or "module:class", which is imported
    when it is first asked for.
    """

    name: ClassVar[str] = "home"
    in_place: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = {}

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

    def cannot_read(self, value: Any) -> str:
        """Why an array has no values to be read; empty where it has."""
        return ""

    def read(self, value: Any, index: Any = ()) -> Any:
        """The array as a NumPy array, or the part that `index` takes."""
        raise Unsupported(self.name, "give a NumPy array")

    def write(self, value: Any, array: Any) -> None:
        """Writes all values in place. Raises `WriteError`, before anything changes, where shape or dtype differ."""
        raise Unsupported(self.name, "write in place")

    # -- memory --------------------------------------------------------------------------------------

    def storages(self, values: list[Any]) -> list[object | None]:
        """For each array a key that arrays over one storage have in common; None for what has no memory."""
        return [None] * len(values)

    def memory(self, value: Any) -> Memory | None:
        """Where in its storage the array lies; None where it does not say."""
        return None

    def own_gradient(self, value: Any) -> bool:
        """Whether the array has a gradient of its own, so that it is a leaf whatever memory it shares."""
        return False

    # -- capabilities --------------------------------------------------------------------------------

    def capability(self, kind: type[C], action: str = "") -> C:
        """What this home offers of a kind, or its defaults; raises `Unsupported`, with `action` for what was to be
        done, where it offers nothing."""
        offered = offer(self, kind)
        if offered is None:
            raise Unsupported(self.name, action or kind.action, kind.why)
        return offered


def offer(home: Home, kind: type[C]) -> C | None:
    """What a home offers of a kind of capability; None where it offers nothing. Made once for each home."""
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
