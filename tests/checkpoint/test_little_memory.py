"""A load without the memory that it needs is an error, and changes nothing."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leafwise as lw

_SCRIPT = """
import os, resource, sys, torch, leafwise as lw
model = torch.nn.Linear(2_000, 2_000)
before = {name: value.clone() for name, value in model.state_dict().items()}
lw.plan(model, sys.argv[1], cast=True)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + 1_000_000, resource.RLIM_INFINITY))
try:
    lw.load(model, sys.argv[1], cast=True)
except lw.Error as error:
    message = str(error)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert "not enough memory; nothing was changed" in message, message
assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_a_cast_without_memory_is_an_error_and_changes_nothing(dtype: torch.dtype, tmp_path: Path) -> None:
    path = lw.save(nn.Linear(2_000, 2_000).to(dtype), tmp_path / "a.safetensors")
    done = subprocess.run([sys.executable, "-c", _SCRIPT, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
