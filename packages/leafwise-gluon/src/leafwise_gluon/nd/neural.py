"""The neural operations under the names that they have in `mxnet.nd`."""

from collections.abc import Callable
from typing import Any

from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.npx.over_arrays import over_arrays
from leafwise_gluon.ops import (
    neural_activations,
    neural_images,
    neural_linear,
    neural_norms,
    neural_outputs,
    neural_picking,
    neural_pooling,
    neural_sequences,
    neural_softmax,
)


def _nd(operation: Callable[..., Any], name: str) -> Callable[..., Any]:
    return over_arrays(operation, NDArray, name)


FullyConnected = _nd(neural_linear.fully_connected, "FullyConnected")
Convolution = _nd(neural_linear.convolution, "Convolution")
Deconvolution = _nd(neural_linear.deconvolution, "Deconvolution")
Pooling = _nd(neural_pooling.pooling, "Pooling")

Activation = _nd(neural_activations.activation, "Activation")
LeakyReLU = _nd(neural_activations.leaky_relu, "LeakyReLU")

softmax = _nd(neural_softmax.softmax, "softmax")
log_softmax = _nd(neural_softmax.log_softmax, "log_softmax")
softmin = _nd(neural_softmax.softmin, "softmin")
SoftmaxActivation = _nd(neural_softmax.softmax_activation, "SoftmaxActivation")

SoftmaxOutput = Softmax = _nd(neural_outputs.softmax_output, "SoftmaxOutput")
LinearRegressionOutput = _nd(neural_outputs.linear_regression_output, "LinearRegressionOutput")
LogisticRegressionOutput = _nd(neural_outputs.logistic_regression_output, "LogisticRegressionOutput")
MAERegressionOutput = _nd(neural_outputs.mae_regression_output, "MAERegressionOutput")
SVMOutput = _nd(neural_outputs.svm_output, "SVMOutput")

BatchNorm = _nd(neural_norms.batch_norm, "BatchNorm")
LayerNorm = _nd(neural_norms.layer_norm, "LayerNorm")
GroupNorm = _nd(neural_norms.group_norm, "GroupNorm")
InstanceNorm = _nd(neural_norms.instance_norm, "InstanceNorm")
LRN = _nd(neural_norms.lrn, "LRN")
Dropout = _nd(neural_norms.dropout, "Dropout")

Embedding = _nd(neural_picking.embedding, "Embedding")


CTCLoss = ctc_loss = _nd(neural_sequences.ctc_loss, "ctc_loss")

UpSampling = _nd(neural_images.up_sampling, "UpSampling")
ROIPooling = _nd(neural_images.roi_pooling, "ROIPooling")

__all__ = [
    "LRN",
    "Activation",
    "BatchNorm",
    "CTCLoss",
    "Convolution",
    "Deconvolution",
    "Dropout",
    "Embedding",
    "FullyConnected",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "LeakyReLU",
    "LinearRegressionOutput",
    "LogisticRegressionOutput",
    "MAERegressionOutput",
    "Pooling",
    "ROIPooling",
    "SVMOutput",
    "Softmax",
    "SoftmaxActivation",
    "SoftmaxOutput",
    "UpSampling",
    "ctc_loss",
    "log_softmax",
    "softmax",
    "softmin",
]
