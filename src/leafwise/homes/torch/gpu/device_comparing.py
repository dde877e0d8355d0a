"""Comparing tensors on a device where kernels run: one launch for all pairs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from operator import mul, ne, or_
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from leafwise.core.capabilities.comparing import DeviceResult, OtherArray
from leafwise.core.work.progress import Count
from leafwise.core.work.threads import bundled
from leafwise.homes.torch.gpu.device_streams import ACTION, StreamedPair, compare_streamed, uploaded
from leafwise.homes.torch.gpu.launching import check_not_capturing, on_device, runs_kernels, start_kernels
from leafwise.homes.torch.gpu.snapshots import are_plain, layouts
from leafwise.homes.torch.gpu.tables import KeptTables
from leafwise.homes.torch.tensors import dtype_name
from leafwise.kernels.cpu import lies_densely
from leafwise.kernels.dtypes import item_bytes
from leafwise.kernels.triton import cuda_comparing
from leafwise.kernels.triton.cuda_comparing import PairColumns, can_compare

Side = torch.Tensor | OtherArray
Pairs = list[tuple[Side, Side]]
Results = list[DeviceResult | None]

_FIRST_ROWS = 16  # of a matrix that may be transposed; most that are not differ there
_BAND_ELEMENTS = 64 << 20  # elements of a matrix that are transposed at a time
_MOST_COPIES = 1 << 30  # bytes of tensors that are copied to be contiguous, on a device that does not say what is free


def start_comparing(
    firsts: list[Side], seconds: list[Side], other_array: Callable[[torch.Tensor], OtherArray], count: Count
) -> Callable[[], Results]:
    """Starts comparing pairs. The function that it returns waits, and returns a result for each pair: None where the
    kernels cannot compare it, or where memory on the device is short. Tensors on devices without kernels are compared
    as `other_array`."""
    check_not_capturing("compare values")
    results: Results = [None] * len(firsts)
    waits: list[Callable[[], None]] = []
    with suppress(torch.cuda.OutOfMemoryError):  # what has no result is compared a piece at a time
        if (table := _kept_table(firsts, seconds)) is not None:
            waits.append(_start_tensors(range(len(firsts)), firsts, seconds, table, results, count))
            return lambda: _waited(waits, results)
    elsewhere = cache(lambda device: not runs_kernels(device))

    def side_of(value: Side) -> Side:
        return other_array(value) if isinstance(value, torch.Tensor) and elsewhere(value.device) else value

    pairs = [(side_of(first), side_of(second)) for first, second in zip(firsts, seconds, strict=True)]
    direct, copied, streamed = _grouped(pairs)
    for numbers in direct.values():
        sides: list[list[Any]] = [[pairs[number][side] for number in numbers] for side in (0, 1)]
        chosen, partners = sides
        with suppress(torch.cuda.OutOfMemoryError):
            table = _table_of(_columns(chosen, partners), chosen[0].device)
            waits.append(_start_tensors(numbers, chosen, partners, table, results, count))
    for compare, by_device in ((_compare_copies, copied), (_compare_streams, streamed)):
        for device, numbers in by_device.items():
            with suppress(torch.cuda.OutOfMemoryError):
                compare(pairs, numbers, device, results, count)
    return lambda: _waited(waits, results)


def _waited(waits: list[Callable[[], None]], results: Results) -> Results:
    for wait_for_device in waits:
        with suppress(torch.cuda.OutOfMemoryError):
            wait_for_device()
    return results


NumbersByDevice = dict[torch.device, list[int]]


def _grouped(pairs: Pairs) -> tuple[NumbersByDevice, NumbersByDevice, NumbersByDevice]:
    """The numbers of pairs by device: those that are compared as they are, after copying, or as they are streamed."""
    direct: NumbersByDevice = {}
    copied: NumbersByDevice = {}
    streamed: NumbersByDevice = {}
    known = cache(lambda dtype, other: can_compare(dtype_name(dtype), dtype_name(other)))
    for number, (first, second) in enumerate(pairs):
        if type(first) is OtherArray or type(second) is OtherArray:
            if (tensor := _tensor_to_stream(first, second)) is not None:
                streamed.setdefault(tensor.device, []).append(number)
        # A tensor that is the negative of its memory is compared in another way; only complex ones can be conjugated.
        elif known(first.dtype, second.dtype) and not first.is_neg() and not second.is_neg():  # type: ignore[union-attr]
            group = direct if _same_layout(first, second) else copied
            group.setdefault(first.device, []).append(number)  # type: ignore[union-attr]
    return direct, copied, streamed


def _tensor_to_stream(first: Any, second: Any) -> torch.Tensor | None:
    """The tensor of a pair that is compared with a streamed array; None if the kernels cannot compare them."""
    tensor, array = (first, second) if isinstance(second, OtherArray) else (second, first)
    return tensor if can_compare(dtype_name(tensor.dtype), array.dtype) and not tensor.is_neg() else None


def _same_layout(first: Any, second: Any) -> bool:
    """Whether the elements of two tensors are on one device and in the same order in memory, without gaps."""
    if first.device != second.device:
        return False
    if first.is_contiguous() and second.is_contiguous():
        return True
    same = first.shape == second.shape and first.stride() == second.stride()
    return same and lies_densely(first.shape, first.stride())


def _has_turned_shape(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two shapes of matrices differ, and one is the other transposed."""
    return len(shape) == 2 and shape != other and shape[::-1] == other


