"""What `lw.plan` found, as a table and as plain data."""

from typing import Any

from leafwise.checkpoint.plans import Feed, Plan
from leafwise.core.doc import Doc, Line, Span
from leafwise.core.leaf import shape_text
from leafwise.core.proposals import Proposal
from leafwise.render.outline import plural

_MAX_LINES = 30  # of leaves that go through, and of each kind of problem, unless all are asked for


def plan_doc(plan: Plan, *, full: bool = False) -> Doc:
    """A line for each leaf that gets a value, with where it comes from; below, what is wrong, and how to go on."""
    limit = None if full else _MAX_LINES
    theirs = _source_names(plan)
    facts = plan.target.columns.facts([feed.row for feed in plan.feeds[:limit]])
    lines = []
    for feed, (spec, _, _) in zip(plan.feeds[:limit], facts, strict=True):
        source = theirs[feed.source]
        words = [word for word in feed.how if word != "matched"]
        cells = (
            Span(f"← {source}" if source != feed.name else "", "type"),
            Span(shape_text(spec.shape)),
            Span(spec.dtype, "dim"),
            Span(", ".join(words), "tie"),
        )
        lines.append(Line(0, (Span(feed.name, "name"),), cells))
    footer: list[tuple[Span, ...]] = []
    if limit is not None and len(plan.feeds) > limit:
        footer.append(
            (Span(f"… and {plural(len(plan.feeds) - limit, 'leaf', 'leaves')} more that get a value", "dim"),)
        )
    footer += _problems(plan, limit) + _remarks(plan, limit)
    footer.append((Span(_summary(plan), "" if plan.holds else "warn"),))
    return Doc(lines, footer, drop=(2,))


def _source_names(plan: Plan) -> dict[int, str]:
    columns = plan.source.columns
    rows = [feed.source for feed in plan.feeds]
    return dict(zip(rows, columns.keys(rows, plan.source.root), strict=True))


def _problems(plan: Plan, limit: int | None) -> list[tuple[Span, ...]]:
    footer: list[tuple[Span, ...]] = []
    for found, style, allowed in ((plan.problems, "warn", ""), (plan.allowed, "dim", " (allowed)")):
        counts: dict[str, int] = {}
        for problem in found:
            counts[problem.kind] = counts.get(problem.kind, 0) + 1
            if limit is None or counts[problem.kind] <= limit:
                words = f"{problem.kind}{allowed}: {problem.message}"
                footer.append((Span(words, "warn" if style == "warn" else "dim"),))
        for kind, count in counts.items():
            if limit is not None and count > limit:
                footer.append((Span(f"… and {count - limit:,} more {kind}{allowed}", "dim"),))
    return footer


def _remarks(plan: Plan, limit: int | None) -> list[tuple[Span, ...]]:
    columns = plan.target.columns
    footer: list[tuple[Span, ...]] = [(Span(prefix.describe()),) for prefix in plan.prefixes]
    footer += [(Span(note, "dim"),) for note in plan.notes]
    for back in plan.back[:limit]:
        target, source = columns.row_text(back.wish.target), columns.row_text(back.wish.source)
        footer.append((Span(f"tie comes back: {target} = {source}{back.wish.op.describe()}", "tie"),))
    for optimizer in plan.optimizers:
        name = optimizer.path or "the optimizer"
        footer.append((Span(f"{name}: state for {plural(len(optimizer.states), 'parameter', 'parameters')}"),))
    return footer + proposed(plan.applied, plan.proposals, limit)


def proposed(applied: list[Proposal], proposals: list[Proposal], limit: int | None) -> list[tuple[Span, ...]]:
    """Renames that were taken, that could be, and that only might be right; and what to give for them."""
    certain = [proposal for proposal in proposals if proposal.certain]
    lines: list[str] = []
    for label, some in (("renamed", applied), ("would rename", certain)):
        for proposal in some[:limit]:
            lines += _rename_lines(label, proposal)
        lines += _more(len(some), limit, label)
    groups: dict[object, list[Proposal]] = {}
    for proposal in proposals:
        if not proposal.certain:
            groups.setdefault((proposal.sources, proposal.targets), []).append(proposal)
    for group in list(groups.values())[:limit]:
        lines += _group_lines(group, limit)
    lines += _more(len(groups), limit, "may be")
    if certain:
        lines.append('rename="auto" (--auto) applies what it would rename here')
    if groups:
        lines.append('rename="auto" does not apply what may be: give rename= (--rename) what is right')
    last = len(lines) - bool(certain) - bool(groups)
    return [(Span(line, "tie" if number < last else "dim"),) for number, line in enumerate(lines)]


