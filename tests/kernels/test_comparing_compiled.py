"""The Triton kernels that compare arrays compile for GPUs; no GPU is needed."""

from pathlib import Path

import pytest
from tests.kernels.compiling import assert_compiles
from tests.long import LONG

SCRIPT = """
from leafwise.kernels.triton import cuda_comparing as host
from leafwise.kernels.triton import triton_comparing as kernels

TYPES = {
    "chunks_to_compare": "*i32", "addresses": "*i64", "other_addresses": "*i64", "sizes": "*i32", "pairs": "*i32",
    "kinds": "*i32", "other_kinds": "*i32", "values": "*fp32", "by_chunk": "*i64", "counter": "*i64", "chunks": "i32",
    "already": "i32", "first_chunks": "*i64", "sides": "*i64", "results": "*i64",
}

every = (1 << 14) - 1
floats = (1 << 4) - 1
combinations = ((4, 4), (4, 1), (1, 1), (every, every), (floats, floats))
for kinds, other_kinds in short_or_long(combinations[:2], combinations):
    code = code_of(
        kernels.compare_whole_chunks, TYPES, host._WARPS, KINDS=kinds, OTHER_KINDS=other_kinds,
        MIXED=kinds != other_kinds or kinds == floats, CHUNK=host.CHUNK, BLOCK=host._BLOCK,
    )
    if kinds == 4:
        assert "ld.global.b16" not in code, "bfloat16 is loaded one by one"
for mixed in short_or_long((True,), (False, True)):
    options = {"KINDS": every, "OTHER_KINDS": every, "MIXED": mixed}
    code_of(kernels.compare_carefully, TYPES, host._CAREFUL_WARPS, BLOCK=host._CAREFUL_BLOCK, **options)
    code_of(kernels.fold_pairs, {**TYPES, "pairs": "i32"}, 1, BLOCK=128, **options)
"""


@pytest.mark.slow
def test_every_kernel_that_compares_compiles_for_a_gpu(tmp_path: Path) -> None:
    assert_compiles(SCRIPT, tmp_path, LONG)
