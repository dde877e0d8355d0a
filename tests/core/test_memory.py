"""How views of one array are related is computed from their memory alone and compared with NumPy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import leafwise as lw
from leafwise.core.memory.ops import Memory, Op, Region, compare, may_repeat, relation, view_op
from leafwise.homes.numpy import HOME

BASE = np.arange(6 * 4 * 5).reshape(6, 4, 5)


@st.composite
def slices(draw: st.DrawFn, size: int) -> slice | int:
    if draw(st.booleans()):
        return draw(st.integers(0, size - 1))
    start = draw(st.integers(0, size - 1))
    return slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 3)))


@st.composite
def views(draw: st.DrawFn) -> Any:
    view = BASE[draw(slices(6)), draw(slices(4)), draw(slices(5))]
    view = np.asarray(view) if isinstance(view, np.ndarray) else BASE[:1, 0, 0]
    return view.transpose(draw(st.permutations(range(view.ndim))))


def memory_of(array: Any) -> Memory:
    found = HOME.memory(array)
    assert found is not None
    return found


def addresses(array: Any) -> set[int]:
    return set(array.ravel().tolist())  # the elements of BASE are their own addresses


@given(views(), views())
def test_the_relation_is_that_of_the_elements(a: Any, b: Any) -> None:
    expected = (
        "inside"
        if addresses(a) <= addresses(b)
        else "apart"
        if addresses(a).isdisjoint(addresses(b))
        else "overlapping"
    )
    assert relation(memory_of(a), memory_of(b)) == expected


@given(views())
def test_an_op_gives_back_the_view(view: Any) -> None:
    op = view_op(memory_of(view), memory_of(BASE))
    again = BASE if op.slices is None else BASE[op.slices]
    if op.order is not None:
        again = again.transpose(op.order)
    if op == "view" and op.slices is None:
        pytest.fail("a slice of the base must be told as one")
    np.testing.assert_array_equal(again, view)


def test_a_reshaped_view_is_a_view_that_no_slice_tells() -> None:
    op = view_op(memory_of(BASE.reshape(-1)), memory_of(BASE))
    assert (op, op.slices, op.order) == ("view", None, None)


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (BASE[:2], "[0:2, :, :]"),
        (BASE[:, 1], "[:, 1, :]"),
        (BASE[::2, :, 3], "[0:5:2, :, 3]"),
        (BASE.transpose(2, 1, 0), ".permute(2, 1, 0)"),
        (BASE[0].T, "[0, :, :].T"),
        (BASE, ""),
    ],
)
def test_an_op_is_written_as_one_would_write_it(view: Any, text: str) -> None:
    assert view_op(memory_of(view), memory_of(BASE)).describe() == text


def test_an_op_equals_its_kind_and_survives_pickling() -> None:
    import pickle

    op = Op("view", (slice(0, 2),), (1, 0))
    again = pickle.loads(pickle.dumps(op))
    assert again == "view"
    assert (again.slices, again.order) == (op.slices, op.order)


def test_neighbors_are_not_tied_and_twenty_thousand_of_them_are_told_apart_quickly() -> None:
    regions = [Region(i, Memory(4 * i, (1,), (4,), 4, "float32"), i % 2 == 0) for i in range(20_000)]
    assert compare(regions) == ({}, [])


def test_other_dtypes_over_the_same_bytes_only_overlap() -> None:
    words = Memory(0, (4,), (4,), 4, "int32")
    assert relation(words, Memory(0, (4,), (4,), 4, "float32")) == "overlapping"
    assert relation(words, Memory(2, (4,), (4,), 4, "int32")) == "overlapping"


def test_strides_that_do_not_divide_are_looked_at_element_by_element() -> None:
    threes = Memory(0, (4,), (12,), 4, "float32")
    twos = Memory(4, (4,), (8,), 4, "float32")
    assert relation(threes, twos) == "overlapping"  # both touch byte 12
    assert relation(Memory(0, (2,), (12,), 4, "float32"), Memory(8, (2,), (8,), 4, "float32")) == "apart"


def test_expanded_and_reversed_arrays_cover_what_they_show() -> None:
    base = np.arange(5)
    assert relation(memory_of(base[::-1]), memory_of(base)) == "inside"
    assert relation(memory_of(np.broadcast_to(base, (3, 5))), memory_of(base)) == "inside"
    assert view_op(memory_of(base[::-1]), memory_of(base)) == "view"


def test_very_many_parameters_over_one_memory_are_compared_quickly() -> None:
    memory = Memory(0, (4,), (4,), 4, "float32")
    merged, overlaps = compare([Region(n, memory, True) for n in range(20_000)])
    assert merged == {}
    assert [(len(one.members), one.separate_gradients) for one in overlaps] == [(20_000, True)]
    whole = Region(0, Memory(0, (40_000,), (4,), 4, "float32"), True)
    parts = [Region(n + 1, Memory(8 * n, (2,), (4,), 4, "float32"), True) for n in range(20_000)]
    assert [len(one.members) for one in compare([whole, *parts])[1]] == [20_001]


def test_an_array_inside_another_is_not_reported_as_shared_memory_with_a_third() -> None:
    numbers = np.arange(10.0)
    tree = lw.tree({"a": numbers[0:6], "b": numbers[2:10], "inside": numbers[4:8]})
    assert [[str(name.path) for name in tie.names] for tie in tree.ties] == [["b", "inside"]]
    assert [[str(leaf.path) for leaf in shared.leaves] for shared in tree.shared_memory] == [["a", "b"]]


@pytest.mark.parametrize("part", [slice(None, None, 2), slice(None, None, -2)])
def test_a_sparse_view_from_end_to_end_is_tied_in_any_order(part: slice) -> None:
    whole = np.arange(3.0)
    for arrays in ({"whole": whole, "view": whole[part]}, {"view": whole[part], "whole": whole}):
        [tie] = lw.tree(arrays).ties
        assert str(tie.leaf.path) == "whole"


def test_rows_that_begin_inside_the_row_before_may_repeat_elements() -> None:
    assert may_repeat(Memory(0, (3, 3), (8, 4), 4, "float32"))
    assert not may_repeat(Memory(0, (3, 3), (12, 4), 4, "float32"))
