"""Saving, loading, planning and verifying 2 GiB of bfloat16, compared with the tools that people use.

    python benchmarks/bench_checkpoint.py [FOLDER]

Needs about 12 GB in FOLDER (a temporary one by default) and 10 GB of memory. Files are in the page cache when they are
read, and every tool syncs what it writes.
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from common import interleaved, machine, mixture_of_experts
from figures import exit_status, report
from torch import nn

import leafwise as lw

ROUNDS = 5
MB = 1_000_000


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)


def model(device: str = "cpu") -> nn.Module:
    """2 GiB of bfloat16 in 42 blocks: 505 leaves."""
    with torch.device(device):
        blocks = [Block(1456).bfloat16() for _ in range(42)]
        return nn.Sequential(*blocks)


def nbytes(net: nn.Module) -> int:
    return sum(value.numel() * value.element_size() for value in net.parameters())


def synced(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    os.fsync(file)
    os.close(file)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def blanked(net: nn.Module) -> nn.Module:
    with torch.no_grad():
        for value in net.parameters():
            value.fill_(-1)
    return net


def bench_save(net: nn.Module, folder: Path) -> bool:
    state = net.state_dict()
    buffers = [value.view(torch.uint8).reshape(-1).numpy() for value in state.values()]

    def with_torch() -> None:
        torch.save(state, folder / "a.pt")
        synced(folder / "a.pt")

    def with_safetensors() -> None:
        safetensors.torch.save_file(state, folder / "a.safetensors")
        synced(folder / "a.safetensors")

    def plain() -> None:
        file = os.open(folder / "a.bin", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for buffer in buffers:
            view = memoryview(buffer)
            while view:
                view = view[os.write(file, view) :]
        os.fsync(file)
        os.close(file)

    times = interleaved(
        ROUNDS,
        leafwise=lambda: lw.save(net, folder / "b.safetensors"),
        torch=with_torch,
        safetensors=with_safetensors,
        plain=plain,
    )
    assert all(torch.equal(state[k], v) for k, v in safetensors.torch.load_file(folder / "b.safetensors").items())
    print("#", {name: round(taken, 2) for name, taken in times.items()})
    peer = min(times["torch"], times["safetensors"])
    return report("save / the faster of torch.save and safetensors, synced", times["leafwise"] / peer, 1.0) & report(
        "save / os.write of the same bytes, synced", times["leafwise"] / times["plain"], 1.15
    )


def bench_load(net: nn.Module, folder: Path) -> bool:
    other = model()
    state = net.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=folder / "dcp")

    def with_dcp() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(other.state_dict(), checkpoint_id=folder / "dcp")

    tasks: dict[str, Callable[[], Any]] = {
        "leafwise": lambda: lw.load(other, folder / "b.safetensors"),
        "torch": lambda: other.load_state_dict(torch.load(folder / "a.pt")),
        "safetensors": lambda: safetensors.torch.load_model(other, folder / "a.safetensors"),
        "dcp": with_dcp,
    }
    for name, task in tasks.items():
        blanked(other)
        task()
        assert same(net, other), name
    times = interleaved(ROUNDS, **tasks, unverified=lambda: lw.load(other, folder / "b.safetensors", verify=False))
    print("#", {name: round(taken, 3) for name, taken in times.items()})
    fastest = min(times[name] for name in ("torch", "safetensors", "dcp"))
    good = report("load, verified / the fastest of torch, safetensors, DCP", times["leafwise"] / fastest, 1.0)
    live = times["leafwise"] / times["unverified"] - 1
    return good & report("verification, of a load into a live model", live, 0.15)


def bench_meta(net: nn.Module, folder: Path) -> bool:
    def into_meta(verify: bool) -> nn.Module:
        loaded: nn.Module = lw.load(model("meta"), folder / "b.safetensors", verify=verify)
        return loaded

    assert same(net, into_meta(True))
    times = interleaved(ROUNDS, verified=lambda: into_meta(True), unverified=lambda: into_meta(False))
    print("#", {name: round(taken, 3) for name, taken in times.items()})
    onto_meta = times["verified"] / times["unverified"] - 1
    return report("verification, of a load into a model on meta", onto_meta, 0.15)


PEAK = """
import sys
sys.path.insert(0, {here!r})
import numpy, torch, leafwise as lw
from bench_checkpoint import model, nbytes, peak
small = torch.nn.Linear(2, 2)
lw.load(small, lw.save(small, {folder!r} + "/small.safetensors"))
net = model("meta")
before = peak()
lw.load(net, {folder!r} + "/b.safetensors")
print(peak() - before - nbytes(net))
"""

PEAK_OF_SAVE = """
import sys
sys.path.insert(0, {here!r})
import numpy, torch, leafwise as lw
from bench_checkpoint import model, peak
small = torch.nn.Linear(2, 2)
lw.save(small, {folder!r} + "/small.safetensors")
net = model()
before = peak()
lw.save(net, {folder!r} + "/c.safetensors")
print(peak() - before)
"""


def peak() -> int:
    """The peak memory of this process, in bytes."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def bench_memory(folder: Path) -> bool:
    good = True
    for what, script in (("load into a model on meta: peak beyond the model", PEAK), ("save: peak", PEAK_OF_SAVE)):
        script = script.format(here=str(Path(__file__).parent), folder=str(folder))
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)
        good &= report(f"{what}, MB", int(found.stdout) / MB, 64)
    return good


def bench_plan(folder: Path) -> bool:
    net, other = mixture_of_experts(), mixture_of_experts()
    path = folder / "sparse.safetensors"
    header, at = {}, 0
    for name, value in net.state_dict().items():
        size = value.numel() * value.element_size()
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    found = lw.plan(net, path)
    assert found.holds
    assert len(found.feeds) == len(lw.tree(net))
    state = other.state_dict()

    def load_state_dict() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            net.load_state_dict(state)

    times = interleaved(ROUNDS, plan=lambda: lw.plan(net, path), load_state_dict=load_state_dict)
    print("#", {name: round(taken, 3) for name, taken in times.items()})
    return report("plan of 47,337 leaves / load_state_dict on meta", times["plan"] / times["load_state_dict"], 1.0)


def main() -> int:
    machine()
    print(f"# safetensors {safetensors.__version__}")
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        good = bench_plan(folder)
        torch.manual_seed(0)
        net = model()
        print(f"# {nbytes(net) / (1 << 30):.2f} GiB, {len(list(net.parameters()))} leaves")
        good &= bench_save(net, folder)
        good &= bench_load(net, folder)
        good &= bench_meta(net, folder)
        del net
        gc.collect()
        good &= bench_memory(folder)
    return exit_status([good])


if __name__ == "__main__":
    start = time.monotonic()
    status = main()
    print(f"# {time.monotonic() - start:.0f} s, peak {peak() >> 20:,} MiB")
    sys.exit(status)
