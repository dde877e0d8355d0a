"""Arithmetic for moving averages of tensors, many at once.

The average of a sharded tensor is one that is sharded in the same way, so each rank averages its own part.
"""

from collections.abc import Iterator
from operator import attrgetter

import torch

from leafwise.core.capabilities.averaging import Averaging
from leafwise.homes.torch.checkpoints.unsupported_tensors import is_sharded
from leafwise.homes.torch.gpu.launching import check_not_capturing, shortage_explained
from leafwise.homes.torch.parallel.sharding import cloned, local_tensor, same_sharding
from leafwise.homes.torch.tensors import positions_by_key

_shape = attrgetter("shape")
# Elements that are converted to the dtype of the average at a time. Converting all of a bfloat16 model would take twice
# its memory.
_CONVERTED = 1 << 26


class TorchAveraging(Averaging):
    def first_of_other_shape(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> int | None:
        target_shapes, value_shapes = list(map(_shape, targets)), list(map(_shape, values))
        if target_shapes != value_shapes:
            return next(number for number, shape in enumerate(target_shapes) if shape != value_shapes[number])
        if not any(map(is_sharded, (*targets, *values))):
            return None
        pairs = enumerate(zip(targets, values, strict=True))
        return next((number for number, (target, value) in pairs if not same_sharding(target, value)), None)

    def clone_many(self, values: list[torch.Tensor], precise: bool) -> list[torch.Tensor]:
        check_not_capturing("average")
        # Outside of inference mode, because tensors made there cannot be changed in place outside of it.
        with torch.inference_mode(False), torch.no_grad(), shortage_explained("average", "nothing was changed"):
            return [_copy(value, precise) for value in values]

    def copy_many(self, targets: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
        check_not_capturing("average")  # replays would not count as updates, and would repeat the weight of this one
        with torch.no_grad():
            torch._foreach_copy_(_local(targets), _local(values))
        return targets

    def lerp_many(self, targets: list[torch.Tensor], values: list[torch.Tensor], weight: float) -> list[torch.Tensor]:
        check_not_capturing("average")
        with torch.no_grad(), shortage_explained("average", "a part of the average may be updated already"):
            for some_targets, some_values in _by_kind(_local(targets), _local(values)):
                first = some_targets[0]
                if (first.dtype, first.device) == (some_values[0].dtype, some_values[0].device):
                    torch._foreach_lerp_(some_targets, some_values, weight)
                    continue
                for part in _parts(some_values):
                    torch._foreach_lerp_(some_targets[part], [value.to(first) for value in some_values[part]], weight)
        return targets


def _local(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors with the elements in this process."""
    if not any(map(is_sharded, values)):
        return values
    return [local_tensor(value) if is_sharded(value) else value for value in values]


def _copy(value: torch.Tensor, precise: bool) -> torch.Tensor:
    narrow = precise and value.is_floating_point() and value.element_size() < 4
    if is_sharded(value):
        return cloned(value, torch.float32 if narrow else value.dtype)
    return value.detach().float().clone() if narrow else value.detach().clone()


def _parts(values: list[torch.Tensor]) -> Iterator[slice]:
    """Slices of the list with at most so many elements together, or with a single tensor."""
    start = elements = 0
    for number, value in enumerate(values):
        if number > start and elements + value.numel() > _CONVERTED:
            yield slice(start, number)
            start, elements = number, 0
        elements += value.numel()
    yield slice(start, len(values))


def _by_kind(
    targets: list[torch.Tensor], values: list[torch.Tensor]
) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """The pairs, grouped by dtype and device for one call each; usually there is only one group."""
    kinds = [
        (target.dtype, target.device, value.dtype, value.device) for target, value in zip(targets, values, strict=True)
    ]
    if len(set(kinds)) == 1:
        return [(targets, values)]
    groups = positions_by_key(kinds).values()
    return [([targets[number] for number in numbers], [values[number] for number in numbers]) for numbers in groups]
