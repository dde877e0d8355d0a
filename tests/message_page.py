"""Collects every message that leafwise raises or warns with while the tests run, for one page to read.

`make messages` prints the page. In every run, each message is also held against the words page of CONTRIBUTING.md.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.plain_english import PHRASES

from leafwise import errors

PAGE = Path(__file__).parent.parent / "build" / "messages.txt"


class MessagePage:
    """The messages so far, one of each form: those that differ only in names and numbers count as one."""

    def __init__(self) -> None:
        self.messages: dict[tuple[str, str], str] = {}

    def add(self, kind: str, message: str) -> None:
        message = re.sub(r"/[^\s']*/pytest-\d+/[^\s'/]*/", "…/", message)  # the folder of the test
        self.messages.setdefault((kind, form_of(message)), message)

    def text(self) -> str:
        lines = []
        kind = ""
        for (new_kind, _), message in sorted(self.messages.items()):
            if new_kind != kind:
                kind = new_kind
                lines += ["", kind, "-" * len(kind)]
            lines.append("\n    ".join(message.splitlines()))
        return "\n".join([f"{len(self.messages):,} messages", *lines, ""])

    def wrong(self) -> list[str]:
        """What is wrong with the messages, one line each."""
        return [
            f"{kind}: {problem}: {message}"
            for (kind, _), message in self.messages.items()
            if (problem := _fault(message))
        ]


def form_of(message: str) -> str:
    """A message without the names and numbers in it.

    >>> form_of("nothing at \\"a.b\\"; 12 of 3,000 are there")
    'nothing at "…"; # of # are there'
    """
    form = re.sub(r"\"[^\"]*\"|'[^']*'", '"…"', message)
    form = re.sub(r"\b[\w#…]*([._/-][\w#…]+)+", "…", form)
    return re.sub(r"[\d,.]*\d", "#", form)


def _fault(message: str) -> str:
    ours = re.sub(r"\"[^\"]*\"|'[^']*'", "", message)  # what is quoted is a name, or code
    for pattern, instead in PHRASES.items():
        if match := re.search(pattern, ours):
            return f"{match.group()!r}, write {instead}"
    if not message.strip():
        return "it is empty"
    if message.rstrip().endswith(".") and not message.rstrip().endswith(("..", "…")):
        return "it ends with a period"
    return ""


def collect(page: MessagePage) -> None:
    """From now on, puts the message of every error and warning of leafwise on the page."""
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.Error | errors.TieWarning):
            value.__init__ = _recorded(value, value.__init__, page)  # type: ignore[misc]


def _recorded(cls: type, init: Callable[..., None], page: MessagePage) -> Callable[..., None]:
    def recorded(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if type(self) is cls:  # and not on the way up to the class that is made
            page.add(cls.__name__, str(self))

    return recorded