_WIDTH = 80


def _more(count: int, limit: int | None, label: str) -> list[str]:
    return [f"… and {count - limit:,} more: {label}"] if limit is not None and count > limit else []


def _rename_lines(label: str, proposal: Proposal) -> list[str]:
    """A rename in one line, or in two where one would be too long."""
    old, new = proposal.pairs[0]
    count = f" and {len(proposal.pairs) - 1:,} like it" if len(proposal.pairs) > 1 else ""
    start, middle, end = f"{label}: {old}", f"→ {new}", f"{count} ({proposal.reason})"
    if len(start) + 1 + len(middle) + len(end) <= _WIDTH:
        return [f"{start} {middle}{end}"]
    return [start, f"  {middle}{end}"] if 2 + len(middle) + len(end) <= _WIDTH else [start, f"  {middle}", f" {end}"]


def _group_lines(group: list[Proposal], limit: int | None) -> list[str]:
    """Renames of which any could be right, and what else has the same shape."""
    lines = [line for proposal in group[:limit] for line in _rename_lines("may be", proposal)]
    lines += _more(len(group), limit, "may be")
    for word, names, side in (("→", group[0].targets, 1), ("←", group[0].sources, 0)):
        paired = {proposal.pairs[0][side] for proposal in group}
        others = [name for name in names if name not in paired]
        lines += [f"  or {word} {name}" for name in others[:limit]] + _more(len(others), limit, f"or {word}")
    if len(group) > 1:
        lines.append(f"  these {len(group):,} have one shape, and nothing says that they are not swapped")
    return lines


def _summary(plan: Plan) -> str:
    covered = f"{plan.coverage:.2%}" if plan.covered != plan.parameters else "100 %"
    leaves = f"{len(plan.feeds):,} of {plural(plan.leaves, 'leaf', 'leaves')}"
    words = f"{leaves}, {covered} of {plan.parameters:,} parameters get a value"
    if plan.holds:
        return f"{words} · the plan holds"
    kinds: dict[str, int] = {}
    for problem in plan.problems:
        kinds[problem.kind] = kinds.get(problem.kind, 0) + 1
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if kind != "nothing")
    return f"{words} · the plan does not hold{f': {counts}' if counts else ''}"


def plan_json(plan: Plan) -> dict[str, Any]:
    """Every leaf with where it comes from, what is wrong, what is allowed, and what is proposed."""
    theirs = _source_names(plan)
    columns = plan.target.columns
    facts = columns.facts([feed.row for feed in plan.feeds])
    return {
        "holds": plan.holds,
        "coverage": plan.coverage,
        "parameters": plan.parameters,
        "covered": plan.covered,
        "leaves": [
            _feed_json(feed, theirs[feed.source], spec) for feed, (spec, _, _) in zip(plan.feeds, facts, strict=True)
        ],
        "problems": [problem._asdict() for problem in plan.problems],
        "allowed": [problem._asdict() for problem in plan.allowed],
        "prefixes": [{"source": one.source, "target": one.target, "count": one.times} for one in plan.prefixes],
        "ties": [
            {
                "name": columns.row_text(one.wish.target),
                "to": columns.row_text(one.wish.source),
                "op": str(one.wish.op),
            }
            for one in plan.back
        ],
        "proposals": [proposal._asdict() for proposal in plan.proposals],
        "applied": [proposal._asdict() for proposal in plan.applied],
        "optimizers": [{"path": one.path, "parameters": len(one.states)} for one in plan.optimizers],
        "notes": plan.notes,
    }


def _feed_json(feed: Feed, source: str, spec: Any) -> dict[str, Any]:
    return {
        "target": feed.name,
        "source": source,
        "how": list(feed.how),
        "shape": None if spec.shape is None else list(spec.shape),
        "dtype": spec.dtype,
    }
