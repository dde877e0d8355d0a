"""A grid of values in characters: scaled down to fit a terminal, then drawn as colored half blocks or as signs."""

from typing import Any, NamedTuple

import numpy as np

from leafwise.inspect.image.bins import bin_sizes, binned
from leafwise.inspect.image.grids import Grid
from leafwise.inspect.image.picture import side
from leafwise.render.pictures.pixels import colors, enlarged
from leafwise.render.pictures.scale import EMPTY, GAP, palette, shares

NEAR, FAR = 0.2, 0.6  # shares of the scale above which a value is no longer about zero, and above which it is large
_LINES = 40  # maximum height of the picture
_KEEP = 16  # minimum number of cells along the shorter side of a matrix
_MOST_ZOOM = 2  # a small leaf does not have to fill the screen
_BLOCK = "▄"  # the lower half in the foreground color, the upper half in the background color


class FittedGrid(NamedTuple):
    """A grid that fits a terminal, and a note on what was left out."""

    grid: Grid
    zoom: tuple[int, int]
    left_out: str = ""

    @property
    def gaps(self) -> tuple[int, int]:
        return (1, 1) if self.grid.across else (0, 0)


def fitted(grid: Grid, columns: int, colored: bool) -> FittedGrid:
    """The grid made to fit: as many whole filters as there is room for; everything else is binned."""
    shape = 1 if colored else 2  # a character is about twice as high as wide; in color, each half is a pixel
    rows = 2 * _LINES // shape
    left_out = ""
    if grid.across:
        high, wide = grid.unit
        wide += sum(wide // every for every in grid.across[:-1])
        down, across = max(1, (rows + 1) // (high + 1)), max(1, (columns + 1) // (wide + len(grid.across)))
        shown = grid.first(down, across)
        left_out = _left_out(grid, shown)
        high, wide = shown.cells.shape
        if side(high, shown.down, 1, 1) <= rows and side(wide, shown.across, 1, 1) <= columns:
            return FittedGrid(shown, _zoom(shown, columns, rows, shape), left_out)
        grid = shown._replace(down=(), across=(), units=None)  # a single filter is too large
    high, wide = grid.cells.shape
    bins = bin_sizes(high, wide, rows, columns, _KEEP)
    if bins != (1, 1):
        smaller = f"scaled down, {bins[0]:,}×{bins[1]:,} cells in one"
        left_out = f"{left_out}, {smaller}" if left_out else smaller
        grid = grid._replace(cells=binned(grid.cells, *bins), units=None)
    return FittedGrid(grid, _zoom(grid, columns, rows, shape), left_out)


def _zoom(grid: Grid, columns: int, rows: int, shape: int) -> tuple[int, int]:
    """Height and width of a cell in characters: `shape` times as wide as high, if there is room."""
    high, wide = grid.cells.shape
    for zoom in range(_MOST_ZOOM, 0, -1):
        if side(wide, grid.across, zoom * shape, 1) <= columns and side(high, grid.down, zoom, 1) <= rows:
            return zoom, zoom * shape
    return 1, 1


def _left_out(grid: Grid, shown: Grid) -> str:
    if grid.units is not None and shown.units is not None:
        return f"the first {shown.units:,} of {grid.units:,} filters" if shown.units < grid.units else ""
    down, across = grid.unit
    rows, columns = shown.cells.shape
    all_rows, all_columns = grid.cells.shape
    if (rows, columns) == (all_rows, all_columns):
        return ""
    return (
        f"the first {rows // down:,} of {all_rows // down:,} filters, "
        f"{columns // across:,} of {all_columns // across:,} inputs"
    )


def half_blocks(fitted: FittedGrid, limit: float) -> list[str]:
    """Two rows of pixels per line, in color; empty pixels keep the background of the terminal."""
    pixels = enlarged(colors(fitted.grid, limit), fitted.grid, fitted.zoom, fitted.gaps, GAP)
    pixels = np.where(pixels == GAP, EMPTY, pixels)
    if len(pixels) % 2:
        pixels = np.vstack([pixels, np.full((1, pixels.shape[1]), EMPTY)])
    lines = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        parts, before = [], ""
        for pair in zip(upper, lower, strict=True):
            codes, char = _half_block(*pair)
            parts.append(char if codes == before else f"\x1b[0{codes}m{char}")
            before = codes
        lines.append("".join(parts) + "\x1b[0m")
    return lines


def _half_block(upper: int, lower: int) -> tuple[str, str]:
    """The color codes and the character."""
    if upper == lower == EMPTY:
        return "", " "
    if lower == EMPTY:
        return _code(38, upper), "▀"
    if upper == EMPTY:
        return _code(38, lower), _BLOCK
    return _code(38, lower) + _code(48, upper), _BLOCK


def _code(layer: int, number: int) -> str:
    """The terminal code for a foreground (38) or background (48) color."""
    red, green, blue = palette()[number]
    return f";{layer};2;{red};{green};{blue}"


def signs(fitted: FittedGrid, limit: float, ascii_only: bool) -> list[str]:
    """One sign per cell, which shows its sign and magnitude."""
    grid = fitted.grid
    by_size = np.array(["=", "-", "." if ascii_only else "·", "+", "#"])
    places = shares(grid.cells, limit)
    cells: Any = by_size[2 - (places <= -FAR) - (places <= -NEAR) + (places >= NEAR) + (places >= FAR)]
    cells[~np.isfinite(grid.cells)] = "?"
    cells[grid.empty()] = " "
    rows = enlarged(cells, grid, fitted.zoom, fitted.gaps, " ")
    return ["".join(row).rstrip() for row in rows.tolist()]
