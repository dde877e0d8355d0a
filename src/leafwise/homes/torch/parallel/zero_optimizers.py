"""The optimizers of DeepSpeed ZeRO: the state of each parameter, as a range of it on every rank.

They join the copies in full precision of many parameters into flat tensors, which a PyTorch optimizer steps, so there
is one state for many parameters. Here, it is cut into the states of the parameters. A copy in full precision is state
of its parameter, called `master_param`, unless it has the dtype of the parameter, and so the same values.
"""

from itertools import chain
from typing import Any, NamedTuple

import torch

from leafwise.errors import Unsupported
from leafwise.homes.torch.parallel.deepspeed_zero import (
    MasterRange,
    cannot_reach,
    flat_sharding,
    master_range,
    place_of,
    shown,
)
from leafwise.homes.torch.parallel.flat_shards import FlatPlace, FlatShard, new_shard

MASTER = "master_param"
# State of PyTorch's optimizers that is one number, and depends only on how often they have stepped.
_SAME_ON_ALL_RANKS = frozenset({"step", "mu_product", "eta", "mu"})
_SCALER = "loss_scaler"
_SCALE = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")  # what a dynamic loss scaler changes


class Stepped(NamedTuple):
    """A parameter that a ZeRO optimizer steps: which elements of it this rank steps, and where."""

    parameter: Any
    place: FlatPlace
    master: MasterRange

    @property
    def leaf(self) -> Any:
        """What a walk shows for the parameter."""
        return shown(self.parameter)

    def piece_of(self, flat: torch.Tensor) -> torch.Tensor:
        """The elements of the parameter in a tensor that is like the flat one."""
        return flat.detach()[self.master.offset : self.master.offset + self.place.size]

    @property
    def like(self) -> FlatShard:
        """A tensor that is split like the state of the parameter."""
        return new_shard(self.place, self.piece_of(self.master.flat))


def groups_of(optimizer: Any) -> list[list[Stepped]]:
    """The parameters of each group."""
    groups: list[list[Stepped]] = [[] for _ in optimizer.optimizer.param_groups]
    if hasattr(optimizer, "fp16_groups"):  # stage 3
        for number, parameters in enumerate(optimizer.fp16_groups):
            for parameter in parameters:
                master = master_range(optimizer, parameter)
                assert master is not None
                groups[optimizer.sub_group_to_group_id[number]].append(Stepped(parameter, place_of(parameter), master))
        return groups
    flat_tensors = getattr(optimizer, "single_partition_of_fp32_groups", None)
    if flat_tensors is None:  # BF16_Optimizer
        flat_tensors, parameters_of = optimizer.fp32_groups_flat_partition, optimizer.bf16_groups
    else:
        parameters_of = optimizer.bit16_groups
    for group, parameters, flat in zip(groups, parameters_of, flat_tensors, strict=True):
        group += [_stepped_range(parameter, flat) for parameter in parameters]
    return groups


def _stepped_range(parameter: Any, flat: torch.Tensor) -> Stepped:
    """A parameter of stage 1 or 2: each rank steps a range of all parameters of a group, one after another."""
    start = stop = offset = 0
    if (mapping := parameter._hp_mapping) is not None:
        start = mapping.lp_fragment_address.start
        stop = start + mapping.lp_fragment_address.numel
        offset = mapping.hp_fragment_address.start
    group = parameter._dp_group
    place = FlatPlace(tuple(parameter.shape), start, stop, group, flat_sharding(group))
    return Stepped(parameter, place, MasterRange(flat, offset))


def state_of(optimizer: Any, stepped: Stepped) -> dict[str, Any]:
    """The state of one parameter."""
    flat = stepped.master.flat
    state: dict[str, Any] = {}
    if flat.dtype != stepped.parameter.dtype:
        state[MASTER] = stepped.like
    states = optimizer.optimizer.state
    for key, value in states.get(flat, {}).items():
        if isinstance(value, torch.Tensor):
            # A step count belongs to all parameters in the flat tensor; each of them shows a copy.
            state[key] = new_shard(stepped.place, stepped.piece_of(value)) if _is_flat(value, flat) else value.clone()
        else:
            state[key] = value
    return state


def _is_flat(value: Any, flat: torch.Tensor) -> bool:
    """Whether state has an element for each element of the flat tensor."""
    return isinstance(value, torch.Tensor) and value.shape == flat.shape


def global_state_of(optimizer: Any) -> dict[str, Any]:
    """State that belongs to no parameter."""
    scaler = getattr(optimizer, _SCALER, None)
    if not getattr(scaler, "dynamic", False):
        return {}
    return {_SCALER: {name: getattr(scaler, name) for name in _SCALE}}


