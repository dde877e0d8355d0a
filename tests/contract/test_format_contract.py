"""The contract of formats, over files that the tools wrote whose formats they are."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.files.writers import WRITERS

from leafwise.testing import FormatCase
from leafwise.testing.format_contract import *  # noqa: F403


def _written(name: str) -> Any:
    def write(path: Path, arrays: dict[str, Any]) -> None:
        WRITERS[name](path, {key: torch.from_numpy(array) for key, array in arrays.items()})

    return write


CASES = [
    FormatCase("safetensors", ".safetensors", _written("safetensors"), ("float32", "float16", "int64", "bool")),
    FormatCase("PyTorch zip", ".pt", _written("torch zip"), ("float32", "float16", "complex64", "int64")),
    FormatCase("PyTorch, before 1.6", ".bin", _written("torch legacy")),
    FormatCase("pickle", ".pkl", _written("pickle of NumPy arrays")),
    FormatCase("npz", ".npz", _written("npz"), ("float64", "float16", "uint8", "bool", "int64")),
    FormatCase("npz", ".npz", _written("npz compressed")),
    FormatCase("GGUF", ".gguf", _written("GGUF"), ("float32", "float16", "int8"), has_scalars=False),
    FormatCase("MXNet params", ".params", _written("MXNet V2"), ("float32", "float16", "int64"), has_scalars=False),
    FormatCase("MXNet params", ".params", _written("MXNet V3"), ("float32", "uint8", "int32")),
    FormatCase("Flax msgpack", ".msgpack", _written("Flax msgpack"), ("float32", "float64", "uint8", "int64")),
]


@pytest.fixture(params=CASES, ids=lambda case: case.name.replace(" ", "-"))
def format_case(request: pytest.FixtureRequest) -> Iterator[FormatCase]:
    return request.param
