"""`jax.Array`s as leaves: of pytrees, and inside the Variables of Flax NNX.

An array cannot change, so verbs make new ones (`JaxRebuilding`). In a pytree of plain values, the same array at two
places has two gradients; it is two leaves, not a tie.
"""

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.saving import Saving
from leafwise.core.home import Axes, Capabilities, Home, Spec
from leafwise.errors import Unsupported
from leafwise.homes.jax.variable_dicts import role_in_container

_KEY_DTYPE = "uint32"


class JaxRebuilding(Rebuilding):
    def from_numpy(self, value: Any, array: Any) -> Any:
        return new_array(value, array)

    def allocate(self, value: Any, shape: tuple[int, ...]) -> Any:
        return new_array(value, np.zeros(shape, self.home.spec(value).dtype))


class JaxSaving(Saving):
    def snapshot(self, values: list[Any]) -> list[Any]:
        return values  # they never change; a donated one is refused when it is read


class JaxHome(Home):
    name = "jax"
    in_place = False
    ties_by_identity = False
    roles_by_name = True
    capabilities: ClassVar[Capabilities] = {
        Rebuilding: JaxRebuilding,
        Saving: JaxSaving,
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "leaf" if issubclass(cls, (jax.Array, jax.core.Tracer, jax.ShapeDtypeStruct)) else None

    def role(
        self, owner: Any, name: str, value: Any, lineage: Callable[[], tuple[Any, ...]]
    ) -> tuple[str | None, Axes]:
        return role_in_container(owner, name, value, lineage)

    def spec(self, value: Any) -> Spec:
        return spec_of(value)

    def specs(self, values: list[Any]) -> list[Spec]:
        return list(map(spec_of, values))

    def cannot_read(self, value: Any) -> str:
        return why_unreadable(value)

    def read(self, value: Any, index: Any = ()) -> Any:
        return read_array(value, index)


# Models repeat a few shapes thousands of times; equal specs are one object.
_specs: dict[Any, Spec] = {}
_MOST_SPECS = 100_000


def spec_of(value: Any) -> Spec:
    """What is known about an array without its values. A typed PRNG key is described by the integers that it wraps."""
    sharding = getattr(value, "sharding", None) if type(value) is not jax.ShapeDtypeStruct else None
    key = value.shape, value.dtype, sharding
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) > _MOST_SPECS:
            _specs.clear()
        spec = _specs[key] = _new_spec(value, sharding)
    return spec


def _new_spec(value: Any, sharding: Any) -> Spec:
    shape, dtype = tuple(value.shape), value.dtype
    if is_key_dtype(dtype):
        shape = (*shape, *key_shape(dtype))
        dtype = np.dtype(_KEY_DTYPE)
    size = prod(shape)
    return Spec(shape, dtype.name, device_text(value, sharding), size, size * dtype.itemsize)


def device_text(value: Any, sharding: Any) -> str:
    """Where an array is: "cpu", "gpu:0", or "cpu:0-7" if it is sharded over several devices; "meta" if it has no
    memory."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return "meta"
    if isinstance(value, jax.core.Tracer) or sharding is None:
        return "traced"
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    platform = devices[0].platform
    if len(devices) == 1:
        return "cpu" if platform == "cpu" and devices[0].id == 0 else f"{platform}:{devices[0].id}"
    return f"{platform}:{devices[0].id}-{devices[-1].id}"


def is_key_dtype(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def key_shape(dtype: Any) -> tuple[int, ...]:
    """The shape of the integers of one typed PRNG key."""
    return tuple(jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).shape)


def why_unreadable(value: Any) -> str:
    """Why the values of an array cannot be read; empty if they can."""
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
        return "parts of it are on devices of other processes"
    return ""


def read_array(value: Any, index: Any = ()) -> Any:
    """The values as a NumPy array: the memory of the array itself if it is on the CPU."""
    if reason := why_unreadable(value):
        raise Unsupported("jax", "read an array", reason)
    if is_key_dtype(value.dtype):
        value = jax.random.key_data(value)
    array = np.asarray(value if isinstance(index, tuple) and not index else value[index])
    array.flags.writeable = False
    return array


def new_array(value: Any, array: Any) -> Any:
    """A NumPy array as a new `jax.Array` that takes the place of `value`: with its sharding, and its kind of key."""
    if isinstance(value, jax.core.Tracer):
        raise Unsupported("jax", "replace an array", why_unreadable(value))
    if is_key_dtype(value.dtype):
        keys = jax.random.wrap_key_data(np.asarray(array, _KEY_DTYPE), impl=jax.random.key_impl(_any_key(value)))
        return jax.device_put(keys, _sharding_to_keep(value))
    # A copy: on the CPU, the array would otherwise share the memory of `array`, which may change.
    return jax.device_put(np.array(array, value.dtype), _sharding_to_keep(value))


def _any_key(value: Any) -> Any:
    """A key array of the same kind that is not abstract."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    return jax.random.wrap_key_data(np.zeros(key_shape(value.dtype), _KEY_DTYPE), impl=value.dtype._impl.name)


def _sharding_to_keep(value: Any) -> Any:
    return getattr(value, "sharding", None)


HOME = JaxHome()
