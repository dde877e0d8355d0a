"""`mxnet.metric` (MXNet 1.x) and `mxnet.gluon.metric` (2.x): how good predictions are."""

from leafwise_gluon.metric.base import EvalMetric, alias, check_label_shapes, create, register
from leafwise_gluon.metric.classification import F1, MCC, PCC, Accuracy, BinaryAccuracy, Fbeta, TopKAccuracy
from leafwise_gluon.metric.combining import CompositeEvalMetric, CustomMetric, np
from leafwise_gluon.metric.likelihood import Caffe, CrossEntropy, NegativeLogLikelihood, Perplexity, Torch
from leafwise_gluon.metric.likelihood import LossMetric as Loss
from leafwise_gluon.metric.regression import (
    MAE,
    MSE,
    RMSE,
    MeanCosineSimilarity,
    MeanPairwiseDistance,
    PearsonCorrelation,
)
from leafwise_gluon.names.lookup import names_of

__all__ = [
    "F1",
    "MAE",
    "MCC",
    "MSE",
    "PCC",
    "RMSE",
    "Accuracy",
    "BinaryAccuracy",
    "Caffe",
    "CompositeEvalMetric",
    "CrossEntropy",
    "CustomMetric",
    "EvalMetric",
    "Fbeta",
    "Loss",
    "MeanCosineSimilarity",
    "MeanPairwiseDistance",
    "NegativeLogLikelihood",
    "PearsonCorrelation",
    "Perplexity",
    "TopKAccuracy",
    "Torch",
    "alias",
    "check_label_shapes",
    "create",
    "np",
    "register",
]

__getattr__ = names_of("mxnet.gluon.metric", "mxnet.metric")
