"""Scripts that run in several processes which talk through gloo, for tests of the files that each of them writes."""

import textwrap
from pathlib import Path

from tests.distributed.ranks import run_ranks

_BEGIN = """
import os
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
"""


def in_processes(count: int, script: str, folder: Path) -> None:
    """Runs a script in `count` processes. It has `rank`, `count`, the folder `out`, and the names of DTensors."""
    out = folder / "out"
    out.mkdir(exist_ok=True)
    run_ranks(count, _execute, count, _BEGIN + textwrap.dedent(script), str(out))


def _execute(count: int, script: str, out: str) -> None:
    from torch import distributed

    exec(compile(script, "<script>", "exec"), {"rank": distributed.get_rank(), "count": count, "out": out})
