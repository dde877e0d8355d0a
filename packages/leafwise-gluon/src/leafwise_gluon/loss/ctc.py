"""Connectionist temporal classification."""

from typing import Any

import torch

from leafwise_gluon.loss.base import Loss
from leafwise_gluon.ops.neural_sequences import ctc_loss


class CTCLoss(Loss):
    """Connectionist temporal classification. The last class is the blank, and -1 in labels is padding."""

    def __init__(
        self, layout: str = "NTC", label_layout: str = "NT", weight: float | None = None, **kwargs: Any
    ) -> None:
        assert layout in ("NTC", "TNC"), f"Only 'NTC' and 'TNC' layouts for pred are supported. Got: {layout}"
        assert label_layout in ("NT", "TN"), f"Only 'NT' and 'TN' layouts for label are supported. Got: {label_layout}"
        super().__init__(weight, label_layout.find("N"), **kwargs)
        self._layout, self._label_layout = layout, label_layout

    def compute(
        self,
        pred: torch.Tensor,
        label: torch.Tensor,
        pred_lengths: Any = None,
        label_lengths: Any = None,
        sample_weight: Any = None,
    ) -> torch.Tensor:
        if self._layout == "NTC":
            pred = pred.transpose(0, 1)
        if self._label_layout == "TN":
            label = label.transpose(0, 1)
        given = pred_lengths is not None, label_lengths is not None
        return self.weighted(ctc_loss(pred, label, pred_lengths, label_lengths, *given, "last"), sample_weight)
