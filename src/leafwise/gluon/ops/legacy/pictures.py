"""Operations on pictures: batches with the axes (example, channel, height, width), and single ones for `nd.image`."""

from typing import Any

import torch

from leafwise.gluon.base import MXNetError
from leafwise.gluon.ops.legacy.shaping import as_tuple
from leafwise.gluon.ops.shaping import owned


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
    *data: torch.Tensor, offset: Any = (0, 0), h_w: Any = (0, 0), center_crop: Any = False, num_args: int = 1
) -> torch.Tensor:
    """A part of a batch: of a height and width, or as large as a second batch."""
    height, width = data[1].shape[2:] if len(data) > 1 else h_w
    full_height, full_width = data[0].shape[2:]
    top, left = ((full_height - height) // 2, (full_width - width) // 2) if center_crop else offset
    if height < 1 or width < 1 or top + height > full_height or left + width > full_width:
        raise MXNetError(f"nd.Crop: {height}x{width} at {top}, {left} is not a part of {full_height}x{full_width}")
    return owned(data[0][:, :, top : top + height, left : left + width])


# -- nd.image: single pictures or batches, with the channel on the last axis -----------------------------------


def to_tensor(data: torch.Tensor) -> torch.Tensor:
    """A picture with the axes (height, width, channel) and values up to 255, as (channel, height, width) up to 1."""
    if data.ndim not in (3, 4):
        raise MXNetError(f"nd.image.to_tensor needs a picture or a batch, not an array of dimension {data.ndim}")
    return owned(data.detach().to(torch.float32).movedim(-1, -3) / 255)


def normalize(data: torch.Tensor, mean: Any = None, std: Any = None) -> torch.Tensor:
    """Subtracts a mean and divides by a deviation, for each channel of (channel, height, width)."""
    if data.ndim not in (3, 4) or not data.dtype.is_floating_point or mean is None or std is None:
        raise MXNetError("nd.image.normalize needs a picture or a batch of floats, a mean and a std")
    channels = data.shape[-3]
    means, deviations = (as_tuple(value) for value in (mean, std))
    if any(len(values) not in (1, channels) for values in (means, deviations)):
        raise MXNetError(
            f"nd.image.normalize: mean and std must have one value, or one for each of {channels} channels"
        )
    means_tensor, deviations_tensor = (
        torch.tensor(values, dtype=data.dtype, device=data.device).reshape(-1, 1, 1) for values in (means, deviations)
    )
    return (data - means_tensor) / deviations_tensor


def flip_left_right(data: torch.Tensor) -> torch.Tensor:
    return torch.flip(data, [-2])


def flip_top_bottom(data: torch.Tensor) -> torch.Tensor:
    return torch.flip(data, [-3])


def crop(data: torch.Tensor, x: int, y: int, width: int, height: int) -> torch.Tensor:
    """The part of a picture whose upper left corner is at (x, y)."""
    full_height, full_width = data.shape[-3:-1]
    if x < 0 or y < 0 or width < 1 or height < 1 or x + width > full_width or y + height > full_height:
        raise MXNetError(f"nd.image.crop: {width}x{height} at {x}, {y} is not a part of {full_width}x{full_height}")
    return owned(data[..., y : y + height, x : x + width, :])
