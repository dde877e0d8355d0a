"""Sequences of different lengths in one array, with the time on axis 0 or on axis 1."""

from typing import Any

import torch

from leafwise_gluon.base import MXNetError


def _times(data: torch.Tensor, axis: int) -> torch.Tensor:
    """The time of each element, in a shape that broadcasts with the data."""
    shape = [1] * data.ndim
    shape[axis] = data.shape[axis]
    return torch.arange(data.shape[axis], device=data.device).reshape(shape)


def _with_lengths(name: str, lengths: torch.Tensor | None, asked: Any, axis: int) -> bool:
    """Whether the sequences have lengths. As in MXNet, they must be given if they are asked for, and only then."""
    if axis not in (0, 1) or (lengths is not None) != bool(asked):
        raise MXNetError(f"nd.{name} needs axis 0 or 1, and sequence_length if and only if use_sequence_length=True")
    return bool(asked)


def _lengths(data: torch.Tensor, lengths: torch.Tensor | None, axis: int) -> torch.Tensor:
    """The length of each sequence of the batch, in a shape that broadcasts with the data."""
    assert lengths is not None
    shape = [1] * data.ndim
    shape[1 - axis] = data.shape[1 - axis]
    return lengths.detach().long().reshape(shape)


def SequenceMask(  # noqa: N802
    data: torch.Tensor,
    sequence_length: torch.Tensor | None = None,
    use_sequence_length: Any = False,
    value: float = 0.0,
    axis: int = 0,
) -> torch.Tensor:
    """A copy with a value in place of the elements after the end of each sequence."""
    if not _with_lengths("SequenceMask", sequence_length, use_sequence_length, axis):
        return data.clone()
    beyond = _times(data, axis) >= _lengths(data, sequence_length, axis)
    return data.masked_fill(beyond, value)


def SequenceLast(  # noqa: N802
    data: torch.Tensor, sequence_length: torch.Tensor | None = None, use_sequence_length: Any = False, axis: int = 0
) -> torch.Tensor:
    """The last element of each sequence."""
    if not _with_lengths("SequenceLast", sequence_length, use_sequence_length, axis):
        return data.select(axis, -1).clone()
    last = _lengths(data, sequence_length, axis) - 1
    shape = list(data.shape)
    shape[axis] = 1
    return torch.gather(data, axis, last.expand(shape)).squeeze(axis)


def SequenceReverse(  # noqa: N802
    data: torch.Tensor, sequence_length: torch.Tensor | None = None, use_sequence_length: Any = False, axis: int = 0
) -> torch.Tensor:
    """A copy with each sequence reversed; what follows its end stays where it is."""
    if axis != 0:
        raise MXNetError("nd.SequenceReverse needs the time on axis 0")
    if not _with_lengths("SequenceReverse", sequence_length, use_sequence_length, axis):
        return torch.flip(data, [0])
    times, lengths = _times(data, 0), _lengths(data, sequence_length, 0)
    source = torch.where(times < lengths, lengths - 1 - times, times)
    return torch.gather(data, 0, source.expand(data.shape))
