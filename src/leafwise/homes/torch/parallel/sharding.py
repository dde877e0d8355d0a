"""Tensors that are sharded over processes: how they are, and the parts of them that are in this process.

FSDP2 (`fully_shard`) and tensor parallelism (`parallelize_module`) make parameters DTensors. Where its elements are
follows from its mesh and placements alone, so nothing is communicated here. FSDP1 and DeepSpeed flatten parameters; see
`flat_shards`.
"""

import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import Any

import torch
from torch import nn

from leafwise.core.capabilities.sharding import Distributing, Team
from leafwise.core.memory.sharding import LocalPart, LocalRange, Sharding, Split, local_ranges
from leafwise.errors import Unsupported
from leafwise.homes.torch.checkpoints.unsupported_tensors import is_sharded, is_sharded_type, not_readable_by_parts
from leafwise.homes.torch.parallel import deepspeed_zero, fsdp1
from leafwise.homes.torch.parallel.flat_shards import FLAT, FlatShard, new_shard
from leafwise.homes.torch.ties.tied_views import plain_class

_PLAIN = (torch.Tensor, nn.Parameter)
_GATHERED = (
    "FSDP2 has gathered its parameters for a forward, and drops these copies afterwards; first call reshard() on the "
    "module that was passed to fully_shard"
)


class TorchDistributing(Distributing):
    def may_shard(self, types: Iterable[type]) -> bool:
        return any(map(is_sharded_type, types))

    def local(self, value: torch.Tensor) -> Any:
        return local_tensor(value) if is_sharded(value) else self.home.value(value)

    def cannot_use_parts(self, value: torch.Tensor) -> str:
        return _cannot_use_parts(value) if is_sharded(value) else ""

    def parts(self, value: Any) -> list[LocalPart]:
        if not is_sharded(value):
            return super().parts(value)
        if reason := _cannot_use_parts(value):
            raise Unsupported(self.home.name, "use the local part of a tensor", reason)
        local = local_tensor(value)
        if isinstance(value, FlatShard):
            return value.place.parts(local)
        boxes = [] if value.device_mesh.get_coordinate() is None else list(product(*_axes(value)))
        if len(boxes) == 1:
            return [LocalPart(local, tuple(axis.first for axis in boxes[0]), tuple(local.shape))]
        return [
            LocalPart(
                local[tuple(slice(axis.local, axis.local + axis.size) for axis in box)],
                tuple(axis.first for axis in box),
                tuple(axis.size for axis in box),
            )
            for box in boxes
        ]

    def empty_like(self, value: torch.Tensor, dtype: str) -> Any:
        return empty_like_sharded(value, getattr(torch, dtype))

    def counts_here(self, value: Any, team: Team) -> bool:
        if not is_sharded(value):
            return super().counts_here(value, team)
        from leafwise.homes.torch.parallel import teams  # imports torch.distributed

        if isinstance(value, FlatShard):
            return value.place.has_first_copy and teams.group_has_first_copy(value.place.group, team)
        mesh = value.device_mesh
        coordinate = mesh.get_coordinate()
        if coordinate is None or not teams.has_first_copy(mesh, team):
            return False
        return not any(
            number for placement, number in zip(value.placements, coordinate, strict=True) if placement.is_replicate()
        )

    def loaded_together(self, values: list[Any]) -> list[Any]:
        if not deepspeed_zero.is_imported():
            return []
        return [value for value in values if deepspeed_zero.group_of_copies(value) is not None]

    def team(self, values: list[Any]) -> Team | None:
        sharded = [value for value in values if is_sharded(value)]
        copied = [] if len(sharded) == len(values) else [deepspeed_zero.group_of_copies(value) for value in values]
        groups = dict.fromkeys(group for group in copied if group is not None)
        if not sharded and not groups:
            return None
        from leafwise.homes.torch.parallel.teams import team_of  # imports torch.distributed

        groups |= dict.fromkeys(value.place.group for value in sharded if isinstance(value, FlatShard))
        meshes = dict.fromkeys(value.device_mesh for value in sharded if not isinstance(value, FlatShard))
        return team_of(list(meshes), list(groups))

    def cannot_be_unit(self, obj: Any) -> str:
        kind: Any = plain_class(type(obj))
        if not isinstance(obj, nn.Module):
            return f"a {kind.__name__} is not a module"
        if any(base.__name__ == "FSDPModule" for base in type(obj).__mro__):
            return "it was passed to fully_shard already; call lw.shard_units before fully_shard"
        if fsdp1.is_in_unit(obj):
            return "it is wrapped by FullyShardedDataParallel (FSDP1) already"
        # FSDP2 gathers parameters when the forward of a module is called.
        if kind.forward is nn.Module.forward:
            return f"a {kind.__name__} has no forward, before which its parameters would be gathered"
        return ""

    def gathered(self, objects: list[Any]) -> dict[int, str]:
        """Modules whose parameters FSDP1 or FSDP2 has gathered: the reason, by number."""
        if "torch.distributed.fsdp" not in sys.modules:
            return {}
        busy = fsdp1.busy(objects)
        # Quick, as there may be thousands of modules: most have no hooks.
        sharded = {cls for cls in set(map(type, objects)) if any(base.__name__ == "FSDPModule" for base in cls.__mro__)}
        suspects = (
            (number, obj)
            for number, obj in enumerate(objects)
            if type(obj) in sharded or getattr(obj, "_state_dict_pre_hooks", None)
        )
        return busy | {number: _GATHERED for number, module in suspects if any(map(_is_gathered, _groups(module)))}

    def drop_gathered(self, objects: list[Any]) -> None:
        fsdp1.drop_gathered(objects)
        deepspeed_zero.drop_gathered(objects)
        numbers = self.gathered(objects)
        for group in {id(group): group for number in numbers for group in _groups(objects[number])}.values():
            if _is_gathered(group):
                group.reshard()
            if _is_gathered(group):  # reshard() does nothing in a forward, and this one has failed
                group._to_sharded()


