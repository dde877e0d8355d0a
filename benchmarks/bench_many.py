"""A hundred thousand small leaves, of PyTorch and of JAX: what a verb takes for each leaf, beside safetensors.

python benchmarks/bench_many.py [torch jax]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from figures import exit_status, not_run, report

import leafwise as lw

LEAVES = 100_000
MOST_SECONDS = {"load": 4.0, "save": 4.0, "stats": 2.0}


def seconds(work: Callable[[], Any]) -> float:
    """The shorter of two runs."""
    taken = []
    for _ in range(2):
        began = time.perf_counter()
        work()
        taken.append(time.perf_counter() - began)
    return min(taken)


def of_torch() -> tuple[dict[str, Any], dict[str, Any]]:
    import torch

    values = {f"layer{number // 100}.w{number % 100}": torch.tensor(float(number)) for number in range(LEAVES)}
    return values, {name: torch.zeros(()) for name in values}


def of_jax() -> tuple[dict[str, Any], dict[str, Any]]:
    import jax

    values = {
        f"layer{layer}": {f"w{number}": jax.device_put(np.full(4, number, np.float32)) for number in range(100)}
        for layer in range(LEAVES // 100)
    }
    return values, jax.tree.map(lambda value: jax.device_put(np.zeros(4, np.float32)), values)


def bench(framework: str, folder: Path) -> list[bool]:
    values, target = of_torch() if framework == "torch" else of_jax()
    path = str(folder / f"{framework}.safetensors")
    lw.save(values, path)
    loaded = lw.load(target, path)
    assert lw.diff(loaded, values).same, "the values that were loaded"
    assert len(lw.stats(values)) == LEAVES
    taken = {
        "load": seconds(lambda: lw.load(target, path)),
        "save": seconds(lambda: lw.save(values, path)),
        "stats": seconds(lambda: lw.stats(values)),
    }
    met = [
        report(f"{verb} of {LEAVES:,} {framework} leaves, seconds", taken[verb], MOST_SECONDS[verb]) for verb in taken
    ]
    if framework == "torch":
        from safetensors.torch import load_file, save_file

        save_file(values, folder / "peer.safetensors")
        read = seconds(lambda: load_file(folder / "peer.safetensors"))
        print(f"# load of {LEAVES:,} leaves / load_file of safetensors into new tensors: {taken['load'] / read:.1f}")
    return met


def main() -> int:
    met = []
    with tempfile.TemporaryDirectory() as folder:
        for framework in sys.argv[1:] or ["torch", "jax"]:
            try:
                met += bench(framework, Path(folder))
            except ImportError:
                not_run(f"{framework} is not installed here")
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
