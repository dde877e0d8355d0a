"""Shared by the benchmarks: the model, interleaved timing, and peak memory."""

import gc
import os
import platform
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class Expert(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)


class Layer(nn.Module):
    """Attention with its norms, a router, and the experts."""

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList([Expert(width, hidden) for _ in range(experts)])


class MixtureOfExperts(nn.Module):
    """61 layers × 256 experts × 3 matrices, and a head that is tied to the embedding: 47,337 leaves."""

    def __init__(self, layers: int = 61, experts: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(129_280, 7168)
        self.layers = nn.ModuleList([Layer(7168, 2048, experts) for _ in range(layers)])
        self.head = nn.Linear(7168, 129_280, bias=False)
        self.head.weight = self.embed.weight


def mixture_of_experts() -> MixtureOfExperts:
    with torch.device("meta"):
        return MixtureOfExperts()


def in_a_process_of_its_own(check: Callable[..., None], *arguments: Any) -> None:
    """Runs a check in a fork, so that the memory it leaves behind does not slow down what is timed afterwards."""
    child = os.fork()
    if child == 0:
        try:
            check(*arguments)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if status:
        sys.exit("the result is wrong, so nothing is timed")


def interleaved(rounds: int, **tasks: Callable[[], Any]) -> dict[str, float]:
    """The median time of each task, in seconds. The tasks take turns, so that noise affects all of them, and each round
    starts with a different task, so that no task always follows the same one."""
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for task in tasks.values():
        task()
    # The garbage collector must only visit the objects that a task makes itself.
    gc.collect()
    gc.freeze()
    order = list(tasks.items())
    for turn in range(rounds):
        first = turn % len(order)
        for name, task in order[first:] + order[:first]:
            start = time.perf_counter()
            result = task()
            times[name].append(time.perf_counter() - start)
            del result
    gc.unfreeze()
    return {name: statistics.median(found) for name, found in times.items()}


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout


def peak_memory(*command: str) -> int:
    """The peak memory of a command, in bytes."""
    script = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, "
        "stderr=subprocess.DEVNULL); print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    kilobytes = int(run(sys.executable, "-c", script, *command))
    return kilobytes * (1 if sys.platform == "darwin" else 1024)


def machine() -> None:
    print(f"# Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}", file=sys.stdout)
