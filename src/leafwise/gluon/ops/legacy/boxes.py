"""Boxes of `nd.contrib`, which detectors use: (left, top, right, bottom), or the center and the size."""

import math
from typing import Any

import torch

from leafwise.gluon.base import MXNetError, refusal


def box_iou(lhs: torch.Tensor, rhs: torch.Tensor, format: str = "corner") -> torch.Tensor:
    """The area of the intersection of each pair of boxes, divided by that of their union."""
    if format not in ("corner", "center"):
        raise MXNetError(f"nd.contrib.box_iou: format must be 'corner' or 'center', not {format!r}")
    boxes = [side if format == "corner" else _corners(side) for side in (lhs.detach(), rhs.detach())]
    first = boxes[0].reshape(-1, 1, 4)
    second = boxes[1].reshape(1, -1, 4)
    low, high = torch.maximum(first[..., :2], second[..., :2]), torch.minimum(first[..., 2:], second[..., 2:])
    shared = (high - low).clamp(min=0).prod(-1)
    areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (first, second)]
    return (shared / (areas[0] + areas[1] - shared)).reshape(*lhs.shape[:-1], *rhs.shape[:-1])


def _corners(boxes: torch.Tensor) -> torch.Tensor:
    center, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat([center - half, center + half], -1)


def MultiBoxPrior(  # noqa: N802
    data: torch.Tensor,
    sizes: Any = (1.0,),
    ratios: Any = (1.0,),
    clip: Any = False,
    steps: Any = (-1.0, -1.0),
    offsets: Any = (0.5, 0.5),
) -> torch.Tensor:
    """Boxes of several sizes and ratios around every position of a picture: each size with the first ratio, then the
    first size with the other ratios."""
    height, width = data.shape[-2:]
    step_y, step_x = (1 / size if step <= 0 else step for step, size in zip(steps, (height, width), strict=True))
    pairs = [(size, ratios[0]) for size in sizes] + [(sizes[0], ratio) for ratio in ratios[1:]]
    halves = [(size * height / width * math.sqrt(r) / 2, size / math.sqrt(r) / 2) for size, r in pairs]
    half = torch.tensor(halves, dtype=torch.float64)
    rows = (torch.arange(height, dtype=torch.float64) + offsets[0]) * step_y
    columns = (torch.arange(width, dtype=torch.float64) + offsets[1]) * step_x
    centers = torch.stack([*reversed(torch.meshgrid(rows, columns, indexing="ij"))], -1).reshape(-1, 1, 2)
    boxes = torch.cat([centers - half, centers + half], -1).reshape(1, -1, 4)
    return (boxes.clamp(0, 1) if clip else boxes).to(device=data.device, dtype=data.dtype)


def box_nms(
    data: torch.Tensor,
    overlap_thresh: float = 0.5,
    valid_thresh: float = 0.0,
    topk: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = -1,
    background_id: int = -1,
    force_suppress: Any = False,
    in_format: str = "corner",
    out_format: str = "corner",
) -> torch.Tensor:
    """The boxes in the order of their scores, without those that overlap a better one of their class; the rest is -1.

    It cannot be differentiated here.
    """
    if (in_format, out_format) != ("corner", "corner"):
        raise refusal("nd.contrib.box_nms with in_format or out_format 'center'", "convert the boxes to corners")
    batches = data.detach().reshape(-1, *data.shape[-2:])
    result = torch.full_like(batches, -1)
    for boxes, kept in zip(batches, result, strict=True):
        is_valid = boxes[:, score_index] > valid_thresh
        if id_index >= 0 and background_id >= 0:
            is_valid &= boxes[:, id_index] != background_id
        candidates = boxes[is_valid]
        order = torch.argsort(candidates[:, score_index], descending=True, stable=True)
        candidates = candidates[order[:topk] if topk > 0 else order]
        corners = candidates[:, coord_start : coord_start + 4]
        overlaps = box_iou(corners, corners) > overlap_thresh
        if id_index >= 0 and not force_suppress:
            overlaps &= candidates[:, id_index, None] == candidates[None, :, id_index]
        chosen: list[int] = []
        for index in range(len(candidates)):
            if not any(bool(overlaps[better, index]) for better in chosen):
                chosen.append(index)
        kept[: len(chosen)] = candidates[chosen]
    return result.reshape(data.shape)
