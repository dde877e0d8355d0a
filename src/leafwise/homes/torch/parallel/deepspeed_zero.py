"""Parameters that DeepSpeed ZeRO-3 has split, and copies in full precision of the parameters of every stage.

Stage 3 flattens each parameter and gives every rank a range of its elements, `ds_tensor`, with padding at the end. The
parameter itself has no elements, except while DeepSpeed has gathered it: for a forward, inside `GatheredParameters`, or
all the time if it is small (a persistent parameter). Stages 1 and 2 keep parameters whole on every rank.

At every stage, the optimizer keeps flat copies in full precision, the master weights, of which each rank has a range.
A step changes these copies, and then overwrites the parameters with them. So what is loaded into a parameter must also
be written into its copy.
"""

import sys
from typing import Any, NamedTuple
from weakref import ref

import torch
from torch import distributed, nn
from torch.utils.weak import WeakTensorKeyDictionary

from leafwise.core.memory.sharding import Sharding
from leafwise.errors import Unsupported
from leafwise.homes.torch.parallel.flat_shards import (
    FlatOwner,
    FlatPlace,
    FlatShard,
    names_with_stand_ins,
    stand_in,
    stand_in_at,
)
from leafwise.homes.torch.values.tensor_values import same_bits

_OWN_FILES = "use engine.save_checkpoint and engine.load_checkpoint"
_ON_NVME = f"DeepSpeed has moved its values to NVMe; {_OWN_FILES}"
_QUANTIZED = f"DeepSpeed keeps it quantized (zero_quantized_nontrainable_weights); {_OWN_FILES}"
_SOME_RANKS = (
    "DeepSpeed has split it over {} of {} ranks, and leafwise does not know what the other ranks have under this name "
    f"(MiCS, experts or tensor parallelism); {_OWN_FILES}"
)
_CHANGED_COPY = (
    "DeepSpeed has gathered it, and the gathered copy was changed; leave deepspeed.zero.GatheredParameters first"
)
_IN_USE = "DeepSpeed uses it in a forward or backward that has not ended; call leafwise before or after it"
_MASTERS = (
    "DeepSpeed keeps a copy of it in full precision, and the next step overwrites it with that copy; only lw.load "
    "changes both, or change the model before deepspeed.initialize"
)
_WITHOUT_ZERO = (
    "DeepSpeed keeps a copy of it in full precision in a {}, and the next step overwrites it with that copy; load into "
    "the model before deepspeed.initialize, or train with ZeRO stage 1, 2 or 3"
)
_WITHOUT_ZERO_OPTIMIZERS = ("FP16_Optimizer", "FP16_UnfusedOptimizer")
_TRAINABLE = (
    "DeepSpeed has made its optimizer for the parameters that were trainable then; freeze or thaw them before "
    "deepspeed.initialize"
)
# The optimizers that leafwise knows; subclasses keep their copies elsewhere.
_OPTIMIZERS = ("DeepSpeedZeroOptimizer_Stage3", "DeepSpeedZeroOptimizer", "BF16_Optimizer")
# Settings with which DeepSpeed keeps the copies, or the state of the optimizer, elsewhere.
_ELSEWHERE = {
    "swap_optimizer": "on NVMe",
    "params_in_nvme_and_cpu": "on NVMe",
    "zenflow": "with ZenFlow",
    "use_muon": "with Muon",
}


def is_split(value: Any) -> bool:
    """Whether ZeRO-3 has split a parameter over ranks; it may be gathered at the moment."""
    return getattr(value, "ds_tensor", None) is not None and hasattr(value, "ds_id")


def is_imported() -> bool:
    return "deepspeed" in sys.modules


def group_of_copies(value: Any) -> Any:
    """The process group whose ranks have parts of the copy in full precision of a whole parameter; None if there is
    none."""
    return getattr(value, "_dp_group", None) if hasattr(value, "_hp_mapping") else None


def cannot_change(value: torch.Tensor) -> str:
    """Why the next step would overwrite values that are written into a parameter; empty if it would not."""
    if type(value) in (nn.Parameter, torch.Tensor) and not value.__dict__:  # where DeepSpeed would mark it
        return ""
    return _MASTERS if is_split(value) or hasattr(value, "_hp_mapping") else ""


