"""How far verbs travel through the source: which files a call visits, and how often it jumps between them.

    python -m tools.journeys            the table
    python -m tools.journeys load       every file that this verb visits, with the jumps from and to it

Each verb is called once to import and cache what it needs, and then once more under `sys.setprofile`, with a model of
two layers. A jump is a call of a function in another file, or room, than that of its nearest caller in leafwise; a room
is the first folder below it. Modules are those that a new process imports for the verb; packages are not counted.
"""

import contextlib
import io
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

SOURCE = Path(__file__).parent.parent / "src" / "leafwise"
ROUNDS = 200  # for the time, of which the shortest counts


class Journey(NamedTuple):
    """What one call of a verb visits."""

    calls: int
    files: Counter[str]  # by file, how many functions of it are called
    hops: Counter[tuple[str, str]]  # by two files, how often one calls the other
    milliseconds: float

    @property
    def between_files(self) -> int:
        return self.hops.total()

    @property
    def between_rooms(self) -> int:
        return sum(number for (a, b), number in self.hops.items() if room(a) != room(b))


def room(file: str) -> str:
    return file.partition("/")[0]


def verbs(folder: Path) -> dict[str, Callable[[], Any]]:
    """The verbs of the table, with files that are made in a folder."""
    import torch
    from torch import nn

    import leafwise as lw
    from leafwise.cli import main

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))

    first, second = model(), model()
    path, other = lw.save(first, folder / "a.safetensors"), lw.save(second, folder / "b.safetensors")
    pickled = folder / "a.pt"
    torch.save(first.state_dict(), pickled)

    def show() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            main(["show", str(path)])

    return {
        "load": lambda: lw.load(second, path),
        "load .pt": lambda: lw.load(second, pickled),
        "save": lambda: lw.save(first, folder / "c.safetensors"),
        "diff": lambda: str(lw.diff(path, other)),
        "tree": lambda: str(lw.tree(first)),
        "show": show,
        "stats": lambda: str(lw.stats(path)),
    }


def journey(verb: Callable[[], Any]) -> Journey:
    """What a call visits that is not the first one."""
    verb()
    calls, files, hops = 0, Counter[str](), Counter[tuple[str, str]]()
    known: dict[str, str] = {}

    def file_of(frame: FrameType | None) -> str:
        name = "" if frame is None else frame.f_code.co_filename
        if name not in known:
            path = Path(name)
            known[name] = path.relative_to(SOURCE).as_posix() if SOURCE in path.parents else ""
        return known[name]

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal calls
        if event != "call" or not (here := file_of(frame)):
            return
        calls += 1
        files[here] += 1
        caller = frame.f_back
        while caller is not None and not file_of(caller):
            caller = caller.f_back
        if caller is not None and (there := file_of(caller)) != here:
            hops[there, here] += 1

    sys.setprofile(trace)
    try:
        verb()
    finally:
        sys.setprofile(None)
    return Journey(calls, files, hops, 1000 * min(map(_seconds, [verb] * ROUNDS)))


def _seconds(verb: Callable[[], Any]) -> float:
    began = time.perf_counter()
    verb()
    return time.perf_counter() - began


def modules(name: str) -> int:
    """The modules of leafwise that a verb imports, in a new process whose files exist."""
    text = f"""
import sys, tempfile
from pathlib import Path
from tools.journeys import SOURCE, verbs
with tempfile.TemporaryDirectory() as folder:
    run = verbs(Path(folder))[{name!r}]
    for module in [module for module in sys.modules if module.split(".")[0] == "leafwise"]:
        del sys.modules[module]
    import leafwise as lw
    ...
"""
    raise NotImplementedError(text)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        table = verbs(Path(folder))
        for name in sys.argv[1:]:
            taken = journey(table[name])
            for file, number in taken.files.most_common():
                print(f"{number:5} {sum(n for (a, b), n in taken.hops.items() if b == file):5} {file}")
        if len(sys.argv) > 1:
            return 0
        print(f"{'verb':<10} {'calls':>6} {'files':>6} {'hops':>6} {'rooms':>6} {'ms':>6}")
        for name, verb in table.items():
            taken = journey(verb)
            print(
                f"{name:<10} {taken.calls:6} {len(taken.files):6} {taken.between_files:6} {taken.between_rooms:6} "
                f"{taken.milliseconds:6.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
