"""Searching arrays where they are, as on a GPU, so that only what is found comes to the CPU. See `lw.check`."""

from typing import Any, NamedTuple

from leafwise.core.capabilities import Capability


class Lines(NamedTuple):
    """The lines of an array along an axis: each is all values at one index along it. `scale` is a power of two that
    brings the largest value near one."""

    value: Any
    axis: int
    scale: float = 1.0


class LineSums(NamedTuple):
    """Sums over all values of some lines, as NumPy arrays: a number that is equal for lines with equal bits; a
    projection onto the directions of `kernels/lines.py`, which preserves distances; and the norm. Values are scaled
    first, except for the fingerprints."""

    fingerprints: Any
    projections: Any
    norms: Any


class Searching(Capability):
    """By default no array is searched where it is, and callers read its values in parts. The methods after the first
    return None if the arrays must be read after all, as where kernels cannot be compiled or memory is short. All arrays
    must have statistics: `Measuring.cannot_measure` is empty. Lists of results are in the order of the arguments."""

    has_defaults = True

    def is_searched(self, value: Any) -> bool:
        """Whether the other methods search this array where it is."""
        return False

    def zero_lines(self, lines: list[Lines]) -> list[Any] | None:
        """For each array, which of its lines contain only zeros, as a NumPy array of booleans."""
        return None

    def near_lines(self, lines: list[Lines]) -> dict[int, Any] | None:
        """By the numbers of arrays with two or more axes: the lines that have another line of the same array near them,
        judged by a few of their numbers, in order, as NumPy integers. Arrays without any are left out."""
        return None

    def line_sums(self, lines: list[tuple[Lines, Any]]) -> list[LineSums] | None:
        """Sums over the lines with these numbers."""
        return None

    def nonfinite(self, value: Any, most: int) -> Any | None:
        """The positions of the first NaN and infinite values in C order, at most so many, as NumPy integers."""
        return None

    def same_rows(self, first: Any, second: Any) -> Any | None:
        """The rows in which two arrays of the same shape and dtype are equal bit by bit, as NumPy integers."""
        return None

    def leading_share(self, value: Any, directions: Any, rounds: int, count: int, scale: float) -> float | None:
        """The share of the `count` largest singular values of a matrix in the sum of squares, by `rounds` of power
        iteration that begin with these directions. Values are divided by `scale` first."""
        return None

    def orthogonality_error(self, value: Any, direction: Any, gain: float) -> float | None:
        """How far a matrix times its transpose is from the identity times the square of a gain, relative, along a
        direction. The smaller of the two products is used, and the direction is as long as its side."""
        return None
