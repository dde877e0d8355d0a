"""Writes every kind of checkpoint, opens each with leafwise, and compares it with what was saved.

    python -m tools.checkpoint_kinds           every kind, and records the tables (minutes)
    python -m tools.checkpoint_kinds timm      some of them

Tools that are not installed are skipped; `make kinds` installs them. The exit status is 1 if a checkpoint opens and an
array, a tie or an object in it is not what was saved, or if `lw.check` says that it runs code.
"""

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
from tools import sweeps
from tools.checkpoint_kinds import HYPERPARAMETERS, KINDS
from tools.checkpoint_kinds.comparing import Outcome, missing, outcome, shortened
from tools.checkpoint_kinds.kind import Kind

MINUTES = 10  # for one kind


def outcomes(kinds: Iterable[Kind], seed: int = 0) -> Iterator[Outcome]:
    """Tries each kind in a process of its own: some tools change torch when they are imported."""
    context = multiprocessing.get_context("fork")
    for kind in kinds:
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_send, args=(kind, sender, seed))
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


def _send(kind: Kind, sender: Any, seed: int) -> None:
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    warnings.simplefilter("ignore")
    torch.manual_seed(seed)
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
    options = sweeps.parser(__doc__, "kinds, by a part of their names").parse_args()
    wrong, texts, not_installed = False, {}, set()
    for kinds, mark, what in ((KINDS.values(), "kinds", "kinds"), (HYPERPARAMETERS, "values", "hyperparameters")):
        words = [word.lower() for word in options.only]
        chosen = [kind for kind in kinds if not words or any(word in kind.name.lower() for word in words)]
        not_installed |= {module for kind in chosen for module in missing(kind)}
        results = []
        for one in outcomes([kind for kind in chosen if not missing(kind)], options.seed):
            results.append(one)
            print(f"{one.kind.name:60} {_opens(one)}", *one.problems, sep="\n    ", flush=True)
        heading = "checkpoint" if mark == "kinds" else "hyperparameter"
        texts[mark] = f"{summary(results, what)}\n\n{table(results, heading)}"
        print(f"\n{texts[mark]}\n")
        wrong |= any(one.problems for one in results)
    if not_installed:
        print(f"not tried, because they are not installed: {', '.join(sorted(not_installed))}; run make kinds\n")
    elif not options.only:
        sweeps.record("make kinds", texts, options.seed)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
