"""`mxnet.gluon.contrib.nn`."""

from leafwise.gluon.nn.image_layers import PixelShuffle1D, PixelShuffle2D, PixelShuffle3D
from leafwise.gluon.nn.lambdas import Concurrent, HybridConcurrent, Identity
from leafwise.gluon.nn.norm_layers import SyncBatchNorm

__all__ = [
    "Concurrent",
    "HybridConcurrent",
    "Identity",
    "PixelShuffle1D",
    "PixelShuffle2D",
    "PixelShuffle3D",
    "SyncBatchNorm",
]
