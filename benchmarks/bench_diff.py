"""`lw.diff` of two 2 GiB files in the page cache: compared with `cmp` if they are equal, and with a loop in PyTorch if
every value changed.

    python benchmarks/bench_diff.py

Needs 10 GB of memory and 6 GB on disk. Everything runs with two threads.
"""

import os

os.environ["OMP_NUM_THREADS"] = "2"

import math
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from common import interleaved, machine, mixture_of_experts, peak_memory
from figures import exit_status, report
from safetensors import safe_open
from safetensors.torch import save_file

import leafwise as lw

WIDTH, LEAVES = 4096, 64  # 2 GiB of bfloat16
ROUNDS, FEW_ROUNDS = 9, 3


def make(folder: Path) -> tuple[Path, Path, Path]:
    """A file, an equal one, and one in which every value differs."""
    generator = torch.Generator().manual_seed(0)
    before = {
        f"layers.{number}.weight": (torch.randn(WIDTH, WIDTH, generator=generator) * 0.02).bfloat16()
        for number in range(LEAVES)
    }
    paths = folder / "before.safetensors", folder / "equal.safetensors", folder / "after.safetensors"
    save_file(before, paths[0])
    save_file(before, paths[1])
    for name, value in before.items():
        other = (value.float() * 1.01 + 1e-4).bfloat16()
        before[name] = torch.where(other == value, -other - 1, other)
    save_file(before, paths[2])
    return paths


def by_torch(one: Path, other: Path, dtype: torch.dtype = torch.float32) -> dict[str, tuple[float, ...]]:
    """The loop that people write: relative L2, cosine, largest difference and share of changed values of each leaf."""
    found = {}
    with safe_open(one, "pt") as a, safe_open(other, "pt") as b:
        for name in a.keys():  # noqa: SIM118 — it is not a dict
            x, y = a.get_tensor(name), b.get_tensor(name)
            share = (x != y).float().mean()
            x, y = x.to(dtype), y.to(dtype)
            apart = x - y
            norm, other_norm = torch.linalg.vector_norm(x), torch.linalg.vector_norm(y)
            relative = torch.linalg.vector_norm(apart) / norm
            cosine = torch.dot(x.flatten(), y.flatten()) / (norm * other_norm)
            found[name] = tuple(map(float, (relative, cosine, apart.abs().max(), share)))
    return found


def check(one: Path, equal: Path, other: Path) -> None:
    assert lw.diff(one, equal).same
    found = lw.diff(one, other)
    assert found.counts == {"changed": LEAVES}
    for name, (relative, cosine, largest, _) in by_torch(one, other, torch.float64).items():
        comparison = found[name].comparison
        assert comparison is not None
        assert math.isclose(comparison.relative_l2, relative, rel_tol=1e-9)
        assert math.isclose(comparison.cosine, cosine, rel_tol=1e-9)
        assert math.isclose(comparison.largest, largest, rel_tol=1e-12)
        assert comparison.share == 1


def bench_files(folder: Path) -> list[bool]:
    one, equal, other = make(folder)
    check(one, equal, other)
    size = one.stat().st_size / 1e9
    peer = partial(subprocess.run, ["cmp", one, equal], check=True)
    times = interleaved(ROUNDS, cmp=peer, equal=lambda: lw.diff(one, equal))
    times |= interleaved(FEW_ROUNDS, torch=lambda: by_torch(one, other), changed=lambda: lw.diff(one, other))
    print("# bytes of one file: " + ", ".join(f"{name} {size / time:.2f} GB/s" for name, time in times.items()))
    met = [report("equal files, lw.diff / cmp, speed", times["cmp"] / times["equal"], 2, at_least=True)]
    ratio = times["torch"] / times["changed"]
    met.append(report("every value changed, lw.diff / a loop of torch, speed", ratio, 5, at_least=True))
    leafwise = str(Path(sys.executable).with_name("leafwise"))
    for name, path in (("equal", equal), ("changed", other)):
        quiet = ("sh", "-c", f"{leafwise} diff {one} {path}; test $? -lt 2")
        met.append(report(f"— peak memory of leafwise diff, {name}, MB", peak_memory(*quiet) / 1e6, 200))
    return met


def bench_structure() -> bool:
    net = mixture_of_experts()
    other = mixture_of_experts()
    assert lw.diff(net, other, values=False).same
    times = interleaved(ROUNDS, walk=lambda: lw.tree(net), diff=lambda: lw.diff(net, other, values=False))
    print("# 47,337 leaves: " + ", ".join(f"{name} {time * 1e3:.0f} ms" for name, time in times.items()))
    return report("structure of 47,337 leaves, lw.diff / a walk, time", times["diff"] / times["walk"], 20)


def main() -> int:
    machine()
    torch.set_num_threads(2)
    met = [bench_structure()]
    with tempfile.TemporaryDirectory() as folder:
        met += bench_files(Path(folder))
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
