"""Fills a leaf with initial values: computes its key, numbers its elements, and fills the parts that are local."""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import Any

import numpy as np

from leafwise.core.capabilities.filling import Draw, DrawJob, Filling, WordRange
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.home import Axes, Home, Spec
from leafwise.core.memory.ops import Op
from leafwise.core.memory.sharding import LocalPart
from leafwise.core.work.progress import Count
from leafwise.iterate.distributions import GeneratorKey, normal, numbers, words
from leafwise.iterate.initializers import Orthogonal, Padded
from leafwise.iterate.leaf_seeds import LeafSeed

# The order in which the elements of a leaf are numbered. The heads of attention are outputs, or inputs if there are
# other outputs.
_ORDER = ("layers0", "layers1", "layers", "out", "heads", "head_dim", "in", "in1", "in2", "d", "h", "w")
_RANK = {axis: rank for rank, axis in enumerate(_ORDER)}

_FIRST_PART, _LARGEST_PART = 16, 1024  # leaves that are drawn together


@lru_cache(128)
def canonical_order(axes: tuple[str, ...] | None) -> tuple[int, ...] | None:
    """The order of axes in which elements are numbered: out, in, then space; None if the axes are already in it."""
    bare = [axis.removeprefix("-") for axis in axes or ()]
    if not set(bare) <= _RANK.keys():
        return None
    order = tuple(sorted(range(len(bare)), key=lambda axis: _RANK[bare[axis]]))
    return None if order == tuple(range(len(bare))) else order


