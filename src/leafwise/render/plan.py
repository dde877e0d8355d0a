"""The result of `lw.plan`, as a table and as plain data."""

from typing import Any

from leafwise.checkpoint.plan import Feed, Plan, allow_advice
from leafwise.core.leaf import shape_text
from leafwise.core.outline import Doc, Line, Span
from leafwise.render.phrases import plural
from leafwise.render.proposals import proposal_lines
from leafwise.render.table import TableRows

_MAX_LINES = 30  # for leaves that get a value, and for each kind of problem, unless `full` is given


def lower(plan: Plan, *, full: bool = False) -> Doc:
    """A line for each leaf that gets a value, with its source; below, the problems, and what to do about them."""
    limit = None if full else _MAX_LINES
    source_names = _source_names(plan)
    facts = plan.target.columns.facts([feed.row for feed in plan.feeds[:limit]])
    lines = []
    for feed, (spec, *_) in zip(plan.feeds[:limit], facts, strict=True):
        source = source_names[feed.source]
        steps = [step for step in feed.how if step != "matched"]
        cells = (
            Span(f"← {source}" if source != feed.name else "", "type"),
            Span(shape_text(spec.shape)),
            Span(spec.dtype, "dim"),
            Span(", ".join(steps), "tie"),
        )
        lines.append(Line(0, (Span(feed.name, "name"),), cells))
    footer: list[tuple[Span, ...]] = []
    if limit is not None and len(plan.feeds) > limit:
        footer.append(
            (Span(f"… and {plural(len(plan.feeds) - limit, 'more leaf', 'more leaves')} that get a value", "dim"),)
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
    for problems, style, allowed in ((plan.problems, "warn", ""), (plan.allowed, "dim", " (allowed)")):
        counts: dict[str, int] = {}
        for problem in problems:
            counts[problem.kind] = counts.get(problem.kind, 0) + 1
            if limit is None or counts[problem.kind] <= limit:
                words = problem.message if problem.kind == "nothing" else f"{problem.kind}{allowed}: {problem.message}"
                footer.append((Span(words, "warn" if style == "warn" else "dim"),))
        for kind, count in counts.items():
            if limit is not None and count > limit:
                footer.append((Span(f"… and {count - limit:,} more {kind}{allowed}", "dim"),))
    return footer


def _remarks(plan: Plan, limit: int | None) -> list[tuple[Span, ...]]:
    columns = plan.target.columns
    footer: list[tuple[Span, ...]] = [(Span(prefix.describe()),) for prefix in plan.prefixes]
    footer += [(Span(note, "dim"),) for note in plan.notes]
    for restored in plan.restored_ties[:limit]:
        target, source = columns.row_text(restored.request.target), columns.row_text(restored.request.source)
        footer.append((Span(f"restores tie: {target} = {source}{restored.request.op.describe()}", "tie"),))
    for optimizer in plan.optimizers:
        name = optimizer.path or "the optimizer"
        footer.append((Span(f"{name}: state for {plural(len(optimizer.states), 'parameter', 'parameters')}"),))
    footer += proposal_lines(plan.applied, plan.proposals, limit)
    advice = allow_advice(plan)
    if advice:
        kinds = dict.fromkeys(problem.kind for problem in plan.problems)
        flags = " ".join(f"--allow {kind}" for kind in kinds)
        footer += [(Span(advice, "dim"),), (Span(f"  (in a shell: {flags})", "dim"),)]
    return footer


def _summary(plan: Plan) -> str:
    covered = f"{plan.coverage:.2%}" if plan.covered != plan.parameters else "100%"
    leaves = f"{len(plan.feeds):,} of {plural(plan.leaves, 'leaf', 'leaves')}"
    words = f"{leaves}, {covered} of {plan.parameters:,} parameters get a value"
    if plan.holds:
        return f"{words} · can be loaded"
    kinds: dict[str, int] = {}
    for problem in plan.problems:
        kinds[problem.kind] = kinds.get(problem.kind, 0) + 1
    counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if kind != "nothing")
    return f"{words} · cannot be loaded{f': {counts}' if counts else ''}"


def to_table(plan: Plan) -> TableRows:
    """A row for each leaf that would be loaded, and for each problem, allowed or not."""
    source_names = _source_names(plan)
    facts = plan.target.columns.facts([feed.row for feed in plan.feeds])
    columns = ["path", "status", "source", "how", "shape", "dtype", "message"]
    rows: list[dict[str, Any]] = []
    for feed, (spec, *_) in zip(plan.feeds, facts, strict=True):
        loaded = {"path": feed.name, "status": "loaded", "source": source_names[feed.source], "how": feed.how}
        rows.append({**loaded, "shape": spec.shape, "dtype": spec.dtype})
    for problems, suffix in ((plan.problems, ""), (plan.allowed, " (allowed)")):
        rows += [
            {"path": problem.name, "status": f"{problem.kind}{suffix}", "message": problem.message}
            for problem in problems
        ]
    return TableRows(columns, rows)


def to_json(plan: Plan) -> dict[str, Any]:
    """Every leaf with its source, the problems, the allowed problems, and the proposals."""
    source_names = _source_names(plan)
    columns = plan.target.columns
    facts = columns.facts([feed.row for feed in plan.feeds])
    return {
        "holds": plan.holds,
        "coverage": plan.coverage,
        "parameters": plan.parameters,
        "covered": plan.covered,
        "library": plan.library,
        "leaves": [
            _feed_json(plan, feed, source_names[feed.source], spec)
            for feed, (spec, *_) in zip(plan.feeds, facts, strict=True)
        ],
        "kept": plan.kept,
        "problems": [problem._asdict() for problem in plan.problems],
        "allowed": [problem._asdict() for problem in plan.allowed],
        "prefixes": [
            {"source": prefix.source, "target": prefix.target, "count": prefix.times} for prefix in plan.prefixes
        ],
        "ties": [
            {
                "name": columns.row_text(restored.request.target),
                "to": columns.row_text(restored.request.source),
                "op": str(restored.request.op),
            }
            for restored in plan.restored_ties
        ],
        "proposals": [proposal._asdict() for proposal in plan.proposals],
        "applied": [proposal._asdict() for proposal in plan.applied],
        "optimizers": [{"path": optimizer.path, "parameters": len(optimizer.states)} for optimizer in plan.optimizers],
        "notes": plan.notes,
    }


def _feed_json(plan: Plan, feed: Feed, source: str, spec: Any) -> dict[str, Any]:
    recipe = plan.recipes.get(feed.source)
    return {
        "target": feed.name,
        "source": source,
        "sources": [source] if recipe is None else recipe.names(),
        "how": list(feed.how),
        "shape": None if spec.shape is None else list(spec.shape),
        "dtype": spec.dtype,
    }
