"""Flax NNX: modules are nodes, and Variables are leaves.

A Variable is a reference to an array, so two places with the same Variable are tied, and writing replaces the array in
the Variable: models change in place. The kind of a leaf follows from the type of its Variable.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from flax import nnx

from leafwise.core.capabilities.converting import Converting
from leafwise.core.capabilities.loading import Loading
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.home import Axes, Capabilities, Home, LeafKind, Spec, Visit
from leafwise.core.path import Entry
from leafwise.errors import Unsupported, WriteError
from leafwise.homes.jax.arrays import new_array, read_array, spec_of, why_unreadable
from leafwise.homes.jax.roles import role_of
from leafwise.homes.jax.variable_dicts import role_in_container

_OWN_ATTRIBUTES = frozenset({"_pytree__state", "_pytree__nodes", "_object__state", "_length"})

_ARRAYS = (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct)


def array_in(variable: nnx.Variable[Any]) -> Any:
    """The array in a Variable, as it is stored, without the hooks that some Variables apply when they are read."""
    raw = variable.get_raw_value()
    return raw if isinstance(raw, (*_ARRAYS, np.ndarray)) else variable.get_value()


def put_array(variable: nnx.Variable[Any], array: Any) -> None:
    """Replaces the array in a Variable."""
    if isinstance(variable.get_raw_value(), (*_ARRAYS, np.ndarray)):
        variable.set_raw_value(array)
    else:
        variable.set_value(array)


class NnxRebuilding(Rebuilding):
    def from_numpy(self, value: Any, array: Any) -> Any:
        return type(value)(new_array(_like(value), array), **_metadata(value))

    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        return self.from_numpy(value, np.zeros(shape, self.home.spec(value).dtype))

    def is_container(self, obj: Any) -> bool:
        return isinstance(obj, nnx.State)

    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        for name, new in changes.items():
            key = _key(owner, name)
            old = _child(owner, key)
            if old is new:
                continue
            if isinstance(old, nnx.Variable) and not isinstance(new, nnx.Variable):
                put_array(old, new)
            elif isinstance(owner, nnx.State | nnx.List | nnx.Dict):
                owner[key] = new
            else:
                setattr(owner, name, new)
        return owner

    def updated(self, value: Any, array: Any) -> Any:
        put_array(value, new_array(_like(value), array))
        return value


class NnxLoading(Loading):
    def cannot_write(self, value: Any) -> str:
        return why_unreadable(array_in(value)) if isinstance(array_in(value), jax.core.Tracer) else ""


class NnxSaving(Saving):
    def snapshot(self, values: list[Any]) -> list[Any]:
        return [np.array(array) if isinstance(array := array_in(value), np.ndarray) else array for value in values]

    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        return f"{type(obj).__module__}.{type(obj).__qualname__}", None


class NnxHome(Home):
    name = "flax nnx"
    walks = "Flax NNX modules"
    roles_by_class = True
    capabilities: ClassVar[Capabilities] = {
        Rebuilding: NnxRebuilding,
        Loading: NnxLoading,
        Saving: NnxSaving,
        Converting: "leafwise.homes.jax.converting:NnxConverting",
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if issubclass(cls, nnx.Variable):
            return "leaf"
        return "node" if issubclass(cls, (nnx.Pytree, nnx.State)) else None

    def visit(self, obj: Any) -> Visit | None:
        leaves: dict[LeafKind, list[tuple[str, Any]]] = {}
        children: list[tuple[str, Any]] = []
        for name, value in _content(obj):
            if not isinstance(value, nnx.Variable):
                children.append((name, value))
            elif isinstance(array_in(value), (*_ARRAYS, np.ndarray)):
                leaves.setdefault(_kind(value), []).append((name, value))
            else:
                children.append((name, value.get_value()))  # a pytree in one Variable
        return tuple(leaves.items()), children, None

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if isinstance(owner, nnx.State):
            return Entry(name, "key", _key(owner, name))
        if isinstance(owner, nnx.List):
            return Entry(name, "index", int(name))
        if isinstance(owner, nnx.Dict):
            return Entry(name, "key", name)
        return Entry(name, "attribute")

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        array = array_in(value) if isinstance(value, nnx.Variable) else value
        if isinstance(owner, nnx.State):  # which has no layers, like the variables of Linen
            return role_in_container(owner, name, array, lineage)
        return role_of(owner, name, array, lineage)

    def spec(self, value: Any) -> Spec:
        array = array_in(value)
        spec = Spec(array.shape, array.dtype.name, "cpu", array.size, array.nbytes)
        spec = spec if isinstance(array, np.ndarray) else spec_of(array)
        return spec._replace(trainable=True if isinstance(value, nnx.Param) else None)

    def value(self, value: Any) -> Any:
        return array_in(value)

    def cannot_read(self, value: Any) -> str:
        array = array_in(value)
        return "" if isinstance(array, np.ndarray) else why_unreadable(array)

    def read(self, value: Any, index: Any = ()) -> Any:
        array = array_in(value)
        if isinstance(array, np.ndarray):
            return array[index]
        return read_array(array, index)

    def write(self, value: Any, array: Any) -> None:
        if isinstance(array_in(value), jax.core.Tracer):
            raise Unsupported(self.name, "write in place", why_unreadable(array_in(value)))
        spec = self.spec(value)
        source = np.asarray(array)
        if not hasattr(array, "dtype"):
            source = source.astype(spec.dtype)
        if (source.shape, source.dtype.name) != (spec.shape, spec.dtype):
            raise WriteError(
                f"cannot write {source.dtype} of shape {source.shape} into {spec.dtype} of shape {spec.shape}"
            )
        put_array(value, new_array(_like(value), source))

    def own_gradient(self, value: Any) -> bool:
        return True


def _like(variable: nnx.Variable[Any]) -> Any:
    """The array in a Variable, or one that describes it if it is a NumPy array."""
    array = array_in(variable)
    return jax.ShapeDtypeStruct(array.shape, array.dtype) if isinstance(array, np.ndarray) else array


def _metadata(variable: nnx.Variable[Any]) -> dict[str, Any]:
    return dict(variable.get_metadata())


def _kind(variable: nnx.Variable[Any]) -> LeafKind:
    if isinstance(variable, nnx.Param):
        return "parameter"
    if isinstance(variable, nnx.RngState):
        return "rest"
    return "buffer"


def _content(obj: Any) -> Iterable[tuple[str, Any]]:
    """The names and values in a node that JAX considers data; static attributes are part of the code."""
    if isinstance(obj, nnx.State):
        return [(str(key), value) for key, value in obj.items()]
    attributes = vars(obj)
    is_data: Mapping[str, bool] = attributes.get("_pytree__nodes", {})
    return [
        (name, value)
        for name, value in attributes.items()
        if name not in _OWN_ATTRIBUTES and (is_data.get(name) or _is_graph_data(value, is_data.get(name)))
    ]


def _is_graph_data(value: Any, is_data: bool | None) -> bool:
    """Whether an attribute of a module that is not a pytree (`pytree=False`) is data: NNX decides by its type there."""
    if is_data is not None:
        return False
    if isinstance(value, list | tuple | dict):
        items = value.values() if isinstance(value, dict) else value
        return any(_is_graph_data(item, None) for item in items)
    return isinstance(value, (nnx.Variable, nnx.Pytree, nnx.State, *_ARRAYS, np.ndarray))


def _key(owner: Any, name: str) -> Any:
    """The key of a child of a node."""
    if isinstance(owner, nnx.List):
        return int(name)
    if isinstance(owner, nnx.State) and name not in owner:
        return next(key for key in owner if str(key) == name)
    return name


def _child(owner: Any, key: Any) -> Any:
    return owner[key] if isinstance(owner, nnx.State | nnx.List | nnx.Dict) else getattr(owner, key)


HOME = NnxHome()
