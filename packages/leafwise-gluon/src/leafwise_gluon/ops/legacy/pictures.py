"""Operations on pictures: batches with the axes (example, channel, height, width)."""

from typing import Any

import torch

from leafwise_gluon.base import MXNetError
from leafwise_gluon.ops.neural_checks import check_count
from leafwise_gluon.ops.shaping import owned


def depth_to_space(data: torch.Tensor, block_size: int) -> torch.Tensor:
    """Moves blocks of channels into the two last axes."""
    batch, channels, height, width = data.shape
    blocks = data.reshape(batch, block_size, block_size, channels // block_size**2, height, width)
    return blocks.permute(0, 3, 4, 1, 5, 2).reshape(batch, -1, height * block_size, width * block_size)


def space_to_depth(data: torch.Tensor, block_size: int) -> torch.Tensor:
    """Moves blocks of the two last axes into the channels."""
    batch, channels, height, width = data.shape
    blocks = data.reshape(batch, channels, height // block_size, block_size, width // block_size, block_size)
    return blocks.permute(0, 3, 5, 1, 2, 4).reshape(batch, -1, height // block_size, width // block_size)


def im2col(data: torch.Tensor, kernel: Any, stride: Any = 1, dilate: Any = 1, pad: Any = 0) -> torch.Tensor:
    """The patches of pictures as columns."""
    return torch.nn.functional.unfold(data, kernel, dilate or 1, pad or 0, stride or 1)


def col2im(
    data: torch.Tensor, output_size: Any, kernel: Any, stride: Any = 1, dilate: Any = 1, pad: Any = 0
) -> torch.Tensor:
    """The opposite of `im2col`; where patches overlap, they are added."""
    return torch.nn.functional.fold(data, output_size, kernel, dilate or 1, pad or 0, stride or 1)


def Crop(  # noqa: N802
    *data: torch.Tensor, offset: Any = (0, 0), h_w: Any = (0, 0), center_crop: Any = False, num_args: int | None = None
) -> torch.Tensor:
    """A part of a batch: of a height and width, or as large as a second batch."""
    check_count("nd.Crop", "num_args", num_args, data)
    height, width = data[1].shape[2:] if len(data) > 1 else h_w
    full_height, full_width = data[0].shape[2:]
    top, left = ((full_height - height) // 2, (full_width - width) // 2) if center_crop else offset
    if height < 1 or width < 1 or top + height > full_height or left + width > full_width:
        raise MXNetError(f"nd.Crop: {height}x{width} at {top}, {left} is not a part of {full_height}x{full_width}")
    return owned(data[0][:, :, top : top + height, left : left + width])
