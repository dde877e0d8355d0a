"""The cost of `lw.check` compared with the statistics that it is based on, for a 2 GiB file in the page cache.

    python benchmarks/bench_check.py

Needs 3 GB on disk and in memory. Everything runs with two threads.
"""

import os

os.environ["OMP_NUM_THREADS"] = "2"

import sys
import tempfile
from pathlib import Path

import torch
from common import interleaved, machine, peak_memory
from figures import exit_status, report
from safetensors.torch import save_file
from torch import nn

import leafwise as lw

WIDTH, LEAVES = 4096, 64  # 2 GiB of bfloat16
ROUNDS = 7


def make(path: Path, faults: bool) -> None:
    """Weights like those of a model; with `faults`, five of them have a fault that a rule finds."""
    generator = torch.Generator().manual_seed(0)
    leaves = {
        f"layers.{number}.weight": (torch.randn(WIDTH, WIDTH, generator=generator) * 0.02).bfloat16()
        for number in range(8 if faults else LEAVES)
    }
    if faults:
        leaves["layers.1.weight"][17] = 0
        leaves["layers.2.weight"][4000] = leaves["layers.2.weight"][3]
        leaves["layers.3.weight"][:, 4095] = leaves["layers.3.weight"][:, 0]
        leaves["layers.4.weight"][1000, 1000] = float("nan")
        leaves["layers.6.weight"] = leaves["layers.5.weight"].clone()
    save_file(leaves, path)


def check_results(healthy: Path, faulty: Path) -> None:
    assert list(lw.check(healthy)) == []
    found = {(one.code, one.path) for one in lw.check(faulty)}
    assert found == {
        ("LW110", "layers.1.weight"),
        ("LW113", "layers.2.weight"),
        ("LW113", "layers.3.weight"),
        ("LW101", "layers.4.weight"),
        ("LW303", "layers.6.weight"),
    }, found


def bench_file(folder: Path) -> list[bool]:
    healthy, faulty = folder / "healthy.safetensors", folder / "faulty.safetensors"
    make(healthy, faults=False)
    make(faulty, faults=True)
    check_results(healthy, faulty)
    times = interleaved(ROUNDS, stats=lambda: lw.stats(healthy), check=lambda: lw.check(healthy))
    size = healthy.stat().st_size / 1e9
    print("# " + ", ".join(f"{name} {size / time:.2f} GB/s" for name, time in times.items()))
    met = [report("2 GiB file, lw.check / lw.stats, time", times["check"] / times["stats"], 1.5)]
    memory = peak_memory(str(Path(sys.executable).with_name("leafwise")), "check", str(healthy)) / 1e6
    met.append(report("— peak memory of leafwise check, MB", memory, 200))
    return met


def bench_many() -> None:
    """Prints the cost per leaf for many small leaves; there is no target for this."""
    model = nn.ModuleList([nn.Linear(16, 16) for _ in range(10_000)])
    assert lw.check(model).ok
    times = interleaved(3, stats=lambda: lw.stats(model).total, check=lambda: lw.check(model))
    each = (times["check"] - times["stats"]) / 20_000
    print(f"# 20,000 leaves: lw.check {times['check']:.2f} s, {each * 1e6:.0f} µs per leaf more than lw.stats")


def main() -> int:
    machine()
    torch.set_num_threads(2)
    bench_many()
    with tempfile.TemporaryDirectory() as folder:
        met = bench_file(Path(folder))
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
