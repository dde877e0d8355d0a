"""The toy format passes the contract of formats."""

import struct
from pathlib import Path
from typing import Any

import pytest

import leafwise as lw
from leafwise.testing import FormatCase
from leafwise.testing.format_contract import *  # noqa: F403

CODES = {"float32": 0, "float16": 1, "int64": 2}


def write(path: Path, arrays: dict[str, Any]) -> None:
    parts = [b"TOYNET1\0" + struct.pack("<I", len(arrays))]
    for name, array in arrays.items():
        parts.append(struct.pack("<H", len(name)) + name.encode() + bytes([CODES[array.dtype.name], array.ndim]))
        parts.append(struct.pack(f"<{array.ndim}Q", *array.shape))
    path.write_bytes(b"".join(parts + [array.tobytes() for array in arrays.values()]))


@pytest.fixture
def format_case() -> FormatCase:
    return FormatCase("toynet", ".toynet", write)


def test_a_small_file_that_claims_millions_of_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.toynet"
    path.write_bytes(b"TOYNET1\0" + b"\xff\xff\xff\xff" + bytes(1000))
    with pytest.raises(lw.FileError, match="more than"):
        lw.open(path)
