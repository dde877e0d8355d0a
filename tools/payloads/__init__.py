"""Files that run code when their own loader opens them. All that each does is to create one file, its marker.

`generate` writes them into a folder. They are the same each time, but for what TorchScript, torch.export and DCP write
around them, such as random weights and temporary paths. `run` loads each with its loader, in a process of its
own, and says whether the marker was made. tools/scan_corpus.py compares that with what `lw.check` finds.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tools.payloads import (
    called_later,
    containers,
    functions,
    outside_archives,
    outside_pickles,
    outside_programs,
    programs,
    tricks,
)
from tools.payloads.containers import Payload
from tools.payloads.pickle_code import pickled

RUNNER = Path(__file__).with_name("running.py")
_PROCESSES = 2


class Made(NamedTuple):
    """A payload that was written."""

    name: str
    mechanism: str
    loader: str
    file: str
    marker: str


def corpus() -> list[Payload]:
    """Every payload. Whether one runs depends on the versions of what is installed."""
    modules = (tricks, containers, programs, outside_pickles, outside_archives, outside_programs, called_later)
    found = [*_of_functions(), *(one for module in modules for one in module.payloads())]
    names = [one.name for one in found]
    assert len(set(names)) == len(names), sorted({name for name in names if names.count(name) > 1})
    return found


def _of_functions() -> Iterator[Payload]:
    """One payload for each function, with the protocols by turns."""
    taken: dict[str, int] = {}
    for number, (mechanism, calls, value) in enumerate(functions.payloads()):
        taken[calls] = taken.get(calls, 0) + 1
        name = calls + (f" {taken[calls]}" if taken[calls] > 1 else "")
        choice = functions.protocols(value)
        protocol = choice[number % len(choice)]

        def write(path: Path, marker: str, value: Any = value, protocol: int = protocol) -> None:
            path.write_bytes(pickled(functions.with_marker(value, marker), protocol))

        yield Payload(name, mechanism, "pickle.load", ".pkl", write)


def generate(folder: Path, chosen: Sequence[Payload]) -> list[Made]:
    """Writes payloads into a folder, with their markers in a folder beside them that is empty."""
    files, markers = folder / "files", folder / "markers"
    files.mkdir(parents=True)
    markers.mkdir()
    made = []
    for payload in chosen:
        slug = re.sub(r"\W+", "_", payload.name)[:80]
        path, marker = files / f"{len(made):04}_{slug}{payload.suffix}", markers / f"m{len(made):04}_"
        payload.write(path, str(marker))
        made.append(Made(payload.name, payload.mechanism, payload.loader, str(path), str(marker)))
    return made


def run(made: Sequence[Made], folder: Path, processes: int = _PROCESSES) -> dict[str, str]:
    """Loads each with its own loader. Returns, by name, an empty text if it ran, or why it did not."""
    started = []
    for number in range(processes):
        manifest = folder / f"manifest{number}.json"
        rows = [one._asdict() for one in made[number::processes]]
        manifest.write_text(json.dumps(rows), "utf-8")
        command = [sys.executable, "-I", "-W", "ignore", str(RUNNER), str(manifest)]
        errors = (folder / f"errors{number}.txt").open("wb")
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=folder, encoding="utf-8"))
        errors.close()
    found: dict[str, str] = {}
    for process in started:
        for line in process.communicate()[0].splitlines():
            row = json.loads(line)
            found[row["name"]] = "" if row["ran"] else row["why"] or "the marker was not made"
    return {one.name: found.get(one.name, "the runner ended before") for one in made}
