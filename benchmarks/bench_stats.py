"""Statistics on a CPU and of a file, compared with `torch.sum`, a careful loop in PyTorch, and reading the file.

    python benchmarks/bench_stats.py

Needs 8 GB of memory and 2 GB on disk. Everything runs with two threads.
"""

import os

os.environ["OMP_NUM_THREADS"] = "2"

import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from common import interleaved, machine, peak_memory
from figures import exit_status, not_run, report
from torch import nn

import leafwise as lw
from leafwise.core.results.moments import Moments, merged_moments
from leafwise.kernels import cpu, reference

ELEMENTS = 1 << 28  # 1 GiB of float32, 0.5 GiB of bfloat16
FILE_WIDTH = 4096
ROUNDS = 7


def careful(x: torch.Tensor) -> tuple[float, ...]:
    """Seven statistics, written with care to read the values only a few times."""
    least, largest = torch.aminmax(x)
    mean, norm = x.mean(), torch.linalg.vector_norm(x)
    zeros = x.numel() - torch.count_nonzero(x)
    nan, infinite = torch.count_nonzero(torch.isnan(x)), torch.count_nonzero(torch.isinf(x))
    return tuple(float(one) for one in (least, largest, mean, norm, zeros, nan, infinite))


def check(x: torch.Tensor, histogram: bool) -> None:
    """Compares the results with the reference, chunk by chunk."""
    found = lw.stats({"x": x}, histogram=histogram)["x"]
    array = lw.tree({"x": x})["x"].numpy()
    step = cpu.CHUNK
    right: Moments = merged_moments(
        reference.measure(array[at : at + step], histogram) for at in range(0, array.size, step)
    )
    assert found.order_free() == right.order_free()
    assert found.histogram == right.histogram
    assert abs(found.mean - right.mean) < 1e-12
    for name in ("std", "l1", "l2"):
        assert math.isclose(getattr(found, name), getattr(right, name), rel_tol=1e-12), name


@contextmanager
def instruction_sets(count: int) -> Iterator[None]:
    """Simulates a machine that has only `count` of the instruction sets that the C code was compiled for."""
    library = cpu.loaded()
    ask, library.leafwise_instruction_sets = library.leafwise_instruction_sets, lambda: count
    try:
        yield
    finally:
        library.leafwise_instruction_sets = ask


def bench_memory(dtype: torch.dtype) -> list[bool]:
    x = (torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0)) * 0.02).to(dtype)
    name = str(dtype).removeprefix("torch.")
    available = cpu.instruction_sets()
    loop = interleaved(1, loop=partial(careful, x))["loop"]
    print(f"# {name}: careful loop {x.nbytes / loop / 1e9:.2f} GB/s")
    met = []
    # Many machines have AVX2 but not AVX-512: a machine with AVX-512 is also measured with AVX2 only.
    for sets in range(available, min(available, 2) - 1, -1):
        with instruction_sets(sets):
            met += bench_instructions(x, name + ("" if sets == available else ", AVX2 only"), loop)
    return met


def bench_instructions(x: torch.Tensor, name: str, loop: float) -> list[bool]:
    for histogram in (False, True):
        check(x, histogram)
    tree = lw.tree({"x": x})
    waiting: dict[str, Callable[[], object]] = {
        "sum": x.sum,
        "ours": lambda: lw.stats(tree, histogram=False).total,
        "histogram": lambda: lw.stats(tree).total,
    }
    times = interleaved(ROUNDS, **waiting)
    print(f"# {name}: " + ", ".join(f"{task} {x.nbytes / time / 1e9:.1f} GB/s" for task, time in times.items()))
    return [
        report(f"{name}: all but the histogram / torch.sum, speed", times["sum"] / times["ours"], 0.5, at_least=True),
        report(f"{name}: the same / a careful loop of seven, speed", loop / times["ours"], 15, at_least=True),
        report(f"{name}: with the histogram / torch.sum, speed", times["sum"] / times["histogram"], 0.3, at_least=True),
    ]


def bench_file(folder: Path) -> list[bool]:
    generator = torch.Generator().manual_seed(0)
    layers = [nn.Linear(FILE_WIDTH, FILE_WIDTH, dtype=torch.bfloat16, device="meta") for _ in range(64)]
    net = nn.Sequential(*layers).to_empty(device="cpu")
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    path = folder / "model.safetensors"
    lw.save(net, path)
    assert list(lw.stats(path).values()) == list(lw.stats(net).values())
    del net, layers

    def read() -> None:
        room = memoryview(bytearray(8 << 20))
        with open(path, "rb", buffering=0) as file:
            while file.readinto(room):
                pass

    def with_avx2_only() -> None:
        with instruction_sets(min(cpu.instruction_sets(), 2)):
            lw.stats(path)

    times = interleaved(ROUNDS, read=read, ours=lambda: lw.stats(path).total, avx2=with_avx2_only)
    size = path.stat().st_size / 1e9
    print("# file: " + ", ".join(f"{name} {size / one:.1f} GB/s" for name, one in times.items()))
    met = [report("2 GiB file, lw.stats / reading it, speed", times["read"] / times["ours"], 0.5, at_least=True)]
    if cpu.instruction_sets() > 2:
        met.append(report("— the same, AVX2 only", times["read"] / times["avx2"], 0.5, at_least=True))
    leafwise = str(Path(sys.executable).with_name("leafwise"))
    met.append(report("— peak memory of leafwise stats, MB", peak_memory(leafwise, "stats", str(path)) / 1e6, 200))
    return met


def main() -> int:
    machine()
    if cpu.loaded() is None:
        return not_run("statistics in C: leafwise was installed without a C compiler")
    torch.set_num_threads(2)
    with tempfile.TemporaryDirectory() as folder:
        met = bench_file(Path(folder))
    for dtype in (torch.float32, torch.bfloat16):
        met += bench_memory(dtype)
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
