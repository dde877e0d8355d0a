"""`mxnet.runtime`: which parts of MXNet were built. None of them exists here, except CUDA where PyTorch has it."""

from typing import NamedTuple

import torch


class Feature(NamedTuple):
    """A part of MXNet, and whether it exists."""

    name: str
    enabled: bool

    def __repr__(self) -> str:
        return f"{'✔' if self.enabled else '✖'} {self.name}"


_NAMES = (
    "CUDA", "CUDNN", "NCCL", "TENSORRT", "CPU_SSE", "CPU_SSE2", "CPU_AVX", "CPU_AVX2", "OPENMP", "F16C", "BLAS_OPEN",
    "BLAS_MKL", "LAPACK", "MKLDNN", "ONEDNN", "OPENCV", "DIST_KVSTORE", "INT64_TENSOR_SIZE", "SIGNAL_HANDLER", "DEBUG",
    "TVM_OP",
)  # fmt: skip


def feature_list() -> list[Feature]:
    """Every part, and whether it exists here."""
    existing = {"INT64_TENSOR_SIZE", *(("CUDA", "CUDNN") if torch.cuda.is_available() else ())}
    return [Feature(name, name in existing) for name in _NAMES]


class Features(dict[str, Feature]):
    """The parts by name.

    >>> from leafwise_gluon.runtime import Features
    >>> Features().is_enabled("TVM_OP")
    False
    """

    def __init__(self) -> None:
        super().__init__((feature.name, feature) for feature in feature_list())

    def __repr__(self) -> str:
        return str(list(self.values()))

    def is_enabled(self, feature_name: str) -> bool:
        name = feature_name.upper()
        if name not in self:
            raise RuntimeError(f"Feature '{name}' is unknown, known features are: {list(self)}")
        return self[name].enabled
