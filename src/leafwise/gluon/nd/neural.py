"""The neural operations under the names that they have in `mxnet.nd`."""

from collections.abc import Callable
from typing import Any

from leafwise.gluon.arrays.legacy import NDArray
from leafwise.gluon.npx.over_arrays import over_arrays
from leafwise.gluon.ops import (
    neural_activations,
    neural_images,
    neural_linear,
    neural_norms,
    neural_outputs,
    neural_picking,
    neural_pooling,
    neural_sequences,
    neural_shapes,
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
relu = _nd(neural_activations.relu, "relu")
sigmoid = _nd(neural_activations.sigmoid, "sigmoid")
softsign = _nd(neural_activations.softsign, "softsign")
log_sigmoid = _nd(neural_activations.log_sigmoid, "log_sigmoid")
mish = _nd(neural_activations.mish, "mish")
hard_sigmoid = _nd(neural_activations.hard_sigmoid, "hard_sigmoid")
smooth_l1 = _nd(neural_activations.smooth_l1, "smooth_l1")
erf = _nd(neural_activations.erf, "erf")
erfinv = _nd(neural_activations.erfinv, "erfinv")
gamma = _nd(neural_activations.gamma, "gamma")
gammaln = _nd(neural_activations.gammaln, "gammaln")
digamma = _nd(neural_activations.digamma, "digamma")
stop_gradient = BlockGrad = _nd(neural_activations.stop_gradient, "BlockGrad")

softmax = _nd(neural_softmax.softmax, "softmax")
log_softmax = _nd(neural_softmax.log_softmax, "log_softmax")
softmin = _nd(neural_softmax.softmin, "softmin")
SoftmaxActivation = _nd(neural_softmax.softmax_activation, "SoftmaxActivation")

SoftmaxOutput = Softmax = _nd(neural_outputs.softmax_output, "SoftmaxOutput")
LinearRegressionOutput = _nd(neural_outputs.linear_regression_output, "LinearRegressionOutput")
LogisticRegressionOutput = _nd(neural_outputs.logistic_regression_output, "LogisticRegressionOutput")
MAERegressionOutput = _nd(neural_outputs.mae_regression_output, "MAERegressionOutput")
SVMOutput = _nd(neural_outputs.svm_output, "SVMOutput")
MakeLoss = _nd(neural_outputs.make_loss, "MakeLoss")
make_loss = _nd(neural_outputs.make_loss, "make_loss")
softmax_cross_entropy = _nd(neural_outputs.softmax_cross_entropy, "softmax_cross_entropy")

BatchNorm = _nd(neural_norms.batch_norm, "BatchNorm")
LayerNorm = _nd(neural_norms.layer_norm, "LayerNorm")
GroupNorm = _nd(neural_norms.group_norm, "GroupNorm")
InstanceNorm = _nd(neural_norms.instance_norm, "InstanceNorm")
L2Normalization = _nd(neural_norms.l2_normalization, "L2Normalization")
LRN = _nd(neural_norms.lrn, "LRN")
moments = _nd(neural_norms.moments, "moments")
Dropout = _nd(neural_norms.dropout, "Dropout")

Embedding = _nd(neural_picking.embedding, "Embedding")
one_hot = _nd(neural_picking.one_hot, "one_hot")
pick = _nd(neural_picking.pick, "pick")
topk = _nd(neural_picking.topk, "topk")
gather_nd = _nd(neural_picking.gather_nd, "gather_nd")
scatter_nd = _nd(neural_picking.scatter_nd, "scatter_nd")

batch_dot = _nd(neural_shapes.batch_dot, "batch_dot")
reshape_like = _nd(neural_shapes.reshape_like, "reshape_like")
broadcast_like = _nd(neural_shapes.broadcast_like, "broadcast_like")
slice_like = _nd(neural_shapes.slice_like, "slice_like")
Flatten = flatten = _nd(neural_shapes.batch_flatten, "Flatten")
Pad = pad = _nd(neural_shapes.pad, "Pad")
im2col = _nd(neural_shapes.im2col, "im2col")
depth_to_space = _nd(neural_shapes.depth_to_space, "depth_to_space")
space_to_depth = _nd(neural_shapes.space_to_depth, "space_to_depth")

SequenceMask = _nd(neural_sequences.sequence_mask, "SequenceMask")
SequenceLast = _nd(neural_sequences.sequence_last, "SequenceLast")
SequenceReverse = _nd(neural_sequences.sequence_reverse, "SequenceReverse")
CTCLoss = ctc_loss = _nd(neural_sequences.ctc_loss, "ctc_loss")

UpSampling = _nd(neural_images.up_sampling, "UpSampling")
ROIPooling = _nd(neural_images.roi_pooling, "ROIPooling")

__all__ = [
    "LRN",
    "Activation",
    "BatchNorm",
    "BlockGrad",
    "CTCLoss",
    "Convolution",
    "Deconvolution",
    "Dropout",
    "Embedding",
    "Flatten",
    "FullyConnected",
    "GroupNorm",
    "InstanceNorm",
    "L2Normalization",
    "LayerNorm",
    "LeakyReLU",
    "LinearRegressionOutput",
    "LogisticRegressionOutput",
    "MAERegressionOutput",
    "MakeLoss",
    "Pad",
    "Pooling",
    "ROIPooling",
    "SVMOutput",
    "SequenceLast",
    "SequenceMask",
    "SequenceReverse",
    "Softmax",
    "SoftmaxActivation",
    "SoftmaxOutput",
    "UpSampling",
    "batch_dot",
    "broadcast_like",
    "ctc_loss",
    "depth_to_space",
    "digamma",
    "erf",
    "erfinv",
    "flatten",
    "gamma",
    "gammaln",
    "gather_nd",
    "hard_sigmoid",
    "im2col",
    "log_sigmoid",
    "log_softmax",
    "make_loss",
    "mish",
    "moments",
    "one_hot",
    "pad",
    "pick",
    "relu",
    "reshape_like",
    "scatter_nd",
    "sigmoid",
    "slice_like",
    "smooth_l1",
    "softmax",
    "softmax_cross_entropy",
    "softmin",
    "softsign",
    "space_to_depth",
    "stop_gradient",
    "topk",
]
