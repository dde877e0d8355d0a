"""PyTorch optimizers: their groups, and the state of each parameter under the path of that parameter.

The parameters are leaves of the model, not of the optimizer, which only refers to them. An optimizer with more state
than PyTorch's own, such as one that wraps another, is shown as its state dict, which numbers parameters.
"""

from collections.abc import Callable
from functools import cache, partial
from operator import attrgetter
from typing import Any, ClassVar, Literal

import torch

from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.stepping import GLOBAL_STATE, PARAMETERS, Stepping
from leafwise.core.capabilities.vetting import Vetting
from leafwise.core.dotted import VirtualNode
from leafwise.core.home import Capabilities, Home, Visit
from leafwise.core.path import Entry, Path
from leafwise.homes.torch.parallel import zero_optimizers
from leafwise.homes.torch.parallel.deepspeed_zero import zero_optimizer
from leafwise.homes.torch.parallel.flat_shards import FlatOwner, FlatShard, new_shard, standing_for


class _ParamGroup(VirtualNode):
    """The options of one group, and the names of its parameters."""

    __slots__ = ()

    def entry(self, name: str, value: Any) -> Entry:
        return Entry(name, "key", name)


class _StateStep(VirtualNode):
    """A node on the path of a parameter. The state of the parameter is shown below it."""

    __slots__ = ("below", "entries")

    def __init__(self) -> None:
        super().__init__("")
        self.below: dict[str, _StateStep] = {}
        self.entries: dict[str, Entry] = {}

    def entry(self, name: str, value: Any) -> Entry:
        return Entry(name, "part") if isinstance(value, _StateStep) else self.entries[name]

    def add(self, path: Path, entry: Entry, state: Any) -> None:
        node = self
        for name in path.names[:-1]:
            if name not in node.below:
                node.below[name] = _StateStep()
                node.children.append((name, node.below[name]))
            node = node.below[name]
        node.children.append((entry.name, state))
        node.entries[entry.name] = entry


class OptimizerHome(Home):
    name = "torch optimizer"
    walks = "torch.optim.Optimizer"
    capabilities: ClassVar[Capabilities] = {
        Saving: "leafwise.homes.torch.training.stepping:OptimizerSaving",
        Stepping: "leafwise.homes.torch.training.stepping:TorchStepping",
        Vetting: "leafwise.homes.torch.training.stepping:OptimizerVetting",
    }

    def handles(self, cls: type) -> Literal["node", "leaf"] | None:
        return "node" if issubclass(cls, _ParamGroup | _StateStep) or is_optimizer(cls) else None

    def visitor(self, cls: type, path_of: Callable[[Any], Path | None]) -> Callable[[Any], Visit | None]:
        if issubclass(cls, VirtualNode):
            return lambda obj: ((), obj.children, None)
        return lambda obj: _visit_optimizer(obj, path_of)

    def entry(self, owner: Any, name: str, value: Any) -> Entry:
        if isinstance(owner, VirtualNode):
            return owner.entry(name, value)
        if keeps_own_state(owner):
            return Entry(
                name, "step", raw=partial(_state_dict_value, name), spelling=f"{{root}}.state_dict()[{name!r}]"
            )
        if name == GLOBAL_STATE:
            return Entry(name, "step", raw=attrgetter("state"), spelling="{root}.state")
        return Entry(name, "part" if name == "state" else "attribute")

    def type_name(self, obj: Any) -> str:
        return "" if isinstance(obj, VirtualNode) else type(obj).__name__


def is_optimizer(cls: Any) -> bool:
    """Whether a class is a PyTorch optimizer, or behaves like one, such as a class that wraps another optimizer."""
    return issubclass(cls, torch.optim.Optimizer) or _has_optimizer_methods(cls)


@cache
def _has_optimizer_methods(cls: Any) -> bool:
    methods = ("step", "zero_grad", "state_dict", "load_state_dict")
    return all(callable(getattr(cls, name, None)) for name in methods) and not issubclass(cls, torch.nn.Module)


# These delegate to the optimizer that they wrap.
_PASS_ON = ("accelerate.", "lightning.", "lightning_fabric.", "pytorch_lightning.")
_STATE_HOOKS = ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")


def keeps_own_state(optimizer: Any) -> bool:
    """Whether an optimizer may keep more than `state` and `param_groups`, because it writes its state dict itself."""
    cls = type(optimizer)
    if zero_optimizer(optimizer) is not None:
        return False
    if any(vars(optimizer).get(f"_optimizer_{name}_hooks") for name in _STATE_HOOKS):
        return True
    if issubclass(cls, torch.optim.Optimizer) and cls.state_dict is torch.optim.Optimizer.state_dict:
        return False
    return not cls.__module__.startswith(_PASS_ON)


def _visit_optimizer(optimizer: torch.optim.Optimizer, path_of: Callable[[Any], Path | None]) -> Visit:
    if keeps_own_state(optimizer):
        shown = [value for parameter in parameters_of(optimizer) for value in standing_for(parameter)]
        paths = [path_of(value) or Path([Entry(str(number), "any")]) for number, value in enumerate(shown)]
        own = [(str(key), value) for key, value in optimizer.state_dict().items()]
        return (), [(PARAMETERS, [str(path) for path in paths]), *own], "state"
    if (zero := zero_optimizer(optimizer)) is not None:
        return _visit_zero(zero, path_of)
    stepped = set(map(id, parameters_of(optimizer)))
    groups = []
    state = _StateStep()
    number = 0
    for group_number, group in enumerate(optimizer.param_groups):
        own_names = group.get("param_names")
        paths = []
        for position, parameter in enumerate(group["params"]):
            for shown in standing_for(parameter):
                path = path_of(shown)
                if path is None:
                    own_name = str(number) if own_names is None else own_names[position]
                    path = Path(Entry(name, "any") for name in own_name.split("."))
                paths.append(path)
                number += 1
                held = shown_state(optimizer, parameter, shown, stepped)
                if held is not None:
                    state.add(path, _state_entry(path.name, parameter, group_number, position), held)
        groups.append(_param_group(group, paths))
    by_key: dict[Any, Any] = dict(optimizer.state)
    return _visit(groups, state, {key: value for key, value in by_key.items() if not isinstance(key, torch.Tensor)})


