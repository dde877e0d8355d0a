"""The parameters of PyTorch optimizers, and the state of each."""

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import optim as O  # noqa: N812

from leafwise.core.capabilities.saving import Saving
from leafwise.core.capabilities.stepping import Stepping
from leafwise.core.capabilities.vetting import Vetting
from leafwise.core.dotted import VirtualNode
from leafwise.core.pairing.plain_pairs import same_plain
from leafwise.core.path import listed
from leafwise.errors import Unsupported
from leafwise.homes.torch.checkpoints.unsupported_tensors import is_flattened, is_sharded
from leafwise.homes.torch.gpu.landing import Uploads
from leafwise.homes.torch.parallel import zero_optimizers
from leafwise.homes.torch.parallel.deepspeed_zero import zero_optimizer
from leafwise.homes.torch.parallel.flat_shards import FlatShard, is_shown_itself, standing_at, standing_for
from leafwise.homes.torch.parallel.sharding import local_tensor
from leafwise.homes.torch.tensors import is_lazy, tensor_over
from leafwise.homes.torch.training.optimizers import is_optimizer, keeps_own_state, parameters_of, shown_state
from leafwise.homes.torch.values.tensor_values import same_bits

# The state of PyTorch's own optimizers that has an element for each element of the parameter.
_LIKE_PARAMETER = frozenset({
    "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta",
    "sum", "prev", "step_size", "ax", zero_optimizers.MASTER,
})  # fmt: skip

# State among these that starts as zeros, and is not zero where there was a gradient.
_ZERO_UNTIL_REACHED = ("exp_avg_sq", "square_avg", "momentum_buffer")

# The state that PyTorch's own optimizers keep for a parameter; after the dash, what depends on their options.
_STATE_NAMES = {
    "ASGD": "step eta mu ax -", "Adadelta": "step square_avg acc_delta -",
    "Adafactor": "step - row_var col_var variance", "Adagrad": "step sum -",
    "Adam": "step exp_avg exp_avg_sq - max_exp_avg_sq", "AdamW": "step exp_avg exp_avg_sq - max_exp_avg_sq",
    "Adamax": "step exp_avg exp_inf -", "Muon": "momentum_buffer -", "NAdam": "step mu_product exp_avg exp_avg_sq -",
    "RAdam": "step exp_avg exp_avg_sq -", "RMSprop": "step square_avg - grad_avg momentum_buffer",
    "Rprop": "step prev step_size -", "SGD": "- momentum_buffer", "SparseAdam": "step exp_avg exp_avg_sq -",
}  # fmt: skip
_STATE_OF_OPTIONS = {"amsgrad": "max_exp_avg_sq", "centered": "grad_avg"}
# The running means of squared gradients, and the option that says how fast they forget: after a step with a gradient, a
# mean is at least the share of its square that is new.
_SQUARES: dict[type, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    **dict.fromkeys((O.Adam, O.AdamW, O.NAdam, O.RAdam), ("exp_avg_sq", lambda group: group["betas"][1])),
    O.RMSprop: ("square_avg", lambda group: group["alpha"]),
    O.Adagrad: ("sum", lambda group: 0.0),
}
_GRADIENTS_TO_COMPARE, _ELEMENTS_TO_COMPARE = 16, 1 << 20
_ALL_STATE_NAMES = frozenset(" ".join(_STATE_NAMES.values()).split())


