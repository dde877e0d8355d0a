"""The Mersenne Twister of C++'s standard library, and the distributions that GNU's library builds on it.

MXNet draws with these classes, so the same seed gives the same numbers here.
"""

from typing import Any

import numpy as np
import torch

_NOTHING = np.empty(0, np.uint32)
_AT_LEAST = 64  # how many numbers are fetched at once, so that draws of single numbers are not slow


class Twister:
    """`std::mt19937`: a stream of 32-bit integers. `peek` looks ahead, for samplers that reject some numbers."""

    def __init__(self, seed: int) -> None:
        # RandomState seeds the Mersenne Twister as C++ does, unlike NumPy's newer generators.
        self._source = np.random.RandomState(seed % (1 << 32))
        self._ahead: Any = _NOTHING
        self._at = 0

    def peek(self, count: int) -> Any:
        """The next `count` integers, which stay in the stream."""
        if self._at + count > len(self._ahead):
            rest = self._ahead[self._at :]
            new = self._source.randint(0, 1 << 32, size=max(count - len(rest), _AT_LEAST), dtype=np.uint32)
            self._ahead, self._at = (np.concatenate([rest, new]) if len(rest) else new), 0
        return self._ahead[self._at : self._at + count]

    def skip(self, count: int) -> None:
        """Removes `count` integers that `peek` has returned."""
        self._at += count
        if self._at == len(self._ahead):
            self._ahead, self._at = _NOTHING, 0

    def take(self, count: int) -> Any:
        integers = self.peek(count)
        self.skip(count)
        return integers

    def uniform(self, count: int, dtype: Any = np.float32) -> Any:
        """`std::uniform_real_distribution`: numbers in [0, 1), of float32 or float64."""
        return _canonical(self.take(_integers_per_number(dtype) * count), dtype)

    def normal(self, count: int, dtype: Any = np.float32) -> Any:
        """One `std::normal_distribution`, which gives numbers in pairs; the last one is dropped if `count` is odd."""
        return self._polar((count + 1) // 2, dtype).reshape(-1)[:count]

    def separate_normal(self, count: int, dtype: Any = np.float32) -> Any:
        """A new `std::normal_distribution` for each number, so that the second number of each pair is dropped."""
        return self._polar(count, dtype)[:, 0]

    def _polar(self, count: int, dtype: Any) -> Any:
        """`count` pairs of normal numbers, by the polar method: it rejects points outside of the unit circle."""
        width = 2 * _integers_per_number(dtype)
        parts, needed = [np.empty((0, 2), dtype)], count
        while needed:
            guess = needed + needed // 3 + 8  # π/4 of the points are accepted
            points = 2 * _canonical(self.peek(width * guess), dtype).reshape(-1, 2) - dtype(1)
            square = points[:, 0] * points[:, 0] + points[:, 1] * points[:, 1]
            accepted = np.flatnonzero((square <= 1) & (square != 0))[:needed]
            self.skip(width * (int(accepted[-1]) + 1 if len(accepted) == needed else guess))
            inside = square[accepted]
            scale = np.sqrt(dtype(-2) * log(inside) / inside)
            parts.append(points[accepted][:, ::-1] * scale[:, None])
            needed -= len(accepted)
        return np.concatenate(parts)


class TwisterArray:
    """Mersenne Twisters with consecutive seeds, over which MXNet spreads a sample. They are made when first used."""

    _SIZE = 1024
    _SHARE = 64  # a sample uses one more twister for every 64 numbers

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._twisters: list[Twister] = []

    def shares(self, count: int) -> list[tuple[Twister, int]]:
        """The twisters that draw a sample of `count` numbers, and how many numbers each of them draws."""
        if not count:
            return []
        parts = min(-(-count // self._SHARE), self._SIZE)
        step = -(-count // parts)
        self._twisters += [Twister(self._seed + number) for number in range(len(self._twisters), parts)]
        return [(self._twisters[part], min(step, count - part * step)) for part in range(parts) if part * step < count]


def log(values: Any) -> Any:
    """The logarithm of the C library. NumPy's and PyTorch's own differ from it in the last bit of float32."""
    # torch.xlogy calls the function of the C library for each element, unlike torch.log.
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return torch.xlogy(torch.ones((), dtype=tensor.dtype), tensor).numpy()


def _integers_per_number(dtype: Any) -> int:
    return 1 if dtype is np.float32 else 2


def _canonical(integers: Any, dtype: Any) -> Any:
    """`std::generate_canonical`: numbers in [0, 1) from one 32-bit integer each, or for float64 from two."""
    if dtype is np.float32:
        numbers = integers.astype(np.float32) / np.float32(1 << 32)
    else:
        halves = integers.reshape(-1, 2).astype(np.float64)
        numbers = (halves[:, 0] + halves[:, 1] * 4294967296.0) / 18446744073709551616.0
    return np.minimum(numbers, np.nextafter(dtype(1), dtype(0)))
