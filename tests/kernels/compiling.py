"""Compiles Triton kernels for a GPU, in a process of its own without the interpreter; no GPU is needed."""

import os
import subprocess
import sys
from pathlib import Path

# What a script can call: `code_of` gives the code of a kernel, whose arguments are constants or have these types, and
# `short_or_long` the second of two selections in `make long`. A kernel takes seconds to compile.
_BEFORE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

def code_of(kernel, types, warps, fusion=True, **constants):
    names = kernel.arg_names
    types = {name: "constexpr" if name in constants else types[name] for name in names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, name in enumerate(names) if types[name].startswith("*")}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=types, constexprs=values, attrs=aligned)
    options = {"num_warps": warps, "enable_fp_fusion": fusion}
    return compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
"""


def assert_compiles(script: str, cache: Path, long: bool = False) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)  # the home folder may be read-only
    selecting = f"def short_or_long(short, long):\n    return {'long' if long else 'short'}\n"
    command = [sys.executable, "-c", _BEFORE + selecting + script]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment)
    assert done.returncode == 0, done.stderr[-2_000:]
