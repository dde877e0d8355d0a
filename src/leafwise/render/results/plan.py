"""The result of `lw.plan`, as a table and as plain data."""

from typing import Any, NamedTuple

from leafwise.checkpoint.planning.plan import Feed, Plan, Problem, advice
from leafwise.checkpoint.planning.problem_groups import ProblemGroup, counts_text, grouped_problems
from leafwise.core.leaf import shape_text
from leafwise.core.pairing.name_groups import ALL, grouped, grouped_renames
from leafwise.core.path import plural
from leafwise.core.results.outline import Doc, Hint, Line, Span, Style
from leafwise.render.data import TableRows
from leafwise.render.proposals import proposal_lines

_MAX_LINES = 30  # for leaves that get a value, and for each kind of problem, unless `full` is given
_FEW_LEAVES = 12  # leaves that get a value are listed one by one if there are no more than this
_COLUMNS = ("leaves", "shape", "dtype", "how")


def to_doc(plan: Plan, *, full: bool = False) -> Doc:
    """Which leaves get a value, and from where; below, the problems, and what to do about them. What is similar shares
    a line, unless `full`."""
    limit = None if full else _MAX_LINES
    feeds = _feeds(plan)
    each = [_FeedGroup(feed.source, feed.name, [feed]) for feed in feeds]
    groups = each if full or len(feeds) <= _FEW_LEAVES else _feed_groups(plan, feeds)
    lines = [_line(group) for group in groups[:limit]]
    footer: list[tuple[Span, ...]] = []
    if left_out := sum(len(group.feeds) for group in groups[len(lines) :]):
        footer.append((Span(f"… and {plural(left_out, 'more leaf', 'more leaves')} that get a value", "dim"),))
    footer += _problems(plan, plan.problems, "error", "", limit)
    footer += _problems(plan, plan.allowed, "dim", " (allowed)", limit)
    footer += _remarks(plan, groups, limit)
    footer.append(_verdict(plan))
    return Doc(lines, footer, right=frozenset({0}), drop=(2, 1, 0), columns=_COLUMNS)


class _PlannedLeaf(NamedTuple):
    """A leaf that gets a value: its name and its source's, what happens to the value, its shape, its dtypes, and why
    `rename="auto"` renames it."""

    name: str
    source: str
    steps: tuple[str, ...]
    shape: str
    dtype: str
    reason: str


class _FeedGroup(NamedTuple):
    """Leaves that share a line: where their values come from and where they go, as patterns."""

    source: str
    target: str
    feeds: list[_PlannedLeaf]


def _feeds(plan: Plan) -> list[_PlannedLeaf]:
    names = _source_names(plan)
    targets = plan.target.columns.facts([feed.row for feed in plan.feeds])
    sources = plan.source.columns.facts([feed.source for feed in plan.feeds])
    reasons = {pair: proposal.reason for proposal in plan.applied for pair in proposal.pairs}
    planned = []
    for feed, (spec, *_), (given, *_) in zip(plan.feeds, targets, sources, strict=True):
        steps = tuple(step for step in feed.how if step != "matched")
        dtype = f"{given.dtype} → {spec.dtype}" if given.dtype != spec.dtype else spec.dtype
        source = names[feed.source]
        reason = reasons.get((source, feed.name), "")
        planned.append(_PlannedLeaf(feed.name, source, steps, shape_text(spec.shape), dtype, reason))
    return planned


def _feed_groups(plan: Plan, feeds: list[_PlannedLeaf]) -> list[_FeedGroup]:
    """Leaves with the same steps, dtypes and reasons in groups, by their names; or, if they are renamed, by what
    changes."""
    similar: dict[object, list[_PlannedLeaf]] = {}
    for feed in feeds:
        similar.setdefault((feed.steps, feed.dtype, feed.reason, feed.name == feed.source), []).append(feed)
    every_name = [feed.name for feed in feeds] + plan.missing + [problem.name for problem in plan.problems]
    groups: list[_FeedGroup] = []
    for members in similar.values():
        by_name = {feed.name: feed for feed in members}
        if members[0].name == members[0].source:
            groups += [
                _FeedGroup(pattern, pattern, [by_name[name] for name in names])
                for pattern, names in grouped(list(by_name), every_name)
            ]
        else:
            groups += [
                _FeedGroup(old, new, [by_name[name] for _, name in pairs])
                for old, new, pairs in grouped_renames([(feed.source, feed.name) for feed in members])
            ]
    place = {feed.name: number for number, feed in enumerate(feeds)}
    return sorted(groups, key=lambda group: place[group.feeds[0].name])


