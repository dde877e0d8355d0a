"""Functions that run on several ranks: real processes, connected by gloo.

The processes are forked from a server that has imported PyTorch, so that a call takes a fraction of a second.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

import pytest

import leafwise

# What ranks would otherwise import, each for itself. DTensors import torch._dynamo when they are first used.
_IMPORTED = [
    "fsspec", "gguf", "hypothesis", "http.server", "leafwise.cli.output", "leafwise.homes.containers",
    "leafwise.homes.numpy", "leafwise.homes.stateful", "numpy", "pytest", "safetensors.torch", "torch._dynamo",
    "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp", "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel", "xxhash",
]  # fmt: skip
_ROOMS = ["checkpoint", "core", "files", "homes/torch", "inspect", "iterate", "share"]  # of leafwise, imported, too
_GRACE = 3.0  # seconds that the other ranks have after one has failed


def import_first(*modules: str) -> None:
    """Modules that the server also imports; called before its first use."""
    _IMPORTED.extend(modules)


@functools.cache
def _server() -> Any:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        pytest.skip("this system cannot fork processes")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_IMPORTED, *_modules_of_leafwise()])
    return context


def _modules_of_leafwise() -> list[str]:
    source = Path(leafwise.__file__).parent
    files = [path.relative_to(source) for room in _ROOMS for path in sorted((source / room).rglob("*.py"))]
    return [".".join(["leafwise", *file.with_suffix("").parts]).removesuffix(".__init__") for file in files]


def run_ranks(
    count: int, function: Callable[..., Any], *arguments: Any, timeout: float = 600, dies: Collection[int] = ()
) -> list[Any]:
    """Calls `function(*arguments)` on every rank, in a process group that is initialized, and returns the results.

    The function must be at the top level of a test module; arguments and results are pickled. If it raises on a rank,
    that rank's traceback and what it printed are the failure of the test. After `timeout` seconds, all ranks are
    killed. Ranks in `dies` are expected to end without a result, which is then None; the others get the time they need.
    """
    context = _server()
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for rank in range(count):
            receiving, sending = context.Pipe(duplex=False)
            job = (rank, count, folder, timeout, function, arguments, sending)
            process = context.Process(target=_run_rank, args=job, daemon=True)
            process.start()
            sending.close()
            ranks.append((process, receiving))
        try:
            outcomes = _collect(ranks, time.monotonic() + timeout, set(dies))
        finally:
            for process, receiving in ranks:
                process.kill()
                process.join()
                receiving.close()
        problems = [
            f"rank {rank} {problem}\n{_printed(folder, rank)}"
            for rank, (result, problem) in outcomes.items()
            if problem and not (rank in dies and result is None)
        ]
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
    return [outcomes[rank][0] for rank in range(count)]


def _collect(ranks: list[Any], deadline: float, dies: set[int]) -> dict[int, tuple[Any, str]]:
    """The result of each rank, and what went wrong; in the order in which they ended."""
    outcomes: dict[int, tuple[Any, str]] = {}
    while len(outcomes) < len(ranks):
        waiting = {pipe: rank for rank, (_, pipe) in enumerate(ranks) if rank not in outcomes}
        ready = connection.wait(list(waiting), max(0.0, deadline - time.monotonic()))
        for pipe in ready:
            rank = waiting[pipe]
            try:
                outcomes[rank] = pipe.recv()
            except EOFError:
                outcomes[rank] = None, "ended without a result"
            if outcomes[rank][1] and rank not in dies:
                deadline = min(deadline, time.monotonic() + _GRACE)
        if not ready:
            for rank in waiting.values():
                outcomes[rank] = None, "was still running when the time was up"
    return outcomes


def _printed(folder: str, rank: int) -> str:
    path = Path(folder, f"{rank}.txt")
    return path.read_text("utf-8", "replace")[-4000:] if path.exists() else ""


def _run_rank(
    rank: int,
    count: int,
    folder: str,
    timeout: float,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    sending: connection.Connection,
) -> None:
    import warnings

    import torch
    from torch import distributed

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test that started this rank ends it
    output = os.open(f"{folder}/{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=count, timeout=timedelta(seconds=timeout)
    )
    try:
        sending.send((function(*arguments), ""))
    except BaseException:
        sending.send((None, f"failed:\n{traceback.format_exc()}"))
        return
    # The ranks end together: if one of them left first, the others could not finish a collective.
    with contextlib.suppress(RuntimeError):
        distributed.barrier()
    distributed.destroy_process_group()


@contextlib.contextmanager
def received_bytes() -> Iterator[list[int]]:
    """The bytes of each tensor that collectives fill on this rank."""
    from leafwise.homes.torch.parallel import teams

    received: list[int] = []
    kept = teams.TorchTeam._started

    def counted(self: Any, collective: Any, *arguments: Any, group: Any) -> Any:
        received.append(arguments[0].nbytes)
        return kept(self, collective, *arguments, group=group)

    teams.TorchTeam._started = counted  # type: ignore[method-assign]
    try:
        yield received
    finally:
        teams.TorchTeam._started = kept  # type: ignore[method-assign]
