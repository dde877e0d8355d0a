"""Counts what each verb reads, receives and holds on each of 1, 2, 4 and 8 ranks, for docs/scale.md.

    python -m tools.scale            # prints the tables
    python -m tools.scale --write    # puts them into docs/scale.md

Bytes are counted, not seconds, so that a busy machine gives the same figures. The ranks are processes that are
connected by gloo. Two models, of 128 and 512 leaves of 64×64, separate what grows with the leaves from what does not.
Results are shared out as for large models (`leafwise.core.work.ranks`).
"""

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import tracemalloc
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from tools.pages import put_table

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
COUNTS = (1, 2, 4, 8)
MODELS = ((128, 64), (512, 64))  # leaves, and the side of each: a square matrix of float32
# What is extrapolated to: 10**12 parameters in bfloat16, in matrices of 3,200 rows.
LARGEST_RANKS, LEAVES, NBYTES, ROWS = 10_000, 100_000, 2 * 10**12, 3_200
_SHARD, _HEADER, _CHUNK = NBYTES / LARGEST_RANKS, 130 * LEAVES, 1 << 20
# Not fitted, since the parts of such small leaves have less than the chunk of a checksum.
READ = {
    "save dcp": 220 * LEAVES * LARGEST_RANKS,  # the record of all pieces, on the first rank
    "plan": _HEADER,
    "load": _HEADER + _SHARD + _CHUNK * LEAVES,
    "diff with a file": _HEADER + _SHARD,
    "open, print": 180 * LEAVES * LARGEST_RANKS,
    "verify": NBYTES + 180 * LEAVES * LARGEST_RANKS,
    "edit": 2 * NBYTES + 180 * LEAVES * LARGEST_RANKS,
}
# Received by `lw.check` besides the statistics: the first 16 numbers of each row and column, added up over all ranks.
SAMPLES = 2 * LEAVES * 16 * 2 * 2 * ROWS


class Counted(NamedTuple):
    """What a verb has cost on one rank, in bytes; `requests` are those to the store."""

    read: int = 0  # from files
    received: int = 0  # by collectives
    store: int = 0  # sent to the store and received from it
    requests: int = 0
    held: int = 0  # the peak of what Python and NumPy allocate; not the values of tensors


class Counters:
    """Counts what this process reads and sends. Nothing of leafwise is changed for it."""

    def __init__(self) -> None:
        self.received = self.store = self.requests = 0
        self._lock = threading.Lock()

    def collective(self, function: Callable[..., Any], cost: Callable[[int, int], float]) -> Callable[..., Any]:
        """A collective that counts: `cost` is what a rank receives, from the bytes of its result and the ranks."""

        def counted(result: Any, *arguments: Any, group: Any = None, **options: Any) -> Any:
            self.received += round(cost(result.nbytes, group.size()))
            return function(result, *arguments, group=group, **options)

        return counted

    def of_store(self, store: Any) -> Any:
        counters = self

        class CountedStore:
            def __getattr__(self, name: str) -> Any:
                method = getattr(store, name)

                def counted(*arguments: Any) -> Any:
                    answer = method(*arguments)
                    sizes = [len(item) for item in (*arguments[1:], answer) if isinstance(item, bytes)]
                    with counters._lock:
                        counters.requests += 1
                        counters.store += sum(sizes)
                    return answer

                return counted

        return CountedStore()


def install(counters: Counters) -> None:
    """Makes torch.distributed count. Must be called before leafwise is imported."""
    from torch import distributed
    from torch.distributed import distributed_c10d

    for name in ("all_gather_single", "all_gather_into_tensor"):
        if hasattr(distributed, name):
            counted = counters.collective(getattr(distributed, name), lambda size, ranks: size * (ranks - 1) / ranks)
            setattr(distributed, name, counted)
    distributed.all_to_all_single = counters.collective(
        distributed.all_to_all_single, lambda size, ranks: size * (ranks - 1) / ranks
    )
    # In a ring: each rank receives a share of the sum from its neighbor, for each of the others, and then the sums.
    distributed.all_reduce = counters.collective(
        distributed.all_reduce, lambda size, ranks: 2 * size * (ranks - 1) / ranks
    )
    find = distributed_c10d._get_default_store
    distributed_c10d._get_default_store = lambda: counters.of_store(find())  # type: ignore[assignment]


def bytes_read() -> int:
    """The bytes that this process has read from files. (What gloo receives is not among them.)"""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


def counted(counters: Counters, act: Callable[[], object]) -> Counted:
    from torch import distributed

    distributed.barrier()
    tracemalloc.start()
    read = bytes_read()
    counters.received = counters.store = counters.requests = 0
    act()
    read = bytes_read() - read
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    distributed.barrier()
    return Counted(read, counters.received, counters.store, counters.requests, peak)


def sharded(leaves: int, side: int, ranks: int) -> Any:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(side, side, bias=False) for _ in range(leaves)])
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))
    for value in model.parameters():
        value.grad = value.detach().clone()
    return model


