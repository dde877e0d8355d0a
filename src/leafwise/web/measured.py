"""The statistics of leaves, measured in the background a few leaves at a time, or when a leaf is opened."""

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any

from leafwise.core.capabilities.measuring import Measuring
from leafwise.core.dtypes import DTYPES
from leafwise.core.parts import first_rows
from leafwise.core.path import escape
from leafwise.core.results.moments import merged_moments, table_columns
from leafwise.core.tree import Tree
from leafwise.inspect.ranks.teamwork import team_of_trees
from leafwise.inspect.stats.rows import Row
from leafwise.inspect.stats.statistics import stats_of
from leafwise.render.phrases import SECTIONS
from leafwise.render.results.stats import clamped_counts
from leafwise.web.answers import num
from leafwise.web.jobs import Job

_BATCH_BYTES, _BATCH_LEAVES = 64 << 20, 256  # measured together, before the page gets news
_LOWEST, _HIGHEST = -20, 3  # the exponents of the first and the last bar of a small histogram


class Measured:
    """The statistics that are known so far, by the number of the leaf. `skipped` has the reason for each leaf that
    cannot be measured. `news` is called whenever there are more."""

    def __init__(self, t: Tree, news: Callable[[], None]) -> None:
        self.tree, self._news = t, news
        self.rows: dict[int, Row] = {}
        self.skipped: dict[int, str] = {}
        self._lock = Lock()
        self.sharded = team_of_trees(t) is not None

    def measure_all(self, job: Job) -> None:
        """Measures every leaf, in the order of the tree."""
        columns = self.tree.columns
        rows = first_rows(self.tree)
        batch: list[int] = []
        waiting = 0
        for row, facts in zip(rows, columns.facts(rows), strict=True):
            leaf = columns.ties.get(row, row)
            if leaf in self.rows or leaf in self.skipped:
                job.heard(facts.spec.nbytes, None)
                continue
            batch.append(leaf)
            waiting += facts.spec.nbytes
            if waiting >= _BATCH_BYTES or len(batch) >= _BATCH_LEAVES:
                self.measure(batch)
                batch, waiting = [], 0
                job.check()
                self._news()
        if batch:
            self.measure(batch)
        self._news()

    def forget(self) -> None:
        """Forgets everything, so that it is measured again."""
        with self._lock:
            self.rows.clear()
            self.skipped.clear()

    def measure(self, leaves: Sequence[int]) -> None:
        """Measures some leaves."""
        if self.sharded:
            self.skipped.update(dict.fromkeys(leaves, "it is sharded over several processes"))
            return
        columns = self.tree.columns
        skipped: dict[int, str] = {}
        for batch in columns.batches(leaves):
            measuring = batch.home.capability(Measuring)
            for leaf, array in zip(batch.rows, batch.values, strict=True):
                if reason := measuring.cannot_measure(array):
                    skipped[leaf] = reason
        rest = [leaf for leaf in leaves if leaf not in skipped]
        measured = stats_of(Tree(columns, 0, rest)).by_leaf() if rest else {}
        with self._lock:
            self.skipped.update(skipped)
            self.rows.update(measured)

    def row(self, leaf: int) -> Row | None:
        """The statistics of a leaf, measured now if they are not known; None if it cannot be measured."""
        if leaf not in self.rows and leaf not in self.skipped:
            self.measure([leaf])
            self._news()
        return self.rows.get(leaf)


def mini(row: Row) -> dict[str, Any]:
    """A few statistics, for a line of the tree."""
    return {
        "mean": num(row.mean),
        "std": num(row.std),
        "absmax": num(row.absmax),
        "zeros": row.zeros,
        "nan": row.nan,
        "inf": row.posinf + row.neginf,
        "bars": bars(row),
    }


def bars(row: Row) -> list[float]:
    """A small histogram: the same powers of two for all leaves, so that lines can be compared."""
    counts = [] if row.histogram is None else clamped_counts(row.histogram, _LOWEST, _HIGHEST)
    most = max(counts, default=0)
    return [round(count / most, 3) for count in counts] if most else []


def columns_json() -> list[dict[str, str]]:
    """The columns of the table of statistics."""
    further = [{"name": name, "heading": heading, "form": "count"} for name, heading in _NOT_FINITE]
    return [
        {"name": name, "heading": column.heading, "form": column.form} for name, column in table_columns()
    ] + further


_NOT_FINITE = (("nan", "NaN"), ("posinf", "+inf"), ("neginf", "-inf"))


def table_row(row: Row, path: str) -> dict[str, Any]:
    """A line of the table of statistics."""
    numbers = []
    for name, column in table_columns():
        value = getattr(row, name)
        numbers.append(num(value / row.finite if row.finite else 0) if column.form == "share" else num(value))
    return {
        "path": path,
        "shape": None if row.shape is None else list(row.shape),
        "dtype": row.dtype,
        "numbers": numbers + [getattr(row, name) for name, _ in _NOT_FINITE],
        "bars": bars(row),
    }


def sums(t: Tree, rows: dict[int, Row]) -> list[dict[str, Any]]:
    """A line for all leaves of each section, each counted once."""
    sections: dict[str, list[Row]] = {}
    for leaf, row in rows.items():
        sections.setdefault(SECTIONS[t.columns.leaf_section(leaf)], []).append(row)
    many = len(sections) > 1
    return [
        {"name": f"total {section}" if many else "total", "row": table_row(Row(merged_moments(members)), "")}
        for section, members in sections.items()
    ]


def statistics_json(row: Row | None, skipped: str | None) -> dict[str, Any]:
    """All statistics of a leaf, with subnormal numbers in a bar of their own."""
    if row is None:
        nothing = dict.fromkeys(("zeros", "subnormals", "nan", "posinf", "neginf"), 0)
        return {"numbers": [], "lowest": 0, "counts": [], **nothing, "skipped": escape(skipped or "not measured")}
    lowest, counts = (row.histogram.lowest, list(row.histogram.counts)) if row.histogram else (0, [])
    floats = DTYPES[row.dtype].range if row.dtype in DTYPES else None
    smallest = None if floats is None else floats.smallest_normal
    # All numbers below the smallest normal one are subnormal, and they are whole bins.
    below = max(0, min(len(counts), smallest - lowest)) if smallest is not None else 0
    if sum(counts[:below]) != row.subnormals:
        below = 0  # the bins do not tell them apart: they stay where they are
    return {
        "numbers": [{"name": name, "value": num(value)} for name, value in row.statistics().items()],
        "lowest": lowest + below,
        "counts": counts[below:],
        "zeros": row.zeros,
        "subnormals": row.subnormals if below else 0,
        "nan": row.nan,
        "posinf": row.posinf,
        "neginf": row.neginf,
        "skipped": None,
    }
