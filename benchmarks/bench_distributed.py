"""The statistics of a sharded model, compared with the local statistics of the slowest rank and one all-reduce; and a
save of a replicated model, with and without comparing its copies.

    python benchmarks/bench_distributed.py

Four processes connected by gloo, or as many as the machine has cores if it has fewer, each with one thread and 256 MB
of a model under FSDP2. The target is for four processes on as many cores.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"

import multiprocessing
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from common import machine
from figures import exit_status, report
from torch import distributed, nn

import leafwise as lw
from leafwise.checkpoint.saving import diverged

RANKS = min(4, os.cpu_count() or 1)
WIDTH, LAYERS = 2048, 16  # of one rank: 16 matrices of 4M values
ROUNDS = 9
EXACT = ("count", "nan", "zeros", "min", "max", "histogram")


def timed(task: Callable[[], Any]) -> float:
    """The time of a task on the slowest rank, if all begin together."""
    distributed.barrier()
    start = time.perf_counter()
    task()
    taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
    distributed.all_reduce(taken, distributed.ReduceOp.MAX)
    return taken.item()


def check_result(model: nn.Module) -> None:
    table = lw.stats(model)
    for name, value in list(model.named_parameters())[:3]:
        row, whole = table[name], lw.stats({"w": value.detach().full_tensor()})["w"]  # type: ignore[attr-defined]
        assert [getattr(row, field) for field in EXACT] == [getattr(whole, field) for field in EXACT], name
        assert abs(row.std / whole.std - 1) < 1e-12, name


def _save_without_comparing(model: nn.Module, path: str) -> None:
    kept = diverged.digests
    diverged.digests = lambda content, array, parts, ranks: [""] * len(parts)  # type: ignore[assignment]
    try:
        lw.save(model, path, format="dcp")
    finally:
        diverged.digests = kept


def check_saves(model: nn.Module, store: str) -> None:
    """Both ways write the same values, and only one of them notices a copy that differs."""
    lw.save(model, f"{store}.compared", format="dcp")
    _save_without_comparing(model, f"{store}.not")
    assert lw.diff(f"{store}.compared", f"{store}.not").same
    weight = model[0].weight.to_local().data  # type: ignore[index, operator, union-attr]
    kept = weight.clone()
    if distributed.get_rank() == RANKS - 1:
        weight[0, 0] += 1
    try:
        lw.save(model, f"{store}.compared", format="dcp")
        raise AssertionError("a copy that differs was saved")
    except lw.RankError:
        weight.copy_(kept)


def on_rank(rank: int, store: str, results: Any) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    warnings.simplefilter("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else ""
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", f"file://{store}", rank=rank, world_size=RANKS, timeout=timedelta(seconds=300)
    )
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (RANKS,))
    model = nn.ModuleList([fully_shard(nn.Linear(WIDTH, WIDTH * RANKS), mesh=mesh) for _ in range(LAYERS)])
    check_result(model)
    local = {name: value.detach().to_local() for name, value in model.named_parameters()}  # type: ignore[attr-defined]
    sums = torch.zeros(len(local), 256, dtype=torch.float64)
    tasks: dict[str, Callable[[], Any]] = {
        "local": lambda: lw.stats(local),
        "all-reduce": lambda: distributed.all_reduce(sums),
        "sharded": lambda: lw.stats(model),
    }
    copies = init_device_mesh("cpu", (RANKS, 1), mesh_dim_names=("copy", "shard"))
    replicated = nn.ModuleList([fully_shard(nn.Linear(WIDTH, WIDTH), mesh=copies) for _ in range(LAYERS)])
    tasks["save"] = lambda: lw.save(replicated, f"{store}.saved", format="dcp")
    tasks["save without comparing"] = partial(_save_without_comparing, replicated, f"{store}.saved")
    check_saves(replicated, store)
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for turn in range(ROUNDS + 1):
        for name, task in tasks.items():
            taken = timed(task)
            if turn:  # the first round warms up
                times[name].append(taken)
    if rank == 0:
        results.put({name: statistics.median(of_task) for name, of_task in times.items()})
    distributed.barrier()
    distributed.destroy_process_group()


def main() -> int:
    machine()
    print(f"# {RANKS} processes, one thread each, on {os.cpu_count()} cores")
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=on_rank, args=(rank, f"{folder}/store", results)) for rank in range(RANKS)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        if any(process.exitcode for process in processes):
            sys.exit("a rank failed; see its output")
        times = results.get()
    for name, taken in times.items():
        print(f"{name:<12} {taken * 1000:8.2f} ms")
    ratio = times["sharded"] / (times["local"] + times["all-reduce"])
    compared = times["save"] / times["save without comparing"]
    results_of_saves = report("a save of copies, compared / not compared", compared, 1.5)
    return exit_status(
        [results_of_saves, report(f"sharded stats / slowest local stats + all-reduce, {RANKS} ranks", ratio, 1.1)]
    )


if __name__ == "__main__":
    sys.exit(main())
