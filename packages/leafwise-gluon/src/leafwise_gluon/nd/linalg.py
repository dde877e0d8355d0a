"""`mxnet.nd.linalg`."""

from leafwise_gluon.arrays.legacy_calls import exposed
from leafwise_gluon.names.lookup import names_of
from leafwise_gluon.ops.legacy import linalg

det, slogdet, inverse = exposed(linalg.det), exposed(linalg.slogdet), exposed(linalg.inverse)
gemm, gemm2, syrk = exposed(linalg.gemm), exposed(linalg.gemm2), exposed(linalg.syrk)
potrf, potri, trmm, trsm = (exposed(f) for f in (linalg.potrf, linalg.potri, linalg.trmm, linalg.trsm))
extractdiag, makediag, sumlogdiag = (exposed(f) for f in (linalg.extractdiag, linalg.makediag, linalg.sumlogdiag))
extracttrian, maketrian = exposed(linalg.extracttrian), exposed(linalg.maketrian)

__all__ = [
    "det",
    "extractdiag",
    "extracttrian",
    "gemm",
    "gemm2",
    "inverse",
    "makediag",
    "maketrian",
    "potrf",
    "potri",
    "slogdet",
    "sumlogdiag",
    "syrk",
    "trmm",
    "trsm",
]
__getattr__ = names_of("mxnet.ndarray.linalg")
