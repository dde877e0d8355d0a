"""What the viewer shows: one tree, or two that are compared, and what is known about their values so far.

Each method with the name of a request of the page (`rows`, `map`, `leaf` …) returns its answer as plain data; the types
of all answers are in page/src/types.ts. Only `start` begins anything, and nothing here changes a model or a file.
"""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import RLock
from typing import Any

from leafwise import __version__
from leafwise.checkpoint.plan import Plan
from leafwise.checkpoint.planner import plan as make_plan
from leafwise.core.leaf import Leaf, shape_text
from leafwise.core.path import escape, shown_url, without_secrets
from leafwise.core.tree import Tree
from leafwise.errors import Error, PathError, QueryError
from leafwise.inspect.check.findings import LEVELS, Finding, Findings
from leafwise.inspect.check.linter import findings_of
from leafwise.inspect.diff.changes import KINDS
from leafwise.inspect.diff.difference import Diff, diff_of
from leafwise.render.phrases import bytes_text, value_text
from leafwise.web.comparing import change_json, kind_counts, plan_rows
from leafwise.web.jobs import Job, Worker
from leafwise.web.leaf_facts import LeafFacts
from leafwise.web.lines import LEAF, NODE, SORTS, Asked, Lines, Listing
from leafwise.web.measured import Measured, columns_json, mini, statistics_json, sums, table_row
from leafwise.web.numbers import num
from leafwise.web.searching import matching_lines
from leafwise.web.treemap import COLORS, Paint, TreeMap
from leafwise.web.watched_files import WatchedFiles, is_local

AUTOMATIC = 8 << 30  # bytes of a file on this machine that are measured without being asked
LEAF_AUTOMATIC = 256 << 20  # bytes of a leaf that are measured and drawn when it is opened
MOST_ROWS = 500  # in one answer
_MOST_LISTED = 100  # ties, metadata and reasons
_LONGEST = 300  # characters of a plain value, or of metadata


