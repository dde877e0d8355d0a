"""Runs commands as `python -m MODULE` does, without importing PyTorch again for each.

Run as a script, this file imports what the commands import. It then reads commands from its input, each one line of
JSON, and forks a process for each, which therefore has the state of a process that has just begun.
"""

import gc
import json
import os
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

OUTPUT = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


class Commands:
    """A process that runs the commands of a module, one after the other."""

    def __init__(self, module: str, imports: list[str], folder: Path, **environment: str) -> None:
        """`folder` is for files with the output of commands."""
        self._output, self._errors = folder / "stdout", folder / "stderr"
        # One thread: the arrays are too small for more, and a process with threads must not fork.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self._process = subprocess.Popen(
            [sys.executable, __file__, module, *imports],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8", env=environment,
        )  # fmt: skip

    def run(self, *arguments: str | Path, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
        """The result of `python -m MODULE` with these arguments."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = {"arguments": [*map(str, arguments)], "stdout": str(self._output), "stderr": str(self._errors)}
        self._process.stdin.write(json.dumps({**command, "cwd": str(cwd or Path.cwd())}) + "\n")
        self._process.stdin.flush()
        status = int(self._process.stdout.readline())
        output, errors = (path.read_text("utf-8", errors="replace") for path in (self._output, self._errors))
        return subprocess.CompletedProcess([*arguments], status, output, errors)

    def close(self) -> None:
        self._process.communicate()


def next_command() -> dict[str, Any] | None:
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


def main() -> None:
    module = sys.argv[1]
    del sys.path[0]  # the folder of this file
    for name in sys.argv[2:]:
        import_module(name)
    gc.collect()
    gc.freeze()  # a process then ends without copying and freeing all that was imported
    if command := next_command():
        redirect(0, os.devnull, os.O_RDONLY)
        redirect(1, command["stdout"], OUTPUT)
        redirect(2, command["stderr"], OUTPUT)
        os.chdir(command["cwd"])
        sys.path.insert(0, command["cwd"])  # as `python -m` does
        sys.argv[1:] = command["arguments"]
        runpy.run_module(module, run_name="__main__", alter_sys=True)  # the process then ends as usual


if __name__ == "__main__":
    main()
