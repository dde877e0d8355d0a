"""Initial values of arrays on a GPU: one table, and a launch or two for each dtype and distribution."""

from collections.abc import Iterable, Sequence
from math import prod
from struct import Struct
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl

from leafwise.core.capabilities.filling import Draw
from leafwise.kernels.triton_drawing import (
    CONSTANT,
    NORMAL,
    ROUGH_LIMIT,
    UNIFORM,
    WIDTH,
    draw_carefully,
    draw_whole_chunks,
)

DTYPES = {"float32": tl.float32, "bfloat16": tl.bfloat16, "float16": tl.float16}
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

# Elements that a program fills, and elements that it fills at a time: eight a lane of one warp, so that few are
# computed again in 64 bits, and no warp waits for another.
CHUNK, BLOCK, WARPS = 1 << 14, 256, 1
CAREFUL_CHUNK, CAREFUL_BLOCK, CAREFUL_WARPS = 1 << 13, 1024, 4

_ROW = Struct("<qQQqq3d13q")
_ROW_AXES = 3  # the axes of an array, after merging, other than the last one


class Axis(NamedTuple):
    """An axis of an array: its size, and how many words and how many elements in memory are from one index to the
    next."""

    size: int
    words: int
    memory: int


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
        shape = (NORMAL if target.draw.shape == "normal" else UNIFORM) if target.draw.scale else CONSTANT
        groups.setdefault((target.dtype, shape), []).append(target)
    for (dtype, shape), members in groups.items():
        whole, careful = _Pieces(CHUNK), _Pieces(CAREFUL_CHUNK)
        for target in members:
            _add(target, whole, careful)
        options = {"DTYPE": DTYPES[dtype], "SHAPE": shape, "WIDTH": WIDTH, "enable_fp_fusion": False}
        options["NVIDIA"] = torch.device(device).type == "cuda" and torch.version.hip is None  # not in the interpreter
        if whole.chunks:
            draw_whole_chunks[(whole.chunks,)](
                *whole.on(device), CHUNK=CHUNK, BLOCK=BLOCK, num_warps=WARPS, **options
            )  # fmt: skip
        if careful.chunks:
            draw_carefully[(careful.chunks,)](
                *careful.on(device), CHUNK=CAREFUL_CHUNK, BLOCK=CAREFUL_BLOCK, num_warps=CAREFUL_WARPS, **options
            )  # fmt: skip
    return True


class _Pieces:
    """The rows of a table, and the number of chunks of each."""

    def __init__(self, chunk: int) -> None:
        self.chunk, self.chunks = chunk, 0
        self._rows: list[bytes] = []
        self._counts: list[int] = []

    def add(self, target: Target, words: int, layout: Sequence[int]) -> None:
        """Adds a piece of this many words; the layout has the columns from `run` on."""
        draw = target.draw
        head = (target.address, *target.key, target.first_word, self.chunks)
        self._rows.append(_ROW.pack(*head, draw.narrow, draw.scale, draw.shift, *layout))
        self._counts.append(-(-words // self.chunk))
        self.chunks += self._counts[-1]

    def on(self, device: Any) -> tuple[Any, Any]:
        """The table, and the row of each chunk."""
        table = np.frombuffer(bytearray(b"".join(self._rows)), np.int64)
        rows = np.repeat(np.arange(len(self._rows), dtype=np.int32), self._counts)
        return torch.from_numpy(table).to(device), torch.from_numpy(rows).to(device)


def _add(target: Target, whole: _Pieces, careful: _Pieces) -> None:
    """Adds an array to the whole chunks as far as possible, and the rest to the others."""
    *row_axes, run = target.axes
    size = 0
    if not row_axes and run.memory == 1 and not target.first_word % 8 and not target.address % 16:
        if max(abs(target.draw.scale), abs(target.draw.shift)) < ROUGH_LIMIT:
            size = run.size // BLOCK * BLOCK
    if size:
        whole.add(target, size, _layout([], Axis(size, 1, 1)))
        run = run._replace(size=run.size - size)
        address = target.address + size * _BYTES[target.dtype]
        target = target._replace(address=address, first_word=target.first_word + size)
    if run.size:
        layout = _layout(row_axes, run)
        careful.add(target, 8 * layout[2] * layout[3], layout)


def _layout(row_axes: Sequence[Axis], run: Axis) -> tuple[int, ...]:
    """The columns of a table row from `run` on."""
    none = Axis(1, 0, 0)
    zeroth, first, second = (*(none,) * (_ROW_AXES - len(row_axes)), *row_axes)
    run_blocks = (run.size + 6) // 8 + 1  # a run may begin and end in the middle of a block
    rows_first = bool(row_axes) and abs(second.memory) < abs(run.memory)  # so that neighbors in memory are filled at once
    rows = prod(axis.size for axis in row_axes)
    words = (zeroth.words, first.words, second.words)
    memory = (zeroth.memory, first.memory, second.memory)
    return (run.size, run.memory, rows, run_blocks, int(rows_first), first.size, second.size, *words, *memory)