class Session:
    """The trees, and the computations in the background. `names` are the names of the trees as the user gave them.
    `measure` says whether to measure everything: None decides by the size."""

    def __init__(self, trees: Sequence[Tree], names: Sequence[str], measure: bool | None = None) -> None:
        self.tree, self.other = trees[0], trees[1] if len(trees) > 1 else None
        self.names = [escape(shown_url(name)) for name in names]
        self._lock = RLock()
        self.version = 1
        self.lines = Lines(self.tree)
        self.listing = Listing(self.lines, lambda query: matching_lines(self.lines, query), self._sort_key)
        self.measured = Measured(self.tree, self._news)
        self.findings_found: Findings | None = None
        self._health: dict[int, str] = {}
        self._findings_of_leaf: dict[int, list[Finding]] = {}
        self.diff_found: Diff | None = None
        self._files = WatchedFiles(trees)
        self._worker = Worker(self._news)
        self.jobs = self._make_jobs(measure)

    def close(self) -> None:
        """Stops the computations."""
        self._worker.close()

    def _news(self) -> None:
        self.version += 1

    # -- jobs --------------------------------------------------------------------------------------------

    def _make_jobs(self, measure: bool | None) -> dict[str, Job]:
        total = self.tree.counts.local_bytes
        trees = [self.tree] + ([self.other] if self.other is not None else [])
        reason = None if measure else why_not_measured(trees)
        if measure is False:
            reason = "values are read only when a leaf is opened"
        if self.measured.sharded:
            reason = "leaves are sharded over several processes; call lw.stats and lw.check on every rank"
        jobs = {
            "stats": Job(self.measured.measure_all, total, reason),
            "findings": Job(self._find, total, reason),
        }
        if self.other is not None:
            jobs["diff"] = Job(self._compare, total, reason)
            structure = Job(self._compare_structure, 0, None)
            self._worker.start(structure)
            self._structure = structure
        if reason is None:
            for job in jobs.values():
                self._worker.start(job)
        return jobs

    def start(self, what: str) -> None:
        """Starts a computation that is off."""
        if what not in self.jobs:
            raise QueryError(f"there is nothing called {what!r} to start; there are {', '.join(self.jobs)}")
        if self.measured.sharded:
            raise QueryError(self.jobs[what].message or "leaves are sharded")
        self._worker.start(self.jobs[what])

    def _find(self, job: Job) -> None:
        findings = findings_of(self.tree)
        by_leaf: dict[int, list[Finding]] = {}
        for finding in findings:
            if finding.path and (line := self.lines.line_at(finding.path)) is not None and self._is_leaf(line):
                by_leaf.setdefault(self.lines.leaf(line), []).append(finding)
        with self._lock:
            self.findings_found, self._findings_of_leaf = findings, by_leaf
            self._health = {
                leaf: min((finding.level for finding in found), key=LEVELS.index) for leaf, found in by_leaf.items()
            }

    def _compare_structure(self, job: Job) -> None:
        self._set_diff(diff_of(self.tree, self.other, None, False, False))

    def _compare(self, job: Job) -> None:
        self._set_diff(diff_of(self.tree, self.other, None, True, False))

    def _set_diff(self, diff: Diff) -> None:
        changes = {}
        for change in diff:
            line = self.lines.line_at(change.path) if "added" not in change.kinds else None
            if line is not None and self._is_leaf(line):
                changes[self.lines.leaf(line)] = change
        with self._lock:
            self.diff_found, self._changes = diff, changes
        self._news()

    _changes: dict[int, Any] = {}  # noqa: RUF012

    # -- the whole ---------------------------------------------------------------------------------------

    def summary(self) -> dict[str, Any]:
        t = self.tree
        views = ["tree", "map", "stats", "findings"]
        if self.other is not None:
            views.insert(0, "diff")
            views += ["plan"] if self._plan[0] is not None else []
        return {
            "title": " → ".join(os.path.basename(name.rstrip("/")) or name for name in self.names),
            "kind": self._kind(t),
            "version": __version__,
            "names": self.names,
            "views": views,
            "counts": t.counts._asdict(),
            "dtypes": [_total_json(total) for total in t.by("dtype")],
            "roles": [_total_json(total) for total in t.by("role")],
            "ties": self._ties(),
            "tie_count": len({t.columns.ties.get(row) for row in t.rows} - {None}),
            "metadata": self._metadata(),
            "notes": self._notes(),
            "live": not t.is_file,
            "exported": False,
        }

    def _kind(self, t: Tree) -> str:
        root = t.columns.node_objects[0]
        return escape(str(getattr(root, "format", "checkpoint")) if t.is_file else t.columns.type_name(t.root))

    def _ties(self) -> list[dict[str, Any]]:
        columns = self.tree.columns
        ties: list[dict[str, Any]] = []
        for row in self.tree.first_rows if columns.ties else ():
            leaf = columns.ties.get(row, row)
            if leaf in columns.further_rows:
                names = [
                    {"path": columns.row_text(name), "op": str(columns.row_op(name))} for name in columns.rows_of(leaf)
                ]
                ties.append({"path": columns.row_text(leaf), "names": names})
                if len(ties) == _MOST_LISTED:
                    break
        return ties

    def _metadata(self) -> list[dict[str, str]]:
        root = self.tree.columns.node_objects[0]
        metadata = getattr(root, "metadata", None) if self.tree.is_file else None
        items = list(metadata.items())[:_MOST_LISTED] if isinstance(metadata, dict) else []
        return [{"name": _cut(str(name)), "value": _cut(str(value))} for name, value in items]

    def _notes(self) -> list[str]:
        t = self.tree
        notes = [f"{undone}; {undone.repair()}" for undone in t.undone[:_MOST_LISTED]]
        if shared := t.shared_memory:
            notes.append(f"{len(shared):,} groups of leaves share memory and are not tied: {shared[0].reason}; in the map, their bytes count for each of them")
        if opaque := t.opaque:
            notes.append(f"{len(opaque):,} objects are of classes that leafwise does not load: {opaque[0].class_name} …")
        return [escape(without_secrets(note)) for note in notes]

    def progress(self) -> dict[str, Any]:
        jobs = {name: job.json() for name, job in self.jobs.items()}
        return {"version": self.version, "diff": None, **jobs, "warning": self._files.warning()}

    # -- the tree ----------------------------------------------------------------------------------------

    def rows(self, asked: Asked, first: int, count: int) -> dict[str, Any]:
        if asked.sort not in SORTS:
            raise QueryError(f"there is no order {asked.sort!r}; there are {', '.join(SORTS)}")
        with self._lock:
            try:
                visible, matches = self.listing.visible(asked, self.version)
            except QueryError as error:
                return {"total": 0, "from": 0, "rows": [], "matches": 0, "error": escape(str(error))}
            window = visible[first : first + min(count, MOST_ROWS)]
            return {
                "total": len(visible),
                "from": first,
                "rows": self.row_json(window, asked),
                "matches": matches,
                "error": None,
            }

    def find(self, path: str, asked: Asked) -> dict[str, Any]:
        line = self._line(path)
        with self._lock:
            try:
                index, toggled = self.listing.place_of(line, asked, self.version)
            except QueryError:
                return {"index": None, "toggled": list(asked.toggled)}
        return {"index": index, "toggled": list(toggled)}

    def row_json(self, window: Sequence[int], asked: Asked) -> list[dict[str, Any]]:
        """Lines as the page shows them."""
        lines, columns = self.lines, self.tree.columns
        toggled = set(asked.toggled)
        depth = asked.depth if not asked.query else len(lines)
        names = [lines.places[line] for line in window if lines.kinds[line] == LEAF]
        facts = dict(zip(names, columns.facts(names), strict=True)) if names else {}
        roles = dict(zip(names, columns.row_roles(names), strict=True)) if names else {}
        answer = []
        for line in window:
            kind, place = lines.kinds[line], lines.places[line]
            leaves, size, memory = lines.totals(line)
            row = {
                **_NO_FACTS,
                "id": line,
                "kind": ("node", "leaf", "value")[kind],
                "path": lines.path(line),
                "name": lines.name(line) or (self.title if line == 0 else '""'),
                "depth": lines.depths[line],
                "size": size,
                "bytes": memory,
                "leaves": leaves,
                "end": lines.ends[line],
            }
            if kind == NODE:
                row["open"] = (lines.depths[line] < depth) != (line in toggled)
                row["type"] = self._type(place)
            elif kind == LEAF:
                row |= self._leaf_row(line, facts[place], roles[place][0])
            else:
                row["value"] = _cut(value_text(lines.values[place][1]))
            answer.append(row)
        return answer

    @property
    def title(self) -> str:
        return os.path.basename(self.names[0].rstrip("/")) or self.names[0]

    def _type(self, node: int) -> str:
        columns = self.tree.columns
        same = f", same as {columns.node_text(columns.repeats[node])}" if node in columns.repeats else ""
        return escape((columns.type_name(node) or "") + same) if not self.tree.is_file or same else ""

    def _leaf_row(self, line: int, facts: Any, role: str | None) -> dict[str, Any]:
        lines, columns = self.lines, self.tree.columns
        place, leaf = lines.places[line], lines.leaf(line)
        spec = facts.spec
        row = self.measured.rows.get(leaf)
        tied = None
        if line not in lines.counted:
            tied = {"to": columns.row_text(leaf), "op": str(columns.row_op(place))}
        change = self._changes.get(leaf)
        return {
            "shape": None if spec.shape is None else list(spec.shape),
            "dtype": spec.dtype,
            "role": role,
            "group": facts.kind,
            "trainable": spec.trainable,
            "tied": tied,
            "shared": len(columns.further_rows[leaf]) + 1 if leaf in columns.further_rows else 0,
            "health": self.health(leaf),
            "stats": None if row is None else mini(row),
            "change": None if change is None else change.kind,
        }

    def health(self, leaf: int) -> str | None:
        """The worst finding of a leaf; "ok" if there is none, and None if that is not known."""
        if self.findings_found is None:
            return None
        return self._health.get(leaf, "ok")

    def _sort_key(self, sort: str) -> Callable[[int], Any]:
        lines, counted = self.lines, self.lines.counted
        if sort == "path":
            return lines.path
        if sort in ("bytes", "size"):
            return lambda line: counted[line].spec.nbytes if sort == "bytes" else counted[line].spec.size
        if sort == "dtype":
            return lambda line: counted[line].spec.dtype
        if sort == "change":
            return lambda line: _change_key(self._changes.get(lines.leaf(line)))
        return lambda line: _stats_key(self.measured.rows.get(lines.leaf(line)), sort)

    # -- the map -----------------------------------------------------------------------------------------

    def map(self, path: str, color: str) -> dict[str, Any]:
        line = self._line(path)
        if self.lines.kinds[line] != NODE:
            line = self.lines.parents[line]
        colors = [name for name in COLORS if name != "change" or self.other is not None]
        if color not in colors:
            raise QueryError(f"there is no color {color!r}; there are {', '.join(colors)}")
        with self._lock:
            return TreeMap(self.lines, line, self._paint(color)).json(color, colors)

    def _paint(self, color: str) -> Paint:
        columns = self.tree.columns
        if color == "dtype":
            return Paint(lambda leaf: columns.facts([leaf])[0].spec.dtype)
        if color == "role":
            return Paint(lambda leaf: columns.row_role(leaf)[0] or "no role")
        if color == "health":
            return Paint(self.health)
        if color == "change":
            return Paint(self._amount_of_change, True, "relative L2 distance")
        return Paint(self._magnitude, True, "log2 of the root mean square")

    def _magnitude(self, leaf: int) -> float | None:
        import math

        row = self.measured.rows.get(leaf)
        if row is None or not row.finite or not row.l2:
            return None
        return math.log2(row.l2 / math.sqrt(row.finite))

    def _amount_of_change(self, leaf: int) -> float | None:
        change = self._changes.get(leaf)
        if change is None or self.diff_found is None or not self.diff_found.values:
            return None
        if change.comparison is not None:
            return float(change.comparison.relative_l2)
        return 0.0 if change.kind in ("same", "renamed", "tied", "untied") else None

    # -- a leaf ------------------------------------------------------------------------------------------

    def leaf(self, path: str) -> dict[str, Any]:
        line, leaf = self._leaf_at(path)
        with self._lock:
            found = self._findings_of_leaf.get(leaf.number, [])
            change = self._changes.get(leaf.number)
            return {
                **LeafFacts(self.tree, leaf).json(),
                "findings": [self._finding_json(finding) for finding in found],
                "change": None if change is None else change_json(change, True),
                "previous": self._neighbour(line, -1),
                "next": self._neighbour(line, 1),
                "read_bytes": leaf.nbytes,
                "automatic": leaf.nbytes <= (LEAF_AUTOMATIC if not self.is_remote else LEAF_AUTOMATIC >> 4),
            }

    @cached_property
    def is_remote(self) -> bool:
        return not is_local(self.tree)

    def _neighbour(self, line: int, step: int) -> str | None:
        lines = self.lines
        at = line + step
        while 0 <= at < len(lines):
            if lines.kinds[at] == LEAF:
                return lines.path(at)
            at += step
        return None

    def statistics(self, path: str) -> dict[str, Any]:
        _, leaf = self._leaf_at(path)
        row = self.measured.row(leaf.number)
        return statistics_json(row, self.measured.skipped.get(leaf.number))

    def norms(self, path: str) -> dict[str, Any] | None:
        from leafwise.web.norms import norms_of

        _, leaf = self._leaf_at(path)
        return norms_of(leaf)

    def scale(self, path: str, layout: str) -> dict[str, Any]:
        from leafwise.web.leaf_pictures import scale_of

        _, leaf = self._leaf_at(path)
        return scale_of(leaf, layout, self.measured.rows.get(leaf.number))

    def tile(self, path: str, layout: str, level: int, y: int, x: int, limit: float) -> tuple[bytes, int]:
        from leafwise.web.pictures import layout_of, tile_png

        _, leaf = self._leaf_at(path)
        return tile_png(layout_of(leaf, layout), level, y, x, limit)

    def value(self, path: str, layout: str, row: int, column: int) -> dict[str, Any]:
        from leafwise.web.leaf_pictures import value_of

        _, leaf = self._leaf_at(path)
        return value_of(leaf, layout, row, column)

    # -- tables ------------------------------------------------------------------------------------------

    def findings(self, level: str, code: str, first: int, count: int) -> dict[str, Any]:
        found = self.findings_found
        rows = [
            finding
            for finding in found or ()
            if (not level or finding.level == level) and (not code or finding.code == code)
        ]
        codes = Counter((finding.code, finding.level) for finding in found or ())
        return {
            "job": self.jobs["findings"].json(),
            "total": len(rows),
            "from": first,
            "rows": [self._finding_json(finding) for finding in rows[first : first + min(count, MOST_ROWS)]],
            "levels": {name: 0 if found is None else len(found.of(name)) for name in LEVELS},
            "codes": [{"code": code, "level": level, "count": times} for (code, level), times in codes.items()],
            "checked": 0 if found is None else found.checked,
            "skipped": [] if found is None else _reasons(found.skipped),
        }

    def _finding_json(self, finding: Finding) -> dict[str, Any]:
        line = self.lines.line_at(finding.path) if finding.path else None
        return {
            "code": finding.code,
            "level": finding.level,
            "path": escape(finding.path),
            "message": escape(finding.message),
            "leaf": line is not None and self._is_leaf(line),
        }

    def table(self, query: str, sort: str, descending: bool, first: int, count: int) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "job": self.jobs["stats"].json(),
            "columns": columns_json(),
            "total": 0,
            "from": first,
            "rows": [],
            "sums": [],
            "skipped": [],
            "error": None,
        }
        try:
            with self._lock:
                order = self._table_lines(query, sort, descending)
        except QueryError as error:
            return {**answer, "error": escape(str(error))}
        rows = dict(self.measured.rows)
        window = order[first : first + min(count, MOST_ROWS)]
        columns = self.tree.columns
        skipped = {columns.row_text(leaf): reason for leaf, reason in list(self.measured.skipped.items())[:_MOST_LISTED]}
        return {
            **answer,
            "total": len(order),
            "rows": [table_row(rows[self.lines.leaf(line)], self.lines.path(line)) for line in window],
            "sums": sums(self.tree, rows) if rows else [],
            "skipped": _reasons(skipped),
        }

    def _table_lines(self, query: str, sort: str, descending: bool) -> list[int]:
        lines, rows = self.lines, self.measured.rows
        matches = matching_lines(lines, query) if query else None
        order = [
            line for line in lines.counted if lines.leaf(line) in rows and (matches is None or line in matches)
        ]
        if sort in ("", "tree"):
            return order
        if sort == "path":
            return sorted(order, key=lines.path, reverse=descending)
        names = [column["name"] for column in columns_json()]
        if sort not in names:
            raise QueryError(f"there is no column {sort!r}; there are {', '.join(names)}")
        return sorted(order, key=lambda line: _stats_key(rows.get(lines.leaf(line)), sort), reverse=descending)

    def diff(self, kind: str, query: str, sort: str, descending: bool, first: int, count: int) -> dict[str, Any]:
        if self.other is None:
            raise QueryError("only one tree is shown; leafwise view A B compares two")
        found = self.diff_found
        error = None
        if found is None and self._structure.state == "failed":
            error = self._structure.message
        answer = {
            "job": self.jobs["diff"].json(),
            "names": self.names,
            "same": found is not None and found.same,
            "values": found is not None and found.values,
            "counts": [] if found is None else kind_counts(found),
            "total": 0,
            "from": first,
            "rows": [],
            "notes": [] if found is None else [escape(note) for note in found.notes],
            "error": error,
        }
        if found is None:
            return answer
        if kind and kind not in KINDS:
            raise QueryError(f"{kind!r} is not a kind of change; the kinds are {', '.join(KINDS)}")
        changes = [change for change in found if (kind in change.kinds if kind else change.kind != "same")]
        if query:
            try:
                matches = matching_lines(self.lines, query)
            except QueryError as wrong:
                return {**answer, "error": escape(str(wrong))}
            words = query.lower().split()
            changes = [
                change
                for change in changes
                if self.lines.line_at(change.path) in matches or all(word in change.path.lower() for word in words)
            ]
        if sort == "change":
            changes.sort(key=_change_key, reverse=descending)
        window = changes[first : first + min(count, MOST_ROWS)]
        rows = [change_json(change, self._opens(change)) for change in window]
        return {**answer, "total": len(changes), "rows": rows}

    def _opens(self, change: Any) -> bool:
        line = None if "added" in change.kinds else self.lines.line_at(change.path)
        return line is not None and self._is_leaf(line)

    @cached_property
    def _plan(self) -> tuple[Plan | None, str]:
        """The plan of loading one tree into the other; or None, and the reason. A model is loaded into; of two files,
        the second would be loaded into the first."""
        assert self.other is not None
        target, source = (self.other, self.tree) if self.tree.is_file and not self.other.is_file else (self.tree, self.other)
        try:
            return make_plan(target, source), ""
        except Error as error:
            return None, str(error)

    def plan(self, status: str, query: str, first: int, count: int) -> dict[str, Any]:
        if self.other is None:
            raise QueryError("only one tree is shown; leafwise view MODEL CHECKPOINT also shows the plan of a load")
        found, reason = self._plan
        into_other = self.tree.is_file and not self.other.is_file
        answer = {
            "names": self.names[::-1] if into_other else self.names,
            "holds": False,
            "coverage": 0,
            "counts": [],
            "total": 0,
            "from": first,
            "rows": [],
            "notes": [],
            "proposals": [],
            "error": escape(reason) or None,
        }
        if found is None:
            return answer
        everything = self._plan_rows
        counts = Counter(row["status"] for row in everything)
        words = query.lower().split()
        rows = [
            row
            for row in everything
            if (not status or row["status"] == status) and all(word in row["path"].lower() for word in words)
        ]
        window = rows[first : first + min(count, MOST_ROWS)]
        opens = (lambda path: False) if into_other else self._has_leaf
        return {
            **answer,
            "holds": found.holds,
            "coverage": num(found.coverage),
            "counts": [{"status": name, "count": times} for name, times in counts.items()],
            "total": len(rows),
            "rows": [{**row, "leaf": opens(row["path"])} for row in window],
            "notes": [escape(note) for note in found.notes],
            "proposals": [
                escape(f"{proposal.pattern} → {proposal.replacement}: {proposal.reason}")
                for proposal in found.proposals[:_MOST_LISTED]
            ],
        }

    @cached_property
    def _plan_rows(self) -> list[dict[str, Any]]:
        assert self._plan[0] is not None
        return plan_rows(self._plan[0])

    # -- places ------------------------------------------------------------------------------------------

    def _line(self, path: str) -> int:
        line = self.lines.line_at(path)
        if line is None:
            raise PathError(f"there is nothing at {escape(path)!r}")
        return line

    def _is_leaf(self, line: int) -> bool:
        return self.lines.kinds[line] == LEAF

    def _has_leaf(self, path: str) -> bool:
        line = self.lines.line_at(path)
        return line is not None and self._is_leaf(line)

    def _leaf_at(self, path: str) -> tuple[int, Leaf]:
        line = self._line(path)
        if not self._is_leaf(line):
            raise PathError(f"{escape(path)!r} is not a leaf")
        return line, self.tree.columns.leaf_of(self.lines.places[line])


