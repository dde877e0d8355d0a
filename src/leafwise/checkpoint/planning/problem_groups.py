"""The problems of a plan as few messages: those that differ only in the name of their leaf share one."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

from leafwise.checkpoint.planning.plan import Kind, Plan, Problem
from leafwise.core.pairing.name_groups import ALL, FEWEST, grouped
from leafwise.core.pairing.row_pairs import saved_rows


class ProblemGroup(NamedTuple):
    """Problems of one kind, and one message for all of them."""

    kind: Kind
    message: str
    times: int


def grouped_problems(plan: Plan, problems: Sequence[Problem]) -> list[ProblemGroup]:
    """Problems in groups, by kind; each is in exactly one group."""
    by_kind: dict[Kind, dict[str, list[Problem]]] = {}
    for number, problem in enumerate(problems):
        # A problem that has nothing in common with another is alone.
        by_kind.setdefault(problem.kind, {}).setdefault(problem.several or f"\0{number}", []).append(problem)

    @cache
    def names(is_source: bool) -> list[str]:  # the leaves that are saved; listed when they are needed
        t = plan.source if is_source else plan.target
        return t.columns.keys([row for row in saved_rows(t) if row not in t.columns.ties], t.root)

    return [
        group
        for kind, messages in by_kind.items()
        for several, members in messages.items()
        for group in _groups(kind, several, members, names)
    ]


def _groups(kind: Kind, several: str, members: list[Problem], names: Callable[[bool], list[str]]) -> list[ProblemGroup]:
    by_name = {problem.name: problem for problem in members}
    if len(members) < FEWEST or len(by_name) < len(members):
        return [ProblemGroup(kind, problem.message, 1) for problem in members]
    groups = []
    among = names(kind == "unexpected")
    for pattern, inside in grouped(list(by_name), among, whole=kind not in ("missing", "unexpected")):
        message = by_name[inside[0]].message if len(inside) == 1 else _message(several, pattern, len(inside))
        groups.append(ProblemGroup(kind, message, len(inside)))
    return groups


def _message(several: str, pattern: str, count: int) -> str:
    if "{count}" in several:
        return several.replace("{count}", f"{count:,}").replace("{}", pattern)
    leaves = f"all {count:,} leaves" if pattern == ALL else f"{pattern} ({count:,} leaves)"
    return several.replace("{}", leaves)


def counts_text(problems: Sequence[Problem]) -> str:
    """How many problems there are of each kind.

    >>> counts_text([Problem("shape", "a", ""), Problem("missing", "b", ""), Problem("shape", "c", "")])
    '2 shape, 1 missing'
    """
    counts = Counter(problem.kind for problem in problems)
    return ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if kind != "nothing")
