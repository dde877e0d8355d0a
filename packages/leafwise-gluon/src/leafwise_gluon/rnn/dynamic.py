"""Unrolling a cell over sequences whose length is only known when it runs."""

from typing import Any

import torch

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import plain
from leafwise_gluon.npx.neural import dropout
from leafwise_gluon.rnn.sequences import formatted, masked, stacked, steps_of


def dynamic_unroll(
    cell: Any,
    inputs: Any,
    begin_state: Any,
    drop_inputs: float = 0,
    drop_outputs: float = 0,
    layout: str = "TNC",
    valid_length: Any = None,
) -> tuple[Any, Any]:
    """Calls a cell for each step of `inputs`. Returns the outputs as one array, and the last states.

    With `valid_length`, each sequence of the batch keeps the states of its last step, and its outputs after that are
    zeros.

    >>> from leafwise_gluon import np, rnn
    >>> cell = rnn.RNNCell(2, input_size=3)
    >>> cell.initialize()
    >>> outputs, states = rnn.rnn_cell.dynamic_unroll(cell, np.ones((4, 1, 3)), cell.begin_state(1))
    >>> outputs.shape, states[0].shape
    ((4, 1, 2), (1, 2))
    """
    inputs, axis, _ = formatted(None, inputs, layout, True)
    inputs = _swapped(inputs, axis)
    if drop_inputs:
        inputs = dropout(inputs, p=drop_inputs, axes=(axis,))
    states, outputs = begin_state, []
    for number, step in enumerate(steps_of(inputs, 0)):
        output, new = cell(step, states)
        outputs.append(output)
        if valid_length is not None:
            is_valid = plain(valid_length) > number
            new = [_chosen(is_valid, *pair) for pair in zip(new, states, strict=True)]
        states = new
    result = stacked(outputs, 0)
    if drop_outputs:
        result = dropout(result, p=drop_outputs, axes=(axis,))
    result = _swapped(result, axis)
    if valid_length is not None:
        result = masked(result, valid_length, axis, True)
    return result, states


def _swapped(array: Any, axis: int) -> Any:
    """An array whose first axis and another one have changed places."""
    return array if axis == 0 else wrap_like(array, plain(array).transpose(0, axis).contiguous())


def _chosen(is_valid: torch.Tensor, new: Any, old: Any) -> Any:
    """The new states of the sequences that have not ended, and the old ones of the others."""
    tensor = plain(new)
    rows = is_valid.reshape(-1, *[1] * (tensor.dim() - 1))
    return wrap_like(new, torch.where(rows, tensor, plain(old)))
