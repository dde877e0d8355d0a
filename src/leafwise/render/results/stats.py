"""The result of `lw.stats`, as a table with small histograms of magnitudes, and as plain data."""

import math
from typing import Any

from leafwise.core.columns import Section
from leafwise.core.dtypes import is_float
from leafwise.core.path import Path, listed, plural, quote
from leafwise.core.results.moments import HISTOGRAM_DROP, Histogram, TableColumn, merged_moments, table_columns
from leafwise.core.results.outline import Doc, Line, Span, Style
from leafwise.inspect.stats.rows import Row
from leafwise.inspect.stats.statistics import Stats
from leafwise.render.data import TableRows, finite
from leafwise.render.layout import MAX_LINES
from leafwise.render.phrases import SECTIONS

_BARS = "▁▂▃▄▅▆▇█"
_TOO_FEW = 5  # lines; with fewer, a tree with many leaves is opened one level more
_PLACES = 8  # leaves whose NaN and infinite values are listed by their indices
_EXPONENTS = 20  # number of powers of two in a histogram, up to the largest


def to_doc(stats: Stats, *, depth: int | None = None, full: bool = False) -> Doc:
    """One line per leaf, or per part if there are many leaves; and one for the total."""
    rows = list(stats.values())
    sections = {row.path: stats.section(row.path or "") for row in rows}
    # Random states and metrics share one line, if there is anything else.
    shown = rows if full or len(stats.totals) == 1 else [row for row in rows if sections[row.path] != "rest"]
    parts = _by_section(_parts(shown, depth, full), sections)
    # The scale is that of the floats: a buffer of large integers would push all weights out of the range.
    main = next(iter(stats.totals), None)
    floats = [row for row in rows if is_float(row.dtype or "") and sections[row.path] == main]
    highest = _highest(floats or rows)
    lines = [_header(highest, _highest(rows) != highest)] if rows else []
    for name, members in parts.items():
        if len(members) == 1:
            lines.append(_line(members[0].path or "", members[0], highest, ()))
        else:
            folded = Row(merged_moments(members))
            lines.append(_line(name, folded, highest, (Span(f"{len(members):,} leaves", "dim"),)))
    if rows and (len(parts) != 1 or len(stats.totals) > 1):
        lines += [_line(f"total{name}", total, highest, (), "type") for name, total in _totals(stats).items()]
    return _doc(lines, _footer(stats, shown, highest))


def totals_doc(by_name: dict[str, Stats], footer: list[tuple[Span, ...]]) -> Doc:
    """A table with the totals of several trees, one line for each."""
    totals = {name: stats.total for name, stats in by_name.items()}
    highest = _highest(list(totals.values()))
    lines = [_header(highest, False)] if totals else []
    for name, total in totals.items():
        leaves = plural(len(by_name[name]), "leaf", "leaves")
        lines.append(_line(name, total, highest, (Span(leaves, "dim"),)))
    return _doc(lines, footer)


def _doc(lines: list[Line], footer: list[tuple[Span, ...]]) -> Doc:
    columns = table_columns()
    drops = {place: column.drop for place, (_, column) in enumerate(columns) if column.drop}
    drops[len(columns) + 1] = HISTOGRAM_DROP
    names = (*(column.heading for _, column in columns), "not finite", "magnitudes")
    return Doc(
        lines, footer, frozenset(range(len(columns))), tuple(sorted(drops, key=drops.__getitem__)), columns=names
    )


def _parts(rows: list[Row], depth: int | None, full: bool) -> dict[str, list[Row]]:
    """Rows grouped by the first entries of their paths: `depth` entries, or as many as keep the table short."""
    if depth == 0 and not full:
        return {}
    steps = [[quote(name) for name in Path(row.path or "").names] for row in rows]
    deepest = max(map(len, steps), default=1)
    chosen = deepest if full else depth
    if chosen is None:
        counts = [len({tuple(names[:length]) for names in steps}) for length in range(1, deepest + 1)]
        chosen = max((length for length, count in enumerate(counts, 1) if count <= MAX_LINES), default=1)
        if counts and counts[chosen - 1] < _TOO_FEW and chosen < deepest:
            chosen += 1  # a truncated list says more than a few lines for everything
    parts: dict[str, list[Row]] = {}
    for row, path_steps in zip(rows, steps, strict=True):
        parts.setdefault(".".join(path_steps[:chosen]), []).append(row)
    if depth is None and not full and len(parts) > MAX_LINES:
        # Even the first entries are too many: the last of them share a line.
        names = list(parts)
        rest = names[MAX_LINES - 1 :]
        last_rows = [row for name in rest for row in parts[name]]
        return {**{name: parts[name] for name in names[: MAX_LINES - 1]}, f"… {len(rest):,} more": last_rows}
    return parts


def _by_section(parts: dict[str, list[Row]], sections: dict[str | None, Section]) -> dict[str, list[Row]]:
    """The same parts, with those split that contain leaves of several sections."""
    if len(set(sections.values())) < 2:
        return parts
    split: dict[str, list[Row]] = {}
    for name, members in parts.items():
        several = len({sections[row.path] for row in members}) > 1
        for row in members:
            suffix = f" ({SECTIONS[sections[row.path]]})" if several else ""
            split.setdefault(name + suffix, []).append(row)
    return split


def _totals(stats: Stats) -> dict[str, Row]:
    """The totals, each with what its line adds to the word "total"."""
    if len(stats.totals) == 1:
        return {"": stats.total}
    return {f" {SECTIONS[section]}": total for section, total in stats.totals.items()}


