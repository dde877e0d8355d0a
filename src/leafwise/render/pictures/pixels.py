"""A grid of values as pixels: cells in color, enlarged, with gaps between them; and pixels as a PNG."""

import struct
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from leafwise.render.pictures.scale import EMPTY, INFINITE, NAN, numbers, palette

if TYPE_CHECKING:
    from leafwise.inspect.image.grids import Grid


def colors(grid: "Grid", limit: float) -> Any:
    """The color index of each cell."""
    cells = numbers(grid.cells, limit)
    cells[grid.empty()] = EMPTY
    return cells


def nonfinite(grid: "Grid") -> list[tuple[int, str]]:
    """The color indices of NaN and infinity, each with the number of such values, if there are any."""
    counts = (NAN, grid.nan, "NaN"), (INFINITE, grid.infinite, "infinite")
    return [(color, f"{count:,} {name}") for color, count, name in counts if count]


def enlarged(cells: Any, grid: "Grid", zoom: tuple[int, int], gaps: tuple[int, int], between: Any) -> Any:
    """The enlarged cells of a grid, with gaps between them; gaps between empty cells are empty too."""
    (rows, below), (columns, behind) = (
        _lines(cells.shape[axis], every, zoom[axis], gaps[axis]) for axis, every in enumerate((grid.down, grid.across))
    )
    pixels = cells[rows][:, columns]
    pixels[(rows != below)[:, None] | (columns != behind)] = between
    if grid.units is not None:
        # A gap counts as the cell after it, which is empty if the one before it is.
        ends = grid.empty()[below][:, behind]
        pixels[ends] = cells[-1, -1] if ends.any() else between
    return pixels


def _lines(count: int, gaps: tuple[int, ...], zoom: int, gap: int) -> tuple[Any, Any]:
    """For each line of pixels, its cell and its cell again; in a gap, the cell before it and the cell after it."""
    before: list[int] = []
    behind: list[int] = []
    for number in range(count):
        between = gap * sum(number % every == 0 for every in gaps) if number else 0
        before += [number - 1] * between + [number] * zoom
        behind += [number] * (between + zoom)
    return np.array(before), np.array(behind)


def png(pixels: Any) -> bytes:
    """A PNG with 8 bits per pixel, each the index of a color; the last color is transparent."""
    height, width = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    pressed = zlib.compressobj(9)
    data = b"".join(pressed.compress(b"\0" + row.tobytes()) for row in pixels) + pressed.flush()  # filter 0: none
    channels = bytes(channel for color in palette() for channel in color)
    alpha = b"\xff" * (len(palette()) - 1) + b"\0"
    parts = ((b"IHDR", header), (b"PLTE", channels), (b"tRNS", alpha), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in parts)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
