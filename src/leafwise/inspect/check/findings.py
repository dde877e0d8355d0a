"""The result of `lw.check`: a sequence of findings."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple, overload

from leafwise.core.path import escape
from leafwise.core.result import Table

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class Finding(NamedTuple):
    """A problem that a rule found: the code of the rule, the level, the path, and a one-line message with the figures
    and what to do. The path is empty if the finding does not concern a single path."""

    code: str
    level: Level
    path: str
    message: str

    def __str__(self) -> str:
        return escape(f"{self.path or '(whole tree)'}: {self.level} {self.code}: {self.message}")


class Findings(Table, Sequence[Finding], kind="findings"):
    """What `lw.check` found: a sequence of `Finding`, the worst first. Prints as a table.

    `ok` is True if there is nothing worse than a note. `checked` is the number of leaves that were checked, `rules` has
    the codes of the rules that ran, and `skipped` maps the leaves whose values could not be checked to the reason.
    """

    def __init__(self, findings: list[Finding], checked: int, rules: tuple[str, ...], skipped: dict[str, str]) -> None:
        # Sorted by level and code; findings of one code stay in the order of the tree.
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
        """Whether there are no errors and no warnings."""
        return not (self.errors or self.warnings)

    @property
    def codes(self) -> dict[str, int]:
        """How many findings each code has."""
        return dict(Counter(finding.code for finding in self._findings))

    def of(self, what: str) -> list[Finding]:
        """The findings of one level, one code, or all codes with a prefix.

        >>> import torch, leafwise as lw
        >>> net = torch.nn.Linear(8, 8)
        >>> _ = torch.nn.init.constant_(net.weight, 0.5)
        >>> [finding.path for finding in lw.check(net).of("LW1")]
        ['weight']
        """
        return [finding for finding in self._findings if finding.level == what or finding.code.startswith(str(what))]
