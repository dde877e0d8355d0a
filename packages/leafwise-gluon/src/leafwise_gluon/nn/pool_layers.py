"""Pooling layers."""

from typing import Any, ClassVar

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.nn.conv_layers import as_sizes
from leafwise_gluon.ops import neural_pooling
from leafwise_gluon.ops.neural_linear import CHANNELS_FIRST, CHANNELS_LAST


class PoolLayer(HybridBlock):
    """What pooling layers have in common."""

    _dimensions: ClassVar[int] = 2
    _pool_type: ClassVar[str] = "max"
    _is_global: ClassVar[bool] = False

    def _set_up(
        self,
        layout: str,
        pool_size: Any = 1,
        strides: Any = None,
        padding: Any = 0,
        ceil_mode: bool = True,
        count_include_pad: bool | None = None,
    ) -> None:
        dimensions = self._dimensions
        layouts = (CHANNELS_FIRST[dimensions], CHANNELS_LAST[dimensions])
        assert layout in layouts, f"Only {' and '.join(layouts)} layouts are valid for {dimensions}D Pooling"
        kernel = as_sizes(pool_size, dimensions)
        assert len(kernel) == dimensions, f"pool_size must be a number or a list of {dimensions} ints"
        self._kwargs = {
            "kernel": kernel,
            "stride": as_sizes(kernel if strides is None else strides, dimensions),
            "pad": as_sizes(padding, dimensions),
            "global_pool": self._is_global,
            "pool_type": self._pool_type,
            "layout": layout,
            "pooling_convention": "full" if ceil_mode else "valid",
        }
        if count_include_pad is not None:
            self._kwargs["count_include_pad"] = count_include_pad

    def _alias(self) -> str:
        return "pool"

    def forward(self, x: Any) -> Any:
        return wrap_like(x, neural_pooling.pooling(plain(x), **self._kwargs))

    def __repr__(self) -> str:
        facts = self._kwargs
        return (
            f"{type(self).__name__}(size={facts['kernel']}, stride={facts['stride']}, padding={facts['pad']}, "
            f"ceil_mode={facts['pooling_convention'] == 'full'}, global_pool={facts['global_pool']}, "
            f"pool_type={facts['pool_type']}, layout={facts['layout']})"
        )


class MaxPool1D(PoolLayer):
    """The maximum of each window of sequences."""

    _dimensions = 1

    def __init__(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: Any = 0,
        layout: str = "NCW",
        ceil_mode: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(layout, pool_size, strides, padding, ceil_mode)


class MaxPool2D(PoolLayer):
    """The maximum of each window of images."""

    def __init__(
        self,
        pool_size: Any = (2, 2),
        strides: Any = None,
        padding: Any = 0,
        layout: str = "NCHW",
        ceil_mode: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(layout, pool_size, strides, padding, ceil_mode)


class MaxPool3D(PoolLayer):
    """The maximum of each window of volumes."""

    _dimensions = 3

    def __init__(
        self,
        pool_size: Any = (2, 2, 2),
        strides: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        layout: str = "NCDHW",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(layout, pool_size, strides, padding, ceil_mode)


class AvgPool1D(PoolLayer):
    """The average of each window of sequences."""

    _dimensions = 1
    _pool_type = "avg"

    def __init__(
        self,
        pool_size: Any = 2,
        strides: Any = None,
        padding: Any = 0,
        layout: str = "NCW",
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(layout, pool_size, strides, padding, ceil_mode, count_include_pad)


class AvgPool2D(PoolLayer):
    """The average of each window of images."""

    _pool_type = "avg"

    def __init__(
        self,
        pool_size: Any = (2, 2),
        strides: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        layout: str = "NCHW",
        count_include_pad: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(layout, pool_size, strides, padding, ceil_mode, count_include_pad)


class AvgPool3D(PoolLayer):
    """The average of each window of volumes."""

    _dimensions = 3
    _pool_type = "avg"

    def __init__(
        self,
        pool_size: Any = (2, 2, 2),
        strides: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        layout: str = "NCDHW",
        count_include_pad: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(layout, pool_size, strides, padding, ceil_mode, count_include_pad)


class GlobalMaxPool1D(PoolLayer):
    """The maximum of each channel of sequences."""

    _dimensions = 1
    _is_global = True

    def __init__(self, layout: str = "NCW", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(layout)


class GlobalMaxPool2D(PoolLayer):
    """The maximum of each channel of images."""

    _is_global = True

    def __init__(self, layout: str = "NCHW", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(layout)


class GlobalMaxPool3D(PoolLayer):
    """The maximum of each channel of volumes."""

    _dimensions = 3
    _is_global = True

    def __init__(self, layout: str = "NCDHW", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(layout)


class GlobalAvgPool1D(PoolLayer):
    """The average of each channel of sequences."""

    _dimensions = 1
    _pool_type = "avg"
    _is_global = True

    def __init__(self, layout: str = "NCW", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(layout)


class GlobalAvgPool2D(PoolLayer):
    """The average of each channel of images."""

    _pool_type = "avg"
    _is_global = True

    def __init__(self, layout: str = "NCHW", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(layout)


class GlobalAvgPool3D(PoolLayer):
    """The average of each channel of volumes."""

    _dimensions = 3
    _pool_type = "avg"
    _is_global = True

    def __init__(self, layout: str = "NCDHW", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._set_up(layout)
