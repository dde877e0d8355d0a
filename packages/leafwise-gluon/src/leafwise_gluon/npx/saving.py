"""`npx.save`, `npx.savez` and `npx.load`."""

from typing import Any

from leafwise_gluon import dialect, saved_arrays
from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.arrays.ndarray import ndarray, wrap
from leafwise_gluon.modes import is_np_array, is_np_shape

__all__ = ["load", "save", "savez"]


def _check_mode(verb: str) -> None:
    if not (is_np_shape() and is_np_array()):
        raise ValueError(
            f"Cannot {verb} `mxnet.numpy.ndarray` in legacy mode. Please activate numpy semantics by calling "
            "`npx.set_np()` in the global scope before calling this function."
        )


def save(file: str, arr: Any) -> None:
    """Saves arrays. In MXNet 1.x: an array, a list or a dict of arrays, in the list format. In 2.x: one array as .npy.

    >>> import tempfile
    >>> from leafwise_gluon import np, npx
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     npx.save(f"{folder}/x.npy", np.ones(2))
    ...     npx.load(f"{folder}/x.npy")
    array([1., 1.])
    """
    if not dialect.is_v1():
        if not isinstance(arr, NDArray):
            raise ValueError("data needs to either be a MXNet ndarray")
        saved_arrays.save_npy(str(file), arr.tensor)
        return
    _check_mode("save")
    if isinstance(arr, ndarray):
        arr = [arr]
    if not isinstance(arr, list | dict):
        raise ValueError("data needs to either be a ndarray, dict of (str, ndarray) pairs or a list of ndarrays.")
    values = arr.values() if isinstance(arr, dict) else arr
    if any(not isinstance(value, ndarray) for value in values) or (
        isinstance(arr, dict) and any(not isinstance(name, str) for name in arr)
    ):
        raise TypeError("Only accepts dict str->ndarray or list of ndarrays")
    tensors = (
        {name: array.tensor for name, array in arr.items()}
        if isinstance(arr, dict)
        else [array.tensor for array in arr]
    )
    saved_arrays.save_list(str(file), tensors, numpy_shapes=True)


def savez(file: str, *args: Any, **kwds: Any) -> None:
    """Saves arrays as an .npz file, under their keywords, or as arr_0, arr_1 and so on."""
    for number, value in enumerate(args):
        assert f"arr_{number}" not in kwds, f"Naming conflict between arg {number} and kwargs."
        kwds[f"arr_{number}"] = value
    if any(not isinstance(value, NDArray) for value in kwds.values()):
        raise TypeError("Only accepts dict str->ndarray or list of ndarrays")
    saved_arrays.save_npz(str(file), {name: value.tensor for name, value in kwds.items()})


def load(file: str) -> Any:
    """Loads an array, a list or a dict of arrays from a file of MXNet or NumPy."""
    _check_mode("load")
    if not isinstance(file, str):
        raise TypeError("file required to be a string")
    loaded = saved_arrays.load(file)
    if isinstance(loaded, dict):
        return {name: wrap(tensor) for name, tensor in loaded.items()}
    arrays = [wrap(tensor) for tensor in loaded]
    return arrays[0] if len(arrays) == 1 and not dialect.is_v1() else arrays
