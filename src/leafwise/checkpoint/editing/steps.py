"""What an edit does, for its plan: steps, and problems that prevent it."""

from collections.abc import Collection
from dataclasses import dataclass, field

from leafwise.core.pairing.name_groups import ALL, grouped
from leafwise.core.path import escape


@dataclass
class Step:
    """One step of an edit: what is done, to what, and to which names. `values` counts plain values among them."""

    verb: str
    what: str
    names: list[str] = field(default_factory=list)
    nbytes: int = 0
    values: int = 0


class Steps:
    """The steps of an edit, the problems that prevent it, and remarks."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.problems: list[str] = []
        self.notes: list[str] = []
        self._similar: dict[str, dict[str, str]] = {}  # problems by name, by what is wrong with several of them

    def add(self, verb: str, what: str, names: list[str], nbytes: int = 0, values: int = 0) -> Step:
        self.steps.append(Step(verb, what, names, nbytes, values))
        return self.steps[-1]

    def wrong_name(self, name: str, is_wrong: str, are_wrong: str) -> None:
        """Adds a problem that many names may have: `is in a but not in b`, and `are in a but not in b`."""
        problem = f"{escape(name)} {is_wrong}"
        self.problems.append(problem)
        self._similar.setdefault(are_wrong, {})[name] = problem

    def problem_lines(self, every_name: Collection[str]) -> list[str]:
        """The problems, with one line for those that differ only in similar names."""
        lines = {problem: problem for problem in self.problems}
        for are_wrong, problems in self._similar.items():
            for pattern, names in grouped(list(problems), every_name):
                if len(names) > 1:
                    leaves = f"all {len(names):,} leaves" if pattern == ALL else f"{pattern} ({len(names):,} leaves)"
                    lines |= dict.fromkeys((problems[name] for name in names), f"{escape(leaves)} {are_wrong}")
        return list(dict.fromkeys(lines.values()))

    def matched_nothing(self, option: str, query: object) -> None:
        self.problems.append(f"{option}= {query!r} matches nothing in the source")
