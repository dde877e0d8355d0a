"""Copying a checkpoint of 2 GiB through leafwise, and averaging four of them, compared with `cp` and a loop in torch.

    python benchmarks/bench_edit.py [FOLDER]

Needs about 13 GB in FOLDER (a temporary one by default), and 2.2 GB in /dev/shm if there is one. Files are read from a
warm cache. Everything that is timed ends with fsync of the file and its folder.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import torch
from common import machine, peak_memory
from editing import averaged_by_leafwise, copied_by_leafwise
from figures import exit_status, report
from safetensors import safe_open
from safetensors.torch import save_file

import leafwise as lw

ROUNDS = 3
LEAVES, LEAF = 64, 32 << 20  # 2 GiB
COPY_AT_MOST, AVERAGE_AT_LEAST, IN_MEMORY_AT_LEAST, MEMORY_AT_MOST = 1.1, 2, 4, 200
SHARED_MEMORY = Path("/dev/shm")


def synced(path: str) -> None:
    for name in (path, os.path.dirname(path)):
        file = os.open(name, os.O_RDONLY)
        os.fsync(file)
        os.close(file)


def copied(source: str, out: str) -> None:
    shutil.copyfile(source, out)
    synced(out)


def copied_by_cp(source: str, out: str) -> None:
    subprocess.run(["cp", source, out], check=True)
    synced(out)


def averaged_by_torch(sources: list[str], out: str) -> None:
    """In single precision, which is faster than what leafwise does in double precision."""
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(source, framework="pt")) for source in sources]
        weight = 1 / len(files)
        averages = {}
        for name in files[0].keys():  # noqa: SIM118
            first = files[0].get_tensor(name)
            total = first.float() * weight
            for file in files[1:]:
                total.add_(file.get_tensor(name).float(), alpha=weight)  # faster than adding bfloat16
            averages[name] = total.to(first.dtype)
        save_file(averages, out)
    synced(out)


def make_file(path: Path, dtype: torch.dtype, seed: int, by_leafwise: bool) -> str:
    torch.manual_seed(seed)
    one = torch.randn(LEAF // dtype.itemsize // 4096, 4096)
    tensors = {f"layers.{n}.weight": (one * (1 + n / 8)).to(dtype) for n in range(LEAVES)}
    if by_leafwise:
        lw.save(tensors, path)
    else:
        save_file(tensors, path)
    synced(str(path))
    return str(path)


def assert_copied(source: str, out: str) -> None:
    """The same names and bits, and checksums for all of them."""
    assert lw.verify(out).ok
    with safe_open(source, framework="pt") as a, safe_open(out, framework="pt") as b:
        assert set(a.keys()) == set(b.keys())
        for name in a.keys():  # noqa: SIM118
            assert torch.equal(a.get_tensor(name).view(torch.uint8), b.get_tensor(name).view(torch.uint8)), name


def assert_averaged(sources: list[str], out: str) -> None:
    """The average in double precision. PyTorch rounds doubles to 16 bits by way of floats: where a double is not a
    float, it may choose the other neighbor."""
    with ExitStack() as stack:
        files = [stack.enter_context(safe_open(path, framework="pt")) for path in (*sources, out)]
        for name in files[0].keys():  # noqa: SIM118
            *values, found = [file.get_tensor(name) for file in files]
            total = sum(value.double() / len(sources) for value in values)
            assert isinstance(total, torch.Tensor)
            differ = total.to(found.dtype) != found
            assert not (differ & (total.float().double() == total)).any(), name
            assert torch.allclose(found.double(), total, rtol=2.0**-7, atol=0), name


def timed(out: str, **tasks: Callable[[str], None]) -> dict[str, tuple[float, float]]:
    """The median time of each task, and its processor time, in seconds. The file that it writes is removed before."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in tasks}
    order = list(tasks.items())
    for turn in range(ROUNDS + 1):
        first = turn % len(order)
        for name, task in order[first:] + order[:first]:
            Path(out).unlink(missing_ok=True)
            busy, start = sum(os.times()[:4]), time.perf_counter()
            task(out)
            if turn:  # the first warms up
                times[name].append((time.perf_counter() - start, sum(os.times()[:4]) - busy))
    Path(out).unlink(missing_ok=True)
    medians = {
        name: (statistics.median(t for t, _ in found), statistics.median(t for _, t in found))
        for name, found in times.items()
    }
    for name, (wall, busy) in medians.items():
        spread = f"{min(times[name])[0]:.2f}–{max(times[name])[0]:.2f}"
        print(f"#   {name}: {wall:.2f} s ({spread}), {busy:.2f} s of processor time")
    return medians


def copies(folder: Path) -> list[bool]:
    met = []
    out = str(folder / "out.safetensors")
    for label, by_leafwise in (("another program's file", False), ("leafwise's own file", True)):
        source = make_file(folder / "source.safetensors", torch.bfloat16, 0, by_leafwise)
        copied_by_leafwise(source, out)
        assert_copied(source, out)
        times = timed(
            out,
            leafwise=partial(copied_by_leafwise, source),
            copyfile=partial(copied, source),
            cp=partial(copied_by_cp, source),
        )
        ratio = times["leafwise"][0] / min(times["copyfile"][0], times["cp"][0])
        met.append(report(f"{label} of 2 GiB: copied by leafwise / cp with fsync", ratio, COPY_AT_MOST))
        os.remove(source)
    return met


def averages(folder: Path, dtype: torch.dtype) -> list[bool]:
    met = []
    label = str(dtype).removeprefix("torch.")
    sources = [make_file(folder / f"{n}.safetensors", dtype, n, by_leafwise=False) for n in range(4)]
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.exists() else None) as memory:
        for place, where, bound in (
            ("", folder, AVERAGE_AT_LEAST),
            (", written to memory", Path(memory), IN_MEMORY_AT_LEAST),
        ):
            out = str(where / "out.safetensors")
            averaged_by_leafwise(sources, out)
            if where == folder:
                assert_averaged(sources, out)
            assert lw.verify(out).ok
            times = timed(
                out,
                leafwise=partial(averaged_by_leafwise, sources),
                torch=partial(averaged_by_torch, sources),
            )
            ratio = times["torch"][0] / times["leafwise"][0]
            what = f"average of four files of 2 GiB in {label}{place}: a loop in torch / leafwise"
            met.append(report(what, ratio, bound, at_least=True))
    out = str(folder / "out.safetensors")
    used = peak_memory(sys.executable, str(Path(__file__).with_name("editing.py")), out, *sources) / 1e6
    met.append(report(f"— peak memory in {label}, MB", used, MEMORY_AT_MOST))
    for path in (out, *sources):
        os.remove(path)
    return met


def main() -> int:
    machine()
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as name:
        folder = Path(name)
        met = copies(folder)
        for dtype in (torch.bfloat16, torch.float32):
            met += averages(folder, dtype)
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
