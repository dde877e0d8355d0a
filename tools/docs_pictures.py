"""Makes the pictures of the docs: runs the first example of a page, and has a browser draw what a notebook would show.

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
PICTURES = {"stats": ("s", (900, 236))}  # of each page, the name of what is shown, and how large it is


def shown_by(page: Path, name: str) -> Any:
    """What the first example of a page gives this name."""
    first = page.read_text().split("```python\n")[1].split("```")[0]
    scope: dict[str, Any] = {}
    for example in doctest.DocTestParser().get_examples(first):
        exec(example.source, scope)
    return scope[name]


def draw(page: str, chromium: str) -> None:
    name, (width, height) = PICTURES[page]
    body = shown_by(DOCS / f"{page}.md", name)._repr_html_()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "page.html")
        source.write_text(f'<!doctype html><meta charset="utf-8"><body style="margin:12px">{body}')
        target = DOCS / "pictures" / f"{page}.png"
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
    for page in PICTURES:
        draw(page, sys.argv[1] if len(sys.argv) > 1 else "chromium")
