"""Tensors of libraries that shard, offload or quantize a model, so that PyTorch does not show their values.

Such libraries leave `nn.Parameter`s in the model that contain a shard of the values, nothing, or packed bits. They are
recognized by attributes that the library sets, and refused. The message says what to call instead.
"""

import sys
from math import prod
from typing import Any

import torch
from torch import nn

from leafwise.homes.torch.parallel.flat_shards import FLAT, FlatShard, is_shown_itself

# Libraries that change plain parameters and mark them by attributes. Unless one of them is imported, plain parameters
# need no check.
_MARKING = ("torch.distributed.fsdp", "deepspeed")

_FSDP1 = (
    "a parameter of FSDP1, which keeps only a shard of it in each process; pass the FSDP model that contains it, or a "
    "part of its tree: lw.tree(model)[path]"
)
_ZERO3 = (
    "a parameter of DeepSpeed ZeRO-3, which keeps only a shard of it in each process; pass the model that contains it, "
    "or a part of its tree: lw.tree(model)[path]"
)
DTENSOR = (
    "a DTensor is sharded over the processes of a mesh; use its full_tensor(), or "
    "torch.distributed.checkpoint.state_dict.get_model_state_dict and set_model_state_dict with full_state_dict=True"
)
_SHARDED_TENSOR = (
    "a ShardedTensor, from a state dict of FSDP1, has only a shard of its values in each process; pass the FSDP model "
    "itself, or a state dict that was made with FullyShardedDataParallel.state_dict_type(model, "
    "StateDictType.FULL_STATE_DICT)"
)
_PARTIAL = (
    "a DTensor whose values are a sum over ranks that was not computed yet (Partial); compute it first: "
    "tensor.redistribute(placements=[Replicate()] * tensor.device_mesh.ndim)"
)
_FUNCTORCH = (
    "a tensor inside a function transform (vmap, grad, …) has no values of its own; call leafwise outside of it"
)
_FAKE = "a FakeTensor has a shape but no values; call leafwise outside of FakeTensorMode"
_BITSANDBYTES = (
    "bitsandbytes keeps it packed, and its scales outside of the tree; save with model.save_pretrained, or convert it "
    "to a plain tensor with bitsandbytes.functional.dequantize_4bit or int8_vectorwise_dequant"
)


def may_be_marked() -> bool:
    """Whether plain parameters may be marked as something else by a library."""
    return any(name in sys.modules for name in _MARKING)


def not_understood(value: torch.Tensor) -> str:
    """Why the bytes of a tensor in this process are not its values; empty if they are."""
    kind = type(value)
    if kind in (nn.Parameter, torch.Tensor) and not value.__dict__:  # where libraries would mark it
        is_wrapped = kind is torch.Tensor and torch._C._functorch.is_functorch_wrapped_tensor(value)
        return _FUNCTORCH if is_wrapped else ""
    if kind is FlatShard:
        return FLAT
    if is_sharded_tensor(value):
        return _SHARDED_TENSOR
    if is_flattened(value):
        return "" if is_shown_itself(value) else _FSDP1
    if is_partitioned(value):
        return _ZERO3
    if is_packed(value):
        return _BITSANDBYTES
    if kind not in (torch.Tensor, nn.Parameter):
        return _of_a_subclass(value)
    if torch._C._functorch.is_functorch_wrapped_tensor(value):
        return _FUNCTORCH
    return ""


def _of_a_subclass(value: torch.Tensor) -> str:
    kind = type(value)
    if kind.__name__ == "FakeTensor":
        return _FAKE
    if is_sharded_type(kind):
        return not_readable_by_parts(value) or DTENSOR
    if hasattr(value, "__tensor_flatten__"):  # a wrapper subclass, made of inner tensors
        return f"{kind.__name__} is a tensor made of other tensors; convert it to a plain tensor first"
    return ""


def is_sharded_type(cls: type) -> bool:
    """Whether tensors of this type are sharded over processes: DTensors, and ranges of flattened parameters."""
    return cls is FlatShard or (hasattr(cls, "device_mesh") and hasattr(cls, "to_local"))


def is_sharded(value: torch.Tensor) -> bool:
    cls = type(value)
    return cls is not nn.Parameter and cls is not torch.Tensor and is_sharded_type(cls)


def is_sharded_tensor(value: torch.Tensor) -> bool:
    """Whether it is a ShardedTensor, which FSDP1 has in state dicts. Most attributes of a tensor raise an error."""
    return type(value).__name__ == "ShardedTensor" and hasattr(type(value), "local_shards")


def facts_of_sharded_tensor(value: Any) -> tuple[tuple[int, ...], torch.dtype, torch.device]:
    """The shape and dtype of the whole tensor, and the device of the shard in this process."""
    record, shards = value.metadata(), value.local_shards()
    device = shards[0].tensor.device if shards else torch.device("cpu")
    return tuple(record.size), record.tensor_properties.dtype, device


def not_readable_by_parts(value: Any) -> str:
    """Why even the local part of a DTensor does not have its values; empty if it has."""
    return _PARTIAL if any(placement.is_partial() for placement in value.placements) else ""


def is_flattened(value: torch.Tensor) -> bool:
    """Whether FSDP1 has flattened a parameter, or joined others in it."""
    return bool(getattr(value, "_fsdp_flattened", False) or getattr(value, "_is_flat_param", False))


def is_partitioned(value: torch.Tensor) -> bool:
    """Whether DeepSpeed keeps only a shard of a parameter in this process."""
    return hasattr(value, "ds_id") and getattr(getattr(value, "ds_status", None), "name", "") != "AVAILABLE"


def is_packed(value: torch.Tensor) -> bool:
    """Whether bitsandbytes has packed a parameter. It packs some only when they are moved to a GPU."""
    if type(value).__name__ == "Int8Params" and value.dtype == torch.int8:
        return True  # after a forward, the layer has the scales, and the parameter is not marked
    return any(getattr(value, name, None) is not None for name in ("quant_state", "SCB", "CB"))


def facts(value: torch.Tensor) -> tuple[tuple[int, ...], str | None, int, int] | None:
    """The true shape, dtype, number of elements and number of bytes of a tensor whose attributes are wrong. The dtype
    is None if that attribute is right. None if all attributes are right."""
    if is_partitioned(value) and hasattr(value, "ds_shape"):
        shape = tuple(value.ds_shape)
        return shape, None, prod(shape), prod(shape) * value.element_size()
    state = getattr(value, "quant_state", None)
    if state is not None:
        shape = tuple(state.shape)
        return shape, str(state.quant_type), prod(shape), value.nbytes
    if hasattr(value, "__tensor_flatten__") and not hasattr(value, "device_mesh"):
        nbytes = _inner_bytes(value)
        if nbytes != value.numel() * value.element_size():
            return tuple(value.shape), type(value).__name__, value.numel(), nbytes
    return None


def _inner_bytes(value: Any) -> int:
    """The number of bytes of the tensors that a tensor is made of."""
    if not hasattr(value, "__tensor_flatten__"):
        return int(value.nbytes)
    names, _ = value.__tensor_flatten__()
    return sum(_inner_bytes(getattr(value, name)) for name in names)
