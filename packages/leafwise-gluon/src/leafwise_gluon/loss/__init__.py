"""`mxnet.gluon.loss`: losses."""

from typing import Any

from leafwise_gluon.loss import helpers
from leafwise_gluon.loss.base import Loss
from leafwise_gluon.loss.classification import (
    HingeLoss,
    KLDivLoss,
    LogisticLoss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCrossEntropyLoss,
    SquaredHingeLoss,
)
from leafwise_gluon.loss.ctc import CTCLoss
from leafwise_gluon.loss.embeddings import CosineEmbeddingLoss, SDMLLoss, TripletLoss
from leafwise_gluon.loss.regression import HuberLoss, L1Loss, L2Loss, PoissonNLLLoss
from leafwise_gluon.names.lookup import names_of

SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss
SoftmaxCELoss = SoftmaxCrossEntropyLoss
# Private in MXNet, but imported by many losses that users wrote.
BY_VERSION: dict[int, dict[str, Any]] = {
    1: {"_apply_weighting": helpers.apply_weighting_with, "_reshape_like": helpers.reshape_like},
    2: {
        "_apply_weighting": helpers.apply_weighting,
        "_batch_mean": helpers.batch_mean,
        "_batch_sum": helpers.batch_sum,
    },
}

__all__ = [
    "CTCLoss",
    "CosineEmbeddingLoss",
    "HingeLoss",
    "HuberLoss",
    "KLDivLoss",
    "L1Loss",
    "L2Loss",
    "LogisticLoss",
    "Loss",
    "PoissonNLLLoss",
    "SDMLLoss",
    "SigmoidBCELoss",
    "SigmoidBinaryCrossEntropyLoss",
    "SoftmaxCELoss",
    "SoftmaxCrossEntropyLoss",
    "SquaredHingeLoss",
    "TripletLoss",
]

__getattr__ = names_of("mxnet.gluon.loss")
