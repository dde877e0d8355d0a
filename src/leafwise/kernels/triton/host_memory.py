"""Memory of the host for copies from and to a GPU."""

from contextlib import suppress

import torch


def host_memory(count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory for copies from or to a device: pinned for a GPU, so that copies do not wait for kernels that run already;
    ordinary memory where the system refuses that. PyTorch keeps pinned memory until copies are done."""
    # The host is named, because the default may be another device: inside `with torch.device("cuda"):`.
    if device.type == "cuda":
        with suppress(RuntimeError):  # the limit for locked memory may be reached
            return torch.empty(count, dtype=dtype, device="cpu", pin_memory=True)
    return torch.empty(count, dtype=dtype, device="cpu")
