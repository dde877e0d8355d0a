"""Finds leaves with identical bits. They are compared on the device where they are, or piece by piece, so that no leaf
is read into memory whole."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from leafwise.core.capabilities.comparing import Comparing, DeviceResult
from leafwise.core.capabilities.measuring import reader
from leafwise.core.capabilities.saving import Saving
from leafwise.core.columns import Columns
from leafwise.core.home import Home
from leafwise.core.memory.ops import SAME, Op
from leafwise.errors import Unsupported

_CORNER = 64  # elements of the first row and column, compared before the rest
_TRANSPOSE = Op("transpose", order=(1, 0))


class EqualLeaves(NamedTuple):
    """A leaf, and the rows of leaves with identical bits, each with its op: `same` or `transpose`."""

    first: int
    ops: dict[int, Op]


def equal_leaves(columns: Columns, candidates: Iterable[Sequence[int]]) -> Iterator[EqualLeaves]:
    """The equal leaves within each group of candidate rows. The leaves of a group have the same dtype, and agree in a
    property of their values that does not depend on the order of elements, such as a checksum."""
    for group in candidates:
        equal = [leaves for rows in _by_corner(columns, group) for leaves in _equal_rows(columns, rows)]
        yield from sorted(equal, key=lambda leaves: leaves.first)


def _equal_rows(columns: Columns, rows: Sequence[int]) -> Iterator[EqualLeaves]:
    while len(rows) > 1:
        first, *rest = rows
        ops = {row: op for row in rest if (op := how_equal(columns, first, row)) is not None}
        if ops:
            yield EqualLeaves(first, ops)
        rows = [row for row in rest if row not in ops]


def _by_corner(columns: Columns, rows: Sequence[int]) -> list[Sequence[int]]:
    """Splits rows into groups that may be equal or each other's transpose, by their first row and column."""
    if len(rows) < 3:
        return [rows]
    groups: dict[object, list[int]] = {}
    for row in rows:
        groups.setdefault(_corner(columns, row), []).append(row)
    return list(groups.values())


def _corner(columns: Columns, row: int) -> object:
    value = columns.current(row)
    shape = _shape(columns, row)
    if not shape:
        return None
    try:
        read = reader(columns.home(value), value)
        rest = (slice(0, 1),) * (len(shape) - 1)
        first_column = read((slice(0, _CORNER), *rest))
        first_row = read((slice(0, 1), *(slice(0, _CORNER) for _ in rest)))
    except Unsupported:  # it cannot be read as a NumPy array
        return None
    return frozenset((first_column.tobytes(), first_row.tobytes()))


def how_equal(columns: Columns, first: int, second: int) -> Op | None:
    """The op by which the second of two leaves of the same dtype equals the first; None if their bits differ."""
    from leafwise.kernels import streams

    a, b = columns.current(first), columns.current(second)
    home, second_home = columns.home(a), columns.home(b)
    shape, second_shape = _shape(columns, first), _shape(columns, second)
    if (result := _on_device(home, a, second_home, b)) is not None:
        if shape == second_shape and result.comparison is not None and not result.comparison.changed:
            return SAME
        return _TRANSPOSE if result.is_transposed else None
    pieces = home.capability(Saving).pieces(a), second_home.capability(Saving).pieces(b)
    if shape == second_shape and streams.same_bytes(*pieces):
        return SAME
    if len(shape) != 2 or shape[::-1] != second_shape:
        return None
    try:
        turned = streams.transposed(reader(home, a), reader(second_home, b), shape)
    except Unsupported:  # they cannot be read as NumPy arrays
        return None
    return None if turned is None else _TRANSPOSE


def _on_device(home: Home, a: Any, second_home: Home, b: Any) -> DeviceResult | None:
    """How two arrays on a device compare there; None if they must be compared in another way."""
    comparing = home.capability(Comparing)
    if home is not second_home or not all(comparing.compares_on(home.spec(value).device) for value in (a, b)):
        return None
    if home.spec(a).size != home.spec(b).size:
        return None
    [result] = comparing.compare_on_device([a], [b], lambda count: None)()
    return None if result is None or result.is_transposed is None else result


def _shape(columns: Columns, row: int) -> tuple[int, ...]:
    return columns.facts([row])[0].spec.shape or ()
