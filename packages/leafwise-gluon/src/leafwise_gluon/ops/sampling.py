"""Random samples of `np.random` that are more than a formula over uniform or normal numbers, drawn as MXNet draws them.

The results are NumPy arrays.
"""

from typing import Any

import numpy as np

from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.base import MXNetError


def gamma(a: Any, scale: Any, shape: tuple[int, ...]) -> Any:
    """Gamma samples in float64, by Marsaglia and Tsang's method; rejected samples are drawn again, all at once."""
    a, scale = (np.broadcast_to(np.asarray(value, np.float64), shape).reshape(-1) for value in (a, scale))
    d = np.where(a < 1, a + 2 / 3, a - 1 / 3)
    c = 1 / np.sqrt(9 * d)
    samples = np.full(a.shape, -1.0)
    while (samples < 0).any():
        # MXNet draws two numbers of each kind for a sample, even where it does not use them.
        uniform = STREAM.uniform((len(a), 2), np.float64)
        normal = STREAM.normal((len(a), 2), np.float64)[:, 0]
        v = (1 + c * normal) ** 3
        with np.errstate(invalid="ignore", divide="ignore"):
            bound = 0.5 * normal**2 + d * (1 - v + np.log(v))
            accepted = (uniform[:, 0] <= 1 - 0.0331 * normal**4) | (np.log(uniform[:, 0]) < bound)
        drawn = d * v * scale * np.where(a < 1, uniform[:, 1] ** (1 / a), 1)
        samples = np.where((samples < 0) & (v > 0) & accepted, drawn, samples)
    return samples.reshape(shape)


def choice(count: int, shape: tuple[int, ...], replace: bool, weights: Any) -> Any:
    """Indices below `count`; `weights` are their probabilities, or None."""
    size = int(np.prod(shape))
    if not replace and size > count:
        raise MXNetError("Cannot take a larger sample than population when 'replace=False'")
    if weights is not None:
        return _weighted(count, size, replace, np.asarray(weights)).reshape(shape)
    if replace:
        return (STREAM.integers(size).astype(np.int64) % count).reshape(shape)
    indices = list(range(count))
    swaps = min(size, count - size)
    split = count - swaps
    chosen = STREAM.integers(swaps).astype(np.int64) % (np.arange(swaps) + split + 1)
    for position, other in enumerate(chosen.tolist(), start=split):
        if other < split:
            indices[position], indices[other] = indices[other], indices[position]
    kept = indices[count - size :] if 2 * size < count else indices[:size]
    return np.array(kept, np.int64).reshape(shape)


def _weighted(count: int, size: int, replace: bool, weights: Any) -> Any:
    if weights.shape != (count,):
        raise MXNetError(f"np.random.choice: {count} elements need {count} probabilities, not shape {weights.shape}")
    uniform = STREAM.uniform((size if replace else count,))
    if replace:
        steps = np.cumsum(weights, dtype=np.float32)
        return (steps[None, :] < uniform[:, None]).sum(axis=1).astype(np.int64)
    with np.errstate(divide="ignore"):
        keys = -np.log(-np.log(uniform)) + np.log(weights.astype(np.float32))
    return np.argsort(-keys, kind="stable")[:size].astype(np.int64)


def multinomial(trials: int, weights: Any, shape: tuple[int, ...], extra: int = 0) -> Any:
    """How often each outcome occurs in `trials` experiments. `extra` numbers are drawn and not used, as in MXNet."""
    weights = np.asarray(weights)
    if (np.cumsum(weights) > 1.0 + 1e-12).any():
        raise MXNetError("sum(pvals[:-1]) > 1.0")
    rows, outcomes = int(np.prod(shape)), len(weights)
    if not rows or not outcomes:
        return np.zeros((*shape, outcomes), np.int64)
    uniform = STREAM.uniform((rows * trials + extra,), np.float64)[: rows * trials].astype(weights.dtype)
    outcome = np.minimum(np.searchsorted(np.cumsum(weights), uniform, side="right"), outcomes - 1)
    cells = np.repeat(np.arange(rows), trials) * outcomes + outcome
    return np.bincount(cells, minlength=rows * outcomes).reshape(*shape, outcomes).astype(np.int64)


def categorical(weights: Any, shape: tuple[int, ...]) -> Any:
    """For each row of probabilities (the last axis of `weights`) a sample of indices, of the given shape."""
    outcomes = weights.shape[-1]
    rows = weights.reshape(-1, outcomes)
    uniform = STREAM.uniform((len(rows), int(np.prod(shape)))).astype(weights.dtype)
    steps = np.cumsum(rows, axis=1, dtype=np.float64).astype(np.float32)
    indices = [np.searchsorted(step, numbers, side="left") for step, numbers in zip(steps, uniform, strict=True)]
    return np.array(indices, np.int64).reshape((*weights.shape[:-1], *shape))


def shuffled_order(shape: tuple[int, ...]) -> Any:
    """The order into which a shuffle brings the rows of an array of this shape."""
    order = list(range(shape[0]))
    if len(order) < 2:
        return np.array(order, np.int64)
    # A vector is shuffled from its start, an array of several axes from its end.
    positions = range(1, len(order)) if len(shape) == 1 else range(len(order) - 1, 0, -1)
    others = STREAM.below(np.array(positions, np.int64) + 1).tolist()
    for position, other in zip(positions, others, strict=True):
        order[position], order[other] = order[other], order[position]
    return np.array(order, np.int64)


def randint(low: int, high: int, shape: tuple[int, ...]) -> Any:
    """Integers from `low` to `high` - 1."""
    if high <= low:
        raise MXNetError(f"randint: low ({low}) must be less than high ({high})")
    return low + STREAM.spread_integers(shape) % (high - low)
