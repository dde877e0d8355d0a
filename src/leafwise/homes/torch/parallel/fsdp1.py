"""FSDP1: `torch.distributed.fsdp.FullyShardedDataParallel`.

Each FSDP module joins the parameters below it that no other FSDP module has, its unit, into one flat parameter, of
which each rank has a range, with padding at the end. So a rank has a range of the elements of each original parameter.
With `use_orig_params=True`, the original parameters stay in their modules, and their memory is the range of this rank;
without it, only the flat parameter is in the model, and modules have plain tensors in place of parameters.

Between its own steps, FSDP1 may keep a gathered copy of all values, which the next forward uses. So it is dropped
before values are written.
"""

import sys
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import nn

from leafwise.core.memory.sharding import Sharding
from leafwise.errors import Unsupported
from leafwise.homes.torch.parallel.flat_shards import FlatOwner, FlatPlace, FlatShard, new_shard, stand_in, stand_in_at

_FLAT_NAME = "_flat_param"
_shapes, _strides = attrgetter("_shapes"), attrgetter("_strides")  # of original parameters
_BUSY = (
    "FSDP1 has gathered its parameters, for a forward or backward that has not ended or in summon_full_params, and "
    "drops these copies afterwards; call leafwise outside of it"
)
_JOINED = (
    "FSDP1 has joined it with the other parameters of its unit, and trains all of them in the same way; wrap the model "
    "with FullyShardedDataParallel(…, use_orig_params=True)"
)
_EXTENDED = (
    "FSDP1 has flattened the local part of a DTensor (tensor parallelism), and leafwise does not know where its "
    "elements are; use FSDP2 (fully_shard)"
)
_SOME_RANKS = (
    "FSDP1 has copies of it on several ranks (HYBRID_SHARD), but not on all ranks of the job, and leafwise does not "
    "know which; use FSDP2 (fully_shard) with a mesh of two dimensions"
)
_BELOW = (
    "FSDP1 has joined its parameters with others in a flat parameter, which is in an FSDP module above it; pass that "
    "module, or a part of its tree: lw.tree(model)[path]"
)
_NO_SYNC = (
    "its gradient was computed inside no_sync(), and FSDP1 has not summed it over the ranks yet; run a backward "
    "outside of no_sync() first"
)


class _Unit:
    """The parameters of one FSDP module. Refers to the records of FSDP1 weakly, because a cache keeps it."""

    def __init__(self, module: Any, handle: Any) -> None:
        self._handle = ref(handle)
        group = handle.process_group
        self.is_sharded: bool = handle.uses_sharded_strategy
        self.joins: bool = not handle._use_orig_params
        self.sharding = Sharding((group.size(),), None, ("flat shard" if self.is_sharded else "replicate",))
        self.group, self.has_first_copy = group, self.is_sharded or group.rank() == 0
        self.cannot_use = ""
        between = getattr(module, "_inter_node_pg", None)
        if self.is_sharded and between is not None and "HYBRID" in handle._sharding_strategy.name:
            from torch import distributed

            self.sharding = Sharding((between.size(), group.size()), None, ("replicate", "flat shard"))
            if between.size() * group.size() == distributed.get_world_size():
                self.group, self.has_first_copy = distributed.group.WORLD, between.rank() == 0
            else:
                self.cannot_use = _SOME_RANKS
        flat = handle.flat_param
        self.places = [self._place(flat, number) for number in range(flat._num_params)]
        self.present = [number for number, place in enumerate(self.places) if place.size]  # with elements in this rank
        self._shards: dict[int, FlatShard] = {}

    def is_of(self, handle: Any) -> bool:
        return self._handle() is handle

    @property
    def handle(self) -> Any:
        handle = self._handle()
        if handle is None:
            raise Unsupported("torch", "use a parameter of FSDP1", "its FSDP module does not exist any more")
        return handle

    @property
    def flat(self) -> Any:
        return self.handle.flat_param

    @property
    def is_at_rest(self) -> bool:
        return bool(self.handle._training_state.name == "IDLE")

    @property
    def shows_whole(self) -> bool:
        """Whether modules have whole parameters that need no stand-ins."""
        return not (self.is_sharded or self.joins)

    def local(self) -> torch.Tensor:
        """The flat parameter of this rank, with padding."""
        flat = self.flat
        is_local = flat.shape == flat._sharded_size
        return flat.detach() if is_local else flat._local_shard  # type: ignore[no-any-return]

    def _place(self, flat: Any, number: int) -> FlatPlace:
        shape, info = tuple(_shapes(flat)[number]), flat._shard_param_infos[number]
        start, stop = (info.intra_param_start_idx, info.intra_param_end_idx + 1) if info.in_shard else (0, 0)
        order = None if flat._contiguities[number] else _axis_order(shape, _strides(flat)[number])
        return FlatPlace(shape, start, stop, self.group, self.sharding, self.has_first_copy, order)

    def piece_of(self, number: int, tensor: torch.Tensor) -> torch.Tensor:
        """The elements of an original parameter in a tensor like `local`."""
        offset = self.flat._shard_param_infos[number].offset_in_shard or 0
        return tensor.detach()[offset : offset + self.places[number].size]

    def shard(self, number: int) -> FlatShard:
        """What stands for an original parameter; the same object until its dtype or device changes."""
        shard, like = self._shards.get(number), self.local()
        if shard is None or (shard.dtype, shard.device) != (like.dtype, like.device):
            shard = FlatShard(self.places[number], _Original(self, number), like, is_parameter=True)
            self._shards[number] = shard
        return shard