# -- both on the device ---------------------------------------------------------------------------------------------


def _start_tensors(
    numbers: Sequence[int],
    firsts: list[Any],
    seconds: list[Any],
    table: "_Table",
    results: Results,
    count: Count,
) -> Callable[[], None]:
    """Starts comparing tensors on one device, with the same order in memory. The function that it returns waits, and
    enters the results."""
    columns, turned = table.pairs.columns, table.turned
    device = firsts[0].device
    wait = start_kernels(device, lambda: cuda_comparing.compare(table.pairs), ACTION)

    def enter() -> None:
        if wait is None:
            return
        outcomes = wait()
        comparisons = outcomes.comparisons
        distinct = {id(comparison): comparison for comparison in comparisons}  # pairs without changes share a few
        same = {key: DeviceResult(comparison) for key, comparison in distinct.items()}
        for number, comparison in zip(numbers, comparisons, strict=True):
            results[number] = same[id(comparison)]
        for place in sorted({*table.unlike, *outcomes.changed.tolist()}):
            number, comparison = numbers[place], comparisons[place]
            results[number] = None
            is_mixed = columns.dtypes[place] != columns.other_dtypes[place]
            is_cast = is_mixed and (outcomes.forth[place] or outcomes.back[place])
            how = None
            if turned[place] or (outcomes.transposed[place] and comparison.changed and not is_cast):
                how = how_transposed(firsts[place], seconds[place], device)  # if memory is short, there is no result
            results[number] = (
                DeviceResult(comparison, is_cast) if how is None else DeviceResult(None, how == "cast", True)
            )
        count(table.nbytes)

    return enter


class _Table(NamedTuple):
    """Pairs of tensors for the kernels: whether the shapes of each pair are transposed, the places of the pairs that
    are, or have two dtypes, and the bytes of the first sides."""

    pairs: cuda_comparing.PairTable
    turned: list[bool]
    unlike: list[int]
    nbytes: int


def _table_of(pair_columns: tuple[PairColumns, list[bool]], device: torch.device) -> _Table:
    columns, turned = pair_columns
    are_mixed = map(ne, columns.dtypes, columns.other_dtypes)
    unlike = [place for place, is_unlike in enumerate(map(or_, are_mixed, turned)) if is_unlike]
    nbytes = sum(map(mul, columns.sizes, map(item_bytes, columns.dtypes)))
    return _Table(cuda_comparing.table_of(columns, device), turned, unlike, nbytes)


# The last tables: the same tensors are compared again.
_tables: KeptTables[_Table] = KeptTables()


def _kept_table(firsts: list[Any], seconds: list[Any]) -> _Table | None:
    """The table of tensors that can be compared as they are, all on one device; None if not all of them can."""
    values = firsts + seconds
    if (table := _tables.find(values)) is None and (columns := _columns_at_once(firsts, seconds)) is not None:
        table = _tables.get(values, lambda: _table_of(columns, values[0].device))
    return table


def _columns_at_once(firsts: list[Any], seconds: list[Any]) -> tuple[PairColumns, list[bool]] | None:
    """The same as `_columns`, from the layouts of all tensors, which is much faster for thousands of them. None unless
    all of them are contiguous, and on one device where kernels compare them."""
    values = firsts + seconds
    if not values or not are_plain(values) or not runs_kernels(values[0].device):
        return None
    tensor_layouts = layouts(values)
    if (
        tensor_layouts is None
        or not tensor_layouts.is_contiguous.all()
        or (tensor_layouts.devices != tensor_layouts.devices[0]).any()
    ):
        return None
    dtypes = [dtype_name(value.dtype) for value in values]
    dtypes, other_dtypes = dtypes[: len(firsts)], dtypes[len(firsts) :]
    if not all(can_compare(*both) for both in set(zip(dtypes, other_dtypes, strict=True))):
        return None
    addresses, other_addresses = tensor_layouts.addresses.astype(np.uint64).reshape(2, -1).tolist()
    (rows, other_rows), (columns, other_columns) = (
        tensor_layouts.rows.reshape(2, -1),
        tensor_layouts.columns.reshape(2, -1),
    )
    is_same = (rows == other_rows) & (columns == other_columns)
    sides = np.where(is_same & (rows == columns), rows, 0)
    turned = ~is_same & (rows == other_columns) & (columns == other_rows)
    sizes = tensor_layouts.sizes[: len(firsts)].tolist()
    return PairColumns(addresses, other_addresses, sizes, dtypes, other_dtypes, sides.tolist()), turned.tolist()


