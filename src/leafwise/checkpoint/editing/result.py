"""The result of `lw.edit`: its steps, or the problems that prevent it, and what it writes."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from leafwise.core.pairing.name_groups import ALL, grouped
from leafwise.core.path import escape
from leafwise.core.results.result import Table


@dataclass
class Step:
    """One step of an edit: what is done, to what, and to which names. `values` counts plain values among them."""

    verb: str
    what: str
    names: list[str] = field(default_factory=list)
    nbytes: int = 0
    values: int = 0


class EditedLeaf(NamedTuple):
    """An array of the new checkpoint: its name, the arrays of the source that it is made from, what was changed, and
    the name that it is tied to, if it is not stored by itself."""

    name: str
    sources: tuple[str, ...]
    changes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    tied_to: str = ""


class EditSize(NamedTuple):
    """How much a checkpoint contains."""

    leaves: int
    names: int
    nbytes: int
    values: int


class Edit(Table, kind="edit"):
    """What `lw.edit` did, or, with `dry_run=True`, would do.

    `steps` lists what was changed, `leaves` the arrays of the new checkpoint, `before` and `after` how much each
    checkpoint contains, and `notes` remarks. `path` is the file that was written, or would be; `written` is whether it
    was.

    >>> import torch, leafwise as lw
    >>> source = {"encoder.weight": torch.zeros(4, 4), "head.weight": torch.zeros(2, 4), "epoch": 3}
    >>> print(lw.edit(source, "encoder.safetensors", drop="head.**", set={"epoch": 0}, dry_run=True))
    drop  head.**  1 leaf  −32 B
    set   epoch = 3 → 0
    <BLANKLINE>
    2 leaves, 96 B, 1 plain value → 1 leaf, 64 B, 1 plain value
    dry run: encoder.safetensors was not written
    """

    def __init__(
        self,
        path: str,
        steps: list[Step],
        leaves: list[EditedLeaf],
        before: EditSize,
        after: EditSize,
        notes: list[str],
    ) -> None:
        self.path, self.steps, self.leaves, self.notes = path, steps, leaves, notes
        self.before, self.after = before, after
        self.written = False


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
