"""What is known about arrays without their values: shapes and dtypes, how they are split over devices, and typed PRNG
keys, which leafwise shows and saves as the integers that they wrap."""

from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from leafwise.core.home import LeafKind, Spec
from leafwise.core.memory.sharding import Sharding
from leafwise.core.roles.role_table import KEY_ROLE

KEY_DTYPE = "uint32"

# Models repeat a few shapes thousands of times; equal specs are one object.
_specs: dict[Any, Spec] = {}
_MOST_SPECS = 100_000


def spec_of(value: Any) -> Spec:
    """What is known about an array of JAX or NumPy without its values. A typed PRNG key is described by the integers
    that it wraps."""
    sharding = getattr(value, "sharding", None)
    key = type(value), value.shape, value.dtype, sharding
    spec = _specs.get(key)
    if spec is None:
        if len(_specs) > _MOST_SPECS:
            _specs.clear()
        spec = _specs[key] = _new_spec(value, sharding)
    return spec


def _new_spec(value: Any, sharding: Any) -> Spec:
    shape, dtype = tuple(value.shape), value.dtype
    kind: LeafKind | None = None
    if is_key_dtype(dtype):
        kind = "rest"
        shape = (*shape, *_key_shape(dtype))
        dtype = np.dtype(KEY_DTYPE)
    size = prod(shape)
    nbytes = size * dtype.itemsize
    spec = Spec(shape, dtype.name, _device_text(value, sharding), size, nbytes, kind=kind)
    if isinstance(value, jax.core.Tracer):
        return spec
    split = _split(sharding, tuple(value.shape))
    if isinstance(value, jax.ShapeDtypeStruct) or split is None or sharding.is_fully_addressable:
        return spec._replace(on_devices=split)
    parts = set(map(str, sharding.addressable_devices_indices_map(value.shape).values()))
    here = len(parts) * prod(sharding.shard_shape(value.shape)) * (nbytes // max(prod(value.shape), 1))
    return spec._replace(on_devices=split, local_nbytes=here)


def _device_text(value: Any, sharding: Any) -> str:
    """Where an array is: "cpu", "gpu:0", or "cpu:0-7" or "cpu:0,2" if it is on several devices; "meta" if it has no
    memory."""
    if isinstance(value, jax.ShapeDtypeStruct):
        return "meta"
    if isinstance(value, np.ndarray):
        return "cpu"
    if isinstance(value, jax.core.Tracer) or sharding is None:
        return "traced"
    devices = sorted(sharding.device_set, key=lambda device: device.id)
    platform = devices[0].platform
    if len(devices) == 1:
        return "cpu" if platform == "cpu" and devices[0].id == 0 else f"{platform}:{devices[0].id}"
    numbers = [device.id for device in devices]
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"{platform}:{numbers[0]}-{numbers[-1]}"
    return f"{platform}:{','.join(map(str, numbers))}"


# -- splits over devices -------------------------------------------------------------------------------------


def _split(sharding: Any, shape: tuple[int, ...]) -> Sharding | None:
    """How a sharding of JAX splits an array of this shape; None if the array is on one device."""
    if isinstance(sharding, NamedSharding):
        return _of_mesh(sharding) if sharding.mesh.size > 1 else None
    if sharding is None or len(sharding.device_set) == 1:
        return None
    return _of_pieces(sharding, shape)


def _of_mesh(sharding: NamedSharding) -> Sharding:
    """Of devices in a mesh with names, and a PartitionSpec, which has the names for each axis of the array."""
    sizes: dict[str, int] = dict(sharding.mesh.shape)
    numbers = {name: number for number, name in enumerate(sizes)}
    placements = dict.fromkeys(sizes, "replicate")
    for axis, names in enumerate(sharding.spec):
        together = names if isinstance(names, tuple) else (names,)
        for position, name in enumerate(together):
            if name not in sizes:
                continue  # None: the axis is not split
            # The names split an axis one after another. One that comes after those of later dimensions of the mesh
            # splits each of their pieces.
            before = prod(sizes[other] for other in together[:position] if numbers[other] > numbers[name])
            placements[name] = f"shard({axis})" if before == 1 else f"strided shard({axis}, {before})"
    return Sharding(tuple(sizes.values()), tuple(map(str, sizes)), tuple(placements.values()), "devices")


def _of_pieces(sharding: Any, shape: tuple[int, ...]) -> Sharding:
    """Of devices without a mesh: into how many pieces they split each axis, and how many copies there are of each."""
    pieces = [-(-whole // part) if part else 1 for whole, part in zip(shape, sharding.shard_shape(shape), strict=True)]
    copies = len(sharding.device_set) // prod(pieces)
    split = [(count, f"shard({axis})") for axis, count in enumerate(pieces) if count > 1]
    if copies > 1 or not split:
        split.append((copies, "replicate"))
    return Sharding(tuple(count for count, _ in split), None, tuple(placement for _, placement in split), "devices")


# -- typed keys -------------------------------------------------------------------------------------------------


def is_key_dtype(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def key_role(value: Any) -> str:
    """The role of typed PRNG keys, by which a load recognizes keys of another implementation."""
    return f"{KEY_ROLE}{value.dtype._impl.name}"


def _key_shape(dtype: Any) -> tuple[int, ...]:
    """The shape of the integers of one typed PRNG key."""
    return tuple(jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).shape)


def any_key(value: Any) -> Any:
    """A key array of the same kind that is not abstract."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    return jax.random.wrap_key_data(np.zeros(_key_shape(value.dtype), KEY_DTYPE), impl=value.dtype._impl.name)
