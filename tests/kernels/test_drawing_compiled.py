"""The kernels that draw initial values compile for GPUs, which the interpreter does not show; no GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from leafwise.kernels import cuda_drawing as drawing, triton_drawing as kernels

TYPES = {"table": "*i64", "pieces": "*i32", "nodes": "*fp64"}

def code_of(kernel, warps, **constants):
    constants |= {"WIDTH": kernels.WIDTH, "NVIDIA": True}
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else TYPES[name] for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if types[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=aligned)
    options = {"num_warps": warps, "enable_fp_fusion": False}
    return compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options).asm["ptx"]

for dtype in kernels.DTYPES.values():
    for shape in (kernels.CONSTANT, kernels.UNIFORM, kernels.NORMAL):
        options = {"DTYPE": dtype, "SHAPE": shape}
        code = code_of(
            kernels.draw_whole_chunks, drawing.WARPS, CHUNK=drawing.CHUNK, BLOCK=drawing.BLOCK, **options
        )
        assert "st.global.v4.b32" in code, "numbers are stored one by one"
        assert "st.shared" not in code, "numbers move to other lanes through shared memory"
        if shape == kernels.NORMAL:
            assert "0d3FF40D931FF62706" in code, "coefficients have fewer than 64 bits"
            assert "lg2.approx" in code
    code_of(
        kernels.draw_carefully, drawing.CAREFUL_WARPS, DTYPE=dtype, SHAPE=kernels.NORMAL,
        CHUNK=drawing.CAREFUL_CHUNK, BLOCK=drawing.CAREFUL_BLOCK,
    )
"""


def test_every_kernel_that_draws_compiles_for_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # the home folder may be read-only
    done = subprocess.run([sys.executable, "-c", SCRIPT, "90"], capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
