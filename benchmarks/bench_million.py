"""A million leaves in nested containers: time and memory must grow linearly, with at most 1 KB per leaf."""

import sys
import time
import tracemalloc
from typing import Any

import numpy as np
from common import machine
from figures import exit_status, report

import leafwise as lw


def nested(leaves: int) -> dict[str, Any]:
    """Containers, three levels deep, with arrays that are made beforehand, so that only the walk is measured."""
    array = iter([np.zeros(1, np.int8) for _ in range(leaves)])
    return {
        f"block{outer}": [{str(key): next(array) for key in range(10)} for _ in range(10)]
        for outer in range(leaves // 100)
    }


def measure(leaves: int) -> tuple[float, float]:
    """The seconds for a walk, and the peak bytes per leaf of a tree with all its leaves."""
    obj = nested(leaves)
    tree = lw.tree(obj)
    assert len(tree) == leaves
    assert tree.counts.parameters == leaves
    assert tree["block3.4.5"].value is obj["block3"][4]["5"]
    assert len(tree.text().splitlines()) <= 60
    del tree
    start = time.perf_counter()
    lw.tree(obj)
    seconds = time.perf_counter() - start
    tracemalloc.start()
    kept = lw.tree(obj)
    list(kept)  # every leaf object made and kept
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return seconds, max(held, peak) / leaves


def main() -> int:
    machine()
    (small_time, small_bytes), (large_time, large_bytes) = measure(100_000), measure(1_000_000)
    print(f"#   100,000 leaves: {small_time:.2f} s, {small_bytes:.0f} B per leaf")
    print(f"# 1,000,000 leaves: {large_time:.2f} s, {large_bytes:.0f} B per leaf")
    met = [
        report("time for 10 × the leaves", large_time / small_time, 15),
        report("peak bytes a leaf, every Leaf made", large_bytes, 1024),
        report("bytes a leaf, 1,000,000 against 100,000", large_bytes / small_bytes, 1.2),
    ]
    return exit_status(met)


if __name__ == "__main__":
    sys.exit(main())
