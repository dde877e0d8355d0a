"""How far verbs travel through the source: which files a call visits, and how often it jumps between them.

    python -m tools.journeys            the table
    python -m tools.journeys --json     the numbers of each verb, without modules
    python -m tools.journeys load       every file that this verb visits, with the jumps from and to it

Each verb is called once to import and cache what it needs, and then once more under `sys.setprofile`, with a model of
two layers. A jump is a call of a function in another file, or room, than that of its nearest caller in leafwise; a room
is the first folder below it. Modules are those that a new process imports for the verb; packages are not counted.
"""

import contextlib
import io
import json
import os
import subprocess
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
    jumps: Counter[tuple[str, str]]  # by two files, how often one calls the other
    milliseconds: float

    @property
    def between_files(self) -> int:
        return self.jumps.total()

    @property
    def between_rooms(self) -> int:
        return sum(number for (a, b), number in self.jumps.items() if room(a) != room(b))


def room(file: str) -> str:
    return file.partition("/")[0]


def verbs(folder: Path) -> dict[str, Callable[[], Any]]:
    """The verbs of the table, with files that are made in a folder."""
    import torch
    from torch import nn

    import leafwise as lw
    from leafwise.cli import main

    torch.manual_seed(0)

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


def journey(verb: Callable[[], Any], rounds: int = ROUNDS) -> Journey:
    """What a call visits that is not the first one."""
    verb()
    calls, files, jumps = 0, Counter[str](), Counter[tuple[str, str]]()
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
            jumps[there, here] += 1

    sys.setprofile(trace)
    try:
        verb()
    finally:
        sys.setprofile(None)
    return Journey(calls, files, jumps, 1000 * min(map(_seconds, [verb] * rounds)))


def _seconds(verb: Callable[[], Any]) -> float:
    began = time.perf_counter()
    verb()
    return time.perf_counter() - began


# What a new process runs to count the modules that a verb imports; {0} and {1} are files.
_IN_A_PROCESS = {
    "load": "lw.load(model, {0!r})",
    "load .pt": "lw.load(model, {1!r})",
    "save": "lw.save(model, {0!r} + '.again')",
    "diff": "str(lw.diff({0!r}, {0!r}))",
    "tree": "str(lw.tree(model))",
    "show": "from leafwise.cli import main; main(['show', {0!r}])",
    "stats": "str(lw.stats({0!r}))",
}
_MODEL = "from torch import nn; model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)); "
_COUNT = """
import sys
loaded = [module for name, module in sys.modules.items() if name.partition(".")[0] == "leafwise"]
print(sum(not hasattr(module, "__path__") for module in loaded))
"""


def modules(name: str, folder: Path) -> int:
    """The modules of leafwise that a verb imports in a new process; packages are not counted. The folder has the files
    that `verbs` makes."""
    verb = _IN_A_PROCESS[name]
    code = (_MODEL if "model" in verb else "") + "import leafwise as lw; "
    code += verb.format(str(folder / "a.safetensors"), str(folder / "a.pt")) + "\n" + _COUNT
    packages = os.pathsep.join([str(SOURCE.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": packages}
    output = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True, env=environment
    ).stdout
    return int(output.split()[-1])


def main() -> int:
    os.environ["COLUMNS"] = "80"  # a narrow terminal takes more calls than a wide one
    with tempfile.TemporaryDirectory() as folder:
        table = verbs(Path(folder))
        if sys.argv[1:] == ["--json"]:
            taken_by_verb = {name: journey(verb, rounds=1) for name, verb in table.items()}
            print(
                json.dumps(
                    {name: [sorted(t.files), t.between_files, t.between_rooms] for name, t in taken_by_verb.items()}
                )
            )
            return 0
        for name in sys.argv[1:]:
            taken = journey(table[name])
            for file, number in taken.files.most_common():
                print(f"{number:5} {sum(n for (a, b), n in taken.jumps.items() if b == file):5} {file}")
        if len(sys.argv) > 1:
            return 0
        print(f"{'verb':<10} {'calls':>6} {'files':>6} {'jumps':>6} {'rooms':>6} {'modules':>8} {'ms':>6}")
        for name, verb in table.items():
            taken = journey(verb)
            print(
                f"{name:<10} {taken.calls:6} {len(taken.files):6} {taken.between_files:6} {taken.between_rooms:6} "
                f"{modules(name, Path(folder)):8} {taken.milliseconds:6.2f}"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
