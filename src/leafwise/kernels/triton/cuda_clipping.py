"""Clipping gradients on a GPU: everything is launched before the first result is needed."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from leafwise.core.memory.runs import Run
from leafwise.kernels.dtypes import item_bytes
from leafwise.kernels.triton.cuda import RunTable, table_of
from leafwise.kernels.triton.launches import Launch, host_memory
from leafwise.kernels.triton.triton_clipping import MOST_SQUARES, add_squares, find_factor, scale_chunks

# Elements that a program processes at a time, and the number of warps.
_SQUARES_BLOCK, _SQUARES_WARPS = 1024, 4
_SCALE_BLOCK, _SCALE_WARPS = 2048, 8
_FACTOR_BLOCK, _FACTOR_WARPS = 4096, 16


class PreparedClip:
    """Clips the arrays of a table, any number of times, as long as no array moves."""

    def __init__(self, runs: list[Run], device: Any) -> None:
        self._table = table = table_of(runs, device)
        chunks = table.chunks
        self._squares = torch.empty(chunks, dtype=torch.float64, device=device)
        self._limit = torch.ones(1, dtype=torch.float64, device=device)
        self._factor = torch.ones(1, dtype=torch.float64, device=device)
        self._max_norm = 1.0
        is_cuda = self._squares.device.type == "cuda"
        # `clip` reads it before it returns, so that one is enough.
        self._copied = self._squares
        if is_cuda:
            self._copied = host_memory(chunks, torch.float64, self._squares.device)
        self._done: Any = torch.cuda.Event() if is_cuda else None  # type: ignore[no-untyped-call]
        where = {name: table.on_device[name] for name in ("addresses", "sizes", "arrays", "kinds")}
        how = {"KINDS": table.kinds, "CHUNK": table.chunk}
        self._add = Launch(
            add_squares, chunks,
            {**where, "values": table.on_device["values"], "squares": self._squares, **how, "BLOCK": _SQUARES_BLOCK},
            num_warps=_SQUARES_WARPS, enable_fp_fusion=True,
        )  # fmt: skip
        self._find = Launch(
            find_factor, 1,
            {"squares": self._squares, "chunks": chunks, "max_norm": self._limit, "factor": self._factor,
             "BLOCK": _FACTOR_BLOCK},
            num_warps=_FACTOR_WARPS, enable_fp_fusion=True,
        )  # fmt: skip
        self._scale = Launch(
            scale_chunks, chunks, {**where, "factor": self._factor, "chunks": chunks, **how, "BLOCK": _SCALE_BLOCK},
            num_warps=_SCALE_WARPS, enable_fp_fusion=True,
        )  # fmt: skip

    def clip(self, max_norm: float) -> list[float]:
        """Scales the arrays, unless their common norm is not finite, and returns their norms before. Does not wait
        until they are scaled."""
        if not self._table.chunks:
            return [0.0] * len(self._table.runs)
        with self._table.lock:
            return self._clip(max_norm)

    def _clip(self, max_norm: float) -> list[float]:
        if max_norm != self._max_norm:
            self._limit.fill_(float(max_norm))
            self._max_norm = max_norm
        self._add()
        if self._done is not None:
            self._copied.copy_(self._squares, non_blocking=True)
            self._done.record()
        self._find()
        self._scale()
        if self._done is not None:
            self._done.synchronize()
        squares = self._copied.numpy()
        norms = _norms(self._table, squares)
        with np.errstate(over="ignore", invalid="ignore"):
            was_scaled = bool(squares.sum() < MOST_SQUARES)
        # Each norm alone may be finite where the sum of all squares is not.
        return norms if was_scaled or not all(map(math.isfinite, norms)) else [math.inf] * len(norms)


def _norms(table: RunTable, squares: Any) -> list[float]:
    """The norm of each array, from the sums of the squares of its chunks."""
    counts = np.diff(table.first_chunks)
    sums = np.zeros(len(counts))
    filled = counts > 0
    with np.errstate(over="ignore", invalid="ignore"):
        sums[filled] = np.add.reduceat(squares, table.first_chunks[:-1][filled])
    norms: list[float] = np.sqrt(sums).tolist()
    return norms


def overlap(runs: list[Run]) -> bool:
    """Whether two arrays share memory: they would be scaled twice, or not, depending on the order."""
    filled = sorted((run.address, run.size * item_bytes(run.dtype)) for run in runs if run.size)
    return any(address + nbytes > following for (address, nbytes), (following, _) in pairwise(filled))
