"""The base class of initializers, which chooses by the name of a parameter how to fill it."""

import json
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy

from leafwise_gluon.arrays.legacy import NDArray
from leafwise_gluon.arrays.values import plain


class InitDesc(str):
    """The name of a parameter, with its attributes; `attrs["__init__"]` is the initializer it was given."""

    attrs: dict[str, Any]
    global_init: Any

    def __new__(cls, name: str, attrs: dict[str, Any] | None = None, global_init: Any = None) -> "InitDesc":
        description = super().__new__(cls, name)
        description.attrs = attrs or {}
        description.global_init = global_init
        return description


class Initializer:
    """The base class. A subclass implements `_init_weight(name, array)`, which writes into the array in place.

    >>> from leafwise_gluon import init, nn
    >>> class Halves(init.Initializer):
    ...     def _init_weight(self, name, arr):
    ...         arr[:] = 0.5
    >>> layer = nn.Dense(1, in_units=2)
    >>> layer.initialize(Halves())
    >>> layer.weight.data()
    array([[0.5, 0.5]])
    """

    def __init__(self, **kwargs: Any) -> None:
        self._kwargs = kwargs
        self._verbose = False
        self._print_func: Callable[[Any], str] | None = None

    def set_verbosity(self, verbose: bool = False, print_func: Callable[[Any], str] | None = None) -> "Initializer":
        """With `verbose`, logs each array that is filled, and a number about it: its norm by √size, or `print_func`."""
        self._verbose = verbose
        self._print_func = _root_mean_square if print_func is None else print_func
        return self

    def _verbose_print(self, desc: Any, init: Any, arr: Any) -> None:
        if self._verbose and self._print_func:
            logging.info("Initialized %s as %s: %s", desc, init, self._print_func(arr))

    def dumps(self) -> str:
        """The name and the arguments as JSON, from which `create` makes an equal initializer."""
        return json.dumps([type(self).__name__.lower(), self._kwargs])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Initializer):
            return NotImplemented
        return type(self) is type(other) and self._kwargs == other._kwargs

    __hash__ = None  # type: ignore[assignment]

    def __call__(self, desc: Any, arr: Any) -> None:
        """Fills an array: with the initializer in its description, or by the end of its name."""
        from leafwise_gluon.init.registry import create

        if not isinstance(desc, InitDesc):
            self._legacy_init(desc, arr)
            return
        if desc.global_init is None:
            desc.global_init = self
        init = desc.attrs.get("__init__", "")
        if init:
            create(init)._init_weight(desc, arr)
            self._verbose_print(desc, init, arr)
            return
        for ending, method in _BY_ENDING.items():
            if desc.endswith(ending):
                getattr(self, method)(desc, arr)
                self._verbose_print(desc, ending, arr)
                return
        self._init_default(desc, arr)

    def _legacy_init(self, name: Any, arr: Any) -> None:
        """Fills an array by its name alone, as in the first versions of MXNet."""
        warnings.warn(
            "\033[91mCalling initializer with init(str, NDArray) has been deprecated."
            "please use init(mx.init.InitDesc(...), NDArray) instead.\033[0m",
            DeprecationWarning,
            stacklevel=3,
        )
        if not isinstance(name, str):
            raise TypeError("name must be string")
        if not isinstance(arr, NDArray):
            raise TypeError("arr must be NDArray")
        if name.startswith("upsampling"):
            self._init_bilinear(name, arr)
        elif name.startswith("stn_loc") and name.endswith("weight"):
            self._init_zero(name, arr)
        elif name.startswith("stn_loc") and name.endswith("bias"):
            self._init_loc_bias(name, arr)
        else:
            method = next((method for ending, method in _BY_LEGACY_ENDING.items() if name.endswith(ending)), None)
            getattr(self, method or "_init_default")(name, arr)

    def _init_weight(self, name: Any, arr: Any) -> None:
        raise NotImplementedError("Must override it")

    def _init_zero(self, name: Any, arr: Any) -> None:
        arr[:] = 0.0

    def _init_one(self, name: Any, arr: Any) -> None:
        arr[:] = 1.0

    def _init_bias(self, name: Any, arr: Any) -> None:
        arr[:] = 0.0

    def _init_gamma(self, name: Any, arr: Any) -> None:
        arr[:] = 1.0

    def _init_beta(self, name: Any, arr: Any) -> None:
        arr[:] = 0.0

    def _init_loc_bias(self, name: Any, arr: Any) -> None:
        assert arr.shape[0] == 6
        arr[:] = numpy.array([1.0, 0, 0, 0, 1.0, 0])

    def _init_bilinear(self, name: Any, arr: Any) -> None:
        arr[:] = bilinear_kernel(arr.shape)

    def _init_default(self, name: Any, arr: Any) -> None:
        raise ValueError(
            f"Unknown initialization pattern for {name}. Default initialization is now limited to "
            '"weight", "bias", "gamma" (1.0), and "beta" (0.0).'
            "Please use mx.sym.Variable(init=mx.init.*) to set initialization pattern"
        )


_BY_ENDING = {
    "weight": "_init_weight",
    "bias": "_init_bias",
    "gamma": "_init_gamma",
    "beta": "_init_beta",
    "min": "_init_zero",
    "max": "_init_one",
}
_BY_LEGACY_ENDING = {
    "bias": "_init_bias",
    "gamma": "_init_gamma",
    "beta": "_init_beta",
    "weight": "_init_weight",
    "moving_mean": "_init_zero",
    "moving_var": "_init_one",
    "moving_inv_var": "_init_zero",
    "moving_avg": "_init_zero",
    "min": "_init_zero",
    "max": "_init_one",
}


def bilinear_kernel(shape: tuple[int, ...]) -> Any:
    """Weights of an upsampling layer of four dimensions: a tent over the last two."""
    half = math.ceil(shape[3] / 2)
    center = (2 * half - 1 - half % 2) / (2.0 * half)
    column = 1 - abs(numpy.arange(shape[2]) / half - center)
    row = 1 - abs(numpy.arange(shape[3]) / half - center)
    return numpy.broadcast_to(numpy.outer(column, row), shape).astype("float32")


def _root_mean_square(arr: Any) -> str:
    return str(numpy.float32(plain(arr).norm() / math.sqrt(arr.size)))
