"""`jax.Array`s as leaves: of pytrees, and inside the Variables of Flax NNX.

An array cannot change, so verbs make new ones (`JaxRebuilding`). In a pytree of plain values, the same array at two
places has two gradients; it is two leaves, not a tie.

The functions here also take NumPy arrays, because Variables and an `eqx.nn.Shared` may contain them.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from jax._src.lax import lax as _lax
from jax.sharding import AbstractMesh, NamedSharding

from leafwise.core.capabilities.averaging import Averaging
from leafwise.core.capabilities.clipping import Clipping
from leafwise.core.capabilities.comparing import Comparing
from leafwise.core.capabilities.freezing import Freezing
from leafwise.core.capabilities.grouping import Grouping
from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.capabilities.packing import Packing
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.tying import Tying
from leafwise.core.home import Axes, Capabilities, Home, Spec
from leafwise.errors import Unsupported
from leafwise.homes.jax.roles import role_in_container
from leafwise.homes.jax.specs import KEY_DTYPE, any_key, is_key_dtype, key_role, spec_of
from leafwise.homes.jax.values.host_memory import host_shards, is_on_cpu, read_shards

OTHER_PROCESSES = (
    "parts of it are on devices of other processes, which leafwise only shows; gather it first, for example with "
    "jax.experimental.multihost_utils.process_allgather(array, tiled=True)"
)


class ArraysHome(Home):
    """For leaves that are arrays of JAX, or that contain an array, which `value` returns."""

    def spec(self, value: Any) -> Spec:
        return spec_of(self.value(value))

    def cannot_read(self, value: Any) -> str:
        return why_unreadable(self.value(value))

    def read(self, value: Any, index: Any = ()) -> Any:
        return read_array(self.value(value), index)


class JaxHome(ArraysHome):
    name = "jax"
    in_place = False
    why_immutable = (
        "arrays of JAX cannot change; make a new tree instead, with lw.load, jax.tree_util.tree_map_with_path or, for "
        "Equinox, eqx.tree_at"
    )
    ties_by_identity = False
    roles_by_name = True
    capabilities: ClassVar[Capabilities] = {
        Averaging: "leafwise.homes.jax.values.computing:JaxAveraging",
        Clipping: "leafwise.homes.jax.values.computing:JaxClipping",
        Comparing: "leafwise.homes.jax.values.reading:JaxComparing",
        Freezing: "leafwise.homes.jax.training:JaxFreezing",
        Grouping: "leafwise.homes.jax.training:JaxGrouping",
        Measuring: "leafwise.homes.jax.values.computing:JaxMeasuring",
        Packing: "leafwise.homes.jax.training:JaxPacking",
        Rebuilding: "leafwise.homes.jax.values.placing:JaxRebuilding",
        Saving: "leafwise.homes.jax.values.reading:JaxSaving",
        Tying: "leafwise.homes.jax.value_tying:ValueTying",
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "leaf" if issubclass(cls, (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct)) else None

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        return (key_role(value), None) if is_key_dtype(value.dtype) else role_in_container(owner, name, value, lineage)

    def specs(self, values: list[Any]) -> list[Spec]:
        return list(map(spec_of, values))


def why_unreadable(value: Any) -> str:
    """Why the values of an array cannot be read; empty if they can."""
    if isinstance(value, np.ndarray):
        return ""
    if isinstance(value, jax.core.Tracer):
        return (
            "it is a traced value inside jit, grad or vmap, which has no values yet; call leafwise outside of the "
            "traced function"
        )
    if isinstance(value, jax.ShapeDtypeStruct):
        return "it is on meta and has no values"
    if value.is_deleted():
        return (
            "it was deleted, for example because it was donated to a jitted function; use the array that this returned"
        )
    if not value.is_fully_addressable:
        return OTHER_PROCESSES
    return ""


def read_array(value: Any, index: Any = ()) -> Any:
    """The values as a NumPy array: the memory of the array itself if it is on one device of the CPU. Parts of a sharded
    array are read from the shards that have them."""
    if isinstance(value, np.ndarray):
        return value[index]
    if reason := why_unreadable(value):
        raise Unsupported("jax", "read an array", reason)
    if is_key_dtype(value.dtype):
        value = jax.random.key_data(value)
    if not is_on_cpu(value) and len(value.sharding.device_set) == 1:
        value, index = value[index], ()  # so that only this part leaves the device
    array = np.asarray(read_shards(host_shards(value), tuple(value.shape), value.dtype, index))  # a single number, too
    array.flags.writeable = False
    return array


def new_array(value: Any, array: Any) -> Any:
    """A NumPy array as a new array that takes the place of `value`: with its sharding, and its kind of key."""
    if isinstance(value, np.ndarray):
        return np.array(array, value.dtype)
    if reason := why_irreplaceable(value):
        raise Unsupported("jax", "replace an array", reason)
    if is_key_dtype(value.dtype):
        keys = jax.random.wrap_key_data(np.asarray(array, KEY_DTYPE), impl=jax.random.key_impl(any_key(value)))
        return jax.device_put(keys, sharding_to_keep(value))
    # A copy: on the CPU, the array would otherwise share the memory of `array`, which may change.
    return with_weak_type(jax.device_put(np.array(array, value.dtype), sharding_to_keep(value)), value)


def with_weak_type(new: Any, value: Any) -> Any:
    """The array, with a dtype that gives way to others in operations, as that of a Python number does, if `value` has
    one. JAX has no public function for it."""
    return _lax._convert_element_type(new, weak_type=True) if getattr(value, "weak_type", False) else new


def why_irreplaceable(value: Any) -> str:
    """Why a new array cannot take the place of this one; empty if it can."""
    if isinstance(value, np.ndarray):
        return ""
    if isinstance(value, jax.core.Tracer):
        return why_unreadable(value)
    return _why_not_made(value.dtype, getattr(value, "sharding", None), jax.config.jax_enable_x64)


@lru_cache(maxsize=1_000)
def _why_not_made(dtype: Any, sharding: Any, has_x64: bool) -> str:
    """Why JAX cannot make an array of a dtype with a sharding. Cached, because models repeat a few of them."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        return "its sharding has an abstract mesh, without devices; describe it with a sharding over a Mesh of devices"
    if sharding is not None and not sharding.is_fully_addressable:
        return OTHER_PROCESSES
    if not is_key_dtype(dtype) and jax.dtypes.canonicalize_dtype(dtype) != dtype:
        return f'JAX makes no arrays of {dtype.name} now; call jax.config.update("jax_enable_x64", True) first'
    return ""


def sharding_to_keep(value: Any) -> Any:
    """Where a new array goes that takes the place of `value`; None if JAX may move it between devices."""
    return getattr(value, "sharding", None) if getattr(value, "committed", True) else None


HOME = JaxHome()