class TorchStepping(Stepping):
    def is_optimizer(self, obj: Any) -> bool:
        return is_optimizer(type(obj))

    def held_by(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, Any]]:
        held = []
        if (zero := zero_optimizer(optimizer)) is not None:
            return [
                (f"parameter {position} of group {number}", stepped.leaf)
                for number, group in enumerate(zero_optimizers.groups_of(zero))
                for position, stepped in enumerate(group)
            ]
        for group_number, group in enumerate(getattr(optimizer, "param_groups", ())):
            names = group.get("param_names")
            for position, parameter in enumerate(group["params"]):
                name = f", {names[position]!r}" if names else ""
                described = f"parameter {position} of group {group_number}{name}"
                held += [(described, shown) for shown in standing_for(parameter)]
        return held

    def reached(self, optimizer: torch.optim.Optimizer, value: Any) -> Any:
        if zero_optimizer(optimizer) is not None:
            return None
        state = getattr(optimizer, "state", {}).get(value, {})
        if isinstance(value, FlatShard) and (stepped := value.owner.stepped()) is not None:
            state = shown_state(optimizer, stepped, value, set()) or {}
        tensors = (state[key] for key in _ZERO_UNTIL_REACHED if isinstance(state.get(key), torch.Tensor))
        first = next(tensors, None)
        return first if first is not None and first.shape == value.shape else None

    def exchange(self, optimizer: torch.optim.Optimizer, new: dict[int, Any]) -> None:
        if zero_optimizer(optimizer) is not None:
            return  # it has copies of its parameters, which all have memory
        for group in optimizer.param_groups:
            for position, parameter in enumerate(group["params"]):
                # A lazy parameter gets its shape and its memory in place, and stays the same object.
                if id(parameter) in new and parameter.is_meta and not is_lazy(parameter):
                    group["params"][position] = new[id(parameter)]
                    if parameter in optimizer.state:
                        optimizer.state[new[id(parameter)]] = optimizer.state.pop(parameter)

    def like_parameter(self, key: str) -> bool:
        return key in _LIKE_PARAMETER

    def kind(self, optimizer: Any) -> str:
        return optimizer_kind(optimizer)

    def needed(self, optimizer: Any, group: int, options: dict[str, Any]) -> set[str]:
        if not type(optimizer).__module__.startswith("torch."):
            return set()
        options = {**optimizer.param_groups[group], **options}
        return {name for option, name in _STATE_OF_OPTIONS.items() if options.get(option)}

    def has_unused_gradients(self, optimizer: Any) -> bool:
        wrapped = getattr(optimizer, "optimizer", optimizer)
        graded = [parameter for parameter in parameters_of(wrapped) if parameter.grad is not None]
        if not graded or type(wrapped) not in _SQUARES:
            return False
        if getattr(getattr(optimizer, "gradient_state", None), "sync_gradients", True) is False:
            return True  # accelerate skips steps while gradients are accumulated
        options = {id(parameter): group for group in wrapped.param_groups for parameter in group["params"]}
        some = graded[:: len(graded) // _GRADIENTS_TO_COMPARE + 1]
        return any(_is_unused(wrapped, options[id(parameter)], parameter) for parameter in some)

    def joined_state(self, optimizer: Any) -> str:
        is_joined = isinstance(getattr(optimizer, "optimizer", optimizer), torch.optim.LBFGS)
        return "prev_flat_grad" if is_joined else ""

    def state_misfit(self, optimizer: Any, names: frozenset[str]) -> str | None:
        kind = type(optimizer).__name__
        if vars(torch.optim).get(kind) is type(optimizer) and kind in _STATE_NAMES:
            always, sometimes = (frozenset(part.split()) for part in _STATE_NAMES[kind].split("-"))
            lacking = sorted(always - names)
            # Other names may be those of somebody who keeps more there.
            further = sorted(names & _ALL_STATE_NAMES - always - sometimes)
        else:
            kept = [set(state) for state in getattr(optimizer, "state", {}).values() if state and type(state) is dict]
            if not kept:
                return None
            lacking, further = sorted(set.intersection(*kept) - names), sorted(names - set.union(*kept))
            if not (lacking and further):  # more state may come with further steps
                return ""
        reasons = [f"{kind} does not keep state called {listed(further, 3)}"] if further else []
        return "; ".join([*reasons, *([f"{kind} needs state called {listed(lacking, 3)}"] if lacking else [])])

    def sharded_like(
        self, optimizer: torch.optim.Optimizer, place: tuple[int, int], key: str, shape: tuple[int, ...]
    ) -> Any:
        group, position = place
        if (zero := zero_optimizer(optimizer)) is not None:
            owned = zero_optimizers.groups_of(zero)[group][position]
            is_like = owned.place.shape == shape and (shape or self.like_parameter(key))
            return owned.like if is_like else None
        stepped, parameter = standing_at(optimizer.param_groups[group]["params"], position)
        if not is_sharded(parameter):
            return None
        if isinstance(parameter, FlatShard):
            if not shape or tuple(parameter.shape) == shape:
                return parameter if shape else None  # every rank has a copy of a step count
            why = "its shape is not that of its parameter, which is flattened and split over ranks"
            raise Unsupported("torch optimizer", f"restore {key}", why)
        held = optimizer.state[stepped].get(key) if stepped in optimizer.state else None
        if isinstance(held, torch.Tensor) and tuple(held.shape) == shape:
            return held if is_sharded(held) else None
        if tuple(parameter.shape) == shape and (shape or self.like_parameter(key)):
            return parameter
        if not shape:
            return None  # a step count
        raise Unsupported(
            "torch optimizer",
            f"restore {key}",
            "its shape is not that of its parameter, and only an optimizer that has stepped once knows how it is "
            "sharded; call step() once before you load",
        )

    def restore_state(
        self,
        optimizer: torch.optim.Optimizer,
        states: dict[tuple[int, int], dict[str, Any]],
        options: dict[int, dict[str, Any]],
        whole: bool,
        global_state: dict[Any, Any],
    ) -> None:
        if (zero := zero_optimizer(optimizer)) is not None:
            for number, group in enumerate(zero.optimizer.param_groups):
                self._put_options(zero.optimizer.param_groups, group, options.get(number), whole)
            self._restore_zero(zero, states, global_state)
            return
        state: Any = optimizer.state
        for key in [key for key in state if not isinstance(key, torch.Tensor)]:
            del state[key]
        state.update(_tensors(global_state))
        uploads = Uploads()
        try:
            for number, group in enumerate(optimizer.param_groups):
                self._put_options(optimizer.param_groups, group, options.get(number), whole)
                self._put_states(optimizer, number, states, uploads)
        finally:
            uploads.finish()
        if type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict:
            # Like load_state_dict: some optimizers convert the state of older versions there.
            optimizer.__setstate__({"state": optimizer.state, "param_groups": optimizer.param_groups})
        else:
            restored = optimizer.state_dict()
            optimizer.load_state_dict(restored)
            _undo_casts(optimizer.state_dict(), restored)

    def _restore_zero(self, zero: Any, states: zero_optimizers.States, global_state: dict[Any, Any]) -> None:
        uploads = Uploads()
        placed: zero_optimizers.States = {}
        for group_number, members in enumerate(zero_optimizers.groups_of(zero)):
            group = zero.optimizer.param_groups[group_number]
            for position, stepped in enumerate(members):
                state = states.get((group_number, position))
                if state is not None:
                    flat = stepped.master.flat
                    new = {key: _on_device(flat, group, key, value, uploads) for key, value in state.items()}
                    placed[group_number, position] = new
        uploads.finish()
        zero_optimizers.restore_states(zero, placed, global_state)

    def _put_states(
        self, optimizer: torch.optim.Optimizer, number: int, states: zero_optimizers.States, uploads: Uploads
    ) -> None:
        """Sets the state of the parameters of one group."""
        group = optimizer.param_groups[number]
        given: dict[int, list[tuple[Any, dict[str, Any]]]] = {}
        for position, (parameter, shard) in enumerate(_shown(group)):
            state = states.get((number, position))
            if state is None:
                continue
            placed = {key: _on_device(parameter, group, key, value, uploads) for key, value in state.items()}
            given.setdefault(id(parameter), []).append((shard, placed))
        for parameter in group["params"]:
            if id(parameter) not in given:
                continue
            optimizer.state.pop(parameter, None)
            if state := _own_state(given[id(parameter)]):
                optimizer.state[parameter] = state

    def _put_options(
        self, groups: list[dict[str, Any]], group: dict[str, Any], options: dict[str, Any] | None, whole: bool
    ) -> None:
        for key, value in (options or {}).items():
            is_shared = any(sibling.get(key) is group.get(key) for sibling in groups if sibling is not group)
            _set_option(group, key, value, whole, is_shared)
        if whole and options is not None:
            for key in set(group) - {"params", "param_names", *options}:
                del group[key]  # a running value that the group did not have yet when it was saved

    def casts_state(self, optimizer: Any) -> bool:
        return zero_optimizer(optimizer) is None

    def check_states(self, optimizer: Any, states: dict[tuple[int, int], dict[str, Any]]) -> None:
        if (zero := zero_optimizer(optimizer)) is not None:
            zero_optimizers.check_states(zero, states)
            return
        for number, group in enumerate(getattr(optimizer, "param_groups", ())):
            first: dict[tuple[int, str], Any] = {}
            for position, (parameter, shown) in enumerate(_shown(group)):
                state = states.get((number, position), {})
                if not isinstance(shown, FlatShard) or not shown.owner.is_joined():
                    continue
                for key, value in state.items():
                    other = first.setdefault((id(parameter), key), value)
                    if not isinstance(value, FlatShard) and not _is_same(other, value):
                        raise Unsupported(
                            "torch optimizer",
                            f"restore {key}",
                            "FSDP1 has joined the parameters of a unit, and their optimizer has one value for all of "
                            f"them, but the source has {other} and {value}; wrap the model with use_orig_params=True",
                        )

    def cannot_restore(self, value: Any) -> str:
        # Arrays are restored as tensors.
        return "" if isinstance(value, torch.Tensor) else "a NumPy array in the state of an optimizer"

    def state_of_parts(self, optimizer: torch.optim.Optimizer) -> list[Any]:
        return [
            value
            for parameter, state in getattr(optimizer, "state", {}).items()
            if is_sharded(parameter) and isinstance(state, dict)
            for value in state.values()
            if isinstance(value, torch.Tensor) and not is_sharded(value)
            if value.shape == local_tensor(parameter).shape != parameter.shape
        ]

    def keeps_own_state(self, optimizer: Any) -> bool:
        return keeps_own_state(optimizer)

    def restore_own_state(self, optimizer: Any, state: Any) -> None:
        tensors = _tensors(state)
        copied = _mapped(tensors, lambda item: item.clone() if isinstance(item, torch.Tensor) else item)
        optimizer.load_state_dict(copied)
        _undo_casts(optimizer.state_dict(), tensors)


class OptimizerSaving(Saving):
    def node_type(self, obj: Any) -> tuple[str, tuple[tuple[str, Any], ...] | None] | None:
        return None if isinstance(obj, VirtualNode) else (optimizer_kind(obj), None)


def optimizer_kind(optimizer: Any) -> str:
    """The name of the class of an optimizer, with the package that it is from, unless that is a script."""
    cls = type(optimizer)
    package = cls.__module__.partition(".")[0]
    return cls.__qualname__ if package == "__main__" else f"{package}.{cls.__qualname__}"


class OptimizerVetting(Vetting):
    def unlisted(self, objects: list[Any]) -> dict[int, str]:
        optimizers = [(number, obj) for number, obj in enumerate(objects) if is_optimizer(type(obj))]
        return {number: reason for number, optimizer in optimizers if (reason := _kept_outside(optimizer))}


def _is_unused(optimizer: Any, group: dict[str, Any], parameter: torch.Tensor) -> bool:
    """Whether the last step of an optimizer cannot have used the gradient that a parameter has now."""
    name, forgets = _SQUARES[type(optimizer)]
    gradient, held = parameter.grad, optimizer.state.get(parameter, {}).get(name)
    if gradient is None or gradient.layout != torch.strided or gradient.is_meta or is_sharded(parameter):
        return False
    if group.get("weight_decay") and not (isinstance(optimizer, O.AdamW) or group.get("decoupled_weight_decay")):
        return False  # added to the gradient, and squared with it
    squares = gradient.detach().flatten()[:_ELEMENTS_TO_COMPARE].double().square() * (1 - float(forgets(group)))
    mean = torch.zeros_like(squares) if held is None else held.flatten()[:_ELEMENTS_TO_COMPARE].double()
    return bool(((squares > 1.1 * mean) & (squares > _TINY) & squares.isfinite()).any())


_TINY = 1e-30  # smaller squares are rounded to zero


def _shown(group: dict[str, Any]) -> list[tuple[torch.Tensor, Any]]:
    """The parameters of a group as the walk lists them: each with what stands for it, or for its parts."""
    return [(parameter, shown) for parameter in group["params"] for shown in standing_for(parameter)]


def _own_state(given: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """The state that an optimizer keeps for a parameter, from the state of everything that stands for it."""
    shown, state = given[0]
    if not isinstance(shown, FlatShard):
        return state
    if not shown.owner.is_joined():
        if not shown.place.size:
            return {}  # never stepped in this process
        return {key: value.local if isinstance(value, FlatShard) else value for key, value in state.items()}
    joined: dict[str, Any] = {}
    for shown, state in given:
        for key, value in state.items():
            if isinstance(value, FlatShard):
                if key not in joined:
                    joined[key] = shown.owner.empty_state(value.dtype)
                part = shown.owner.part_of(joined[key])
                assert part is not None
                part.copy_(value.local)
            else:
                joined.setdefault(key, value)  # all are equal: see `check_states`
    return joined


def _is_same(a: Any, b: Any) -> bool:
    if _is_array(a) and _is_array(b):
        return same_bits(tensor_over(a), tensor_over(b))
    return type(a) is type(b) and same_plain(a, b)


def _kept_outside(optimizer: Any) -> str:
    """State that an optimizer needs to continue and does not put into its state dict; empty if there is none."""
    if (zero := zero_optimizer(optimizer)) is not None:
        return zero_optimizers.cannot_use_optimizer(zero)
    stood_for = [(parameter, standing_for(parameter)) for parameter in parameters_of(optimizer) if parameter.__dict__]
    if any(
        is_flattened(parameter) and not is_shown_itself(parameter)
        for parameter, shown in stood_for
        if shown[0] is parameter
    ):
        return (
            "it steps parameters that are split over ranks, and whose model is not in the tree; pass both: "
            '{"model": model, "optimizer": optimizer}'
        )
    if keeps_own_state(optimizer) and any(shown[0] is not parameter for parameter, shown in stood_for):
        return (
            f"{type(optimizer).__name__} writes its own state dict, with the ranges of parameters that this rank has; "
            "use FSDP.optim_state_dict, or an optimizer without hooks on its state dict"
        )
    if keeps_own_state(optimizer):
        return ""  # its own state dict is complete
    for name, value in vars(optimizer).items():
        if isinstance(value, torch.Generator | random.Random):
            return (
                f"{type(optimizer).__name__} has its own random generator, {name}, whose state is not in its "
                "state_dict(): a resumed run would differ"
            )
    return ""


def _set_option(group: dict[str, Any], key: str, value: Any, exactly: bool, shared: bool) -> None:
    held = group.get(key)
    if isinstance(held, torch.Tensor):  # a learning rate on the device stays there
        new = tensor_over(value) if _is_array(value) else torch.as_tensor(value)
        if shared or new.shape != held.shape or held.dtype.is_floating_point != new.dtype.is_floating_point:
            group[key] = new.to(held.device)
            return
        with torch.no_grad():
            held.copy_(new)
        return
    if not _is_array(value):
        group[key] = _tensors(value)
    elif exactly or value.ndim:
        tensor = tensor_over(value)
        device = next((parameter.device for parameter in group["params"]), torch.device("cpu"))
        group[key] = tensor.to(device) if tensor.dim() else tensor
    else:
        group[key] = value.item()


def _is_array(value: Any) -> bool:
    """Whether a value is a NumPy array, and not a NumPy scalar."""
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """Nested containers with `change` applied to each value that is not a container."""
    if isinstance(value, dict):
        pairs = ((key, _mapped(item, change)) for key, item in value.items())
        return dict(pairs) if type(value) is dict else type(value)(pairs)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields") and type(value) is not torch.Size:
        return type(value)(_mapped(item, change) for item in value)
    return change(value)


def _tensors(value: Any) -> Any:
    return _mapped(value, lambda item: tensor_over(item) if _is_array(item) else item)


def _undo_casts(loaded: Any, original: Any) -> None:
    """Restores tensors that PyTorch cast to the dtype of their parameter while loading."""
    if not isinstance(original, dict | list) or type(loaded) is not type(original) or len(loaded) != len(original):
        return
    for key, wanted in original.items() if isinstance(original, dict) else enumerate(original):
        if isinstance(original, dict) and key not in loaded:
            continue
        held = loaded[key]
        if isinstance(wanted, torch.Tensor) and isinstance(held, torch.Tensor):
            if held.dtype != wanted.dtype and held.shape == wanted.shape:
                loaded[key] = wanted.to(held.device)
        else:
            _undo_casts(held, wanted)


def _on_device(parameter: torch.Tensor, group: dict[str, Any], key: str, value: Any, uploads: Uploads) -> Any:
    """A value of the state on the device where PyTorch keeps it: the device of the parameter, except for the step
    count, which stays on the CPU unless a captured graph or a fused step needs it."""
    stays_on_cpu = key == "step" and not (group.get("capturable") or group.get("fused"))

    def placed(item: Any) -> Any:
        if not _is_array(item):
            return item
        return tensor_over(item) if stays_on_cpu else uploads.to(tensor_over(item), parameter.device)

    return _mapped(value, placed)
