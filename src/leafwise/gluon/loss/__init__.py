"""`mxnet.gluon.loss`: losses."""

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
from leafwise.gluon.names.lookup import names_of

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

__getattr__ = names_of("mxnet.gluon.loss")
