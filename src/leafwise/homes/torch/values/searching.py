"""Searching tensors on a GPU: all of them in a few launches, and only what is found is copied to the CPU."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from math import prod
from typing import Any, TypeVar

import numpy as np
import torch

from leafwise.core.capabilities.searching import Lines, LineSums, Searching
from leafwise.homes.torch.gpu.launching import check_not_capturing, runs_kernels, start_kernels
from leafwise.homes.torch.tensors import dtype_name, positions_by_key
from leafwise.homes.torch.values.tensor_values import words_of
from leafwise.kernels.dtypes import byte_values, is_byte_float
from leafwise.kernels.lines import SAMPLED, Directions

T = TypeVar("T")

_ACTION = "rows and columns of tensors on a GPU are compared"
_ELEMENTS_AT_ONCE = 1 << 23  # elements that are copied or converted at once, to save memory


class TorchSearching(Searching):
    def is_searched(self, value: torch.Tensor) -> bool:
        return runs_kernels(value.device) and not value.is_neg()

    def zero_lines(self, lines: list[Lines]) -> list[Any] | None:
        from leafwise.kernels.triton import cuda_lines

        def search(lines_there: list[Lines], device: torch.device) -> list[Any]:
            kept = [line._replace(value=line.value.detach().contiguous()) for line in lines_there]
            return cuda_lines.zero_lines(_arrays(kept), device)

        results = _by_device(lines, search)
        if results is None:
            return None
        by_number = {
            number: flags for numbers, by_array in results for number, flags in zip(numbers, by_array, strict=True)
        }
        return [by_number[number] for number in range(len(lines))]

    def near_lines(self, lines: list[Lines]) -> dict[int, Any] | None:
        from leafwise.kernels.triton import cuda_lines

        results = _by_device(lines, lambda there, device: cuda_lines.near_lines(_arrays(there), device))
        if results is None:
            return None
        return {numbers[at]: suspects for numbers, by_array in results for at, suspects in by_array.items()}

    def line_sums(self, lines: list[tuple[Lines, Any]]) -> list[LineSums] | None:
        def search() -> list[LineSums]:
            # All are started before the first result is waited for.
            started = [_line_sums(place, torch.from_numpy(numbers)) for place, numbers in lines]
            return [LineSums(*(part.cpu().numpy() for part in sums)) for sums in started]

        return _unless_out_of_memory(search)

    def nonfinite(self, value: torch.Tensor, most: int) -> Any | None:
        return _unless_out_of_memory(lambda: _nonfinite(value, most))

    def same_rows(self, first: torch.Tensor, second: Any) -> Any | None:
        # Without copying one to another device.
        is_there = isinstance(second, torch.Tensor) and (first.device, first.dtype) == (second.device, second.dtype)
        if not is_there or second.is_neg():
            return None
        return _unless_out_of_memory(lambda: _same_rows(first, second))

    def leading_share(
        self, value: torch.Tensor, directions: Any, rounds: int, count: int, scale: float
    ) -> float | None:
        there = torch.from_numpy(directions)
        return _unless_out_of_memory(lambda: _leading_share(value, there, rounds, count, scale))

    def orthogonality_error(self, value: torch.Tensor, direction: Any, gain: float) -> float | None:
        return _unless_out_of_memory(lambda: _orthogonality_error(value, torch.from_numpy(direction), gain))


def _nonfinite(value: torch.Tensor, most: int) -> Any:
    positions, count = [], 0
    for start, band in _row_bands(value):
        places = (~_looked_up(band).isfinite()).reshape(-1).nonzero().squeeze(1)[: most - count]
        positions.append((places + start * (band.numel() // len(band))).cpu().numpy())
        count += len(places)
        if count >= most:
            break
    return np.concatenate(positions) if positions else np.array([], np.int64)


def _same_rows(first: torch.Tensor, second: torch.Tensor) -> Any:
    rows = []
    for (start, band), (_, other) in zip(_row_bands(first), _row_bands(second), strict=True):
        same = (words_of(band) == words_of(other)).reshape(len(band), -1).all(1)
        rows.append((same.nonzero().squeeze(1) + start).cpu().numpy())
    return np.concatenate(rows) if rows else np.array([], np.int64)


def _by_device(
    lines: Sequence[Lines], search: Callable[[list[Lines], torch.device], T]
) -> list[tuple[list[int], T]] | None:
    """The results of a search by launches, device by device, each with the numbers of its arrays. None if Triton cannot
    run, or has no memory left for its tables."""
    check_not_capturing("check")
    results = []
    for device, numbers in positions_by_key(line.value.device for line in lines).items():
        there = [lines[number] for number in numbers]
        start = partial(start_kernels, device, partial(search, there, device), _ACTION)
        result = _unless_out_of_memory(start)
        if result is None:
            return None
        results.append((numbers, result))
    return results


def _arrays(lines: list[Lines]) -> list[Any]:
    from leafwise.kernels.triton.cuda_lines import ArrayLines

    arrays: list[Any] = []
    before: Any = None
    for value, axis, scale in lines:
        if value is not before:  # rows and columns of one tensor follow each other
            before, where = value, (value.data_ptr(), dtype_name(value.dtype), tuple(value.shape), value.stride())
        arrays.append(ArrayLines(*where, axis, scale))
    return arrays


def _line_sums(place: Lines, numbers: torch.Tensor) -> LineSums:
    """`LineSums` as tensors on the device."""
    value, axis, scale = place
    length = value.numel() // value.shape[axis]
    onto, weights = _directions(length, value.device)
    words, there = words_of(value.detach()), numbers.to(value.device)
    fingerprints, projections, norms = [], [], []
    step = max(1, _ELEMENTS_AT_ONCE // length)
    for start in range(0, len(numbers), step):
        part = there[start : start + step]
        bits = words.index_select(axis, part).movedim(axis, 0).reshape(len(part), length)
        fingerprints.append((bits.to(torch.int64) * weights).sum(1))
        doubles = _as_doubles(bits.view(value.dtype)) * scale
        projections.append(doubles @ onto / SAMPLED**0.5)
        norms.append(torch.linalg.vector_norm(doubles, dim=1))
    return LineSums(torch.cat(fingerprints), torch.cat(projections), torch.cat(norms))


@lru_cache(maxsize=8)
def _directions(length: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The random numbers for lines of a length; models have many lines of a few lengths."""
    onto, weights = Directions().draw(length)
    return torch.from_numpy(onto).to(device), torch.from_numpy(weights.view(np.int64)).to(device)


