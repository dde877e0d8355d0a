"""A checkpoint of a million leaves in 1,024 shards, opened and planned: memory, and time per leaf.

    python benchmarks/bench_scale.py                        # everything
    python benchmarks/bench_scale.py measure 20000 64 dcp   # one checkpoint, as JSON: leaves, files, format

The files are sparse: at a million leaves, they describe 2 TB of bfloat16, and take 200 MB on disk. Each size is
measured in a process of its own, which checks the results: the counts, the sum of the sizes, and that every leaf of the
model is paired with the leaf of the same name. Times are CPU times, which other processes disturb less.
"""

import json
import math
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from common import machine, run
from figures import exit_status, not_run, report
from torch import nn

import leafwise as lw

SIZES = {
    "safetensors": (62_500, 125_000, 250_000, 500_000, 1_000_000),
    # `.metadata` is a pickle, which is read without running it: a million leaves take minutes and 5 GB.
    "dcp": (31_250, 62_500, 125_000),
}
FILES = 1024
WIDTH, NBYTES = 1024, 2 * 1024 * 1024  # of a matrix in bfloat16: a million of them have 1.05 T parameters
EXPERTS, PARTS = 256, ("gate", "up", "down")
NO_LIMITS: dict[str, Any] = {"max_bytes": 1 << 40, "max_steps": 1 << 40}


def places(leaves: int) -> Iterator[tuple[int, int, str]]:
    """The layer, the expert and the part of each leaf."""
    for number in range(leaves):
        expert, part = divmod(number, len(PARTS))
        yield *divmod(expert, EXPERTS), PARTS[part]


def names(leaves: int) -> list[str]:
    return [f"layers.{layer}.experts.{expert}.{part}.weight" for layer, expert, part in places(leaves)]


