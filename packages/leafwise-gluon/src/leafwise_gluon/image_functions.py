"""The functions of `mxnet.nd.image` and `mxnet.npx.image` that draw no random numbers."""

from typing import Any

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.ops import images

__all__ = ["crop", "flip_left_right", "flip_top_bottom", "normalize", "resize", "to_tensor"]


def to_tensor(data: Any) -> Any:
    """Channels first, and float32 numbers from 0 to 1 in place of 0 to 255."""
    return wrap_like(data, images.to_tensor(plain(data)))


def normalize(data: Any, mean: Any = 0.0, std: Any = 1.0) -> Any:
    """Subtracts `mean` and divides by `std`, given for all channels or for each."""
    return wrap_like(data, images.normalize(plain(data), mean, std))


def resize(data: Any, size: Any = (), keep_ratio: bool = False, interp: int = 1) -> Any:
    """The image in another size: (width, height), or one number."""
    return wrap_like(data, images.resize(plain(data), size, keep_ratio, interp))


def crop(data: Any, x: int, y: int, width: int, height: int) -> Any:
    """The part of the image whose upper left corner is at (x, y)."""
    return wrap_like(data, images.crop(plain(data), x, y, width, height))


def flip_left_right(data: Any) -> Any:
    return wrap_like(data, images.flip(plain(data), -2))


def flip_top_bottom(data: Any) -> Any:
    return wrap_like(data, images.flip(plain(data), -3))
