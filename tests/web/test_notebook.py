"""The viewer as the output of a cell: a frame in the page of a notebook on this machine, and nowhere else."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.web.browser import Problems
from tests.web.pages import until

from leafwise.web.viewing import View, start_view


@contextmanager
def notebook(content: str) -> Iterator[int]:
    """A server with a page that contains the output of a cell; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"<!doctype html><title>notebook</title><link rel=icon href=data:,>{content}".encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def started(in_notebook: bool) -> View:
    return start_view([torch.nn.Linear(4, 2)], ["net"], 0, None, in_notebook)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_notebook_on_this_machine_shows_the_viewer_in_a_frame(page: Any, problems: list[Problems], host: str) -> None:
    with started(in_notebook=True) as view, notebook(view._repr_html_()) as port:
        page.goto(f"http://{host}:{port}/")
        frame = page.frame_locator("iframe")
        frame.locator("[data-testid=row]").first.wait_for()
        assert "weight" in until(lambda: frame.locator("main").inner_text())
        page.goto("about:blank")
    problems[0].expected("request to another machine: http://localhost")


def test_outside_of_a_notebook_no_page_may_contain_the_viewer(page: Any, problems: list[Problems]) -> None:
    with started(in_notebook=False) as view, notebook(view._repr_html_()) as port:
        page.goto(f"http://127.0.0.1:{port}/")
        until(lambda: problems[0].expected("frame-ancestors"), "the frame was not refused")
        assert not page.frame_locator("iframe").locator("[data-testid=row]").count()
    problems[0].expected("ERR_BLOCKED_BY_CSP", "ERR_BLOCKED_BY_RESPONSE")


def test_a_closed_viewer_shows_no_frame() -> None:
    view = started(in_notebook=True)
    view.close()
    assert "<iframe" not in view._repr_html_()