class LeafFiller:
    """Fills one leaf. Its elements are numbered with the axes in canonical order, so that the memory layout of a
    framework does not change the values."""

    __slots__ = (
        "axes", "count", "dtype", "filling", "first_row", "groups", "home", "key", "order", "shape", "value", "whole"
    )  # fmt: skip

    def __init__(
        self, home: Home, value: Any, spec: Spec, axes: Axes, seed: int, named: LeafSeed, groups: int, count: Count
    ) -> None:
        self.home, self.value, self.count, self.axes = home, value, count, axes or ()
        self.key, self.first_row, self.groups = GeneratorKey.of(seed, named.name), named.first_row, groups
        self.filling = home.capability(Filling)
        self.order = canonical_order(axes)
        self.shape, self.dtype = spec.shape or (), spec.dtype
        self.whole = self._in_order(self.shape) or (1,)

    @property
    def draw_size(self) -> int:
        return self.filling.draw_size(self.value)

    def _in_order(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(sizes) if self.order is None else tuple(sizes[axis] for axis in self.order)

    def _parts(self) -> list[LocalPart]:
        return self.home.capability(Distributing).parts(self.value)

    def draw_jobs(self, values: Any) -> list[DrawJob]:
        """What is drawn in place to fill the leaf: each of its parts in this process."""
        draw = values.draw if isinstance(values, Padded) else values
        if not isinstance(draw, Draw) or not self.filling.by_parts:
            return []
        jobs = []
        for part in self._parts():
            view = part.value
            if self.order is not None:
                view = self.home.capability(Viewing).seen_through(view, Op("view", None, self.order))
            own, (first_row, *first) = self._in_order(part.shape) or (1,), self._in_order(part.first) or (0,)
            whole = (self.first_row + self.whole[0], *self.whole[1:])
            jobs.append(DrawJob(view, self.key, whole, (self.first_row + first_row, *first), own, draw))
        return jobs

    def fill(self, values: Any, jobs: list[DrawJob]) -> Any:
        """Fills the leaf from a distribution, or with an array; returns the array that holds the values. Of the
        `draw_jobs`, only these are left to draw."""
        zero_row = values.zero_row if isinstance(values, Padded) else None
        draw = values.draw if isinstance(values, Padded) else values
        if isinstance(draw, Orthogonal):
            return self._write(self._in_leaf_order(_orthogonal(self.key, *self._matrices(), draw.gain)))
        if not isinstance(draw, Draw):
            return self._write(draw)
        if not self.filling.by_parts and not draw.scale:
            return self._write(draw.shift)
        if not self.filling.by_parts:
            start = self.first_row * math.prod(self.whole[1:])
            array = self._in_leaf_order(numbers(draw, words(self.key, start, math.prod(self.whole))))
            if zero_row is not None:
                array[zero_row] = 0
            self.count(array.size)
            return self._replaced(array)
        for job in jobs:
            self._draw(job.value, draw, 0, job.whole, job.first, job.shape)
        if zero_row is not None:
            for part in self._parts():
                self._zero(part, zero_row)
        return self.value

    def _matrices(self) -> tuple[int, int, int]:
        """How many matrices the leaf has, one for each of the stacked layers, and the rows and columns of each."""
        names = [self.axes[axis] for axis in self.order or range(len(self.axes))]
        stacks = sum(name.startswith("layers") for name in names)
        rows = stacks + (2 if names[stacks : stacks + 2] == ["heads", "head_dim"] else 1)
        return math.prod(self.whole[:stacks]), math.prod(self.whole[stacks:rows]), math.prod(self.whole[rows:])

    def _in_leaf_order(self, array: Any) -> Any:
        """Converts an array from the canonical order of axes to the order of the leaf."""
        order = self.order or tuple(range(len(self.shape)))
        whole, *rest = self._in_order(self.shape) or (1,)
        if self.groups > 1:  # PyTorch numbers the outputs of one group, and all inputs
            inputs, *space = rest
            array = array.reshape(whole // self.groups, self.groups, inputs, *space).swapaxes(0, 1)
        array = array.reshape(self._in_order(self.shape)).transpose([order.index(axis) for axis in range(len(order))])
        return np.flip(array, tuple(axis for axis, name in enumerate(self.axes) if name.startswith("-")))

    def _write(self, array: Any) -> Any:
        """Writes an array into the leaf; a single number is written to every element."""
        array = np.broadcast_to(array, self.shape)
        if not self.filling.by_parts:
            return self._replaced(array)
        for part in self._parts():
            self.filling.fill(part.value, 0, array[part.inside()].reshape(part.shape or (1,)))
        return self.value

    def _replaced(self, array: Any) -> Any:
        """The array of the leaf with these values, which may be a new one."""
        return self.home.capability(Rebuilding).updated(self.value, array.astype(self.dtype))

    def _draw(
        self, view: Any, draw: Draw, base: int, whole: tuple[int, ...], first: tuple[int, ...], own: tuple[int, ...]
    ) -> None:
        """Draws the elements of `view`, some rows at a time. The view is the part of shape `own` that begins at `first`
        in an array of shape `whole`, whose elements are numbered from `base` on."""
        if not math.prod(own):
            return
        size = math.prod(whole[1:])
        if size > self.draw_size and len(own) > 1:
            for row in range(own[0]):
                self._draw(view[row], draw, base + (first[0] + row) * size, whole[1:], first[1:], own[1:])
            return
        inside = tuple(slice(a, a + n) for a, n in zip(first[1:], own[1:], strict=True))
        rows = max(1, self.draw_size // size)
        for start in range(0, own[0], rows):
            count = min(rows, own[0] - start)
            if not draw.scale:
                self.filling.fill(view, start, np.full((count, *own[1:]), draw.shift))
            else:
                number, shape = base + (first[0] + start) * size, (count, *whole[1:])
                stretch = WordRange(self.key, number, shape, inside, partial(_words, self.key, number, shape, inside))
                if not self.filling.draw(view, start, stretch, draw):
                    self.filling.fill(view, start, numbers(draw, stretch.words()))
            self.count(count * math.prod(own[1:]))

    def _zero(self, part: LocalPart, row: int) -> None:
        """Writes zeros into a row of the leaf, if the row is in this part."""
        local_row = row % self.shape[0] - part.first[0]
        if 0 <= local_row < part.shape[0]:
            self.filling.fill(part.value, local_row, np.zeros((1, *part.shape[1:])))


def fill_leaves(leaves: Iterable[tuple[LeafFiller, Any]], count: Count) -> list[Any]:
    """Fills leaves with their values; returns the filled arrays. What homes draw together comes first, because the rest
    may wait for it: a few leaves, then more at a time, so that a GPU draws the first ones while others are prepared."""
    remaining = iter(leaves)
    started: list[tuple[LeafFiller, Any, list[DrawJob]]] = []
    part_size = _FIRST_PART
    while part := list(islice(remaining, part_size)):
        left = _draw_together(part, count)
        started += [(filler, values, jobs) for (filler, values), jobs in zip(part, left, strict=True)]
        part_size = min(4 * part_size, _LARGEST_PART)
    return [filler.fill(values, jobs) for filler, values, jobs in started]


def _draw_together(leaves: list[tuple[LeafFiller, Any]], count: Count) -> list[list[DrawJob]]:
    """Draws as many leaves as their homes can draw in one step; returns the jobs that are left of each leaf."""
    left = [filler.draw_jobs(values) for filler, values in leaves]
    numbers_by_filling: dict[Filling, list[int]] = {}
    for number, (filler, _) in enumerate(leaves):
        numbers_by_filling.setdefault(filler.filling, []).append(number)
    for filling, leaf_numbers in numbers_by_filling.items():
        jobs = [job for number in leaf_numbers for job in left[number]]
        is_drawn = iter(filling.draw_together(jobs, count))
        for number in leaf_numbers:
            left[number] = [job for job in left[number] if not next(is_drawn)]
    return left


def _words(key: GeneratorKey, first: int, shape: tuple[int, ...], inside: tuple[slice, ...]) -> Any:
    return words(key, first, math.prod(shape)).reshape(shape)[(slice(None), *inside)]


def _orthogonal(key: GeneratorKey, count: int, rows: int, columns: int, gain: float) -> Any:
    if not count * rows * columns:
        return np.zeros((count, rows, columns))
    drawn = numbers(normal(0.0, 1.0), words(key, 0, count * rows * columns)).reshape(count, rows, columns)
    q, r = np.linalg.qr(drawn if rows >= columns else drawn.swapaxes(1, 2))
    q = q * np.where(np.diagonal(r, axis1=1, axis2=2) < 0, -1.0, 1.0)[:, None]  # uniform over all rotations
    return gain * (q if rows >= columns else q.swapaxes(1, 2))