def _header(highest: int | None, beyond: bool) -> Line:
    names = [*(column.heading for _, column in table_columns()), ""]
    if highest is not None:
        left, right = f"≤2^{highest - _EXPONENTS + 1}", f"{'≥' * beyond}2^{highest}"
        names.append(left + right.rjust(_EXPONENTS - len(left)))
    return Line(0, (Span("", "type"),), tuple(Span(name, "dim") for name in names))


def _line(name: str, row: Row, highest: int | None, note: tuple[Span, ...], style: Style = "name") -> Line:
    cells = [_cell(row, getattr(row, statistic), column) for statistic, column in table_columns()]
    cells.append(Span(", ".join(f"{count:,} {label}" for label, count in row.nonfinite_counts().items()), "warn"))
    if highest is not None:
        cells.append(Span(_bars(row.histogram, highest)))
    return Line(0, (Span(name, style),), tuple(cells), note)


def _cell(row: Row, value: Any, column: TableColumn) -> Span:
    match column.form:
        case "count":
            return Span(f"{value:,}", "number")
        case "number":
            return Span(_number(value))
        case "share":
            return Span(share_text(value, row.finite), "dim" if not value else "")


def _number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**9 else f"{value:.3g}"
    return "" if math.isnan(value) else f"{value:.3g}"


def share_text(part: int, whole: int) -> str:
    """A share as text: never 0 unless it is exactly zero, and never 100% unless it is the whole."""
    if not part:
        return "0"
    percent = 100 * part / whole
    if part < whole and percent > 99.5:
        return f"{percent:.2f}%" if percent < 99.99 else ">99.99%"
    return f"{percent:.2g}%" if 0.01 <= percent < 10 else f"{percent:.0f}%" if percent >= 10 else "<0.01%"


def _highest(rows: list[Row]) -> int | None:
    """The largest exponent of any magnitude in the rows."""
    histograms = [row.histogram for row in rows if row.histogram is not None and row.histogram.counts]
    return max((bins.lowest + len(bins.counts) - 1 for bins in histograms), default=None)


def _bars(histogram: Histogram | None, highest: int) -> str:
    """One bar per power of two, proportional to its count; the first and last bars include everything beyond."""
    if histogram is None:
        return " " * _EXPONENTS
    counts = clamped_counts(histogram, highest - _EXPONENTS + 1, highest)
    most = max(counts) or 1
    return "".join(_BARS[(count * 8 - 1) // most] if count else " " for count in counts)


def clamped_counts(histogram: Histogram, lowest: int, highest: int) -> list[int]:
    """The counts from one power of two to another; the first and the last include everything beyond."""
    counts = [0] * (highest - lowest + 1)
    for exponent, count in enumerate(histogram.counts, histogram.lowest):
        counts[min(max(exponent, lowest), highest) - lowest] += count
    return counts


def _footer(stats: Stats, rows: list[Row], highest: int | None) -> list[tuple[Span, ...]]:
    noun = "value" if stats.of == "value" else "gradient"
    summary = f"{plural(len(stats), 'leaf', 'leaves')}, {plural(stats.total.count, noun, noun + 's')}"
    if stats.totals.keys() - {"weights"}:
        first, *others = [(SECTIONS[section], total.count) for section, total in stats.totals.items()]
        summary += "".join([f" of {first[0]}", *(f", {count:,} of {section}" for section, count in others)])
    footer: list[tuple[Span, ...]] = [(Span(summary),)]
    if highest is not None:
        bars = "bars count magnitudes by powers of two"
        footer = [(Span(f"{summary} · {bars}"),)] if len(stats.totals) < 2 else [*footer, (Span(bars),)]
    nonfinite = [row.path or "" for row in rows if row.finite < row.count]
    if nonfinite:
        text = f"not finite in {plural(len(nonfinite), 'leaf', 'leaves')}: {listed(nonfinite)}"
        footer.append((Span(text, "warn"),))
        at = [f"{path} at {places}" for path, places in stats.nonfinite.items() if any(places.indices)]
        footer += [(Span(text, "warn"),) for text in at[:_PLACES]]
    return footer + left_out("left out", stats.skipped)


def left_out(heading: str, reasons: dict[str, str]) -> list[tuple[Span, ...]]:
    """One line per reason why something is left out, with the paths concerned."""
    by_reason: dict[str, list[str]] = {}
    for path, reason in reasons.items():
        by_reason.setdefault(reason, []).append(path)
    return [(Span(f"{heading}: {listed(paths)}: {reason}", "warn"),) for reason, paths in by_reason.items()]


def to_table(stats: Stats) -> TableRows:
    """A row for each leaf, without the histograms."""
    rows = [{"path": path, "shape": row.shape, **row.numbers()} for path, row in stats.items()]
    return TableRows(["path", "shape", *stats.total.numbers()], rows, "path")


def to_json(stats: Stats) -> dict[str, Any]:
    """One row per leaf, and the total; NaN and infinity become null."""
    nonfinite = stats.nonfinite
    return {
        "of": stats.of,
        "leaves": [
            {
                "path": row.path,
                "shape": row.shape and list(row.shape),
                **_plain(row),
                "section": stats.section(row.path or ""),
                "nonfinite": [list(index) for index in nonfinite[path].indices] if path in nonfinite else [],
            }
            for path, row in stats.items()
        ],
        "total": _plain(stats.total),
        "totals": {section: _plain(total) for section, total in stats.totals.items()},
        "skipped": stats.skipped,
    }


def _plain(row: Row) -> dict[str, Any]:
    numbers = {name: finite(value) for name, value in row.numbers().items()}
    return {**numbers, "histogram": None if row.histogram is None else row.histogram._asdict()}
