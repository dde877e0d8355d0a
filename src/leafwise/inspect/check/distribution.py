"""Which distribution values come from, judged by their moments and their power-of-two histogram."""

import math
from typing import NamedTuple

from leafwise.core.capabilities.filling import Draw
from leafwise.inspect.stats.rows import Row

_CUT = math.erf(2 / math.sqrt(2))  # share of a normal distribution within two standard deviations
_CHANCE = math.log(1e6) / 2  # one correct sample in a million exceeds the allowed distance by chance


class UsualInitializer(NamedTuple):
    """A usual initializer, and its standard deviation for a layer with given fans."""

    name: str
    std: float


def nearest_initializer(std: float, fan_in: float, fan_out: float) -> UsualInitializer:
    """The usual initializer with the nearest standard deviation, by ratio."""
    usual_initializers = [
        UsualInitializer("PyTorch's default", 1 / math.sqrt(3 * fan_in)),
        UsualInitializer("lecun_normal", math.sqrt(1 / fan_in)),
        UsualInitializer("xavier_normal", math.sqrt(2 / (fan_in + fan_out))),
        UsualInitializer("kaiming_normal", math.sqrt(2 / fan_in)),
        UsualInitializer("truncated_normal, std=0.02", 0.02),
    ]
    return min(usual_initializers, key=lambda usual: abs(math.log(usual.std / std)))


def distribution_name(row: Row) -> str:
    """The name of the distribution that fits best among those with the mean and standard deviation of the values.

    >>> import torch, leafwise as lw
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> rows = lw.stats({"normal": torch.randn(10_000), "uniform": torch.rand(10_000) - 0.5})
    >>> distribution_name(rows["normal"]), distribution_name(rows["uniform"])
    ('normal', 'uniform')
    """
    if row.min == row.max:
        return "constant"
    cut_std = 0.8796256610342398  # of a standard normal distribution truncated at two standard deviations
    draws = {
        "normal": Draw("normal", 1.0, row.std, row.mean),
        "truncated normal": Draw("normal", _CUT, row.std / cut_std, row.mean),
        "uniform": Draw("uniform", 1.0, row.std * math.sqrt(3), row.mean),
    }
    return min(draws, key=lambda name: histogram_distance(row, draws[name]))


def mean_and_std(draw: Draw) -> tuple[float, float]:
    """Mean and standard deviation of the drawn values."""
    if draw.shape == "uniform":
        return draw.shift, draw.scale / math.sqrt(3)
    if draw.narrow >= 1:
        return draw.shift, draw.scale
    # The variance of a normal distribution truncated at ±c, where the distribution function at c is ½ + ½ narrow.
    low, high = 0.0, 40.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erf(middle / math.sqrt(2)) < draw.narrow else (low, middle)
    density = math.exp(-low * low / 2) / math.sqrt(2 * math.pi)
    return draw.shift, draw.scale * math.sqrt(max(1 - 2 * low * density / draw.narrow, 0.0))


def histogram_distance(row: Row, draw: Draw, zeros: float = 0.0) -> float:
    """The share of values that would have to move to other bins for the histogram to match the distribution. A share
    `zeros` of the expected values is zero."""
    histogram = row.histogram
    assert histogram is not None
    finite = row.finite
    misplaced = abs(row.zeros / finite - zeros)
    lowest, highest = histogram.lowest, histogram.lowest + len(histogram.counts)
    edges = [_share_below(draw, 2.0**exponent) for exponent in range(lowest, highest + 1)]
    for count, low, high in zip(histogram.counts, edges, edges[1:], strict=False):
        misplaced += abs(count / finite - (high - low) * (1 - zeros))
    if histogram.counts:
        misplaced += (edges[0] + 1 - edges[-1]) * (1 - zeros)
    return misplaced / 2


def deviates(row: Row, draw: Draw, zeros: float = 0.0) -> bool:
    """Whether values deviate from a distribution by more than chance and rounding explain. A share `zeros` of the
    expected values is zero."""
    if not draw.scale:
        return not (row.min == row.max and math.isclose(row.min, draw.shift, rel_tol=0.01, abs_tol=1e-30))
    n = row.finite
    mean, std = mean_and_std(draw)
    mean, std = mean * (1 - zeros), math.sqrt((std**2 + mean**2 * zeros) * (1 - zeros))
    if abs(row.mean - mean) > std * (5 / math.sqrt(n) + 0.01) or abs(row.std / std - 1) > 5 / math.sqrt(n) + 0.01:
        return True
    bins = len(row.histogram.counts) if row.histogram is not None else 0
    return histogram_distance(row, draw, zeros) > 0.02 + 0.4 * math.sqrt(bins / n) + math.sqrt(_CHANCE / n)


def _share_below(draw: Draw, magnitude: float) -> float:
    """The share of drawn values whose magnitude is below a number."""
    if not draw.scale:
        return float(abs(draw.shift) < magnitude)
    return _cumulative(draw, magnitude) - _cumulative(draw, -magnitude)


def _cumulative(draw: Draw, x: float) -> float:
    z = (x - draw.shift) / draw.scale
    half = math.erf(z / math.sqrt(2)) / draw.narrow if draw.shape == "normal" else z
    return 0.5 + 0.5 * min(max(half, -1.0), 1.0)
