"""What `lw.image` found, as a PNG, in characters, for a notebook, and as plain data."""

from base64 import b64encode
from typing import Any, NamedTuple

import numpy as np

from leafwise.core.doc import Doc, Span, Style
from leafwise.inspect.image.bins import bin_sizes, binned, side
from leafwise.inspect.image.grids import Grid
from leafwise.inspect.image.picture import Image
from leafwise.render.html import styled
from leafwise.render.outline import plural
from leafwise.render.png import png
from leafwise.render.scale import EMPTY, GAP, INFINITE, NAN, STEPS, numbers, palette, shares
from leafwise.render.terminal import Terminal
from leafwise.render.text import text, width_of

_WIDTH = 80  # characters, where nobody knows how wide the place is
_LINES = 40  # at most, of the picture
_KEEP = 16  # cells that the shorter side of a matrix keeps
_MOST_ZOOM = 2  # a small leaf need not fill the screen
_NEAR, _FAR = 0.2, 0.6  # shares of the scale from which on a value is no longer about zero, and is large
_BLOCK = "▄"  # the lower half of a character in one colour, the upper one in the colour behind it


# -- PNG ---------------------------------------------------------------------------------------------------


def image_png(image: Image) -> bytes:
    pixels = _pixels(_colors(image._grid, image.limit), image._grid, image._zoom, image._gaps, GAP)
    return png(image.width, image.height, (row.tobytes() for row in pixels), palette())


def _colors(grid: Grid, limit: float) -> Any:
    """The number of the colour of each cell."""
    found = numbers(grid.cells, limit)
    found[grid.empty()] = EMPTY
    return found


def _pixels(cells: Any, grid: Grid, zoom: tuple[int, int], gaps: tuple[int, int], between: Any) -> Any:
    """Cells enlarged, with gaps between them; between cells that are empty, there is nothing either."""
    (rows, below), (columns, behind) = (
        _lines(cells.shape[axis], every, zoom[axis], gaps[axis]) for axis, every in enumerate((grid.down, grid.across))
    )
    found = cells[rows][:, columns]
    found[(rows != below)[:, None] | (columns != behind)] = between
    if grid.units is not None:
        # A gap counts as the cell behind it, which is empty if the one before it is.
        ends = grid.empty()[below][:, behind]
        found[ends] = cells[-1, -1] if ends.any() else between
    return found


def _lines(count: int, gaps: tuple[int, ...], zoom: int, gap: int) -> tuple[Any, Any]:
    """The cell of each line of pixels, or the one before it where it is in a gap; and the one behind it."""
    before: list[int] = []
    behind: list[int] = []
    for number in range(count):
        between = gap * sum(number % every == 0 for every in gaps) if number else 0
        before += [number - 1] * between + [number] * zoom
        behind += [number] * (between + zoom)
    return np.array(before), np.array(behind)


# -- characters --------------------------------------------------------------------------------------------


class _Fitted(NamedTuple):
    """A grid made small enough for a terminal."""

    grid: Grid
    zoom: tuple[int, int]
    said: str = ""


