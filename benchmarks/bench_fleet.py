"""Statistics and checksums of checkpoints of 1.5 GiB by two processes: compared with one process, and with two threads
of one process, which have the same cores and memory but nothing to send.

    python benchmarks/bench_fleet.py [FOLDER]

Needs 1.6 GB in FOLDER (a temporary one by default). Files are read from a warm cache. Needs two cores that have nothing
else to do.
"""

import multiprocessing
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch
from common import interleaved, machine
from figures import exit_status, not_run, report

import leafwise as lw
from leafwise.core.work.threads import one_thread

ROUNDS = 5
CHECKPOINTS, LEAVES, LEAF = 3, 8, 32 << 20  # elements of bfloat16: 1.5 GiB
THREADS_AT_MOST, OVERHEAD_AT_MOST = 1.25, 1.15


def make_files(folder: Path) -> str:
    for number in range(CHECKPOINTS):
        generator = torch.Generator().manual_seed(number)
        block = torch.randn(LEAF, generator=generator).to(torch.bfloat16)
        lw.save({f"layers.{leaf}": block.roll(leaf) for leaf in range(LEAVES)}, folder / f"{number}.safetensors")
    return f"{folder}/*.safetensors"


def threads(paths: list[str], verb: str) -> list[object]:
    return [getattr(lw, verb)(path) for path in paths]


def alone(paths: list[str], verb: str) -> list[object]:
    with one_thread():
        return threads(paths, verb)


def main() -> int:
    machine()
    if len(os.sched_getaffinity(0)) < 2:
        return not_run("two processes on one core")
    met = []
    spawn = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as name,
        ProcessPoolExecutor(1, mp_context=spawn) as single,
        ProcessPoolExecutor(2, mp_context=spawn) as double,
    ):
        pattern = make_files(Path(name))
        paths = [f"{name}/{number}.safetensors" for number in range(CHECKPOINTS)]
        for verb in ("stats", "verify"):
            function = getattr(lw, verb)
            fleet = function(pattern, executor=double)
            for path, expected in zip(paths, alone(paths, verb), strict=True):
                assert repr(fleet[path].json()) == repr(expected.json()), path  # type: ignore[attr-defined]
            times = interleaved(
                ROUNDS,
                alone=lambda verb=verb: alone(paths, verb),
                threads=lambda verb=verb: threads(paths, verb),
                single=lambda function=function: function(pattern, executor=single),
                double=lambda function=function: function(pattern, executor=double),
            )
            print(f"{verb}: {', '.join(f'{task} {seconds:.3f} s' for task, seconds in times.items())}")
            what = f"lw.{verb} of {CHECKPOINTS} checkpoints, 1.5 GiB"
            met.append(
                report(f"{what}: two processes / two threads", times["double"] / times["threads"], THREADS_AT_MOST)
            )
            met.append(report(f"{what}: a pool of one / no pool", times["single"] / times["alone"], OVERHEAD_AT_MOST))
            print(f"      one process / two: {times['single'] / times['double']:.2f}")
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
