"""The colours of an image of height × width × channels: what MXNet's random transforms of colours compute."""

from collections.abc import Sequence

import numpy
import torch

from leafwise_gluon.base import MXNetError, refusal

_GREY = (0.299, 0.587, 0.114)  # the shares of red, green and blue
_LIGHT = (  # the principal components of the colours of ImageNet, times their standard deviations
    (55.46 * -0.5675, 4.794 * 0.7192, 1.148 * 0.4009),
    (55.46 * -0.5808, 4.794 * -0.0045, 1.148 * -0.8140),
    (55.46 * -0.5836, 4.794 * -0.6948, 1.148 * 0.4203),
)
_SECTORS = ((1, 3, 0), (1, 0, 2), (3, 0, 1), (0, 2, 1), (0, 1, 3), (2, 1, 0))


def brightness(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Multiplies every number by a factor."""
    _check(image, "brightness")
    return _stored(image.to(torch.float32) * factor, image.dtype)


def contrast(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Moves every number away from the mean grey of the image, or towards it if the factor is less than 1."""
    _check(image, "contrast")
    values = image.to(torch.float32)
    grey = values if image.shape[-1] == 1 else values * torch.tensor(_GREY)
    # One number after the other, as MXNet does: bytes depend on the last digits of the mean.
    total = numpy.add.accumulate(grey.cpu().numpy().reshape(-1))[-1]
    mean = float(total / numpy.float32(image.shape[0] * image.shape[1]))
    return _stored(values * factor + (1 - torch.tensor(factor)) * mean, image.dtype)


def saturation(image: torch.Tensor, factor: float) -> torch.Tensor:
    """Moves colours away from grey. As in MXNet, the grey of a pixel is that of its last colour only."""
    _check(image, "saturation")
    if image.shape[-1] == 1:
        return image.clone()
    values = image.to(torch.float32)
    grey = values[..., 2:] * torch.tensor(_GREY[2]) * (1 - torch.tensor(factor))
    return _stored(grey + values * factor, image.dtype)


def hue(image: torch.Tensor, turns: float) -> torch.Tensor:
    """Turns the hue; 1 is a full turn."""
    _check_colours(image, "hue")
    angle, lightness, strength = _to_hls(image.to(torch.float32) / 255)
    colours = _to_rgb(angle + torch.tensor(turns) * 360, lightness, strength)
    return _stored(colours * 255, image.dtype)


def lighting(image: torch.Tensor, alpha: Sequence[float]) -> torch.Tensor:
    """Adds a colour: the principal components of the colours of ImageNet, weighted with `alpha`."""
    _check_colours(image, "lighting")
    added = torch.tensor(_LIGHT) * torch.tensor(list(alpha), dtype=torch.float32)
    return _stored(image.to(torch.float32) + (added[:, 0] + added[:, 1] + added[:, 2]), image.dtype)


def _to_hls(colours: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    red, green, blue = colours.unbind(-1)
    most, least = colours.amax(-1), colours.amin(-1)
    spread = most - least
    lightness = (most + least) * 0.5
    is_colour = spread > torch.finfo(torch.float32).eps
    safe = torch.where(is_colour, spread, 1.0)
    strength = torch.where(lightness < 0.5, spread / (most + least), spread / (2.0 - most - least))
    scale = 60.0 / safe
    angle = torch.where(
        most == red,
        (green - blue) * scale,
        torch.where(most == green, (blue - red) * scale + 120.0, (red - green) * scale + 240.0),
    )
    angle = torch.where(angle < 0, angle + 360.0, angle)
    return torch.where(is_colour, angle, 0.0), lightness, torch.where(is_colour, strength, 0.0)


def _to_rgb(angle: torch.Tensor, lightness: torch.Tensor, strength: torch.Tensor) -> torch.Tensor:
    high = torch.where(lightness <= 0.5, lightness * (1 + strength), lightness + strength - lightness * strength)
    low = 2 * lightness - high
    sixths = angle * torch.tensor(1.0 / 60.0)
    sixths = torch.remainder(sixths, 6.0)
    sector = sixths.long().clamp(0, 5)
    part = sixths - sector
    choices = torch.stack([high, low, low + (high - low) * (1 - part), low + (high - low) * part], -1)
    places = torch.tensor(_SECTORS)[sector].flip(-1)  # the table gives blue, green, red
    colours = choices.gather(-1, places)
    return torch.where((strength != 0)[..., None], colours, lightness[..., None])


def _stored(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values in the dtype of the image. Bytes are cut off at 0 and 255, and their fractions are dropped."""
    return values.clamp(0, 255).to(dtype) if dtype == torch.uint8 else values.to(dtype)


def _check_colours(image: torch.Tensor, operation: str) -> None:
    _check(image, operation)
    if image.shape[-1] == 1:
        raise refusal(f"{operation} of an image with 1 channel, which MXNet leaves undefined", "use 3 channels")


def _check(image: torch.Tensor, operation: str) -> None:
    if image.dim() != 3 or image.shape[-1] not in (1, 3):
        raise MXNetError(
            f"{operation}: expected an image of height × width × channels with 1 or 3 channels, not "
            f"{tuple(image.shape)}"
        )
