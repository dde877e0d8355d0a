"""`eqx.nn.Shared`: a pytree in which some places have the arrays of others.

Its own pytree has placeholders at these places, which its call fills. The walk shows the filled pytree. An array at
several places is one leaf: a `SharedArray`, which is at all of them. A place with computed values, such as a transpose,
is not shown: it has no values of its own.

A tree of gradients, or what `eqx.filter` leaves of a model, has no functions that fill it, and is shown as it is.
"""

from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax
import numpy as np

from leafwise.core import registry as homes
from leafwise.core.capabilities.averaging import Averaging
from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.home import Capabilities, Visit
from leafwise.core.path import Entry
from leafwise.errors import TieError
from leafwise.homes.jax.arrays import ArraysHome, new_array, why_irreplaceable
from leafwise.homes.jax.pytrees import flattened

_ARRAYS = (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct, np.ndarray)


class SharedArray:
    """One array at several places of an `eqx.nn.Shared`."""

    def __init__(self, array: Any) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> Any:
        return self.array.dtype


class Filled(NamedTuple):
    """What fills a placeholder: the structure of a node, and, for each of its leaves, the number of the leaf of the
    pytree that is there; None if the values are computed, or if it is not an array."""

    structure: Any
    sources: list[int | None]


def _fillings(shared: eqx.nn.Shared) -> dict[int, Filled]:
    """What fills each placeholder, by its number among the leaves of the pytree. `get` is traced, not run, to see which
    arrays it returns as they are."""
    leaves, structure = jax.tree_util.tree_flatten(shared.pytree)
    numbers = structure.unflatten(range(len(leaves)))
    places = jax.tree_util.tree_leaves(shared.where(numbers))
    arrays = [number for number, leaf in enumerate(leaves) if isinstance(leaf, (*_ARRAYS, SharedArray))]
    filled: list[tuple[int, Any, list[bool]]] = []

    def fill(traced: list[Any]) -> list[Any]:
        given = dict(zip(arrays, traced, strict=True))
        pytree = structure.unflatten([given.get(number, leaf) for number, leaf in enumerate(leaves)])
        nodes = structure.flatten_up_to(eqx.tree_at(shared.where, pytree, shared.get(pytree)))
        outputs = []
        for place in places:
            values, inside = jax.tree_util.tree_flatten(nodes[place])
            are_arrays = [isinstance(value, jax.Array) for value in values]
            outputs += [value for value, is_array in zip(values, are_arrays, strict=True) if is_array]
            filled.append((place, inside, are_arrays))
        return outputs

    abstract = [jax.ShapeDtypeStruct(leaves[number].shape, leaves[number].dtype) for number in arrays]
    traced = jax.make_jaxpr(fill)(abstract).jaxpr
    inputs = dict(zip(map(id, traced.invars), arrays, strict=True))
    outputs = iter(traced.outvars)
    return {
        place: Filled(inside, [inputs.get(id(next(outputs))) if is_array else None for is_array in are_arrays])
        for place, inside, are_arrays in filled
    }


def _shown(shared: eqx.nn.Shared) -> Any:
    """The filled pytree, with one `SharedArray` at all places of an array that is at several."""
    leaves, structure = jax.tree_util.tree_flatten(shared.pytree)
    fillings = _fillings(shared)
    for number in {source for filling in fillings.values() for source in filling.sources if source is not None}:
        if not isinstance(leaves[number], SharedArray):
            leaves[number] = SharedArray(leaves[number])
    for place, (inside, sources) in fillings.items():
        leaves[place] = inside.unflatten([None if source is None else leaves[source] for source in sources])
    return structure.unflatten(leaves)


