"""What the tests of the page do with it: open a view, wait for something, and read its lines."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import leafwise as lw


def until(condition: Callable[[], Any], what: str = "") -> Any:
    """Waits until a function returns something true. Playwright's `wait_for_function` evaluates text in the page, which
    its Content-Security-Policy forbids."""
    deadline = time.monotonic() + 300  # only for what never happens: on a busy machine, everything takes long
    while True:
        if result := condition():
            return result
        assert time.monotonic() < deadline, what or "it did not happen"
        time.sleep(0.05)


def show(page: Any, url: str, address: str = "") -> None:
    """Opens a view, and waits until its first lines, or its map, are there."""
    page.goto("about:blank")
    page.goto(url + address)
    page.locator("[data-testid=row], [data-testid=map-cell]").first.wait_for()


@contextmanager
def shown(page: Any, *sources: Any, **options: Any) -> Iterator[str]:
    """The address of a viewer. The page is left before the viewer is closed, because it reports a server that ends."""
    with lw.view(*sources, browser=False, port=0, **options) as view:
        yield view.url
        page.goto("about:blank")


def address(page: Any) -> str:
    """The address of the page. `page.url` is that of the last event that Playwright has handled."""
    return str(page.evaluate("location.href"))


def paths(page: Any) -> list[str]:
    """The paths of the lines on the screen, from top to bottom."""
    rows = page.locator("[data-testid=row][data-path]")
    found = rows.evaluate_all("rows => rows.map((row) => [Number(row.dataset.index), row.dataset.path])")
    return [path for _, path in sorted(found)]


def row(page: Any, path: str) -> Any:
    return page.locator(f'[data-testid=row][data-path="{path}"]')


def measured(page: Any) -> None:
    """Waits until everything is measured and checked."""
    until(lambda: "Measured, checked" in page.locator("[data-testid=progress]").inner_text(), "it was not measured")