def local_tensor(value: Any) -> torch.Tensor:
    """The tensor with the elements that this process has; the same object each time."""
    if isinstance(value, FlatShard):
        return value.local
    local: Any = value._local_tensor  # to_local() makes a view, which autograd may follow
    if type(local).__name__ == "AsyncCollectiveTensor":
        local = local.wait()
    return local  # type: ignore[no-any-return]


def whole_tensor(value: Any) -> torch.Tensor:
    """The tensor itself, or all of a DTensor, which is sent to every rank of its mesh."""
    if isinstance(value, FlatShard):
        raise Unsupported("torch", "gather a tensor", _cannot_use_parts(value) or FLAT)
    return value.full_tensor() if is_sharded(value) else value  # type: ignore[no-any-return]


def empty_like_sharded(value: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor that is sharded in the same way, with new memory for its part in this process."""
    if isinstance(value, FlatShard):
        return new_shard(value.place, torch.empty(value.place.size, dtype=dtype or value.dtype, device=value.device))
    mesh, local = value.device_mesh, value._local_tensor
    device = mesh.device_type if local.is_meta else local.device  # the current GPU, if it is a mesh of GPUs
    with torch.no_grad():
        empty = torch.empty_like(local, dtype=dtype, device=device)
        return type(value.detach()).from_local(  # type: ignore[no-any-return]
            empty, mesh, value.placements, run_check=False, shape=value.shape, stride=value.stride()
        )


def cloned(value: Any, dtype: torch.dtype) -> torch.Tensor:
    """A copy in another dtype that is sharded in the same way."""
    if isinstance(value, FlatShard):
        return new_shard(value.place, value.local.to(dtype, copy=True))
    return value.detach().to(dtype, copy=True)  # type: ignore[no-any-return]


def same_sharding(a: Any, b: Any) -> bool:
    """Whether the local parts of two tensors are the same elements, on every rank."""
    if not is_sharded(a) or not is_sharded(b):
        return is_sharded(a) == is_sharded(b)
    if isinstance(a, FlatShard) or isinstance(b, FlatShard):
        return isinstance(a, FlatShard) and isinstance(b, FlatShard) and a.place.is_like(b.place)
    return bool(a.device_mesh == b.device_mesh and tuple(a.placements) == tuple(b.placements))


def local_nbytes(value: Any) -> int:
    """The number of bytes of a sharded tensor in this process."""
    if isinstance(value, FlatShard):
        return value.place.size * value.dtype.itemsize
    local: torch.Tensor = value._local_tensor
    return local.numel() * local.element_size()


def sharding_of(value: Any) -> Sharding:
    if isinstance(value, FlatShard):
        return value.place.sharding
    mesh = value.device_mesh
    return _sharding(tuple(mesh.shape), mesh.mesh_dim_names, tuple(value.placements))


@lru_cache(maxsize=1000)
def _sharding(sizes: tuple[int, ...], names: tuple[str, ...] | None, placements: tuple[Any, ...]) -> Sharding:
    return Sharding(sizes, None if names is None else tuple(names), tuple(map(_placement_text, placements)))


def _placement_text(placement: Any) -> str:
    if _is_strided(placement):
        return f"strided shard({placement.dim}, {placement.split_factor})"
    if placement.is_shard():
        return f"shard({placement.dim})"
    if placement.is_replicate():
        return "replicate"
    return f"partial({placement.reduce_op})" if placement.is_partial() else repr(placement)


def _is_strided(placement: Any) -> bool:
    # In torch 2.9 it is a kind of Shard, later it is not.
    return type(placement).__name__ == "_StridedShard"


def _cannot_use_parts(value: Any) -> str:
    if isinstance(value, FlatShard):
        return value.owner.cannot_use()
    has_values, has_places = _understood(tuple(value.placements))
    if not has_values:
        return not_readable_by_parts(value)
    local = value._local_tensor
    if type(local) not in _PLAIN and type(local).__name__ != "AsyncCollectiveTensor":
        return f"its part in this process is a {type(local).__name__}, not a plain tensor; use its full_tensor()"
    if not has_places or not _in_order(value):
        return f"leafwise does not know where its elements are ({sharding_of(value)}); use its full_tensor()"
    if value.device_mesh.get_coordinate() is None:
        return ""  # this process has none of it
    expected = tuple(sum(axis.size for axis in ranges) for ranges in _axes(value))
    if tuple(local.shape) != expected:
        return (
            f"its part in this process has the shape {tuple(local.shape)}, not {expected}, as {sharding_of(value)} "
            "makes it; shard it with distribute_tensor, fully_shard or parallelize_module"
        )
    return ""


@lru_cache(maxsize=1000)
def _understood(placements: tuple[Any, ...]) -> tuple[bool, bool]:
    """Whether arrays with these placements have their values in their parts, and whether it is known where these are.
    Cached, because a model repeats a few placements thousands of times."""
    known = all(
        _is_strided(placement) or type(placement).__name__ in ("Shard", "Replicate") for placement in placements
    )
    return not any(placement.is_partial() for placement in placements), known


def _in_order(value: Any) -> bool:
    """Whether an axis that is sharded over several dimensions of the mesh is split by them in their order."""
    order = getattr(getattr(value, "_spec", None), "shard_order", None) or ()
    return all(list(entry.mesh_dims) == sorted(entry.mesh_dims) for entry in order)


def _axes(value: Any) -> list[list[LocalRange]]:
    """For each axis, the ranges of elements that this process has."""
    mesh = value.device_mesh
    return _ranges(tuple(value.shape), tuple(mesh.shape), tuple(mesh.get_coordinate()), tuple(value.placements))


@lru_cache(maxsize=10_000)
def _ranges(
    shape: tuple[int, ...], sizes: tuple[int, ...], coordinate: tuple[int, ...], placements: tuple[Any, ...]
) -> list[list[LocalRange]]:
    """The same from the shape of the array, and from the mesh: its sizes, and the coordinate of this process."""
    splits: list[list[Split]] = [[] for _ in shape]
    for placement, count, number in zip(placements, sizes, coordinate, strict=True):
        if _is_strided(placement):
            splits[placement.dim].append(Split(count, number, placement.split_factor))
        elif placement.is_shard():
            splits[placement.dim].append(Split(count, number))
    return [local_ranges(size, axis_splits) for size, axis_splits in zip(shape, splits, strict=True)]


# -- modules -------------------------------------------------------------------------------------------


def _groups(module: Any) -> Iterator[Any]:
    """The groups of parameters that FSDP2 gathers together for a module, or that contain a parameter of it."""
    state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
    groups = getattr(state, "_fsdp_param_groups", None)  # older releases have one group
    yield from [getattr(state, "_fsdp_param_group", None)] if groups is None else groups
    # A module inside the one that was passed to fully_shard refers to the group only in these hooks.
    for hook in getattr(module, "_state_dict_pre_hooks", {}).values():
        if getattr(hook, "__qualname__", "").startswith("FSDPParamGroup."):
            yield from (cell.cell_contents for cell in hook.__closure__ or ())


def _is_gathered(group: Any) -> bool:
    return getattr(getattr(group, "_sharded_state", None), "name", "SHARDED") != "SHARDED"
