"""Where Triton kernels can run, and how they are started. Where they cannot, callers use other code."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

import torch

from leafwise.core.path import escape
from leafwise.errors import WalkError, WriteError

T = TypeVar("T")

KERNEL_DEVICES = frozenset({"cuda"})  # the types of devices that Triton kernels run on; ROCm's is also called cuda

_COPIED = "on the CPU, after copying them there"


def runs_kernels(device: torch.device) -> bool:
    """Whether Triton kernels can run on a device. Warns once if only Triton is missing, or if its interpreter is on,
    which cannot read the memory of a device."""
    if device.type not in KERNEL_DEVICES or not _has_triton():
        return False
    if device.type == "cuda" and os.environ.get("TRITON_INTERPRET") == "1":
        _warn_once(
            "TRITON_INTERPRET is set, and Triton's interpreter cannot read the memory of a GPU: values are processed"
        )
        return False
    return True


def start_kernels(device: torch.device, start: Callable[[], T], action: str = "", instead: str = _COPIED) -> T | None:
    """Calls `start`, which launches Triton kernels on a device. Returns None, and warns once, if Triton cannot run;
    `action` is what then happens, as in "statistics of tensors on a GPU are computed", and `instead` says how. Without
    `action`, there is no warning: for callers that use PyTorch's own kernels instead."""
    # Memory that is kept for the next call must not be made of inference tensors, which only inference mode may change.
    with on_device(device), torch.inference_mode(False), torch.no_grad():
        try:
            return start()
        except RuntimeError as error:
            if "C compiler" not in str(error):  # Triton needs one to launch its kernels
                raise
            reason = "Triton did not find a C compiler"
        except PermissionError as error:
            reason = f"Triton cannot write {error.filename}; set TRITON_CACHE_DIR to a folder that it can write to"
    if action:
        _warn_once(f"{reason}: {action}", instead)
    return None


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Makes a device the current one, on which Triton launches kernels."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def lend_to_current_stream(values: list[torch.Tensor], device: torch.device) -> None:
    """If the current stream is not the default one, has PyTorch keep the memory of these tensors until the stream is
    done with it, even if they are freed or moved before that."""
    if device.type == "cuda" and (stream := torch.cuda.current_stream(device)) != torch.cuda.default_stream(device):
        for value in values:
            value.record_stream(stream)


def check_not_capturing(action: str) -> None:
    """Raises if the current stream is being captured into a CUDA graph, because values cannot be read then."""
    cuda: Any = torch.cuda
    if cuda.is_initialized() and cuda.is_current_stream_capturing():
        raise WalkError(
            f"cannot {action} while a CUDA graph is being captured, because values can be read only after the graph "
            "has run; do it before the capture, or after it"
        )


@contextmanager
def shortage_explained(action: str, state: str) -> Iterator[None]:
    """Raises an error of leafwise if a device has no memory left. `state` says what has changed by then."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        # "CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of …", and a page of advice
        reason = str(error).partition(". GPU ")[0].partition("\n")[0].rstrip(".")
        raise WriteError(f"cannot {action}: {reason}; {state}") from error


@cache
def _warn_once(reason: str, instead: str = _COPIED) -> None:
    warnings.warn(escape(f"{reason} {instead}"), stacklevel=2)


@cache
def _has_triton() -> bool:
    try:
        import_module("triton")
    except ImportError:
        _warn_once(
            "Triton is not installed: values of tensors on a GPU are processed",
            f"{_COPIED}, or by slower PyTorch operations",
        )
        return False
    return True
