"""The latest results of the sweeps, in docs/sweeps.json, and the tables of the docs, which are made from that file.

    python -m tools.sweeps    writes the tables again

Each sweep (`make fuzz`, `make saved`, ...) records its result with the commit and the date. A page shows it between
`<!-- sweep NAME -->` and `<!-- /sweep NAME -->`. A sweep draws another random sample each time; `SEED=` repeats one.
"""

import argparse
import datetime
import json
import multiprocessing
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
FILE = ROOT / "docs" / "sweeps.json"
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md"]
_FEW = 16  # work that is not worth several processes


class Result(NamedTuple):
    """The latest result of a sweep: the text that pages show, and when, where and how it was found."""

    text: str
    command: str
    date: str
    commit: str
    seed: int | None

    def shown(self) -> str:
        """The text for a page."""
        seed = "" if self.seed is None else f" SEED={self.seed}"
        return f"{self.text}\n\n`{self.command}{seed}` on {self.date}, commit {self.commit}."


def results() -> dict[str, Result]:
    if not FILE.exists():
        return {}
    stored = json.loads(FILE.read_text("utf-8"))
    return {name: Result(**one | {"text": "\n".join(one["text"])}) for name, one in stored.items()}


def record(command: str, texts: dict[str, str], seed: int | None = None) -> None:
    """Stores the results of a sweep under their names, and writes the pages that show them. Not in continuous
    integration, which runs some sweeps and should leave the sources as they are."""
    if os.environ.get("CI"):
        return
    when, commit = today(), commit_here()
    found = results() | {name: Result(text, command, when, commit, seed) for name, text in texts.items()}
    stored = {name: one._asdict() | {"text": one.text.split("\n")} for name, one in sorted(found.items())}
    FILE.write_text(json.dumps(stored, indent=1, ensure_ascii=False) + "\n", "utf-8")
    write_pages()
    print(f"recorded in {FILE.relative_to(ROOT)}: {', '.join(texts)}", file=sys.stderr)


def write_pages() -> None:
    for page in PAGES:
        text = page.read_text("utf-8")
        if (made := filled(text)) != text:
            page.write_text(made, "utf-8")


def filled(page: str) -> str:
    """The text of a page with the latest results between its marks."""
    for name, result in results().items():
        start, end = f"<!-- sweep {name} -->", f"<!-- /sweep {name} -->"
        before, found, rest = page.partition(start)
        if found:
            page = f"{before}{start}\n\n{result.shown()}\n\n{end}{rest.partition(end)[2]}"
    return page


def today() -> str:
    return datetime.date.today().isoformat()


def commit_here() -> str:
    """The commit of the sources, marked if they have changed since."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short=8", "HEAD"], capture_output=True, encoding="utf-8")
    if found.returncode:
        return os.environ.get("LEAFWISE_COMMIT", "unknown")  # a copy without its history
    changed = subprocess.run([*git, "status", "--porcelain", "src", "tools", "tests"], capture_output=True).stdout
    return found.stdout.strip() + (" with changes" if changed else "")


# -- running ---------------------------------------------------------------------------------------------------


def parser(description: str | None, what: str) -> argparse.ArgumentParser:
    """The options that every sweep has."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("only", nargs="*", help=f"only these {what}; the result is not recorded")
    made.add_argument(
        "--seed", type=int, default=random.randrange(1_000_000), help="repeat a sweep (default: a new one)"
    )
    return made


def in_processes(work: Callable[[Any], Any], items: Sequence[Any], what: str) -> Iterator[Any]:
    """`work` of every item, in one process per core, with the progress on standard error. In the order of the items."""
    if len(items) <= _FEW:
        yield from map(work, items)
        return
    cores = os.cpu_count() or 1
    # A process is replaced from time to time: some models leave memory behind, and some change what they import.
    with multiprocessing.get_context("spawn").Pool(cores, _start_process, maxtasksperchild=40) as pool:
        for number, found in enumerate(pool.imap(work, items), 1):
            print(f"\r{number} of {len(items)} {what}", end="", file=sys.stderr, flush=True)
            yield found
    print(file=sys.stderr)


def _start_process() -> None:
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    be_quiet()


def be_quiet() -> None:
    """Keeps transformers from printing warnings and progress bars of its own."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


if __name__ == "__main__":
    write_pages()
