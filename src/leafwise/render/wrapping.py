"""Lines that are too long, continued on the next: broken between words, or inside a word that is wider than a line."""

import re
from collections.abc import Sequence

from leafwise.core.results.outline import Span, Style
from leafwise.render.shorten import beginning, text_width

_WORD = re.compile(r"[^ ]*\d (?:[KMGTP]i)?B\b[^ ]*|[^ ]+| +")  # a size and its unit are one word
_BREAKS = "/.,_"  # a word that is wider than a line is broken after one of these, the first of them if possible


def wrapped(spans: Sequence[Span], width: int, indent: str = "") -> list[list[Span]]:
    """Spans as lines of at most `width` columns, in the styles that they have; `indent` is put before each but the
    first.

    >>> [["".join(span.text for span in line)] for line in wrapped([Span("cannot load: "), Span("1 missing")], 12)]
    [['cannot load:'], ['1 missing']]
    >>> [line[0].text for line in wrapped([Span("2 leaves, 3.0 KiB")], 14)]
    ['2 leaves,', '3.0 KiB']
    """
    lines: list[list[Span]] = [[]]
    space = max(width, 2)  # a wide character takes two columns
    width = max(width - len(indent), 2)
    for word, style in _words(spans):
        # A word that fits into no line is broken where it stands.
        if space < text_width(word) <= width and not word.isspace() and lines[-1]:
            lines.append([])
            space = width
        while word:
            if word.isspace() and not lines[-1] and len(lines) > 1:
                break  # between two lines
            part = beginning(word, space)
            if not part or (len(part) < len(word) and word.isspace()):
                lines.append([])
                space = width
                continue
            if len(part) < len(word):
                part = _to_a_break(part)
            _append(lines[-1], part, style)
            space -= text_width(part)
            word = word[len(part) :]
            if word:
                space = 0  # the rest goes on in the next line
    first, *others = [_without_end_space(line) for line in lines if line] or [[]]
    return [first, *([Span(indent), *line] if indent else line for line in others)]


def _to_a_break(part: str) -> str:
    """The beginning of a long word up to a place where it may be broken, if there is one in its second half.

    >>> _to_a_break("/runs/bert/epoch=3-st"), _to_a_break("aaaaaaaaaaaa")
    ('/runs/bert/', 'aaaaaaaaaaaa')
    """
    places = (part.rfind(mark) + 1 for mark in _BREAKS)
    return part[: next((place for place in places if place > len(part) // 2), len(part))]


def _words(spans: Sequence[Span]) -> list[Span]:
    """Words and the spaces between them. A word may consist of several spans, which then stay separate words."""
    return [Span(word, style) for text, style in spans for word in _WORD.findall(text)]


def _append(line: list[Span], text: str, style: Style) -> None:
    if line and line[-1].style == style:
        line[-1] = line[-1]._replace(text=line[-1].text + text)
    else:
        line.append(Span(text, style))


def _without_end_space(line: list[Span]) -> list[Span]:
    while line and not line[-1].text.rstrip():
        line = line[:-1]
    return [*line[:-1], line[-1]._replace(text=line[-1].text.rstrip())] if line else line
