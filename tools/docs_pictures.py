"""Makes the pictures in the docs: runs the examples of a page, and renders in a browser what a notebook would show.

    python tools/docs_pictures.py [CHROMIUM]

Needs Chromium (Debian: apt-get install chromium).
"""

import doctest
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"
# For each picture: the page, the variable that is shown, and the size.
PICTURES = {
    "stats": ("stats", "s", (900, 236)),
    "check": ("check", "found", (900, 96)),
    "diff": ("diff", "d", (900, 212)),
    "image-filters": ("image", "filters", (480, 352)),
    "image-matrix": ("image", "matrix", (560, 476)),
    "image-norms": ("image", "norms", (560, 596)),
}


def shown_by(page: Path, name: str) -> Any:
    """The value of a variable after the examples of a page have run."""
    scope: dict[str, Any] = {}
    for block in page.read_text("utf-8").split("```python\n")[1:]:
        for example in doctest.DocTestParser().get_examples(block.split("```")[0]):
            exec(example.source, scope)
        if name in scope:
            return scope[name]
    raise KeyError(f"no example in {page} defines {name}")


def draw(picture: str, chromium: str) -> None:
    page, name, (width, height) = PICTURES[picture]
    body = shown_by(DOCS / f"{page}.md", name)._repr_html_()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "page.html")
        source.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin:12px">{body}', "utf-8")
        target = DOCS / "pictures" / f"{picture}.png"
        target.parent.mkdir(exist_ok=True)
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-background-networking",
            "--hide-scrollbars",
        ]
        size = [f"--window-size={width},{height}", "--force-device-scale-factor=2"]
        subprocess.run(
            [chromium, *options, *size, f"--screenshot={target}", source.as_uri()], check=True, capture_output=True
        )
    print(target)


if __name__ == "__main__":
    for picture in PICTURES:
        draw(picture, sys.argv[1] if len(sys.argv) > 1 else "chromium")
