"""Checkpoints that Orbax itself writes, for the tests of reading them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp


class Pair(NamedTuple):
    first: Any
    second: Any


def tree() -> dict[str, Any]:
    """A tree with the kinds of containers, dtypes and plain values that Orbax stores."""
    params = {"w": jnp.arange(6.0).reshape(2, 3)}
    return {
        "params": {"dense": {"kernel": jnp.arange(12.0).reshape(3, 4), "bias": jnp.ones(4, jnp.bfloat16)}},
        "layers": [jnp.ones(2), {"scale": jnp.zeros(3, jnp.int8)}],
        "pair": Pair(jnp.ones(1), np.arange(4, dtype=np.float64)),
        "numbered": {7: jnp.ones(2, jnp.float16)},
        "opt": optax.adam(1e-3).init(params),
        "f8": jnp.ones(3, jnp.float8_e4m3fn),
        "i4": jnp.arange(3, dtype=jnp.int4),
        "flags": jnp.asarray([True, False]),
        "complex": jnp.asarray([1 + 2j], jnp.complex64),
        "scalar": jnp.float32(2.5),
        "a/b": jnp.full(2, 3.0),
        "step": 5,
        "lr": 0.25,
        "is_best": True,
        "nothing": None,
        "empty": {},
        "no_layers": [],
    }


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """The arrays of a tree, as NumPy arrays, by the paths that JAX gives them."""
    arrays: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
        if not isinstance(leaf, bool | int | float | str):
            names = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", "")))) for key in path]
            arrays[prefix + ".".join(names)] = np.asarray(leaf)
    return arrays


def standard(path: Path, value: Any) -> None:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, value)


def _by_handler(**options: bool) -> Callable[[Path, Any], None]:
    def save(path: Path, value: Any) -> None:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(**options)) as checkpointer:
            checkpointer.save(path, args=ocp.args.PyTreeSave(value))

    return save


def _manager(path: Path, value: Any) -> None:
    with ocp.CheckpointManager(path) as manager:
        manager.save(3, args=ocp.args.StandardSave(value))


def _version_1(path: Path, value: Any) -> None:
    import orbax.checkpoint.experimental.v1 as orbax_v1

    orbax_v1.save(path, value)


WRITERS: dict[str, Callable[[Path, Any], None]] = {
    "StandardCheckpointer": standard,
    "OCDBT and zarr": _by_handler(use_ocdbt=True, use_zarr3=False),
    "OCDBT and zarr3": _by_handler(use_ocdbt=True, use_zarr3=True),
    "zarr": _by_handler(use_ocdbt=False, use_zarr3=False),
    "zarr3": _by_handler(use_ocdbt=False, use_zarr3=True),
    "CheckpointManager": _manager,
    "version 1": _version_1,
}


def same(ours: Any, theirs: Any) -> bool:
    """Whether two arrays have the same dtype, shape and bytes."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    return bool(ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes())
