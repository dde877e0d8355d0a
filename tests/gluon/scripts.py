"""Runs scripts as `python -W ignore -m leafwise.gluon` runs them, without importing PyTorch again for each.

Run as a script, this file imports the front end once. It then reads commands from its input, each one line of JSON,
and forks a process for each, which therefore has the state of a process that has just begun.
"""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


class Scripts:
    """A process that runs scripts one after the other."""

    def __init__(self, folder: Path) -> None:
        self._output, self._errors = folder / "stdout", folder / "stderr"
        # One thread: the arrays of the scripts are too small for more, and a process with threads must not fork.
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def run(self, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
        """The result of `python -W ignore -m leafwise.gluon` with these arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = {"arguments": [*map(str, arguments)], "stdout": str(self._output), "stderr": str(self._errors)}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        output, errors = self._output.read_text("utf-8"), self._errors.read_text("utf-8")
        return subprocess.CompletedProcess([*arguments], status, output, errors)

    def close(self) -> None:
        self._process.communicate()


def serve() -> dict[str, Any] | None:
    """In the process of a command, returns that command; in the first process, None, after the last command."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            command: dict[str, Any] = json.loads(line)
            return command
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    return None


def redirect(stream: int, file: str, flags: int) -> None:
    opened = os.open(file, flags, 0o600)
    os.dup2(opened, stream)
    os.close(opened)


if __name__ == "__main__":
    import sympy  # noqa: F401  # PyTorch imports it when it first trains

    from leafwise.gluon.__main__ import main

    gc.collect()
    gc.freeze()  # a process then ends without copying and freeing all that was imported
    if command := serve():
        redirect(0, os.devnull, os.O_RDONLY)
        redirect(1, command["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        redirect(2, command["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        sys.argv[1:] = command["arguments"]
        main()  # the end of the process is the usual one