def _line(group: _FeedGroup) -> Line:
    first, count = group.feeds[0], len(group.feeds)
    target = Span("all leaves" if group.target == group.source == ALL else group.target, "name")
    label = (target,) if group.source == group.target else (Span(group.source, "type"), Span(" → ", "dim"), target)
    shapes = {feed.shape for feed in group.feeds}
    cells = (
        Span(f"({count:,} leaves)" if count > 1 else "", "number"),
        Span(first.shape if len(shapes) == 1 else ""),
        Span(first.dtype, "dim"),
        Span(", ".join(first.steps), "tie"),
    )
    return Line(0, label, cells, (Span(first.reason, "dim"),) if first.reason else ())


def _source_names(plan: Plan) -> dict[int, str]:
    columns = plan.source.columns
    rows = [feed.source for feed in plan.feeds]
    return dict(zip(rows, columns.keys(rows, plan.source.root), strict=True))


def _problems(
    plan: Plan, problems: list[Problem], style: Style, allowed: str, limit: int | None
) -> list[tuple[Span, ...]]:
    groups = grouped_problems(plan, problems)
    if limit is None:
        groups = [ProblemGroup(problem.kind, problem.message, 1) for problem in problems]
    footer: list[tuple[Span, ...]] = []
    shown: dict[str, int] = {}
    left_out: dict[str, int] = {}
    for kind, message, count in groups:
        shown[kind] = shown.get(kind, 0) + 1
        if limit is not None and shown[kind] > limit:
            left_out[kind] = left_out.get(kind, 0) + count
            continue
        label = (Span(f"{kind}{allowed}: ", style),) if kind != "nothing" else ()
        footer.append((*label, Span(_for_shells(message), "" if label and style == "error" else style)))
    footer += [(Span(f"… and {count:,} more {kind}{allowed}", "dim"),) for kind, count in left_out.items()]
    return footer


def _for_shells(message: str) -> str:
    """A message with its option as the command line spells it."""
    return Hint(message, message.replace("pass cast=True to", "pass --cast to"))


def _remarks(plan: Plan, groups: list[_FeedGroup], limit: int | None) -> list[tuple[Span, ...]]:
    """What the table does not say."""
    columns = plan.target.columns
    shown = {(group.source, group.target, len(group.feeds)) for group in groups}
    footer: list[tuple[Span, ...]] = [
        (Span(prefix.describe()),)
        for prefix in plan.prefixes
        if (prefix.source + ALL, prefix.target + ALL, prefix.times) not in shown
    ]
    footer += [(Span(note, "dim"),) for note in plan.notes]
    for restored in plan.restored_ties[:limit]:
        target, source = columns.row_text(restored.request.target), columns.row_text(restored.request.source)
        footer.append((Span(f"restores tie: {target} = {source}{restored.request.op.describe()}", "tie"),))
    if limit is not None and len(plan.restored_ties) > limit:
        footer.append((Span(f"… and {len(plan.restored_ties) - limit:,} more ties", "dim"),))
    lacking = {problem.name for problem in (*plan.problems, *plan.allowed) if problem.kind == "missing"}
    for optimizer in plan.optimizers:
        if not optimizer.states and optimizer.path in lacking:
            continue
        name = optimizer.path or "the optimizer"
        footer.append((Span(f"{name}: state for {plural(len(optimizer.states), 'parameter', 'parameters')}"),))
    fed = {(feed.source, feed.name) for group in groups for feed in group.feeds}
    others = [
        proposal._replace(pairs=pairs)
        for proposal in plan.applied
        if (pairs := tuple(pair for pair in proposal.pairs if pair not in fed))
    ]
    footer += proposal_lines(others, plan.proposals, limit)
    if (hint := advice(plan)) is not None:
        flags = hint.shell.partition("pass ")[2]
        footer += [(Span(hint, "dim"),), (Span(Hint(f"  (in a shell: {flags})", ""), "dim"),)]
    return footer


def _verdict(plan: Plan) -> tuple[Span, ...]:
    covered = "100%" if plan.covered == plan.parameters else f"{plan.coverage:.2%}" if plan.covered else "0%"
    leaves = f"{len(plan.feeds):,} of {plural(plan.leaves, 'leaf', 'leaves')}"
    words = f"{leaves}, {covered} of {plan.parameters:,} parameters get a value"
    if plan.holds:
        return (Span(f"{words} · can be loaded"),)
    counts = counts_text(plan.problems)
    verdict = f"cannot be loaded{f': {counts}' if counts else ''}"
    if plan.only_needs_cast:
        verdict = Hint(f"{verdict}; cast=True would load it", f"{verdict}; --cast would load it")
    return Span(f"{words} · ", "error"), Span(verdict, "error")


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
        "problems": [_problem_json(problem) for problem in plan.problems],
        "allowed": [_problem_json(problem) for problem in plan.allowed],
        "prefixes": [dict(zip(("source", "target", "count"), prefix, strict=True)) for prefix in plan.prefixes],
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


def _problem_json(problem: Problem) -> dict[str, Any]:
    return {"kind": problem.kind, "name": problem.name, "message": problem.message}
