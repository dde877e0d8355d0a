"""NumPy mode: whether new arrays are `np.ndarray` (array mode), and whether shapes may be `()` (shape mode).

In MXNet 2.x both are on from the start, in MXNet 1.x both are off until `npx.set_np()`.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from leafwise_gluon import dialect
from leafwise_gluon.base import refusal


class _Mode(threading.local):
    array: bool | None = None  # None: as the dialect has it from the start
    shape: bool | None = None


_MODE = _Mode()


def is_np_array() -> bool:
    return not dialect.is_v1() if _MODE.array is None else _MODE.array


def is_np_shape() -> bool:
    return not dialect.is_v1() if _MODE.shape is None else _MODE.shape


def is_np_default_dtype() -> bool:
    return False


def set_np(shape: bool = True, array: bool = True, dtype: bool = False) -> None:
    """Switches NumPy mode on. float64 cannot be made the default dtype."""
    if dtype:
        raise refusal("npx.set_np(dtype=True)", "float32 is always the default; pass dtype='float64' where you need it")
    if array and not shape:
        raise ValueError("NumPy Shape semantics is required in using NumPy array semantics.")
    _MODE.array, _MODE.shape = array, shape


def reset_np() -> None:
    """Switches NumPy mode off."""
    set_np(shape=False, array=False)


def back_to_the_dialect() -> None:
    """Forgets `set_np` and `reset_np`, so that the modes are those in which the dialect starts."""
    _MODE.array = _MODE.shape = None


def set_np_shape(active: bool) -> bool:
    """Switches shape mode, and returns what it was before."""
    before = is_np_shape()
    _MODE.shape = bool(active)
    return before


@contextmanager
def _modes(array: bool | None = None, shape: bool | None = None) -> Iterator[None]:
    before = _MODE.array, _MODE.shape
    _MODE.array = before[0] if array is None else array
    _MODE.shape = before[1] if shape is None else shape
    try:
        yield
    finally:
        _MODE.array, _MODE.shape = before


def np_array(active: bool = True):  # type: ignore[no-untyped-def]
    """A scope with array mode on or off."""
    return _modes(array=active)


def np_shape(active: bool = True):  # type: ignore[no-untyped-def]
    """A scope with shape mode on or off."""
    return _modes(shape=active)


def _decorated(target: Any, array: bool | None, shape: bool | None) -> Any:
    if inspect.isclass(target):
        for name in ("__init__", "forward", "hybrid_forward", "__call__", "__repr__", "_init_weight", "_init_default"):
            if name in vars(target):
                setattr(target, name, _decorated(vars(target)[name], array, shape))
        return target
    if not callable(target):
        raise TypeError("use_np can only decorate classes and callable objects")

    @functools.wraps(target)
    def inside(*args: Any, **kwargs: Any) -> Any:
        with _modes(array, shape):
            return target(*args, **kwargs)

    return inside


def use_np(target: Any) -> Any:
    """A decorator: a function, or the methods of a class, run in NumPy mode."""
    return _decorated(target, True, True)


def use_np_array(target: Any) -> Any:
    return _decorated(target, True, None)


def use_np_shape(target: Any) -> Any:
    return _decorated(target, None, True)


def use_np_default_dtype(target: Callable[..., Any]) -> Any:
    raise refusal("use_np_default_dtype", "float32 is always the default; pass dtype='float64' where you need it")
