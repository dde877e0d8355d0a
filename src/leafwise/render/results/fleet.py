"""The results of a verb for many checkpoints, as one table and as plain data."""

from typing import Any

from leafwise.core.path import plural, shown_url
from leafwise.core.results.outline import Doc, Line, Span, Style
from leafwise.core.results.result import kind_of
from leafwise.core.work.fleet import Fleet
from leafwise.inspect.check.findings import LEVELS, Findings
from leafwise.render.data import TableRows
from leafwise.render.layout import MAX_LINES, SHOW_ALL, more
from leafwise.render.phrases import bytes_text
from leafwise.render.results import findings as findings_page
from leafwise.render.results import verified as verified_page
from leafwise.render.results.stats import totals_doc

_FINDINGS = 3  # findings of a checkpoint that are shown


def to_doc(fleet: Fleet, *, full: bool = False, depth: int | None = None) -> Doc:
    """A line for each checkpoint, then those without a result."""
    names = list(fleet)
    shown = names if full or len(names) <= MAX_LINES else names[: MAX_LINES - 1]
    footer: list[tuple[Span, ...]] = []
    if len(shown) < len(names):
        left_out = plural(len(names) - len(shown), "checkpoint", "checkpoints")
        footer.append((Span(f"… {left_out} more; ", "dim"), Span(SHOW_ALL, "dim")))
    summary = [Span(plural(len(names) + len(fleet.errors), "checkpoint", "checkpoints"))]
    if fleet.errors:
        summary.append(Span(f" · {plural(len(fleet.errors), 'error', 'errors')}", "error"))
    footer.append(tuple(summary))
    errors = []
    for name, error in fleet.errors.items():  # the message is below the name, which has all the room then
        errors.append(Line(0, (Span("error  ", "error"), Span(shown_url(name), "name"))))
        errors.append(Line(1, (Span(str(error), "error"),), whole=True))
    if fleet.verb == "stats":
        doc = totals_doc({shown_url(name): fleet[name] for name in shown}, footer)
        return doc._replace(lines=[*doc.lines, *errors])
    lines, columns = [], _COLUMNS[fleet.verb]
    for name in shown:
        lines += _LINES[fleet.verb](shown_url(name), fleet[name], full)
    right = frozenset(range(len(columns)))
    wraps = fleet.verb == "check"  # messages are long
    heading = Line(0, (Span("", "type"),), tuple(Span(name, "dim") for name in columns))
    return Doc([heading, *lines, *errors] if lines else errors, footer, right, wraps=wraps, columns=columns)


def _check_lines(name: str, findings: Findings, full: bool) -> list[Line]:
    style: Style = "error" if findings.errors else "warn" if not findings.ok else ""
    cells = tuple(Span(f"{len(findings.of(level)):,}", style if level != "note" else "dim") for level in LEVELS)
    lines = [Line(0, (Span(name, "name"),), (Span(f"{findings.checked:,}", "number"), *cells))]
    shown = list(findings)[: None if full else _FINDINGS]
    lines += [line._replace(level=1) for line in findings_page.finding_lines(shown)]
    if len(shown) < len(findings):
        lines.append(Line(1, more(len(findings) - len(shown))))
    return lines


def _verify_lines(name: str, verified: Any, full: bool) -> list[Line]:
    cells = Span(f"{verified.leaves:,}", "number"), Span(bytes_text(verified.bytes) or "0 B")
    verdict = "every checksum matches" if verified.ok else "; ".join(verified_page.warnings_of(verified))
    return [Line(0, (Span(name, "name"),), cells, (Span(verdict, "" if verified.ok else "warn"),))]


def _diff_lines(name: str, diff: Any, full: bool) -> list[Line]:
    counts = ", ".join(f"{count:,} {kind}" for kind, count in diff.counts.items())
    note = (Span("nothing differs" if diff.same else counts, "" if diff.same else "warn"),)
    return [Line(0, (Span(name, "name"),), (Span(f"{len(diff):,}", "number"),), note)]


_LINES = {"check": _check_lines, "verify": _verify_lines, "diff": _diff_lines}
_COLUMNS = {"check": ("leaves", *(f"{level}s" for level in LEVELS)), "verify": ("leaves", "bytes"), "diff": ("leaves",)}


def to_table(fleet: Fleet) -> TableRows:
    """A row for each checkpoint; those without a result have an error."""
    rows: list[dict[str, Any]] = [{"checkpoint": shown_url(name), **_facts(result)} for name, result in fleet.items()]
    rows += [{"checkpoint": shown_url(name), "error": str(error)} for name, error in fleet.errors.items()]
    columns = dict.fromkeys(["checkpoint", *(name for row in rows for name in row)])
    return TableRows(list(columns), rows, "checkpoint")


def _facts(result: Any) -> dict[str, Any]:
    match kind_of(result):
        case "stats":
            return {"leaves": len(result), **result.total.statistics()}
        case "findings":
            counts = {f"{level}s": len(result.of(level)) for level in LEVELS}
            return {"ok": result.ok, "leaves": result.checked, **counts}
        case "diff":
            return {"same": result.same, **result.counts}
    return {"ok": result.ok, **result._asdict()}


def to_json(fleet: Fleet) -> dict[str, Any]:
    """The result of each checkpoint, and the errors of the others."""
    return {
        "verb": fleet.verb,
        "ok": fleet.ok,
        "checkpoints": {shown_url(name): result.json() for name, result in fleet.items()},
        "errors": {shown_url(name): str(error) for name, error in fleet.errors.items()},
    }
