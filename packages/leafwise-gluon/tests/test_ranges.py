"""Ranges of numbers, which MXNet computes in the dtype of the result; the text of arrays, and arrays joined."""

from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from leafwise_gluon import MXNetError, dialect, modes, nd, np


@pytest.fixture
def mxnet1() -> Iterator[None]:
    dialect.use_version(1)
    modes.back_to_the_dialect()
    try:
        yield
    finally:
        dialect.use_version(2)


@pytest.mark.parametrize("module", [np, nd])
def test_numbers_are_rounded_in_their_own_dtype(module: Any) -> None:
    wanted = numpy.float32(0.1) + numpy.arange(3, dtype="float32") * numpy.float32(0.3)
    assert module.arange(0.1, 1, 0.3).asnumpy().tolist() == wanted.tolist()
    assert float(module.arange(0.1, 1, 0.3)[2].asnumpy().item()) != float(numpy.float32(0.1 + 2 * 0.3))


@pytest.mark.parametrize("module", [np, nd])
@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [("int32", [-1, 0, 1]), ("int64", [-1, 0, 1]), ("uint8", [255, 0, 1]), ("float16", [-1, 0, 1])],
)
def test_fractions_are_dropped_but_counted(module: Any, dtype: str, wanted: list[int]) -> None:
    assert module.arange(-1.5, 4, 1.9, dtype=dtype).asnumpy().tolist() == wanted


@pytest.mark.parametrize("module", [np, nd])
def test_a_range_of_bools_is_an_error(module: Any) -> None:
    with pytest.raises(MXNetError, match="is not defined for bool"):
        module.arange(3, dtype="bool")


def test_mxnet_1_takes_arrays_without_dimensions(mxnet1: None) -> None:
    assert np.arange(np.array(0.5), np.array(3.2)).tolist() == [0.5, 1.5, 2.5]
    with pytest.raises(MXNetError, match="needs numbers, not arrays"):
        np.arange(np.array([0.5]), 3)


def test_mxnet_2_takes_numbers_only() -> None:
    with pytest.raises(MXNetError, match="needs numbers, not arrays"):
        np.arange(np.array(0.5), 3)


def test_long_lines_are_broken_where_numpy_breaks_them() -> None:
    assert repr(np.zeros(20, dtype="int32")) == f"array([{', '.join(['0'] * 20)}],\n      dtype=int32)"
    assert repr(np.zeros(20, dtype="int64")) == f"array([{', '.join(['0'] * 20)}], dtype=int64)"
    first, second = repr(np.zeros(23, dtype="int32")).split("\n")
    assert first == f"array([{'0, ' * 21}0,"
    assert second == "       0], dtype=int32)"


def test_arrays_are_joined_from_any_iterable() -> None:
    parts = [np.zeros(2), np.ones(1)]
    assert np.concatenate(part for part in parts).tolist() == [0, 0, 1]