class EquinoxSharedRebuilding(Rebuilding):
    def cannot_renew(self, value: Any) -> str:
        return why_irreplaceable(value.array)

    def from_numpy(self, value: Any, array: Any) -> Any:
        return SharedArray(new_array(value.array, array))

    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        return self.from_numpy(value, np.zeros(shape, self.home.spec(value).dtype))

    def replace(self, owner: Any, changes: dict[str, Any]) -> Any:
        if not _can_be_filled(owner):
            children, whole = flattened(owner)
            return jax.tree_util.tree_unflatten(whole, [changes.get(child.name, child.value) for child in children])
        leaves, structure = jax.tree_util.tree_flatten(owner.pytree)
        nodes = structure.flatten_up_to(changes["pytree"])
        fillings = _fillings(owner)
        given: list[tuple[int | None, Any]] = [
            (number, node) for number, node in enumerate(nodes) if number not in fillings
        ]
        for place, (inside, sources) in fillings.items():
            given += zip(sources, inside.flatten_up_to(nodes[place]), strict=True)
        new: dict[int, Any] = {}
        for number, value in given:
            if number is None or _array(value) is _array(leaves[number]):
                continue
            if new.setdefault(number, _array(value)) is not _array(value):
                raise TieError("an eqx.nn.Shared has one array for several places, and they would get different ones")
        if not new:
            return owner
        leaves = [new.get(number, leaf) for number, leaf in enumerate(leaves)]
        return eqx.tree_at(lambda shared: shared.pytree, owner, structure.unflatten(leaves))

    def why_only_whole(self, obj: Any) -> str:
        return "it has arrays in common with other parts of an eqx.nn.Shared" if isinstance(obj, eqx.nn.Shared) else ""


def _array(leaf: Any) -> Any:
    return leaf.array if isinstance(leaf, SharedArray) else leaf


class EquinoxSharedAveraging(Averaging):
    """Averages are plain arrays, so that users can save them; the home of these computes them."""

    def clone_many(self, values: list[Any], precise: bool) -> list[Any]:
        return [_averaging(value).clone_many([_array(value)], precise)[0] for value in values]

    def copy_many(self, targets: list[Any], values: list[Any]) -> list[Any]:
        pairs = zip(targets, values, strict=True)
        return [_averaging(target).copy_many([_own(target)], [_array(value)])[0] for target, value in pairs]

    def lerp_many(self, targets: list[Any], values: list[Any], weight: float) -> list[Any]:
        pairs = zip(targets, values, strict=True)
        return [_averaging(target).lerp_many([_own(target)], [_array(value)], weight)[0] for target, value in pairs]


def _averaging(value: Any) -> Averaging:
    return homes.home_of(_array(value)).capability(Averaging)


def _own(value: Any) -> Any:
    """The array, as a copy if it could change in place."""
    return np.array(array) if isinstance(array := _array(value), np.ndarray) else array


class EquinoxSharedHome(ArraysHome):
    name = "equinox"
    in_place = False
    nodes_by_reference = False
    capabilities: ClassVar[Capabilities] = {
        Averaging: EquinoxSharedAveraging,
        Freezing: "leafwise.homes.jax.training:JaxFreezing",
        Grouping: "leafwise.homes.jax.training:JaxGrouping",
        Rebuilding: EquinoxSharedRebuilding,
        Saving: "leafwise.homes.jax.values.reading:JaxSaving",
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        if issubclass(cls, eqx.nn.Shared):
            return "node"
        return "leaf" if cls is SharedArray else None

    def visit(self, obj: Any) -> Visit | None:
        if not _can_be_filled(obj):
            return (), [(child.name, child.value) for child in flattened(obj)[0] if child.value is not None], None
        return (), [("pytree", _shown(obj))], None

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        return Entry(name, "step", _called, spelling="{root}()") if _can_be_filled(owner) else Entry(name, "attribute")

    def value(self, value: Any) -> Any:
        return _array(value)


def _can_be_filled(shared: Any) -> bool:
    return callable(shared.where) and callable(shared.get)


def _called(shared: Any) -> Any:
    return shared()


HOME = EquinoxSharedHome()
