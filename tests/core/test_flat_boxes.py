"""Ranges of the elements of an array, cut into boxes, compared with NumPy."""

from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from leafwise.core.memory.sharding import flat_boxes

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@given(SHAPES, st.data())
def test_boxes_are_the_range_in_order(shape: tuple[int, ...], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, prod(shape)))
    stop = data.draw(st.integers(start, prod(shape)))
    whole = np.arange(prod(shape)).reshape(shape)
    found: list[int] = []
    boxes = flat_boxes(shape, start, stop)
    for box in boxes:
        assert box.local == len(found)
        values = whole[tuple(slice(first, first + size) for first, size in zip(box.first, box.shape, strict=True))]
        assert values.shape == box.shape
        found += values.ravel().tolist()
    assert found == list(range(start, stop))
    assert len(boxes) <= max(1, 2 * len(shape) - 1)


def test_all_of_an_array_is_one_box_and_nothing_is_none() -> None:
    assert flat_boxes((4, 3, 2), 0, 24) == [(0, (0, 0, 0), (4, 3, 2))]
    assert flat_boxes((), 0, 1) == [(0, (), ())]
    assert flat_boxes((4, 3), 5, 5) == []
    assert flat_boxes((0, 3), 0, 0) == []
