"""The grid of numbers that a picture of a leaf shows, computed from the values in one pass, a band at a time.

Colors are chosen elsewhere. A grid never has more cells than a picture has pixels, however large the leaf is; if
several values share a cell, it keeps the one with the largest magnitude, so that no outlier is lost.
"""

import math
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.capabilities.measuring import Reader
from leafwise.core.leaf import shape_text
from leafwise.core.path import plural
from leafwise.inspect.image.bins import Bins, bin_sizes, joint_norm, largest_of, norm_of, wrapped
from leafwise.inspect.image.picture import gaps, side

BAND = 1 << 20  # number of values in memory at a time
_KEEP = 256  # cells that the shorter side of a matrix keeps when the longer one is binned
_FEW_INPUTS = 4  # filters with at most this many inputs are laid out side by side and wrapped into rows
_TILE = 16  # cells that a side of a binned filter has at least; otherwise each filter becomes one cell
_SPACE = ("d", "h", "w")


class Grid(NamedTuple):
    """Cells in rows and columns, and how they are grouped.

    `down` and `across` say after how many rows and columns there is a gap; each number divides the next, and a gap is
    wider where several coincide. If the blocks between the widest gaps (without gaps, the cells) are wrapped from row
    to row like text, `units` is their number, and the end of the last row is empty. `notes` say what a cell shows, and
    `dead` what is all zero.
    """

    cells: Any
    notes: tuple[str, ...]
    down: tuple[int, ...] = ()
    across: tuple[int, ...] = ()
    units: int | None = None
    dead: tuple[str, ...] = ()
    nan: int = 0
    infinite: int = 0

    @property
    def unit(self) -> tuple[int, int]:
        """The number of rows and columns of a block."""
        return (self.down[-1] if self.down else 1), (self.across[-1] if self.across else 1)

    def empty(self) -> Any:
        """Which cells are empty: the end of the last row of units."""
        empty = np.zeros(self.cells.shape, bool)
        if self.units is not None:
            rows, columns = self.unit
            left = self.units - (len(empty) // rows - 1) * (empty.shape[1] // columns)
            empty[-rows:, left * columns :] = True
        return empty

    def first(self, down: int, across: int) -> "Grid":
        """The first blocks, at most `down` by `across` of them; wrapped again if they are wrapped."""
        rows, columns = self.unit
        if self.units is None:
            return self._replace(cells=self.cells[: down * rows, : across * columns])
        blocks = self.cells.reshape(-1, rows, self.cells.shape[1] // columns, columns)
        blocks = blocks.transpose(0, 2, 1, 3).reshape(-1, rows, columns)[: self.units]
        across = min(across, self.units)
        return self._replace(cells=wrapped(blocks[: down * across], across), units=min(self.units, down * across))


class _BandReader:
    """The values of an array as doubles, a band at a time; also counts NaN and infinite values."""

    def __init__(self, shape: tuple[int, ...], read: Reader) -> None:
        self.shape, self._read = shape, read
        self.nan = self.infinite = 0

    def bands(self) -> Iterator[tuple[tuple[slice, ...], Any]]:
        """Contiguous parts in C order, each with its range along every axis."""
        for box in boxes(self.shape, BAND):
            with np.errstate(invalid="ignore"):  # NaN in float8
                part = np.asarray(self._read(box)).astype(np.float64)
            wrong = part[~np.isfinite(part)]
            missing = int(np.isnan(wrong).sum())
            self.nan += missing
            self.infinite += wrong.size - missing
            yield box, part

    def rows(self, axis: int) -> Iterator[tuple[int, int, Any]]:
        """The values as parts of a matrix (one axis down, the rest across), each with its first row and column."""
        axes_across = [number for number in range(len(self.shape)) if number != axis]
        for box, part in self.bands():
            column = 0
            for number in axes_across:
                column = column * self.shape[number] + box[number].start
            yield box[axis].start, column, part.transpose(axis, *axes_across).reshape(part.shape[axis], -1)


def boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Ranges that cut an array along its first axes into contiguous runs of at most `most` values."""
    axis = next(axis for axis in range(len(shape)) if math.prod(shape[axis + 1 :]) <= most)
    step = most // max(1, math.prod(shape[axis + 1 :]))
    rest = [slice(0, size) for size in shape[axis + 1 :]]
    for leading in product(*map(range, shape[:axis])):
        for start in range(0, shape[axis], step):
            run = slice(start, min(start + step, shape[axis]))
            yield (*(slice(number, number + 1) for number in leading), run, *rest)


def by_groups(shape: tuple[int, ...], groups: int, read: Reader) -> tuple[tuple[int, ...], Reader]:
    """Shape and reader of a weight (in, out per group, …) as filters (out, in per group, …), read a part at a time."""
    ins, outs = shape[0] // groups, shape[1]

    def of_group(number: int, box: tuple[slice, ...]) -> Any:
        first, last = max(box[0].start, number * outs), min(box[0].stop, (number + 1) * outs)
        inputs = slice(number * ins + box[1].start, number * ins + box[1].stop)
        return read((inputs, slice(first - number * outs, last - number * outs), *box[2:])).swapaxes(0, 1)

    def read_filters(box: tuple[slice, ...]) -> Any:
        touched = range(box[0].start // outs, (box[0].stop - 1) // outs + 1)
        return np.concatenate([of_group(number, box) for number in touched])

    return (groups * outs, ins, *shape[2:]), read_filters


# -- styles ------------------------------------------------------------------------------------------------


def style_of(role: str | None, axes: tuple[str, ...] | None, shape: tuple[int, ...]) -> str:
    """The default style of a leaf."""
    if sum(size > 1 for size in shape) <= 1:
        return "strip"
    if role == "embedding.table":
        return "norms"
    is_filter = {"out", "in", "w"} <= set(axes) <= {"out", "in", *_SPACE} if axes else role is None and len(shape) == 4
    if is_filter and math.prod(shape[place] for place in filter_places(axes, len(shape))[2:]) > 1:
        return "filters"
    return "matrix"


def grid_of(style: str, shape: tuple[int, ...], axes: tuple[str, ...] | None, size: int, read: Reader) -> Grid:
    """The grid of an array, with no side longer than `size`."""
    values = _BandReader(shape, read)
    if style == "strip":
        grid = _strip(values, size)
    elif style == "filters":
        grid = _filters(values, filter_places(axes, len(shape)), size)
    else:
        axis = axis_down(shape, axes)
        grid = _norms(values, axis, size) if style == "norms" else _matrix(values, axis, axes, size)
    return grid._replace(nan=values.nan, infinite=values.infinite + grid.infinite)


def axis_down(shape: tuple[int, ...], axes: tuple[str, ...] | None) -> int:
    """The axis of the outputs; if it is not known, the first axis with more than one element."""
    named = [axes.index(name) for name in ("out", "vocab") if name in axes] if axes else []
    return (named or [axis for axis, size in enumerate(shape) if size > 1] or [0])[0]


def filter_places(axes: tuple[str, ...] | None, count: int) -> list[int]:
    """The positions of the axes of filters: out, in, then the spatial ones."""
    if axes and {"out", "in"} <= set(axes):
        space = [axes.index(name) for name in _SPACE if name in axes]
        if len(space) + 2 == count:
            return [axes.index("out"), axes.index("in"), *space]
    return list(range(count))


def _strip(values: _BandReader, size: int) -> Grid:
    """All values in order, as one row."""
    count = math.prod(values.shape)
    shared = -(-count // size)
    bins = Bins(1, count, 1, shared)
    at = 0
    for _, part in values.bands():
        bins.add(0, at, part.reshape(1, -1))
        at += part.size
    notes = [plural(count, "value", "values")]
    if shared > 1:
        notes.append(f"each cell shows the largest magnitude of {shared:,}")
    return Grid(bins.cells(), tuple(notes))


def _matrix(values: _BandReader, axis: int, axes: tuple[str, ...] | None, size: int) -> Grid:
    rows = values.shape[axis]
    columns = math.prod(values.shape) // rows
    bins = Bins(rows, columns, *bin_sizes(rows, columns, size, size, _KEEP))
    live_rows, live_columns = np.zeros(rows, bool), np.zeros(columns, bool)
    for row, column, part in values.rows(axis):
        bins.add(row, column, part)
        live = part != 0
        live_rows[row : row + len(part)] |= live.any(1)
        live_columns[column : column + part.shape[1]] |= live.any(0)
    notes = [f"{plural(rows, 'row', 'rows')}, {plural(columns, 'column', 'columns')}"]
    if sum(extent > 1 for extent in values.shape) > 2:
        axis_name = f"'{axes[axis]}'" if axes else f"axis {axis}"
        notes[0] += f" ({axis_name} down, the other axes flattened across)"
    dead = _dead("row", live_rows) + _dead("column", live_columns) if live_rows.any() else ("all zero",)
    return Grid(bins.cells(), (*notes, *bins.notes()), dead=dead)


def _norms(values: _BandReader, axis: int, size: int) -> Grid:
    """One cell per row, showing its norm, in reading order."""
    norms = np.zeros(values.shape[axis])
    finite = np.ones(len(norms), bool)
    for row, _, part in values.rows(axis):
        rows = slice(row, row + len(part))
        norms[rows] = joint_norm(norms[rows], norm_of(part, 1))
        finite[rows] &= np.isfinite(part).all(1)
    shared = -(-len(norms) // (size * size))
    binned = np.maximum.reduceat(norms, np.arange(0, len(norms), shared))
    across = math.ceil(math.sqrt(len(binned)))
    notes = [f"norms of {plural(len(norms), 'row', 'rows')}, in reading order, {across:,} per line"]
    if shared > 1:
        notes.append(f"each cell shows the largest of {shared:,}")
    cells = wrapped(binned.reshape(-1, 1, 1), across)
    overflown = int((np.isinf(norms) & finite).sum())  # norms of finite values, not counted elsewhere
    return Grid(cells, tuple(notes), units=len(binned), dead=_dead("row", norms != 0), infinite=overflown)


def _filters(values: _BandReader, places: list[int], size: int) -> Grid:
    outs, ins, *space = (values.shape[place] for place in places)
    depth, high, wide = (1,) * (3 - len(space)) + tuple(space)
    shape = shape_text(tuple(space))
    notes = [f"{plural(outs, 'filter', 'filters')} of {shape}" + (f", {ins:,} inputs each" if ins > 1 else "")]
    per_row = _filters_across(outs, ins, depth, high, wide) if ins <= _FEW_INPUTS else None
    tiles = -(-outs // (per_row or 1)), (per_row or 1) * ins * depth
    levels = [1, depth] + [ins * depth] * bool(per_row)  # a gap follows after this many tiles
    bins = _tile_bins((high, wide), tiles, levels, size)
    if bins is None:
        return _filter_norms(values, places, size, notes)
    whole, dead = _tiles(values, places, (depth, high, wide), bins)
    high, wide = whole.shape[3:]
    across = tuple(sorted({every * wide for every in levels}))
    if bins != (1, 1):
        notes.append(largest_of(*bins))
    whole = whole.transpose(0, 3, 1, 2, 4)
    if per_row is None:
        notes[0] += ", filters down, inputs across"
        cells = whole.reshape(tiles[0] * high, tiles[1] * wide)
        return Grid(cells, tuple(notes), (high,), across, dead=dead)
    blocks = whole.reshape(outs, high, ins * depth * wide)
    return Grid(wrapped(blocks, per_row), tuple(notes), (high,), across, outs, dead)


def _tile_bins(tile: tuple[int, int], tiles: tuple[int, int], levels: list[int], size: int) -> tuple[int, int] | None:
    """How many rows and columns of a tile share a cell so that all tiles fit; None if too few cells would be left."""
    down, across = gaps(len(set(levels)), 1)
    between = side(tiles[0], (1,), 0, down), side(tiles[1], tuple(set(levels)), 0, across)
    high, wide = ((size - taken) // count for taken, count in zip(between, tiles, strict=True))
    if high < min(_TILE, tile[0]) or wide < min(_TILE, tile[1]):
        return None
    return bin_sizes(*tile, high, wide, _TILE)


def _tiles(
    values: _BandReader, places: list[int], tile: tuple[int, int, int], bins: tuple[int, int]
) -> tuple[Any, tuple[str, ...]]:
    """The slices of each filter and input as binned matrices, and a note on filters that are all zero."""
    outs, ins = (values.shape[place] for place in places[:2])
    depth, high, wide = tile
    binned = Bins(high, wide, *bins, leading=(outs, ins, depth))
    live = np.zeros(outs, bool)
    for box, part in values.bands():
        inside = part.transpose(places)
        live[box[places[0]]] |= (inside != 0).any(tuple(range(1, inside.ndim)))
        ranges = [box[place] for place in places]
        ranges[2:2] = [slice(0, 1)] * (5 - len(ranges))
        inside = inside.reshape([extent.stop - extent.start for extent in ranges])
        binned.add(ranges[3].start, ranges[4].start, inside, tuple(ranges[:3]))
    return binned.cells(), _dead("filter", live)


def _filters_across(outs: int, ins: int, depth: int, high: int, wide: int) -> int:
    """The number of filters per row that makes the whole about square, with full rows if possible."""
    square = min(float(outs), math.sqrt(outs * (high + 1) / (ins * depth * wide + 1)))
    even = [count for count in range(outs, 0, -1) if not outs % count and 2 / 3 <= count / square <= 3 / 2]
    return min(even, key=lambda count: round(abs(math.log(count / square)), 1)) if even else max(1, round(square))


def _filter_norms(values: _BandReader, places: list[int], size: int, notes: list[str]) -> Grid:
    """The norms of filters, one cell each, if there are too many to draw."""
    outs, ins = (values.shape[place] for place in places[:2])
    norms = np.zeros((outs, ins))
    finite = np.ones((outs, ins), bool)
    space = tuple(range(2, len(places)))
    for box, part in values.bands():
        place = box[places[0]], box[places[1]]
        inside = part.transpose(places)
        norms[place] = joint_norm(norms[place], norm_of(inside, space))
        finite[place] &= np.isfinite(inside).all(space)
    bins = Bins(outs, ins, *bin_sizes(outs, ins, size, size, _KEEP))
    bins.add(0, 0, norms)
    notes = [*notes, "too many to draw: each cell shows the norm of one, filters down, inputs across"]
    overflown = int((np.isinf(norms) & finite).sum())
    return Grid(bins.cells(), (*notes, *bins.notes()), dead=_dead("filter", norms.any(1)), infinite=overflown)


def _dead(noun: str, live: Any) -> tuple[str, ...]:
    """A note on the ones that are all zero, if any, since they may share a cell with others and not be visible."""
    dead = np.flatnonzero(~live)
    if not dead.size:
        return ()
    first_few = ", ".join(map(str, dead[:3])) + (", …" if dead.size > 3 else "")
    return (f"{plural(dead.size, noun, f'{noun}s')} all zero ({first_few})",)
