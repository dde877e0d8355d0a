"""Tables in the docs that tools write, between two marks."""

from pathlib import Path


def put_table(page: Path, start: str, end: str, text: str) -> None:
    """Replaces the text between the marks of a page."""
    before, _, rest = page.read_text("utf-8").partition(start)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{start}\n\n{text}\n\n{end}{after}", "utf-8")
