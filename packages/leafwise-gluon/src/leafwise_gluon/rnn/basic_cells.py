"""The cells with parameters: RNNCell, LSTMCell, GRUCell and LSTMPCell."""

import math
from typing import Any

import torch

from leafwise.core.roles.role_table import add_roles
from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.ops.neural_activations import activation as named_activation
from leafwise_gluon.ops.neural_linear import fully_connected
from leafwise_gluon.rnn.recurrent_cell import HybridRecurrentCell
from leafwise_gluon.shapes import shape_is_known


class GatedCell(HybridRecurrentCell):
    """What these cells have in common: products of the input and of the state with the stacked weights of all gates."""

    gates: int

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
        projection_size: int | None = None,
        h2r_weight_initializer: Any = None,
    ) -> None:
        super().__init__(prefix=prefix, params=params)
        self._hidden_size, self._input_size, self._projection_size = hidden_size, input_size, projection_size
        rows = self.gates * hidden_size
        own = {
            "i2h_weight": ((rows, input_size), i2h_weight_initializer),
            "h2h_weight": ((rows, projection_size or hidden_size), h2h_weight_initializer),
            "h2r_weight": ((projection_size, hidden_size), h2r_weight_initializer),
            "i2h_bias": ((rows,), i2h_bias_initializer),
            "h2h_bias": ((rows,), h2h_bias_initializer),
        }
        if projection_size is None:
            del own["h2r_weight"]
        for name, (shape, init) in own.items():
            setattr(self, name, self.own_parameter(name, shape=shape, init=init, allow_deferred_init=True))

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return [{"shape": (batch_size, self._hidden_size), "__layout__": "NC"}]

    def infer_shape(self, *args: Any) -> None:
        """From the input of a step; or as in MXNet 2.x from the position in a stack, the input of the stack, and
        whether the layers are bidirectional."""
        if shape_is_known(self.i2h_weight.shape):
            return
        if isinstance(args[0], int):
            position, x, is_bidirectional = args
            state = self._projection_size or self._hidden_size
            width = state * (2 if is_bidirectional else 1) if position else x.shape[-1]
        else:
            width = math.prod(args[0].shape[1:])
        self.i2h_weight.shape = (self.gates * self._hidden_size, width)

    def products(self, inputs: Any, states: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The input and the state, each times its weights and plus its bias."""
        self._counter += 1
        self.finish_deferred_init(inputs, states)
        rows = self.gates * self._hidden_size
        i2h_weight, i2h_bias = self.tensor_for("i2h_weight", inputs), self.tensor_for("i2h_bias", inputs)
        h2h_weight, h2h_bias = self.tensor_for("h2h_weight", inputs), self.tensor_for("h2h_bias", inputs)
        assert i2h_weight is not None
        assert h2h_weight is not None
        from_input = fully_connected(plain(inputs), i2h_weight, i2h_bias, rows)
        from_state = fully_connected(plain(states[0]), h2h_weight, h2h_bias, rows)
        return from_input, from_state

    def __repr__(self) -> str:
        shape = self.i2h_weight.shape
        return f"{type(self).__name__}({shape[1] if shape[1] else None} -> {shape[0]})"


def activated(tensor: torch.Tensor, activation: Any, example: Any) -> torch.Tensor:
    """An activation function: by its name, or a block or function over arrays."""
    if isinstance(activation, str):
        return named_activation(tensor, activation)
    result: torch.Tensor = plain(activation(wrap_like(example, tensor)))
    return result


class RNNCell(GatedCell):
    """One step of an Elman network: `activation(W x + b + R h + c)`.

    >>> from leafwise_gluon import np, rnn
    >>> cell = rnn.RNNCell(3, input_size=2)
    >>> cell.initialize()
    >>> output, states = cell(np.ones((4, 2)), cell.begin_state(batch_size=4))
    >>> output.shape, len(states)
    ((4, 3), 1)
    >>> cell
    RNNCell(2 -> 3, tanh)
    """

    gates = 1

    def __init__(
        self,
        hidden_size: int,
        activation: Any = "tanh",
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(hidden_size, *initializers, input_size, prefix, params)
        self._activation = activation

    def _alias(self) -> str:
        return "rnn"

    def forward(self, inputs: Any, states: Any) -> Any:
        from_input, from_state = self.products(inputs, states)
        output = wrap_like(inputs, activated(from_input + from_state, self._activation, inputs))
        return output, [output]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, {self._activation})"


class ActivatedCell(GatedCell):
    """A cell with one activation for its output and one for its gates."""

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
        activation: Any = "tanh",
        recurrent_activation: Any = "sigmoid",
    ) -> None:
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(hidden_size, *initializers, input_size, prefix, params)
        self._activation, self._recurrent_activation = activation, recurrent_activation


class LSTMCell(ActivatedCell):
    """One step of a long short-term memory network, whose states are the output and the memory."""

    gates = 4

    def _alias(self) -> str:
        return "lstm"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        return super().state_info(batch_size) * 2

    def forward(self, inputs: Any, states: Any) -> Any:
        from_input, from_state = self.products(inputs, states)
        gates = (from_input + from_state).chunk(4, 1)
        enter, forget, leave = (activated(gates[number], self._recurrent_activation, inputs) for number in (0, 1, 3))
        memory = forget * plain(states[1]) + enter * activated(gates[2], self._activation, inputs)
        output = wrap_like(inputs, leave * activated(memory, self._activation, inputs))
        return output, [output, wrap_like(inputs, memory)]


class LSTMPCell(GatedCell):
    """An LSTM cell whose output is projected to another size."""

    gates = 4

    def __init__(
        self,
        hidden_size: int,
        projection_size: int,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        h2r_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        h2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        initializers = (i2h_weight_initializer, h2h_weight_initializer, i2h_bias_initializer, h2h_bias_initializer)
        super().__init__(
            hidden_size, *initializers, input_size, prefix, params, projection_size, h2r_weight_initializer
        )

    def _alias(self) -> str:
        return "lstmp"

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        projected = {"shape": (batch_size, self._projection_size), "__layout__": "NC"}
        return [projected, *super().state_info(batch_size)]

    def forward(self, inputs: Any, states: Any) -> Any:
        from_input, from_state = self.products(inputs, states)
        enter, forget, new, leave = (from_input + from_state).chunk(4, 1)
        memory = torch.sigmoid(forget) * plain(states[1]) + torch.sigmoid(enter) * torch.tanh(new)
        hidden = torch.sigmoid(leave) * torch.tanh(memory)
        projection = self.tensor_for("h2r_weight", inputs)
        assert projection is not None
        output = wrap_like(inputs, torch.nn.functional.linear(hidden, projection))
        return output, [output, wrap_like(inputs, memory)]

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]} -> {self._projection_size})"


class GRUCell(ActivatedCell):
    """One step of a network of gated recurrent units. The reset gate applies after the product with the state."""

    gates = 3

    def _alias(self) -> str:
        return "gru"

    def forward(self, inputs: Any, states: Any) -> Any:
        from_input, from_state = (product.chunk(3, 1) for product in self.products(inputs, states))
        reset = activated(from_input[0] + from_state[0], self._recurrent_activation, inputs)
        update = activated(from_input[1] + from_state[1], self._recurrent_activation, inputs)
        new = activated(from_input[2] + reset * from_state[2], self._activation, inputs)
        output = wrap_like(inputs, (1 - update) * new + update * plain(states[0]))
        return output, [output]


for _cell in (RNNCell, LSTMCell, GRUCell, LSTMPCell):
    add_roles(
        _cell,
        {
            "i2h_weight": ("rnn.weight_ih", ("out", "in")),
            "h2h_weight": ("rnn.weight_hh", ("out", "in")),
            "h2r_weight": ("rnn.weight_hr", ("out", "in")),
            "i2h_bias": ("rnn.bias_ih", ("out",)),
            "h2h_bias": ("rnn.bias_hh", ("out",)),
        },
    )