def cannot_load_whole(value: Any) -> str:
    """Why values cannot be loaded into a parameter whose values are all in this process; empty if they can."""
    if len(_without_zero) and value in _without_zero:
        return _WITHOUT_ZERO.format(_without_zero[value])
    mapping = getattr(value, "_hp_mapping", None)
    if mapping is not None and mapping.hp_fragment is None:
        return "DeepSpeed has moved its copy in full precision elsewhere; call engine.reload_states() first"
    optimizer = getattr(value, "_zero_optimizer", None)  # which DeepSpeed sets if it offloads its state
    return "" if optimizer is None else cannot_reach(optimizer)


def update_master(value: Any) -> None:
    """Copies new values of a whole parameter to the elements of its copy in full precision that are on this rank."""
    mapping = getattr(value, "_hp_mapping", None)
    if mapping is not None:
        start, size = mapping.lp_fragment_address.start, mapping.lp_fragment_address.numel
        with torch.no_grad():
            mapping.hp_fragment.detach().copy_(value.detach().flatten()[start : start + size])


# -- stage 3 -------------------------------------------------------------------------------------------


def place_of(parameter: Any) -> FlatPlace:
    """Which elements of a parameter this rank has."""
    group, size = parameter.ds_process_group, parameter.ds_tensor.ds_numel
    start = min(distributed.get_rank(group) * size, parameter.ds_numel)
    stop = min(start + size, parameter.ds_numel)
    return FlatPlace(tuple(parameter.ds_shape), start, stop, group, flat_sharding(group))


def flat_sharding(group: Any) -> Sharding:
    return Sharding((distributed.get_world_size(group),), None, ("flat shard",))


class MasterRange(NamedTuple):
    """Where the copy in full precision of a parameter is: from `offset` on in a flat tensor, which has one state in the
    optimizer."""

    flat: torch.Tensor
    offset: int


def master_range(optimizer: Any, parameter: Any) -> MasterRange | None:
    """None if the optimizer does not step the parameter."""
    position = optimizer.grad_position.get(parameter.ds_id)
    if position is None:
        return None
    number, offset, _ = position
    return MasterRange(optimizer.fp32_partitioned_groups_flat[number], offset)


class _Partition(FlatOwner):
    """The range of a parameter that ZeRO-3 keeps in this process. Refers to the parameter weakly, because a cache keeps
    it."""

    def __init__(self, parameter: Any) -> None:
        super().__init__()
        self._reference = ref(parameter)

    @property
    def _parameter(self) -> Any:
        parameter = self._reference()
        if parameter is None:
            raise Unsupported("torch", "use a parameter of DeepSpeed", "its model does not exist any more")
        return parameter

    @property
    def _optimizer(self) -> Any:
        return getattr(self._parameter, "_z3_optimizer", None)

    def local(self) -> torch.Tensor:
        parameter = self._parameter
        return parameter.ds_tensor.detach()[: place_of(parameter).size]  # type: ignore[no-any-return]

    def cannot_use(self) -> str:
        parameter = self._parameter
        if parameter.ds_tensor.status.name != "AVAILABLE" or parameter.ds_tensor.final_location == "nvme":
            return _ON_NVME
        if hasattr(parameter.ds_tensor, "ds_quant_scale"):
            return _QUANTIZED
        ranks, every = distributed.get_world_size(parameter.ds_process_group), distributed.get_world_size()
        if ranks != every:
            return _SOME_RANKS.format(ranks, every)
        if parameter.ds_status.name == "AVAILABLE":
            place = place_of(parameter)
            gathered = parameter.detach().flatten()[place.start : place.stop]
            if not same_bits(gathered, self.local()):
                return _CHANGED_COPY
        return ""

    def cannot_change(self) -> str:
        return "" if self._optimizer is None else _MASTERS

    def cannot_load(self) -> str:
        if self._parameter.ds_active_sub_modules:
            return _IN_USE
        return "" if self._optimizer is None else cannot_reach(self._optimizer)

    def after_load(self) -> None:
        parameter, optimizer = self._parameter, self._optimizer
        master = None if optimizer is None else master_range(optimizer, parameter)
        if master is not None:
            local = self.local()
            with torch.no_grad():
                master.flat.detach()[master.offset : master.offset + len(local)].copy_(local)
        parameter.ds_secondary_tensor = None  # a copy on fewer ranks, which DeepSpeed makes again

    def stepped(self) -> torch.Tensor | None:
        return self._parameter  # type: ignore[no-any-return]

    def requires_grad(self) -> bool:
        return bool(self._parameter.requires_grad)

    def cannot_train_alone(self) -> str:
        return "" if self._optimizer is None else _TRAINABLE

    def set_requires_grad(self, requires_grad: bool) -> None:
        self._parameter.requires_grad_(requires_grad)

    def drop_grad(self) -> None:
        self._parameter.grad = None


