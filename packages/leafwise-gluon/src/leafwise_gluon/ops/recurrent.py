"""Recurrent layers over whole sequences: MXNet's operator RNN, computed by PyTorch's.

The two agree in the order of gates (LSTM: input, forget, cell, output; GRU: reset, update, new) and in the formula of
the GRU, which applies the reset gate after the matrix product.
"""

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from leafwise_gluon.arrays.random_stream import STREAM
from leafwise_gluon.base import MXNetError, refusal

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
_FUNCTIONS: dict[str, Any] = {"rnn_relu": torch.rnn_relu, "rnn_tanh": torch.rnn_tanh, "gru": torch.gru}
RANK_MESSAGE = "Input data should be rank-3 tensor of dim [sequence length, batch size, input size]"


class Sizes(NamedTuple):
    """What determines the shapes of the weights of a recurrent layer."""

    mode: str
    inputs: int
    hidden: int
    layers: int
    directions: int
    projected: int | None = None

    def weights(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape of each weight, such as `l0_i2h_weight`, in the order of MXNet's flat parameter."""
        rows, state = GATES[self.mode] * self.hidden, self.projected or self.hidden
        for kind in ("weight", "bias"):
            for layer in range(self.layers):
                inputs = state * self.directions if layer else self.inputs
                for side in "lr"[: self.directions]:
                    name = f"{side}{layer}_"
                    yield f"{name}i2h_{kind}", (rows, inputs) if kind == "weight" else (rows,)
                    yield f"{name}h2h_{kind}", (rows, state) if kind == "weight" else (rows,)
                    if self.projected and kind == "weight":
                        yield f"{name}h2r_weight", (self.projected, self.hidden)

    def total(self) -> int:
        """The number of elements of all weights."""
        return sum(torch.Size(shape).numel() for _, shape in self.weights())


def split_parameters(parameters: torch.Tensor, sizes: Sizes) -> dict[str, torch.Tensor]:
    """The weights in a flat parameter, by name."""
    total = sizes.total()
    if tuple(parameters.shape) != (total,):
        raise MXNetError(
            f"Shape inconsistent, Provided = {list(parameters.shape)}, inferred shape=({total},): RNN needs {total} "
            f"parameters for an input of width {sizes.inputs}"
        )
    named, start = {}, 0
    for name, shape in sizes.weights():
        count = torch.Size(shape).numel()
        named[name] = parameters[start : start + count].view(shape)
        start += count
    return named


def run_layers(
    data: torch.Tensor, weights: dict[str, torch.Tensor], states: Sequence[torch.Tensor], sizes: Sizes, dropout: float
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The outputs for data of shape (time, batch, width), and the last states. `dropout` applies between the layers."""
    if data.dim() != 3:
        raise MXNetError(f"{RANK_MESSAGE}, not {tuple(data.shape)}")
    if not dropout or sizes.layers == 1:
        return _run(data, [_of_layer(weights, layer, sizes) for layer in range(sizes.layers)], states, sizes)
    ends = []
    for layer in range(sizes.layers):
        if layer:
            # PyTorch's own dropout would not follow mx.random.seed.
            data = data * torch.from_numpy(STREAM.dropout_mask(tuple(data.shape), dropout)).to(data)
        part = slice(layer * sizes.directions, (layer + 1) * sizes.directions)
        of_layer = [_of_layer(weights, layer, sizes)]
        data, last = _run(data, of_layer, [state[part] for state in states], sizes)
        ends.append(last)
    return data, [torch.cat(parts) for parts in zip(*ends, strict=True)]


def _of_layer(weights: dict[str, torch.Tensor], layer: int, sizes: Sizes) -> list[torch.Tensor]:
    """The weights of one layer in PyTorch's order."""
    parts = ["i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias", *(["h2r_weight"] if sizes.projected else [])]
    return [weights[f"{side}{layer}_{part}"] for side in "lr"[: sizes.directions] for part in parts]


def _run(
    data: torch.Tensor, layers: list[list[torch.Tensor]], states: Sequence[torch.Tensor], sizes: Sizes
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    flat = [weight for layer in layers for weight in layer]
    has_biases, dropout, training, batch_first = True, 0.0, False, False
    options = (has_biases, len(layers), dropout, training, sizes.directions == 2, batch_first)
    if sizes.mode == "lstm":
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "LSTM with projections is not supported with oneDNN")
            output, *last = torch.lstm(data, list(states), flat, *options)
    else:
        output, *last = _FUNCTIONS[sizes.mode](data, states[0], flat, *options)
    return output, list(last)


def rnn(
    data: torch.Tensor,
    parameters: torch.Tensor,
    state: torch.Tensor,
    state_cell: torch.Tensor | None = None,
    sequence_length: torch.Tensor | None = None,
    state_size: int = 0,
    num_layers: int = 0,
    bidirectional: bool = False,
    mode: str = "",
    p: float = 0.0,
    state_outputs: bool = False,
    projection_size: int | None = None,
    lstm_state_clip_min: float | None = None,
    lstm_state_clip_max: float | None = None,
    lstm_state_clip_nan: bool = False,
    use_sequence_length: bool = False,
    training: bool = False,
) -> Any:
    """MXNet's operator RNN, whose weights are one flat array. With `state_outputs`, it also returns the last states."""
    if mode not in GATES:
        raise MXNetError(f"RNN: mode is one of {', '.join(GATES)}, not {mode!r}")
    check_options(use_sequence_length, lstm_state_clip_min, lstm_state_clip_max)
    if data.dim() != 3:
        raise MXNetError(f"{RANK_MESSAGE}, not {tuple(data.shape)}")
    sizes = Sizes(mode, data.shape[2], state_size, num_layers, 2 if bidirectional else 1, projection_size)
    if sequence_length is not None:
        raise MXNetError("RNN: sequence_length is not used without use_sequence_length; leave it out")
    if mode == "lstm" and state_cell is None:
        raise MXNetError("RNN: an LSTM needs state_cell")
    states = [state] if state_cell is None else [state, state_cell]
    weights = split_parameters(parameters, sizes)
    output, last = run_layers(data, weights, states, sizes, p if training else 0.0)
    return [output, *last] if state_outputs else output


def check_options(use_sequence_length: bool, clip_min: float | None, clip_max: float | None) -> None:
    """Raises for options that MXNet has only for GPUs. On CPUs it ignores them, or raises."""
    if use_sequence_length:
        raise refusal(
            "RNN with use_sequence_length", "use unroll(..., valid_length=lengths) of the cell, or npx.sequence_mask"
        )
    if clip_min is not None or clip_max is not None:
        raise refusal("RNN with a clipped state", "use the cell, and np.clip on its states")
