"""Searching the lines of arrays on a GPU: tables of arrays, launches for all of them, and what comes back."""

from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch

from leafwise.core.dtypes import DTYPES
from leafwise.kernels.dtypes import KERNELS, byte_values, is_byte_float, item_bytes, values_of_bytes
from leafwise.kernels.lines import CELL, COORDINATES, LEAST, ODD, ONTO, SAMPLED, SHIFTS
from leafwise.kernels.triton.triton_lines import FIELDS, ZERO_FIELDS, line_cells, near_pairs, nonzero_lines

_BLOCK, _WARPS = 128, 4  # lines of a program
# For zeros: elements of a row, or repeats of columns, that a program reads; and how many elements it loads at a time.
_CHUNK, _REPEATS, _ZERO_BLOCK, _ZERO_WARPS = 1 << 12, 64, 1024, 4
_MOST_LINES = 1 << 22  # lines that are sorted at once, to save memory; an array with more is sorted alone


class ArrayLines(NamedTuple):
    """The lines of a strided array along an axis; strides in elements."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    axis: int
    scale: float = 1.0


class _Layout(NamedTuple):
    """Where the lines of arrays with one shape are: from one to the next, and the numbers that are sampled."""

    kind: int
    lines: int
    stride: int
    sampled: int
    offsets: Any
    values: Any  # of the bytes, for floats of one byte


def near_lines(arrays: Sequence[ArrayLines], device: Any) -> dict[int, Any]:
    """By the number of an array: the lines with another line of the same array near them. All are on one device."""
    suspects: dict[int, Any] = {}
    start = lines = 0
    for number, array in enumerate(arrays):
        if lines and lines + array.shape[array.axis] > _MOST_LINES:
            suspects |= _near_in_batch(arrays[start:number], start, device)
            start, lines = number, 0
        lines += array.shape[array.axis]
    return suspects | _near_in_batch(arrays[start:], start, device)


def _near_in_batch(arrays: Sequence[ArrayLines], before: int, device: Any) -> dict[int, Any]:
    table, offsets, values, kinds = _table(arrays, before)
    lines, first_lines = table[:, FIELDS.index("lines")], table[:, FIELDS.index("first")]
    total = int(lines.sum())
    if not total:
        return {}
    programs = _programs(lines)
    table_there, offsets_there, values_there, programs_there = (
        torch.from_numpy(array).to(device) for array in (table, offsets, values, programs)
    )
    keys = torch.empty((len(SHIFTS), total), dtype=torch.int64, device=device)
    line_cells[(len(programs),)](
        table_there, programs_there, offsets_there, values_there, *_constants(device), keys, total, 2 / CELL, LEAST,
        KINDS=kinds, GRIDS=len(SHIFTS), SAMPLED=SAMPLED, COORDINATES=COORDINATES, BLOCK=_BLOCK, num_warps=_WARPS,
    )  # fmt: skip
    near = []
    for words in keys:
        ordered, order = words.sort()
        shared = ordered[1:] == ordered[:-1]
        places = shared.nonzero().squeeze(1)
        if len(places):
            crowded = (shared[1:] & shared[:-1]).nonzero().squeeze(1)  # as in `lines.py`
            near += [order[crowded + offset] for offset in range(3)]
            jobs, pair = ordered[places] >> 32, (order[places], order[places + 1])
            is_near = torch.empty(len(places), dtype=torch.int8, device=device)
            near_pairs[(len(places),)](
                table_there, offsets_there, values_there, jobs, *pair, is_near, CELL**2,
                KINDS=kinds, SAMPLED=SAMPLED, num_warps=1,
            )  # fmt: skip
            near += [side[is_near != 0] for side in pair]
    suspects = torch.unique(torch.cat(near)).cpu().numpy() if near else np.array([], np.int64)
    if not len(suspects):
        return {}
    owners = np.searchsorted(first_lines, suspects, "right") - 1
    numbers, starts = np.unique(owners, return_index=True)
    parts = np.split(suspects, starts[1:])
    return {
        before + int(number): part - first_lines[number] for number, part in zip(numbers.tolist(), parts, strict=True)
    }


def _table(arrays: Sequence[ArrayLines], before: int) -> tuple[Any, Any, Any, int]:
    """A row of `FIELDS` for each array; the offsets and values of each layout; and a bit for each kind that occurs."""
    numbers: dict[tuple[Any, ...], int] = {}
    layout_of = [numbers.setdefault(array[1:5], len(numbers)) for array in arrays]
    layouts = [_layout(*layout) for layout in numbers]
    facts = np.array([layout[:4] for layout in layouts], np.int64).reshape(-1, 4)[layout_of]
    table = np.empty((len(arrays), len(FIELDS)), np.int64)
    table[:, 0] = [array.address for array in arrays]
    table[:, 1] = facts[:, 0]
    table[:, 2] = np.array([array.scale for array in arrays], np.float64).view(np.int64)
    table[:, 3:6] = facts[:, 1:]
    table[:, 6] = layout_of
    table[:, 7] = np.cumsum(facts[:, 1]) - facts[:, 1]
    offsets = np.array([layout.offsets for layout in layouts], np.int64).reshape(-1)
    values = np.concatenate([layout.values for layout in layouts])
    return table, offsets, values, sum({1 << layout.kind for layout in layouts})


@lru_cache(maxsize=1024)
def _layout(dtype: str, shape: tuple[int, ...], strides: tuple[int, ...], axis: int) -> _Layout:
    # The sample has the first numbers of a line in C order.
    others = [number for number in range(len(shape)) if number != axis]
    sampled, offsets = 0, np.zeros(SAMPLED, np.int64)
    for index in product(*(range(min(shape[number], SAMPLED)) for number in others)):
        if sampled == SAMPLED:
            break
        offsets[sampled] = sum(place * strides[number] for place, number in zip(index, others, strict=True))
        sampled += 1
    return _Layout(KERNELS[dtype], shape[axis], strides[axis], sampled, offsets, values_of_bytes([dtype])[0])


def _programs(lines: Any) -> Any:
    """For each program, the number of its array and its first line."""
    per_array = -(-lines // _BLOCK)
    programs = np.empty((int(per_array.sum()), 2), np.int32)
    programs[:, 0] = np.repeat(np.arange(len(lines)), per_array)
    first = np.cumsum(per_array) - per_array
    programs[:, 1] = (np.arange(len(programs)) - first[programs[:, 0]]) * _BLOCK
    return programs


@cache
def _constants(device: Any) -> tuple[Any, Any, Any]:
    """The directions of the coordinates, the factors of the words, and the shifts of the grids with their powers."""
    shifts = np.concatenate([SHIFTS, np.exp2(SHIFTS)]).astype(np.float64)
    return tuple(torch.from_numpy(array).to(device) for array in (ONTO, ODD, shifts))  # type: ignore[return-value]


def zero_lines(arrays: Sequence[ArrayLines], device: Any) -> list[Any]:
    """For each array, which of its lines contain only zeros. All are contiguous and on one device."""
    if not arrays:
        return []
    table = np.zeros((len(arrays), len(ZERO_FIELDS)), np.int64)
    table[:, :6] = [
        (address, prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]), item_bytes(dtype), _kept_bits(dtype))
        for address, dtype, shape, _, axis, _ in arrays
    ]
    outer, lines, inner = table[:, 1:4].T
    of_rows, of_columns = lines * -(-inner // _CHUNK), -(-lines * inner // _ZERO_BLOCK) * -(-outer // _REPEATS)
    per_array = np.where(outer == 1, of_rows, of_columns)
    table[:, 6], table[:, 7] = np.cumsum(lines) - lines, np.cumsum(per_array) - per_array
    flags = torch.zeros(int(lines.sum()), dtype=torch.int8, device=device)
    programs = np.repeat(np.arange(len(arrays), dtype=np.int32), per_array)
    if len(programs):
        nonzero_lines[(len(programs),)](
            torch.from_numpy(table).to(device), torch.from_numpy(programs).to(device), flags,
            SIZES=sum(set(table[:, 4].tolist())), CHUNK=_CHUNK, REPEATS=_REPEATS, BLOCK=_ZERO_BLOCK,
            num_warps=_ZERO_WARPS,
        )  # fmt: skip
    return np.split(flags.cpu().numpy() == 0, np.cumsum(lines)[:-1])


@cache
def _kept_bits(dtype: str) -> int:
    """The bits of an element that are all zero if and only if the number is zero: all but the sign, if zero has one. A
    dtype without a zero has a bit that `nonzero_lines` sets."""
    bits = 8 * item_bytes(dtype)
    if DTYPES[dtype].kind != "float":
        return (1 << bits) - 1 if bits < 64 else -1
    if is_byte_float(dtype):
        zeros = np.flatnonzero(byte_values(dtype) == 0)
        return 255 & ~int(np.bitwise_or.reduce(zeros)) if len(zeros) else 256
    return (1 << (bits - 1)) - 1