def _columns(firsts: list[Any], seconds: list[Any]) -> tuple[PairColumns, list[bool]]:
    """The tensors of both sides for the kernels, and whether the shapes of each pair are transposed."""
    sides, turned = [], []
    for first, second in zip(firsts, seconds, strict=True):
        shape, other = first.shape, second.shape
        sides.append(shape[0] if len(shape) == 2 and shape == other and shape[0] == shape[1] else 0)
        turned.append(_has_turned_shape(shape, other))
    return PairColumns(
        [first.data_ptr() for first in firsts],
        [second.data_ptr() for second in seconds],
        [first.numel() for first in firsts],
        [dtype_name(first.dtype) for first in firsts],
        [dtype_name(second.dtype) for second in seconds],
        sides,
    ), turned


def how_transposed(first: torch.Tensor, second: torch.Tensor, device: torch.device) -> Literal["same", "cast"] | None:
    """Whether a matrix is the transpose of another: with the same bits, or after a cast. A band of rows at a time."""
    rows, columns = first.shape
    forth = back = True
    start, stop = 0, _FIRST_ROWS
    with on_device(device):
        while start < rows and columns:
            band = first.detach()[start:stop].contiguous(), second.detach().t()[start:stop].contiguous()
            table = cuda_comparing.table_of(_columns([band[0]], [band[1]])[0], device)
            outcomes = cuda_comparing.compare(table)()
            if first.dtype == second.dtype:
                forth = back = not outcomes.comparisons[0].changed
            else:
                forth, back = forth and outcomes.forth[0], back and outcomes.back[0]
            if not (forth or back):
                return None
            start, stop = stop, stop + max(_BAND_ELEMENTS // columns, 1)
    return "cast" if rows and columns and first.dtype != second.dtype else "same"


# -- copied first ---------------------------------------------------------------------------------------------------


def _free(device: torch.device) -> int:
    """How many bytes of copies may be made on a device."""
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else _MOST_COPIES


def _batches(pairs: Pairs, numbers: list[int], device: torch.device) -> Iterator[list[int]]:
    """Pairs in batches whose copies fit into memory; without pairs that are too large for that."""
    limit = _free(device)
    sizes = {number: sum(map(_nbytes, pairs[number])) for number in numbers}
    return bundled((number for number, size in sizes.items() if size <= limit), sizes.__getitem__, limit)


def _nbytes(side: Side) -> int:
    """The number of bytes of the elements, even if they share memory."""
    if isinstance(side, torch.Tensor):
        return side.numel() * side.element_size()
    return side.size * item_bytes(side.dtype)


def _compare_copies(pairs: Pairs, numbers: list[int], device: torch.device, results: Results, count: Count) -> None:
    """Tensors that are not contiguous, or on two devices."""
    for batch in _batches(pairs, numbers, device):
        sides: list[list[Any]] = [[pairs[number][side] for number in batch] for side in (0, 1)]
        firsts, seconds = ([value.detach().to(device).contiguous() for value in values] for values in sides)
        table = _table_of(_columns(firsts, seconds), device)
        _start_tensors(batch, firsts, seconds, table, results, count)()


# -- one side elsewhere ---------------------------------------------------------------------------------------------


def _compare_streams(pairs: Pairs, numbers: list[int], device: torch.device, results: Results, count: Count) -> None:
    """Tensors on the device, and arrays that are streamed to it."""
    streamed = []
    limit = _free(device)
    for number in numbers:
        side = 0 if isinstance(pairs[number][0], OtherArray) else 1
        tensor: Any = pairs[number][1 - side]
        array: Any = pairs[number][side]
        if not tensor.is_contiguous():
            limit -= _nbytes(tensor)
            if limit < 0:
                continue
            tensor = tensor.detach().contiguous()
        pair = StreamedPair(tensor, array, number, side)
        if _has_turned_shape(tensor.shape, array.shape):
            if max(_nbytes(tensor), _nbytes(array)) > limit or (other := uploaded(pair, device)) is None:
                continue
            if how := how_transposed(tensor, other, device) if side else how_transposed(other, tensor, device):
                results[number] = DeviceResult(None, how == "cast", True)
                count(_nbytes(pairs[number][0]))
                continue
        streamed.append(pair)
    compared = compare_streamed(streamed, device, count)
    for pair, (comparison, can_be_cast) in zip(streamed, compared or [], strict=False):
        is_cast = can_be_cast and pair.array.dtype != dtype_name(pair.tensor.dtype)
        # The samples of a square matrix that show whether it may be transposed are not on the device.
        is_square = len(pair.array.shape) == 2 and pair.array.shape == pair.array.shape[::-1] == pair.tensor.shape
        is_open = is_square and not is_cast and bool(comparison.changed)
        results[pair.number] = DeviceResult(comparison, is_cast, None if is_open else False)
