"""Writes every kind of checkpoint, opens each with leafwise, and compares it with what was saved.

    python -m tools.checkpoint_kinds                  every kind, and a table (minutes)
    python -m tools.checkpoint_kinds --only timm      some of them
    python -m tools.checkpoint_kinds --write          every kind, and writes the tables into docs/checkpoints.md

Tools that are not installed are skipped; `make kinds` installs them. The exit status is 1 if a checkpoint opens and an
array, a tie or an object in it is not what was saved.
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from tools.checkpoint_kinds import HYPERPARAMETERS, KINDS
from tools.checkpoint_kinds.comparing import Outcome, missing, outcome, shortened
from tools.checkpoint_kinds.kind import Kind
from tools.pages import put_table

PAGE = Path(__file__).parent.parent.parent / "docs" / "checkpoints.md"
MINUTES = 10  # for one kind


def outcomes(kinds: Iterable[Kind]) -> Iterator[Outcome]:
    """Tries each kind in a process of its own: some tools change torch when they are imported."""
    context = multiprocessing.get_context("fork")
    for kind in kinds:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(kind, sender))
        process.start()
        sender.close()
        try:
            result = receiver.recv() if receiver.poll(MINUTES * 60) else _failed(kind, "no result in time")
        except EOFError:
            result = _failed(kind, "the process ended without a result")
        process.kill()
        process.join()
        yield result


def _failed(kind: Kind, why: str) -> Outcome:
    return Outcome(kind, problems=(why,))


def _send(kind: Kind, sender: Any) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = outcome(kind, Path(folder))
        except Exception:
            result = _failed(kind, traceback.format_exc())
        sender.send(result)


def table(results: list[Outcome], heading: str) -> str:
    lines = [f"| {heading} | written by | opens | ties | optimizer state | not loaded |", "|---|---|---|--:|--:|---|"]
    for one in results:
        cells = (
            one.kind.name,
            one.kind.made_by,
            _opens(one),
            one.ties or "",
            one.optimizer or "",
            _classes(one.opaque),
        )
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def _opens(one: Outcome) -> str:
    if one.refused:
        return f"refused: {shortened(one.refused)}"
    return "wrong" if one.problems else "yes"


def _classes(names: tuple[str, ...]) -> str:
    listed = ", ".join(f"`{name}`" for name in names[:4])
    return f"{listed} and {len(names) - 4} more" if len(names) > 4 else listed


def summary(results: list[Outcome], what: str) -> str:
    refused, wrong = sum(bool(one.refused) for one in results), sum(bool(one.problems) for one in results)
    return f"{len(results)} {what}: {len(results) - refused - wrong} open, {refused} are refused, {wrong} are wrong."


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only kinds whose name contains this")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/checkpoints.md")
    options = parser.parse_args()
    wrong = False
    for kinds, mark, what in ((KINDS.values(), "kinds", "kinds"), (HYPERPARAMETERS, "values", "hyperparameters")):
        chosen = [kind for kind in kinds if options.only.lower() in kind.name.lower()]
        absent = {module for kind in chosen for module in missing(kind)}
        results = []
        for one in outcomes([kind for kind in chosen if not missing(kind)]):
            results.append(one)
            print(f"{one.kind.name:60} {_opens(one)}", *one.problems, sep="\n    ", flush=True)
        text = f"{summary(results, what)}\n\n{table(results, 'checkpoint' if mark == 'kinds' else 'hyperparameter')}"
        print(f"\n{text}\n")
        if absent:
            print(f"not tried, because they are not installed: {', '.join(sorted(absent))}; run make kinds\n")
        if options.write and not options.only and not absent:
            put_table(PAGE, f"<!-- {mark} -->", f"<!-- /{mark} -->", text)
        wrong |= any(one.problems for one in results)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
