"""The page in a real browser, and what must never happen in it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright
from tools.chromium import ARGUMENTS, MISSING, find_chromium

SIZE = {"width": 1400, "height": 1_000}
MILLISECONDS = 300_000  # that anything may take: a busy machine is slow, and only what never happens is an error
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


@contextmanager
def started() -> Iterator[Browser]:
    """Chromium without a window."""
    path = find_chromium()
    assert path is not None, MISSING
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, headless=True, args=ARGUMENTS, timeout=MILLISECONDS)
        try:
            yield browser
        finally:
            browser.close()


class Problems:
    """What went wrong in the pages of a context. A test that provokes something takes it with `expected`."""

    def __init__(self, context: BrowserContext) -> None:
        self.found: list[str] = []
        context.on("page", self._watch)
        context.on("request", self._ask)
        context.on("requestfailed", self._fail)
        context.on("console", lambda message: self._say(message.type, message.text))
        context.on("weberror", lambda error: self._add("error", str(error.error)))

    def _add(self, kind: str, text: str) -> None:
        self.found.append(f"{kind}: {text}")

    def _watch(self, page: Page) -> None:
        page.on("dialog", self._dismiss)
        page.on("crash", lambda _: self._add("crash", "the page"))
        page.on("download", lambda download: self._add("download", download.url))
        page.on("popup", lambda popup: self._add("window", popup.url))

    def _dismiss(self, dialog: Any) -> None:
        self._add("dialog", dialog.message)
        dialog.dismiss()

    def _say(self, kind: str, text: str) -> None:
        if kind in ("error", "warning", "assert"):
            self._add(f"console {kind}", text)

    def _fail(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # which means that the page was left, or did not need it any more
            self._add("failed request", f"{request.url} {request.failure}")

    def _ask(self, request: Any) -> None:
        parts = urlsplit(request.url)
        own = parts.scheme in ("data", "blob", "file", "about") or parts.hostname == "127.0.0.1"
        if not own:
            self._add("request to another machine", request.url)

    def expected(self, *parts: str) -> list[str]:
        """Takes the problems that contain one of the texts."""
        taken = [problem for problem in self.found if any(part in problem for part in parts)]
        self.found = [problem for problem in self.found if problem not in taken]
        return taken


def assert_accessible(page: Page, context: str | None = None) -> None:
    """Whether axe-core finds nothing that WCAG 2 forbids, level A and AA, in what is shown now."""
    results = (
        Axe().run(page, context, {"runOnly": {"type": "tag", "values": _RULES}, "resultTypes": ["violations"]}).response
    )
    found = [
        f"{violation['id']}: {violation['help']}: {node['html'][:200]}: {node.get('failureSummary', '')}"
        for violation in results["violations"]
        for node in violation["nodes"]
    ]
    assert not found, "\n".join(found)
    assert results["url"]


_MARKUP = """() => {
  const wrong = [];
  if (window.__pwned !== undefined) wrong.push("a script ran");
  for (const element of document.querySelectorAll("*")) {
    if (element.id === "pwned") wrong.push(`an element was made: ${element.outerHTML.slice(0, 200)}`);
    for (const name of element.getAttributeNames()) {
      const value = element.getAttribute(name);
      if (name.toLowerCase().startsWith("on")) wrong.push(`a handler: ${name}=${value.slice(0, 100)}`);
      if (/^\\s*(javascript|vbscript|data:text)/i.test(value) && ["href", "src", "action", "xlink:href"].includes(name))
        wrong.push(`an address: ${name}=${value.slice(0, 100)}`);
    }
    if (["IFRAME", "OBJECT", "EMBED", "BASE", "FORM", "MARQUEE"].includes(element.tagName)) wrong.push(element.tagName);
  }
  return wrong;
}"""


def assert_inert(page: Page) -> None:
    """Whether names have become neither scripts nor elements, and contain no characters that hide or reverse text."""
    assert page.evaluate(_MARKUP) == []
    text = page.evaluate("() => document.documentElement.textContent + document.title")
    raw = {char for char in text if not char.isprintable() and char not in "\n\t\xa0"}
    assert not raw, sorted(map(ascii, raw))
    hints = page.evaluate(
        "() => [...document.querySelectorAll('[title], [aria-label]')]"
        ".map((e) => (e.getAttribute('title') ?? '') + (e.getAttribute('aria-label') ?? '')).join('')"
    )
    raw = {char for char in hints if not char.isprintable() and char not in "\n\xa0"}
    assert not raw, sorted(map(ascii, raw))
