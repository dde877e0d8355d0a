"""A browser for the tests of the page."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.web.browser import MILLISECONDS, SIZE, Problems, started
from tools.chromium import find_chromium, starts


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Chromium, for all tests of a process."""
    path = find_chromium()
    if path is None or not starts(path):
        pytest.skip("Chromium was not found, or does not start; install it, or name one in LEAFWISE_CHROMIUM")
    with started() as browser:
        yield browser


@pytest.fixture
def problems() -> list[Problems]:
    """The problems of the page of this test, for a test that provokes some: `problems[0].expected(...)`."""
    return []


@pytest.fixture
def page(browser: Browser, problems: list[Problems]) -> Iterator[Page]:
    """An empty page. At the end of the test, nothing may have gone wrong in it, and nothing may have been asked of
    another machine."""
    context = browser.new_context(viewport=SIZE, reduced_motion="reduce")
    context.set_default_timeout(MILLISECONDS)
    expect.set_options(timeout=MILLISECONDS)
    watched = Problems(context)
    problems.append(watched)
    try:
        yield context.new_page()
    finally:
        context.close()
    assert watched.found == []
