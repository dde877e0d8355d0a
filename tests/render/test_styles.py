"""Every style is visible, in a terminal and in HTML."""

from typing import get_args

import pytest

from leafwise.core.results.outline import Doc, Line, Span, Style
from leafwise.render.html import html
from leafwise.render.terminal import Terminal
from leafwise.render.text import text

PLAIN_IN_A_TERMINAL = ("number",)
STYLES = [style for style in get_args(Style) if style]


@pytest.mark.parametrize("style", STYLES)
def test_every_style_is_visible(style: Style) -> None:
    def drawn(style: Style) -> tuple[str, str]:
        doc = Doc([Line(0, (Span("word", style),))], [])
        return text(doc, Terminal(color=True)), html(doc)

    plain, styled = drawn(""), drawn(style)
    assert styled[0] != plain[0] or style in PLAIN_IN_A_TERMINAL
    assert styled[1] != plain[1]
    assert f".{style}" in styled[1] or f"-{style}" in styled[1]
