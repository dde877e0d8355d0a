"""Makes the pictures in the docs: runs the examples of a page, and draws in a browser what a notebook or a terminal
would show.

    python tools/docs_pictures.py [CHROMIUM] [NAME ...]

Needs Chromium (Debian: apt-get install chromium). Without names, all pictures are made.
"""

import contextlib
import doctest
import html
import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image, ImageChops

from leafwise.render import text_of
from leafwise.render.terminal import Terminal

DOCS = Path(__file__).resolve().parent.parent / "docs"


class Picture(NamedTuple):
    """The page, the variable that is shown, and the size in pixels, at least as high as needed; or, for a terminal, its
    width in columns."""

    page: str
    name: str
    size: tuple[int, int] = (0, 0)
    columns: int | None = None
    scale: int = 2


PICTURES = {
    "stats": Picture("stats", "s", (900, 236)),
    "check": Picture("check", "found", (900, 96)),
    "diff": Picture("diff", "d", (900, 212)),
    "image-filters": Picture("image", "filters", (480, 352)),
    "image-matrix": Picture("image", "matrix", (560, 476)),
    "image-norms": Picture("image", "norms", (560, 596)),
    **{
        f"{name}-{columns}": Picture("results", name, columns=columns, scale=1)
        for name in ("run", "plan", "stats", "changes")
        for columns in (60, 80, 120, 200)
    },
    "changes-page-400": Picture("results", "changes", (400, 600), scale=1),
    "changes-page-1000": Picture("results", "changes", (1000, 300), scale=1),
    "plan-page-400": Picture("results", "plan", (400, 600), scale=1),
    "plan-page-1000": Picture("results", "plan", (1000, 190), scale=1),
    **{f"edit-{columns}": Picture("editing", "plan", columns=columns, scale=1) for columns in (60, 80, 120, 200)},
    "edit-page-400": Picture("editing", "plan", (400, 600), scale=1),
    "edit-page-1000": Picture("editing", "plan", (1000, 300), scale=1),
    **{f"totals-{columns}": Picture("tree", "totals", columns=columns, scale=1) for columns in (60, 80)},
    "totals-page-400": Picture("tree", "totals", (400, 600), scale=1),
}
_COLORS = {
    "1": "font-weight:600",
    "2": "opacity:.6",
    "31": "color:#ff7b72",
    "33": "color:#e3b341",
    "35": "color:#c4a1ff",
}
_COLORS["36"] = "color:#4fd1c5"
_SCREEN = "margin:0;padding:12px;background:#161b22;color:#e6edf3;font:15px/20px 'DejaVu Sans Mono',monospace"


def shown_by(page: Path, name: str) -> Any:
    """The value of a variable after the examples of a page have run."""
    scope: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        for block in page.read_text("utf-8").split("```python\n")[1:]:
            for example in doctest.DocTestParser().get_examples(block.split("```")[0]):
                if example.exc_msg is None:
                    exec(example.source, scope)
            if name in scope:
                return scope[name]
    raise KeyError(f"no example in {page} defines {name}")


def screen(text: str) -> str:
    """Text with the colors of a terminal, as HTML."""
    colored = re.sub(r"\x1b\[(\d\d?)m", lambda match: f'<span style="{_COLORS.get(match[1], "")}">', html.escape(text))
    colored = colored.replace('<span style="">', "</span>")  # the code 0 ends a color
    return f'<pre style="{_SCREEN}">{colored}</pre>'


def page_of(picture: Picture) -> tuple[str, tuple[int, int]]:
    """The page to draw, and its size."""
    result = shown_by(DOCS / f"{picture.page}.md", picture.name)
    if picture.columns is None:
        return f'<body style="margin:12px">{result._repr_html_()}', picture.size
    text = text_of(result, terminal=Terminal(color=True, width=picture.columns, shell=True))
    size = 9 * picture.columns + 28, 20 * len(text.splitlines()) + 24
    return f'<body style="margin:0;background:#161b22">{screen(text)}', size


def draw(name: str, chromium: str) -> None:
    picture = PICTURES[name]
    page, (width, height) = page_of(picture)
    body = f'<!doctype html><meta charset="utf-8">{page}'
    with tempfile.TemporaryDirectory() as folder:
        source, frame = Path(folder, "page.html"), Path(folder, "frame.html")
        source.write_text(body, "utf-8")
        # A window has a least width; a frame has any.
        frame.write_text(
            f'<!doctype html><body style="margin:0"><iframe src="page.html" width="{width}" height="{height}" '
            'style="border:0;display:block"></iframe>',
            "utf-8",
        )
        target = DOCS / "pictures" / f"{name}.png"
        target.parent.mkdir(exist_ok=True)
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--hide-scrollbars",
        ]
        size = [f"--window-size={width},{height}", f"--force-device-scale-factor={picture.scale}"]
        subprocess.run(
            [chromium, *options, *size, f"--screenshot={target}", frame.as_uri()], check=True, capture_output=True
        )
    _shrink(target, picture.scale)
    print(target, target.stat().st_size)


def _shrink(target: Path, scale: int) -> None:
    """Cuts the empty room below a picture, and leaves 256 colors, which differ from the others by at most 2%."""
    drawn = Image.open(target).convert("RGB")
    empty = Image.new("RGB", drawn.size, drawn.getpixel((0, 0)))
    used = ImageChops.difference(drawn, empty).getbbox() or (0, 0, *drawn.size)
    drawn = drawn.crop((0, 0, drawn.width, min(used[3] + 12 * scale, drawn.height)))
    few = drawn.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(target, optimize=True)


if __name__ == "__main__":
    chromium, *names = sys.argv[1:] or ["chromium"]
    for name in names or PICTURES:
        draw(name, chromium)