def _unless_out_of_memory(search: Callable[[], T]) -> T | None:
    """What a search finds; None if the device has no memory left for it."""
    try:
        return search()
    except torch.OutOfMemoryError:
        return None


# -- leading singular values, and whether matrices are orthogonal ------------------------------------------

# All in double precision, since programs may allow products in 32 bits to be rounded to 10 bits (TF32).


def _leading_share(value: torch.Tensor, directions: torch.Tensor, rounds: int, count: int, scale: float) -> float:
    """See `Searching.leading_share`."""
    there = directions.to(value.device, torch.float64)
    for _ in range(rounds):
        there, _ = torch.linalg.qr(_gram(value, there, scale))
    projected = torch.cat([rows @ there for rows in _rows(value, scale)])
    # The eigenvalues of the small product are the squares of the singular values.
    squares = torch.linalg.eigvalsh(projected.T @ projected).flip(0)[:count].clamp(min=0)
    total = sum(rows.square().sum() for rows in _rows(value, scale))
    return float(squares.sum() / total) if total else 0.0


def _orthogonality_error(value: torch.Tensor, direction: torch.Tensor, gain: float) -> float:
    """See `Searching.orthogonality_error`."""
    there = direction.to(value.device, torch.float64)
    high, wide = value.shape[0], value[0].numel()
    if wide <= high:
        product = _gram(value, there, 1.0)
    else:
        middle, at = there.new_zeros(wide, 1), 0
        for rows in _rows(value, 1.0):
            middle += rows.T @ there[at : at + len(rows)]
            at += len(rows)
        product = torch.cat([rows @ middle for rows in _rows(value, 1.0)])
    expected = there * gain**2
    return float((product - expected).norm() / (expected.norm() or 1))


def _rows(value: torch.Tensor, scale: float) -> Iterator[torch.Tensor]:
    for _, band in _row_bands(value):
        yield _as_doubles(band).reshape(len(band), -1) / scale


def _gram(value: torch.Tensor, directions: torch.Tensor, scale: float) -> torch.Tensor:
    """The transpose of the matrix, times the matrix, times the directions."""
    total = torch.zeros_like(directions)
    for rows in _rows(value, scale):
        total += rows.T @ (rows @ directions)
    return total


# -- numbers in double precision, in parts -----------------------------------------------------------------


def _row_bands(value: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """A tensor with at least one axis, as parts of several rows each, with the number of the first row."""
    step = max(1, _ELEMENTS_AT_ONCE // max(prod(value.shape[1:]), 1))
    for start in range(0, len(value), step):
        yield start, value.detach()[start : start + step]


def _as_doubles(value: torch.Tensor) -> torch.Tensor:
    return _looked_up(value).to(torch.float64)


def _looked_up(value: torch.Tensor) -> torch.Tensor:
    """Floats of one byte are looked up, because PyTorch does not compute with all of them."""
    name = dtype_name(value.dtype)
    if not is_byte_float(name):
        return value
    return _byte_values(name, value.device)[value.view(torch.uint8).to(torch.int64)]


@cache
def _byte_values(dtype: str, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(byte_values(dtype)).to(device)
