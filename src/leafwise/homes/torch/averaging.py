"""Arithmetic for moving averages of tensors, many at once."""

from operator import attrgetter
from typing import Any

import torch

from leafwise.core.capabilities.averaging import Averaging

_shape = attrgetter("shape")


class TorchAveraging(Averaging):
    def first_of_other_shape(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> int | None:
        target_shapes, value_shapes = list(map(_shape, targets)), list(map(_shape, values))
        if target_shapes == value_shapes:
            return None
        return next(number for number, shape in enumerate(target_shapes) if shape != value_shapes[number])

    def clone_many(self, values: list[torch.Tensor], precise: bool) -> list[torch.Tensor]:
        # Outside of inference mode, because tensors made there cannot be changed in place outside of it.
        with torch.inference_mode(False), torch.no_grad():
            return [_precise(value).clone() if precise else value.detach().clone() for value in values]

    def copy_many(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            torch._foreach_copy_(targets, values)
        return targets

    def lerp_many(self, targets: list[torch.Tensor], values: list[torch.Tensor], weight: float) -> list[torch.Tensor]:
        with torch.no_grad():
            for some_targets, some_values in _by_kind(targets, values):
                first = some_targets[0]
                if (first.dtype, first.device) != (some_values[0].dtype, some_values[0].device):
                    some_values = [value.to(first) for value in some_values]
                torch._foreach_lerp_(some_targets, some_values, weight)
        return targets


def _precise(value: torch.Tensor) -> torch.Tensor:
    narrow = value.is_floating_point() and value.element_size() < 4
    return value.detach().float() if narrow else value.detach()


def _by_kind(
    targets: list[torch.Tensor], values: list[torch.Tensor]
) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """The pairs, grouped by dtype and device for one call each; usually there is only one group."""
    kinds = [
        (target.dtype, target.device, value.dtype, value.device) for target, value in zip(targets, values, strict=True)
    ]
    if len(set(kinds)) == 1:
        return [(targets, values)]
    pairs: dict[Any, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
    for kind, target, value in zip(kinds, targets, values, strict=True):
        some_targets, some_values = pairs.setdefault(kind, ([], []))
        some_targets.append(target)
        some_values.append(value)
    return list(pairs.values())
