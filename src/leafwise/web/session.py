"""What the viewer shows: one tree, or two that are compared, and what is known about their values so far.

The answers to the requests of the page are in `answers`. Nothing here changes a model or a file.
"""

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

from leafwise.core.leaf import Leaf
from leafwise.core.path import escape, shown_url
from leafwise.core.tree import Counts, Tree
from leafwise.errors import Error, PathError, QueryError
from leafwise.inspect.check.findings import LEVELS, Finding, Findings
from leafwise.inspect.diff.changes import KINDS, Change
from leafwise.render.phrases import bytes_text
from leafwise.web.jobs import Job, Worker
from leafwise.web.lines import LEAF, TreeLines, VisibleLines
from leafwise.web.measured import Measured
from leafwise.web.searching import matching_lines
from leafwise.web.watched_files import WatchedFiles, is_local

if TYPE_CHECKING:
    from leafwise.checkpoint.planning.plan import Plan
    from leafwise.inspect.diff.difference import Diff

# The verbs are imported when they are used: until then, the page is already there.

AUTOMATIC = 8 << 30  # bytes of a file on this machine that are measured without being asked


class Session:
    """The trees, the computations in the background, and their results. `names` are the names of the trees as the user
    gave them. `measure` says whether to measure everything; None decides by the size. `version` grows with every
    result, and `lock` is held while an answer is put together."""

    def __init__(self, trees: Sequence[Tree], names: Sequence[str], measure: bool | None = None) -> None:
        self.tree, self.other = trees[0], trees[1] if len(trees) > 1 else None
        self.names = [escape(shown_url(name)) for name in names]
        self.lock = RLock()
        self.version = 1
        self.lines = TreeLines(self.tree)
        self.listing = VisibleLines(self.lines, lambda query: matching_lines(self.lines, query), self._sort_key)
        self.measured = Measured(self.tree, self._news)
        self.sums: tuple[int, list[dict[str, Any]]] = 0, []  # of the statistics, with the version they are of
        self.findings: Findings | None = None
        self.findings_of_leaf: dict[int, list[Finding]] = {}
        self.not_checked: set[int] = set()  # leaves whose values the check could not read
        self.diff: Diff | None = None
        self.changes: dict[int, Change] = {}  # of the leaves of the first tree, by their numbers
        self.plan_rows: list[dict[str, Any]] | None = None  # the lines of the plan, once they are made
        self.files = WatchedFiles(trees)
        self._worker = Worker(self._news)
        self.structure = Job(lambda job: self._compare(values=False), 0, None)  # fast, so it does not count as a job
        self.jobs = self._make_jobs(trees, measure)

    def close(self) -> None:
        """Stops the computations."""
        self._worker.close()

    def _news(self) -> None:
        self.version += 1

    # -- computations ------------------------------------------------------------------------------------

    def _make_jobs(self, trees: Sequence[Tree], measure: bool | None) -> dict[str, Job]:
        total = self.counts.local_bytes
        reason = None if measure else why_not_measured(trees)
        if measure is False:
            reason = "values are read only when a leaf is opened"
        if self.measured.sharded:
            reason = "leaves are sharded over several processes; call lw.stats and lw.check on every rank"
        jobs = {
            "stats": Job(self.measured.measure_all, total, reason),
            "findings": Job(self._check, total, reason),
        }
        if self.other is not None:
            jobs["diff"] = Job(lambda job: self._compare(values=True), total, reason)
            self._worker.start(self.structure)
        if reason is None:
            for job in jobs.values():
                self._worker.start(job)
        return jobs

    def start(self, what: str) -> None:
        """Starts a computation that is off, or that has failed. "again" starts all that have ended, if a model is
        shown."""
        if what == "again":
            self.measure_again()
            return
        if what not in self.jobs:
            raise QueryError(f"there is nothing called {what!r} to start; there are {', '.join(self.jobs)}")
        if self.measured.sharded:
            raise QueryError(self.jobs[what].message or "leaves are sharded")
        self._worker.start(self.jobs[what])

    def measure_again(self) -> None:
        """Starts the computations that have ended again, if a model is shown: its values may be others by now."""
        if all(t.is_file for t in (self.tree, self.other) if t is not None):
            return
        ended = [job for job in self.jobs.values() if job.state == "done"]
        if self.jobs["stats"] in ended:
            self.measured.forget()
        for job in ended:
            job.state = "off"
            self._worker.start(job)

    def _check(self, job: Job) -> None:
        from leafwise.inspect.check.linter import findings_of

        findings = findings_of(self.tree)
        by_leaf: dict[int, list[Finding]] = {}
        for finding in findings:
            if finding.path and (leaf := self.leaf_number(finding.path)) is not None:
                by_leaf.setdefault(leaf, []).append(finding)
        skipped = {leaf for path in findings.skipped if (leaf := self.leaf_number(path)) is not None}
        with self.lock:
            self.findings, self.findings_of_leaf, self.not_checked = findings, by_leaf, skipped

    def _compare(self, values: bool) -> None:
        from leafwise.inspect.diff.difference import diff_of

        diff = diff_of(self.tree, self.other, None, values, False)
        leaves = [change for change in diff if "added" not in change.kinds and not change.is_plain]
        changes = {leaf: change for change in leaves if (leaf := self.leaf_number(change.path)) is not None}
        with self.lock:
            self.diff, self.changes = diff, changes
        self._news()

    @cached_property
    def plan(self) -> "tuple[Plan | None, str]":
        """The plan of loading one tree into the other; or None, and the reason. A model is loaded into; of two files,
        the second would be loaded into the first."""
        if self.other is None:
            return None, "only one tree is shown"
        from leafwise.checkpoint.planning.planner import plan as make_plan

        target, source = (self.other, self.tree) if self.loads_into_other else (self.tree, self.other)
        try:
            return make_plan(target, source), ""
        except Error as error:
            return None, str(error)

    @property
    def loads_into_other(self) -> bool:
        """Whether the first tree is a file, and the second a model that can be loaded into."""
        return self.other is not None and self.tree.is_file and not self.other.is_file

    # -- leaves and their facts --------------------------------------------------------------------------

    @cached_property
    def counts(self) -> Counts:
        """The counts of the first tree."""
        return self.tree.counts

    @property
    def title(self) -> str:
        """The name of the first tree, without folders."""
        return short_name(self.names[0])

    def health(self, leaf: int) -> str | None:
        """The worst finding of a leaf; "ok" if there is none, and None if that is not known."""
        if self.findings is None:
            return None
        levels = [finding.level for finding in self.findings_of_leaf.get(leaf, ())]
        if not levels and leaf in self.not_checked:
            return None
        return min(levels, key=LEVELS.index) if levels else "ok"

    def line(self, path: str) -> int:
        """The line at a path."""
        line = self.lines.line_at(path)
        if line is None:
            raise PathError(f"there is nothing at {escape(path)!r}")
        return line

    def leaf_number(self, path: str) -> int | None:
        """The number of the leaf at a path; None if there is no leaf."""
        line = self.lines.line_at(path)
        return None if line is None or self.lines.kinds[line] != LEAF else self.lines.leaf(line)

    def leaf(self, path: str) -> Leaf:
        """The leaf at a path."""
        line = self.line(path)
        if self.lines.kinds[line] != LEAF:
            raise PathError(f"{escape(path)!r} is not a leaf")
        return self.tree.columns.leaf_of(self.lines.places[line])

    def _sort_key(self, sort: str) -> Callable[[int], Any]:
        lines, counted = self.lines, self.lines.counted
        if sort == "path":
            return lines.path
        if sort in ("bytes", "size", "dtype"):
            fact = attrgetter("nbytes" if sort == "bytes" else sort)
            return lambda line: fact(counted[line].spec)
        if sort == "change":
            return lambda line: change_key(self.changes.get(lines.leaf(line)))
        return lambda line: stats_key(self.measured.rows.get(lines.leaf(line)), sort)


def why_not_measured(trees: Sequence[Tree]) -> str | None:
    """Why not everything is measured without being asked; None if it is."""
    for t in trees:
        size = t.counts.local_bytes
        if not is_local(t):
            return f"{bytes_text(size)} would be downloaded"
        if t.is_file and size > AUTOMATIC:
            return f"{bytes_text(size)} would be read"
    return None


def stats_key(row: Any, name: str) -> tuple[bool, float]:
    """Leaves without statistics come first, and last if the order is descending."""
    value = None if row is None else getattr(row, name)
    return (False, 0.0) if value is None or value != value else (True, value)


def change_key(change: Change | None) -> tuple[int, float]:
    """By the importance of the kind of change, then by its size."""
    if change is None:
        return -1, 0.0
    amount = 0.0 if change.comparison is None else float(change.comparison.relative_l2)
    return len(KINDS) - KINDS.index(change.kind), amount if amount == amount else float("inf")


def short_name(name: str) -> str:
    """A name without folders."""
    return os.path.basename(name.rstrip("/")) or name
