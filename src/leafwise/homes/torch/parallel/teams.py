"""The ranks of a device mesh or of a process group, and collecting bytes from all of them."""

import secrets
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from leafwise.core.capabilities.sharding import Messages, Team
from leafwise.errors import RankError
from leafwise.homes.torch.parallel.signs_of_life import signs_of_life

_NUMBER = 8  # bytes for the number of a rank
# Its name since torch 2.13, where the older name warns.
_all_gather: Any = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor


class TorchTeam(Team):
    """Ranks that are arranged in a mesh. `groups` has the process group of this rank along each dimension that has
    several ranks: all of them are reached by sending along one dimension after another. `device_type` is where tensors
    must be to be sent by a process group that is not gloo."""

    def __init__(self, mesh: torch.Tensor, groups: dict[int, Any], device_type: str) -> None:
        ranks = tuple(mesh.flatten().tolist())
        super().__init__(ranks.index(distributed.get_rank()), ranks)
        self._mesh, self._groups, self._device_type = mesh, groups, device_type

    def start_gather(self, data: bytes) -> Callable[[], list[bytes]]:
        groups = list(self._groups.values())
        if not data or not groups:
            return lambda: [data] * self.size
        device = self._device(groups[0])
        # With the number of the rank, because a process group sorts its ranks, and a mesh may have them in any order.
        block = distributed.get_rank().to_bytes(_NUMBER, "big") + data
        sent = torch.frombuffer(bytearray(block), dtype=torch.uint8).to(device)
        wait = self._start(sent, groups[0])

        def finish() -> list[bytes]:
            gathered = wait()
            for group in groups[1:]:
                gathered = self._start(gathered, group)()
            every = gathered.cpu().numpy().tobytes()
            blocks = [every[start : start + len(block)] for start in range(0, len(every), len(block))]
            by_rank = {int.from_bytes(block[:_NUMBER], "big"): block[_NUMBER:] for block in blocks}
            return [by_rank[rank] for rank in self.ranks]

        return finish

    def exchange(self, pieces: list[bytes]) -> list[bytes]:
        longest = max(
            int.from_bytes(length, "big") for length in self.gather(max(map(len, pieces)).to_bytes(_NUMBER, "big"))
        )
        blocks = b"".join(len(piece).to_bytes(_NUMBER, "big") + piece.ljust(longest, b"\0") for piece in pieces)
        # Each axis is a dimension of the mesh. Along it, blocks are for one rank each, and then from one rank each.
        held = torch.frombuffer(bytearray(blocks), dtype=torch.uint8).reshape(*self._mesh.shape, -1)
        for dim in self._groups:
            held = self._exchanged(held.movedim(dim, 0), dim).movedim(0, dim)
        every = held.reshape(self.size, -1).numpy()
        lengths = [int.from_bytes(block[:_NUMBER].tobytes(), "big") for block in every]
        return [block[_NUMBER : _NUMBER + length].tobytes() for block, length in zip(every, lengths, strict=True)]

    def _exchanged(self, sent: torch.Tensor, dim: int) -> torch.Tensor:
        """Sends the first row to the first rank along a dimension of the mesh, the second to the second, and so on.
        Returns the rows that they sent to this one."""
        group = self._groups[dim]
        coordinate = (self._mesh == distributed.get_rank()).nonzero()[0].tolist()
        along = self._mesh[(*coordinate[:dim], slice(None), *coordinate[dim + 1 :])].tolist()
        # A process group sorts its ranks, and a mesh may have them in any order.
        in_group = distributed.get_process_group_ranks(group)
        rows = sent[[along.index(rank) for rank in in_group]].contiguous().to(self._device(group))
        received = torch.empty_like(rows)
        self._started(distributed.all_to_all_single, received, rows, group=group)()
        return received.cpu()[[in_group.index(rank) for rank in along]]

    def overlay(self, data: bytes) -> bytes:
        if not data:
            return data
        combined = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        for group in self._groups.values():
            combined = combined.to(self._device(group))
            self._started(distributed.all_reduce, combined, group=group)()
        return combined.cpu().numpy().tobytes()

    def messages(self) -> Messages:
        from leafwise.homes.torch.parallel.messages import StoreMessages

        # The name must be new: an earlier call may have failed on some of the ranks only.
        name = self.gather(secrets.token_bytes(8))[0].hex()
        return StoreMessages(self, f"leafwise/{name}")

    def _start(self, sent: torch.Tensor, group: Any) -> Callable[[], torch.Tensor]:
        gathered = torch.empty(sent.numel() * group.size(), dtype=torch.uint8, device=sent.device)
        wait = self._started(_all_gather, gathered, sent, group=group)

        def finish() -> torch.Tensor:
            wait()
            return gathered

        return finish

    def _started(self, collective: Callable[..., Any], *arguments: Any, group: Any) -> Callable[[], None]:
        """Starts a collective of a process group. The result waits for it. If it fails, this rank leaves a note, since
        some may wait for this one."""
        signs = signs_of_life()
        number = signs.begin(self.ranks)

        def failure(error: Exception) -> RankError:
            raised = error if isinstance(error, RankError) else self._unreachable(error)
            signs.give_up(self.ranks, number, raised)
            return raised

        try:
            work = collective(*arguments, group=group, async_op=True)
        except RuntimeError as error:
            raise failure(error) from error

        def wait() -> None:
            try:
                signs.wait(work, self.ranks, number)
            except (RuntimeError, RankError) as error:
                raise failure(error) from error

        return wait

    def _device(self, group: Any) -> torch.device:
        """Where tensors must be to be sent: NCCL sends only from a GPU, and gloo from any memory of the CPU."""
        if self._device_type == "cpu" or distributed.get_backend(group) == "gloo":
            return torch.device("cpu")
        return torch.device(self._device_type, torch.accelerator.current_device_index())

    def _unreachable(self, error: Exception) -> RankError:
        ranks = ", ".join(map(str, self.ranks[:8])) + (", …" if self.size > 8 else "")
        reason = str(error).partition("\n")[0].rstrip(".")
        return RankError(f"cannot reach every one of the ranks {ranks}: {reason}; see the output of the other ranks")


