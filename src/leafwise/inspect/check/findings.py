"""The result of `lw.check`: findings, as of a linter."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, overload

from leafwise.core.path import escape
from leafwise.core.result import Table

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


class Findings(Table, Sequence[Finding], kind="findings"):
    """What `lw.check` found: a sequence of `Finding`, the worst first; prints as a table.

    `ok` is whether there is nothing worse than a note. `checked` is how many leaves were looked at, `rules` the codes
    of the rules, and `skipped` says of which leaves there were no values to look at, and why.
    """

    def __init__(self, findings: list[Finding], checked: int, rules: tuple[str, ...], skipped: dict[str, str]) -> None:
        # By level and code; within these, in the order of the tree.
        self._findings = sorted(findings, key=lambda finding: (LEVELS.index(finding.level), finding.code))
        self.checked, self.rules, self.skipped = checked, rules, skipped

    @overload
    def __getitem__(self, index: int) -> Finding: ...
    @overload
    def __getitem__(self, index: slice) -> list[Finding]: ...
    def __getitem__(self, index: int | slice) -> Finding | list[Finding]:
        return self._findings[index]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self._findings)

    def __len__(self) -> int:
        return len(self._findings)

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
        return dict(Counter(finding.code for finding in self._findings))

    def of(self, what: str) -> list[Finding]:
        """The findings of a level, or of a code, or of all codes that begin so.

        >>> import torch, leafwise as lw
        >>> net = torch.nn.Linear(8, 8)
        >>> _ = torch.nn.init.constant_(net.weight, 0.5)
        >>> [finding.path for finding in lw.check(net).of("LW1")]
        ['weight']
        """
        return [finding for finding in self._findings if finding.level == what or finding.code.startswith(str(what))]
