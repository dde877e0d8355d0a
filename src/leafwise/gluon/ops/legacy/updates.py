"""Arrays that are set to zero."""

import torch


def reset_arrays(*arrays: torch.Tensor, num_arrays: int = 1) -> list[torch.Tensor]:
    """Sets arrays to zero."""
    for array in arrays:
        array.detach().zero_()
    return []
