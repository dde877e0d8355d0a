"""What `lw.check` found, as a linter tells it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, overload

from leafwise.core.outline import Shown
from leafwise.core.path import escape

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class Finding(NamedTuple):
    """Something that a rule tripped over: the code of the rule, how bad it is, where, and in one line the figure and
    what to do. The path is empty where it concerns no place in the tree."""

    code: str
    level: Level
    path: str
    message: str

    def __str__(self) -> str:
        return escape(f"{self.path or '(whole)'}: {self.level} {self.code}: {self.message}")


class Findings(Shown, Sequence[Finding], kind="findings"):
    """What `lw.check` found: a sequence of `Finding`, the worst first; prints as a table.

    `ok` is whether there is nothing worse than a note. `checked` is how many leaves were looked at, `rules` the codes
    of the rules, and `skipped` says of which leaves there were no values to look at, and why.
    """

    def __init__(self, found: list[Finding], checked: int, rules: tuple[str, ...], skipped: dict[str, str]) -> None:
        # By level and code; within these, in the order of the tree.
        self._found = sorted(found, key=lambda one: (LEVELS.index(one.level), one.code))
        self.checked, self.rules, self.skipped = checked, rules, skipped

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> list[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | list[Finding]:
        return self._found[index]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def errors(self) -> list[Finding]:
        return self.of("error")

    @property
    def warnings(self) -> list[Finding]:
        return self.of("warning")

    @property
    def notes(self) -> list[Finding]:
        return self.of("note")

    @property
    def ok(self) -> bool:
        """Whether there is nothing worse than a note."""
        return not (self.errors or self.warnings)

    @property
    def codes(self) -> dict[str, int]:
        """How often each code was found."""
        return dict(Counter(one.code for one in self._found))

    def of(self, what: str) -> list[Finding]:
        """The findings of a level, or of a code, or of all codes that begin so.

        >>> import torch, leafwise as lw
        >>> net = torch.nn.Linear(8, 8)
        >>> _ = torch.nn.init.constant_(net.weight, 0.5)
        >>> [one.path for one in lw.check(net).of("LW1")]
        ['weight']
        """
        return [one for one in self._found if one.level == what or one.code.startswith(str(what))]

    def text(self, *, full: bool = False) -> str:
        """The table as plain text; `full` shows every finding."""
        return self.render_text(full=full)
