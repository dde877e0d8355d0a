"""Distributions and the random numbers drawn from them. Element i of a leaf depends only on the seed, its path and i.

The 32-bit words come from Philox4x64-10, a counter-based generator. Its key is a hash of seed and path, and word i is
number i mod 8 of block 1 + i // 8. A word, read as a signed number s, is mapped to x = (s + ½) / 2³¹ between -1 and 1,
and the inverse of a distribution function turns x into a 64-bit number. Any range of elements can therefore be drawn on
its own, in any order, by any number of threads.
"""

import hashlib
import math
from struct import Struct
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.capabilities.filling import Draw

_TWO_WORDS = Struct("<QQ")
_WORDS = 8  # 32-bit words in a block


class GeneratorKey(NamedTuple):
    """The key of the generator for one leaf."""

    low: int
    high: int

    @classmethod
    def of(cls, seed: int, path: str) -> "GeneratorKey":
        digest = hashlib.blake2b(f"{seed}:{path}".encode(), digest_size=16).digest()
        return cls(*_TWO_WORDS.unpack(digest))


def words(key: GeneratorKey, start: int, count: int) -> Any:
    """The words from number `start` on, as signed 32-bit numbers."""
    block, skipped = divmod(start, _WORDS)
    bits = np.random.Philox(key=np.array(key, np.uint64), counter=np.array([block, 0, 0, 0], np.uint64))
    raw = bits.random_raw(-(-(skipped + count) // 2))
    return np.asarray(raw, "<u8").view("<i4")[skipped : skipped + count]


def uniform(low: float, high: float) -> Draw:
    """Uniform random numbers between two bounds."""
    return Draw("uniform", narrow=1.0, scale=(high - low) / 2, shift=(high + low) / 2)


def normal(mean: float, std: float, cut: float | None = None) -> Draw:
    """Normal random numbers; with `cut`, none is further from the mean than that many standard deviations."""
    return Draw("normal", narrow=1.0 if cut is None else math.erf(cut / math.sqrt(2)), scale=std, shift=mean)


def constant(value: float) -> Draw:
    """The same number for every element."""
    return Draw("uniform", narrow=1.0, scale=0.0, shift=value)


def numbers(draw: Draw, words: Any) -> Any:
    """The random numbers for words. This is the reference, which homes with their own code must match closely."""
    x = words.astype(np.float64)  # a contiguous copy even of a slice, so that the reshape below is a view
    x += 0.5
    x *= 2.0**-31
    if draw.shape == "normal":
        x *= 0.5 * draw.narrow
        _inverse_normal(x.reshape(-1))
    x *= draw.scale
    if draw.shift:
        x += draw.shift
    return x


# Wichura's algorithm AS 241 for the inverse of the normal distribution function, exact to about 16 digits. Its third
# region begins at tail probabilities below exp(-25), which 32-bit words do not reach.
_CENTRE = (
    (2509.0809287301226727, 33430.575583588128105, 67265.770927008700853, 45921.953931549871457,
     13731.693765509461125, 1971.5909503065514427, 133.14166789178437745, 3.3871328727963666080),
    (5226.4952788528545610, 28729.085735721942674, 39307.895800092710610, 21213.794301586595867,
     5394.1960214247511077, 687.18700749205790830, 42.313330701600911252, 1.0),
)  # fmt: skip
_TAIL = (
    (7.74545014278341407640e-4, 2.27238449892691845833e-2, 2.41780725177450611770e-1, 1.27045825245236838258,
     3.64784832476320460504, 5.76949722146069140550, 4.63033784615654529590, 1.42343711074968357734),
    (1.05075007164441684324e-9, 5.47593808499534494600e-4, 1.51986665636164571966e-2, 1.48103976427480074590e-1,
     6.89767334985100004550e-1, 1.67638483018380384940, 2.05319162663775882187, 1.0),
)  # fmt: skip

_CHUNK = 1 << 13  # elements at a time, so that intermediate results stay in the fastest cache


def _inverse_normal(q: Any) -> None:
    """Replaces each q by the number at which the normal distribution function is ½ + q."""
    buffers = np.empty((3, min(_CHUNK, q.size)))
    for start in range(0, q.size, _CHUNK):
        part = q[start : start + _CHUNK]
        r, numerator, denominator = buffers[:, : part.size]
        np.multiply(part, part, out=r)
        np.subtract(0.180625, r, out=r)
        outside = np.flatnonzero(r < 0)  # further than 0.425 from the middle
        beyond = part[outside]
        _ratio(_CENTRE, r, numerator, denominator)
        part *= numerator
        if outside.size:
            r, numerator, denominator = buffers[:, : outside.size]
            np.abs(beyond, out=r)
            np.subtract(0.5, r, out=r)
            np.log(r, out=r)
            np.negative(r, out=r)
            np.sqrt(r, out=r)
            r -= 1.6
            _ratio(_TAIL, r, numerator, denominator)
            part[outside] = np.copysign(numerator, beyond)


def _ratio(polynomials: tuple[tuple[float, ...], tuple[float, ...]], r: Any, numerator: Any, denominator: Any) -> None:
    """Writes the ratio of two polynomials at r into `numerator`."""
    for coefficients, value in zip(polynomials, (numerator, denominator), strict=True):
        np.multiply(r, coefficients[0], out=value)
        for coefficient in coefficients[1:-1]:
            value += coefficient
            value *= r
        value += coefficients[-1]
    numerator /= denominator
