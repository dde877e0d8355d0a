"""Pooling as in MXNet: max, avg, sum and lp, global pooling, and the conventions valid, full and same."""

import math
from typing import Any

import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.dialect import is_v1
from leafwise_gluon.ops.neural_checks import floating, one_of, spatial
from leafwise_gluon.ops.neural_linear import channels_last

_MAX = {1: torch.nn.functional.max_pool1d, 2: torch.nn.functional.max_pool2d, 3: torch.nn.functional.max_pool3d}
_AVERAGE: dict[int, Any] = {
    1: torch.nn.functional.avg_pool1d,
    2: torch.nn.functional.avg_pool2d,
    3: torch.nn.functional.avg_pool3d,
}


def pooling(
    data: torch.Tensor,
    kernel: Any = None,
    pool_type: str = "max",
    global_pool: bool = False,
    cudnn_off: bool = False,
    pooling_convention: str = "valid",
    stride: Any = None,
    pad: Any = None,
    p_value: int | None = None,
    count_include_pad: bool | None = None,
    layout: str | None = None,
    output_size: Any = None,
) -> torch.Tensor:
    """Pools windows of the data. The convention "full" rounds the number of windows up, "valid" rounds it down."""
    if output_size is not None:
        raise refusal("Pooling with output_size", "use contrib.AdaptiveAvgPooling2D")
    one_of("Pooling", "pool_type", pool_type, ("max", "avg", "sum", "lp"))
    one_of("Pooling", "pooling_convention", pooling_convention, ("valid", "full"))
    floating("Pooling", data)
    dimensions = data.ndim - 2
    if dimensions not in _MAX:
        raise MXNetError(f"Pooling: Input data should be 3D, 4D or 5D, not of shape {tuple(data.shape)}")
    if layout is not None and len(layout) != data.ndim:
        raise MXNetError(
            f"Pooling: Input data should be {len(layout)}D for the layout {layout}, not of shape {tuple(data.shape)}"
        )
    last = channels_last("Pooling", layout, dimensions)
    if last:
        data = data.movedim(-1, 1)
    if global_pool:
        windows, steps, pads = tuple(data.shape[2:]), (1,) * dimensions, (0,) * dimensions
    else:
        windows = _kernel(kernel, dimensions, tuple(data.shape))
        steps, pads = spatial(stride, dimensions, 1), spatial(pad, dimensions, 0)
        _check_windows(windows, pads, tuple(data.shape[2:]))
    counts_pad = count_include_pad is not False
    result = _pooled(data, windows, steps, pads, pool_type, pooling_convention == "full", counts_pad, p_value)
    return result.movedim(1, -1).contiguous() if last else result


