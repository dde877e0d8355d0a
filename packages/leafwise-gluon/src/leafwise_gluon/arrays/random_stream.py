"""The random numbers that MXNet's CPU generators give for a seed, bit for bit.

A CPU of MXNet has two generators. `np.random`, shuffles and multinomial samples draw from one Mersenne Twister.
`nd.random`, `np.random.randint` and Dropout spread a sample over up to 1,024 of them. `mx.random.seed` restarts both.
"""

import math
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from leafwise_gluon.arrays.twister import Twister, TwisterArray

_MAGIC = 127  # MXNet multiplies seeds by this


class RandomStream:
    """The random generators of the CPU; every draw advances one of them."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self.seed(seed)

    def seed(self, seed: int, one_device: bool = False) -> None:
        """Restarts both generators; with `one_device`, as `mx.random.seed(seed, ctx=cpu())` does."""
        with self._lock:
            # If a device is given, MXNet does not multiply the seed of the first generator. It does for the others.
            self._main = Twister(seed if one_device else seed * _MAGIC)
            self._spread = TwisterArray(seed * _MAGIC)

    # -- the one generator of np.random --------------------------------------------------------------------

    def integers(self, count: int) -> Any:
        """32-bit integers."""
        with self._lock:
            return self._main.take(count).copy()

    def uniform(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """Numbers in [0, 1)."""
        with self._lock:
            return self._main.uniform(math.prod(shape), dtype).reshape(shape)

    def normal(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """Standard normal numbers."""
        with self._lock:
            return self._main.normal(math.prod(shape), dtype).reshape(shape)

    def below(self, bounds: Any) -> Any:
        """For each bound an integer from 0 to bound - 1, by `std::uniform_int_distribution`."""
        scaling = 0xFFFFFFFF // bounds
        with self._lock:
            numbers = self._main.peek(len(bounds))
            if (numbers < bounds * scaling).all():
                self._main.skip(len(bounds))
                return numbers // scaling
            # Some number is rejected, which is rare; all numbers after it move.
            return np.array([self._one_below(int(bound)) for bound in bounds], np.int64)

    def _one_below(self, bound: int) -> int:
        scaling = 0xFFFFFFFF // bound
        while (number := int(self._main.take(1)[0])) >= bound * scaling:
            pass
        return number // scaling

    # -- the generators over which nd.random spreads a sample ------------------------------------------------

    def spread(self, count: int, draw: Callable[[Twister, slice], Any]) -> Any:
        """A flat sample of `count` numbers; `draw` gives the part of it that a slice stands for."""
        parts, start = [], 0
        with self._lock:
            for twister, size in self._spread.shares(count):
                parts.append(draw(twister, slice(start, start + size)))
                start += size
        return np.concatenate(parts) if parts else np.zeros(0, np.float32)

    def spread_uniform(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """Numbers in [0, 1), as `nd.random.uniform` draws them."""

        def draw(twister: Twister, part: slice) -> Any:
            return twister.uniform(part.stop - part.start, dtype)

        return self.spread(math.prod(shape), draw).astype(dtype).reshape(shape)

    def spread_normal(self, shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
        """Standard normal numbers, as `nd.random.normal` draws them."""

        def draw(twister: Twister, part: slice) -> Any:
            return twister.separate_normal(part.stop - part.start, dtype)

        return self.spread(math.prod(shape), draw).astype(dtype).reshape(shape)

    def spread_integers(self, shape: tuple[int, ...]) -> Any:
        """63-bit integers, as `randint` draws them."""

        def draw(twister: Twister, part: slice) -> Any:
            halves = twister.take(2 * (part.stop - part.start)).reshape(-1, 2).astype(np.uint64)
            return ((halves[:, 0] << np.uint64(31)) + halves[:, 1]).astype(np.int64)

        return self.spread(math.prod(shape), draw).astype(np.int64).reshape(shape)

    def dropout_mask(self, shape: tuple[int, ...], p: float, dtype: Any = np.float32, shared: bool = False) -> Any:
        """What Dropout multiplies its input by: zeros with probability `p`, otherwise 1 / (1 - p).

        `dtype` is float16, float32 or float64. `shared` says that the mask is shared along some axes (the argument
        `axes` of Dropout), in which case `shape` has a one for each of them.
        """
        keep = np.float32(1) - np.float32(p)
        drawn = self.spread_uniform(shape, np.float32 if dtype is np.float32 else np.float64).astype(np.float32)
        kept = drawn < keep if shared else drawn <= keep
        with np.errstate(divide="ignore", invalid="ignore"):
            return (kept * (np.float32(1) / keep)).astype(dtype)  # not numbers if p is 1, as in MXNet


STREAM = RandomStream()