def cannot_use_optimizer(optimizer: Any) -> str:
    """Why the state of an optimizer cannot be saved or restored; empty if it can."""
    if reason := cannot_reach(optimizer):
        return reason
    for stepped in chain.from_iterable(groups_of(optimizer)):
        ranks, every = stepped.place.group.size(), torch.distributed.get_world_size()
        if ranks != every:
            return (
                f"DeepSpeed has split its state over {ranks} of {every} ranks, and leafwise does not know what the "
                "other ranks have; use engine.save_checkpoint and engine.load_checkpoint"
            )
        flat = stepped.master.flat
        for key, value in optimizer.optimizer.state.get(flat, {}).items():
            if isinstance(value, torch.Tensor) and not _is_flat(value, flat) and key not in _SAME_ON_ALL_RANKS:
                return (
                    f"{type(optimizer.optimizer).__name__} keeps {key} for many parameters that DeepSpeed has joined, "
                    "and leafwise does not know which of them it belongs to; use engine.save_checkpoint and "
                    "engine.load_checkpoint"
                )
    return ""


# -- restoring -----------------------------------------------------------------------------------------

States = dict[tuple[int, int], dict[str, Any]]


def check_states(optimizer: Any, states: States) -> None:
    """Raises `Unsupported` if the parameters of one flat tensor cannot have these states."""
    for members in _by_flat(optimizer, states).values():
        given = [(stepped, state) for stepped, state in members if state is not None]
        if given and (reason := _cannot_restore_flat(given, len(members))):
            raise Unsupported("torch optimizer", "restore the state of an optimizer of DeepSpeed", reason)


def _cannot_restore_flat(given: list[tuple[Stepped, dict[str, Any]]], count: int) -> str:
    """Why parameters of a flat tensor of this many parameters cannot have these states; empty if they can."""
    stepped, _ = given[0]
    if stepped.master.flat.dtype == stepped.parameter.dtype and any(MASTER in state for _, state in given):
        return (
            f"the source has copies of parameters in full precision ({MASTER}), but here the parameters themselves "
            "have this dtype, and no copies"
        )
    texts = list(dict.fromkeys(_shared_text(state) for _, state in given))
    if len(texts) > 1 or len(given) < count:
        first, second = [*texts, "no new state"][:2]
        return (
            f"DeepSpeed keeps one state for {count} of its parameters, but the source has different ones for them: "
            f"{first} and {second}"
        )
    return ""


def _shared_text(state: dict[str, Any]) -> str:
    """What all parameters of a flat tensor must have in common: the names of their states, and those values that are
    not split."""
    keys = sorted(key for key in state if key != MASTER)
    texts = [key if isinstance(state[key], FlatShard) else f"{key}={_plain(state[key])}" for key in keys]
    return ", ".join(texts) or "no state"


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _by_flat(optimizer: Any, states: States) -> dict[int, list[tuple[Stepped, dict[str, Any] | None]]]:
    """The parameters of each flat tensor, with their new states."""
    members: dict[int, list[tuple[Stepped, dict[str, Any] | None]]] = {}
    for group_number, group in enumerate(groups_of(optimizer)):
        for position, stepped in enumerate(group):
            state = states.get((group_number, position))
            members.setdefault(id(stepped.master.flat), []).append((stepped, state))
    return members


def restore_states(optimizer: Any, states: States, global_state: dict[Any, Any]) -> None:
    """Gives an optimizer new states. Values that are not split are tensors, or plain."""
    for members in _by_flat(optimizer, states).values():
        given = [(stepped, state) for stepped, state in members if state is not None]
        if given:
            _restore_flat(optimizer.optimizer, given)
    if hasattr(optimizer, "_hp_optimizer_states_linked"):
        optimizer._hp_optimizer_states_linked = False  # the next step looks for the new state
    scaler = getattr(optimizer, _SCALER, None)
    if getattr(scaler, "dynamic", False):
        for name, value in global_state.get(_SCALER, {}).items():
            setattr(scaler, name, value)


def _restore_flat(optimizer: torch.optim.Optimizer, given: list[tuple[Stepped, dict[str, Any]]]) -> None:
    flat = given[0][0].master.flat
    target: Any
    old: dict[str, Any] = optimizer.state.pop(flat, {})
    new: dict[str, Any] = {}
    with torch.no_grad():
        for stepped, state in given:
            for key, value in state.items():
                if not isinstance(value, FlatShard):
                    new[key] = value
                    continue
                if key == MASTER:
                    target = flat
                else:
                    target = new.get(key, old.get(key))
                    if not _is_flat(target, flat):
                        target = torch.zeros_like(flat, requires_grad=False)
                    new[key] = target
                stepped.piece_of(target).copy_(value.local)
    if new:
        optimizer.state[flat] = new
