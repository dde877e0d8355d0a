"""Sequences for `unroll`: one array with an axis for time, or a list with an array for each step."""

from typing import Any

import torch

from leafwise_gluon.arrays.choosing import wrap_like
from leafwise_gluon.arrays.values import ArrayValues, plain
from leafwise_gluon.ops.legacy import sequences


def is_array(value: Any) -> bool:
    return isinstance(value, ArrayValues | torch.Tensor)


def stacked(steps: Any, axis: int) -> Any:
    """One array from the arrays of a list."""
    return wrap_like(steps[0], torch.stack([plain(step) for step in steps], axis))


def joined(parts: Any, axis: int) -> Any:
    """Arrays, concatenated along an axis."""
    return wrap_like(parts[0], torch.cat([plain(part) for part in parts], axis))


def steps_of(array: Any, axis: int) -> list[Any]:
    """An array for each step of an array."""
    return [wrap_like(array, step) for step in plain(array).unbind(axis)]


def formatted(length: int | None, inputs: Any, layout: str, merge: bool | None) -> tuple[Any, int, int]:
    """The inputs as one array (`merge` is true), as a list (false) or as they are (None); the axis of time; and the
    size of the batch."""
    assert inputs is not None, "unroll(inputs=None) has been deprecated. Please create input variables outside unroll."
    axis = layout.find("T")
    if is_array(inputs):
        assert merge is not False or length is None or length == inputs.shape[axis]
        return steps_of(inputs, axis) if merge is False else inputs, axis, inputs.shape[layout.find("N")]
    assert length is None or len(inputs) == length
    return stacked(inputs, axis) if merge else inputs, axis, inputs[0].shape[0]


def masked(data: Any, valid_length: Any, axis: int, merge: bool | None) -> Any:
    """Zeros in place of the steps beyond the length of each sequence: as one array, or as a list."""
    array = data if is_array(data) else stacked(data, axis)
    tensor = sequences.SequenceMask(plain(array), plain(valid_length), True, axis=axis)
    result = wrap_like(array, tensor)
    return result if merge else steps_of(result, axis)


def last_valid(steps: Any, valid_length: Any) -> Any:
    """The last step of each sequence."""
    tensors = torch.stack([plain(step) for step in steps])
    return wrap_like(steps[0], sequences.SequenceLast(tensors, plain(valid_length), True))


def reversed_steps(steps: Any, valid_length: Any) -> list[Any]:
    """The steps in reverse; each sequence within its own length."""
    if valid_length is None:
        return list(reversed(steps))
    tensors = torch.stack([plain(step) for step in steps])
    turned = sequences.SequenceReverse(tensors, plain(valid_length), True)
    return [wrap_like(steps[0], step) for step in turned]
