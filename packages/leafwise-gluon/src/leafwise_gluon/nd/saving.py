"""`nd.save` and `nd.load`."""

from typing import Any

from leafwise_gluon import saved_arrays
from leafwise_gluon.arrays.legacy import NDArray, wrap_legacy
from leafwise_gluon.arrays.ndarray import ndarray
from leafwise_gluon.modes import is_np_shape

__all__ = ["load", "save"]


def save(fname: str, data: Any) -> None:
    """Saves an array, a list of arrays or a dict of arrays in MXNet's list format.

    >>> import tempfile
    >>> from leafwise_gluon import nd
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     nd.save(f"{folder}/x.params", {"x": nd.ones((2,))})
    ...     sorted(nd.load(f"{folder}/x.params"))
    ['x']
    """
    if isinstance(data, NDArray):
        data = [data]
    values = list(data.values()) if isinstance(data, dict) else data
    if not isinstance(values, list | tuple):
        raise ValueError("data needs to either be a NDArray, dict of str, NDArray pairs or a list of NDarrays.")
    if any(isinstance(value, ndarray) for value in values):
        raise TypeError("cannot save mxnet.numpy.ndarray using mxnet.ndarray.save; use mxnet.numpy.save instead.")
    if any(not isinstance(value, NDArray) for value in values) or (
        isinstance(data, dict) and any(not isinstance(name, str) for name in data)
    ):
        raise TypeError("save only accept dict str->NDArray or list of NDArray")
    tensors = (
        {name: value.tensor for name, value in data.items()}
        if isinstance(data, dict)
        else [value.tensor for value in values]
    )
    saved_arrays.save_list(str(fname), tensors, numpy_shapes=is_np_shape())


def load(fname: str) -> Any:
    """Loads a list or a dict of arrays from a file of MXNet, or of any other format that leafwise reads."""
    if not isinstance(fname, str):
        raise TypeError("fname required to be a string")
    loaded = saved_arrays.load(fname)
    if isinstance(loaded, dict):
        return {name: wrap_legacy(tensor) for name, tensor in loaded.items()}
    return [wrap_legacy(tensor) for tensor in loaded]
