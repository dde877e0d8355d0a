"""Shapes taken from other arrays, MXNet's own reshape codes, slices and padding."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from leafwise.gluon.arrays.dtypes import torch_dtype
from leafwise.gluon.base import MXNetError
from leafwise.gluon.ops.neural_checks import axis_of, constant_of, one_of


def batch_dot(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    forward_stype: Any = "default",
) -> torch.Tensor:
    """The matrix products of two batches of matrices."""
    left = lhs.transpose(-1, -2) if transpose_a else lhs
    right = rhs.transpose(-1, -2) if transpose_b else rhs
    if left.ndim != right.ndim or left.shape[:-2] != right.shape[:-2] or left.shape[-1] != right.shape[-2]:
        raise MXNetError(f"batch_dot: shapes {tuple(lhs.shape)} and {tuple(rhs.shape)} do not fit")
    return torch.matmul(left, right)


def batch_flatten(data: torch.Tensor) -> torch.Tensor:
    """All axes but the first as one, in a copy."""
    return data.reshape(data.shape[0], math.prod(data.shape[1:])).clone()


def arange_like(
    data: torch.Tensor,
    start: float = 0.0,
    step: float = 1.0,
    repeat: int = 1,
    ctx: Any = None,
    axis: int | None = None,
) -> torch.Tensor:
    """start, start + step, …, as many as the data has elements, or as it is long along an axis."""
    count = data.numel() if axis is None else data.shape[axis_of("arange_like", axis, data.ndim)]
    numbers = torch.arange(-(-count // repeat), device=data.device).to(torch.float32) * step + start
    numbers = numbers.repeat_interleave(repeat)[:count].to(data.dtype)
    return constant_of(numbers.reshape(data.shape) if axis is None else numbers, data)


def reshape_like(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    lhs_begin: int | None = None,
    lhs_end: int | None = None,
    rhs_begin: int | None = None,
    rhs_end: int | None = None,
) -> torch.Tensor:
    """`lhs` in the shape of `rhs`, or with some of its axes replaced by some of those of `rhs`."""
    mine, others = slice(lhs_begin, lhs_end), slice(rhs_begin, rhs_end)
    before, after = lhs.shape[: mine.indices(lhs.ndim)[0]], lhs.shape[mine.indices(lhs.ndim)[1] :]
    shape = (*before, *rhs.shape[others], *after)
    if math.prod(shape) != lhs.numel():
        raise MXNetError(f"reshape_like: cannot reshape {tuple(lhs.shape)} like {tuple(rhs.shape)}")
    return lhs.reshape(shape).clone()


def broadcast_like(lhs: torch.Tensor, rhs: torch.Tensor, lhs_axes: Any = None, rhs_axes: Any = None) -> torch.Tensor:
    """`lhs` repeated along its axes of size 1, to the size of `rhs`."""
    if lhs_axes is None or rhs_axes is None:
        target = list(rhs.shape)
    else:
        target = list(lhs.shape)
        for mine, other in zip(lhs_axes, rhs_axes, strict=True):
            target[mine] = rhs.shape[other]
    fits = len(target) == lhs.ndim and all(size in (1, to) for size, to in zip(lhs.shape, target, strict=True))
    if not fits:
        raise MXNetError(f"broadcast_like: cannot broadcast {tuple(lhs.shape)} to {tuple(target)}")
    return lhs.broadcast_to(target).clone()


def slice_like(data: torch.Tensor, shape_like: torch.Tensor, axes: Any = ()) -> torch.Tensor:
    """The beginning of the data, as large as another array along some axes, or all."""
    chosen = range(data.ndim) if axes is None or axes == () else [axis % data.ndim for axis in axes]
    cut = [slice(shape_like.shape[axis]) if axis in chosen else slice(None) for axis in range(data.ndim)]
    for axis in chosen:
        if shape_like.shape[axis] > data.shape[axis]:
            raise MXNetError(
                f"slice_like: axis {axis} of shape {tuple(data.shape)} is smaller than in {tuple(shape_like.shape)}"
            )
    return data[tuple(cut)].clone()


def sliced(data: torch.Tensor, begin: Any, end: Any, step: Any = None) -> torch.Tensor:
    """The part of the data from `begin` to `end` along each of its first axes; None stands for the whole axis."""
    firsts, lasts = (_listed(side) for side in (begin, end))
    steps = _listed(step) if step is not None and step != () else [None] * len(firsts)
    if not len(firsts) == len(lasts) == len(steps):
        raise MXNetError("slice: begin, end and step must have the same length")
    for axis, (first, last, stride) in enumerate(zip(firsts, lasts, steps, strict=True)):
        positions = range(data.shape[axis])[slice(first, last, stride)]
        data = data.index_select(axis, torch.tensor([*positions], dtype=torch.int64, device=data.device))
    return data


def _listed(value: Any) -> list[Any]:
    return [*value] if isinstance(value, tuple | list) else [value]


def slice_channel(
    data: torch.Tensor, num_outputs: int | None = None, axis: int = 1, squeeze_axis: bool = False
) -> list[torch.Tensor]:
    """Equal parts of the data along an axis."""
    axis = axis_of("SliceChannel", axis, data.ndim)
    if not num_outputs or data.shape[axis] % num_outputs:
        raise MXNetError(
            f"SliceChannel: cannot split axis {axis} of {tuple(data.shape)} into {num_outputs} equal parts"
        )
    parts = [part.clone() for part in data.chunk(num_outputs, axis)]
    return [part.squeeze(axis) for part in parts] if squeeze_axis else parts


def pad(
    data: torch.Tensor, mode: str | None = None, pad_width: Any = None, constant_value: float = 0.0
) -> torch.Tensor:
    """Pads with a constant, the edge or a reflection. `pad_width` is (before, after) of each axis in turn."""
    one_of("pad", "mode", mode, ("constant", "edge", "reflect"))
    widths = [int(width) for width in pad_width]
    if len(widths) != 2 * data.ndim or data.ndim not in (4, 5) or any(widths[:4]):
        raise MXNetError(
            f"pad: needs data of 4 or 5 dimensions and a pad_width of twice as many numbers, of which the first four "
            f"are 0; got shape {tuple(data.shape)} and {tuple(widths)}"
        )
    pairs = [widths[2 * axis : 2 * axis + 2] for axis in range(data.ndim - 1, 1, -1)]
    margins = [width for pair in pairs for width in pair]
    if mode == "constant":
        return torch.nn.functional.pad(data, margins, value=constant_value)
    return torch.nn.functional.pad(data, margins, mode="replicate" if mode == "edge" else "reflect")


def cast(data: torch.Tensor, dtype: Any = None) -> torch.Tensor:
    return data.to(torch_dtype(dtype), copy=True)


def shape_array(data: torch.Tensor) -> torch.Tensor:
    return torch.tensor(tuple(data.shape), dtype=torch.int64)


def depth_to_space(data: torch.Tensor, block_size: int) -> torch.Tensor:
    """Moves blocks of channels into height and width."""
    batch, depth, height, width = data.shape
    blocks = data.reshape(batch, block_size, block_size, depth // block_size**2, height, width)
    moved = blocks.permute(0, 3, 4, 1, 5, 2)
    return moved.reshape(batch, depth // block_size**2, height * block_size, width * block_size)


def space_to_depth(data: torch.Tensor, block_size: int) -> torch.Tensor:
    """Moves blocks of height and width into channels."""
    batch, depth, height, width = data.shape
    blocks = data.reshape(batch, depth, height // block_size, block_size, width // block_size, block_size)
    moved = blocks.permute(0, 3, 5, 1, 2, 4)
    return moved.reshape(batch, depth * block_size**2, height // block_size, width // block_size)


def im2col(
    data: torch.Tensor, kernel: Any = None, stride: Any = None, dilate: Any = None, pad: Any = None
) -> torch.Tensor:
    """The patches of images as columns."""
    return torch.nn.functional.unfold(data, kernel, dilate or 1, pad or 0, stride or 1)


def add_n(*args: torch.Tensor) -> torch.Tensor:
    """The sum of arrays of one shape."""
    arrays = args[0] if len(args) == 1 and isinstance(args[0], list | tuple) else args
    total: torch.Tensor = arrays[0].clone()
    for array in arrays[1:]:
        total = total + array
    return total


def norm(
    data: torch.Tensor, ord: int = 2, axis: Any = None, out_dtype: Any = None, keepdims: bool = False
) -> torch.Tensor:
    """The sum of absolute values (ord=1) or the Euclidean norm (ord=2) along axes."""
    if ord not in (1, 2):
        raise MXNetError(f"norm: only supports ord=1 or ord=2, not {ord}")
    axes = [*range(data.ndim)] if axis is None or axis == () else [axis] if isinstance(axis, int) else [*axis]
    result = data.abs().sum(axes, keepdim=keepdims) if ord == 1 else (data * data).sum(axes, keepdim=keepdims).sqrt()
    result = result.reshape(1) if not result.ndim else result
    return result if out_dtype is None else result.to(torch_dtype(out_dtype))


def reshaped(data: torch.Tensor, newshape: Any, reverse: bool = False, order: str = "C") -> torch.Tensor:
    """`npx.reshape`: sizes, and the codes -1 (infer), -2 (copy this axis), -3 (drop an axis of size 1), -4 (copy all
    remaining axes), -5 (merge two axes) and -6 (split an axis into the two sizes that follow)."""
    if order != "C":
        raise MXNetError(f"npx.reshape: only order 'C' is supported, not {order!r}")
    codes = [newshape] if isinstance(newshape, int) else [int(code) for code in newshape]
    sizes = list(data.shape)
    if reverse:
        target = _decoded(codes[::-1], sizes[::-1])[::-1]  # read from the right
    else:
        target = _decoded(codes, sizes)
    known = math.prod(size for size in target if size != -1)
    if -1 in target:
        if target.count(-1) > 1 or not known or data.numel() % known:
            raise MXNetError(f"npx.reshape: cannot reshape {tuple(data.shape)} to {tuple(codes)}")
        target[target.index(-1)] = data.numel() // known
    if math.prod(target) != data.numel():
        raise MXNetError(f"npx.reshape: cannot reshape {tuple(data.shape)} to {tuple(codes)}")
    return data.reshape(target).clone()


def _decoded(codes: Sequence[int], sizes: list[int]) -> list[int]:
    target: list[int] = []
    source, position = 0, 0

    def next_size() -> int:
        nonlocal source
        if source >= len(sizes):
            raise MXNetError(f"npx.reshape: {tuple(codes)} needs more axes than the shape {tuple(sizes)} has")
        source += 1
        return sizes[source - 1]

    while position < len(codes):
        code = codes[position]
        position += 1
        if code >= -1:
            target.append(code)
            source += 1
        elif code == -2:
            target.append(next_size())
        elif code == -3:
            if next_size() != 1:
                raise MXNetError("npx.reshape: -3 drops an axis of size 1 only")
        elif code == -4:
            target += sizes[source:]
            source = len(sizes)
        elif code == -5:
            target.append(next_size() * next_size())
        elif code == -6:
            whole, first, second = next_size(), *codes[position : position + 2]
            position += 2
            if first == -1:
                first = whole // second
            elif second == -1:
                second = whole // first
            if first * second != whole:
                raise MXNetError(f"npx.reshape: cannot split an axis of size {whole} into {first} and {second}")
            target += [first, second]
        else:
            raise MXNetError(f"npx.reshape: unknown code {code}")
    return target
