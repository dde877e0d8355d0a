"""Sequences of different lengths, the connectionist loss over them, and attention over interleaved projections."""

import math
from typing import Any

import torch

from leafwise_gluon.base import MXNetError
from leafwise_gluon.ops.neural_checks import one_of


def ctc_loss(
    data: torch.Tensor,
    label: torch.Tensor,
    data_lengths: torch.Tensor | None = None,
    label_lengths: torch.Tensor | None = None,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: str = "first",
) -> torch.Tensor:
    """The connectionist temporal classification loss of each sequence, for data of shape (time, batch, classes).

    The blank is class 0, and labels are padded with 0; with blank_label="last" it is the last class, padded with -1.
    """
    one_of("ctc_loss", "blank_label", blank_label, ("first", "last"))
    given = [lengths for lengths in (data_lengths, label_lengths) if lengths is not None]
    if len(given) != bool(use_data_lengths) + bool(use_label_lengths):
        raise MXNetError("ctc_loss needs lengths if use_data_lengths or use_label_lengths is set, and takes no others")
    time, batch, classes = data.shape
    labels = label.detach().to(torch.int64)
    is_first = blank_label == "first"
    padding = 0 if is_first else -1
    times = given[0].detach().to(torch.int64) if use_data_lengths else torch.full((batch,), time, dtype=torch.int64)
    if use_label_lengths:
        counts = given[-1].detach().to(torch.int64)  # the third input, if there are only three
    else:
        counts = (labels != padding).to(torch.int64).cumprod(1).sum(1)
    scores = torch.log_softmax(data, 2)
    blank = 0 if is_first else classes - 1
    targets = labels.clamp(min=0)
    # As in MXNet, the loss is 0 where a label does not fit into the data.
    return torch.nn.functional.ctc_loss(scores, targets, times, counts, blank, reduction="none", zero_infinity=True)


def self_attention_scores(queries_keys_values: torch.Tensor, heads: int) -> torch.Tensor:
    """Queries times keys, divided by the root of their width, from projections that interleave queries, keys and
    values: (time, batch, heads·3·width)."""
    queries, keys, _ = _interleaved(queries_keys_values, heads, 3)
    return torch.matmul(queries / math.sqrt(queries.shape[-1]), keys.transpose(1, 2))


def self_attention_values(queries_keys_values: torch.Tensor, attention: torch.Tensor, heads: int) -> torch.Tensor:
    """Attention times values, for projections as in `self_attention_scores`."""
    *_, values = _interleaved(queries_keys_values, heads, 3)
    return _heads_joined(torch.matmul(attention, values), heads)


def cross_attention_scores(queries: torch.Tensor, keys_values: torch.Tensor, heads: int) -> torch.Tensor:
    """Queries times keys, divided by the root of their width, from projections that interleave keys and values."""
    (asked,) = _interleaved(queries, heads, 1)
    keys, _ = _interleaved(keys_values, heads, 2)
    return torch.matmul(asked / math.sqrt(asked.shape[-1]), keys.transpose(1, 2))


def cross_attention_values(keys_values: torch.Tensor, attention: torch.Tensor, heads: int) -> torch.Tensor:
    """Attention times values, for projections as in `cross_attention_scores`."""
    _, values = _interleaved(keys_values, heads, 2)
    return _heads_joined(torch.matmul(attention, values), heads)


def _interleaved(projections: torch.Tensor, heads: int, parts: int) -> Any:
    """Each part as (batch·heads, time, width)."""
    time, batch, width = projections.shape
    split = projections.reshape(time, batch, heads, parts, width // (heads * parts))
    return [split[:, :, :, part].permute(1, 2, 0, 3).reshape(batch * heads, time, -1) for part in range(parts)]


def _heads_joined(values: torch.Tensor, heads: int) -> torch.Tensor:
    time, width = values.shape[1:]
    return values.reshape(-1, heads, time, width).permute(2, 0, 1, 3).reshape(time, -1, heads * width)
