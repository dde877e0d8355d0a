"""Runs `lw.check` on files that run code when their own loader opens them, and on harmless checkpoints.

    python -m tools.scan_corpus               every payload and 500 harmless files; records the table (minutes)
    python -m tools.scan_corpus torch joblib  only payloads with one of these words in their name or mechanism

A payload counts only if it really runs here: its own loader opens it in a process of its own, and its marker must then
exist. A file is noticed with an error, with a warning, or because leafwise refuses to open it; `missed` are those with
notes only, or nothing. The exit status is 1 if one is missed, or a harmless file gets an error.
"""

import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tools import harmless_files, payloads, sweeps
from tools.payloads import Made

import leafwise as lw

FILES = 500
OUTCOMES = ("error", "refused", "warning only", "missed", "crashed")


class Outcome(NamedTuple):
    """`kind` is one of OUTCOMES; "crashed" is an exception that is not an `lw.Error`. `why` is what leafwise found."""

    made: Made
    kind: str
    why: str


def outcome(made: Made) -> Outcome:
    kind, why = scanned(made.file)
    return Outcome(made, kind, why)


def scanned(path: str) -> tuple[str, str]:
    """What `lw.check` says about a file: one of OUTCOMES, and its messages."""
    try:
        findings = lw.check(path, select="LW7")
    except lw.Error as error:
        return "refused", str(error)
    except Exception as error:
        return "crashed", f"{type(error).__name__}: {error}"
    why = "; ".join(finding.message for finding in findings)
    if findings.errors:
        return "error", why
    return ("warning only" if findings.warnings else "missed"), why


def table(found: list[Outcome]) -> str:
    lines = ["| mechanism | files | " + " | ".join(OUTCOMES) + " |", "|---" + "|--:" * (len(OUTCOMES) + 1) + "|"]
    for mechanism in (*dict.fromkeys(one.made.mechanism for one in found), "all"):
        kinds = Counter(one.kind for one in found if mechanism in (one.made.mechanism, "all"))
        lines.append(f"| {mechanism} | {kinds.total()} | " + " | ".join(str(kinds[kind]) for kind in OUTCOMES) + " |")
    return "\n".join(lines)


def show(found: list[Outcome], kind: str) -> None:
    rows = [one for one in found if one.kind == kind]
    print(f"\n{kind}: {len(rows)}")
    for one in rows:
        print(f"  [{one.made.mechanism}] {one.made.name}")
        print(f"    {one.made.loader} runs it; leafwise: {one.why or 'nothing'}")


def main() -> int:
    parser = sweeps.parser(__doc__, "payloads")
    parser.add_argument("--files", type=int, default=FILES, help="how many harmless files")
    parser.add_argument("--keep", type=Path, help="write the files into this folder, which should not exist")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    words = [word.lower() for word in options.only]
    chosen = [
        one
        for one in payloads.corpus()
        if not words or any(word in f"{one.name} {one.mechanism}".lower() for word in words)
    ]
    with tempfile.TemporaryDirectory(prefix="payloads") as folder:
        where = options.keep or Path(folder) / "all"
        made = payloads.generate(where, chosen)
        ran = payloads.run(made, where)
        found = [outcome(one) for one in made if not ran[one.name]]
    still = [one for one in made if ran[one.name]]
    print(f"do not run here: {len(still)}")
    for one in still:
        print(f"  [{one.mechanism}] {one.name}: {ran[one.name]}")
    for kind in ("crashed", "warning only", "missed"):
        show(found, kind)
    alarms: list[tuple[str, str, str]] = []
    if not words:
        alarms = harmless_files.scan(options.seed, options.files, scanned)
    print(f"\n{table(found)}\n")
    if not words:
        kinds = Counter("no finding above a note" if kind == "missed" else kind for _, kind, _ in alarms)
        print(f"{len(alarms):,} harmless files: " + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()))
        sweeps.record("make payloads", {"payloads": table(found)}, options.seed)
    is_bad = any(one.kind in ("crashed", "missed") for one in found) or any(kind == "error" for _, kind, _ in alarms)
    return 1 if is_bad else 0


if __name__ == "__main__":
    sys.exit(main())
