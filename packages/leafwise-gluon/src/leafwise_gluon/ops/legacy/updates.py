"""Arrays that are set to zero."""

import torch

from leafwise_gluon.ops.neural_checks import check_count


def reset_arrays(*arrays: torch.Tensor, num_arrays: int) -> list[torch.Tensor]:
    """Sets arrays to zero."""
    check_count("nd.reset_arrays", "num_arrays", num_arrays, arrays)
    for array in arrays:
        array.detach().zero_()
    return []
