"""What training asks of tensors: options of optimizers, and arithmetic on many at once."""

import inspect
import math
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from leafwise.errors import RuleError
from leafwise.homes.torch_flat import SMALL, foreach_norms, norm_in_full, segment_norms, wide_of

_FROM_SCHEDULERS = frozenset({"initial_lr"})  # which schedulers write into groups, and read there


def optimizer_options(optimizer: Any) -> frozenset[str] | None:
    """The options of a group that an optimizer takes: a class, an instance, or None for any of PyTorch's own."""
    if optimizer is None:
        found = frozenset().union(*(_options(cls) or () for cls in vars(torch.optim).values() if _is_optimizer(cls)))
        return found | _FROM_SCHEDULERS
    if isinstance(optimizer, torch.optim.Optimizer):
        return frozenset(optimizer.defaults) | _FROM_SCHEDULERS
    if not callable(optimizer):
        raise RuleError(f"optimizer= takes the class of an optimizer, such as torch.optim.AdamW, not {optimizer!r}")
    found_options = _options(optimizer)
    return None if found_options is None else found_options | _FROM_SCHEDULERS


def _is_optimizer(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer


def _options(cls: Any) -> frozenset[str] | None:
    """What a class takes besides the parameters; None where it takes anything."""
    try:
        parameters = list(inspect.signature(cls).parameters.values())
    except ValueError:  # of something built in
        return None
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return None
    return frozenset(one.name for one in parameters[1:])


def grads(values: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """The gradient of each tensor. Asking a computed one makes PyTorch warn; it has none of its own."""
    # A Parameter is never computed, and its type is sooner told than whether it is.
    return [
        value.grad if type(value) is nn.Parameter or value.is_leaf or value.retains_grad else None for value in values
    ]


# -- many tensors at once --------------------------------------------------------------------------------------


_shape = attrgetter("shape")


def first_of_other_shape(targets: list[torch.Tensor], values: list[torch.Tensor]) -> int | None:
    shapes, others = list(map(_shape, targets)), list(map(_shape, values))
    if shapes == others:
        return None
    return next(number for number, shape in enumerate(shapes) if shape != others[number])


def clone_many(values: list[torch.Tensor], precise: bool) -> list[torch.Tensor]:
    # Outside of inference mode, since what is made there cannot be changed elsewhere.
    with torch.inference_mode(False), torch.no_grad():
        return [_precise(value).clone() if precise else value.detach().clone() for value in values]


def _precise(value: torch.Tensor) -> torch.Tensor:
    narrow = value.is_floating_point() and value.element_size() < 4
    return value.detach().float() if narrow else value.detach()


def copy_many(targets: list[torch.Tensor], values: list[torch.Tensor]) -> list[torch.Tensor]:
    with torch.no_grad():
        torch._foreach_copy_(targets, values)
    return targets


def lerp_many(targets: list[torch.Tensor], values: list[torch.Tensor], weight: float) -> list[torch.Tensor]:
    with torch.no_grad():
        for ours, theirs in _alike(targets, values):
            if (ours[0].dtype, ours[0].device) != (theirs[0].dtype, theirs[0].device):
                theirs = [value.to(ours[0]) for value in theirs]
            torch._foreach_lerp_(ours, theirs, weight)
    return targets


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


_PLAIN = {torch.Tensor, nn.Parameter}


def norms(values: list[torch.Tensor]) -> list[float]:
    """The norm of each tensor, computed in at least 32 bits."""
    with torch.no_grad():
        found = _norms_of_small(values)
        if found is None:
            found = _norms_by_kind(values)
        if all(map(math.isfinite, found)):
            return found
        return [
            norm if math.isfinite(norm) or hasattr(value, "full_tensor") else norm_in_full(_elements(value))
            for norm, value in zip(found, values, strict=True)
        ]


def _norms_of_small(values: list[torch.Tensor]) -> list[float] | None:
    """The norms of many small tensors in the memory of this machine: joined, since asking each costs more."""
    sizes = list(map(torch.Tensor.numel, values))
    if len(values) < 2 or max(sizes) > SMALL or not set(map(type, values)) <= _PLAIN:
        return None
    try:
        joined = _joined(values)
    except RuntimeError:
        return None  # on several devices, or some of them sparse
    return segment_norms(joined, sizes) if joined.device.type == "cpu" and joined.layout == torch.strided else None


def _joined(values: list[torch.Tensor]) -> torch.Tensor:
    try:
        joined = torch.cat(values)
        if joined.dim() == 1:  # as all of them were, which is not asked of each
            return joined
    except RuntimeError:
        pass
    return torch.cat([value.reshape(-1) for value in values])


def _norms_by_kind(values: list[torch.Tensor]) -> list[float]:
    found = [0.0] * len(values)
    alike: dict[Any, list[int]] = {}
    for number, value in enumerate(values):
        plain = type(value) in _PLAIN and value.layout == torch.strided
        alike.setdefault((value.dtype, value.device) if plain else number, []).append(number)
    for kind, numbers in alike.items():
        its = [values[one] for one in numbers]
        if not isinstance(kind, tuple):
            found[numbers[0]] = _one_norm(its[0])
            continue
        for number, norm in zip(numbers, foreach_norms(its), strict=True):
            found[number] = norm
    return found


def _elements(value: torch.Tensor) -> torch.Tensor:
    """The elements of a tensor that are stored; of a sparse one, each place once."""
    if value.layout == torch.strided:
        return value
    return value.coalesce().values() if value.layout == torch.sparse_coo else value.values()


def _one_norm(value: torch.Tensor) -> float:
    value = _elements(value)
    wide = value.dtype if value.element_size() >= 4 else torch.float32
    norm = torch.linalg.vector_norm(value, dtype=wide)
    # Of a tensor that is spread over several processes, the norm of all of it.
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def clip_together(values: list[torch.Tensor], max_norm: float) -> list[float] | None:
    """On a GPU, all of it is asked for before anything is waited for; elsewhere there is nothing to wait for."""
    if values[0].device.type != "cuda" or len(set(map(_kind, values))) != 1 or type(values[0]) not in _PLAIN:
        return None
    if values[0].layout != torch.strided:
        return None
    with torch.no_grad():
        norms = torch.stack(torch._foreach_norm(values, 2, dtype=wide_of(values[0])))
        total = torch.linalg.vector_norm(norms)
        factor = torch.where(total.isfinite(), (max_norm / total).clamp(max=1), 1)
        torch._foreach_mul_(values, factor)
        found: list[float] = norms.tolist()
    return found


_kind = attrgetter("__class__", "dtype", "device", "layout")
_dtype_and_device = attrgetter("dtype", "device")


def scale_many(values: list[torch.Tensor], factors: list[float]) -> list[torch.Tensor]:
    with torch.no_grad():
        if len(factors) != 1:
            torch._foreach_mul_(values, factors)
            return values
        kinds = set(map(_dtype_and_device, values))
        for dtype, device in kinds:
            # A factor that is a tensor is several times as fast for many small tensors, if it is of their dtype.
            wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
            factor = torch.tensor(factors[0], device=device, dtype=wide)
            its = [one for one in values if _dtype_and_device(one) == (dtype, device)] if len(kinds) > 1 else values
            torch._foreach_mul_(its, factor)
    return values
