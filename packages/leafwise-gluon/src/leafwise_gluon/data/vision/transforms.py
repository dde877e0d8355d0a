"""Transforms of images that need no image library."""

import random as python_random
from typing import Any

import torch

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.block import Block, HybridBlock
from leafwise_gluon.class_names import shown_as
from leafwise_gluon.data.vision.colours import (
    RandomBrightness,
    RandomColorJitter,
    RandomContrast,
    RandomGray,
    RandomHue,
    RandomLighting,
    RandomSaturation,
)
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.nn.containers import HybridSequential, Sequential
from leafwise_gluon.np import random as np_random
from leafwise_gluon.ops import crops, images

__all__ = [
    "Cast",
    "CenterCrop",
    "Compose",
    "CropResize",
    "HybridCompose",
    "Normalize",
    "RandomApply",
    "RandomBrightness",
    "RandomColorJitter",
    "RandomContrast",
    "RandomCrop",
    "RandomFlipLeftRight",
    "RandomFlipTopBottom",
    "RandomGray",
    "RandomHue",
    "RandomLighting",
    "RandomResizedCrop",
    "RandomSaturation",
    "Resize",
    "ToTensor",
]


class Compose(Sequential):
    """Transforms in a row. Neighbouring HybridBlocks are put into one HybridSequential, as in MXNet.

    >>> from leafwise_gluon import np
    >>> from leafwise_gluon.data.vision import transforms
    >>> image = np.full((4, 6, 3), 255, dtype="uint8")
    >>> prepare = transforms.Compose([transforms.CenterCrop(2), transforms.ToTensor(), transforms.Normalize(0.5, 0.25)])
    >>> prepare(image).shape, float(prepare(image).max())
    ((3, 2, 2), 2.0)
    """

    def __init__(self, transforms: list[Any]) -> None:
        super().__init__()
        group: list[Any] = []
        for transform in [*transforms, None]:
            if isinstance(transform, HybridBlock):
                group.append(transform)
                continue
            if len(group) > 1:
                together = HybridSequential()
                together.add(*group)
                self.add(together)
            elif group:
                self.add(group[0])
            group = []
            if transform is not None:
                self.add(transform)


class HybridCompose(HybridSequential):
    """Transforms in a row, all of them HybridBlocks."""

    def __init__(self, transforms: list[Any]) -> None:
        super().__init__()
        for transform in transforms:
            if not isinstance(transform, HybridBlock):
                raise ValueError(f"{transform} is not a HybridBlock, try use `Compose` instead")
            self.add(transform)


def _with(result: Any, others: tuple[Any, ...]) -> Any:
    """The transformed image, together with what came with it."""
    return (result, *others) if others else result


class Cast(HybridBlock):
    """Another dtype. In MXNet 2.x, the result is a tuple with one array for each argument."""

    def __init__(self, dtype: Any = "float32") -> None:
        super().__init__()
        self._dtype = dtype

    def forward(self, *args: Any) -> Any:
        dtype = torch_dtype(self._dtype)
        results = tuple(wrap_like(x, plain(x).to(dtype, copy=True)) for x in args)
        return results[0] if is_v1() and len(results) == 1 else results


class ToTensor(HybridBlock):
    """Channels first, and float32 numbers from 0 to 1 in place of 0 to 255."""

    def forward(self, x: Any, *args: Any) -> Any:
        return _with(wrap_like(x, images.to_tensor(plain(x))), args)


class Normalize(HybridBlock):
    """Subtracts `mean` and divides by `std`, given for all channels or for each."""

    def __init__(self, mean: Any = 0.0, std: Any = 1.0) -> None:
        super().__init__()
        self._mean, self._std = mean, std

    def forward(self, x: Any, *args: Any) -> Any:
        return _with(wrap_like(x, images.normalize(plain(x), self._mean, self._std)), args)


@shown_as("Resize")
class ResizeImage(HybridBlock):
    """Another size: (width, height), or one number."""

    def __init__(self, size: Any, keep_ratio: bool = False, interpolation: int = 1) -> None:
        super().__init__()
        self._size, self._keep, self._interpolation = size, keep_ratio, interpolation

    def forward(self, x: Any, *args: Any) -> Any:
        return _with(wrap_like(x, images.resize(plain(x), self._size, self._keep, self._interpolation)), args)


Resize = ResizeImage


class CropResize(HybridBlock):
    """The part of the image at (x, y), in another size if `size` is given."""

    def __init__(self, x: int, y: int, width: int, height: int, size: Any = None, interpolation: Any = None) -> None:
        super().__init__()
        self._part, self._size, self._interpolation = (x, y, width, height), size, interpolation

    def forward(self, x: Any, *args: Any) -> Any:
        part = images.crop(plain(x), *self._part)
        if self._size:
            part = images.resize(part, self._size, False, 1 if self._interpolation is None else self._interpolation)
        return _with(wrap_like(x, part), args)


