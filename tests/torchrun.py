"""Scripts that run in two processes at once."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
# Without finalizing Python: a thread of gloo may still have to release the tensors of the last collective. If the
# interpreter is being finalized meanwhile, PyTorch 2.13 aborts ("terminate called without an active exception").
END_AT_ONCE = """
import os, sys
sys.stdout.flush()
os._exit(0)
"""


def in_two_processes(script: str, folder: Path) -> None:
    """Runs a script with torchrun; each process must print its rank and "done" at the end."""
    path = folder / "script.py"
    path.write_text(script + END_AT_ONCE, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            str(path),
        ],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        env={"PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("rank")) == [
        "rank 0 done",
        "rank 1 done",
    ]