class _Original(FlatOwner):
    """An original parameter in the unit of an FSDP module."""

    def __init__(self, unit: _Unit, number: int) -> None:
        super().__init__()
        self._unit, self._number = unit, number

    def _parameter(self) -> Any:
        """The original parameter, with `use_orig_params=True`. A user may have replaced it; FSDP1 allows that."""
        name, module, _ = self._unit.flat._param_infos[self._number]
        held = module._parameters.get(name)
        return held if isinstance(held, nn.Parameter) else self._unit.flat._params[self._number]

    def _is_own_memory(self) -> bool:
        """Whether the memory of the original parameter is the range of this rank."""
        unit = self._unit
        return not unit.joins and unit.is_at_rest and not unit.handle._skipped_use_sharded_views

    def local(self) -> torch.Tensor:
        if self._is_own_memory():
            held: torch.Tensor = self._parameter().detach()
            if held.shape == (self._unit.places[self._number].size,):
                return held
        return self._unit.piece_of(self._number, self._unit.local())

    def cannot_use(self) -> str:
        unit, number = self._unit, self._number
        if unit.flat._param_extensions[number] is not None:
            return _EXTENDED
        if unit.cannot_use:
            return unit.cannot_use
        place = unit.places[number]
        if not unit.flat._contiguities[number] and place.order is None:
            return "FSDP1 has flattened a tensor whose elements are not in a row; make it .contiguous() before wrapping"
        if self._is_own_memory() and place.size and tuple(self._parameter().shape) != (place.size,):
            return (
                f"it was replaced by a tensor of shape {tuple(self._parameter().shape)}, but FSDP1 needs the "
                f"{place.size} elements of this rank"
            )
        return ""

    def stepped(self) -> torch.Tensor | None:
        return self._unit.flat if self._unit.joins else self._parameter()  # type: ignore[no-any-return]

    def is_joined(self) -> bool:
        return self._unit.joins

    def stepped_with_it(self) -> Iterator[torch.Tensor]:
        # In a unit, every parameter that is not frozen gets a gradient if one of them does.
        requires_grad = self.requires_grad()
        for number in self._unit.present:
            owner = self._unit.shard(number).owner
            if owner.requires_grad() == requires_grad and (stepped := owner.stepped()) is not None:
                yield stepped

    def part_of(self, state: torch.Tensor) -> torch.Tensor | None:
        if self._unit.joins:
            has_all = state.shape == self._unit.flat._sharded_size
            return self._unit.piece_of(self._number, state) if has_all else None
        return state.detach() if state.shape == (self._unit.places[self._number].size,) else None

    def empty_state(self, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros_like(self._unit.local(), dtype=dtype)

    def cannot_train_alone(self) -> str:
        return _JOINED if self._unit.joins else ""

    def requires_grad(self) -> bool:
        return bool(self._unit.flat.requires_grad if self._unit.joins else self._parameter().requires_grad)

    def set_requires_grad(self, requires_grad: bool) -> None:
        if requires_grad == self.requires_grad():
            return
        if self._unit.joins:
            raise Unsupported("torch", "freeze or thaw a parameter", _JOINED)
        self._parameter().requires_grad_(requires_grad)

    def drop_grad(self) -> None:
        if not self._unit.joins:
            self._parameter().grad = None

    def grad(self) -> FlatShard | None:
        unit, number = self._unit, self._number
        flat, place = unit.flat, unit.places[number]
        if flat.grad is not None and flat.grad.shape != flat._sharded_size:
            return FlatShard(place, _UnreducedGradient(flat.grad.detach()), flat.grad)
        if unit.joins:
            return None if flat.grad is None else new_shard(place, unit.piece_of(number, flat.grad))
        if place.size:
            grad = self._parameter().grad
            return None if grad is None else new_shard(place, grad.detach())
        # This rank has none of the elements, and FSDP1 never gives it a gradient here; the other ranks have one if
        # they have one of the unit.
        held = (unit.shard(other).owner for other in unit.present)
        has_grads = any(owner.grad() is not None for owner in held) if unit.present else flat.grad is not None
        if not has_grads or not self.requires_grad() or flat._is_grad_none_mask[number]:
            return None
        return new_shard(place, (flat if flat.grad is None else flat.grad).detach()[:0])


class _UnreducedGradient(FlatOwner):
    def cannot_use(self) -> str:
        return _NO_SYNC


def _axis_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axes in the order of memory; None if there are gaps in it, or elements that share memory.

    >>> _axis_order((5, 3, 2, 2), (12, 1, 6, 3)), _axis_order((4, 6), (12, 1))
    ((0, 2, 3, 1), None)
    """
    axes = sorted(range(len(shape)), key=lambda axis: (shape[axis] == 1, -strides[axis]))
    expected = 1
    for axis in reversed(axes):
        if shape[axis] != 1 and strides[axis] != expected:
            return None
        expected *= shape[axis]
    return tuple(axes)


# -- modules -------------------------------------------------------------------------------------------

_below_units: "WeakSet[nn.Module]" = WeakSet()  # modules below FSDP modules whose units are known
_unit_of_module: "WeakKeyDictionary[nn.Module, _Unit]" = WeakKeyDictionary()


def is_fsdp1(cls: type) -> bool:
    wrapper = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    return wrapper is not None and issubclass(cls, wrapper)


def register(module: Any) -> None:
    """Registers what stands for the parameters of the unit of an FSDP module."""
    if module not in _below_units:
        _below_units.update(module.modules())
    handle = getattr(module, "_handle", None)
    known = _unit_of_module.get(module)
    if handle is None or (known is not None and known.is_of(handle)):
        return
    unit = _unit_of_module[module] = _Unit(module, handle)
    flat = handle.flat_param
    numbers = {(info.module, info.param_name): number for number, info in enumerate(flat._param_infos)}
    for (owner, name), number in numbers.items():
        _unit_of_module[owner] = unit
        stand_in_at(owner, name, _shown_by(unit, number))
    for info in flat._shared_param_infos:
        _unit_of_module[info.module] = unit
        stand_in_at(info.module, info.param_name, _shown_by(unit, numbers[info.prim_module, info.prim_param_name]))
    if unit.joins:
        stand_in_at(handle._fully_sharded_module, _FLAT_NAME, lambda held: None)  # shown by its parts
        stand_in(flat, unit.shard, flat._num_params)
    for number, parameter in enumerate(flat._params or ()):
        stand_in(parameter, _standing_for(unit, number, ref(parameter)))


def _standing_for(unit: _Unit, number: int, parameter: "ref[torch.Tensor]") -> Callable[[int], Any]:
    return lambda _: parameter() if unit.shows_whole else unit.shard(number)


def _shown_by(unit: _Unit, number: int) -> Callable[[Any], Any]:
    return lambda held: held if unit.shows_whole and held is not None else unit.shard(number)


def is_in_unit(module: nn.Module) -> bool:
    """Whether a module is an FSDP module that a walk has found, or below one."""
    return module in _below_units


def without_unit(objects: list[Any]) -> dict[int, str]:
    """Modules below an FSDP module that has joined their parameters, and that leafwise does not know: the reason, by
    number. They have no parameters, and FSDP1 has marked them."""
    return {
        number: _BELOW
        for number, obj in enumerate(objects)
        if isinstance(obj, nn.Module)
        and vars(obj).get("_is_fsdp_managed_module")
        and not vars(obj).get("_fsdp_use_orig_params", True)
        and obj not in _below_units
    }


def busy(objects: list[Any]) -> dict[int, str]:
    """The first module of each unit whose parameters are gathered at the moment: the reason, by number."""
    first = {id(unit): number for number, unit in reversed(_units_of(objects).items()) if not unit.is_at_rest}
    return dict.fromkeys(sorted(first.values()), _BUSY)


def drop_gathered(objects: list[Any]) -> None:
    """Frees the copies that FSDP1 has gathered, which the next forward would use."""
    for unit in {id(unit): unit for unit in _units_of(objects).values()}.values():
        handle = unit.handle
        if not unit.is_sharded or not unit.is_at_rest:
            continue
        if handle._skipped_use_sharded_views:
            handle._use_sharded_views()
        for name in ("_full_param_padded", "_full_prec_full_param_padded"):
            gathered = getattr(unit.flat, name, None)
            if gathered is not None:
                gathered.untyped_storage().resize_(0)
        handle._prefetched = False


def _units_of(objects: list[Any]) -> dict[int, _Unit]:
    """The units of modules that have parameters in one, by number."""
    if not _unit_of_module:
        return {}
    modules = [(number, obj) for number, obj in enumerate(objects) if isinstance(obj, nn.Module)]
    return {number: unit for number, module in modules if (unit := _unit_of_module.get(module)) is not None}
