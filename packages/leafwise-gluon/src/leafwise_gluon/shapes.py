"""Shapes with unknown dimensions: -1 in NumPy shape mode, 0 otherwise, as in MXNet."""

from typing import Any

from leafwise_gluon.modes import is_np_shape


def sizes(shape: Any) -> tuple[int, ...]:
    """A shape as a tuple, with 0 for the dimensions that are not known yet."""
    entries = (shape,) if isinstance(shape, int) else tuple(shape)
    return tuple(max(int(size), 0) for size in entries)


def shown(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """A shape as MXNet shows it in the current mode."""
    if shape is None or not is_np_shape():
        return shape
    return tuple(size or -1 for size in shape)


def shape_is_known(shape: tuple[int, ...] | None) -> bool:
    """Whether every dimension is known. The shape () is known only in NumPy shape mode."""
    if shape is None or (not shape and not is_np_shape()):
        return False
    return all(size > 0 for size in shape)
