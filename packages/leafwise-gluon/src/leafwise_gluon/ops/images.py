"""Operations on images of height × width × channels, or on batches of them: `mxnet.nd.image` and `mxnet.npx.image`."""

from collections.abc import Sequence
from typing import Any

import torch

from leafwise_gluon.base import MXNetError, refusal

NEAREST, LINEAR = 0, 1  # the numbers of OpenCV


def to_tensor(image: torch.Tensor) -> torch.Tensor:
    """Channels first, and numbers from 0 to 1 in place of 0 to 255."""
    _check(image, "to_tensor")
    return (image.movedim(-1, -3).to(torch.float32) / 255).contiguous()


def normalize(image: torch.Tensor, mean: Any = 0.0, std: Any = 1.0) -> torch.Tensor:
    """Subtracts the mean and divides by the standard deviation, for all channels or for each. Channels are first."""
    _check(image, "normalize")
    if not image.dtype.is_floating_point:
        raise MXNetError(f"normalize: expected floating-point numbers, not {image.dtype}; use ToTensor first")
    channels = image.shape[-3]
    if channels not in (1, 3):
        raise MXNetError(f"normalize: the first dimension of an image must be 3 or 1, not {channels}")

    def of_channels(name: str, given: Any) -> torch.Tensor:
        values = torch.as_tensor(given, dtype=torch.float32, device=image.device).reshape(-1)
        if len(values) not in (1, channels):
            raise MXNetError(
                f"Invalid {name} for input with shape {tuple(image.shape)}. {name} must have either 1 or {channels} "
                f"elements, not {len(values)}"
            )
        return values.to(image.dtype).reshape(-1, 1, 1)

    return (image - of_channels("mean", mean)) / of_channels("std", std)


def crop(image: torch.Tensor, x: int, y: int, width: int, height: int) -> torch.Tensor:
    """The part of an image whose upper left corner is at (x, y)."""
    _check(image, "crop")
    if x < 0 or y < 0 or width <= 0 or height <= 0 or x + width > image.shape[-2] or y + height > image.shape[-3]:
        raise MXNetError(
            f"crop: {width} × {height} pixels at ({x}, {y}) are not inside an image of shape {tuple(image.shape)}"
        )
    return image[..., y : y + height, x : x + width, :].clone()


def crop_somewhere(image: torch.Tensor, where: Sequence[float], width: int, height: int, interp: int) -> torch.Tensor:
    """A part of the given size, at a relative place: (0.5, 0.5) is the middle. A part that is too large is made smaller
    with the same ratio, and the result is enlarged."""
    _check(image, "crop")
    rows, columns = image.shape[-3], image.shape[-2]
    part_width, part_height = float(width), float(height)
    if rows < part_height:
        part_width, part_height = part_width * rows / part_height, float(rows)
    if columns < part_width:
        part_width, part_height = float(columns), part_height * columns / part_width
    new_width, new_height = int(part_width), int(part_height)
    x, y = int(where[0] * (columns - new_width)), int(where[1] * (rows - new_height))
    part = crop(image, x, y, new_width, new_height)
    return part if (new_width, new_height) == (width, height) else resize(part, (width, height), False, interp)


def flip(image: torch.Tensor, axis: int) -> torch.Tensor:
    """The image mirrored: axis -2 swaps left and right, -3 top and bottom."""
    _check(image, "flip")
    return image.flip(axis)


def resize(image: torch.Tensor, size: Any, keep_ratio: bool = False, interp: int = LINEAR) -> torch.Tensor:
    """The image in another size: (width, height), or one number for both or, with `keep_ratio`, for the shorter side.

    Equal to OpenCV's, which MXNet calls: for bytes bit for bit, in its fixed-point arithmetic.
    """
    _check(image, "resize")
    if interp not in (NEAREST, LINEAR):
        raise refusal(f"resize with interpolation={interp}", "use 1 (linear) or 0 (nearest)")
    if image.dtype not in (torch.uint8, torch.float32):
        raise refusal(f"resize of {image.dtype}", "use .astype('float32') or .astype('uint8') first")
    rows, columns = image.shape[-3], image.shape[-2]
    width, height = _wanted_size(size, keep_ratio, rows, columns)
    if interp == NEAREST:
        return image[..., _nearest(rows, height), :, :][..., _nearest(columns, width), :]
    left, right, share_right = _neighbours(columns, width)
    above, below, share_below = _neighbours(rows, height)
    outside = (left < 0) | (left >= columns - 1)
    share_right = torch.where(outside, 0.0, share_right)  # OpenCV does so for columns, but not for rows
    left, right = left.clamp(0, columns - 1), right.clamp(0, columns - 1)
    above, below = above.clamp(0, rows - 1), below.clamp(0, rows - 1)
    if image.dtype == torch.float32:
        across = image[..., left, :] * (1 - share_right)[:, None] + image[..., right, :] * share_right[:, None]
        return across[..., above, :, :] * (1 - share_below)[:, None, None] + (
            across[..., below, :, :] * share_below[:, None, None]
        )
    numbers = image.to(torch.int64)
    across_fixed = numbers[..., left, :] * _fixed(1 - share_right)[:, None]
    across_fixed += numbers[..., right, :] * _fixed(share_right)[:, None]
    upper = (_fixed(1 - share_below)[:, None, None] * (across_fixed[..., above, :, :] >> 4)) >> 16
    lower = (_fixed(share_below)[:, None, None] * (across_fixed[..., below, :, :] >> 4)) >> 16
    return ((upper + lower + 2) >> 2).to(torch.uint8)


def _wanted_size(size: Any, keep_ratio: bool, rows: int, columns: int) -> tuple[int, int]:
    given = [int(number) for number in size] if isinstance(size, list | tuple) else [int(size)]
    if len(given) not in (1, 2) or min(given) <= 0:
        raise MXNetError(f"resize: size is one number or (width, height), not {size!r}")
    if len(given) == 2:
        return given[0], given[1]
    side = given[0]
    if not keep_ratio:
        return side, side
    return (side, int(rows * side / columns)) if rows > columns else (int(columns * side / rows), side)


def _nearest(old: int, new: int) -> torch.Tensor:
    return (torch.arange(new, dtype=torch.float64) * (old / new)).floor().long().clamp(max=old - 1)


def _neighbours(old: int, new: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each new pixel, the two old ones between which it lies, and the share of the second."""
    place = ((torch.arange(new, dtype=torch.float64) + 0.5) * (old / new) - 0.5).to(torch.float32)
    first = place.floor()
    return first.long(), first.long() + 1, place - first


def _fixed(share: torch.Tensor) -> torch.Tensor:
    """A share as OpenCV's fixed-point number of 11 bits."""
    return (share * 2048).round().long()


def _check(image: torch.Tensor, operation: str) -> None:
    if image.dim() not in (3, 4):
        raise MXNetError(
            f"{operation}: expected an image with 3 dimensions or a batch with 4, not {tuple(image.shape)}"
        )
