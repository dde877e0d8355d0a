"""Transforms that change the colours of images at random, with the random numbers that MXNet takes."""

from collections.abc import Callable
from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.ops import image_colours


def _between(low: float, high: float) -> float:
    """A random number in a range, computed in float32 as by C++'s std::uniform_real_distribution."""
    start, end = numpy.float32(low), numpy.float32(high)
    return float(STREAM.uniform((1,))[0] * (end - start) + start)


def _with(result: torch.Tensor, x: Any, others: tuple[Any, ...]) -> Any:
    image = wrap_like(x, result)
    return (image, *others) if others else image


class _RandomFactor(HybridBlock):
    """Changes an image by a random factor from `1 - amount` (at least 0) to `1 + amount`."""

    _change: Callable[[torch.Tensor, float], torch.Tensor]

    def __init__(self, amount: float) -> None:
        super().__init__()
        self._range = max(0, 1 - amount), 1 + amount

    def forward(self, x: Any, *args: Any) -> Any:
        return _with(type(self)._change(plain(x), _between(*self._range)), x, args)


class RandomBrightness(_RandomFactor):
    """Multiplies the image with a random number between `1 - brightness` and `1 + brightness`."""

    _change = staticmethod(image_colours.brightness)

    def __init__(self, brightness: float) -> None:
        super().__init__(brightness)


class RandomContrast(_RandomFactor):
    """Changes the contrast by a factor between `1 - contrast` and `1 + contrast`."""

    _change = staticmethod(image_colours.contrast)

    def __init__(self, contrast: float) -> None:
        super().__init__(contrast)


class RandomSaturation(_RandomFactor):
    """Changes the saturation by a factor between `1 - saturation` and `1 + saturation`."""

    _change = staticmethod(image_colours.saturation)

    def __init__(self, saturation: float) -> None:
        super().__init__(saturation)


class RandomHue(_RandomFactor):
    """Turns the hue by `1 - hue` to `1 + hue` full turns."""

    _change = staticmethod(image_colours.hue)

    def __init__(self, hue: float) -> None:
        super().__init__(hue)


class RandomColorJitter(HybridBlock):
    """Changes brightness, contrast, saturation and hue by random amounts, in a random order.

    >>> from leafwise_gluon import np
    >>> from leafwise_gluon.data.vision import transforms
    >>> image = np.full((4, 6, 3), 128, dtype="uint8")
    >>> changed = transforms.RandomColorJitter(brightness=0.5, hue=0.1)(image)
    >>> changed.shape, changed.dtype
    ((4, 6, 3), dtype('uint8'))
    """

    def __init__(self, brightness: float = 0, contrast: float = 0, saturation: float = 0, hue: float = 0) -> None:
        super().__init__()
        self._amounts = (brightness, contrast, saturation, hue)

    def forward(self, x: Any, *args: Any) -> Any:
        if max(self._amounts) <= 0:
            raise refusal("RandomColorJitter without amounts, which MXNet leaves undefined", "leave the transform out")
        image = plain(x)
        changes = (image_colours.brightness, image_colours.contrast, image_colours.saturation, image_colours.hue)
        for number in _shuffled_four():
            amount = self._amounts[number]
            if amount > 0:
                middle = 0.0 if changes[number] is image_colours.hue else 1.0
                image = changes[number](image, float(numpy.float32(middle + _between(-amount, amount))))
        return _with(image, x, args)


def _shuffled_four() -> list[int]:
    """0 to 3 in a random order, by C++'s std::shuffle. In MXNet 2.x, it draws one number for the last two exchanges."""
    order = [0, 1, 2, 3]
    if is_v1():
        others = [int(number) for number in STREAM.below(numpy.array([2, 3, 4]))]
    else:
        second, both = (int(number) for number in STREAM.below(numpy.array([2, 12])))
        others = [second, both // 4, both % 4]
    for place, other in enumerate(others, start=1):
        order[place], order[other] = order[other], order[place]
    return order


class RandomLighting(HybridBlock):
    """Adds a random colour, as for AlexNet; `alpha` is the standard deviation of its parts."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self._alpha = alpha

    def forward(self, x: Any, *args: Any) -> Any:
        weights = STREAM.normal((3,)) * numpy.float32(self._alpha)
        return _with(image_colours.lighting(plain(x), weights.tolist()), x, args)


class RandomGray(HybridBlock):
    """Turns some images into shades of grey, as float32; `p` is the probability. Of MXNet 2.x.

    As in MXNet, each channel is the sum of all three, times that channel's own share of grey.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Any, *args: Any) -> Any:
        image = plain(x).to(torch.float32)
        if image.shape[-1] != 3:
            raise MXNetError(f"RandomGray: expected an image with 3 channels, not {tuple(image.shape)}")
        stays = self.p < float(STREAM.uniform((1,))[0])
        shares = torch.tensor([[0.2989, 0.5870, 0.114]] * 3)
        return _with(image.clone() if stays else image @ shares, x, args)