def _kernel(kernel: Any, dimensions: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if kernel is None or (isinstance(kernel, tuple | list) and not kernel):
        raise MXNetError("Pooling: kernel is needed unless global_pool=True")
    if not isinstance(kernel, int) and len(kernel) != dimensions:
        raise MXNetError(
            f"Pooling: Input data should be {len(kernel) + 2}D for the kernel {tuple(kernel)}, not of shape {shape}"
        )
    return spatial(kernel, dimensions, 1)


def _check_windows(windows: tuple[int, ...], pads: tuple[int, ...], sizes: tuple[int, ...]) -> None:
    for window, pad, size in zip(windows, pads, sizes, strict=True):
        if window > size + 2 * pad:
            raise MXNetError(f"Pooling: kernel size ({window}) exceeds input ({size} padded to {size + 2 * pad})")
        if pad >= window:
            raise MXNetError(f"Pooling: a padding of {pad} needs a kernel larger than {window}")


def _pooled(
    data: torch.Tensor,
    windows: tuple[int, ...],
    steps: tuple[int, ...],
    pads: tuple[int, ...],
    kind: str,
    full: bool,
    counts_pad: bool,
    p_value: int | None,
) -> torch.Tensor:
    dimensions = len(windows)
    sizes = tuple(data.shape[2:])
    spans = [size + 2 * pad - window for size, pad, window in zip(sizes, pads, windows, strict=True)]
    aligned = all(span % step == 0 for span, step in zip(spans, steps, strict=True))
    half = all(2 * pad <= window for pad, window in zip(pads, windows, strict=True))
    if (aligned or not full) and half:  # PyTorch has the same windows
        if kind == "max":
            return _MAX[dimensions](data, windows, steps, pads)
        if kind == "avg":
            return _AVERAGE[dimensions](  # type: ignore[no-any-return]
                data, windows, steps, pads, count_include_pad=counts_pad
            )
    counts = [_windows(span, step, full) for span, step in zip(spans, steps, strict=True)]
    margins: list[int] = []
    for count, step, window, size, pad in reversed([*zip(counts, steps, windows, sizes, pads, strict=True)]):
        margins += [pad, max((count - 1) * step + window - size - pad, 0)]
    if kind == "max":
        padded = torch.nn.functional.pad(data, margins, value=torch.finfo(data.dtype).min)
        return _MAX[dimensions](padded, windows, steps)[tuple(slice(count) for count in (None, None, *counts))]
    if kind == "lp":
        if p_value not in (1, 2, 3):
            raise MXNetError(f"Pooling: pool_type='lp' needs p_value 1, 2 or 3, not {p_value}")
        sums = _summed(torch.nn.functional.pad(data**p_value, margins), windows, steps, counts)
        return sums ** (1 / p_value)
    sums = _summed(torch.nn.functional.pad(data, margins), windows, steps, counts)
    if kind == "sum":
        return sums
    averages = sums / _elements(data, windows, steps, pads, counts, counts_pad)
    sizes_back = [count + 2 * pad - window for count, pad, window in zip(counts, pads, windows, strict=True)]
    if counts_pad and all(size % step == 0 for size, step in zip(sizes_back, steps, strict=True)):
        # MXNet chooses the kernel of its backward pass by the shape of the result. If the windows would fit that shape,
        # the gradient is divided by the size of a full window, also for the windows that are cut off at the end.
        by_full_window = sums / math.prod(windows)
        return by_full_window + (averages - by_full_window).detach()
    return averages


def _windows(span: int, step: int, full: bool) -> int:
    return 1 + (-(-span // step) if full else span // step)


def _summed(data: torch.Tensor, windows: tuple[int, ...], steps: tuple[int, ...], counts: list[int]) -> torch.Tensor:
    sums = _AVERAGE[len(windows)](data, windows, steps) * math.prod(windows)
    return sums[tuple(slice(count) for count in (None, None, *counts))]  # type: ignore[no-any-return]


def _elements(
    data: torch.Tensor,
    windows: tuple[int, ...],
    steps: tuple[int, ...],
    pads: tuple[int, ...],
    counts: list[int],
    counts_pad: bool,
) -> torch.Tensor:
    """How many elements each window has, without what lies beyond the padding, or with `counts_pad` the padding."""
    elements = torch.ones((), dtype=data.dtype, device=data.device)
    for window, step, pad, count, size in zip(windows, steps, pads, counts, data.shape[2:], strict=True):
        starts = torch.arange(count, device=data.device) * step - pad
        ends = torch.clamp(starts + window, max=size + pad)
        if not counts_pad:
            starts, ends = starts.clamp(min=0), ends.clamp(max=size)
        elements = elements[..., None] * (ends - starts).clamp(min=1).to(data.dtype)
    return elements


def adaptive_average_pooling(data: torch.Tensor, output_size: Any = None) -> torch.Tensor:
    """Averages over windows such that the result has the given height and width."""
    if not output_size and not is_v1():
        raise MXNetError("AdaptiveAvgPooling2D: Required parameter output_size is not presented; give it")
    size = output_size or 1
    sizes = (size, size) if isinstance(size, int) else tuple(size)
    return torch.nn.functional.adaptive_avg_pool2d(data, sizes * 2 if len(sizes) == 1 else sizes)
