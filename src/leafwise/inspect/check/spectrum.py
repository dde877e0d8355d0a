"""The leading singular values of a matrix that may not fit in memory, by a randomized projection."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from leafwise.inspect.check.leaf_evidence import LeafEvidence, SentLeaf, search_by_workers

_EXTRA = 8  # extra directions, which make the leading ones more accurate
_ROUNDS = 2  # rounds of power iteration, which separate the leading directions from the rest
_SEED = 20_240_229


def all_leading_shares(places: list[tuple[LeafEvidence, int, float]]) -> list[float]:
    """`leading_share` of several leaves, each with its count and its scale."""
    workers = places[0][0].workers if places else None
    if workers is None:
        return [leading_share(*place) for place in places]
    return search_by_workers(workers, leading_share, places)


def leading_share(leaf: LeafEvidence | SentLeaf, count: int, scale: float) -> float:
    """The share of the `count` largest singular values in the sum of squares. Values are divided by `scale` first."""
    width = prod(leaf.shape[1:])
    directions = np.random.default_rng(_SEED).standard_normal((width, min(count + _EXTRA, width)), np.float32)
    if (searching := leaf.searching()) is not None:
        share = searching.leading_share(leaf.held.value, directions, _ROUNDS, count, scale)
        if share is not None:
            return share
    for _ in range(_ROUNDS):
        directions, _ = np.linalg.qr(_gram(leaf, directions, scale))
    values = np.linalg.svd(np.concatenate([rows @ directions for rows in _rows(leaf, scale)]), compute_uv=False)
    total = sum(float(np.square(rows, dtype=np.float64).sum()) for rows in _rows(leaf, scale))
    return float(np.square(values[:count], dtype=np.float64).sum()) / total if total else 0.0


def orthogonality_error(leaf: LeafEvidence | SentLeaf, gain: float) -> float:
    """How far a matrix times its transpose is from the identity times the square of a gain: the relative error along
    one random direction. The smaller of the two products is used."""
    random = np.random.default_rng(_SEED)
    high, wide = leaf.shape[0], prod(leaf.shape[1:])
    direction = random.standard_normal((wide if wide <= high else high, 1), np.float32)
    if (searching := leaf.searching()) is not None:
        error = searching.orthogonality_error(leaf.held.value, direction, gain)
        if error is not None:
            return error
    if wide <= high:
        product = _gram(leaf, direction, 1.0)
    else:
        middle, at = np.zeros((wide, 1), np.float32), 0
        for rows in _rows(leaf, 1.0):
            middle += rows.T @ direction[at : at + len(rows)]
            at += len(rows)
        product = np.concatenate([rows @ middle for rows in _rows(leaf, 1.0)])
    expected = direction * gain**2
    return float(np.linalg.norm(product - expected) / (np.linalg.norm(expected) or 1))


def _rows(leaf: LeafEvidence | SentLeaf, scale: float) -> Iterator[Any]:
    for _, band in leaf.bands():
        yield (np.asarray(band, np.float64) / scale).astype(np.float32).reshape(len(band), -1)


def _gram(leaf: LeafEvidence | SentLeaf, directions: Any, scale: float) -> Any:
    """The transpose of the matrix, times the matrix, times the directions."""
    total = np.zeros_like(directions)
    for rows in _rows(leaf, scale):
        total += rows.T @ (rows @ directions)
    return total
