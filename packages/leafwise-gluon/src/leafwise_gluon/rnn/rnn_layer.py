"""Layers over whole sequences: RNN, LSTM and GRU.

In MXNet 1.x a layer has a parameter for each weight, in 2.x one flat parameter.
"""

import re
from typing import Any

import torch

from leafwise.core.roles.role_table import add_roles
from leafwise_gluon.arrays.autograd_state import STATE
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.base import MXNetError
from leafwise_gluon.block import HybridBlock
from leafwise_gluon.init import RNNFused
from leafwise_gluon.ops.recurrent import GATES, RANK_MESSAGE, Sizes, check_options, run_layers, split_parameters
from leafwise_gluon.rnn.basic_cells import GRUCell, LSTMCell, RNNCell
from leafwise_gluon.rnn.bidirectional import BidirectionalCell
from leafwise_gluon.rnn.modifiers import DropoutCell
from leafwise_gluon.rnn.recurrent_cell import initial_states
from leafwise_gluon.rnn.sequences import is_array
from leafwise_gluon.rnn.stacks import HybridSequentialRNNCell

_WEIGHT = re.compile(r"(?P<side>[lr])(?P<layer>\d+)_(?P<part>\w+)")


class RecurrentLayer(HybridBlock):
    """What RNN, LSTM and GRU have in common."""

    state_count = 1

    def __init__(
        self,
        mode: str,
        hidden_size: int,
        num_layers: int,
        layout: str,
        dropout: float,
        bidirectional: bool,
        input_size: int,
        initializers: dict[str, Any],
        dtype: Any,
        use_sequence_length: bool,
        projection_size: int | None,
        prefix: str | None,
        params: Any,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        assert layout in ("TNC", "NTC"), f"Invalid layout {layout}; must be one of ['TNC' or 'NTC']"
        check_options(use_sequence_length, None, None)
        self._mode, self._layout, self._dropout, self._dtype = mode, layout, dropout, dtype
        self._hidden_size, self._num_layers, self._input_size = hidden_size, num_layers, input_size
        self._dir, self._projection_size = 2 if bidirectional else 1, projection_size or None
        self._initializers = initializers
        if self._scope is None:
            fused = RNNFused(mode, num_layers, hidden_size, bidirectional, self._projection_size, **initializers)
            self.rnn_param = self.own_parameter(
                "rnn_param", shape=(-1,), init=fused, allow_deferred_init=True, dtype=dtype
            )
            return
        shapes = dict(self._sizes(input_size).weights())
        for name in sorted(shapes, key=_place):
            init = initializers[f"{_parts(name)[2]}_initializer"]
            own = self.own_parameter(name, shape=shapes[name], init=init, allow_deferred_init=True, dtype=dtype)
            setattr(self, name, own)

    def _sizes(self, inputs: int) -> Sizes:
        return Sizes(self._mode, inputs, self._hidden_size, self._num_layers, self._dir, self._projection_size)

    # -- parameters ----------------------------------------------------------------------------------------

    def own_path(self, name: str) -> str:
        if self._scope is None:
            return name
        side, layer, part = _parts(name)
        return f"_unfused.{layer}.{side}_cell.{part}" if self._dir == 2 else f"_unfused.{layer}.{part}"

    def cast(self, dtype: Any) -> None:
        super().cast(dtype)
        self._dtype = dtype

    def infer_shape(self, inputs: Any, *args: Any) -> None:
        assert len(inputs.shape) == 3, RANK_MESSAGE
        width = inputs.shape[2]
        if self._scope is not None:
            for side in "lr"[: self._dir]:
                weight = self._reg_params[f"{side}0_i2h_weight"]
                weight.shape = (GATES[self._mode] * self._hidden_size, width)
        else:
            self._input_size = width
            self.rnn_param.shape = (self._sizes(width).total(),)

    def _weights(self, inputs: Any) -> dict[str, torch.Tensor]:
        sizes = self._sizes(inputs.shape[2])
        if self._scope is None:
            flat = self.tensor_for("rnn_param", inputs)
            assert flat is not None
            return split_parameters(flat, sizes)
        weights: dict[str, Any] = {name: self.tensor_for(name, inputs) for name in self._reg_params}
        held, needed = sum(weight.numel() for weight in weights.values()), sizes.total()
        if held != needed:
            raise MXNetError(
                f"Shape inconsistent, Provided = [{held}], inferred shape=({needed},): the weights of "
                f"{self.name} do not fit an input of width {sizes.inputs}"
            )
        return weights

    # -- states --------------------------------------------------------------------------------------------

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """Shape, layout and dtype of each state."""
        layers = self._num_layers * self._dir
        widths = [self._projection_size or self._hidden_size, self._hidden_size][: self.state_count]
        return [{"shape": (layers, batch_size, width), "__layout__": "LNC", "dtype": self._dtype} for width in widths]

    def begin_state(self, batch_size: int = 0, func: Any = None, **kwargs: Any) -> list[Any]:
        """The states before the first step: zeros, or what `func(shape=...)` returns."""
        return initial_states(self.state_info(batch_size), func, kwargs)

    def _checked_states(self, inputs: Any, states: Any) -> list[torch.Tensor]:
        """The given states as tensors, or else zeros."""
        infos = self.state_info(inputs.shape[self._layout.find("N")])
        data = plain(inputs)
        if states is None:
            return [data.new_zeros(info["shape"]) for info in infos]
        given = [states] if is_array(states) else list(states)
        for state, info in zip(given, infos, strict=False):
            if tuple(state.shape) != info["shape"]:
                raise ValueError(f"Invalid recurrent state shape. Expecting {info['shape']}, got {tuple(state.shape)}.")
        if len(given) != len(infos):
            raise MXNetError(f"{type(self).__name__} needs {len(infos)} states, not {len(given)}")
        return [plain(state).to(data.device) for state in given]

    # -- forward -------------------------------------------------------------------------------------------

    def _call_compiled(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        """As MXNet's compiled graph, it gives the last states whenever its first call was with states."""
        if self._structure is None:
            self.__dict__["_gives_states"] = states is not None
        if states is None:
            states = [wrap_like(inputs, state) for state in self._checked_states(inputs, None)]
        given = (inputs, [states] if is_array(states) else states)
        output, last = super()._call_compiled(*given, *([] if sequence_length is None else [sequence_length]))
        return [output, last] if self._gives_states else output

    def forward(self, inputs: Any, states: Any = None, sequence_length: Any = None) -> Any:
        """The outputs; if states are given, also the last states."""
        if sequence_length is not None:
            check_options(True, None, None)
        self.finish_deferred_init(inputs)
        data = plain(inputs)
        if data.dim() != 3:
            raise MXNetError(f"{RANK_MESSAGE}, not {tuple(data.shape)}")
        given = self._checked_states(inputs, states)
        swaps = self._layout == "NTC"
        training = STATE.training if isinstance(inputs, ArrayValues) else self.training
        output, last = run_layers(
            data.transpose(0, 1) if swaps else data,
            self._weights(inputs),
            given,
            self._sizes(data.shape[2]),
            self._dropout if training else 0.0,
        )
        result = wrap_like(inputs, output.transpose(0, 1) if swaps else output)
        return result if states is None else (result, [wrap_like(inputs, state) for state in last])

    def _unfuse(self) -> HybridSequentialRNNCell:
        """In MXNet 1.x: the same layers as a stack of cells, which share the parameters."""
        assert not self._projection_size, "_unfuse does not support projection layer yet!"
        stack = HybridSequentialRNNCell(prefix=self.prefix, params=self.params)
        with stack.name_scope():
            width = self._input_size
            for layer in range(self._num_layers):
                cells = [self._cell(f"{side}{layer}_", width) for side in "lr"[: self._dir]]
                stack.add(BidirectionalCell(*cells) if self._dir == 2 else cells[0])
                if self._dropout > 0 and layer != self._num_layers - 1:
                    stack.add(DropoutCell(self._dropout))
                width = self._hidden_size * self._dir
        return stack

    def _cell(self, prefix: str, width: int) -> Any:
        initializers = {name: init for name, init in self._initializers.items() if not name.startswith("h2r")}
        options = {"input_size": width, "prefix": prefix, **initializers}
        if self._mode.startswith("rnn_"):
            return RNNCell(self._hidden_size, self._mode.removeprefix("rnn_"), **options)
        return (LSTMCell if self._mode == "lstm" else GRUCell)(self._hidden_size, **options)

    def __repr__(self) -> str:
        width = self._input_size if self._scope is None else self.l0_i2h_weight.shape[1]
        text = f"{type(self).__name__}({width or None} -> {self._hidden_size}, {self._layout}"
        if self._num_layers != 1:
            text += f", num_layers={self._num_layers}"
        if self._dropout:
            text += f", dropout={self._dropout}"
        return text + (", bidirectional)" if self._dir == 2 else ")")


def _parts(name: str) -> tuple[str, str, str]:
    """The direction, the layer and the rest of a name such as `l0_i2h_weight`."""
    match = _WEIGHT.fullmatch(name)
    assert match is not None
    return match["side"], match["layer"], match["part"]


def _place(name: str) -> tuple[int, str, int]:
    """Where a weight stands among those of a layer of MXNet 1.x: by layers, by directions, the projection at the end.
    The flat parameter of 2.x has all biases at its end."""
    side, layer, part = _parts(name)
    return int(layer), side, ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias", "h2r_weight").index(part)


def _initializers(
    i2h_weight: Any, h2h_weight: Any, i2h_bias: Any, h2h_bias: Any, h2r_weight: Any = None
) -> dict[str, Any]:
    return {
        "i2h_weight_initializer": i2h_weight,
        "h2h_weight_initializer": h2h_weight,
        "i2h_bias_initializer": i2h_bias,
        "h2h_bias_initializer": h2h_bias,
        "h2r_weight_initializer": h2r_weight,
    }


class RNN(RecurrentLayer):
    """Elman layers with the activation relu or tanh.

    >>> from leafwise_gluon import np, rnn
    >>> layer = rnn.RNN(4, num_layers=2)
    >>> layer.initialize()
    >>> inputs = np.ones((5, 3, 2))  # time, batch, width
    >>> layer(inputs).shape
    (5, 3, 4)
    >>> output, states = layer(inputs, layer.begin_state(batch_size=3))
    >>> states[0].shape
    (2, 3, 4)
    """

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        activation: str = "relu",
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        dtype: Any = "float32",
        use_sequence_length: bool = False,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        if activation not in ("relu", "tanh"):
            raise KeyError(f"rnn_{activation}")
        initializers = _initializers(
            i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer
        )
        sizes = (hidden_size, num_layers, layout, dropout, bidirectional, input_size)
        super().__init__(f"rnn_{activation}", *sizes, initializers, dtype, use_sequence_length, None, prefix, params)


class LSTM(RecurrentLayer):
    """Long short-term memory layers. The states are the output and the memory."""

    state_count = 2

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        projection_size: int | None = None,
        h2r_weight_initializer: Any = None,
        state_clip_min: float | None = None,
        state_clip_max: float | None = None,
        state_clip_nan: bool = False,
        dtype: Any = "float32",
        use_sequence_length: bool = False,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        check_options(False, state_clip_min, state_clip_max)
        initializers = _initializers(
            i2h_weight_initializer,
            h2h_weight_initializer,
            i2h_bias_initializer,
            h2h_bias_initializer,
            h2r_weight_initializer,
        )
        sizes = (hidden_size, num_layers, layout, dropout, bidirectional, input_size)
        super().__init__("lstm", *sizes, initializers, dtype, use_sequence_length, projection_size, prefix, params)


class GRU(RecurrentLayer):
    """Layers of gated recurrent units."""

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0,
        bidirectional: bool = False,
        input_size: int = 0,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        dtype: Any = "float32",
        use_sequence_length: bool = False,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        initializers = _initializers(
            i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer
        )
        sizes = (hidden_size, num_layers, layout, dropout, bidirectional, input_size)
        super().__init__("gru", *sizes, initializers, dtype, use_sequence_length, None, prefix, params)


add_roles(
    RecurrentLayer,
    {
        "*_i2h_weight": ("rnn.weight_ih", ("out", "in")),
        "*_h2h_weight": ("rnn.weight_hh", ("out", "in")),
        "*_h2r_weight": ("rnn.weight_hr", ("out", "in")),
        "*_i2h_bias": ("rnn.bias_ih", ("out",)),
        "*_h2h_bias": ("rnn.bias_hh", ("out",)),
    },
)
