"""Measures what files cost for `tools/fuzz_costly.py`: each in a process of its own, with limits of memory and time.

    python -m tools.costly_worker

Reads one line of JSON for each file, and answers with one line: for each verb the seconds of processor time, the
megabytes, the outcome, and the functions of leafwise in which it spent the time and allocated the memory.
"""

import contextlib
import gc
import json
import os
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import leafwise as lw
from leafwise.files.limits import MAX_BYTES, MAX_STEPS, allowing

_ADDRESS_SPACE = 6 << 30
_TICK = 0.01  # seconds of processor time between two samples
_SOURCE = str(Path(lw.__file__).parent) + os.sep


def show(path: str) -> None:
    with lw.open(path) as tree:
        str(tree)


def full_text(path: str) -> None:
    with lw.open(path) as tree:
        tree.text(full=True)


def opaque(path: str) -> None:
    with lw.open(path) as tree:
        list(tree.opaque)


def scalars(path: str) -> None:
    with lw.open(path) as tree:
        dict(tree.scalars)


def check(path: str) -> None:
    str(lw.check(path))


def diff(path: str) -> None:
    str(lw.diff(path, path))


def plan(path: str) -> None:
    str(lw.plan({"a": np.zeros(1)}, path))


VERBS: dict[str, Callable[[str], None]] = {
    "show": show, "opaque": opaque, "scalars": scalars, "check": check, "diff": diff, "plan": plan, "text": full_text,
}  # fmt: skip


class CutOffError(BaseException):
    """A verb took so much that there is no need to wait for its end."""


class Sampler:
    """Notes where leafwise spends its time and allocates memory, and interrupts it above a limit."""

    def __init__(self, seconds: float, megabytes: float) -> None:
        self._seconds, self._megabytes = seconds, megabytes
        self.began = time.process_time()
        self.base = self._last = _resident()
        self.times: Counter[str] = Counter()
        self.memory: Counter[str] = Counter()

    def sample(self, _: int, frame: Any) -> None:
        now, place = _resident(), _place(frame)
        self.times[place] += 1
        self.memory[place] += max(0, now - self._last)
        self._last = now
        if time.process_time() - self.began > self._seconds or now - self.base > self._megabytes * 1e6:
            signal.setitimer(signal.ITIMER_PROF, 0)
            raise CutOffError

    def where(self, counter: Counter[str]) -> str:
        return counter.most_common(1)[0][0] if counter else ""


def _place(frame: Any) -> str:
    """The two innermost functions of leafwise."""
    found: list[str] = []
    while frame is not None and len(found) < 2:
        path = frame.f_code.co_filename
        if path.startswith(_SOURCE):
            name = f"{path.removeprefix(_SOURCE)}:{frame.f_code.co_qualname}"
            if name not in found:
                found.append(name)
        frame = frame.f_back
    return " < ".join(found)


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * resource.getpagesize()


def _peak() -> int:
    status = Path("/proc/self/status").read_text("ascii", "replace")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def measured(verb: str, path: str, base: int, seconds: float, megabytes: float) -> dict[str, Any]:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")
    sampler = Sampler(seconds, megabytes)
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.setitimer(signal.ITIMER_PROF, _TICK, _TICK)
    try:
        VERBS[verb](path)
        said = ""
    except CutOffError:
        said = "cut off"
    except lw.Error as error:
        said = f"{type(error).__name__}: {error}"[:300]
    except Exception as error:
        said = f"!{type(error).__name__}: {error}"[:300]
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return {
        "verb": verb, "seconds": time.process_time() - sampler.began, "megabytes": (_peak() - base) / 1e6,
        "said": said, "time": sampler.where(sampler.times), "memory": sampler.where(sampler.memory),
    }  # fmt: skip


def _measure_all(order: dict[str, Any]) -> None:
    """In a process of its own, which may be killed: each result is printed at once."""
    seconds, megabytes, share = order["seconds"], order["megabytes"], order["share"]
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    most = int(2 * seconds * len(order["verbs"])) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    base = _resident()
    with allowing(MAX_BYTES // share, MAX_STEPS // share, None, False):
        for verb in order["verbs"]:
            print(json.dumps({"verb": verb}), flush=True)
            found = measured(verb, order["path"], base, seconds, megabytes)
            print(json.dumps(found), flush=True)
            if found["said"] == "cut off":
                break


def main() -> None:
    warnings.simplefilter("ignore")
    _warm_up()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if not child:
            try:
                _measure_all(json.loads(line))
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"status": status}), flush=True)


def _warm_up() -> None:
    """Calls every verb on a small file, so that each process finds everything imported."""
    import tempfile

    from tools.costly_programs import Block, Program, file_of

    with tempfile.TemporaryDirectory() as folder:
        for number, maker in enumerate(["object", "tensor", "dict", "getattr", "object keys", "numpy array"]):
            path = Path(folder, f"{number}.pt")
            path.write_bytes(file_of(Program((Block("text", 1, 3), Block(maker, 1, 3), Block("tensor", 3, 3)))))
            for verb in VERBS.values():
                with contextlib.suppress(lw.Error):
                    verb(str(path))


if __name__ == "__main__":
    main()
