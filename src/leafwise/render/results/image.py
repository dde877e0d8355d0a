"""The result of `lw.image` as a PNG, in characters, for a notebook, and as plain data."""

from base64 import b64encode
from typing import Any

from leafwise.inspect.image.picture import Image
from leafwise.render.html import styled
from leafwise.render.pictures.caption import caption
from leafwise.render.pictures.characters import FittedGrid, fitted, half_blocks, signs
from leafwise.render.pictures.frame import framed
from leafwise.render.pictures.pixels import colors, enlarged, nonfinite, png
from leafwise.render.pictures.scale import GAP, STEPS, css
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

_WIDTH = 80  # characters, if the width of the terminal is not known
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


def to_png(image: Image, bare: bool) -> bytes:
    """The pixels; unless they are `bare`, with a title above and the scale below."""
    pixels = enlarged(colors(image.grid, image.limit), image.grid, image.zoom, image.gaps, GAP)
    pixels = pixels if bare else framed(image, pixels)
    return png(pixels)


def to_text(image: Image, terminal: Terminal, *, full: bool = False) -> str:
    """The picture in half blocks if there is color, otherwise in characters; then the caption."""
    colored = terminal.color and not terminal.ascii
    columns = max(1, terminal.width or _WIDTH)
    small = FittedGrid(image.grid, (1, 1)) if full else fitted(image.grid, columns, colored)
    drawn = half_blocks(small, image.limit) if colored else signs(small, image.limit, terminal.ascii)
    below = caption(image, small.left_out, colored=colored, width=columns, ascii_only=terminal.ascii)
    return "\n".join([*drawn, "", text(below, terminal._replace(width=columns))])


def to_html(image: Image) -> str:
    """A figure that contains the picture itself, so that the notebook needs no other file."""
    data = b64encode(image.png(bare=True)).decode("ascii")
    picture = (
        f'<img src="data:image/png;base64,{data}" width="{image.width}" height="{image.height}" '
        f'alt="{styled(image.caption, "")}">'
    )
    notes = [styled(image.title, "name")]
    notes += [styled(note, "dim") for note in image.grid.notes] + [styled(note, "warn") for note in image.grid.dead]
    words = " · ".join(notes)
    return (
        f'<figure class="leafwise-image"><style>{_CSS}</style>{picture}'
        f"<figcaption>{words}{_color_bar(image)}</figcaption></figure>"
    )


def _color_bar(image: Image) -> str:
    """The color scale, and the colors of NaN and infinity."""
    first = 0 if image.signed else STEPS
    stops = ",".join(css(first + (2 * STEPS - first) * step // 8) for step in range(9))
    low, high = (f"{-image.limit if image.signed else 0:.3g}", f"{image.limit:.3g}")
    beyond = styled(f"{image.beyond:,} beyond", "warn") if image.beyond else ""
    others = "".join(
        f'<b style="background:{css(color)}"></b>{styled(words, "warn")}' for color, words in nonfinite(image.grid)
    )
    bar = f'<i style="background:linear-gradient(to right,{stops})"></i>'
    return f'<div class="lw-bar"><span>{low}</span>{bar}<span>{high}</span>{beyond}{others}</div>'


def to_json(image: Image) -> dict[str, Any]:
    """The facts about the picture and the numbers in its cells; empty and non-finite cells are null."""
    cells = image.cells.astype(object)
    cells[~image.finite | image.grid.empty()] = None
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
        "nan": image.grid.nan,
        "infinite": image.grid.infinite,
        "rows": rows,
        "columns": columns,
        "cells": cells.tolist(),
    }