def _mesh_team(mesh: Any) -> TorchTeam:
    """The ranks of a mesh. Its own process groups are used, one for each dimension, because all ranks of the job would
    have to take part in making a new one."""
    if mesh.get_coordinate() is None:
        rank = distributed.get_rank()
        raise RankError(f"rank {rank} is not part of {_mesh_text(mesh)}; call this on the ranks of the mesh only", rank)
    groups = {dim: mesh.get_group(dim) for dim in reversed(range(mesh.ndim)) if mesh.size(dim) > 1}
    return TorchTeam(mesh.mesh, groups, mesh.device_type)


def _group_team(group: Any) -> TorchTeam:
    """The ranks of a process group."""
    accelerator = torch.accelerator.current_accelerator()
    device_type = "cpu" if accelerator is None else accelerator.type
    return TorchTeam(torch.tensor(_ranks(group)), {0: group} if group.size() > 1 else {}, device_type)


def team_of(meshes: list[Any], groups: list[Any]) -> TorchTeam:
    """The team of the smallest mesh that contains all ranks of these meshes, or of the largest of these process groups,
    if it contains all ranks."""
    if groups:
        largest = max(groups, key=lambda group: group.size())
        others = [_ranks(group) for group in groups] + [tuple(mesh.mesh.flatten().tolist()) for mesh in meshes]
        for ranks in others:
            if not set(ranks) <= set(_ranks(largest)):
                raise RankError(
                    f"cannot combine arrays that are sharded over the ranks {list(_ranks(largest))} and {list(ranks)}: "
                    "no process group that leafwise knows contains the ranks of both; use parts of the model: "
                    "lw.tree(model)[path]"
                )
        return _group_team(largest)
    meshes = sorted(meshes, key=lambda mesh: mesh.size(), reverse=True)
    ranks_of_largest = set(meshes[0].mesh.flatten().tolist())
    if all(set(mesh.mesh.flatten().tolist()) <= ranks_of_largest for mesh in meshes[1:]):
        return _mesh_team(meshes[0])
    root, names = _root(meshes[0]), {name for mesh in meshes for name in mesh.mesh_dim_names or ()}
    named = all(mesh.mesh_dim_names for mesh in meshes) and names <= set(root.mesh_dim_names or ())
    if named and all(_root(mesh) == root for mesh in meshes):
        # The part of the root mesh with all of these dimensions; its process groups exist already.
        return _mesh_team(root[tuple(name for name in root.mesh_dim_names if name in names)])
    listed = " and ".join(_mesh_text(mesh) for mesh in meshes[:3])
    raise RankError(
        f"cannot combine arrays that are sharded over {listed}: no mesh contains the ranks of both; make them parts of "
        "one mesh with init_device_mesh(…, mesh_dim_names=…)"
    )


def has_first_copy(mesh: Any, team: Team) -> bool:
    """Whether this mesh has the first copy of an array that is sharded over it. If it is a slice of a larger mesh, such
    as the one of this rank for data parallelism, then each of the other slices has a copy."""
    return _root(mesh) == mesh or team.ranks[0] in mesh.mesh.flatten().tolist()


def group_has_first_copy(group: Any, team: Team) -> bool:
    """Whether this process group has the first copy of an array that is sharded over it. If it is smaller than the
    team, then other groups have copies."""
    return group.size() == team.size or team.ranks[0] in _ranks(group)


def _ranks(group: Any) -> tuple[int, ...]:
    return tuple(distributed.get_process_group_ranks(group))


def _root(mesh: Any) -> Any:
    """The mesh of which a mesh is a slice; itself if it is not a slice."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    return distributed.device_mesh._mesh_resources.get_root_mesh(mesh)  # before torch 2.10


def _mesh_text(mesh: Any) -> str:
    names = mesh.mesh_dim_names or [f"dimension {dim}" for dim in range(mesh.ndim)]
    sizes = ", ".join(f"{name}={size}" for name, size in zip(names, mesh.shape, strict=True))
    return f"the mesh {sizes} of ranks {mesh.mesh.flatten().tolist()}"
