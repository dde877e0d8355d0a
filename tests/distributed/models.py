"""Models that are sharded in every way that PyTorch has, with the same values on every rank."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard


class Block(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Net(nn.Module):
    """By default, no size can be divided by the number of ranks, and the bias of the head has fewer rows than there are
    ranks."""

    def __init__(self, width: int = 6, hidden: int = 10, out: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(11, width, padding_idx=7)
        self.blocks = nn.ModuleList([Block(width, hidden) for _ in range(2)])
        self.head = nn.Linear(width, out)
        self.register_buffer("scale", torch.arange(1.0, out + 1))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x) * self.scale


def even() -> Net:
    return Net(8, 16, 4)


def fsdp(model: nn.Module, mesh: Any) -> Any:
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp1(model: nn.Module, original: bool, **options: Any) -> FullyShardedDataParallel:
    """FSDP1 in units: each block, and the rest. `original` is its option `use_orig_params`."""
    options = {"use_orig_params": original, "device_id": torch.device("cpu"), **options}
    for number, block in enumerate(model.blocks):  # type: ignore[arg-type, union-attr]
        model.blocks[number] = FullyShardedDataParallel(block, **options)  # type: ignore[index, operator]
    return FullyShardedDataParallel(model, **options)


def tensor_parallel(model: nn.Module, mesh: Any) -> nn.Module:
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:  # type: ignore[union-attr]
        parallelize_module(block, mesh, plan)
    return model


def _fsdp(count: int) -> nn.Module:
    return fsdp(Net(), init_device_mesh("cpu", (count,), mesh_dim_names=("dp",)))  # type: ignore[no-any-return]


def _fsdp_columns(count: int) -> nn.Module:
    model, mesh = Net(8, 16, 8), init_device_mesh("cpu", (count,))
    return fully_shard(model, mesh=mesh, shard_placement_fn=lambda parameter: Shard(parameter.dim() - 1))


def _tensor_parallel(count: int) -> nn.Module:
    return tensor_parallel(Net(), init_device_mesh("cpu", (count,), mesh_dim_names=("tp",)))


def _hybrid(count: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("replicate", "shard"))
    return fsdp(Net(), mesh)  # type: ignore[no-any-return]


def _fsdp_and_tensor_parallel(count: int) -> nn.Module:
    """The weights of `up` are sharded twice along the same axis, so FSDP2 uses strided shards for them."""
    mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("dp", "tp"))
    return fsdp(tensor_parallel(even(), mesh["tp"]), mesh["dp"])  # type: ignore[no-any-return]


def _uneven_fsdp_and_tensor_parallel(count: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("dp", "tp"))
    return fsdp(tensor_parallel(Net(6, 11), mesh["tp"]), mesh["dp"])  # type: ignore[no-any-return]


def _by_hand(count: int) -> nn.Module:
    """Pairs of placements on a mesh of two dimensions, also uneven ones; and buffers. Without a shard that follows, a
    strided shard consists of several pieces."""
    mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("a", "b"))
    copy, strided = Replicate(), [_StridedShard(0, split_factor=3), _StridedShard(1, split_factor=2)]
    pairs = [(Shard(0), Shard(0)), (Shard(0), Shard(1)), (Shard(1), copy), (strided[0], copy), (strided[1], Shard(0))]
    model = nn.Module()
    for number, pair in enumerate([*pairs, (copy, copy)]):
        whole = torch.arange(7.0 * 5).view(7, 5)
        # Only this way of splitting, without sending anything, supports strided shards that are uneven.
        split = partial(distribute_tensor, device_mesh=mesh, placements=pair, src_data_rank=None)
        model.register_parameter(f"w{number}", nn.Parameter(split(whole)))
        model.register_buffer(f"b{number}", split(whole.int()))
    model.register_parameter("scalar", nn.Parameter(distribute_tensor(torch.tensor(3.0), mesh, (copy, copy))))
    model.register_parameter("whole", nn.Parameter(torch.arange(3.0)))
    return model


SHARDED: dict[str, tuple[int, Callable[[int], nn.Module]]] = {
    "fsdp on 2": (2, _fsdp),
    "fsdp on 4": (4, _fsdp),
    "fsdp by columns": (2, _fsdp_columns),
    "tensor parallel": (2, _tensor_parallel),
    "hybrid": (4, _hybrid),
    "fsdp and tensor parallel": (4, _fsdp_and_tensor_parallel),
    "fsdp and tensor parallel, uneven": (4, _uneven_fsdp_and_tensor_parallel),
    "by hand": (4, _by_hand),
}


def sharded_models(count: int) -> dict[str, nn.Module]:
    return {name: make(ranks) for name, (ranks, make) in SHARDED.items() if ranks == count}
