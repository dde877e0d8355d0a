"""Measured figures and their targets: printed one by one, and stored for the table that run.py makes."""

import io
import json
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(errors="replace")  # do not fail in a locale without ≤

MISSED = 3  # the exit status of a benchmark that missed a target
FIGURES = "LEAFWISE_FIGURES"  # the environment variable with the path of the file for figures


class Figure(NamedTuple):
    """A measured figure and its target."""

    what: str
    measured: float | None
    target: str
    verdict: str  # ok, MISS or not run


def report(what: str, ratio: float, bound: float, at_least: bool = False) -> bool:
    """Prints a figure and its target, and returns whether the target is met."""
    met = ratio >= bound if at_least else ratio <= bound
    target = f"{'≥' if at_least else '≤'} {bound:g}"
    _keep(Figure(what, ratio, target, "ok" if met else "MISS"))
    print(f"{'ok  ' if met else 'MISS'}  {what}: {ratio:.3g} (target {target})")
    return met


def not_run(reason: str) -> int:
    """Prints why nothing is measured here, and returns the exit status."""
    _keep(Figure(reason, None, "", "not run"))
    print(f"# {reason}")
    return 0


def exit_status(met: Iterable[bool]) -> int:
    """0 if every target is met, otherwise `MISSED`, which differs from Python's exit status for an error."""
    return 0 if all(met) else MISSED


def _keep(figure: Figure) -> None:
    """Stores a figure for the table that run.py makes."""
    if FIGURES in os.environ:
        with open(os.environ[FIGURES], "a", encoding="utf-8") as file:
            file.write(json.dumps(figure._asdict()) + "\n")
