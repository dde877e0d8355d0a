"""Initial values of recurrent layers."""

from typing import Any

from leafwise_gluon.base import refusal
from leafwise_gluon.init.draws import write
from leafwise_gluon.init.initializer import InitDesc, Initializer
from leafwise_gluon.init.registry import create, register

_GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}


@register
class LSTMBias(Initializer):
    """Zeros, except for the forget gate, the second of the four gates of an LSTM cell."""

    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        self.forget_bias = forget_bias

    def _init_weight(self, name: Any, arr: Any) -> None:
        hidden = arr.shape[0] // 4
        write(arr, 0.0)
        write(arr[hidden : 2 * hidden], self.forget_bias)


@register
class FusedRNN(Initializer):
    """For the fused cells of `mxnet.rnn` in MXNet 1.x, which the front end does not have."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise refusal("init.FusedRNN", "give the layers of gluon.rnn initializers of their own")


@register
class RNNFused(Initializer):
    """For the one flat parameter of a recurrent layer in MXNet 2.x: fills its parts, weights first, then biases."""

    def __init__(
        self,
        mode: str,
        num_layers: int,
        state_size: int,
        bidirectional: bool = False,
        projection_size: int | None = None,
        i2h_weight_initializer: Any = None,
        h2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = None,
        h2h_bias_initializer: Any = None,
        h2r_weight_initializer: Any = None,
    ) -> None:
        self._parts = {
            "i2h_weight": i2h_weight_initializer,
            "h2h_weight": h2h_weight_initializer,
            "i2h_bias": i2h_bias_initializer,
            "h2h_bias": h2h_bias_initializer,
            "h2r_weight": h2r_weight_initializer,
        }
        super().__init__(
            mode=mode,
            num_layers=num_layers,
            state_size=state_size,
            bidirectional=bidirectional,
            projection_size=projection_size,
            **{f"{part}_initializer": given for part, given in self._parts.items()},
        )
        self.gates, self.num_layers, self.num_hidden = _GATES[mode], num_layers, state_size
        self.dir = 2 if bidirectional else 1
        self.projection_size = projection_size

    def set_initializer(self, init: Any) -> None:
        """Parts without an initializer get this one; parts with one get MXNet's defaults, as MXNet does."""
        parts = self._parts
        for part in ("i2h_weight", "h2h_weight", "i2h_bias"):
            parts[part] = init if not parts[part] else "zero" if part.endswith("bias") else "uniform"
        # MXNet looks at the initializer of the other bias here, which has one by now.
        parts["h2h_bias"] = init if not parts["i2h_bias"] else "zero"
        parts["h2r_weight"] = init if not parts["h2r_weight"] else "uniform"

    def _init_weight(self, name: Any, arr: Any) -> None:
        begin = 0
        for part, size in self._sizes(arr.shape[0]):
            init = self._parts[part]
            description = InitDesc(f"_{part}_initializer", {"__init__": init})
            create(init)(description, arr[begin : begin + size])
            begin += size

    def _sizes(self, total: int) -> list[tuple[str, int]]:
        """The parts in their order, and their numbers of elements."""
        hidden, projected, rows = self.num_hidden, self.projection_size, self.gates * self.num_hidden
        state = projected or hidden
        later = (state * self.dir + state + 2) * rows * self.dir
        projections = (projected or 0) * hidden * self.num_layers * self.dir
        inputs = (total - projections - (self.num_layers - 1) * later) // (rows * self.dir) - 2 - state
        parts = []
        for kind in ("weight", "bias"):
            for layer in range(self.num_layers):
                sizes = {"i2h": rows * (state * self.dir if layer else inputs), "h2h": rows * state}
                if kind == "bias":
                    sizes = {"i2h": rows, "h2h": rows}
                elif projected:
                    sizes["h2r"] = projected * hidden
                parts += [(f"{connection}_{kind}", size) for connection, size in sizes.items()] * self.dir
        return parts
