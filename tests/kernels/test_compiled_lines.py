"""The kernels that search lines compile for GPUs; no GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from leafwise.kernels import cuda_lines, lines, triton_lines as kernels

TYPES = {
    "table": "*i64", "programs": "*i32", "offsets": "*i64", "values": "*fp32", "onto": "*fp64", "odd": "*i32",
    "shifts": "*fp64", "keys": "*i64", "total": "i64", "width": "fp32", "least": "fp32", "jobs": "*i64",
    "lines": "*i64", "neighbors": "*i64", "near": "*i8", "reach": "fp32", "flags": "*i8",
}

def compile_kernel(kernel, warps, **constants):
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else TYPES[name] for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if types[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=aligned)
    compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options={"num_warps": warps})

every_float = (1 << 5) - 1
for kinds in (4, every_float):
    compile_kernel(
        kernels.line_cells, cuda_lines._WARPS, KINDS=kinds, GRIDS=len(lines.SHIFTS), SAMPLED=lines.SAMPLED,
        COORDINATES=lines.COORDINATES, BLOCK=cuda_lines._BLOCK,
    )
    compile_kernel(kernels.near_pairs, 1, KINDS=kinds, SAMPLED=lines.SAMPLED)
for sizes in (2, 15):
    compile_kernel(
        kernels.nonzero_lines, cuda_lines._ZERO_WARPS, SIZES=sizes, CHUNK=cuda_lines._CHUNK,
        REPEATS=cuda_lines._REPEATS, BLOCK=cuda_lines._ZERO_BLOCK,
    )
"""


def test_every_kernel_that_searches_lines_compiles_for_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # the home folder may be read-only
    done = subprocess.run([sys.executable, "-c", SCRIPT, "90"], capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
