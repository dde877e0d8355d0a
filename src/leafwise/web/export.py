"""A report: what the viewer shows, as one HTML file that needs no server and no network."""

import base64
import gzip
import hashlib
import json
import os
import re
import time
from typing import Any

from leafwise.core.results.result import write_small_file
from leafwise.core.work.progress import bar
from leafwise.errors import Error, QueryError
from leafwise.web import asset
from leafwise.web.answers import comparison, leaf_page, lines, tables, whole
from leafwise.web.jobs import Job
from leafwise.web.lines import LEAF, LineRequest
from leafwise.web.measured import statistics_json
from leafwise.web.session import Session

_PICTURES = 400  # leaves that are drawn, the largest first
_PICTURE_BYTES = 6 << 20  # of all pictures
_CHARTED = 20_000  # leaves with facts and statistics of their own; of a larger tree, the first ones
_WIDE = 1 << 40  # a window that contains everything
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def write_report(session: Session, path: "str | os.PathLike[str]", progress: bool = False) -> str:
    """Writes the report and returns its path. If that fails, an existing file stays as it was."""
    target = check_name(path)
    write_small_file(target, report_html(session, progress).encode())
    return target


def check_name(path: "str | os.PathLike[str]") -> str:
    """The path as text, if a report can have this name."""
    target = os.fspath(path)
    if not target.lower().endswith((".html", ".htm")):
        raise QueryError(f"cannot write {target!r}: a report is an HTML file; use a name that ends in .html")
    return target


def report_html(session: Session, progress: bool = False) -> str:
    """The page with everything in it. Measures what is to be measured first."""
    _finish(session, progress)
    data = json.dumps(_data(session), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(data.encode("ascii"), 9, mtime=0)).decode("ascii")
    script, style = asset("app.js"), asset("app.css")
    # The end of a script element must not occur in the script; in JavaScript text, the escape means the same.
    script = re.sub(r"</(script)", r"<\\/\1", script, flags=re.IGNORECASE).replace("<!--", "<\\!--")
    policy = _POLICY.format(script=_hash(script), style=_hash(style))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f'<title>leafwise</title>\n<link rel="icon" href="data:,">\n<style>{style}</style>\n</head>\n'
        '<body>\n<div id="app"></div>\n'
        "<noscript>This report needs JavaScript.</noscript>\n"
        f'<script type="application/octet-stream" id="report">{packed}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _finish(session: Session, progress: bool) -> None:
    """Waits for the computations that were started, with a bar."""
    for name, job in session.jobs.items():
        if job.state == "running":
            label = {"stats": "measuring", "findings": "checking"}.get(name, "comparing")
            with bar(job.total, label, progress) as count:
                _wait(job, count)
        if job.state == "failed" and not (name != "stats" and _has_no_values(session)):
            raise Error(f"cannot write the report: {job.message}")
    if session.structure.state == "running":
        _wait(session.structure, lambda count: None)


def _wait(job: Job, count: Any) -> None:
    seen = 0
    while job.state == "running":
        time.sleep(0.05)
        count(job.done - seen)
        seen = job.done


def _has_no_values(session: Session) -> bool:
    """Whether there is nothing to check or compare, as in a model on the meta device: a report shows its structure."""
    return session.jobs["stats"].state == "done" and not session.measured.rows


def _data(session: Session) -> dict[str, Any]:
    everything = LineRequest(depth=len(session.lines) + 1)
    data: dict[str, Any] = {
        "summary": {**whole.summary(session), "exported": True},
        "totals": whole.totals(session),
        "rows": lines.row_json(session, range(len(session.lines)), everything),
        "leaves": _leaves(session),
        "findings": tables.findings(session, "", "", 0, _WIDE, _WIDE),
        "table": tables.table(session, "", "", False, 0, _WIDE, _WIDE),
        "diff": None,
        "plan": None,
    }
    if session.other is not None:
        data["diff"] = comparison.diff(session, comparison.ALL, "", "", False, 0, _WIDE, _WIDE)
        if "plan" in data["summary"]["views"]:
            data["plan"] = comparison.plan(session, "", "", 0, _WIDE, _WIDE)
    return data


def _leaves(session: Session) -> dict[str, Any]:
    outline = session.lines
    leaves: dict[str, Any] = {}
    named = [line for line, kind in enumerate(outline.kinds) if kind == LEAF][:_CHARTED]
    drawn = set(sorted(outline.counted, key=lambda line: -outline.counted[line].spec.nbytes)[:_PICTURES])
    left = _PICTURE_BYTES
    for line in named:
        path, number = outline.path(line), outline.leaf(line)
        facts = leaf_page.leaf(session, path)
        row = session.measured.rows.get(number)
        values: dict[str, Any] = {"norms": None, "scale": None, "picture": None}
        is_small = facts["read_bytes"] <= leaf_page.AUTOMATIC and left > 0
        if row is not None and line in drawn and facts["views"] and is_small:
            values = _values(session, path, facts["views"][0])
            left -= len(values["picture"])
        statistics = None if row is None else statistics_json(row, None)
        leaves[path] = {"facts": {**facts, "automatic": True}, "statistics": statistics, **values}
    return leaves


def _values(session: Session, path: str, layout: dict[str, Any]) -> dict[str, Any]:
    """The curves and the picture of a leaf: the coarsest tile, which is the whole leaf."""
    scale = leaf_page.scale(session, path, layout["layout"])
    data, _ = leaf_page.tile(session, path, layout["layout"], layout["levels"] - 1, 0, 0, scale["limit"])
    picture = f"data:image/png;base64,{base64.b64encode(data).decode('ascii')}"
    return {"norms": leaf_page.norms(session, path), "scale": scale, "picture": picture}
