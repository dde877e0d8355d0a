"""The Triton kernels compile for GPUs, which the interpreter does not show; no GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from leafwise.kernels import cuda, cuda_clipping, triton_clipping as clipping, triton_kernels as kernels

TYPES = {
    "chunks_to_measure": "*i32", "addresses": "*i64", "sizes": "*i32", "kinds": "*i32", "tinies": "*fp64",
    "values": "*fp32", "by_chunk": "*i64", "histograms": "*i32", "counter": "*i64", "chunks": "i32", "already": "i32",
    "first_chunks": "*i64", "results": "*i64", "squares": "*fp64", "max_norm": "*fp64", "factor": "*fp64",
}

def code_of(kernel, warps, arrays="*i32", **constants):
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else {**TYPES, "arrays": arrays}[name] for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if types[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=aligned)
    options = {"num_warps": warps, "enable_fp_fusion": True}
    return compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options).asm["ptx"]

every = (1 << 14) - 1
for kinds, histogram in ((4, False), (4, True), (every, True)):
    block, warps = (cuda._BLOCK_WITH_HISTOGRAM, cuda._WARPS_WITH_HISTOGRAM) if histogram else (cuda._BLOCK, cuda._WARPS)
    code = code_of(
        kernels.measure_whole_chunks, warps, KINDS=kinds, HISTOGRAM=histogram, CHUNK=cuda.CHUNK, BLOCK=block
    )
    if kinds == 4:
        assert "ld.global.b16" not in code, "bfloat16 is loaded one by one"
careful = {"KINDS": every, "HISTOGRAM": True, "BLOCK": cuda._CAREFUL_BLOCK}
code_of(kernels.measure_carefully, cuda._CAREFUL_WARPS, **careful)
code_of(kernels.fold_chunks, 1, arrays="i32", BLOCK=128)
for kinds in (1, 4, 15):
    whole = {"KINDS": kinds, "CHUNK": cuda.CHUNK}
    squares = code_of(clipping.add_squares, cuda_clipping._SQUARES_WARPS, **whole, BLOCK=cuda_clipping._SQUARES_BLOCK)
    scaling = code_of(clipping.scale_chunks, cuda_clipping._SCALE_WARPS, **whole, BLOCK=cuda_clipping._SCALE_BLOCK)
    assert "ld.global.v" in squares and "st.global.v4" in scaling, "values are loaded or stored one by one"
code_of(clipping.find_factor, cuda_clipping._FACTOR_WARPS, BLOCK=cuda_clipping._FACTOR_BLOCK)
"""


def test_every_kernel_compiles_for_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # the home folder may be read-only
    done = subprocess.run([sys.executable, "-c", SCRIPT, "90"], capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
