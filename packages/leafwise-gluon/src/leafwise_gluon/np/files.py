"""Reading arrays from text and from other libraries, and how arrays are printed."""

from typing import Any

import numpy
import torch

from leafwise_gluon.arrays.ndarray import ndarray, wrap
from leafwise_gluon.arrays.values import ArrayValues


def genfromtxt(fname: Any, **options: Any) -> ndarray:
    """Numbers from a text file, as `numpy.genfromtxt` reads them."""
    return wrap(torch.from_numpy(numpy.genfromtxt(fname, **options)))


def from_dlpack(x: Any) -> ndarray:
    """An array over the memory of another library's array."""
    return wrap(torch.utils.dlpack.from_dlpack(x.tensor.detach() if isinstance(x, ArrayValues) else x))


def set_printoptions(*args: Any, **options: Any) -> None:
    """Sets how arrays are printed; the options are those of NumPy."""
    numpy.set_printoptions(*args, **options)