_shards: Any = WeakTensorKeyDictionary()  # what stands for parameters that are split
# Parameters of engines without ZeRO whose optimizer keeps copies in full precision, and the name of its type.
_without_zero: Any = WeakTensorKeyDictionary()


def register(module: nn.Module) -> None:
    """Registers what stands for the parameters of a module that ZeRO-3 has split."""
    if not is_imported():
        return
    optimizer = vars(module).get("optimizer")
    if type(optimizer).__name__ in _WITHOUT_ZERO_OPTIMIZERS:  # only the engine knows it, and parameters are not marked
        _without_zero.update(dict.fromkeys(module.parameters(), type(optimizer).__name__))
    known = names_with_stand_ins(module) or {}
    for name, parameter in module._parameters.items():
        if parameter is not None and name not in known and is_split(parameter):
            stand_in_at(module, name, shown)
            reference = ref(parameter)
            stand_in(parameter, lambda _, reference=reference: shown(reference()))  # type: ignore[misc]


def shown(parameter: Any) -> Any:
    """What stands for a parameter in a walk."""
    if not is_split(parameter):
        return parameter
    shard, like, place = _shards.get(parameter), parameter.ds_tensor, place_of(parameter)
    if shard is None or (shard.dtype, shard.device, shard.place) != (like.dtype, like.device, place):
        shard = _shards[parameter] = FlatShard(place, _Partition(parameter), like, is_parameter=True)
    return shard


def drop_gathered(objects: list[Any]) -> None:
    """Frees the gathered copies of parameters of these modules, which the next forward would use. It gathers them
    again."""
    if is_imported():
        parameters: dict[int, Any] = {}
        for module in objects:
            held = module._parameters.values() if isinstance(module, nn.Module) else ()
            parameters |= {id(parameter): parameter for parameter in held if is_split(parameter)}
        gathered = [parameter for parameter in parameters.values() if parameter.ds_status.name == "AVAILABLE"]
        if gathered:
            gathered[0].partition(gathered)


# -- optimizers ----------------------------------------------------------------------------------------


def zero_optimizer(optimizer: Any) -> Any:
    """The ZeRO optimizer of DeepSpeed that an object is or wraps; None if it is another one."""
    while type(optimizer).__module__.startswith("accelerate."):
        optimizer = getattr(optimizer, "optimizer", None)
    known = is_imported() and any(base.__name__ in _OPTIMIZERS for base in type(optimizer).__mro__)
    return optimizer if known and hasattr(optimizer, "optimizer") else None


def cannot_reach(optimizer: Any) -> str:
    """Why the copies in full precision of an optimizer of DeepSpeed cannot be used; empty if they can."""
    where = next((text for name, text in _ELSEWHERE.items() if getattr(optimizer, name, False)), None)
    if type(optimizer).__name__ not in _OPTIMIZERS:
        where = f"in a {type(optimizer).__name__}"
    if where is not None:
        return (
            f"DeepSpeed keeps copies in full precision and optimizer state where leafwise does not look ({where}); "
            f"{_OWN_FILES}"
        )
    if getattr(optimizer, "offloaded_states", None):
        return "engine.offload_states() has moved what the optimizer keeps; call engine.reload_states() first"
    return ""
