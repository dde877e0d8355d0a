"""PyTorch optimizers: their groups, and their state under the paths of the parameters it belongs to.

The parameters themselves are not leaves of an optimizer: it refers to them, the model has them. An optimizer that keeps
more than PyTorch's own do, such as one that wraps another, is known by its state dict alone, which numbers parameters.
"""

import random
from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, Literal

import torch

from leafwise.core.flat import Group
from leafwise.core.home import GLOBAL_STATE, PARAMETERS, Home, Visit
from leafwise.core.path import Entry, Path
from leafwise.homes.torch_filling import tensor_over

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


class _ParamGroup(Group):
    """The options of one group, and the names of its parameters."""

    __slots__ = ()

    def entry(self, name: str, value: Any) -> Entry:
        return Entry(name, "key", name)


class _State(Group):
    """A step on the way to the state of a parameter, whose last step is the parameter itself."""

    __slots__ = ("below", "entries")

    def __init__(self) -> None:
        super().__init__("")
        self.below: dict[str, _State] = {}
        self.entries: dict[str, Entry] = {}

    def entry(self, name: str, value: Any) -> Entry:
        return Entry(name, "part") if isinstance(value, _State) else self.entries[name]

    def add(self, path: Path, entry: Entry, state: Any) -> None:
        group = self
        for name in path.names[:-1]:
            if name not in group.below:
                group.below[name] = _State()
                group.children.append((name, group.below[name]))
            group = group.below[name]
        group.children.append((entry.name, state))
        group.entries[entry.name] = entry


class OptimizerHome(Home):
    name = "torch optimizer"

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "node" if issubclass(cls, _ParamGroup | _State) or _is_optimizer(cls) else None

    def visitor(self, cls: type, naming: Callable[[Any], Path | None]) -> Callable[[Any], Visit | None]:
        def visit(obj: Any) -> Visit:
            if isinstance(obj, Group):
                return (), obj.children, None
            return _visit_optimizer(obj, naming)

        return visit

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if isinstance(owner, Group):
            return owner.entry(name, value)
        if keeps_own_state(owner):
            return Entry(name, "step", raw=_OwnState(name), spelling=f"{{root}}.state_dict()[{name!r}]")
        if name == GLOBAL_STATE:
            return Entry(name, "step", raw=attrgetter("state"), spelling="{root}.state")
        return Entry(name, "part" if name == "state" else "attribute")

    def type_name(self, obj: Any) -> str:
        return "" if isinstance(obj, Group) else type(obj).__name__

    def steps(self, obj: Any) -> bool:
        return _is_optimizer(type(obj))

    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        return None if isinstance(obj, Group) else (type(obj).__qualname__, None)

    def keeps_own_state(self, optimizer: Any) -> bool:
        return keeps_own_state(optimizer)

    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        optimizers = [(number, one) for number, one in enumerate(objects) if _is_optimizer(type(one))]
        return {number: reason for number, one in optimizers if (reason := _kept_outside(one))}

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
        more: dict[Any, Any],
    ) -> None:
        states_by_key: Any = optimizer.state
        for key in [key for key in states_by_key if not isinstance(key, torch.Tensor)]:
            del states_by_key[key]
        states_by_key.update(_tensors(more))
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

    def restore_own_state(self, optimizer: Any, state: Any) -> None:
        tensors = _tensors(state)
        optimizer.load_state_dict(_copied(tensors))
        _undo_casts(optimizer.state_dict(), tensors)

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


def _is_optimizer(cls: Any) -> bool:
    found: bool = _has_methods_of_one(cls)
    return found


@cache
def _has_methods_of_one(cls: Any) -> bool:
    """An optimizer of PyTorch, or what behaves as one and wraps another."""
    methods = ("step", "zero_grad", "state_dict", "load_state_dict")
    wraps = all(callable(getattr(cls, name, None)) for name in methods) and not issubclass(cls, torch.nn.Module)
    return issubclass(cls, torch.optim.Optimizer) or wraps


_PASS_ON = ("accelerate.", "lightning.", "lightning_fabric.", "pytorch_lightning.")  # what another keeps, as it is
_STATE_HOOKS = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")


def keeps_own_state(optimizer: Any) -> bool:
    """Whether `state` and `param_groups` are not all that an optimizer keeps, to judge by who writes its state dict."""
    cls = type(optimizer)
    if any(vars(optimizer).get(f"_optimizer_{name}_hooks") for name in _STATE_HOOKS):
        return True
    if issubclass(cls, torch.optim.Optimizer) and cls.state_dict is torch.optim.Optimizer.state_dict:
        return False
    return not cls.__module__.startswith(_PASS_ON)


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


def _visit_optimizer(optimizer: torch.optim.Optimizer, naming: Callable[[Any], Path | None]) -> Visit:
    if keeps_own_state(optimizer):
        paths = [
            naming(parameter) or Path([Entry(str(number), "any")])
            for number, parameter in enumerate(_parameters(optimizer))
        ]
        own = [(str(key), value) for key, value in optimizer.state_dict().items()]
        return (), [(PARAMETERS, [str(path) for path in paths]), *own], "state"
    groups = []
    state = _State()
    number = 0
    for which, group in enumerate(optimizer.param_groups):
        own_names = group.get("param_names")
        paths = []
        for position, parameter in enumerate(group["params"]):
            path = naming(parameter)
            if path is None:
                path = Path(Entry(name, "any") for name in _own_path(own_names, position, number).split("."))
            paths.append(path)
            number += 1
            if parameter in optimizer.state:
                state.add(path, _state_entry(path.name, parameter, which, position), optimizer.state[parameter])
        options = _ParamGroup("")
        options.children = [(key, value) for key, value in group.items() if key not in ("params", "param_names")]
        options.children.append(("params", [str(path) for path in paths]))
        groups.append(options)
    children: list[tuple[str, Any]] = [("param_groups", groups), ("state", state)]
    by_key: dict[Any, Any] = dict(optimizer.state)
    if more := {key: value for key, value in by_key.items() if not isinstance(key, torch.Tensor)}:
        children.append((GLOBAL_STATE, more))
    return (), children, "state"


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


class _OwnState:
    """From an optimizer to one value of its state dict; a class, so that paths can be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, optimizer: Any) -> Any:
        if self.name == PARAMETERS:
            return _parameters(optimizer)
        return next(value for key, value in optimizer.state_dict().items() if str(key) == self.name)


class _StateOf:
    """From an optimizer to the state of one parameter; a class, so that paths can be pickled."""

    def __init__(self, parameter: Any) -> None:
        self.parameter = parameter

    def __call__(self, optimizer: torch.optim.Optimizer) -> Any:
        return optimizer.state[self.parameter]


def _own_path(names: list[str] | None, position: int, number: int) -> str:
    """What the optimizer itself calls a parameter: its name where it was given names, else its number."""
    return str(number) if names is None else names[position]


def _state_entry(name: str, parameter: Any, group: int, position: int) -> Entry:
    """The step to the state of a parameter, which PyTorch keys by the parameter itself."""
    return Entry(
        name,
        "step",
        raw=_StateOf(parameter),
        spelling=f"{{root}}.state[{{root}}.param_groups[{group}]['params'][{position}]]",
    )


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


HOME = OptimizerHome()
