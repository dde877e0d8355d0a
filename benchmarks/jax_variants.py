"""Other ways to write the passes of `leafwise.kernels.xla.passes`, and to cut the kernel of
`leafwise.kernels.xla.pallas_passes`, to find the one that reads memory fastest on a GPU.

Each variant computes the same figures of arrays of bfloat16. `bench_jax.py variants` compares and times the passes,
`bench_jax.py kernels` the kernels.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from leafwise.kernels.xla.pallas_passes import Tiling

BINS = 256


def _bits(x: Any) -> Any:
    return lax.bitcast_convert_type(x, jnp.uint16).astype(jnp.int32) << 16


def _reduce(values: list[Any], folds: list[Any], axis: int, together: bool) -> list[Any]:
    starts = [
        np.zeros((), value.dtype) if fold is lax.add else np.array(_end(value.dtype, fold is lax.min), value.dtype)
        for value, fold in zip(values, folds, strict=True)
    ]
    if together:
        return list(
            lax.reduce(
                tuple(values), tuple(starts),
                lambda one, other: tuple(fold(a, b) for fold, a, b in zip(folds, one, other, strict=True)), (axis,),
            )
        )  # fmt: skip
    return [lax.reduce(value, start, fold, (axis,)) for value, start, fold in zip(values, starts, folds, strict=True)]


def _end(dtype: Any, highest: bool) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.inf if highest else -np.inf
    limits = jnp.iinfo(dtype)
    return limits.max if highest else limits.min


_FOLDS = [lax.add] * 5 + [lax.min, lax.max]


def sums(x: Any, wide: bool, together: bool, columns: int, floats: bool, at_a_time: int = 1) -> Any:
    """Zeros, subnormals, sum, l1, sum of squares, min and max.

    `wide`: doubles in the first reduction; `together`: one reduction with seven results; `floats`: extremes are found
    as floats, not in the bits; `at_a_time`: values that are combined before the reduction.
    """
    bits = _bits(x).reshape(-1, at_a_time, columns // at_a_time)
    parts = []
    for number in range(at_a_time):
        part = bits[:, number]
        single = lax.bitcast_convert_type(part, jnp.float32)
        value = single.astype(jnp.float64) if wide else single
        magnitude = part & 0x7FFFFFFF
        key = single if floats else part ^ ((part >> 31) & 0x7FFFFFFF)
        small = [(magnitude == 0).astype(jnp.int32), (magnitude < (1 << 23)).astype(jnp.int32)]
        parts.append([*small, value, abs(value), value * value, key, key])
    values = parts[0]
    for other in parts[1:]:
        values = [fold(a, b) for fold, a, b in zip(_FOLDS, values, other, strict=True)]
    rows = _reduce(values, _FOLDS, 1, together)
    rows = [row.astype(jnp.int64 if row.dtype == jnp.int32 else jnp.float64) for row in rows]
    return jnp.stack([result.astype(jnp.float64) for result in _reduce(rows, _FOLDS, 0, together)])


def by_comparison(x: Any, lowest: Any, columns: int = 8192) -> Any:
    """Forty comparisons of each value."""
    exponents = (_bits(x).reshape(-1, columns) >> 23) & 255
    ones = [(exponents == lowest + number).astype(jnp.int32) for number in range(40)]
    return jnp.stack(_reduce(ones, [lax.add] * 40, 1, True), -1).sum(0)


def packed(x: Any, lowest: Any, at_a_time: int, columns: int, together: bool = True) -> Any:
    """As in xla_passes: fields of four bits, moved to fields of 16 bits after `at_a_time` values."""
    place = lax.bitcast_convert_type(((_bits(x).reshape(-1) >> 23) & 255) - lowest, jnp.uint32)
    place = place.reshape(-1, at_a_time, columns // at_a_time)
    one, word = jnp.uint32(1) << ((place & 7) << 2), place >> 3
    wide = []
    for number in range(5):
        ones = jnp.where(word == number, one, jnp.uint32(0))
        fields = sum((ones[:, turn] for turn in range(1, at_a_time)), ones[:, 0])
        wide += [(fields >> (4 * field)) & jnp.uint32(0x000F000F) for field in range(4)]
    rows = jnp.stack(_reduce(wide, [lax.add] * 20, 1, together), -1).reshape(-1, 5, 1, 4)
    return jnp.concatenate([rows & 0xFFFF, rows >> 16], 2).reshape(-1, 40).astype(jnp.int32).sum(0)


def scattered(x: Any, lowest: Any) -> Any:
    """One atomic addition for each value."""
    exponents = (_bits(x).reshape(-1) >> 23) & 255
    return lax.dynamic_slice(jnp.zeros(BINS, jnp.int32).at[exponents].add(1), (lowest,), (40,))


def scattered_by_row(x: Any, lowest: Any) -> Any:
    """The same, with bins for each of 4,096 parts."""
    exponents = ((_bits(x) >> 23) & 255).reshape(4096, -1)
    rows = lax.broadcasted_iota(jnp.int32, exponents.shape, 0)
    bins = jnp.zeros((4096, BINS), jnp.int32).at[rows, exponents].add(1).sum(0)
    return lax.dynamic_slice(bins, (lowest,), (40,))


def multiplied(x: Any, lowest: Any) -> Any:
    """Products of two matrices of zeros and ones, for the upper and the lower half of each exponent."""
    exponents = ((_bits(x) >> 23) & 255).reshape(-1, 8192)
    sixteen = jnp.arange(16)
    upper = ((exponents >> 4)[..., None] == sixteen).astype(jnp.bfloat16)
    lower = ((exponents & 15)[..., None] == sixteen).astype(jnp.bfloat16)
    counts = jnp.einsum("rci,rcj->rij", upper, lower, preferred_element_type=jnp.float32)
    bins = counts.astype(jnp.int32).sum(0).reshape(-1)
    return lax.dynamic_slice(bins, (lowest,), (40,))


SUMS: dict[str, Callable[..., Any]] = {
    f"{'f64' if wide else 'f32'}, {'one reduction' if together else 'seven reductions'}, "
    f"{'floats' if floats else 'bits'}, rows of {columns}, {at_a_time} at a time": partial(
        sums, wide=wide, together=together, columns=columns, floats=floats, at_a_time=at_a_time
    )
    for wide, together, columns, floats, at_a_time in [
        (True, True, 8192, False, 1), (True, False, 8192, False, 1), (True, False, 8192, True, 1),
        (True, True, 2048, False, 1), (True, True, 32768, False, 1), (True, True, 8192, False, 4),
        (True, True, 8192, False, 8), (True, False, 8192, False, 8), (False, True, 1024, False, 1),
        (False, False, 1024, False, 1), (False, True, 1024, True, 1), (False, False, 1024, True, 1),
        (False, True, 4096, False, 8), (False, False, 4096, True, 8), (False, False, 8192, True, 1),
    ]
}  # fmt: skip
HISTOGRAMS: dict[str, Callable[..., Any]] = {
    "packed, 8 at a time, rows of 8192": partial(packed, at_a_time=8, columns=8192),
    "packed, 8 at a time, rows of 32768": partial(packed, at_a_time=8, columns=32768),
    "packed, 4 at a time, rows of 8192": partial(packed, at_a_time=4, columns=8192),
    "packed, 8 at a time, 20 reductions": partial(packed, at_a_time=8, columns=8192, together=False),
    "40 comparisons": by_comparison,
    "scattered": scattered,
    "scattered by row": scattered_by_row,
    "multiplied": multiplied,
}

_CUTS = [
    (1 << 15, 1024, 8, 4), (1 << 16, 1024, 8, 4), (1 << 15, 2048, 4, 8), (1 << 15, 1024, 4, 4), (1 << 16, 2048, 8, 8),
    (1 << 16, 4096, 2, 8), (1 << 15, 512, 8, 4), (1 << 15, 1024, 8, 8),
    (1 << 16, 8192, 2, 8), (1 << 16, 16384, 1, 16),
]  # fmt: skip
TILINGS = [Tiling(*cut) for cut in _CUTS]
_CUTS_WITH_HISTOGRAM = [
    (1 << 15, 256, 8, 4), (1 << 15, 512, 8, 4), (1 << 16, 512, 8, 8), (1 << 15, 256, 8, 2), (1 << 15, 512, 8, 8),
    (1 << 16, 1024, 8, 8), (1 << 15, 128, 8, 2),
]  # fmt: skip
TILINGS_WITH_HISTOGRAM = [Tiling(*cut) for cut in _CUTS_WITH_HISTOGRAM if cut[0] // cut[1] < 256]
