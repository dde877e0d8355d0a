"""Arithmetic for moving averages of tensors, many at once."""

from operator import attrgetter
from typing import Any

import torch

from leafwise.core.capabilities.averaging import Averaging

_shape = attrgetter("shape")


class TorchAveraging(Averaging):
    def first_of_other_shape(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> int | None:
        shapes, others = list(map(_shape, targets)), list(map(_shape, values))
        if shapes == others:
            return None
        return next(number for number, shape in enumerate(shapes) if shape != others[number])

    def clone_many(self, values: list[torch.Tensor], precise: bool) -> list[torch.Tensor]:
        # Outside of inference mode, since what is made there cannot be changed elsewhere.
        with torch.inference_mode(False), torch.no_grad():
            return [_precise(value).clone() if precise else value.detach().clone() for value in values]

    def copy_many(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            torch._foreach_copy_(targets, values)
        return targets

    def lerp_many(self, targets: list[torch.Tensor], values: list[torch.Tensor], weight: float) -> list[torch.Tensor]:
        with torch.no_grad():
            for ours, theirs in _alike(targets, values):
                if (ours[0].dtype, ours[0].device) != (theirs[0].dtype, theirs[0].device):
                    theirs = [value.to(ours[0]) for value in theirs]
                torch._foreach_lerp_(ours, theirs, weight)
        return targets


def _precise(value: torch.Tensor) -> torch.Tensor:
    narrow = value.is_floating_point() and value.element_size() < 4
    return value.detach().float() if narrow else value.detach()


def _alike(
    targets: list[torch.Tensor], values: list[torch.Tensor]
) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Pairs that can be treated at once, since they are of one kind and on one device; mostly that is all of them."""
    kinds = [(one.dtype, one.device, other.dtype, other.device) for one, other in zip(targets, values, strict=True)]
    if len(set(kinds)) == 1:
        return [(targets, values)]
    found: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for kind, one, other in zip(kinds, targets, values, strict=True):
        ours, theirs = found.setdefault(kind, ([], []))
        ours.append(one)
        theirs.append(other)
    return list(found.values())
