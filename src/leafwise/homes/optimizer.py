"""PyTorch optimizers: their groups, and their state under the paths of the parameters it belongs to.

The parameters themselves are not leaves of an optimizer: it refers to them, the model has them.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch

from leafwise.core.flat import Group
from leafwise.core.home import Home, Visit
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
        return "node" if issubclass(cls, torch.optim.Optimizer | _ParamGroup | _State) else None

    def visitor(self, cls: type, naming: Callable[[Any], Path | None]) -> Callable[[Any], Visit | None]:
        def visit(obj: Any) -> Visit:
            if isinstance(obj, Group):
                return (), obj.children, None
            return _visit_optimizer(obj, naming)

        return visit

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if isinstance(owner, Group):
            return owner.entry(name, value)
        if name == "state":
            return Entry(name, "part")
        return Entry(name, "attribute")

    def type_name(self, obj: Any) -> str:
        return "" if isinstance(obj, Group) else type(obj).__name__

    def steps(self, obj: Any) -> bool:
        return isinstance(obj, torch.optim.Optimizer)

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
    ) -> None:
        for which, group in enumerate(optimizer.param_groups):
            for key, value in options.get(which, {}).items():
                _set_option(group, key, value)
            for position, parameter in enumerate(group["params"]):
                state = states.get((which, position))
                if state is None:
                    continue
                optimizer.state.pop(parameter, None)
                if state:
                    optimizer.state[parameter] = {key: _to(parameter, group, key, one) for key, one in state.items()}

    def held_by(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Any]]:
        held = []
        for which, group in enumerate(optimizer.param_groups):
            names = group.get("param_names")
            for position, parameter in enumerate(group["params"]):
                name = f", {names[position]!r}" if names else ""
                held.append((f"parameter {position} of group {which}{name}", parameter))
        return held

    def reached(self, optimizer: torch.optim.Optimizer, value: Any) -> Any:
        state = optimizer.state.get(value, {})
        found = next((state[key] for key in _ZERO_UNTIL_REACHED if isinstance(state.get(key), torch.Tensor)), None)
        return found if found is not None and found.shape == value.shape else None


def _visit_optimizer(optimizer: torch.optim.Optimizer, naming: Callable[[Any], Path | None]) -> Visit:
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
    return (), [("param_groups", groups), ("state", state)], "state"


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


def _set_option(group: dict[str, Any], key: str, value: Any) -> None:
    held = group.get(key)
    if isinstance(held, torch.Tensor):  # a learning rate that lives on the device stays there
        with torch.no_grad():
            held.copy_(tensor_over(value) if hasattr(value, "dtype") else torch.as_tensor(value))
        return
    group[key] = value.item() if hasattr(value, "dtype") else value


def _to(parameter: torch.Tensor, group: dict[str, Any], key: str, value: Any) -> Any:
    """A value of the state on the device of its parameter, where PyTorch has it there: the count of steps stays on the
    CPU unless it is needed in a captured graph."""
    if isinstance(value, list):
        return [_to(parameter, group, key, one) for one in value]
    if isinstance(value, dict):
        return {name: _to(parameter, group, name, one) for name, one in value.items()}
    if not hasattr(value, "dtype"):
        return value
    tensor = tensor_over(value)
    stays = key == "step" and not (group.get("capturable") or group.get("fused"))
    return tensor if stays else tensor.to(parameter.device)


HOME = OptimizerHome()
