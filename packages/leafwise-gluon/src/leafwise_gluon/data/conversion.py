"""NumPy arrays and lists as arrays of the kind that the mode asks for."""

from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.choosing import wrap_by_mode
from leafwise_gluon.arrays.dtypes import torch_dtype
from leafwise_gluon.context import Context


def array_by_mode(data: Any, dtype: Any = None, ctx: Context | None = None) -> Any:
    """Numbers as an `np.ndarray` in NumPy mode and as an `nd.NDArray` otherwise; of the dtype that NumPy gives them."""
    values = numpy.array(data)  # a copy: the array must not change with the caller's
    tensor = torch.from_numpy(values)
    return wrap_by_mode(tensor if dtype is None else tensor.to(torch_dtype(dtype)), ctx)
