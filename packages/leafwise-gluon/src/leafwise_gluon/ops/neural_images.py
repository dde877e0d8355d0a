"""Operations on images and on boxes in them."""

import math
from collections.abc import Sequence
from typing import Any

import torch

from leafwise_gluon.base import MXNetError, refusal
from leafwise_gluon.ops.legacy.contributed import box_iou
from leafwise_gluon.ops.legacy.gradients import with_zero_gradient
from leafwise_gluon.ops.neural_checks import check_count, one_of
from leafwise_gluon.ops.neural_linear import deconvolution


def up_sampling(
    *data: torch.Tensor,
    scale: int,
    num_filter: int = 0,
    sample_type: str = "nearest",
    multi_input_mode: str = "concat",
    num_args: int | None = None,
    workspace: int = 512,
) -> torch.Tensor:
    """Enlarges height and width by a whole factor: by repetition, or by a transposed convolution with a weight."""
    check_count("UpSampling", "num_args", num_args, data)
    one_of("UpSampling", "sample_type", sample_type, ("nearest", "bilinear"))
    one_of("UpSampling", "multi_input_mode", multi_input_mode, ("concat", "sum"))
    if sample_type == "bilinear":
        images, weight = data
        width, border = 2 * scale - scale % 2, math.ceil((scale - 1) / 2)
        return deconvolution(
            images,
            weight,
            kernel=(width, width),
            stride=(scale, scale),
            pad=(border, border),
            num_filter=num_filter,
            num_group=num_filter,
        )
    if len(data) > 1:
        raise refusal("UpSampling of several arrays", "upsample them one by one, then use concat")
    return data[0].repeat_interleave(scale, 2).repeat_interleave(scale, 3)


def bilinear_resize(
    data: torch.Tensor,
    like: torch.Tensor | None = None,
    height: int = 1,
    width: int = 1,
    scale_height: float | None = None,
    scale_width: float | None = None,
    mode: str = "size",
    align_corners: bool = True,
) -> torch.Tensor:
    """Resizes images of shape (batch, channels, height, width) with bilinear interpolation."""
    if mode not in ("size", "like"):
        raise refusal(f"BilinearResize2D with mode {mode!r}", "give height and width")
    if (like is not None) != (mode == "like") or (scale_height is None) != (scale_width is None):
        raise MXNetError("BilinearResize2D takes like with mode 'like' only, and both scale_height and scale_width")
    if like is not None:
        height, width = like.shape[2:]
    elif scale_height is not None and scale_width is not None:
        height, width = int(data.shape[2] * scale_height), int(data.shape[3] * scale_width)
    return torch.nn.functional.interpolate(data, (height, width), mode="bilinear", align_corners=align_corners)


def roi_pooling(data: torch.Tensor, rois: torch.Tensor, pooled_size: Any, spatial_scale: float) -> torch.Tensor:
    """The maxima of a grid of `pooled_size` over each region; a region is (example, left, top, right, bottom)."""
    rows, columns = (int(size) for size in pooled_size)
    height, width = data.shape[2:]
    pooled = []
    for region in rois.detach().tolist():
        image = data[int(region[0])]
        left, top, right, bottom = (_rounded(number * spatial_scale) for number in region[1:])
        steps = (max(bottom - top + 1, 1) / rows, max(right - left + 1, 1) / columns)
        cells = []
        for row in range(rows):
            first, last = _cell(row, steps[0], top, height)
            for column in range(columns):
                start, end = _cell(column, steps[1], left, width)
                cell = image[:, first:last, start:end]
                cells.append(cell.amax((1, 2)) if cell.numel() else image.new_zeros(image.shape[0]))
        pooled.append(torch.stack(cells, 1).reshape(-1, rows, columns))
    return torch.stack(pooled)


def _rounded(number: float) -> int:
    return math.floor(abs(number) + 0.5) * (1 if number >= 0 else -1)


