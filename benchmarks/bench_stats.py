"""Statistics on a CPU and of a file: beside reading the same memory, a careful loop of PyTorch's, and reading the file.

    python benchmarks/bench_stats.py

Needs 8 GB of memory and 2 GB on disk. Two threads, everybody.
"""

import os

os.environ["OMP_NUM_THREADS"] = "2"

import math
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from common import interleaved, machine, peak_memory, report
from torch import nn

import leafwise as lw
from leafwise.core.moments import Moments, together
from leafwise.kernels import cpu, reference

ELEMENTS = 1 << 28  # 1 GiB of float32, 0.5 GiB of bfloat16
FILE_WIDTH = 4096
ROUNDS = 7


def careful(x: torch.Tensor) -> tuple[float, ...]:
    """Seven statistics as somebody writes them who minds the passes."""
    least, largest = torch.aminmax(x)
    mean, norm = x.mean(), torch.linalg.vector_norm(x)
    zeros = x.numel() - torch.count_nonzero(x)
    nan, infinite = torch.count_nonzero(torch.isnan(x)), torch.count_nonzero(torch.isinf(x))
    return tuple(float(one) for one in (least, largest, mean, norm, zeros, nan, infinite))


def check(x: torch.Tensor, histogram: bool) -> None:
    """Against the reference, chunk by chunk."""
    found = lw.stats({"x": x}, histogram=histogram)["x"]._moments
    array = lw.tree({"x": x})["x"].numpy()
    step = cpu.CHUNK
    right: Moments = together(reference.measure(array[at : at + step], histogram) for at in range(0, array.size, step))
    assert found[:8] == right[:8]
    assert found.histogram == right.histogram
    assert abs(found.mean - right.mean) < 1e-12
    for name in ("std", "l1", "l2"):
        assert math.isclose(getattr(found, name), getattr(right, name), rel_tol=1e-12), name


def bench_memory(dtype: torch.dtype) -> bool:
    x = (torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    for histogram in (False, True):
        check(x, histogram)
    gigabytes = x.nbytes / 1e9
    tree = lw.tree({"x": x})
    waiting: dict[str, Callable[[], object]] = {
        "sum": x.sum,
        "ours": lambda: lw.stats(tree, histogram=False).total,
        "histogram": lambda: lw.stats(tree).total,
    }
    times = interleaved(ROUNDS, **waiting)
    loop = interleaved(1, loop=partial(careful, x))["loop"]
    print(f"# {dtype}: " + ", ".join(f"{name} {gigabytes / one:.1f} GB/s" for name, one in times.items()), end="")
    print(f", careful loop {gigabytes / loop:.2f} GB/s")
    name = str(dtype).removeprefix("torch.")
    met = [
        report(f"{name}: all but the histogram / torch.sum, speed", times["sum"] / times["ours"], 0.5, at_least=True),
        report(f"{name}: the same / a careful loop of seven, speed", loop / times["ours"], 15, at_least=True),
        report(f"{name}: with the histogram / torch.sum, speed", times["sum"] / times["histogram"], 0.3, at_least=True),
    ]
    return all(met)


def bench_file(folder: Path) -> bool:
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(FILE_WIDTH, FILE_WIDTH, dtype=torch.bfloat16, device="meta") for _ in range(64)]
    net = nn.Sequential(*layers).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    path = folder / "model.safetensors"
    lw.save(net, path)
    assert [row._moments for row in lw.stats(path).values()] == [row._moments for row in lw.stats(net).values()]
    del net, layers

    def read() -> None:
        room = memoryview(bytearray(8 << 20))
        with open(path, "rb", buffering=0) as file:
            while file.readinto(room):
                pass

    times = interleaved(ROUNDS, read=read, ours=lambda: lw.stats(path).total)
    size = path.stat().st_size / 1e9
    print("# file: " + ", ".join(f"{name} {size / one:.1f} GB/s" for name, one in times.items()))
    met = [report("2 GiB file, lw.stats / reading it, speed", times["read"] / times["ours"], 0.5, at_least=True)]
    leafwise = str(Path(sys.executable).with_name("leafwise"))
    met.append(report("— peak memory of leafwise stats, MB", peak_memory(leafwise, "stats", str(path)) / 1e6, 200))
    return all(met)


def main() -> int:
    machine()
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        met = [bench_file(Path(folder))]
    met += [bench_memory(dtype) for dtype in (torch.float32, torch.bfloat16)]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