def _visit_zero(optimizer: Any, path_of: Callable[[Any], Path | None]) -> Visit:
    """An optimizer of DeepSpeed, whose own state is that of flat tensors which join many parameters."""
    groups = []
    state = _StateStep()
    number = 0
    for group_number, group in enumerate(zero_optimizers.groups_of(optimizer)):
        paths = []
        for position, stepped in enumerate(group):
            paths.append(path_of(stepped.leaf) or Path([Entry(str(number), "any")]))
            number += 1
            held = zero_optimizers.state_of(optimizer, stepped)
            if held:
                raw = partial(_zero_state, group_number, position)
                state.add(paths[-1], Entry(paths[-1].name, "step", raw, spelling="{root}.optimizer.state"), held)
        groups.append(_param_group(optimizer.optimizer.param_groups[group_number], paths))
    return _visit(groups, state, zero_optimizers.global_state_of(optimizer))


def _visit(groups: list[_ParamGroup], state: _StateStep, global_state: dict[Any, Any]) -> Visit:
    children: list[tuple[str, Any]] = [("param_groups", groups), ("state", state)]
    if global_state:
        children.append((GLOBAL_STATE, global_state))
    return (), children, "state"


def _param_group(group: dict[str, Any], paths: list[Path]) -> _ParamGroup:
    options = _ParamGroup("")
    options.children = [(key, value) for key, value in group.items() if key not in ("params", "param_names")]
    options.children.append(("params", [str(path) for path in paths]))
    return options


def shown_state(optimizer: Any, parameter: torch.Tensor, shown: Any, stepped: set[int]) -> Any:
    """The state of a parameter as a walk shows it; None if there is none. If the parameter is flattened and split over
    ranks, its state is, too.

    A rank without elements of a parameter never steps it, so its optimizer has no state for it. The other ranks have,
    and the names of all ranks must be the same: they are those of another parameter, without elements. It is one that
    gets gradients whenever this one does, if this rank has elements of such a parameter. `stepped` has the ids of all
    parameters of the optimizer."""
    state = optimizer.state.get(parameter)
    if not isinstance(shown, FlatShard):
        return state
    if state is None and not shown.place.size and stepped:
        other_parameter = next((other for other in shown.owner.stepped_with_it() if id(other) in stepped), None)
        if other_parameter is not None:
            state = optimizer.state.get(other_parameter)
        elif shown.requires_grad:
            state = next((state for key, state in optimizer.state.items() if id(key) in stepped), None)
        return None if state is None else {key: _without_elements(shown, value) for key, value in state.items()}
    return None if state is None else {key: _split_state(shown, value) for key, value in state.items()}


def _split_state(shown: FlatShard, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        part = shown.owner.part_of(value)
        if part is not None:
            return new_shard(shown.place, part)
        if not value.dim():  # such as the number of steps, of which every rank has its own copy
            place = shown.place.of_scalar()
            return new_shard(place, value.detach().view(1)[: place.size])
    return _unknown(shown, value)


def _unknown(shown: FlatShard, value: Any) -> Any:
    """State of which it is not known to which elements it belongs. Tensors in a container, such as the history of
    LBFGS, belong to this rank alone, and must not be taken for copies that all ranks have."""
    if isinstance(value, torch.Tensor):
        return FlatShard(shown.place._replace(shape=tuple(value.shape)), _UnknownState(value), value)
    if isinstance(value, dict):
        return {key: _unknown(shown, inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_unknown(shown, inner) for inner in value)
    return value


def _without_elements(shown: FlatShard, value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return _unknown(shown, value)
    return new_shard(shown.place if value.dim() else shown.place.of_scalar(), value.detach().flatten()[:0])


class _UnknownState(FlatOwner):
    def cannot_use(self) -> str:
        return (
            "its parameter is flattened and split over ranks, and leafwise does not know which of the elements this "
            "state belongs to; use FSDP.optim_state_dict"
        )


def parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in getattr(optimizer, "param_groups", ()) for parameter in group["params"]]


# Functions for path entries, which get them with `partial`, so that paths can be pickled.


def _state_dict_value(name: str, optimizer: Any) -> Any:
    if name == PARAMETERS:
        return parameters_of(optimizer)
    return next(value for key, value in optimizer.state_dict().items() if str(key) == name)


def _parameter_state(parameter: Any, optimizer: torch.optim.Optimizer) -> Any:
    return optimizer.state[parameter]


def _zero_state(group: int, position: int, optimizer: Any) -> Any:
    zero = zero_optimizer(optimizer)
    return zero_optimizers.state_of(zero, zero_optimizers.groups_of(zero)[group][position])


def _state_entry(name: str, parameter: Any, group: int, position: int) -> Entry:
    """The path entry of the state of a parameter; in PyTorch, its key is the parameter itself."""
    spelling = f"{{root}}.state[{{root}}.param_groups[{group}]['params'][{position}]]"
    return Entry(name, "step", partial(_parameter_state, parameter), spelling=spelling)


HOME = OptimizerHome()
