"""Makes the pictures in the docs: runs the examples of a page, and draws in a browser what a notebook or a terminal
would show.

    python tools/docs_pictures.py [CHROMIUM] [NAME ...]

Needs Chromium (Debian: apt-get install chromium). Without names, all pictures are made.
"""

import doctest
import html
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from leafwise.render import text_of
from leafwise.render.terminal import Terminal

DOCS = Path(__file__).parent.parent / "docs"


class Picture(NamedTuple):
    """The page, the variable that is shown, and the size in pixels; or, for a terminal, its width in columns."""

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
    "changes-page-400": Picture("results", "changes", (400, 480), scale=1),
    "changes-page-1000": Picture("results", "changes", (1000, 300), scale=1),
    "plan-page-400": Picture("results", "plan", (400, 340), scale=1),
    "plan-page-1000": Picture("results", "plan", (1000, 190), scale=1),
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
    for block in page.read_text("utf-8").split("```python\n")[1:]:
        for example in doctest.DocTestParser().get_examples(block.split("```")[0]):
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
    print(target)


if __name__ == "__main__":
    chromium, *names = sys.argv[1:] or ["chromium"]
    for name in names or PICTURES:
        draw(name, chromium)
