"""The Triton kernels compile for GPUs, which the interpreter does not show; no GPU is needed."""

from pathlib import Path

import pytest
from tests.kernels.compiling import assert_compiles
from tests.long import LONG

SCRIPT = """
from leafwise.kernels.triton import cuda
from leafwise.kernels.triton import cuda_clipping
from leafwise.kernels.triton import triton_clipping as clipping
from leafwise.kernels.triton import triton_kernels as kernels

TYPES = {
    "arrays": "*i32",
    "chunks_to_measure": "*i32", "addresses": "*i64", "sizes": "*i32", "kinds": "*i32", "tinies": "*fp64",
    "values": "*fp32", "by_chunk": "*i64", "histograms": "*i32", "counter": "*i64", "chunks": "i32", "already": "i32",
    "first_chunks": "*i64", "results": "*i64", "squares": "*fp64", "max_norm": "*fp64", "factor": "*fp64",
}

every = (1 << 14) - 1
for kinds, histogram in short_or_long(((4, False), (every, True)), ((4, False), (4, True), (every, True))):
    block, warps = (cuda._BLOCK_WITH_HISTOGRAM, cuda._WARPS_WITH_HISTOGRAM) if histogram else (cuda._BLOCK, cuda._WARPS)
    whole = {"KINDS": kinds, "HISTOGRAM": histogram, "CHUNK": cuda.CHUNK, "BLOCK": block}
    code = code_of(kernels.measure_whole_chunks, TYPES, warps, **whole)
    if kinds == 4:
        assert "ld.global.b16" not in code, "bfloat16 is loaded one by one"
careful = {"KINDS": every, "HISTOGRAM": True, "BLOCK": cuda._CAREFUL_BLOCK}
code_of(kernels.measure_carefully, TYPES, cuda._CAREFUL_WARPS, **careful)
code_of(kernels.fold_chunks, {**TYPES, "arrays": "i32"}, 1, BLOCK=128)
for kinds in short_or_long((4,), (1, 4, 15)):
    whole = {"KINDS": kinds, "CHUNK": cuda.CHUNK}
    blocks = cuda_clipping._SQUARES_BLOCK, cuda_clipping._SCALE_BLOCK
    squares = code_of(clipping.add_squares, TYPES, cuda_clipping._SQUARES_WARPS, **whole, BLOCK=blocks[0])
    scaling = code_of(clipping.scale_chunks, TYPES, cuda_clipping._SCALE_WARPS, **whole, BLOCK=blocks[1])
    assert "ld.global.v" in squares and "st.global.v4" in scaling, "values are loaded or stored one by one"
code_of(clipping.find_factor, TYPES, cuda_clipping._FACTOR_WARPS, BLOCK=cuda_clipping._FACTOR_BLOCK)
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    assert_compiles(SCRIPT, tmp_path, LONG)