def _both(size: Any) -> tuple[int, int]:
    return (size[0], size[1]) if isinstance(size, list | tuple) else (size, size)


class CenterCrop(HybridBlock):
    """The middle of the image, (width, height) pixels."""

    def __init__(self, size: Any, interpolation: int = 1) -> None:
        super().__init__()
        self._size, self._interpolation = _both(size), interpolation

    def forward(self, x: Any, *args: Any) -> Any:
        if not is_v1():
            np_random.uniform(size=2)  # MXNet 2.x takes the middle as a random place, and so moves on the random stream
        part = images.crop_somewhere(plain(x), (0.5, 0.5), *self._size, self._interpolation)
        return _with(wrap_like(x, part), args)


class RandomCrop(HybridBlock):
    """A part of the image, (width, height) pixels, at a random place. Before, `pad` pixels are added on each side."""

    def __init__(self, size: Any, pad: Any = None, pad_value: float = 0, interpolation: int = 1) -> None:
        super().__init__()
        self._size, self._pad_value, self._interpolation = _both(size), pad_value, interpolation
        assert pad is None or isinstance(pad, int) or len(pad) >= 4
        self._pad = (pad, pad, pad, pad) if isinstance(pad, int) else pad

    def forward(self, x: Any, *args: Any) -> Any:
        image = plain(x)
        if self._pad:
            top, bottom, left, right = self._pad[:4]
            image = torch.nn.functional.pad(image, (0, 0, left, right, top, bottom), value=self._pad_value)
        where = np_random.uniform(size=2).asnumpy().tolist()
        return _with(wrap_like(x, images.crop_somewhere(image, where, *self._size, self._interpolation)), args)


def _flips(p: float) -> bool:
    """Whether to mirror an image, with the random numbers that MXNet takes. In 2.x it compares `p` with a normally
    distributed number, so that 0.5 means 69 % of the images."""
    if is_v1():
        return bool(np_random.uniform(size=2).asnumpy()[1] >= 0.5)
    return bool(np_random.normal(size=1).asnumpy()[0] < p)


class RandomFlipLeftRight(HybridBlock):
    """Mirrors some images from left to right. `p` is an argument of MXNet 2.x; there, 1 means always and 0 never."""

    axis = -2

    def __init__(self, p: float | None = None) -> None:
        super().__init__()
        if is_v1() and p is not None:
            raise TypeError(f"{type(self).__name__} has no argument p in MXNet 1.x: it mirrors half of the images")
        self.p = 0.5 if p is None else p

    def forward(self, x: Any, *args: Any) -> Any:
        if self.p <= 0:
            return _with(x, args)
        image = plain(x)
        mirrored = self.p >= 1 or _flips(self.p)
        return _with(wrap_like(x, images.flip(image, self.axis) if mirrored else image.clone()), args)


class RandomFlipTopBottom(RandomFlipLeftRight):
    """Mirrors some images from top to bottom."""

    axis = -3


class RandomResizedCrop(HybridBlock):
    """A random part of the image, in another size: (width, height), or one number.

    `scale` is the range of the part's share of the area, `ratio` that of its width divided by its height. MXNet 1.x
    takes the random numbers of Python's `random`, MXNet 2.x those of `np.random`.

    >>> from leafwise_gluon import np
    >>> from leafwise_gluon.data.vision import transforms
    >>> transforms.RandomResizedCrop(8, scale=(0.5, 1))(np.zeros((12, 20, 3))).shape
    (8, 8, 3)
    """

    def __init__(
        self, size: Any, scale: Any = (0.08, 1.0), ratio: Any = (3.0 / 4.0, 4.0 / 3.0), interpolation: int = 1
    ) -> None:
        super().__init__()
        self._size, self._interpolation = _both(size), interpolation
        self._scale, self._ratio = (scale if isinstance(scale, list | tuple) else (scale, 1.0)), ratio

    def forward(self, x: Any, *args: Any) -> Any:
        image = plain(x)
        choose = crops.chosen_by_python if is_v1() else crops.chosen_by_stream
        part = choose(image.shape[-2], image.shape[-3], self._scale, self._ratio)
        if part is None and is_v1():
            return _with(wrap_like(x, images.crop_somewhere(image, (0.5, 0.5), *self._size, self._interpolation)), args)
        if part is None:
            part = crops.middle(image.shape[-2], image.shape[-3], *self._size)
        cropped = images.crop(image, *part)
        if part[2:] != self._size:
            cropped = images.resize(cropped, self._size, False, self._interpolation)
        return _with(wrap_like(x, cropped), args)


class RandomApply(Sequential):
    """Applies transforms to an image with probability `p`."""

    def __init__(self, transforms: Block, p: float = 0.5) -> None:
        super().__init__()
        self.transforms, self.p = transforms, p

    def forward(self, x: Any, *args: Any) -> Any:
        return x if self.p < python_random.random() else _with(self.transforms(x), args)
