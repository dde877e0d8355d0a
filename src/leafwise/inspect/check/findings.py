"""The result of `lw.check`: a sequence of findings."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from leafwise.core.columns import SECTIONS, Section
from leafwise.core.path import escape
from leafwise.core.results.result import RowTable

Level = Literal["error", "warning", "note"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note")


class Finding(NamedTuple):
    """A problem that `lw.check` found.

    `code` is the code of the rule, and `level` is "error", "warning" or "note". `path` is the path of the leaf; it is
    empty if the finding does not concern a single leaf. `message` gives the figures, and says what to do.

    `indices` is where in the leaf, if the rule knows: the index of each value, as of a NaN, or, if `axis` is a number,
    numbers along that axis, as of dead units. `total` is how many there are; `indices` has at most the first 10,000.

    >>> from leafwise.results import Finding
    >>> print(Finding("LW101", "error", "2.bias", "1 NaN among 16 values, at [3]; load an earlier checkpoint"))
    2.bias: error LW101: 1 NaN among 16 values, at [3]; load an earlier checkpoint
    """

    code: str
    level: Level
    path: str
    message: str
    indices: tuple[Any, ...] = ()
    axis: int | None = None
    total: int = 0

    def __str__(self) -> str:
        return escape(f"{self.path or '(whole tree)'}: {self.level} {self.code}: {self.message}")


class Findings(RowTable[Finding], kind="findings"):
    """The result of `lw.check`: a sequence of `Finding`, the worst first. Prints as a table.

    `ok` is True if there is nothing worse than a note. `checked` is the number of leaves that were checked, `sections`
    is how many of them are `weights`, `optimizer` state and the `rest`, and `rules` has the codes of the rules that
    ran. `skipped` maps the paths of leaves that could not be checked to the reason.

    >>> import torch, leafwise as lw
    >>> findings = lw.check(torch.nn.Linear(16, 16))
    >>> findings.ok, findings.checked, findings.codes
    (True, 2, {})
    """

    def __init__(
        self, findings: list[Finding], checked: Mapping[Section, int], rules: tuple[str, ...], skipped: dict[str, str]
    ) -> None:
        # Sorted by level and code; findings of one code stay in the order of the tree.
        self._rows = sorted(findings, key=lambda finding: (LEVELS.index(finding.level), finding.code))
        self.checked, self.rules, self.skipped = sum(checked.values()), rules, skipped
        self.sections: dict[Section, int] = {section: checked[section] for section in SECTIONS if checked.get(section)}

    @property
    def errors(self) -> list[Finding]:
        """The findings of the level "error"."""
        return self.of("error")

    @property
    def warnings(self) -> list[Finding]:
        """The findings of the level "warning"."""
        return self.of("warning")

    @property
    def notes(self) -> list[Finding]:
        """The findings of the level "note"."""
        return self.of("note")

    @property
    def ok(self) -> bool:
        """Whether there are no errors and no warnings."""
        return not (self.errors or self.warnings)

    @property
    def codes(self) -> dict[str, int]:
        """The number of findings by code."""
        return dict(Counter(finding.code for finding in self._rows))

    def of(self, what: str) -> list[Finding]:
        """The findings of a level, of a code, or of all codes with a prefix.

        >>> import torch, leafwise as lw
        >>> net = torch.nn.Linear(8, 8)
        >>> _ = torch.nn.init.constant_(net.weight, 0.5)
        >>> [finding.path for finding in lw.check(net).of("LW1")]
        ['weight']
        """
        return [finding for finding in self._rows if finding.level == what or finding.code.startswith(str(what))]
