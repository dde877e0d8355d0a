"""The neural operations of `mxnet.nd.contrib`."""

from collections.abc import Callable
from typing import Any

from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.npx.over_arrays import over_arrays
from leafwise_gluon.ops import (
    neural_images,
    neural_norms,
    neural_pooling,
    neural_sequences,
)


def _nd(operation: Callable[..., Any], name: str) -> Callable[..., Any]:
    return over_arrays(operation, NDArray, name)


AdaptiveAvgPooling2D = _nd(neural_pooling.adaptive_average_pooling, "AdaptiveAvgPooling2D")
BatchNormWithReLU = _nd(neural_norms.batch_norm_with_relu, "BatchNormWithReLU")
BilinearResize2D = _nd(neural_images.bilinear_resize, "BilinearResize2D")
CTCLoss = ctc_loss = _nd(neural_sequences.ctc_loss, "ctc_loss")
MultiBoxPrior = _nd(neural_images.multibox_prior, "MultiBoxPrior")
SyncBatchNorm = _nd(neural_norms.sync_batch_norm, "SyncBatchNorm")
box_nms = box_non_maximum_suppression = _nd(neural_images.box_nms, "box_nms")
interleaved_matmul_encdec_qk = _nd(neural_sequences.cross_attention_scores, "interleaved_matmul_encdec_qk")
interleaved_matmul_encdec_valatt = _nd(neural_sequences.cross_attention_values, "interleaved_matmul_encdec_valatt")
interleaved_matmul_selfatt_qk = _nd(neural_sequences.self_attention_scores, "interleaved_matmul_selfatt_qk")
interleaved_matmul_selfatt_valatt = _nd(neural_sequences.self_attention_values, "interleaved_matmul_selfatt_valatt")

__all__ = [
    "AdaptiveAvgPooling2D",
    "BatchNormWithReLU",
    "BilinearResize2D",
    "CTCLoss",
    "MultiBoxPrior",
    "SyncBatchNorm",
    "box_nms",
    "box_non_maximum_suppression",
    "ctc_loss",
    "interleaved_matmul_encdec_qk",
    "interleaved_matmul_encdec_valatt",
    "interleaved_matmul_selfatt_qk",
    "interleaved_matmul_selfatt_valatt",
]
