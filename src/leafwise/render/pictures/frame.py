"""What surrounds a picture in a PNG: a title above, the scale of the colors below."""

from typing import TYPE_CHECKING, Any

import numpy as np

from leafwise.core.results.outline import Span
from leafwise.render.pictures.font import ADVANCE, HEIGHT, line_of, writable
from leafwise.render.pictures.pixels import nonfinite
from leafwise.render.pictures.scale import EMPTY, NAN, PAPER, STEPS
from leafwise.render.wrapping import wrapped

if TYPE_CHECKING:
    from leafwise.inspect.image.picture import Image

_INK = NAN  # black
_MARGIN = 8
_LEAST_WIDTH = 360  # pixels across, so that there is room for words below a narrow picture
_LARGE_LETTERS_FROM = 1200  # pixels across, from which on letters are larger
_BAR = 12  # height of the scale, in pixels of the font
_LINES = 6  # maximum lines of the title


def framed(image: "Image", pixels: Any) -> Any:
    """Pixels with the title above them, and the scale below."""
    width = max(pixels.shape[1], _LEAST_WIDTH)
    zoom = 3 if width >= _LARGE_LETTERS_FROM else 2
    title = [image.title or "array", *image.grid.notes[:1]]
    beyond = [f"{image.beyond:,} beyond the scale"] if image.beyond else []
    remarks = [*image.grid.notes[1:], *image.grid.dead, *beyond]  # what the title has no room for
    below = [_scale(image, width, zoom), *_lines(remarks, width, zoom)]
    blocks = [*_lines(title, width, zoom), _gap(zoom), pixels, _gap(zoom), *below]
    sheet = np.full((sum(len(block) for block in blocks) + 2 * _MARGIN, width + 2 * _MARGIN), PAPER, np.uint8)
    top = _MARGIN
    for block in blocks:
        sheet[top : top + len(block), _MARGIN : _MARGIN + block.shape[1]] = np.where(block == EMPTY, PAPER, block)
        top += len(block)
    return sheet


def _lines(texts: list[str], width: int, zoom: int) -> list[Any]:
    """Texts as lines of pixels, wrapped."""
    space = width // (ADVANCE * zoom)
    lines = []
    for text in texts:
        parts = ["".join(span.text for span in line) for line in wrapped([Span(writable(text))], space)]
        if len(parts) > _LINES:
            parts = [*parts[: _LINES - 1], f"{parts[_LINES - 1][: space - 1]}…"]
        lines += [_ink(line_of(part, zoom)) for part in parts]
    return lines


def _scale(image: "Image", width: int, zoom: int) -> Any:
    """The colors from the lower end of the scale to the upper, between the two numbers, with 0 in the middle."""
    low, high = (writable(f"{number:.3g}") for number in (-image.limit if image.signed else 0, image.limit))
    left, right = line_of(f"{low} ", zoom), line_of(f" {high}", zoom)
    block = np.full((max(_BAR, HEIGHT) * zoom, width), PAPER, np.uint8)
    start, stop = left.shape[1], width - right.shape[1]
    top = (len(block) - HEIGHT * zoom) // 2
    block[top : top + len(left), :start] = _ink(left)
    block[top : top + len(right), stop:] = _ink(right)
    first = 0 if image.signed else STEPS
    block[:, start:stop] = np.linspace(first, 2 * STEPS, stop - start).round().astype(np.uint8)
    for color, text in nonfinite(image.grid):  # how cells look that are not finite
        block = np.vstack([block, _gap(zoom, width), _swatch(color, line_of(text, zoom), width, zoom)])
    return block


def _swatch(color: int, text: Any, width: int, zoom: int) -> Any:
    block = np.full((HEIGHT * zoom, width), PAPER, np.uint8)
    side = 8 * zoom
    block[:side, :side] = color
    words = _ink(text)[:, : max(width - 2 * side, 0)]
    block[: len(text), 2 * side - side // 2 : 2 * side - side // 2 + words.shape[1]] = words
    return block


def _gap(zoom: int, width: int = 1) -> Any:
    return np.full((4 * zoom, width), PAPER, np.uint8)


def _ink(letters: Any) -> Any:
    return np.where(letters, _INK, PAPER).astype(np.uint8)
