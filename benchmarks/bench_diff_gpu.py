"""Comparing models on a GPU, in bfloat16: 7 billion parameters in 291 leaves, and 20,000 small leaves.

    python benchmarks/bench_diff_gpu.py

Needs 60 GB of GPU memory and 5 GB in /dev/shm or the folder for temporary files; without a GPU, nothing is measured.
"""

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from bench_stats_gpu import copy_ceiling, on_device, seven_billion
from common import machine
from figures import exit_status, not_run, report

import leafwise as lw

Tensors = dict[str, torch.Tensor]


def agree(first: Tensors, second: Tensors, found: Any, name: str) -> None:
    """The result must be that on the CPU: kinds and counts are equal, sums agree up to rounding in float64."""
    right = lw.diff({key: x.cpu() for key, x in first.items()}, {key: x.cpu() for key, x in second.items()})
    for change, expected in zip(found, right, strict=True):
        assert (change.path, change.kinds) == (expected.path, expected.kinds), name
        comparison, other = change.comparison, expected.comparison
        if comparison is None or other is None:
            assert comparison is other, (name, change.path)
            continue
        assert comparison[:3] == other[:3], (name, change.path)
        for figure, expected_figure in zip(comparison[3:8], other[3:8], strict=True):
            both_nan = math.isnan(figure) and math.isnan(expected_figure)
            assert both_nan or math.isclose(figure, expected_figure, rel_tol=1e-12), (name, change.path)


def check() -> None:
    """Compares results on the GPU with those on the CPU."""
    torch.manual_seed(0)
    a: Tensors = {
        str(dtype): (torch.randn(300_007, device="cuda") * 50).to(dtype)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.int32)
    }
    a |= {"square": torch.randn(500, 500, device="cuda"), "matrix": torch.randn(300, 700, device="cuda")}
    a |= {"cast": torch.randn(200_000, device="cuda"), "sick": torch.randn(200_000, device="cuda")}
    b = {name: x.clone() for name, x in a.items()}
    agree(a, b, lw.diff(a, b), "equal")
    for name in list(a)[:6]:
        b[name][[7, 70_000, 300_006]] = b[name][[8, 70_001, 300_005]]
    b |= {"square": a["square"].t().contiguous(), "matrix": a["matrix"].t().contiguous(), "cast": a["cast"].bfloat16()}
    b["sick"][[5, 100_000]] = math.nan
    agree(a, b, lw.diff(a, b), "changed")
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        lw.save(b, f"{folder}/b.safetensors")
        agree(a, b, lw.diff(a, f"{folder}/b.safetensors"), "a file")


def _memory() -> str | None:
    """A folder in memory, if there is one, so that the disk is not measured."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


def on_host(task: Callable[[], Any], rounds: int = 7) -> float:
    """The median time of a whole call, in milliseconds."""
    task()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        task()
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def loop(first: Tensors, second: Tensors) -> None:
    """What people write: the norm of the difference, the largest one, and how many differ."""
    for x, y in zip(first.values(), second.values(), strict=True):
        apart = x.float() - y.float()
        _ = apart.norm().item(), apart.abs().max().item(), (x != y).sum().item()


def prepared(first: Tensors, second: Tensors) -> Any:
    """The table of pairs, to measure the kernels without a walk."""
    from leafwise.kernels import cuda_comparing

    count = len(first)
    columns = cuda_comparing.PairColumns(
        [x.data_ptr() for x in first.values()], [x.data_ptr() for x in second.values()],
        [x.numel() for x in first.values()], ["bfloat16"] * count, ["bfloat16"] * count, [0] * count,
    )  # fmt: skip
    return cuda_comparing.table_of(columns, torch.device("cuda"))


def bench_large(ceiling: float) -> list[bool]:
    from leafwise.kernels import cuda_comparing

    first = {f"x{number}": x for number, x in enumerate(seven_billion())}
    second = {name: (x.float() * 1.01).bfloat16() for name, x in first.items()}
    table = prepared(first, second)
    kernels = on_device(lambda: cuda_comparing.compare(table))
    speed = 2 * sum(x.nbytes for x in first.values()) / 1e6 / kernels
    changed = on_host(lambda: lw.diff(first, second))
    usual = on_host(lambda: loop(first, second), 3)
    print(f"# 7B: kernels {kernels:.2f} ms, {speed:.0f} GB/s; lw.diff {changed:.1f} ms; a loop {usual:.0f} ms")
    met = [
        report("7B, both sides, part of the copy ceiling", speed / ceiling, 0.6, at_least=True),
        report("7B, a loop of torch / the kernels", usual / kernels, 15, at_least=True),
        report("7B, a loop of torch / lw.diff", usual / changed, 15, at_least=True),
    ]
    part = {name: x for name, x in first.items() if int(name[1:]) < 170}
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        path = f"{folder}/part.safetensors"
        lw.save(part, path)
        streamed = on_host(lambda: lw.diff(part, path), 3)
        print(f"# with a file of {os.path.getsize(path) / 1e9:.1f} GB: {streamed:.0f} ms")
        met.append(report("— GB/s of a file", os.path.getsize(path) / 1e6 / streamed, 10, at_least=True))
    return met


def bench_small() -> list[bool]:
    from leafwise.kernels import cuda_comparing

    first = {f"x{number}": torch.randn(256, 512, device="cuda").bfloat16() for number in range(20_000)}
    second = {name: x.clone() for name, x in first.items()}
    table = prepared(first, second)
    kernels = on_device(lambda: cuda_comparing.compare(table))
    trees = lw.tree(first), lw.tree(second)
    print(f"# 20,000 leaves: lw.diff of trees {on_host(lambda: lw.diff(*trees), 3):.0f} ms")
    return [report("20,000 leaves of 256×512, kernels, ms", kernels, 5)]


def main() -> int:
    machine()
    if not torch.cuda.is_available():
        return not_run("comparing on a GPU: there is no GPU here")
    check()
    ceiling = copy_ceiling()
    print(f"# {torch.cuda.get_device_name()}; copy ceiling, read + write: {ceiling:.0f} GB/s")
    met = bench_large(ceiling)
    torch.cuda.empty_cache()
    return exit_status(met + bench_small())


if __name__ == "__main__":
    sys.exit(main())
