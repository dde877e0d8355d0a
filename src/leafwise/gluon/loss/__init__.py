"""`mxnet.gluon.loss`: losses."""

from leafwise.gluon.base import missing
from leafwise.gluon.loss.base import Loss
from leafwise.gluon.loss.classification import (
    HingeLoss,
    KLDivLoss,
    LogisticLoss,
    SigmoidBinaryCrossEntropyLoss,
    SoftmaxCrossEntropyLoss,
    SquaredHingeLoss,
)
from leafwise.gluon.loss.ctc import CTCLoss
from leafwise.gluon.loss.embeddings import CosineEmbeddingLoss, SDMLLoss, TripletLoss
from leafwise.gluon.loss.regression import HuberLoss, L1Loss, L2Loss, PoissonNLLLoss

SigmoidBCELoss = SigmoidBinaryCrossEntropyLoss
SoftmaxCELoss = SoftmaxCrossEntropyLoss

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

__getattr__ = missing("gluon.loss", {}, "torch.nn.functional may have an equivalent")
