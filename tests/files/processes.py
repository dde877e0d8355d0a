"""Several processes that talk through gloo, for tests of the files that each of them writes."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

_BEGIN = """
import os, sys, warnings
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist
torch.set_num_threads(1)
rank, count, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + sys.argv[4], rank=rank, world_size=count)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
"""
_END = "\ndist.barrier()\ndist.destroy_process_group()\n"


def in_processes(count: int, script: str, folder: Path) -> None:
    """Runs a script in `count` processes. It has `rank`, `count`, the folder `out`, and the names of DTensors."""
    path = folder / "script.py"
    path.write_text(_BEGIN + textwrap.dedent(script) + _END, encoding="utf-8")
    (folder / "out").mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", "OMP_NUM_THREADS": "1"}
    commands = [
        [sys.executable, str(path), str(rank), str(count), str(folder / "out"), str(folder / "store")]
        for rank in range(count)
    ]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", env=environment)
        for command in commands
    ]
    try:
        for process in started:
            _, problems = process.communicate(timeout=300)
            assert process.returncode == 0, problems[-3000:]
    finally:
        for process in started:
            if process.poll() is None:
                process.kill()
                process.communicate()
