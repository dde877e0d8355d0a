"""The Triton kernels that compare arrays compile for GPUs; no GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import sys
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from leafwise.kernels import cuda_comparing as host, triton_comparing as kernels

TYPES = {
    "chunks_to_compare": "*i32", "addresses": "*i64", "other_addresses": "*i64", "sizes": "*i32", "pairs": "*i32",
    "kinds": "*i32", "other_kinds": "*i32", "values": "*fp32", "by_chunk": "*i64", "counter": "*i64", "chunks": "i32",
    "already": "i32", "first_chunks": "*i64", "sides": "*i64", "results": "*i64",
}

def code_of(kernel, warps, pairs="*i32", **constants):
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else {**TYPES, "pairs": pairs}[name] for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if types[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=aligned)
    options = {"num_warps": warps, "enable_fp_fusion": True}
    return compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options).asm["ptx"]

every = (1 << 14) - 1
floats = (1 << 4) - 1
for kinds, other_kinds in ((1, 1), (4, 4), (every, every), (4, 1), (floats, floats)):
    code = code_of(
        kernels.compare_whole_chunks, host._WARPS, KINDS=kinds, OTHER_KINDS=other_kinds,
        MIXED=kinds != other_kinds or kinds == floats, CHUNK=host.CHUNK, BLOCK=host._BLOCK,
    )
    if kinds == 4:
        assert "ld.global.b16" not in code, "bfloat16 is loaded one by one"
for mixed in (False, True):
    options = {"KINDS": every, "OTHER_KINDS": every, "MIXED": mixed}
    code_of(kernels.compare_carefully, host._CAREFUL_WARPS, BLOCK=host._CAREFUL_BLOCK, **options)
    code_of(kernels.fold_pairs, 1, pairs="i32", BLOCK=128, **options)
"""


def test_every_kernel_that_compares_compiles_for_a_gpu(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)  # the home folder may be read-only
    done = subprocess.run([sys.executable, "-c", SCRIPT, "90"], capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
