"""Saving and loading 2 GiB of JAX arrays, compared with Orbax's StandardCheckpointer.

    python benchmarks/bench_jax_files.py [FOLDER]

Needs JAX and Orbax, about 6 GB in FOLDER (a temporary one by default) and 10 GB of memory. Both tools sync what they
write. Files are in the page cache when they are read, and leafwise verifies its checksums. Half of the figures are for
arrays that are sharded over eight devices of the CPU, each matrix over its columns.
"""

import os
import shutil
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"

from figures import exit_status, not_run, report

if find_spec("orbax") is None:
    sys.exit(not_run("JAX and Orbax are not installed here"))

import jax
import numpy as np
import orbax.checkpoint as ocp
from common import interleaved, machine
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import leafwise as lw

ROUNDS = 3
MB = 1_000_000
BLOCKS, WIDTH = 42, 1456


def model() -> dict[str, Any]:
    """2 GiB of bfloat16 in 42 blocks. Normal values, because Orbax compresses what it writes."""
    draw = np.random.default_rng(0)
    values = draw.standard_normal(4 * WIDTH * WIDTH + (1 << 20), np.float32).astype("bfloat16")

    def matrix(*shape: int) -> jax.Array:
        start = int(draw.integers(1 << 20))
        return jax.device_put(values[start : start + np.prod(shape)].reshape(shape).copy())

    return {
        f"block{number}": {
            **{name: {"kernel": matrix(WIDTH, WIDTH), "bias": matrix(WIDTH)} for name in "qkvo"},
            "up": {"kernel": matrix(WIDTH, 4 * WIDTH), "bias": matrix(4 * WIDTH)},
            "down": {"kernel": matrix(4 * WIDTH, WIDTH), "bias": matrix(WIDTH)},
            "norm1": {"scale": matrix(WIDTH)},
            "norm2": {"scale": matrix(WIDTH)},
        }
        for number in range(BLOCKS)
    }


def sharded(tree: Any) -> Any:
    """The same values on all devices: matrices split over their columns, vectors replicated."""
    mesh = Mesh(np.array(jax.devices()), ("model",))
    by_axes = {1: NamedSharding(mesh, PartitionSpec()), 2: NamedSharding(mesh, PartitionSpec(None, "model"))}
    return jax.block_until_ready(jax.tree.map(lambda array: jax.device_put(array, by_axes[array.ndim]), tree))


def abstract(tree: Any) -> Any:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding), tree)


def nbytes(tree: Any) -> int:
    return sum(array.nbytes for array in jax.tree.leaves(tree))


def same(first: Any, second: Any) -> bool:
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return all(np.array_equal(np.asarray(a).view(np.uint16), np.asarray(b).view(np.uint16)) for a, b in pairs)


def orbax_save(tree: Any, path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)


def orbax_load(target: Any, path: Path) -> Any:
    with ocp.StandardCheckpointer() as checkpointer:
        return jax.block_until_ready(checkpointer.restore(path, target))


def leafwise_load(target: Any, path: Path) -> Any:
    return jax.block_until_ready(lw.load(target, path))


def bench(tree: Any, how: str, folder: Path) -> list[bool]:
    ours, theirs, target, size = folder / "model.safetensors", folder / "orbax", abstract(tree), nbytes(tree)
    lw.save(tree, ours)
    orbax_save(tree, theirs)
    if not same(tree, leafwise_load(target, ours)) or not same(tree, orbax_load(target, theirs)):
        sys.exit("the result is wrong, so nothing is timed")
    saves = interleaved(ROUNDS, leafwise=partial(lw.save, tree, ours), orbax=partial(orbax_save, tree, theirs))
    loads = interleaved(
        ROUNDS, leafwise=partial(leafwise_load, target, ours), orbax=partial(orbax_load, target, theirs)
    )
    for what, times in (("save", saves), ("load", loads)):
        for name, seconds in times.items():
            print(f"# {what}, {how}, {name}: {seconds:.2f} s, {size / seconds / MB:,.0f} MB/s")
    return [
        report(f"save, {how}: Orbax / leafwise", saves["orbax"] / saves["leafwise"], 3, at_least=True),
        report(f"load, {how}: Orbax / leafwise, verified", loads["orbax"] / loads["leafwise"], 3, at_least=True),
    ]


def main(folder: Path) -> int:
    machine()
    tree = model()
    met = bench(tree, "one device", folder)
    tree = sharded(tree)
    return exit_status([*met, *bench(tree, "8 devices", folder)])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)))
