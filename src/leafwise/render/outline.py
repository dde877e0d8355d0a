"""How long an outline may be, and which names fold into a run."""

from collections.abc import Iterator
from itertools import islice

from leafwise.core.results.outline import Hint, Line, Span

MAX_LINES = 60  # maximum length if no depth is given, including the footer
FOLD_FROM = 3  # this many similar neighbors or more become one line
SHOW_ALL = Hint("text(full=True) shows all", shell="--full shows all")


def follows(a: str, b: str) -> bool:
    """Whether both names are numbers and the second follows the first.

    >>> follows("9", "10"), follows("a", "b")
    (True, False)
    """
    return a.isdecimal() and b.isdecimal() and max(len(a), len(b)) < 10 and int(b) == int(a) + 1


def within(lines: Iterator[Line], room: int) -> list[Line] | None:
    """The lines, or None if there are more than there is room for."""
    taken = list(islice(lines, room + 1))
    return None if len(taken) > room else taken


def cut(lines: Iterator[Line], room: int) -> list[Line]:
    """The first lines, and a last line that says how many are left out."""
    taken = list(islice(lines, room - 1))
    left_out = sum(1 for _ in lines)
    return [*taken, Line(1, (Span(f"… {left_out:,} more; ", "dim"), Span(SHOW_ALL, "dim")))]