def verbs(model: Any, folder: Path, rank: int) -> dict[str, Callable[[], object]]:
    """What is counted, by name. Of verbs that need no ranks, only the first rank does something."""
    import leafwise as lw

    file, saved, edited = folder / "model.safetensors", folder / "dcp", folder / "edited.safetensors"
    average = lw.Average(model, decay=0.9)

    def alone(act: Callable[[], object]) -> Callable[[], object]:
        return act if rank == 0 else lambda: None

    return {
        "tree, print": lambda: str(lw.tree(model)),
        "groups, freeze": lambda: (lw.groups(model), lw.freeze(model, "0.**"), lw.thaw(model, "0.**")),
        "stats": lambda: lw.stats(model),
        "check": lambda: lw.check(model),
        "clip": lambda: lw.clip(model, 1.0),
        "Average.update": average.update,
        "initialize": lambda: lw.initialize(model, seed=1),
        "save dcp": lambda: lw.save(model, saved, format="dcp"),
        "plan": lambda: lw.plan(model, file),
        "load": lambda: lw.load(model, file),
        "diff with a file": lambda: lw.diff(file, model),
        "open, print": alone(lambda: str(lw.open(saved))),
        "verify": alone(lambda: lw.verify(saved)),
        "edit": alone(lambda: lw.edit(saved, edited, cast="bfloat16")),
    }


def on_rank(rank: int, ranks: int, port: int, folder: str, results: Any) -> None:
    os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
    warnings.simplefilter("ignore")
    counters = Counters()
    install(counters)
    import torch
    from torch import distributed

    import leafwise as lw
    from leafwise.core.work import ranks as limits

    limits.LARGE = 0
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    distributed.init_process_group("gloo", address, rank=rank, world_size=ranks, timeout=timedelta(seconds=300))
    rows = []
    for number, (leaves, side) in enumerate(MODELS):
        model = sharded(leaves, side, ranks)
        at = Path(folder, str(number))
        state = {name: value.detach().full_tensor() for name, value in model.named_parameters()}  # type: ignore[attr-defined]
        if rank == 0:
            at.mkdir()
            lw.save(state, at / "model.safetensors")
        del state
        distributed.barrier()
        for name, act in verbs(model, at, rank).items():
            act()  # imports what it needs
            rows.append((name, leaves, leaves * side**2, counted(counters, act)))
            with suppress(FileNotFoundError):
                if name == "edit" and rank == 0:
                    (at / "edited.safetensors").unlink()
    results.put(rows)
    distributed.barrier()
    distributed.destroy_process_group()


Figures = dict[str, dict[tuple[int, int], Counted]]  # by verb, leaves and values: the most of any rank


def measured(ranks: int) -> Figures:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        jobs = [context.Process(target=on_rank, args=(rank, ranks, port, folder, results)) for rank in range(ranks)]
        for job in jobs:
            job.start()
        every = [results.get(timeout=900) for _ in jobs]
        for job in jobs:
            job.join()
    figures: Figures = {}
    for rows in every:
        for name, leaves, size, cost in rows:
            known = figures.setdefault(name, {}).get((leaves, size), Counted())
            figures[name][leaves, size] = Counted(*map(max, known, cost))
    return figures


def _free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Cost(NamedTuple):
    """A cost as a sum: a constant, and a part for each leaf."""

    fixed: float
    leaf: float


def solved(figures: dict[tuple[int, int], Counted], quantity: str) -> Cost:
    """The cost that two models have which differ in the number of leaves."""
    (few, side), (many, _) = MODELS
    small, large = (getattr(figures[leaves, leaves * side**2], quantity) for leaves in (few, many))
    leaf = (large - small) / (many - few)
    return Cost(small - leaf * few, leaf)


def grown(four: float, eight: float) -> float:
    """A part of a cost on many ranks: it stays as it is on 8 ranks, or it grows with the ranks if it has grown so from
    4 to 8 ranks."""
    return max(eight, 0.0) * (LARGEST_RANKS / 8 if four > 0 and eight > 1.5 * four else 1)


def extrapolated(every: dict[int, Figures], name: str, quantity: str) -> float:
    """A cost per rank, for the largest model."""
    if quantity == "read":
        return READ.get(name, 0.0)
    if (name, quantity) == ("check", "received"):
        return SAMPLES + extrapolated(every, "stats", quantity)
    cost = Cost(*map(grown, *(solved(every[ranks][name], quantity) for ranks in (4, 8))))
    return cost.fixed + cost.leaf * LEAVES


def human(number: float) -> str:
    if abs(number) < 0.5:
        return "0"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 999.5 or unit == "TB":
            return f"{number:.0f} {unit}" if abs(number) >= 10 or unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def tables(every: dict[int, Figures]) -> str:
    leaves, side = MODELS[1]
    parts = []
    titles = {
        "received": "received, by collectives",
        "store": "through the store",
        "read": "read from files",
    }
    for quantity, title in titles.items():
        rows = [f"| {title} | 1 rank | 2 ranks | 4 ranks | 8 ranks |", "|---|---|---|---|---|"]
        for name in every[1]:
            counts = [getattr(every[ranks][name][leaves, leaves * side**2], quantity) for ranks in COUNTS]
            if max(counts) > 300:
                rows.append(f"| {name} | " + " | ".join(map(human, counts)) + " |")
        parts.append("\n".join(rows))
    rows = ["| memory for each leaf | 1 rank | 2 ranks | 4 ranks | 8 ranks |", "|---|---|---|---|---|"]
    for name in every[1]:
        held = [human(solved(every[ranks][name], "held").leaf) for ranks in COUNTS]
        rows.append(f"| {name} | " + " | ".join(held) + " |")
    parts.append("\n".join(rows))
    rows = ["| extrapolated | received | store | read |", "|---|---|---|---|"]
    for name in every[1]:
        cells = [human(extrapolated(every, name, quantity)) for quantity in titles]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n\n".join([*parts, "\n".join(rows)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    if not Path("/proc/self/io").exists():
        sys.exit("this needs Linux, which counts what a process reads")
    arguments = parser.parse_args()
    text = tables({ranks: measured(ranks) for ranks in COUNTS})
    if arguments.write:
        put_table(PAGE, "<!-- costs -->", "<!-- /costs -->", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
