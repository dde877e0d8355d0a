"""Runs every benchmark, and prints one table of what they measured.

    python benchmarks/run.py [stats diff …]      # all, or those whose file name contains one of these words

A missed target or a failed benchmark does not stop the others, but the exit status is then 3 or 1.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from figures import FIGURES, MISSED, Figure

HERE = Path(__file__).parent
_WIDTH = 52  # of the column for names, so that a line has at most 80 characters


def run(script: Path) -> tuple[list[Figure], str]:
    """Runs a benchmark, and returns its figures and what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "figures")
        kept.touch()
        status = subprocess.run([sys.executable, str(script)], env={**os.environ, FIGURES: str(kept)}).returncode
        figures = [Figure(**json.loads(line)) for line in kept.read_text("utf-8").splitlines()]
    if status not in (0, MISSED):
        return figures, f"failed with exit status {status}; its remaining figures are missing"
    if not figures:
        return figures, "measured nothing"
    if (status == MISSED) != any(figure.verdict == "MISS" for figure in figures):
        return figures, f"exit status {status} contradicts its figures"
    return figures, ""


def line(figure: Figure) -> str:
    """One figure on one line, or on several if its name is long."""
    first, *rest = textwrap.wrap(figure.what, _WIDTH) or [""]
    measured = "" if figure.measured is None else f"{figure.measured:,.3g}"
    lines = [f"  {figure.verdict:<8}{first:<{_WIDTH}} {measured:>8}  {figure.target}".rstrip()]
    return "\n".join([*lines, *(f"  {'':<8}{more}" for more in rest)])


def main() -> int:
    scripts = sorted(HERE.glob("bench_*.py"))
    if words := sys.argv[1:]:
        scripts = [script for script in scripts if any(word in script.name for word in words)]
    if not scripts:
        sys.exit(f"no benchmark has one of {', '.join(words)} in its name")
    results = []
    for script in scripts:
        print(f"== {script.name}", flush=True)
        results.append((script.name, *run(script)))
    print(f"\n  {'verdict':<8}{'figure':<{_WIDTH}} {'measured':>8}  target")
    for name, figures, wrong in results:
        print(name)
        for figure in figures:
            print(line(figure))
        if wrong:
            print(f"  {'ERROR':<8}{wrong}")
    everything = [figure for _, figures, _ in results for figure in figures]
    counts = {verdict: sum(figure.verdict == verdict for figure in everything) for verdict in ("ok", "MISS", "not run")}
    errors = sum(bool(wrong) for *_, wrong in results)
    print(f"\n{counts['ok']} met, {counts['MISS']} missed, {counts['not run']} not run, {errors} errors")
    return 1 if errors else MISSED if counts["MISS"] else 0


if __name__ == "__main__":
    sys.exit(main())
