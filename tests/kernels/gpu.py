"""Where tests run the Triton kernels: on the GPU, or in Triton's interpreter where there is none."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from leafwise.core.results.moments import Moments
from leafwise.kernels.cpu import run_of
from leafwise.kernels.triton import cuda

# Whoever asks for the interpreter gets it, also beside a GPU.
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not _INTERPRETED else "cpu")
CHUNK = 8_192  # so that small arrays have several


def _prepare_the_interpreter_once() -> None:
    """Triton's interpreter replaces the functions of its language when a kernel starts, and again, with the same, for
    every function that the kernel calls, which takes longer than computing. Here the first time is enough."""
    from triton import language
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):
        return  # another release

    replace, modules = interpreter._patch_lang, (language, language.core)

    def replace_once(function: Any) -> Any:
        used = [module for module in modules if any(value is module for value in function.__globals__.values())]
        if any(language.core.is_builtin(module.load) for module in used):
            return replace(function)
        return interpreter._LangPatchScope()  # a kernel runs, and restores them when it ends

    interpreter._patch_lang = replace_once


if DEVICE.type == "cpu":
    _prepare_the_interpreter_once()


def measure(arrays: Sequence[Any], histogram: bool = True, chunk: int = CHUNK) -> list[Moments]:
    return waiting(arrays, histogram, chunk)()


def waiting(arrays: Sequence[Any], histogram: bool = True, chunk: int = CHUNK) -> Any:
    """The moments of NumPy arrays, when they are asked for."""
    kept = [torch.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)).to(DEVICE) for array in arrays]
    runs = [run_of(array)._replace(address=one.data_ptr()) for array, one in zip(arrays, kept, strict=True)]
    with np.errstate(all="ignore"):  # the interpreter is NumPy, and warns of what a GPU does in silence
        wait = cuda.measure(cuda.table_of(runs, DEVICE, chunk), histogram)
    return lambda: (kept, wait())[1]
