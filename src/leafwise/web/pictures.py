"""Leaves as pictures that can be zoomed: tiles of at most 256 by 256 pixels, of which only the asked ones are read.

At level 0 a pixel is one value. At level z it is the value with the largest magnitude of 2**z by 2**z values, as in
`lw.image`. A tile reads at most `BUDGET` values: of a coarse tile of a huge leaf, rows are sampled, and the answer
says so.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.capabilities.measuring import reader
from leafwise.core.leaf import Leaf, shape_text
from leafwise.errors import QueryError
from leafwise.inspect.image.bins import Bins
from leafwise.inspect.image.grids import axis_down, filter_places, style_of
from leafwise.inspect.image.plot import groups_of
from leafwise.inspect.ranks.teamwork import cannot_use

TILE = 256  # pixels
BUDGET = 1 << 25  # values that a tile reads at most
_BAND_VALUES = 1 << 20  # values in memory at a time
_SEGMENTS = 64  # parts of a row that are read if even one row for each line of pixels would be too much
_FEW_INPUTS = 4  # filters with at most so many inputs are wrapped into lines
_LARGEST_FILTER = 1 << 14  # values of a filter with one input; larger ones are read whole
_LONGEST_LINE = 1 << 22  # values of the filters in a line
_SURPLUS = 1 << 16  # values that may be read without being shown, rather than reading in several parts

Box = tuple[slice, ...]


class Tile(NamedTuple):
    """The cells of a tile, and which share of its rows was read: 1 if nothing was left out."""

    cells: Any
    sampled: int


class PixelLayout:
    """A leaf as a matrix of pixels, at level 0. `read` returns a part of it; gaps are zero."""

    name = "matrix"
    rows: int
    columns: int
    down: str
    across: str
    note: str = ""
    row_unit = 1  # rows that are read together

    def __init__(self, leaf: Leaf) -> None:
        columns = leaf.columns
        value = columns.current(leaf.row)
        self.home = columns.home(value)
        self.shape: tuple[int, ...] = leaf.shape or ()
        self._reader = reader(self.home, value)

    def read(self, top: int, bottom: int, left: int, right: int) -> Any:
        raise NotImplementedError

    def gaps(self, top: int, bottom: int, left: int, right: int) -> Any:
        """Which pixels are gaps; None if there are none."""
        return None

    def index(self, row: int, column: int) -> tuple[int, ...] | None:
        """The index of the value at a pixel; None in a gap."""
        raise NotImplementedError

    def values(self, box: Box) -> Any:
        with np.errstate(invalid="ignore"):  # NaN in float8
            return np.asarray(self._reader(box)).astype(np.float64)

    def value(self, row: int, column: int) -> tuple[tuple[int, ...] | None, Any]:
        """The index and the value at a pixel."""
        index = self.index(row, column)
        if index is None:
            return None, None
        return index, np.asarray(self._reader(tuple(slice(at, at + 1) for at in index))).reshape(())[()]

    @property
    def levels(self) -> int:
        """The number of levels: at the last one, the whole leaf is one tile."""
        return 1 + max(0, math.ceil(math.log2(max(self.rows, self.columns, 1) / TILE)))

    def facts(self) -> dict[str, Any]:
        return {
            "layout": self.name,
            "rows": self.rows,
            "columns": self.columns,
            "down": self.down,
            "across": self.across,
            "levels": self.levels,
            "note": self.note,
        }


class MatrixLayout(PixelLayout):
    """One axis down, the others flattened across."""

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        axes = leaf.axes
        self.axis = axis_down(self.shape, axes)
        self.others = [axis for axis in range(len(self.shape)) if axis != self.axis]
        self.rows = self.shape[self.axis]
        self.columns = math.prod(self.shape[axis] for axis in self.others)
        names = [axes[axis] if axes else f"axis {axis}" for axis in range(len(self.shape))]
        self.down = names[self.axis]
        self.across = " × ".join(names[axis] for axis in self.others)

    def read(self, top: int, bottom: int, left: int, right: int) -> Any:
        parts = [self._part(top, bottom, first, last) for first, last in self._runs(left, right)]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _runs(self, left: int, right: int) -> list[tuple[int, int]]:
        """Columns cut where the first axes across change: `_part` would read both sides whole."""
        for place in range(1, len(self.others)):
            inner = math.prod(self.shape[other] for other in self.others[place:])
            start, stop = left // inner, (right - 1) // inner + 1
            if stop - start == 1:
                continue
            if (stop - start) * inner - (right - left) <= _SURPLUS:
                break
            head, tail = -(-left // inner) * inner, right // inner * inner  # what lies between them is read whole
            runs = self._runs(left, head) if left < head else []
            runs += [(head, tail)] if head < tail else []
            return runs + (self._runs(tail, right) if tail < right else [])
        return [(left, right)]

    def _part(self, top: int, bottom: int, left: int, right: int) -> Any:
        box: list[slice] = [slice(0, size) for size in self.shape]
        box[self.axis] = slice(top, bottom)
        first, last = left, right  # columns of the part that is read, relative to it
        for place, axis in enumerate(self.others):
            inner = math.prod(self.shape[other] for other in self.others[place + 1 :])
            start, stop = first // inner, (last - 1) // inner + 1
            box[axis] = slice(start, stop)
            first, last = first - start * inner, last - start * inner
            if stop - start > 1:  # several numbers of this axis: the axes after it are read whole
                break
        part = self.values(tuple(box)).transpose(self.axis, *self.others).reshape(bottom - top, -1)
        return part[:, first:last]

    def index(self, row: int, column: int) -> tuple[int, ...]:
        place = [0] * len(self.shape)
        place[self.axis] = row
        for axis in reversed(self.others):
            column, place[axis] = divmod(column, self.shape[axis])
        return tuple(place)


class StripLayout(PixelLayout):
    """All values in order, in one row."""

    name = "strip"

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self.axis = max(range(len(self.shape)), key=self.shape.__getitem__)
        self.rows, self.columns = 1, self.shape[self.axis]
        self.down, self.across = "", leaf.axes[self.axis] if leaf.axes else f"axis {self.axis}"

    def read(self, top: int, bottom: int, left: int, right: int) -> Any:
        box = [slice(0, size) for size in self.shape]
        box[self.axis] = slice(left, right)
        return self.values(tuple(box)).reshape(1, -1)

    def index(self, row: int, column: int) -> tuple[int, ...]:
        return tuple(column if axis == self.axis else 0 for axis in range(len(self.shape)))


class FilterLayout(PixelLayout):
    """The filters of a convolution, with a gap of one pixel between them: filters down, and inputs across. Filters with
    few inputs are wrapped into lines, with their inputs side by side."""

    name = "filters"

    def __init__(self, leaf: Leaf) -> None:
        super().__init__(leaf)
        self.places = filter_places(leaf.axes, len(self.shape))
        self.outs, self.ins, *space = (self.shape[place] for place in self.places)
        self.depth, self.high, self.wide = (1,) * (3 - len(space)) + tuple(space)
        slices = self.ins * self.depth  # of one filter
        self.per_line = 1
        if self.ins <= _FEW_INPUTS:
            square = math.sqrt(self.outs * (self.high + 1) / (slices * (self.wide + 1)))
            fit = _LONGEST_LINE // (slices * self.high * self.wide)  # a line is read as a whole
            self.per_line = max(1, min(self.outs, round(square), fit))
        self.across_units = self.per_line * slices
        self.down_units = -(-self.outs // self.per_line)
        self.rows = self.down_units * (self.high + 1) - 1
        self.columns = self.across_units * (self.wide + 1) - 1
        self.row_unit = self.high + 1
        self.down, self.across = "filters", "inputs" if self.per_line == 1 else "filters"
        inputs = f" × {self.ins:,} inputs" if self.ins > 1 else ""
        inputs += " (as one group: their number is not known)" if not groups_of(leaf, self.shape) else ""
        self.note = f"{self.outs:,} filters{inputs} of {shape_text(tuple(space))}"

    def read(self, top: int, bottom: int, left: int, right: int) -> Any:
        high, wide = self.high + 1, self.wide + 1
        lines = range(top // high, (bottom - 1) // high + 1)
        units = range(left // wide, (right - 1) // wide + 1)
        inputs = slice(units[0] // self.depth, units[-1] // self.depth + 1)
        if self.per_line > 1:  # whole lines of filters
            inputs = slice(0, self.ins)
        first, last = lines[0] * self.per_line, min(self.outs, (lines[-1] + 1) * self.per_line)
        part = self._filters(slice(first, last), inputs)
        count = len(lines) * self.per_line
        padded = np.zeros((count, part.shape[1] * self.depth, high, wide))
        padded[: len(part), :, : self.high, : self.wide] = part.reshape(len(part), -1, self.high, self.wide)
        whole = padded.reshape(len(lines), self.per_line, -1, high, wide).transpose(0, 3, 1, 2, 4)
        whole = whole.reshape(len(lines) * high, -1)
        start = inputs.start * self.depth * wide
        return whole[top - lines[0] * high : bottom - lines[0] * high, left - start : right - start]

    def _filters(self, outs: slice, inputs: slice) -> Any:
        box = [slice(0, size) for size in self.shape]
        box[self.places[0]], box[self.places[1]] = outs, inputs
        part = self.values(tuple(box)).transpose(self.places)
        return part.reshape(part.shape[0], part.shape[1], self.depth, self.high, self.wide)

    def gaps(self, top: int, bottom: int, left: int, right: int) -> Any:
        rows, columns = np.arange(top, bottom), np.arange(left, right)
        between = (rows % (self.high + 1) == self.high)[:, None] | (columns % (self.wide + 1) == self.wide)
        lines, units = rows // (self.high + 1), columns // (self.wide + 1)
        outs = lines[:, None] * self.per_line + (units // (self.ins * self.depth) if self.per_line > 1 else 0)
        return between | (outs >= self.outs)

    def index(self, row: int, column: int) -> tuple[int, ...] | None:
        line, y = divmod(row, self.high + 1)
        unit, x = divmod(column, self.wide + 1)
        slices = self.ins * self.depth
        out, number = (line * self.per_line + unit // slices, unit % slices) if self.per_line > 1 else (line, unit)
        if y == self.high or x == self.wide or out >= self.outs:
            return None
        place = [0] * len(self.shape)
        space = (number % self.depth, y, x)[3 - (len(self.shape) - 2) :]
        for axis, at in zip(self.places, (out, number // self.depth, *space), strict=True):
            place[axis] = at
        return tuple(place)


_LAYOUTS = {"matrix": MatrixLayout, "filters": FilterLayout, "strip": StripLayout}


def layouts_of(leaf: Leaf) -> tuple[list[str], str]:
    """The layouts in which a leaf can be drawn, the best first; or none, and the reason."""
    if leaf.sharding is not None and leaf.sharding.over == "ranks":
        return [], "it is sharded over several processes; draw it with lw.image on every rank"
    columns = leaf.columns
    value = columns.current(leaf.row)
    shape = leaf.shape
    if shape is None:
        return [], "its shape is not known yet"
    if 0 in shape:
        return [], "it is empty"
    if "complex" in leaf.dtype:
        return [], f"its dtype is {leaf.dtype}"
    if reason := cannot_use(columns.home(value), value):
        return [], reason
    if sum(size > 1 for size in shape) <= 1:
        return (["strip"], "") if shape else ([], "it is a scalar")
    # A transposed convolution with groups has its filters in another order than its axes.
    has_groups = groups_of(leaf, shape) > 1
    if style_of(leaf.role, leaf.axes, shape) == "filters" and 3 <= len(shape) <= 5 and not has_groups:
        space = filter_places(leaf.axes, len(shape))[2:]
        if math.prod(shape[place] for place in space) <= _LARGEST_FILTER:
            return ["filters", "matrix"], ""
    return ["matrix"], ""


def layout_of(leaf: Leaf, name: str) -> PixelLayout:
    """A leaf in one of its layouts."""
    names, reason = layouts_of(leaf)
    if name not in names:
        raise QueryError(f"cannot draw {leaf.path}: {reason}" if reason else f"it has no layout {name!r}")
    return _LAYOUTS[name](leaf)


def tile(layout: PixelLayout, level: int, y: int, x: int) -> Tile:
    """The cells of a tile."""
    if not (0 <= level < layout.levels):
        raise QueryError(f"there is no level {level}; there are {layout.levels}")
    step = 1 << level
    top, left = y * TILE * step, x * TILE * step
    if y < 0 or x < 0 or top >= layout.rows or left >= layout.columns:
        raise QueryError(f"there is no tile {y}, {x} at level {level}")
    bottom, right = min(layout.rows, top + TILE * step), min(layout.columns, left + TILE * step)
    bins = Bins(bottom - top, right - left, step, step)
    plan = _plan(layout, (top, bottom), (left, right), step)
    for first, last in plan.rows:
        for start, stop in plan.columns:
            bins.add(first - top, start - left, layout.read(first, last, start, stop))
    return Tile(bins.cells()[:, plan.shown], plan.sampled)


class _ReadPlan(NamedTuple):
    """What a tile reads: ranges of rows and of columns. `shown` is, for each column of pixels, the one that was read in
    its place, and one of `sampled` values is read."""

    rows: list[tuple[int, int]]
    columns: list[tuple[int, int]]
    shown: Any
    sampled: int


def _plan(layout: PixelLayout, rows: tuple[int, int], columns: tuple[int, int], step: int) -> _ReadPlan:
    (top, bottom), (left, right) = rows, columns
    height, width = bottom - top, right - left
    lines, shown = -(-height // step), np.arange(-(-width // step))
    chunk = max(1, _BAND_VALUES // (step * layout.row_unit)) * step  # of columns, so that a band is never larger
    if height * width <= BUDGET:
        band = max(layout.row_unit, _BAND_VALUES // width)
        return _ReadPlan(_cut(top, bottom, band), _cut(left, right, chunk), shown, 1)
    kept = min(step, max(layout.row_unit, BUDGET // (lines * width)))
    # From the middle of each line of pixels; the last line may have fewer rows.
    runs = [
        (start := max(row, min(row + (step - kept) // 2, bottom - kept)), min(start + kept, bottom))
        for row in range(top, bottom, step)
    ]
    if kept * lines * width <= 2 * BUDGET:
        return _ReadPlan(runs, _cut(left, right, chunk), shown, max(2, height // (kept * lines)))
    # Even these rows are too long: only some parts of them are read, each for several columns of pixels.
    every = -(-len(shown) // _SEGMENTS)
    length = max(1, BUDGET // (kept * lines * -(-len(shown) // every)))
    parts = [(start, min(start + length, right)) for start in range(left, right, every * step)]
    sampled = max(2, height * width // (kept * lines * sum(stop - start for start, stop in parts)))
    return _ReadPlan(runs, parts, shown // every * every, sampled)


def _cut(first: int, last: int, length: int) -> list[tuple[int, int]]:
    return [(start, min(start + length, last)) for start in range(first, last, length)]
