"""`mxnet.gluon.contrib.nn`."""

from leafwise_gluon.nn.image_layers import PixelShuffle1D, PixelShuffle2D, PixelShuffle3D
from leafwise_gluon.nn.lambdas import Concurrent, HybridConcurrent, Identity
from leafwise_gluon.nn.norm_layers import SyncBatchNorm

__all__ = [
    "Concurrent",
    "HybridConcurrent",
    "Identity",
    "PixelShuffle1D",
    "PixelShuffle2D",
    "PixelShuffle3D",
    "SyncBatchNorm",
]
