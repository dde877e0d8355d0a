"""Numbers into leaves: from which key each is drawn, how its elements are numbered, and which of them are here."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from leafwise.core.capabilities.filling import Draw, Filling, WordRange
from leafwise.core.capabilities.rebuilding import Rebuilding
from leafwise.core.capabilities.viewing import Viewing
from leafwise.core.columns import Columns
from leafwise.core.home import Home
from leafwise.core.memory import Op
from leafwise.iterate.drawing import Key, normal, numbers, words
from leafwise.iterate.initialisers import Orthogonal, Padded

# What frameworks call the same leaf: a key has the first of them.
_ALIASES = {"kernel": "weight", "embedding": "weight", "scale": "weight", "gamma": "weight", "beta": "bias"}
_RANK = {axis: rank for rank, axis in enumerate(("out", "in", "in1", "in2", "d", "h", "w"))}


def key_of(columns: Columns, row: int) -> str:
    """The path that a leaf is drawn from: its own, but for names that mean the same in another framework."""
    path = columns.row_text(row)
    name = columns.row_names[row]
    alias = _ALIASES.get(name)
    if alias is None or columns.row_role(row)[0] is None:
        return path
    beside = [columns.row_names[other] for other in columns.own_rows(columns.row_nodes[row]) if other != row]
    if any(_ALIASES.get(other, other) == alias for other in beside):
        return path
    return path.removesuffix(name) + alias


def canonical_order(axes: Sequence[str] | None) -> tuple[int, ...] | None:
    """The axes in the order in which elements are numbered: out, in, then space; None where they stand so already."""
    if axes is None or not set(axes) <= _RANK.keys():
        return None
    order = tuple(sorted(range(len(axes)), key=lambda at: _RANK[axes[at]]))
    return None if order == tuple(range(len(axes))) else order


class LeafFiller:
    """Fills one leaf. Elements are numbered with its axes in canonical order."""

    def __init__(
        self, home: Home, value: Any, axes: Sequence[str] | None, key: Key, count: Callable[[int], None]
    ) -> None:
        self.home, self.value, self.key, self.count = home, value, key, count
        self.filling = home.capability(Filling)
        self.order = canonical_order(axes)
        spec = home.spec(value)
        self.shape, self.dtype = spec.shape or (), spec.dtype
        self.whole = self._turned(self.shape) or (1,)
        self.at_a_time = self.filling.draw_size(value)

    def _turned(self, sizes: Sequence[int]) -> tuple[int, ...]:
        return tuple(sizes) if self.order is None else tuple(sizes[at] for at in self.order)

    def fill(self, drawn: Any) -> Any:
        """The array that has the values."""
        zero_row = drawn.zero_row if isinstance(drawn, Padded) else None
        drawn = drawn.draw if isinstance(drawn, Padded) else drawn
        if isinstance(drawn, Orthogonal):
            drawn = self._back(_orthogonal(self.key, self.whole, drawn.gain))
        if not isinstance(drawn, Draw):
            return self._put(drawn)
        if not self.home.in_place:
            array = self._back(numbers(drawn, words(self.key, 0, math.prod(self.whole))))
            if zero_row is not None:
                array[zero_row] = 0
            return self.home.capability(Rebuilding).from_numpy(self.value, array.astype(self.dtype))
        for local, starts in self.filling.local_parts(self.value):
            seen = (
                local
                if self.order is None
                else self.home.capability(Viewing).seen_through(local, Op("view", None, self.order))
            )
            own = self._turned(self.home.spec(local).shape or ()) or (1,)
            self._draw(seen, drawn, 0, self.whole, self._turned(starts) if starts else (0,) * len(own), own)
            if zero_row is not None:
                self._zero(local, starts, zero_row)
        return self.value

    def _back(self, array: Any) -> Any:
        """From the order in which elements are numbered to that of the leaf."""
        order = self.order or tuple(range(len(self.shape)))
        return array.reshape(self._turned(self.shape)).transpose([order.index(at) for at in range(len(order))])

    def _put(self, array: Any) -> Any:
        """Puts an array that somebody made into a leaf; a number goes everywhere."""
        home = self.home
        array = np.broadcast_to(array, self.shape)
        if not home.in_place:
            return home.capability(Rebuilding).from_numpy(self.value, array.astype(self.dtype))
        for local, starts in self.filling.local_parts(self.value):
            part = array
            if starts is not None:
                sizes = home.spec(local).shape or ()
                part = array[tuple(slice(a, a + n) for a, n in zip(starts, sizes, strict=True))]
            self.filling.fill(local, 0, part.reshape(part.shape or (1,)))
        return self.value

    def _draw(
        self, view: Any, draw: Draw, base: int, whole: tuple[int, ...], first: tuple[int, ...], own: tuple[int, ...]
    ) -> None:
        """Draws the elements of an array, some rows at a time. It is what begins at `first` and is `own` long of
        something with the shape `whole`, whose elements are numbered from `base` on."""
        if not math.prod(own):
            return
        size = math.prod(whole[1:])
        if size > self.at_a_time and len(own) > 1:
            for row in range(own[0]):
                self._draw(view[row], draw, base + (first[0] + row) * size, whole[1:], first[1:], own[1:])
            return
        inside = tuple(slice(a, a + n) for a, n in zip(first[1:], own[1:], strict=True))
        rows = max(1, self.at_a_time // size)
        for start in range(0, own[0], rows):
            some = min(rows, own[0] - start)
            if not draw.scale:
                self.filling.fill(view, start, np.full((some, *own[1:]), draw.shift))
            else:
                at, shape = base + (first[0] + start) * size, (some, *whole[1:])
                stretch = WordRange(self.key, at, shape, inside, partial(_words, self.key, at, shape, inside))
                if not self.filling.draw(view, start, stretch, draw):
                    self.filling.fill(view, start, numbers(draw, stretch.words()))
            self.count(some * math.prod(own[1:]))

    def _zero(self, local: Any, starts: tuple[int, ...] | None, row: int) -> None:
        shape = self.home.spec(local).shape or ()
        at = row % self.shape[0] - (starts[0] if starts else 0)
        if 0 <= at < shape[0]:
            self.filling.fill(local, at, np.zeros((1, *shape[1:])))


def _words(key: Key, first: int, shape: tuple[int, ...], inside: tuple[slice, ...]) -> Any:
    return words(key, first, math.prod(shape)).reshape(shape)[(slice(None), *inside)]


def _orthogonal(key: Key, shape: tuple[int, ...], gain: float) -> Any:
    rows, columns = shape[0], math.prod(shape[1:])
    if not rows * columns:
        return np.zeros(shape)
    drawn = numbers(normal(0.0, 1.0), words(key, 0, rows * columns)).reshape(rows, columns)
    q, r = np.linalg.qr(drawn if rows >= columns else drawn.T)
    q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)  # so that the result is spread evenly over all rotations
    return (gain * (q if rows >= columns else q.T)).reshape(shape)
