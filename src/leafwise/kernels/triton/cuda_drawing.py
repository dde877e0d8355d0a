"""Initial values of arrays on a GPU: one table, and a launch or two for each dtype and distribution."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from itertools import chain
from math import exp, log2, pi, prod, sqrt
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import torch

from leafwise.core.capabilities.filling import Draw
from leafwise.kernels.triton.launches import copied_to
from leafwise.kernels.triton.triton_drawing import (
    COLUMNS,
    CONSTANT,
    DTYPES,
    NODES_END,
    NODES_PER_POWER,
    NORMAL,
    ROUGH_LIMIT,
    UNIFORM,
    WIDTH,
    draw_carefully,
    draw_whole_chunks,
)

_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Elements that a program fills, and elements that it fills at a time: eight a lane of one warp, so that few are
# computed again in 64 bits, and no warp waits for another.
CHUNK, BLOCK, WARPS = 1 << 15, 256, 1
CAREFUL_CHUNK, CAREFUL_BLOCK, CAREFUL_WARPS = 1 << 13, 1024, 4

_ADDRESS, _FIRST_WORD, _FIRST_CHUNK, _RUN, _RUN_STRIDE, _ROWS, _RUN_BLOCKS = map(
    COLUMNS.index, ("address", "first_word", "first_chunk", "run", "run_stride", "rows", "run_blocks")
)
_KEY = [COLUMNS.index("key_low"), COLUMNS.index("key_high")]
_DRAW = [COLUMNS.index(name) for name in Draw._fields[1:]]
_ROW_AXES = 3  # the axes of an array, after merging, other than the last one


class Axis(NamedTuple):
    """An axis of an array: its size, and how many words and how many elements in memory are from one index to the
    next."""

    size: int
    words: int
    memory: int


@lru_cache(1024)
def one_run(size: int) -> tuple[Axis, ...]:
    """The axes of a contiguous array."""
    return (Axis(size, 1, 1),)


class Target(NamedTuple):
    """An array to fill, on a device. `first_word` is the number of its first word; the words of the last axis follow
    each other."""

    address: int
    dtype: str
    key: tuple[int, int]
    draw: Draw
    first_word: int
    axes: tuple[Axis, ...]


def merged(axes: Iterable[Axis]) -> tuple[Axis, ...] | None:
    """The same elements with as few axes as possible; the last one is a run of consecutive words. None if there are
    more axes than the kernels take, or if elements share memory."""
    result: list[Axis] = []
    for axis in axes:
        if axis.size == 1:
            continue
        if not axis.memory:
            return None
        last = result[-1] if result else None
        if last and last.words == axis.words * axis.size and last.memory == axis.memory * axis.size:
            result[-1] = Axis(last.size * axis.size, axis.words, axis.memory)
        else:
            result.append(axis)
    if not result or result[-1].words != 1:
        result.append(Axis(1, 1, 1))
    return tuple(result) if len(result) <= _ROW_AXES + 1 else None


def draw_all(targets: Iterable[Target], device: Any) -> bool:
    """Fills arrays that are all on one device; returns True once kernels have started. Their axes are `merged`."""
    groups: dict[tuple[str, int], list[Target]] = {}
    for target in targets:
        draw = target.draw
        shape = (NORMAL if draw.shape == "normal" else UNIFORM) if draw.scale else CONSTANT
        groups.setdefault((target.dtype, shape), []).append(target)
    device = torch.device(device)
    nodes = _quantiles_on(device)
    for (dtype, shape), members in groups.items():
        whole, careful = _tables(members, _BYTES[dtype])
        whole_pieces = _pieces(whole, -(-whole[:, _RUN] // CHUNK))
        careful_pieces = _pieces(careful, -(-8 * careful[:, _ROWS] * careful[:, _RUN_BLOCKS] // CAREFUL_CHUNK))
        there = copied_to(device, [whole, whole_pieces, careful, careful_pieces])
        options = {"DTYPE": DTYPES[dtype], "SHAPE": shape, "WIDTH": WIDTH, "enable_fp_fusion": False}
        options["NVIDIA"] = device.type == "cuda" and torch.version.hip is None  # not in the interpreter
        if len(whole):
            grid = (len(whole_pieces),)
            draw_whole_chunks[grid](*there[:2], nodes, CHUNK=CHUNK, BLOCK=BLOCK, num_warps=WARPS, **options)
        if len(careful):
            grid = (len(careful_pieces),)
            draw_carefully[grid](
                *there[2:], CHUNK=CAREFUL_CHUNK, BLOCK=CAREFUL_BLOCK, num_warps=CAREFUL_WARPS, **options
            )  # fmt: skip
    return True


def _tables(targets: Sequence[Target], item: int) -> tuple[Any, Any]:
    """The rows for whole chunks, and those for everything else. A row has COLUMNS; `first_chunk` is not known yet."""
    table = np.zeros((len(targets), WIDTH), np.int64)
    doubles = table.view(np.float64)
    addresses, _, keys, draws, first_words, axes = zip(*targets, strict=True)
    table[:, _ADDRESS], table[:, _FIRST_WORD] = addresses, first_words
    # Much faster than `np.array`, which looks at each pair.
    table[:, _KEY] = np.fromiter(chain.from_iterable(keys), np.uint64, 2 * len(keys)).view(np.int64).reshape(-1, 2)
    doubles[:, _DRAW] = _spread(draws, lambda draw: draw[1:], np.float64)
    table[:, _RUN:] = _spread(axes, _layout, np.int64)
    run, limited = table[:, _RUN], (np.abs(doubles[:, _DRAW][:, 1:]) < ROUGH_LIMIT).all(axis=1)
    dense = limited & (table[:, _RUN_STRIDE] == 1) & (table[:, _ROWS] == 1)
    aligned = (table[:, _FIRST_WORD] % 8 == 0) & (table[:, _ADDRESS] % 16 == 0)
    sizes = np.where(dense & aligned, run // BLOCK * BLOCK, 0)
    whole = table[sizes > 0]
    whole[:, _RUN] = sizes[sizes > 0]
    table[:, _ADDRESS] += item * sizes
    table[:, _FIRST_WORD] += sizes
    run -= sizes
    table[:, _RUN_BLOCKS] = _run_blocks(run)
    return whole, table[(run > 0) & (table[:, _ROWS] > 0)]


def _spread(keys: Sequence[Any], row_of: Callable[[Any], tuple[float, ...]], dtype: Any) -> Any:
    """The row of each key, which is computed once for equal keys, as most are."""
    numbers: dict[Any, int] = {}
    numbers_of_keys = [numbers.setdefault(key, len(numbers)) for key in keys]
    return np.array([row_of(different) for different in numbers], dtype)[numbers_of_keys]


def _pieces(table: Any, counts: Any) -> Any:
    """The row of each chunk, if each row of the table has this number of chunks; the table gets its first chunks."""
    table[:, _FIRST_CHUNK] = np.cumsum(counts) - counts
    return np.repeat(np.arange(len(table), dtype=np.int32), counts)


@cache
def _quantiles_on(device: torch.device) -> torch.Tensor:
    return torch.from_numpy(table_of_quantiles()).to(device)


@cache
def table_of_quantiles() -> Any:
    """The table of quantiles for `draw_whole_chunks`."""
    powers = round(-log2(NODES_END))
    mantissas = [1 + step / NODES_PER_POWER for step in range(NODES_PER_POWER)]
    distances = [NODES_END * 2**power * mantissa for power in range(powers) for mantissa in mantissas]
    quantiles = [*(-NormalDist().inv_cdf(distance / 2) for distance in distances), 0.0]
    return np.array([(quantile, sqrt(pi / 2) * exp(quantile**2 / 2)) for quantile in quantiles])


def _run_blocks(run: Any) -> Any:
    """The most blocks that a run of words is in: it may begin and end in the middle of a block."""
    return (run + 6) // 8 + 1


def _layout(axes: tuple[Axis, ...]) -> tuple[int, ...]:
    """The columns of a table row from `run` on."""
    *row_axes, run = axes
    zeroth, first, second = [Axis(1, 0, 0)] * (_ROW_AXES - len(row_axes)) + row_axes
    rows = prod(axis.size for axis in row_axes)
    rows_first = bool(row_axes) and abs(second.memory) < abs(run.memory)  # so that lanes fill neighbors in memory
    words = (zeroth.words, first.words, second.words)
    memory = (zeroth.memory, first.memory, second.memory)
    sizes = (first.size, second.size)
    return (run.size, run.memory, rows, _run_blocks(run.size), int(rows_first), *sizes, *words, *memory)