def _cell(number: int, step: float, offset: int, size: int) -> tuple[int, int]:
    first, last = math.floor(number * step) + offset, math.ceil((number + 1) * step) + offset
    return min(max(first, 0), size), min(max(last, 0), size)


def multibox_prior(
    data: torch.Tensor,
    sizes: Sequence[float] = (1.0,),
    ratios: Sequence[float] = (1.0,),
    clip: bool = False,
    steps: Sequence[float] = (-1.0, -1.0),
    offsets: Sequence[float] = (0.5, 0.5),
) -> torch.Tensor:
    """Anchor boxes around each pixel: one for each size with the first ratio, and one for each further ratio with the
    first size. The result has shape (1, pixels · boxes, 4), as (left, top, right, bottom) from 0 to 1."""
    height, width = data.shape[2:]
    sizes, ratios = ([float(number) for number in _numbers(given)] for given in (sizes, ratios))
    step_y, step_x = (1 / size if step <= 0 else step for step, size in zip(steps, (height, width), strict=True))
    middle_y = (torch.arange(height, dtype=torch.float32) + offsets[0]) * step_y
    middle_x = (torch.arange(width, dtype=torch.float32) + offsets[1]) * step_x
    shapes = [(size, ratios[0]) for size in sizes] + [(sizes[0], ratio) for ratio in ratios[1:]]
    half_x = torch.tensor([size * height / width * math.sqrt(ratio) / 2 for size, ratio in shapes])
    half_y = torch.tensor([size / math.sqrt(ratio) / 2 for size, ratio in shapes])
    middle_y, middle_x = middle_y[:, None, None], middle_x[None, :, None]
    edges = (middle_x - half_x, middle_y - half_y, middle_x + half_x, middle_y + half_y)
    boxes = torch.stack([edge.expand(height, width, len(shapes)) for edge in edges], -1)
    boxes = boxes.reshape(1, -1, 4).to(data.device)
    return with_zero_gradient(boxes.clamp(0, 1) if clip else boxes, data)


def _numbers(given: Any) -> Sequence[float]:
    return (given,) if isinstance(given, int | float) else given


def box_nms(
    data: torch.Tensor,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    background_id: int = -1,
    force_suppress: bool = False,
    in_format: str = "corner",
    out_format: str = "corner",
) -> torch.Tensor:
    """Keeps the boxes with the best scores, and drops those that overlap a better one of the same class. The kept rows
    come first; the rest is -1."""
    if in_format != out_format:
        raise refusal("box_nms that changes the format of boxes", "use the same in_format and out_format")
    kept = []
    for rows in data.reshape(-1, *data.shape[-2:]):
        scores = rows[:, score_index].detach()
        valid = scores > valid_thresh
        if id_index >= 0 and background_id >= 0:
            valid &= rows[:, id_index] != background_id
        order = [row for row in torch.argsort(scores, dim=0, descending=True, stable=True).tolist() if valid[row]]
        order = order[:topk] if topk > 0 else order
        boxes = rows[order, coord_start : coord_start + 4].detach()
        classes = (
            rows[order, id_index].detach() if id_index >= 0 and not force_suppress else boxes.new_zeros(len(order))
        )
        best = _without_overlaps(box_iou(boxes, boxes, in_format), classes, overlap_thresh)
        chosen = rows[[order[number] for number in best]]
        kept.append(torch.cat([chosen, rows.new_full((rows.shape[0] - len(best), rows.shape[1]), -1)]))
    return torch.stack(kept).reshape(data.shape)


def _without_overlaps(overlaps: torch.Tensor, classes: torch.Tensor, threshold: float) -> list[int]:
    """The boxes, from best to worst, that do not overlap a better kept one of the same class."""
    best: list[int] = []
    for box in range(len(classes)):
        if not any(classes[box] == classes[other] and overlaps[other, box] > threshold for other in best):
            best.append(box)
    return best
