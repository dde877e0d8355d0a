"""Cells whose products are convolutions, over one to three spatial axes."""

from typing import Any, ClassVar

import torch

from leafwise.core.roles.role_table import add_roles
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.ops.neural_linear import CHANNELS_FIRST, convolution
from leafwise_gluon.rnn.basic_cells import activated
from leafwise_gluon.rnn.recurrent_cell import HybridRecurrentCell
from leafwise_gluon.shapes import shape_is_known

__all__ = [
    "Conv1DGRUCell",
    "Conv1DLSTMCell",
    "Conv1DRNNCell",
    "Conv2DGRUCell",
    "Conv2DLSTMCell",
    "Conv2DRNNCell",
    "Conv3DGRUCell",
    "Conv3DLSTMCell",
    "Conv3DRNNCell",
]


class ConvolutionalCell(HybridRecurrentCell):
    """What these cells have in common. `input_shape` is the shape of one input without the batch; convolutions of the
    state keep its size."""

    gates: ClassVar[int]
    axes: ClassVar[int]

    def __init__(
        self,
        input_shape: Any,
        hidden_channels: int,
        i2h_kernel: Any,
        h2h_kernel: Any,
        i2h_pad: Any = 0,
        i2h_dilate: Any = 1,
        h2h_dilate: Any = 1,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        conv_layout: str | None = None,
        activation: Any = "tanh",
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self._hidden_channels, self._activation = hidden_channels, activation
        self._conv_layout = conv_layout or CHANNELS_FIRST[self.axes]
        self._channel_axis = self._conv_layout.find("C")
        kernels, pads, dilations = (self._spatial(value) for value in (i2h_kernel, i2h_pad, i2h_dilate))
        self._i2h: dict[str, Any] = {"kernel": kernels, "pad": pads, "dilate": dilations}
        state_kernels, state_dilations = self._spatial(h2h_kernel), self._spatial(h2h_dilate)
        assert all(size % 2 == 1 for size in state_kernels), f"Only support odd number, get h2h_kernel= {h2h_kernel}"
        kept = tuple(step * (size - 1) // 2 for step, size in zip(state_dilations, state_kernels, strict=True))
        self._h2h: dict[str, Any] = {"kernel": state_kernels, "pad": kept, "dilate": state_dilations}
        sizes = input_shape[1:] if self._channel_axis == 1 else input_shape[:-1]
        outputs = tuple(
            size + 2 * pad - dilation * (kernel - 1) if size else 0
            for size, kernel, pad, dilation in zip(sizes, kernels, pads, dilations, strict=True)
        )
        self._state_shape = self._with_channels(hidden_channels, outputs)
        rows = self.gates * hidden_channels
        own = {
            "i2h_weight": ((rows, *self._with_channels(input_shape[self._channel_axis - 1], kernels))),
            "h2h_weight": ((rows, *self._with_channels(hidden_channels, state_kernels))),
            "i2h_bias": (rows,),
            "h2h_bias": (rows,),
        }
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        for (name, shape), init in zip(own.items(), initializers, strict=True):
            setattr(self, name, self.own_parameter(name, shape=shape, init=init, allow_deferred_init=True))

    def _spatial(self, value: Any) -> tuple[int, ...]:
        assert isinstance(value, int) or len(value) == self.axes, (
            f"For {self.axes}D convolution, the convolution settings can only be either int or list/tuple of length "
            f"{self.axes}"
        )
        return (value,) * self.axes if isinstance(value, int) else tuple(value)

    def _with_channels(self, channels: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (channels, *sizes) if self._channel_axis == 1 else (*sizes, channels)

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [{"shape": (batch_size, *self._state_shape), "__layout__": self._conv_layout}]

    def infer_shape(self, *args: Any) -> None:
        """From the input of a step; or as in MXNet 2.x from the position in a stack, and the input of the stack."""
        shape = self.i2h_weight.shape
        if not shape_is_known(shape):
            x = args[1] if isinstance(args[0], int) else args[0]
            channels = x.shape[-self.axes - 1 :][self._channel_axis - 1]
            sizes = shape[2:] if self._channel_axis == 1 else shape[1:-1]
            self.i2h_weight.shape = (shape[0], *self._with_channels(channels, sizes))

    def products(self, inputs: Any, states: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The convolutions of the input and of the state, for all gates."""
        self._counter += 1
        self.finish_deferred_init(inputs, states)
        results = []
        for name, data, options in (("i2h", inputs, self._i2h), ("h2h", states[0], self._h2h)):
            weight, bias = self.tensor_for(f"{name}_weight", inputs), self.tensor_for(f"{name}_bias", inputs)
            assert weight is not None
            rows = self.gates * self._hidden_channels
            results.append(convolution(plain(data), weight, bias, num_filter=rows, layout=self._conv_layout, **options))
        return results[0], results[1]

    def __repr__(self) -> str:
        shape = self.i2h_weight.shape
        channels = shape[1 if self._channel_axis == 1 else -1]
        mapping = f"{channels if channels else None} -> {shape[0]}"
        return f"{type(self).__name__}({mapping}, {self._activation}, {self._conv_layout})"


class ConvolutionalRNNCell(ConvolutionalCell):
    gates = 1

    def _alias(self) -> str:
        return "conv_rnn"

    def forward(self, inputs: Any, states: Any) -> Any:
        from_input, from_state = self.products(inputs, states)
        output = wrap_like(inputs, activated(from_input + from_state, self._activation, inputs))
        return output, [output]


class ConvolutionalLSTMCell(ConvolutionalCell):
    gates = 4

    def _alias(self) -> str:
        return "conv_lstm"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return super().state_info(batch_size) * 2

    def forward(self, inputs: Any, states: Any) -> Any:
        from_input, from_state = self.products(inputs, states)
        enter, forget, new, leave = (from_input + from_state).chunk(4, self._channel_axis)
        memory = torch.sigmoid(forget) * plain(states[1])
        memory = memory + torch.sigmoid(enter) * activated(new, self._activation, inputs)
        output = wrap_like(inputs, torch.sigmoid(leave) * activated(memory, self._activation, inputs))
        return output, [output, wrap_like(inputs, memory)]


class ConvolutionalGRUCell(ConvolutionalCell):
    gates = 3

    def _alias(self) -> str:
        return "conv_gru"

    def forward(self, inputs: Any, states: Any) -> Any:
        from_input, from_state = (product.chunk(3, self._channel_axis) for product in self.products(inputs, states))
        reset, update = (torch.sigmoid(from_input[gate] + from_state[gate]) for gate in (0, 1))
        new = activated(from_input[2] + reset * from_state[2], self._activation, inputs)
        output = wrap_like(inputs, (1 - update) * new + update * plain(states[0]))
        return output, [output]


class Conv1DRNNCell(ConvolutionalRNNCell):
    """An RNN cell over sequences of vectors of one spatial axis.

    >>> from leafwise_gluon import np, rnn
    >>> cell = rnn.Conv1DRNNCell((3, 8), hidden_channels=4, i2h_kernel=3, h2h_kernel=3, i2h_pad=1)
    >>> cell.initialize()
    >>> outputs, states = cell.unroll(2, [np.ones((1, 3, 8)), np.ones((1, 3, 8))])
    >>> outputs[0].shape
    (1, 4, 8)
    """

    axes = 1


class Conv2DRNNCell(ConvolutionalRNNCell):
    """An RNN cell over sequences of images."""

    axes = 2


class Conv3DRNNCell(ConvolutionalRNNCell):
    """An RNN cell over sequences of volumes."""

    axes = 3


class Conv1DLSTMCell(ConvolutionalLSTMCell):
    """An LSTM cell with one spatial axis."""

    axes = 1


class Conv2DLSTMCell(ConvolutionalLSTMCell):
    """An LSTM cell over sequences of images."""

    axes = 2


class Conv3DLSTMCell(ConvolutionalLSTMCell):
    """An LSTM cell over sequences of volumes."""

    axes = 3


class Conv1DGRUCell(ConvolutionalGRUCell):
    """A GRU cell with one spatial axis."""

    axes = 1


class Conv2DGRUCell(ConvolutionalGRUCell):
    """A GRU cell over sequences of images."""

    axes = 2


class Conv3DGRUCell(ConvolutionalGRUCell):
    """A GRU cell over sequences of volumes."""

    axes = 3


add_roles(ConvolutionalCell, {"*_weight": ("conv.weight", ("out", "in", "*space")), "*_bias": ("bias", ("out",))})
