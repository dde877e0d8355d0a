"""Flax NNX: modules are nodes, and Variables are leaves.

A Variable is a reference to an array, so two places with the same Variable are tied, and writing replaces the array in
the Variable: models change in place. The kind of a leaf follows from the type of its Variable.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
from flax import nnx

from leafwise.core.capabilities.averaging import Averaging
from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.converting import Converting, Reading
from leafwise.core.capabilities.filling import Filling
from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.packing import Packing
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.sorting import Sorting
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.capabilities.tying import Tying
from leafwise.core.home import Axes, Capabilities, LeafKind, Spec, Visit
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.path import Entry
from leafwise.core.roles.recipes import Recipe, Shape, Taken
from leafwise.errors import Unsupported, WriteError
from leafwise.homes.jax.arrays import ArraysHome, new_array, why_irreplaceable, why_unreadable
from leafwise.homes.jax.nnx.freezing import is_frozen
from leafwise.homes.jax.pytrees import LayerFilling
from leafwise.homes.jax.roles import role_in_container, role_of
from leafwise.homes.jax.values.placing import JaxRebuilding

_OWN_ATTRIBUTES = frozenset({"_pytree__state", "_pytree__nodes", "_object__state", "_length"})

_IN_VARIABLE = ".value"  # ends the names of arrays in an `nnx.State` that Orbax saved: it flattens Variables, too

_VARIABLES = (nnx.Variable, nnx.variablelib.HijaxVariable)  # the latter is an instance of nnx.Variable, but no subclass

_ARRAYS = (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct, np.ndarray)


def array_in(variable: nnx.Variable[Any]) -> Any:
    """The array in a Variable, as it is stored, without the hooks that some Variables apply when they are read."""
    raw = variable.get_raw_value()
    return raw if isinstance(raw, _ARRAYS) else variable.get_value()


def put_array(variable: nnx.Variable[Any], array: Any) -> None:
    """Replaces the array in a Variable."""
    if isinstance(variable.get_raw_value(), _ARRAYS):
        variable.set_raw_value(array)
    else:
        variable.set_value(array)


class NnxRebuilding(JaxRebuilding):
    def from_numpy(self, value: Any, array: Any) -> Any:
        return value.copy(new_array(array_in(value), array))

    def from_host_parts(self, values: list[Any], host_parts: list[list[LocalPart]]) -> list[Any]:
        for value, new in zip(values, super().from_host_parts(values, host_parts), strict=True):
            put_array(value, new)
        return values

    def is_container(self, obj: Any) -> bool:
        return isinstance(obj, nnx.State)

    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        for name, new in changes.items():
            key, old = _key(owner, name), child_of(owner, name)
            if old is new:
                continue
            if isinstance(old, nnx.Variable) and not isinstance(new, nnx.Variable):
                put_array(old, new)
            elif isinstance(owner, nnx.State | nnx.List | nnx.Dict):
                owner[key] = new
            else:
                setattr(owner, name, new)
        return owner

    def replaced_copy(self, owner: Any, changes: dict[str, Any]) -> Any:
        return self.replace(type(owner)(owner.raw_mapping) if isinstance(owner, nnx.State) else owner, changes)

    def updated(self, value: Any, array: Any) -> Any:
        put_array(value, new_array(array_in(value), array))
        return value


class NnxSorting(Sorting):
    def kind_inside(self, owner: Any, name: str) -> LeafKind | None:
        value = child_of(owner, name)
        if isinstance(value, nnx.Variable):
            kind = _kind(value)
            return None if kind == "parameter" else kind
        return None if isinstance(owner, nnx.State) or isinstance(value, nnx.Pytree | nnx.State) else "buffer"


class NnxLoading(Loading):
    def cannot_write(self, values: list[Any]) -> list[str]:
        return [why_irreplaceable(array_in(value)) for value in values]


class NnxConverting(Converting):
    only_renames = True

    def framework(self, cls: type) -> str:
        return "Flax NNX"

    def may_convert(self, cls: type) -> bool:
        return True

    def converts(self, obj: Any) -> bool:
        return True

    def readings(
        self, obj: Any, stored: Mapping[str, Shape | None], wanted: Mapping[str, Shape | None]
    ) -> list[Reading]:
        recipes: dict[str, Recipe] = {}
        for name, shape in stored.items():
            variable = name.removesuffix(_IN_VARIABLE)
            if variable != name and variable not in stored and shape is not None:
                recipes[variable] = Taken(name, shape)
        return [Reading("Orbax", recipes)] if recipes else []


class NnxHome(ArraysHome):
    name = "flax nnx"
    walks = "Flax NNX modules"
    roles_by_class = True
    capabilities: ClassVar[Capabilities] = {
        Averaging: "leafwise.homes.jax.nnx.values:NnxAveraging",
        Clipping: "leafwise.homes.jax.nnx.values:NnxClipping",
        Comparing: "leafwise.homes.jax.values.reading:JaxComparing",
        Converting: NnxConverting,
        Filling: LayerFilling,
        Freezing: "leafwise.homes.jax.nnx.freezing:NnxFreezing",
        Grouping: "leafwise.homes.jax.training:JaxGrouping",
        Loading: NnxLoading,
        Measuring: "leafwise.homes.jax.nnx.values:NnxMeasuring",
        Packing: "leafwise.homes.jax.training:JaxPacking",
        Rebuilding: NnxRebuilding,
        Saving: "leafwise.homes.jax.values.reading:JaxSaving",
        Sorting: NnxSorting,
        Stepping: "leafwise.homes.jax.training:JaxStepping",
        Tying: "leafwise.homes.jax.nnx.tying:NnxTying",
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if issubclass(cls, _VARIABLES):
            return "leaf"
        return "node" if issubclass(cls, (nnx.Pytree, nnx.State)) else None

    def visit(self, obj: Any) -> Visit | None:
        leaves: dict[LeafKind, list[tuple[str, Any]]] = {}
        children: list[tuple[str, Any]] = []
        for name, value in _content(obj):
            if not isinstance(value, nnx.Variable):
                if isinstance(value, _ARRAYS) and not isinstance(obj, nnx.State):
                    leaves.setdefault("buffer", []).append((name, value))  # NNX trains only Variables
                else:
                    children.append((name, value))
            elif isinstance(obj, nnx.State) and isinstance(value, nnx.Param):
                children.append((name, value))  # a parameter, unless it is in the state of an optimizer
            elif isinstance(array_in(value), _ARRAYS):
                leaves.setdefault(_kind(value), []).append((name, value))
            else:
                children.append((name, value.get_value()))  # a pytree in one Variable
        return tuple(leaves.items()), children, None

    def current(self, owner: Any, name: str, value: Any) -> Any:
        try:
            return child_of(owner, name)
        except (AttributeError, LookupError, StopIteration):
            return value  # it was removed

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if isinstance(owner, nnx.List):
            entry = Entry(name, "index", int(name))
        elif isinstance(owner, nnx.State | nnx.Dict):
            entry = Entry(name, "key", _key(owner, name))
        else:
            entry = Entry(name, "attribute")
        if not isinstance(value, nnx.Variable):
            return entry
        access = "[...]" if isinstance(array_in(value), jax.Array) else ".get_value()"
        return Entry(name, "step", _ArrayAt(entry), spelling=entry.code("{root}") + access)

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        array = array_in(value) if isinstance(value, nnx.Variable) else value
        if isinstance(owner, nnx.State):  # which has no layers, like the variables of Linen
            return role_in_container(owner, name, array, lineage)
        return role_of(owner, name, array, lineage)

    def spec(self, value: Any) -> Spec:
        trainable = not is_frozen(value) if isinstance(value, nnx.Param) else None
        return super().spec(value)._replace(trainable=trainable)

    def value(self, value: Any) -> Any:
        return array_in(value)

    def write(self, value: Any, array: Any) -> None:
        before = array_in(value)
        if isinstance(before, jax.core.Tracer):
            raise Unsupported(self.name, "write in place", why_unreadable(before))
        if isinstance(before, jax.ShapeDtypeStruct):
            raise WriteError("it is on meta and has no memory")
        spec = self.spec(value)
        source = np.asarray(array)
        if not hasattr(array, "dtype"):
            source = source.astype(spec.dtype)
        if (source.shape, source.dtype.name) != (spec.shape, spec.dtype):
            raise WriteError(
                f"cannot write {source.dtype} of shape {source.shape} into {spec.dtype} of shape {spec.shape}"
            )
        put_array(value, new_array(before, source))

    def own_gradient(self, value: Any) -> bool:
        return True


class _ArrayAt(NamedTuple):
    """Fetches the array in the Variable at an entry."""

    variable: Entry

    def __call__(self, owner: Any) -> Any:
        return array_in(self.variable.fetch(owner))


def _kind(variable: nnx.Variable[Any]) -> LeafKind:
    if isinstance(variable, nnx.Param):
        return "parameter"
    if isinstance(variable, nnx.OptState):
        return "state"
    if isinstance(variable, nnx.RngState):
        return "rest"
    if isinstance(variable, nnx.Intermediate):
        return "transient"  # what `sow` keeps of one call
    return "buffer"


def _content(obj: Any) -> Iterable[tuple[str, Any]]:
    """The names and values in a node that JAX considers data; static attributes are part of the code. None, such as the
    bias of a layer without one, is nothing that NNX or a checkpoint contains."""
    if isinstance(obj, nnx.State):
        return [(str(key), value) for key, value in obj.items() if value is not None]
    attributes = vars(obj)
    is_data: Mapping[str, bool] = attributes.get("_pytree__nodes", {})
    return [
        (name, value)
        for name, value in attributes.items()
        if value is not None
        and name not in _OWN_ATTRIBUTES
        and (is_data.get(name) or _is_graph_data(value, is_data.get(name)))
    ]


def _is_graph_data(value: Any, is_data: bool | None) -> bool:
    """Whether an attribute of a module that is not a pytree (`pytree=False`) is data: NNX decides by its type there."""
    if is_data is not None:
        return False
    if isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return any(_is_graph_data(item, None) for item in items)
    return isinstance(value, (nnx.Variable, nnx.Pytree, nnx.State, *_ARRAYS))


def _key(owner: Any, name: str) -> Any:
    """The key of a child of a node."""
    if isinstance(owner, nnx.List):
        return int(name)
    if isinstance(owner, nnx.State) and name not in owner:
        return next(key for key in owner if str(key) == name)
    return name


def child_of(owner: Any, name: str) -> Any:
    """The Variable, module or other value of this name in a node."""
    return owner[_key(owner, name)] if isinstance(owner, nnx.State | nnx.List | nnx.Dict) else getattr(owner, name)


HOME = NnxHome()
