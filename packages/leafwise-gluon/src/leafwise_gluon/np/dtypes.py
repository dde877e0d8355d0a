"""The constants and dtypes of `mxnet.np`."""

import functools
from typing import Any, NamedTuple

import numpy
import torch

from leafwise_gluon.arrays.dtypes import numpy_dtype
from leafwise_gluon.arrays.values import ArrayValues
from leafwise_gluon.dialect import is_v1

pi, e, inf, nan, newaxis = numpy.pi, numpy.e, numpy.inf, numpy.nan, None
NAN, NaN, PINF, NINF, PZERO, NZERO = numpy.nan, numpy.nan, numpy.inf, -numpy.inf, 0.0, -0.0
dtype = numpy.dtype

_NEW_IN_2 = ("int16", "uint16", "uint32", "uint64")
DTYPE_NAMES = (
    *("float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool", "bool_"),
)


_DTYPES = {name: numpy.dtype(name.removesuffix("_")) for name in DTYPE_NAMES}
# In MXNet 2.x the names are dtypes, which equal their names and print as them; in 1.x they are NumPy's types.
BY_VERSION: dict[int, dict[str, Any]] = {
    1: {name: known if name in _NEW_IN_2 else known.type for name, known in _DTYPES.items()},
    2: dict(_DTYPES),
}


class FloatLimits(NamedTuple):
    """The limits of a float dtype, as Python's numbers."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float


def finfo(dtype: Any) -> Any:
    """The limits of a float dtype. In MXNet 1.x they are NumPy's numbers."""
    computed = numpy.finfo(dtype.dtype if isinstance(dtype, ArrayValues) else dtype)
    if is_v1():
        return computed
    return FloatLimits(
        computed.bits, float(computed.eps), float(computed.max), float(computed.min), float(computed.smallest_normal)
    )


def iinfo(type: Any) -> Any:
    """The limits of an integer dtype."""
    return numpy.iinfo(type.dtype if isinstance(type, ArrayValues) else type)


def can_cast(from_: Any, to: Any) -> bool:
    return bool(numpy.can_cast(from_.dtype if isinstance(from_, ArrayValues) else from_, to))


def result_type(*arrays_and_dtypes: Any) -> Any:
    """The dtype that arrays are promoted to: int32 and float32 to float32, unlike in NumPy."""
    if not all(isinstance(item, ArrayValues) for item in arrays_and_dtypes):
        if not is_v1():
            raise ValueError("np.result_type needs arrays; use numpy.result_type for dtypes")
        return numpy.result_type(*(item.dtype if isinstance(item, ArrayValues) else item for item in arrays_and_dtypes))
    return numpy_dtype(functools.reduce(torch.promote_types, (item.tensor.dtype for item in arrays_and_dtypes)))
