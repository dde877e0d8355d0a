"""Layers that pad images, or move channels into space."""

import math
from typing import Any

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.base import MXNetError
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.nn.conv_layers import as_sizes
from leafwise_gluon.ops.legacy import shaping


class ReflectionPad2D(HybridBlock):
    """Pads images by reflecting them at their border."""

    def __init__(self, padding: Any = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._padding = (0, 0, 0, 0, *[padding] * 4) if isinstance(padding, int) else padding
        assert len(self._padding) == 8

    def forward(self, x: Any) -> Any:
        return wrap_like(x, shaping.pad(plain(x), "reflect", self._padding))


class PixelShuffleLayer(HybridBlock):
    """Enlarges space by a factor in each dimension, and takes the elements for it from the channels."""

    def _set_up(self, factor: Any, dimensions: int) -> None:
        self._factors = tuple(int(size) for size in as_sizes(factor, dimensions))
        assert len(self._factors) == dimensions, f"wrong length {len(self._factors)}"

    def forward(self, x: Any) -> Any:
        data, factors = plain(x), self._factors
        batch, channels, *space = data.shape
        if channels % math.prod(factors):
            raise MXNetError(f"{type(self).__name__}: {channels} channels cannot be divided by factors {factors}")
        dimensions = len(factors)
        split = data.reshape(batch, channels // math.prod(factors), *factors, *space)
        pairs = [axis for number in range(dimensions) for axis in (2 + dimensions + number, 2 + number)]
        moved = split.permute(0, 1, *pairs)
        sizes = [size * factor for size, factor in zip(space, factors, strict=True)]
        return wrap_like(x, moved.reshape(batch, split.shape[1], *sizes))

    def __repr__(self) -> str:
        shown = self._factors[0] if len(self._factors) == 1 else self._factors
        return f"{type(self).__name__}({shown})"


class PixelShuffle1D(PixelShuffleLayer):
    """Moves channels into the width of sequences."""

    def __init__(self, factor: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(factor, 1)


class PixelShuffle2D(PixelShuffleLayer):
    """Moves channels into the height and width of images."""

    def __init__(self, factor: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(factor, 2)


class PixelShuffle3D(PixelShuffleLayer):
    """Moves channels into the depth, height and width of volumes."""

    def __init__(self, factor: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(factor, 3)
