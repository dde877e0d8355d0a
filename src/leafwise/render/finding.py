"""What `lw.check` found, as a table, and as plain data."""

from itertools import groupby
from typing import Any

from leafwise.core.doc import Doc, Line, Span, Style
from leafwise.core.path import escape, listed
from leafwise.inspect.findings import LEVELS, Findings
from leafwise.render.outline import plural

_STYLES: dict[str, Style] = {"error": "warn", "warning": "tie", "note": "dim"}
_OF_A_CODE = 8  # findings of one code that get a line


def findings_doc(findings: Findings, *, full: bool = False) -> Doc:
    """A line for each finding, the worst first; of many with one code, the first few."""
    lines = []
    for (level, _), group in groupby(findings, key=lambda one: (one.level, one.code)):
        its = list(group)
        shown = its if full or len(its) <= _OF_A_CODE + 1 else its[:_OF_A_CODE]
        for one in shown:
            label = (Span(f"{level:7} ", _STYLES[level]), Span(one.code, "type"))
            path = Span(escape(one.path) or "(whole)", "name")
            lines.append(Line(0, label, (path,), (Span(escape(one.message)),)))
        if len(shown) < len(its):
            more = Span(f"… {len(its) - len(shown):,} more", "dim")
            lines.append(Line(0, (Span(f"{level:7} ", _STYLES[level]), Span(its[0].code, "type")), (more,)))
    return Doc(lines, _footer(findings))


def _footer(findings: Findings) -> list[tuple[Span, ...]]:
    counts = {level: len(findings.of(level)) for level in LEVELS}
    said = ", ".join(plural(count, level, level + "s") for level, count in counts.items() if count)
    style: Style = "" if findings.ok else "warn"
    by = f"{plural(findings.checked, 'leaf', 'leaves')} checked by {plural(len(findings.rules), 'rule', 'rules')}"
    footer: list[tuple[Span, ...]] = [(Span(said or "nothing found", style), Span(f" · {by}", "dim"))]
    reasons: dict[str, list[str]] = {}
    for path, reason in findings.skipped.items():
        reasons.setdefault(reason, []).append(path)
    for reason, paths in reasons.items():
        footer.append((Span(f"values not looked at: {escape(listed(paths))}: {escape(reason)}", "warn"),))
    return footer


def findings_json(findings: Findings) -> dict[str, Any]:
    """Every finding; how many of each level; and what was looked at."""
    return {
        "ok": findings.ok,
        "findings": [one._asdict() for one in findings],
        "counts": {level: len(findings.of(level)) for level in LEVELS},
        "checked": findings.checked,
        "rules": list(findings.rules),
        "skipped": findings.skipped,
    }
