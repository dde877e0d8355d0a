"""Convolutions and transposed convolutions."""

from typing import Any, ClassVar

from leafwise.core.roles.role_table import add_roles
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.base import refusal
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.nn.basic_layers import activation_of
from leafwise_gluon.ops import neural_linear
from leafwise_gluon.ops.neural_linear import CHANNELS_FIRST, CHANNELS_LAST


def as_sizes(value: Any, dimensions: int) -> Any:
    """A number as one for each dimension; anything else unchanged."""
    return (value,) * dimensions if isinstance(value, int | float) else value


def check_layout(layout: str, dimensions: int, last_too: bool) -> None:
    layouts = (CHANNELS_FIRST[dimensions], CHANNELS_LAST[dimensions]) if last_too else (CHANNELS_FIRST[dimensions],)
    assert layout in layouts, f"Only supports {' and '.join(map(repr, layouts))} layout for now"


class ConvLayer(HybridBlock):
    """What convolutions have in common. The number of input channels is inferred from the first input; MXNet 2.x does
    so even if `in_channels` is given."""

    _dimensions: ClassVar[int] = 2
    _is_transposed: ClassVar[bool] = False

    def _set_up(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any,
        padding: Any,
        dilation: Any,
        groups: int,
        layout: str,
        activation: str | None,
        use_bias: bool,
        weight_initializer: Any,
        bias_initializer: Any,
        in_channels: int,
        output_padding: Any = None,
    ) -> None:
        dimensions = self._dimensions
        check_layout(layout, dimensions, last_too=dimensions > 1)
        kernel = as_sizes(kernel_size, dimensions)
        assert len(kernel) == dimensions, f"kernel_size must be a number or a list of {dimensions} ints"
        self._channels, self._in_channels, self._groups, self._layout = channels, in_channels, groups, layout
        self._kernel_size = kernel
        self._kwargs = {
            "kernel": kernel,
            "stride": as_sizes(strides, dimensions),
            "dilate": as_sizes(dilation, dimensions),
            "pad": as_sizes(padding, dimensions),
            "num_filter": channels,
            "num_group": groups,
            "no_bias": not use_bias,
            "layout": layout,
        }
        if self._is_transposed:
            extra = as_sizes(output_padding, dimensions)
            assert len(extra) == dimensions, f"output_padding must be a number or a list of {dimensions} ints"
            self._kwargs["adj"] = self.outpad = extra
        known = in_channels if self._scope is not None else 0
        self.weight = self.own_parameter(
            "weight", shape=self._weight_shape(known), init=weight_initializer, allow_deferred_init=True
        )
        self.bias = (
            self.own_parameter("bias", shape=(channels,), init=bias_initializer, allow_deferred_init=True)
            if use_bias
            else None
        )
        self.act = activation_of(self, activation)

    def _weight_shape(self, in_channels: int) -> tuple[int, ...]:
        """The shape in the layout: N and C stand for output and input channels, or in a transposed one the reverse."""
        if self._is_transposed:
            first, second = in_channels, self._channels // self._groups
        else:
            first, second = self._channels, in_channels // self._groups
        space = iter(self._kernel_size)
        return tuple(first if axis == "N" else second if axis == "C" else next(space) for axis in self._layout)

    def _alias(self) -> str:
        return "conv"

    def infer_shape(self, x: Any) -> None:
        self.weight.shape = self._weight_shape(x.shape[self._layout.find("C")])

    def forward(self, x: Any) -> Any:
        self.finish_deferred_init(x)
        weight, bias = self.tensor_for("weight", x), self.tensor_for("bias", x)
        assert weight is not None
        operation = neural_linear.deconvolution if self._is_transposed else neural_linear.convolution
        y = wrap_like(x, operation(plain(x), weight, bias, **self._kwargs))
        return y if self.act is None else self.act(y)

    def __repr__(self) -> str:
        facts, none = self._kwargs, (0,) * self._dimensions
        first, second, *_ = self.weight.shape or (None, None)
        sizes = [str(second or None), str(first)]
        if self._is_transposed and self._scope is None:
            sizes.reverse()
        parts = [" -> ".join(sizes), f"kernel_size={facts['kernel']}", f"stride={facts['stride']}"]
        if facts["pad"] != none:
            parts.append(f"padding={facts['pad']}")
        if facts["dilate"] != (1,) * self._dimensions:
            parts.append(f"dilation={facts['dilate']}")
        if self._groups != 1:
            parts.append(f"groups={self._groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.act is not None:
            parts.append(repr(self.act))
        return f"{type(self).__name__}({', '.join(parts)})"


class TransposedConvLayer(ConvLayer):
    """What transposed convolutions have in common."""

    _is_transposed = True


class Conv1D(ConvLayer):
    """A convolution over sequences of shape (batch, channels, width)."""

    _dimensions = 1

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        layout: str = "NCW",
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(
            channels, kernel_size, strides, padding, dilation, groups, layout, activation, use_bias,
            weight_initializer, bias_initializer, in_channels,
        )  # fmt: skip


class Conv2D(ConvLayer):
    """A convolution over images of shape (batch, channels, height, width).

    >>> from leafwise_gluon import nn, np
    >>> layer = nn.Conv2D(8, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> layer(np.ones((1, 3, 6, 6))).shape
    (1, 8, 6, 6)
    """

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: Any = (0, 0),
        dilation: Any = (1, 1),
        groups: int = 1,
        layout: str = "NCHW",
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(
            channels, kernel_size, strides, padding, dilation, groups, layout, activation, use_bias,
            weight_initializer, bias_initializer, in_channels,
        )  # fmt: skip


class Conv3D(ConvLayer):
    """A convolution over volumes of shape (batch, channels, depth, height, width)."""

    _dimensions = 3

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any = (1, 1, 1),
        padding: Any = (0, 0, 0),
        dilation: Any = (1, 1, 1),
        groups: int = 1,
        layout: str = "NCDHW",
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(
            channels, kernel_size, strides, padding, dilation, groups, layout, activation, use_bias,
            weight_initializer, bias_initializer, in_channels,
        )  # fmt: skip


class Conv1DTranspose(TransposedConvLayer):
    """A transposed convolution over sequences."""

    _dimensions = 1

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        layout: str = "NCW",
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(
            channels, kernel_size, strides, padding, dilation, groups, layout, activation, use_bias,
            weight_initializer, bias_initializer, in_channels, output_padding,
        )  # fmt: skip


class Conv2DTranspose(TransposedConvLayer):
    """A transposed convolution over images."""

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any = (1, 1),
        padding: Any = (0, 0),
        output_padding: Any = (0, 0),
        dilation: Any = (1, 1),
        groups: int = 1,
        layout: str = "NCHW",
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(
            channels, kernel_size, strides, padding, dilation, groups, layout, activation, use_bias,
            weight_initializer, bias_initializer, in_channels, output_padding,
        )  # fmt: skip


class Conv3DTranspose(TransposedConvLayer):
    """A transposed convolution over volumes."""

    _dimensions = 3

    def __init__(
        self,
        channels: int,
        kernel_size: Any,
        strides: Any = (1, 1, 1),
        padding: Any = (0, 0, 0),
        output_padding: Any = (0, 0, 0),
        dilation: Any = (1, 1, 1),
        groups: int = 1,
        layout: str = "NCDHW",
        activation: str | None = None,
        use_bias: bool = True,
        weight_initializer: Any = None,
        bias_initializer: Any = "zeros",
        in_channels: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._set_up(
            channels, kernel_size, strides, padding, dilation, groups, layout, activation, use_bias,
            weight_initializer, bias_initializer, in_channels, output_padding,
        )  # fmt: skip


class DeformableConvolution(HybridBlock):
    """Not supported."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise refusal(f"nn.{type(self).__name__}", "use torchvision.ops.DeformConv2d")


class ModulatedDeformableConvolution(DeformableConvolution):
    """Not supported."""


_BIAS = ("bias", ("out",))
add_roles(ConvLayer, {"weight": ("conv.weight", ("out", "in", "*space")), "bias": _BIAS})
add_roles(TransposedConvLayer, {"weight": ("conv_transpose.weight", ("in", "out", "*space")), "bias": _BIAS})