def write_safetensors(folder: Path, leaves: int, shards: int) -> None:
    """Shards with an index, as Hugging Face writes them. Only the headers take space on disk."""
    weight_map: dict[str, str] = {}
    every = names(leaves)
    for number in range(shards):
        inside = every[number * leaves // shards : (number + 1) * leaves // shards]
        rows = {
            name: {"dtype": "BF16", "shape": [WIDTH, WIDTH], "data_offsets": [at * NBYTES, (at + 1) * NBYTES]}
            for at, name in enumerate(inside)
        }
        header = json.dumps(rows, separators=(",", ":")).encode()
        file_name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        with open(folder / file_name, "wb") as file:
            file.write(len(header).to_bytes(8, "little") + header)
            file.truncate(8 + len(header) + len(inside) * NBYTES)
        weight_map.update(dict.fromkeys(inside, file_name))
    index = {"metadata": {"total_size": leaves * NBYTES}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")


def write_dcp(folder: Path, leaves: int, ranks: int) -> None:
    """A distributed checkpoint: the `.metadata` that torch would pickle, and sparse files of the ranks."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    start, shape = torch.Size([0, 0]), torch.Size([WIDTH, WIDTH])
    properties = TensorProperties(dtype=torch.bfloat16)
    tensors, stored = {}, {}
    room = NBYTES + 4096  # for the zip file that torch makes of each tensor
    ends = [0] * ranks
    for number, name in enumerate(names(leaves)):
        rank = number * ranks // leaves
        tensors[name] = TensorStorageMetadata(properties, shape, [ChunkStorageMetadata(start, shape)])
        stored[MetadataIndex(name, start, 0)] = _StorageInfo(f"__{rank}_0.distcp", ends[rank], room)
        ends[rank] += room
    with open(folder / ".metadata", "wb") as file:
        pickle.dump(Metadata(state_dict_metadata=tensors, storage_data=stored), file)  # type: ignore[arg-type]
    for rank, end in enumerate(ends):
        with open(folder / f"__{rank}_0.distcp", "wb") as file:
            file.truncate(end)


WRITERS: dict[str, Callable[[Path, int, int], None]] = {"safetensors": write_safetensors, "dcp": write_dcp}


class Node(nn.Module):
    """A module whose children are set from outside, with as little memory as a module can have."""


def meta_model(leaves: int) -> nn.Module:
    root, layers = Node(), nn.ModuleList()
    root.layers = layers
    for layer, expert, part in places(leaves):
        if layer == len(layers):
            layers.append(Node())
            layers[layer].experts = nn.ModuleList()
        experts: Any = layers[layer].experts
        if expert == len(experts):
            experts.append(Node())
        matrix = Node()
        empty = torch.empty(WIDTH, WIDTH, dtype=torch.bfloat16, device="meta")
        matrix.weight = nn.Parameter(empty, requires_grad=False)
        setattr(experts[expert], part, matrix)
    return root


def peak() -> int:
    """The most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(leaves: int, files: int, form: str, folder: Path) -> dict[str, float]:
    """Checks the results of the verbs for one checkpoint, and returns the seconds and the bytes that they took."""
    run(sys.executable, __file__, "write", str(leaves), str(files), form, str(folder))  # its memory does not count
    on_disk = sum(file.stat().st_blocks * 512 for file in folder.iterdir())
    apparent = sum(file.stat().st_size for file in folder.iterdir())
    assert on_disk < 4_000_000 + 2_000 * leaves < apparent, f"{on_disk:,} bytes on disk: the file system is not sparse"
    model = meta_model(leaves)
    figures: dict[str, float] = {"leaves": leaves, "disk": on_disk, "apparent": apparent, "model": peak()}

    def timed(what: str, task: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = task()
        figures[what] = time.process_time() - start
        figures[f"{what} peak"] = peak()
        return result

    source = timed("open", lambda: lw.open(folder, **NO_LIMITS))
    plan = timed("plan", lambda: lw.plan(model, source))
    counts = timed("counts", lambda: source.counts)
    assert (counts.leaves, counts.parameters) == (leaves, leaves * WIDTH * WIDTH)
    assert counts.bytes == leaves * NBYTES
    assert plan.holds
    assert (plan.coverage, len(plan.feeds)) == (1.0, leaves)
    source_names = source.columns.all_keys
    assert all(source_names[feed.source] == feed.name for feed in plan.feeds)
    assert sorted(feed.name for feed in plan.feeds) == sorted(names(leaves))
    assert len(str(timed("print plan", plan.text)).splitlines()) < 20
    del plan, source_names
    assert len(timed("print tree", source.text).splitlines()) < 60
    assert len(timed("select", lambda: source.select("**.experts.*.up.weight"))) == leaves // 3 + (leaves % 3 == 2)
    diff = timed("diff", lambda: lw.diff(source, model, values=False))
    assert diff.counts == {"same": leaves}  # names, shapes and dtypes; values are not compared
    source.close()
    return figures


def in_a_process(leaves: int, files: int, form: str) -> dict[str, float]:
    result: dict[str, float] = json.loads(run(sys.executable, __file__, "measure", str(leaves), str(files), form))
    return result


def exponent(results: list[dict[str, float]], what: str) -> float:
    """The exponent of the power of the number of leaves that fits the times best: 1 if they are linear."""
    points = [(math.log(result["leaves"]), math.log(result[what])) for result in results]
    middle = [sum(axis) / len(points) for axis in zip(*points, strict=True)]
    apart = [(x - middle[0], y - middle[1]) for x, y in points]
    return sum(x * y for x, y in apart) / sum(x * x for x, _ in apart)


def show(result: dict[str, float], form: str) -> None:
    times = ("open", "plan", "counts", "select", "print tree", "print plan", "diff")
    listed = ", ".join(f"{what} {result[what]:.2f}" for what in times)
    print(f"# {result['leaves']:,.0f} leaves, {form}, {result['disk'] / 1e6:,.0f} MB on disk: {listed} s")
    mb = {what: (result[f"{what} peak"] - result["model"]) / 1e6 for what in ("open", "plan", "diff")}
    steps = ", ".join(f"{what} {used:,.0f}" for what, used in mb.items())
    print(f"#   MB of the process with the model: {result['model'] / 1e6:,.0f}; peak beyond that: {steps}", flush=True)


def main() -> int:
    if len(sys.argv) > 1:
        leaves, files, form = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
        if sys.argv[1] == "write":
            WRITERS[form](Path(sys.argv[5]), leaves, files)
            return 0
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(measure(leaves, files, form, Path(folder))))
        return 0
    machine()
    if not hasattr(os.stat_result, "st_blocks"):
        return not_run("this system does not say whether files are sparse")
    met = []
    for form in WRITERS:
        try:
            results = [in_a_process(leaves, FILES, form) for leaves in SIZES[form]]
        except subprocess.CalledProcessError as error:
            sys.exit(error.stderr)
        for result in results:
            show(result, form)
        largest = results[-1]
        beyond = (largest["plan peak"] - largest["model"]) / 1e6
        size = f"{largest['leaves']:,.0f} leaves, {FILES:,} files, {form}"
        met.append(report(f"open and plan of {size}: peak beyond the model, MB", beyond, 2000))
        met += [
            report(f"{what}, {form}: exponent of the time in leaves", exponent(results, what), 1.1)
            for what in ("open", "plan", "print tree", "diff")
        ]
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
