"""Triton's interpreter beside a GPU: it must run in a process that sees no device."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from tests.kernels.gpu import DEVICE
from tools import gpu

from leafwise.homes.torch.gpu import launching

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(DEVICE.type == "cpu", reason="without a GPU, all tests run in the interpreter")
def test_the_interpreter_runs_in_a_process_that_sees_no_device() -> None:
    files = [file for file in gpu.device_tests() if file.startswith("tests/kernels/") and "interpreter" not in file]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stdout[-3_000:]


def test_the_interpreter_is_never_given_the_memory_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    launching._warn_once.cache_clear()
    with pytest.warns(UserWarning, match="TRITON_INTERPRET is set, and Triton's interpreter cannot read the memory"):
        assert not launching.runs_kernels(torch.device("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not launching.runs_kernels(torch.device("cuda"))  # the warning comes once
        assert not launching.runs_kernels(torch.device("mps"))


def test_the_tests_for_a_gpu_are_found_by_what_they_import() -> None:
    files = gpu.device_tests()
    assert {"tests/kernels/test_cuda.py", "tests/homes/test_measuring.py"} <= set(files)
    assert "tests/kernels/test_cpu.py" not in files
