"""What `lw.check` found, as a table, and as plain data."""

from itertools import groupby
from typing import Any

from leafwise.core.doc import Doc, Line, Span, Style
from leafwise.inspect.check.findings import LEVELS, Findings
from leafwise.render.measuring import left_out
from leafwise.render.outline import plural

_STYLES: dict[str, Style] = {"error": "warn", "warning": "tie", "note": "dim"}
_OF_A_CODE = 8  # findings of one code that get a line
_LONG_PATH = 48  # characters; where one has more, messages are not aligned


def findings_doc(findings: Findings, *, full: bool = False) -> Doc:
    """A line for each finding, the worst first; of many with one code, the first few."""
    lines = []
    aligned = max((len(one.path) for one in findings), default=0) <= _LONG_PATH
    for (level, code), group in groupby(findings, key=lambda one: (one.level, one.code)):
        its = list(group)
        shown = its if full or len(its) <= _OF_A_CODE + 1 else its[:_OF_A_CODE]
        label = (Span(f"{level:7} ", _STYLES[level]), Span(code, "type"))
        for one in shown:
            path, said = Span(one.path or "(whole)", "name"), (Span(one.message),)
            lines.append(Line(0, label, (path,), said) if aligned else Line(0, (*label, Span("  "), path), (), said))
        if len(shown) < len(its):
            lines.append(Line(0, label, (Span(f"… {len(its) - len(shown):,} more", "dim"),)))
    return Doc(lines, _footer(findings), wraps=True)


def _footer(findings: Findings) -> list[tuple[Span, ...]]:
    counts = {level: len(findings.of(level)) for level in LEVELS}
    said = ", ".join(plural(count, level, level + "s") for level, count in counts.items() if count)
    style: Style = "" if findings.ok else "warn"
    by = f"{plural(findings.checked, 'leaf', 'leaves')} checked by {plural(len(findings.rules), 'rule', 'rules')}"
    footer: list[tuple[Span, ...]] = [(Span(said or "nothing found", style), Span(f" · {by}", "dim"))]
    return footer + left_out("values not looked at", findings.skipped)


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