_NO_FACTS = {
    "type": None, "open": False, "shape": None, "dtype": None, "role": None, "group": None, "trainable": None,
    "tied": None, "shared": 0, "health": None, "stats": None, "change": None, "value": None,
}  # fmt: skip


def why_not_measured(trees: Sequence[Tree]) -> str | None:
    """Why not everything is measured without being asked; None if it is."""
    for t in trees:
        size = t.counts.local_bytes
        if not is_local(t):
            return f"{bytes_text(size)} would be downloaded"
        if t.is_file and size > AUTOMATIC:
            return f"{bytes_text(size)} would be read"
    return None


def _stats_key(row: Any, name: str) -> tuple[bool, float]:
    """Leaves without statistics come first, and last if the order is descending."""
    value = None if row is None else getattr(row, name)
    return (False, 0.0) if value is None or value != value else (True, value)


def _change_key(change: Any) -> tuple[int, float]:
    if change is None:
        return -1, 0.0
    amount = 0.0 if change.comparison is None else float(change.comparison.relative_l2)
    return len(KINDS) - KINDS.index(change.kind), amount if amount == amount else float("inf")


def _cut(text: str) -> str:
    shown = escape(text)
    return shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]} …"


def _reasons(skipped: dict[str, str]) -> list[dict[str, str]]:
    return [{"path": escape(path), "reason": escape(reason)} for path, reason in list(skipped.items())[:_MOST_LISTED]]


def _total_json(total: Any) -> dict[str, Any]:
    return {"name": escape(str(total.name)), "leaves": total.leaves, "parameters": total.parameters, "bytes": total.bytes}
