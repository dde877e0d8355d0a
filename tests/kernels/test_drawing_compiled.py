"""The kernels that draw initial values compile for GPUs, which the interpreter does not show; no GPU is needed."""

from pathlib import Path

import pytest
from tests.kernels.compiling import assert_compiles
from tests.long import LONG

SCRIPT = """
from leafwise.kernels.triton import cuda_drawing as drawing
from leafwise.kernels.triton import triton_drawing as kernels

FIXED = {"WIDTH": kernels.WIDTH, "NVIDIA": True}
TYPES = {"table": "*i64", "pieces": "*i32", "nodes": "*fp64"}

SHAPES = (kernels.CONSTANT, kernels.UNIFORM, kernels.NORMAL)
for name, dtype in kernels.DTYPES.items():
    for shape in SHAPES if name == "bfloat16" else short_or_long((kernels.NORMAL,), SHAPES):
        options = {**FIXED, "DTYPE": dtype, "SHAPE": shape, "CHUNK": drawing.CHUNK, "BLOCK": drawing.BLOCK}
        code = code_of(kernels.draw_whole_chunks, TYPES, drawing.WARPS, False, **options)
        assert "st.global.v4.b32" in code, "numbers are stored one by one"
        assert "st.shared" not in code, "numbers move to other lanes through shared memory"
        if shape == kernels.NORMAL:
            assert "0d3FF40D931FF62706" in code, "coefficients have fewer than 64 bits"
            if name == "bfloat16":
                assert "lg2.approx" in code
            else:
                assert "lg2.approx" not in code, "a node is found by a logarithm"
                assert "0d3FEFFFFFFFFFE000" in code, "1 - 2**-40 has fewer than 64 bits: every number seems certain"
                assert "0d3FF0000000001000" in code, "1 + 2**-40 has fewer than 64 bits: every number seems certain"
    code_of(
        kernels.draw_carefully, TYPES, drawing.CAREFUL_WARPS, False, **FIXED, DTYPE=dtype, SHAPE=kernels.NORMAL,
        CHUNK=drawing.CAREFUL_CHUNK, BLOCK=drawing.CAREFUL_BLOCK,
    )
"""


@pytest.mark.slow
def test_every_kernel_that_draws_compiles_for_a_gpu(tmp_path: Path) -> None:
    assert_compiles(SCRIPT, tmp_path, LONG)
