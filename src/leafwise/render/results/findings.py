"""The result of `lw.check`, as a table and as plain data."""

from itertools import groupby
from typing import Any

from leafwise.core.path import plural
from leafwise.core.results.outline import Doc, Line, Span, Style
from leafwise.inspect.check.findings import LEVELS, Finding, Findings
from leafwise.render.data import TableRows
from leafwise.render.layout import more
from leafwise.render.phrases import SECTIONS
from leafwise.render.results.stats import left_out

_STYLES: dict[str, Style] = {"error": "error", "warning": "warn", "note": "dim"}
_OF_A_CODE = 8  # findings of one code that are shown


def to_doc(findings: Findings, *, full: bool = False) -> Doc:
    """One line per finding, the worst first; if a code has many findings, only the first few are shown."""
    lines = []
    for (level, code), group in groupby(findings, key=lambda finding: (finding.level, finding.code)):
        members = list(group)
        shown = members if full or len(members) <= _OF_A_CODE + 1 else members[:_OF_A_CODE]
        lines += finding_lines(shown)
        if len(shown) < len(members):
            lines.append(Line(0, (*_label(level, code), *more(len(members) - len(shown)))))
    return Doc(lines, _footer(findings), wraps=True)


def finding_lines(findings: list[Finding]) -> list[Line]:
    """One line per finding."""
    return [
        Line(
            0,
            (*_label(finding.level, finding.code), Span(finding.path or "(whole tree)", "name")),
            (),
            (Span(finding.message),),
        )
        for finding in findings
    ]


def _label(level: str, code: str) -> tuple[Span, ...]:
    return Span(level, _STYLES[level]), Span(" " * (8 - len(level))), Span(code, "type"), Span("  ")


def _footer(findings: Findings) -> list[tuple[Span, ...]]:
    counts = {level: len(findings.of(level)) for level in LEVELS}
    levels = ", ".join(plural(count, level, level + "s") for level, count in counts.items() if count)
    style: Style = "error" if counts["error"] else "warn" if not findings.ok else ""
    by = f"{plural(findings.checked, 'leaf', 'leaves')} checked by {plural(len(findings.rules), 'rule', 'rules')}"
    if findings.sections.keys() - {"weights"}:
        by += ": " + ", ".join(f"{count:,} of {SECTIONS[section]}" for section, count in findings.sections.items())
    footer: list[tuple[Span, ...]] = [(Span(levels or "nothing found", style), Span(f" · {by}", "dim"))]
    return footer + left_out("values not checked", findings.skipped)


def to_table(findings: Findings) -> TableRows:
    """A row for each finding, the worst first."""
    return TableRows(list(Finding._fields), [finding._asdict() for finding in findings])


def to_json(findings: Findings) -> dict[str, Any]:
    """All findings, how many there are of each level, and what was checked."""
    return {
        "ok": findings.ok,
        "findings": [finding._asdict() for finding in findings],
        "counts": {level: len(findings.of(level)) for level in LEVELS},
        "checked": findings.checked,
        "sections": findings.sections,
        "rules": list(findings.rules),
        "skipped": findings.skipped,
    }
