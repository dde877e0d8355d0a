"""Typed PRNG keys, which leafwise shows and saves as the integers that they wrap."""

from typing import Any

import jax
import numpy as np

KEY_DTYPE = "uint32"


def is_key_dtype(dtype: Any) -> bool:
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def key_role(value: Any) -> str:
    """The role of typed PRNG keys, by which a load recognizes keys of another implementation."""
    return f"rng.key.{value.dtype._impl.name}"


def key_shape(dtype: Any) -> tuple[int, ...]:
    """The shape of the integers of one typed PRNG key."""
    return tuple(jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), dtype)).shape)


def any_key(value: Any) -> Any:
    """A key array of the same kind that is not abstract."""
    if not isinstance(value, jax.ShapeDtypeStruct):
        return value
    return jax.random.wrap_key_data(np.zeros(key_shape(value.dtype), KEY_DTYPE), impl=value.dtype._impl.name)
