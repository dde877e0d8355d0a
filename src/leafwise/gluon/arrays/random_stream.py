"""The stream of random numbers that MXNet's CPU generator gives for a seed.

A uniform number is one raw 32-bit output of mt19937(seed · 127), divided by 2³², in float32. Normal numbers come in
pairs, made from pairs of uniform numbers by the polar method; a number left over at the end of a call is dropped.
"""

import math
import threading
from typing import Any

import numpy as np

_MAGIC = 127  # MXNet multiplies seeds by this


class RandomStream:
    """A random generator; every draw advances it."""

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self.seed(seed)

    def seed(self, seed: int) -> None:
        # RandomState seeds the Mersenne Twister like C++'s std::mt19937, unlike NumPy's newer generators.
        state = np.random.RandomState((int(seed) * _MAGIC) % (1 << 32))
        self._bits = state._bit_generator

    def canonical(self, count: int) -> Any:
        """`count` numbers in [0, 1], in float32."""
        with self._lock:
            raw = self._bits.random_raw(count) if count else np.zeros(0)
        return np.asarray(raw).astype(np.float32) / np.float32(1 << 32)

    def uniform(self, low: float, high: float, shape: tuple[int, ...]) -> Any:
        low32, high32 = np.float32(low), np.float32(high)
        return (low32 + (high32 - low32) * self.canonical(math.prod(shape))).reshape(shape)

    def normal(self, mean: float, scale: float, shape: tuple[int, ...]) -> Any:
        count = math.prod(shape)
        numbers = np.empty(count + 1, np.float32)
        for start in range(0, count, 2):
            numbers[start : start + 2] = self._polar_pair()
        return (numbers[:count] * np.float32(scale) + np.float32(mean)).reshape(shape)

    def _polar_pair(self) -> tuple[Any, Any]:
        one, two = np.float32(1), np.float32(2)
        while True:
            x, y = two * self.canonical(2) - one
            square = x * x + y * y
            if 0 < square <= 1:
                scale = np.sqrt(-two * np.float32(math.log(square)) / square)
                return y * scale, x * scale


STREAM = RandomStream()
