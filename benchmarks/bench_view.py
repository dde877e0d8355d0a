"""The viewer on a checkpoint of 46,848 leaves and 1.4 TB, in headless Chromium.

    python benchmarks/bench_view.py [FOLDER]

The first useful paint is when the first lines of the tree are on the screen, counted from the start of the command
`leafwise view`. The browser is already running, as it is for users, and gets the address as soon as it is printed.
Frames are those of the page while it scrolls through all leaves and while a query is typed: the longest task of its
main thread.
"""

import gzip
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench_files import TENSORS, sparse_safetensors
from common import machine
from figures import exit_status, not_run, report

ROOT = Path(__file__).parents[1]
ROUNDS = 5
QUERIES = ("experts.12", "layers.3 weight", "**.u.weight", "dtype:bfloat16")
# Collects the lengths of tasks that block the page, and the longest time between two frames while something happens.
OBSERVE = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: "longtask", buffered: false });
}"""
READY = "performance.getEntriesByName('leafwise-ready').length > 0"
READY_AT = "performance.timeOrigin + performance.getEntriesByName('leafwise-ready')[0].startTime"


def wait_until_ready(page: Any) -> None:
    """Playwright's own `wait_for_function` evaluates text in the page, which its Content-Security-Policy forbids."""
    deadline = time.monotonic() + 60
    while not page.evaluate(READY):
        assert time.monotonic() < deadline, "the page is not ready after a minute"
        time.sleep(0.02)


class Viewer:
    """A running `leafwise view`."""

    def __init__(self, path: Path) -> None:
        self.started = time.time()
        command = [sys.executable, "-m", "leafwise", "view", str(path), "--no-browser", "--port", "0"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def get(self, request: str) -> Any:
        with urllib.request.urlopen(self.url + request) as answer:
            return json.load(answer)

    def peak_memory(self) -> float:
        """The most memory that the server has had, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("utf-8")
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def __enter__(self) -> "Viewer":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def check_result(viewer: Viewer) -> None:
    """All leaves are there, once, and the windows of the list add up to it."""
    assert viewer.get("api/summary")["counts"]["leaves"] == TENSORS
    paths: list[str] = []
    while True:
        rows = viewer.get(f"api/rows?sort=bytes&count=500&from={len(paths)}")
        paths += [row["path"] for row in rows["rows"]]
        if len(paths) >= rows["total"]:
            break
    assert len(paths) == len(set(paths)) == TENSORS
    assert viewer.get("api/rows?query=**.u.weight")["matches"] == TENSORS // 3


def first_paint(browser: Any, path: Path) -> float:
    """Seconds from the start of the command to the first lines on the screen."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    with Viewer(path) as viewer:
        page.goto(viewer.url, wait_until="commit")
        wait_until_ready(page)
        taken = page.evaluate(READY_AT) / 1000 - viewer.started
        assert page.locator("[data-path]").count() > 0
        page.close()
    return float(taken)


def scroll(page: Any) -> None:
    """Unfolds everything and scrolls to the end, a few screens at a time, then to the middle and back."""
    page.locator("[data-testid=unfold-all]").click()
    page.wait_for_timeout(300)
    page.locator("[data-testid=list]").hover()
    for _ in range(60):
        page.mouse.wheel(0, 2_000)
        page.wait_for_timeout(16)
    for share in (0.25, 0.9, 0.5, 1, 0):
        page.evaluate(
            "(share) => { const list = document.querySelector('[data-testid=list]');"
            " list.scrollTop = share * list.scrollHeight; }",
            share,
        )
        page.wait_for_timeout(150)


def search(page: Any) -> None:
    field = page.locator("[data-testid=search]")
    for query in QUERIES:
        field.fill("")
        field.press_sequentially(query, delay=30)
        page.wait_for_timeout(600)
    field.fill("")
    page.wait_for_timeout(300)


def longest_task(page: Any, task: Any) -> float:
    """The longest task of the page in milliseconds; 0 if none took 50 ms, because shorter ones are not reported."""
    page.evaluate(OBSERVE)
    task(page)
    return float(max(page.evaluate("window.longTasks"), default=0))


def main() -> int:
    try:
        from playwright.sync_api import sync_playwright

        sys.path.insert(0, str(ROOT))
        from tools.chromium import ARGUMENTS, find_chromium
    except ImportError:
        return not_run("playwright is not installed")
    program = find_chromium()
    if program is None:
        return not_run("there is no Chromium")
    machine()
    script = (ROOT / "src/leafwise/web/page/app.js").read_bytes()
    met = [report("the page's script, compressed, KB", len(gzip.compress(script, 9)) / 1000, 150)]
    with (
        tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder,
        sync_playwright() as play,
    ):
        path = Path(folder, "huge.safetensors")
        sparse_safetensors(path)
        browser = play.chromium.launch(executable_path=program, args=ARGUMENTS)
        first_paint(browser, path)  # so that bytecode is compiled, and the file is in the cache
        times = [first_paint(browser, path) for _ in range(ROUNDS)]
        print(f"# first useful paint: {', '.join(f'{taken:.2f}' for taken in times)} s")
        met.append(report("first useful paint, s", statistics.median(times), 1.5))
        with Viewer(path) as viewer:
            check_result(viewer)
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto(viewer.url)
            wait_until_ready(page)
            met.append(report("scrolling through all leaves: longest task, ms", longest_task(page, scroll), 50))
            met.append(report("searching: longest task, ms", longest_task(page, search), 50))
            viewer.get("api/map?path=&color=role")
            met.append(report("memory of the server, MB", viewer.peak_memory(), 300))
        browser.close()
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
