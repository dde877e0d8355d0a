"""How arrays are split over devices, in the words of `core.memory.sharding`. Nothing here reads values."""

from math import prod
from typing import Any

from jax.sharding import NamedSharding

from leafwise.core.memory.sharding import Sharding


def described(sharding: Any, shape: tuple[int, ...]) -> Sharding | None:
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
