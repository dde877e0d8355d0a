"""Compares `lw.check` with other scanners, on the files of tools/scan_corpus.py: those that run code when their own
loader opens them, and harmless ones.

    make scanners                               every scanner; records the table (half an hour)
    python -m tools.compare_scanners fickling   some of them

The others run in build/scanners, in a process of their own, through tools/other_scanners.py, which says what counts as
a finding of each. For leafwise, the highest level is an error, the lower one a warning, and a file that it refuses to
open is unread.
"""

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tools import harmless_files, payloads, scan_corpus, sweeps

PYTHON = sweeps.ROOT / "build" / "scanners" / "bin" / "python"
RUNNER = Path(__file__).with_name("other_scanners.py")
OTHERS = ("picklescan", "fickling", "modelscan", "modelaudit")
HARMLESS = "harmless"
# What is reported of a file, in the words of tools/other_scanners.py.
_OF_LEAFWISE = {"error": "highest", "warning only": "lower", "refused": "unread", "missed": "", "crashed": ""}


class Scanned(NamedTuple):
    """A file, its mechanism or HARMLESS, and what each scanner reports."""

    path: str
    mechanism: str
    reports: dict[str, str]


def reports(scanner: str, paths: Sequence[str], folder: Path) -> list[str]:
    """What a scanner reports of each file."""
    if scanner == "leafwise":
        return [_OF_LEAFWISE[scan_corpus.scanned(path)[0]] for path in paths]
    listed = folder / f"{scanner}.json"
    listed.write_text(json.dumps(list(paths)), "utf-8")
    command = [str(PYTHON), "-I", "-W", "ignore", str(RUNNER), scanner, str(listed)]
    with (folder / f"{scanner}.errors").open("wb") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8")
    rows = {row["path"]: row for row in map(json.loads, done.stdout.splitlines())}
    if done.returncode or len(rows) < len(paths):
        last = (folder / f"{scanner}.errors").read_text("utf-8", "replace")[-2000:]
        raise RuntimeError(f"{scanner} ended with {done.returncode} after {len(rows)} of {len(paths)} files: {last}")
    return [rows[path]["report"] for path in paths]


def versions() -> dict[str, str]:
    command = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
    shown = subprocess.run([str(PYTHON), "-I", "-c", command, *OTHERS], stdout=subprocess.PIPE, encoding="utf-8")
    return dict(zip(OTHERS, shown.stdout.split(), strict=True))


def table(found: list[Scanned], scanners: Sequence[str]) -> str:
    lines = ["| mechanism | files | " + " | ".join(scanners) + " |", "|---" + "|--:" * (len(scanners) + 1) + "|"]
    harmless = [one for one in found if one.mechanism == HARMLESS]
    others = [one for one in found if one.mechanism != HARMLESS]

    def add(name: str, rows: list[Scanned], levels: Sequence[str] = ("highest", "lower", "unread")) -> None:
        counts = [sum(one.reports[scanner] in levels for one in rows) for scanner in scanners]
        lines.append(f"| {name} | {len(rows)} | " + " | ".join(map(str, counts)) + " |")

    for mechanism in dict.fromkeys(one.mechanism for one in others):
        add(mechanism, [one for one in others if one.mechanism == mechanism])
    for name, rows in (("all", others), ("harmless files", harmless)):
        add(f"**{name}**", rows)
        for detail, level in (("at the highest level", "highest"), ("at lower levels", "lower"), ("unread", "unread")):
            add(f"{name}, {detail}", rows, [level])
    return "\n".join(lines)


def main() -> int:
    parser = sweeps.parser(__doc__, "scanners")
    parser.add_argument("--files", type=int, default=scan_corpus.FILES, help="how many harmless files")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    scanners = [one for one in ("leafwise", *OTHERS) if not options.only or one in options.only]
    with tempfile.TemporaryDirectory(prefix="scanners") as name:
        folder = Path(name)
        made = payloads.generate(folder / "all", payloads.corpus())
        ran = payloads.run(made, folder / "all")
        paths = {one.file: one.mechanism for one in made if not ran[one.name]}
        (folder / "harmless").mkdir()
        paths |= {
            str(path): HARMLESS for _, path in harmless_files.write(options.seed, options.files, folder / "harmless")
        }
        found = [Scanned(path, mechanism, {}) for path, mechanism in paths.items()]
        for scanner in scanners:
            start = time.monotonic()
            for one, report in zip(found, reports(scanner, list(paths), folder), strict=True):
                one.reports[scanner] = report
            kinds = Counter(one.reports[scanner] or "nothing" for one in found)
            print(f"{scanner}: {dict(kinds)} in {time.monotonic() - start:.0f} seconds", flush=True)
    text = table(found, scanners)
    print(f"\n{text}\n")
    if not options.only:
        used = ", ".join(f"{scanner} {version}" for scanner, version in versions().items())
        sweeps.record("make scanners", {"scanners": f"{text}\n\nCompared: {used}."}, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
