"""Checkpoints that tests save to a store, and processes that save them and can be killed.

Run as a script, this file imports what a save needs. It then reads commands from its input, each one line of JSON, and
forks a process for each, so that none has to import anything.
"""

import importlib
import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import leafwise as lw

UNIT = 10_240  # bytes
PART = 5 * UNIT
NAME = "run/m.safetensors"
URL = f"s3://bucket/{NAME}"
SHARD_SIZE = "70KB"


def content(generation: int, units: int = 12) -> dict[str, Any]:
    """A checkpoint in which every value is the number of the generation, so that a mixture is visible."""
    arrays = {f"w{half}": np.full((units // 2, UNIT // 4), generation, np.float32) for half in range(2)}
    return {**arrays, "b": np.full(5, generation, np.int64), "n": generation}


def generation_of(url: str) -> int:
    """The generation that a checkpoint contains; raises if it is not complete."""
    assert lw.verify(url).ok
    with lw.open(url) as tree:
        values = {int(value) for leaf in tree for value in np.unique(leaf.numpy())} | {tree["n"]}
        assert {str(leaf.path) for leaf in tree} == {"w0", "w1", "b"}
    assert len(values) == 1, values
    return values.pop()


class Saver:
    """A process that starts saves through a server on loopback, each in a process of its own."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.files.remote_saves", json.dumps(options)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", cwd=Path(__file__).parents[2],
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        self._child = 0
        self._is_known = threading.Event()

    def save(self, generation: int, units: int, shard_size: str | None) -> int:
        """Saves a checkpoint; returns the exit status of the process, or minus the signal that has ended it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._is_known.clear()
        self._process.stdin.write(json.dumps([generation, units, shard_size]) + "\n")
        self._process.stdin.flush()
        self._child = int(self._process.stdout.readline())
        self._is_known.set()
        return int(self._process.stdout.readline())

    def kill(self) -> None:
        """Kills the process that is saving."""
        assert self._is_known.wait(600)
        os.kill(self._child, 9)

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    import fsspec

    from leafwise.files.sources import multipart, remote

    for name in ("s3fs", "aiobotocore.session", "leafwise.checkpoint.saving.save"):
        importlib.import_module(name)
    multipart.PART, remote.FIRST_PAUSE = PART, 0.001
    fsspec.config.conf["s3"] = json.loads(sys.argv[1])
    for line in sys.stdin:
        generation, units, shard_size = json.loads(line)
        child = os.fork()
        if not child:
            try:
                lw.save(content(generation, units), URL, shard_size=shard_size)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
