"""The kernels that search lines compile for GPUs; no GPU is needed."""

from pathlib import Path

import pytest
from tests.kernels.compiling import assert_compiles

SCRIPT = """
from leafwise.kernels import lines
from leafwise.kernels.triton import cuda_lines
from leafwise.kernels.triton import triton_lines as kernels

TYPES = {
    "table": "*i64", "programs": "*i32", "offsets": "*i64", "values": "*fp32", "onto": "*fp64", "odd": "*i32",
    "shifts": "*fp64", "keys": "*i64", "total": "i64", "width": "fp32", "least": "fp32", "jobs": "*i64",
    "lines": "*i64", "neighbors": "*i64", "near": "*i8", "reach": "fp32", "flags": "*i8",
}

every_float = (1 << 5) - 1
for kinds in (4, every_float):
    code_of(
        kernels.line_cells, TYPES, cuda_lines._WARPS, KINDS=kinds, GRIDS=len(lines.SHIFTS), SAMPLED=lines.SAMPLED,
        COORDINATES=lines.COORDINATES, BLOCK=cuda_lines._BLOCK,
    )
    code_of(kernels.near_pairs, TYPES, 1, KINDS=kinds, SAMPLED=lines.SAMPLED)
for sizes in (2, 15):
    code_of(
        kernels.nonzero_lines, TYPES, cuda_lines._ZERO_WARPS, SIZES=sizes, CHUNK=cuda_lines._CHUNK,
        REPEATS=cuda_lines._REPEATS, BLOCK=cuda_lines._ZERO_BLOCK,
    )
"""


@pytest.mark.slow
def test_every_kernel_that_searches_lines_compiles_for_a_gpu(tmp_path: Path) -> None:
    assert_compiles(SCRIPT, tmp_path)
