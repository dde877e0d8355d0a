"""The loss of connectionist temporal classification, over plain tensors."""

import torch


def ctc_loss(
    data: torch.Tensor,
    label: torch.Tensor,
    data_lengths: torch.Tensor | None = None,
    label_lengths: torch.Tensor | None = None,
    blank_label: str = "last",
) -> torch.Tensor:
    """The loss of scores (time, batch, classes) and labels (batch, length).

    If `blank_label` is "last", the last class is the blank and labels end at -1; if it is "first", class 0 is the blank
    and labels end at 0. As in MXNet, the loss is 0 where a label does not fit into the data.
    """
    steps, batch, classes = data.shape
    blank, padding = (classes - 1, -1) if blank_label == "last" else (0, 0)
    targets = label.detach().long()
    if label_lengths is None:
        ends = targets == padding
        lengths = torch.where(ends.any(dim=1), ends.int().argmax(dim=1), targets.shape[1])
    else:
        lengths = label_lengths.detach().long()
    times = torch.full((batch,), steps) if data_lengths is None else data_lengths.detach().long()
    return torch.nn.functional.ctc_loss(
        data.log_softmax(dim=-1),
        targets.clamp(min=0),
        times,
        lengths,
        blank=blank,
        reduction="none",
        zero_infinity=True,
    )
