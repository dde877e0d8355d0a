"""The result of `lw.shard_units`, as text and as plain data."""

from typing import Any

from leafwise.core.path import plural
from leafwise.core.results.outline import Doc, Hint, Line, Span
from leafwise.share.shard_units import ShardUnits, UnitTie

_MAX_UNITS = 20  # units that are shown


def to_doc(units: ShardUnits, *, full: bool = False) -> Doc:
    """The ties, each with its fate, and below them the units."""
    lines = []
    for tie in units.ties:
        words = Span("kept", "dim") if tie.kept else Span(_broken(tie), "warn")
        lines.append(Line(0, (Span(str(tie.tie.leaf.path), "name"),), (words,)))
        for name in tie.tie.names[1:]:
            how = f"{name.op} {name.op.describe().strip()}".rstrip() if name.op != "same" else ""
            lines.append(Line(1, (Span(str(name.path), "name"),), (Span(how, "tie"),)))
    footer: list[tuple[Span, ...]] = [(Span("pass these to fully_shard, in this order:"),)]
    most = len(units.paths) if full or len(units.paths) <= _MAX_UNITS else _MAX_UNITS - 2
    footer += [(Span(f"  {_unit_text(paths)}"),) for paths in units.paths[: most - 1]]
    if len(units.paths) > most:
        more = plural(len(units.paths) - most, "more unit", "more units")
        footer.append((Span(Hint(f"  … {more}; text(full=True) shows all", shell=f"  … {more}"), "dim"),))
    footer.append((Span(f"  {_unit_text(units.paths[-1])}"),))
    if not units.ties:
        footer.insert(0, (Span("no ties"),))
    return Doc(lines, footer)


def _broken(tie: UnitTie) -> str:
    places = [f"in {unit}" if unit else "in the model itself" for unit in tie.units]
    return f"broken: {', '.join(places[:-1])}, and {places[-1]}"


def _unit_text(paths: list[str]) -> str:
    return f"[{', '.join(paths)}]" if len(paths) > 1 else paths[0] or "the model"


def to_json(units: ShardUnits) -> dict[str, Any]:
    return {
        "ok": units.ok,
        "ties": [
            {
                "leaf": str(tie.tie.leaf.path),
                "names": [str(name.path) for name in tie.tie.names],
                "units": list(tie.units),
                "kept": tie.kept,
            }
            for tie in units.ties
        ],
        "units": units.paths,
    }