def image_text(image: Image, terminal: Terminal, *, width: int | None = None) -> str:
    """In half blocks where there is colour, otherwise as a map of characters; then the caption."""
    colored = terminal.color and not terminal.ascii
    columns = max(1, width or terminal.width or _WIDTH)
    shape = 1 if colored else 2  # a character is about twice as high as wide
    fitted = _fitted(image._grid, columns, 2 * _LINES // shape, shape)
    if colored:
        drawn = _half_blocks(_pixels(_colors(fitted.grid, image.limit), fitted.grid, fitted.zoom, _gaps(fitted), GAP))
    else:
        drawn = _characters(fitted, image.limit, terminal.ascii)
    plain = Terminal(ascii=terminal.ascii)
    footer: list[tuple[Span, ...]] = []
    for line in _caption(image, fitted.said, legend=not colored):
        footer += _wrapped(_spelled(line, plain), line.gap, columns)
    return "\n".join([*drawn, "", text(Doc([], footer), terminal._replace(width=columns))])


def _gaps(fitted: _Fitted) -> tuple[int, int]:
    return (1, 1) if fitted.grid.across else (0, 0)


def _fitted(grid: Grid, columns: int, rows: int, shape: int) -> _Fitted:
    """Filters are drawn whole, as many as there is room for; all else is binned. A cell is `shape` times as wide as
    high, in characters, where there is room."""
    said = ""
    if grid.across:
        high, wide = grid.unit
        wide += sum(wide // every for every in grid.across[:-1])
        down, across = max(1, (rows + 1) // (high + 1)), max(1, (columns + 1) // (wide + len(grid.across)))
        shown = grid.first(down, across)
        said = _left_out(grid, shown)
        high, wide = shown.cells.shape
        if side(high, shown.down, 1, 1) <= rows and side(wide, shown.across, 1, 1) <= columns:
            return _Fitted(shown, _zoom(shown, columns, rows, shape), said)
        grid = shown._replace(down=(), across=(), units=None)  # not even one is small enough
    high, wide = grid.cells.shape
    bins = bin_sizes(high, wide, rows, columns, _KEEP)
    if bins != (1, 1):
        smaller = f"drawn smaller, {bins[0]:,}×{bins[1]:,} cells in one"
        said = f"{said}, {smaller}" if said else smaller
        grid = grid._replace(cells=binned(grid.cells, *bins), units=None)
    return _Fitted(grid, _zoom(grid, columns, rows, shape), said)


def _zoom(grid: Grid, columns: int, rows: int, shape: int) -> tuple[int, int]:
    high, wide = grid.cells.shape
    for zoom in range(_MOST_ZOOM, 0, -1):
        if side(wide, grid.across, zoom * shape, 1) <= columns and side(high, grid.down, zoom, 1) <= rows:
            return zoom, zoom * shape
    return 1, 1


def _left_out(grid: Grid, shown: Grid) -> str:
    if grid.units is not None and shown.units is not None:
        return f"the first {shown.units:,} of {grid.units:,} filters" if shown.units < grid.units else ""
    down, across = grid.unit
    (rows, columns), (all_rows, all_columns) = (one.cells.shape for one in (shown, grid))
    if (rows, columns) == (all_rows, all_columns):
        return ""
    return (
        f"the first {rows // down:,} of {all_rows // down:,} filters, "
        f"{columns // across:,} of {all_columns // across:,} inputs"
    )


def _half_blocks(pixels: Any) -> list[str]:
    """Two rows of pixels a line; where there is nothing, the terminal keeps its colour."""
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
    """The codes that set the colours, and the character."""
    if upper == lower == EMPTY:
        return "", " "
    if lower == EMPTY:
        return _code(38, upper), "▀"
    if upper == EMPTY:
        return _code(38, lower), _BLOCK
    return _code(38, lower) + _code(48, upper), _BLOCK


def _code(what: int, number: int) -> str:
    red, green, blue = palette()[number]
    return f";{what};2;{red};{green};{blue}"


def _characters(fitted: _Fitted, limit: float, ascii_only: bool) -> list[str]:
    grid = fitted.grid
    signs = np.array(["=", "-", "." if ascii_only else "·", "+", "#"])
    places = shares(grid.cells, limit)
    found = signs[2 - (places <= -_FAR) - (places <= -_NEAR) + (places >= _NEAR) + (places >= _FAR)]
    found[~np.isfinite(grid.cells)] = "?"
    found[grid.empty()] = " "
    rows = _pixels(found, grid, fitted.zoom, _gaps(fitted), " ")
    return ["".join(row).rstrip() for row in rows.tolist()]


class _Words(NamedTuple):
    """A line of the caption, in pieces between which it may go on in another."""

    pieces: list[Span]
    gap: str = " "


def _caption(image: Image, left_out: str, legend: bool) -> list[_Words]:
    title = _split(image._title, "name")
    lines = [_Words([*title, *(word for one in image._grid.said[:1] for word in _split(f"· {one}"))])]
    lines += [_Words(_split(one, "dim")) for one in image._grid.said[1:]]
    lines += [_Words(_split(one, "warn")) for one in image._grid.dead]
    if left_out:
        lines.append(_Words(_split(f"{left_out}; a PNG has all", "dim")))
    lines.append(_Words(_split(image._scale)))
    if legend:
        lines.append(_Words([Span(one, "dim") for one in _legend(image)], "   "))
    elif image._signed:
        lines.append(_Words(_split("blue is negative, red positive", "dim")))
    if image._wrong:
        lines.append(_Words(_split(", ".join(image._wrong), "warn")))
    return lines


def _split(words: str, style: Style = "") -> list[Span]:
    return [Span(word, style) for word in words.split(" ")]


def _legend(image: Image) -> list[str]:
    wrong = ["? not finite"] if image._wrong else []
    if not image.limit:  # nothing but zeros, or nothing that is finite
        return ["· 0", *wrong] if np.isfinite(image.cells[~image._grid.empty()]).any() else wrong
    near, far = f"{image.limit * _NEAR:.3g}", f"{image.limit * _FAR:.3g}"
    below = [f"= ≤ -{far}", f"- ≤ -{near}"] if image._signed else []
    return [*below, "· about 0", f"+ ≥ {near}", f"# ≥ {far}", *wrong]


def _spelled(line: _Words, plain: Terminal) -> list[Span]:
    """The pieces as they will be written, since ASCII is wider."""
    return [piece._replace(text=text(Doc([], [(piece,)]), plain)) for piece in line.pieces]


def _wrapped(pieces: list[Span], gap: str, width: int) -> list[tuple[Span, ...]]:
    """Pieces in lines no wider than this; a piece that is wider by itself goes on wherever it must."""
    lines: list[list[Span]] = [[]]
    for piece in (part for whole in pieces for part in _broken(whole, width)):
        line = lines[-1]
        if line and width_of(line) + len(gap) + width_of([piece]) > width:
            lines.append([piece])
        elif line and line[-1].style == piece.style:
            line[-1] = Span(line[-1].text + gap + piece.text, piece.style)
        else:
            line += [Span(gap), piece] if line else [piece]
    return [tuple(line) for line in lines if line]


def _broken(piece: Span, width: int) -> list[Span]:
    """A piece in parts, each as wide as a line; of those, only the last leaves room for another."""
    parts = [""]
    for char in piece.text:
        if parts[-1] and width_of([Span(parts[-1] + char)]) > width:
            parts.append("")
        parts[-1] += char
    return [Span(part, piece.style) for part in parts]


# -- notebooks ---------------------------------------------------------------------------------------------

_CSS = """
.leafwise-image{margin:0;font:13px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;text-align:left}
.leafwise-image img{display:block;max-width:100%;height:auto;image-rendering:pixelated;border-radius:2px}
.leafwise-image figcaption{margin-top:.5em;max-width:64em}
.leafwise-image .lw-name{font-weight:600}
.leafwise-image .lw-dim{opacity:.65}
.leafwise-image .lw-warn{color:#b25e00}
.leafwise-image .lw-bar{display:flex;align-items:center;gap:1ch;margin-top:.2em}
.leafwise-image .lw-bar i{display:inline-block;width:16em;height:.8em;border-radius:2px}
.leafwise-image .lw-bar b{display:inline-block;width:.8em;height:.8em;border-radius:2px}
@media (prefers-color-scheme:dark){.leafwise-image .lw-warn{color:#f0a95b}}
[data-jp-theme-light="true"] .leafwise-image .lw-warn{color:#b25e00}
[data-jp-theme-light="false"] .leafwise-image .lw-warn{color:#f0a95b}
"""


def image_html(image: Image) -> str:
    """A figure with the picture in it, so that a notebook needs no file beside it."""
    data = b64encode(image.png()).decode("ascii")
    picture = (
        f'<img src="data:image/png;base64,{data}" width="{image.width}" height="{image.height}" '
        f'alt="{styled(image.caption, "")}">'
    )
    said = [styled(image._title, "name")]
    said += [styled(one, "dim") for one in image._grid.said] + [styled(one, "warn") for one in image._grid.dead]
    caption = " · ".join(said)
    return (
        f'<figure class="leafwise-image"><style>{_CSS}</style>{picture}'
        f"<figcaption>{caption}{_bar(image)}</figcaption></figure>"
    )


def _bar(image: Image) -> str:
    first = 0 if image._signed else STEPS
    stops = [palette()[first + (2 * STEPS - first) * step // 8] for step in range(9)]
    colors = ",".join(_css(color) for color in stops)
    low, high = (f"{-image.limit if image._signed else 0:.3g}", f"{image.limit:.3g}")
    beyond = styled(f"{image._beyond:,} beyond", "warn") if image._beyond else ""
    wrong = "".join(
        f'<b style="background:{_css(palette()[number])}"></b>{styled(plural(count, what, what), "warn")}'
        for number, count, what in (
            (NAN, image._grid.nan, "NaN"),
            (INFINITE, image._grid.infinite, "infinite"),
        )
        if count
    )
    bar = f'<i style="background:linear-gradient(to right,{colors})"></i>'
    return f'<div class="lw-bar"><span>{low}</span>{bar}<span>{high}</span>{beyond}{wrong}</div>'


def _css(color: tuple[int, int, int]) -> str:
    return "#" + bytes(color).hex()


# -- plain data --------------------------------------------------------------------------------------------


def image_json(image: Image) -> dict[str, Any]:
    """What is drawn, and the numbers in its cells; null where there is none, or none that is finite."""
    cells = image.cells.astype(object)
    cells[~np.isfinite(image.cells) | image._grid.empty()] = None
    rows, columns = cells.shape
    return {
        "path": image.path,
        "shape": list(image.shape),
        "dtype": image.dtype,
        "of": image.of,
        "style": image.style,
        "caption": image.caption,
        "width": image.width,
        "height": image.height,
        "limit": image.limit,
        "nan": image._grid.nan,
        "infinite": image._grid.infinite,
        "rows": rows,
        "columns": columns,
        "cells": cells.tolist(),
    }
