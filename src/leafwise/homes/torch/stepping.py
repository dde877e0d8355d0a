"""What PyTorch's optimizers step, and the state that they keep for it."""

import random
from collections.abc import Callable
from typing import Any

import torch

from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.capabilities.vetting import Vetting
from leafwise.core.flat import VirtualNode
from leafwise.homes.torch.optimizers import is_optimizer, keeps_own_state
from leafwise.homes.torch.tensors import tensor_over

# The state of PyTorch's own optimizers that has an element for each element of the parameter.
_LIKE_PARAMETER = frozenset(
    {
        "exp_avg",
        "exp_avg_sq",
        "max_exp_avg_sq",
        "exp_inf",
        "momentum_buffer",
        "square_avg",
        "grad_avg",
        "acc_delta",
        "sum",
    }
    | {"prev", "step_size", "ax"}
)

# Of those, what begins with zeros and is something else wherever there was a gradient.
_ZERO_UNTIL_REACHED = ("exp_avg_sq", "square_avg", "momentum_buffer")


class TorchStepping(Stepping):
    def is_optimizer(self, obj: Any) -> bool:
        return is_optimizer(type(obj))

    def held_by(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Any]]:
        held = []
        for which, group in enumerate(getattr(optimizer, "param_groups", ())):
            names = group.get("param_names")
            for position, parameter in enumerate(group["params"]):
                name = f", {names[position]!r}" if names else ""
                held.append((f"parameter {position} of group {which}{name}", parameter))
        return held

    def reached(self, optimizer: torch.optim.Optimizer, value: Any) -> Any:
        state = getattr(optimizer, "state", {}).get(value, {})
        found = next((state[key] for key in _ZERO_UNTIL_REACHED if isinstance(state.get(key), torch.Tensor)), None)
        return found if found is not None and found.shape == value.shape else None

    def exchange(self, optimizer: torch.optim.Optimizer, new: dict[int, Any]) -> None:
        for group in optimizer.param_groups:
            for position, parameter in enumerate(group["params"]):
                if id(parameter) in new:
                    group["params"][position] = new[id(parameter)]
                    if parameter in optimizer.state:
                        optimizer.state[new[id(parameter)]] = optimizer.state.pop(parameter)

    def like_parameter(self, key: str) -> bool:
        return key in _LIKE_PARAMETER

    def restore_state(
        self,
        optimizer: torch.optim.Optimizer,
        states: dict[tuple[int, int], dict[str, Any]],
        options: dict[int, dict[str, Any]],
        whole: bool,
        global_state: dict[Any, Any],
    ) -> None:
        states_by_key: Any = optimizer.state
        for key in [key for key in states_by_key if not isinstance(key, torch.Tensor)]:
            del states_by_key[key]
        states_by_key.update(_tensors(global_state))
        for which, group in enumerate(optimizer.param_groups):
            given = options.get(which)
            for key, value in (given or {}).items():
                others = (one.get(key) for one in optimizer.param_groups if one is not group)
                _set_option(group, key, value, whole, any(one is group.get(key) for one in others))
            for key in set(group) - {"params", "param_names", *(given or ())} if whole and given is not None else ():
                del group[key]  # a running value that this group did not have yet
            for position, parameter in enumerate(group["params"]):
                state = states.get((which, position))
                if state is None:
                    continue
                optimizer.state.pop(parameter, None)
                if state:
                    optimizer.state[parameter] = {key: _to(parameter, group, key, one) for key, one in state.items()}
        if type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict:
            # As load_state_dict does: some optimizers put right there what older versions of them saved.
            optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})
        else:
            given = optimizer.state_dict()
            optimizer.load_state_dict(given)
            _undo_casts(optimizer.state_dict(), given)

    def keeps_own_state(self, optimizer: Any) -> bool:
        return keeps_own_state(optimizer)

    def restore_own_state(self, optimizer: Any, state: Any) -> None:
        tensors = _tensors(state)
        optimizer.load_state_dict(_copied(tensors))
        _undo_casts(optimizer.state_dict(), tensors)


class OptimizerSaving(Saving):
    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        return None if isinstance(obj, VirtualNode) else (type(obj).__qualname__, None)


class OptimizerVetting(Vetting):
    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        optimizers = [(number, one) for number, one in enumerate(objects) if is_optimizer(type(one))]
        return {number: reason for number, one in optimizers if (reason := _kept_outside(one))}


def _kept_outside(optimizer: Any) -> str:
    """What an optimizer keeps outside of its state dict, and would need to go on as before."""
    if keeps_own_state(optimizer):
        return ""  # it knows what it keeps
    for name, value in vars(optimizer).items():
        if isinstance(value, torch.Generator | random.Random):
            return (
                f"{type(optimizer).__name__} draws from random numbers of its own, {name}, which are not in its "
                "state_dict(): it would not go on as before"
            )
    return ""


def _set_option(group: dict[str, Any], key: str, value: Any, exactly: bool, shared: bool) -> None:
    held = group.get(key)
    if isinstance(held, torch.Tensor):  # a learning rate that lives on the device stays there
        given = tensor_over(value) if _is_array(value) else torch.as_tensor(value)
        if shared or given.shape != held.shape or held.dtype.is_floating_point != given.dtype.is_floating_point:
            group[key] = given.to(held.device)
            return
        with torch.no_grad():
            held.copy_(given)
        return
    if not _is_array(value):
        group[key] = _tensors(value)
    elif exactly:
        tensor = tensor_over(value)
        device = next((parameter.device for parameter in group["params"]), torch.device("cpu"))
        group[key] = tensor.to(device) if tensor.dim() else tensor
    else:
        group[key] = value.item()


def _is_array(value: Any) -> bool:
    """Whether a value is an array of NumPy, and not a scalar of it."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A nest of containers with other values at its ends."""
    if isinstance(value, dict):
        pairs = ((key, _mapped(one, change)) for key, one in value.items())
        return dict(pairs) if type(value) is dict else type(value)(pairs)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields") and type(value) is not torch.Size:
        return type(value)(_mapped(one, change) for one in value)
    return change(value)


def _tensors(value: Any) -> Any:
    return _mapped(value, lambda one: tensor_over(one) if _is_array(one) else one)


def _copied(value: Any) -> Any:
    return _mapped(value, lambda one: one.clone() if isinstance(one, torch.Tensor) else one)


def _undo_casts(now: Any, given: Any) -> None:
    """Puts tensors back that PyTorch cast to the dtype of their parameter while it took them."""
    if not isinstance(given, dict | list) or type(now) is not type(given) or len(now) != len(given):
        return
    for key, wanted in given.items() if isinstance(given, dict) else enumerate(given):
        if isinstance(given, dict) and key not in now:
            continue
        held = now[key]
        if isinstance(wanted, torch.Tensor) and isinstance(held, torch.Tensor):
            if held.dtype != wanted.dtype and held.shape == wanted.shape:
                now[key] = wanted.to(held.device)
        else:
            _undo_casts(held, wanted)


def _to(parameter: torch.Tensor, group: dict[str, Any], key: str, value: Any) -> Any:
    """A value of the state on the device of its parameter, where PyTorch has it there: the count of steps stays on the
    CPU unless it is needed in a captured graph."""
    stays = key == "step" and not (group.get("capturable") or group.get("fused"))

    def placed(one: Any) -> Any:
        if not _is_array(one):
            return one
        return tensor_over(one) if stays else tensor_over(one).to(parameter.device)

    return _mapped(value, placed)
