"""The result of `lw.image`: a leaf as a picture."""

import math
import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from leafwise.core.leaf import shape_text
from leafwise.core.path import escape
from leafwise.core.results.result import Result, rendered, write_small_file
from leafwise.errors import FileError, QueryError

if TYPE_CHECKING:
    from leafwise.inspect.image.grids import Grid

_GOAL = 512  # small pictures are enlarged to about this many pixels, by a whole factor
_MOST_ZOOM = 32
_STRIP = 24  # the height of a strip in pixels
_SHORT_SIDE = 48  # the short side has at least this many pixels, or a fourth of the long side


class Image(Result, kind="image"):
    """A picture of a leaf; see `lw.image`. Prints as text, in color if the terminal supports it.

    `save(path)` writes it as a PNG, and a notebook displays it. `cells` has the drawn numbers, as a NumPy matrix,
    `limit` is the value at the ends of the color scale, and `caption` describes the picture.

    >>> import torch, leafwise as lw
    >>> picture = lw.image({"w": torch.eye(4)}, "w")
    >>> picture.cells.shape, picture.limit, picture.style
    ((4, 4), 1.0, 'matrix')
    """

    def __init__(self, facts: dict[str, Any], grid: "Grid", limit: float | None) -> None:
        self.path: str = facts["path"]
        self.shape: tuple[int, ...] = facts["shape"]
        self.dtype: str = facts["dtype"]
        self.of: str = facts["of"]
        self.style: str = facts["style"]
        self._size: int = facts["size"]
        self.grid = grid  # the cells, and the gaps between them
        largest = float(abs(self.cells).max(initial=0, where=self.finite))
        self.limit = largest if limit is None else limit
        self.beyond = int((self.finite & (abs(self.cells) > self.limit)).sum())  # cells outside the scale

    @property
    def cells(self) -> Any:
        """The drawn numbers, as a matrix."""
        return self.grid.cells

    @property
    def width(self) -> int:
        """The width of the picture in pixels, without title and scale."""
        return self._side(1, self.zoom[1], self.gaps)

    @property
    def height(self) -> int:
        """The height of the picture in pixels, without title and scale."""
        return self._side(0, self.zoom[0], self.gaps)

    @property
    def zoom(self) -> tuple[int, int]:
        """Height and width of a cell in pixels: equal, unless the picture would be too thin to see."""
        zoom = self._even_zoom
        if self.style == "strip":
            return max(zoom, _STRIP), zoom
        high, wide = (self._side(axis, zoom, self.gaps) for axis in (0, 1))
        least = min(_SHORT_SIDE, max(high, wide) // 4)
        return self._stretched(0, zoom, least), self._stretched(1, zoom, least)

    @property
    def _even_zoom(self) -> int:
        goal, levels = min(_GOAL, self._size), len(self.grid.across)
        for zoom in range(_MOST_ZOOM, 1, -1):
            if max(self._side(axis, zoom, gaps(levels, zoom)) for axis in (0, 1)) <= goal:
                return zoom
        return 1

    def _stretched(self, axis: int, zoom: int, least: int) -> int:
        """The smallest zoom, from this one on, with which a side has at least `least` pixels."""
        while self._side(axis, zoom, self.gaps) < least:
            zoom += 1
        return zoom

    def _side(self, axis: int, zoom: int, gaps: tuple[int, int]) -> int:
        every = (self.grid.down, self.grid.across)[axis]
        return side(self.grid.cells.shape[axis], every, zoom, gaps[axis])

    @property
    def gaps(self) -> tuple[int, int]:
        """The width of the narrowest gap in pixels, down and across."""
        return gaps(len(self.grid.across), self._even_zoom)

    @property
    def caption(self) -> str:
        """The leaf, how it is drawn, and the scale."""
        return escape(
            " · ".join([self.title, *self.grid.notes, *self.grid.dead, self.scale_text, *self.nonfinite_texts])
        )

    @property
    def title(self) -> str:
        """The beginning of the caption: the path of the leaf, its shape and its dtype."""
        prefix = "" if self.of == "value" else "gradient of "
        return f"{prefix}{self.path} {shape_text(self.shape)} {self.dtype}".strip()

    @property
    def finite(self) -> Any:
        """For each cell, whether it is finite."""
        return abs(self.cells) < math.inf

    @property
    def signed(self) -> bool:
        """Whether any cell is negative, so that the scale needs both signs."""
        return bool((self.finite & (self.cells < 0)).any())

    @property
    def scale_text(self) -> str:
        """The values at the ends of the scale, and how many cells are beyond them."""
        low = -self.limit if self.signed else 0
        beyond = f", {self.beyond:,} beyond" if self.beyond else ""
        return f"{low:.3g} … {self.limit:.3g}{beyond}"

    @property
    def nonfinite_texts(self) -> list[str]:
        """The numbers of NaN and infinite values; empty if there are none."""
        counts = (("NaN", self.grid.nan), ("infinite", self.grid.infinite))
        return [f"{count:,} {name}" for name, count in counts if count]

    def png(self, *, bare: bool = False) -> bytes:
        """The picture as a PNG, with a title and the scale of the colors; `bare=True` leaves them out."""
        data: bytes = import_module("leafwise.render").png_of(self, bare=bare)
        return data

    def save(self, path: "str | os.PathLike[str]", *, bare: bool = False) -> str:
        """Writes the picture as a PNG and returns the path. If writing fails, an existing file stays as it was.

        The PNG has a title (the path of the leaf, its shape and its dtype) and the scale of the colors; `bare=True`
        leaves them out.

        >>> import os, tempfile, torch, leafwise as lw
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = lw.image(torch.nn.Conv2d(3, 8, 5), "weight").save(os.path.join(folder, "filters.png"))
        ...     os.path.basename(written)
        'filters.png'
        """
        text = must_be_png(path)
        data = self.png(bare=bare)
        write_small_file(text, data)
        return text

    def text(self, *, width: int | None = None, full: bool = False) -> str:
        """The picture in characters: `=` and `-` are negative, `+` and `#` positive.

        `width` is the number of columns, by default 80. With `full=True`, each value gets its own character, however
        large the text becomes.

        >>> import torch, leafwise as lw
        >>> print(lw.image({"w": torch.eye(4) - torch.ones(4, 4).triu(1)}).text(width=20))
        ####============
        ####============
        ····####========
        ····####========
        ········####====
        ········####====
        ············####
        ············####
        <BLANKLINE>
        w 4×4 float32 · 4
        rows, 4 columns
        -1 … 1
        = ≤ -0.6   - ≤ -0.2
        · about 0   + ≥ 0.2
        # ≥ 0.6
        """
        return rendered(self, width, full=full)


def side(count: int, gaps: tuple[int, ...], zoom: int, gap: int) -> int:
    """The length of a side in pixels."""
    return count * zoom + gap * sum((count - 1) // every for every in gaps)


def gaps(levels: int, zoom: int) -> tuple[int, int]:
    """The width of the narrowest gap in pixels, down and across. Rows have a single kind of gap, as wide as the widest
    between columns. With three kinds between columns (3-D filters) all are narrower, so that the picture is not mostly
    gaps."""
    if levels < 3:
        gap = max(1, round(zoom / 3))
        return gap * levels, gap
    return max(1, round(zoom * 2 / 5)), max(1, round(zoom / 5))


def must_be_png(path: "str | os.PathLike[str]") -> str:
    """The path as a string, if a PNG can be written to it."""
    try:
        text = os.fsdecode(path)
    except TypeError as error:
        raise QueryError(f"save() takes a path such as 'filters.png', not {path!r}") from error
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        raise FileError(f"cannot write {text!r}: it is not a valid file name") from error
    if "\0" in text:
        raise FileError(f"cannot write {text!r}: a file name cannot contain a null character")
    if not text.lower().endswith(".png"):
        raise QueryError(f"cannot write {text!r}: pictures are saved as PNG; use a name that ends in .png")
    return text
