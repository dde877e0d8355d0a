"""FSDP1: models whose parameters are flattened, joined and split over ranks, with both settings of `use_orig_params`."""

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy, StateDictType

import leafwise as lw
from tests.distributed.models import Net, fsdp, fsdp1
from tests.distributed.ranks import run_ranks

TOKENS = torch.tensor([[1, 4, 7, 2], [0, 10, 3, 3]])


def options(strategy: ShardingStrategy) -> dict[str, Any]:
    """The options of FSDP1 for a strategy; with copies, on a mesh of two dimensions."""
    mesh = {}
    if "HYBRID" in strategy.name:
        ranks = distributed.get_world_size()
        mesh = {"device_mesh": init_device_mesh("cpu", (2, ranks // 2), mesh_dim_names=("copies", "ranges"))}
    return {"sharding_strategy": strategy, **mesh}


def each_model() -> Iterator[tuple[str, FullyShardedDataParallel]]:
    for strategy in ShardingStrategy:
        for original in (True, False):
            yield f"{strategy.name}, {original}", fsdp1(Net(), original, **options(strategy))


def gathered(model: Any) -> dict[str, torch.Tensor]:
    """The whole state dict, by FSDP1 itself."""
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
        return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(model: Any, expected: nn.Module, where: object) -> None:
    state = gathered(model)
    assert state.keys() == expected.state_dict().keys(), where
    for name, value in expected.state_dict().items():
        assert torch.equal(state[name], value), (where, name)


def other_values() -> Net:
    net = Net()
    with torch.no_grad():
        for number, parameter in enumerate(net.parameters()):
            parameter.mul_(0.5).add_(number)
    return net


# -- models --------------------------------------------------------------------------------------------


def as_the_whole_model(folder: str) -> None:
    rank, plain = distributed.get_rank(), Net()
    whole = lw.tree(plain)
    files = [f"{folder}/{name}" for name in ("net.safetensors", "other.safetensors", "other.pt")]
    if rank == 0:
        lw.save(plain, files[0])
        lw.save(other_values(), files[1])
        torch.save(other_values().state_dict(), files[2])
    distributed.barrier()
    for number, (name, model) in enumerate(each_model()):
        t = lw.tree(model)
        assert [(str(leaf.path), leaf.shape, leaf.dtype, leaf.role, leaf.kind) for leaf in t] == [
            (str(leaf.path), leaf.shape, leaf.dtype, leaf.role, leaf.kind) for leaf in whole
        ], name
        assert t.counts._replace(local_bytes=0) == whole.counts._replace(local_bytes=0), name
        assert lw.tree(model)["head.weight"].value is t["head.weight"].value, name
        assert {leaf.trainable for leaf in t if leaf.kind == "parameter"} == {True}
        parts = [lw.tree(model)[str(leaf.path)].local_nbytes for leaf in whole if leaf.kind == "parameter"]
        every: list[Any] = [None] * 4
        distributed.all_gather_object(every, sum(parts))
        copies = 4 if "NO_SHARD" in name else 2 if "HYBRID" in name else 1
        assert sum(every) == copies * sum(leaf.nbytes for leaf in whole if leaf.kind == "parameter"), name

        found, expected = lw.stats(model), lw.stats(plain)
        for path in expected:
            assert (found[path].count, found[path].min, found[path].max) == (
                expected[path].count,
                expected[path].min,
                expected[path].max,
            ), (name, path)
            assert found[path].mean == pytest.approx(expected[path].mean, abs=1e-7), (name, path)
        assert [str(finding) for finding in lw.check(model)] == [str(finding) for finding in lw.check(plain)]
        assert lw.diff(model, files[0]).same, name
        changes = lw.diff(model, files[1])
        assert {str(change.path) for change in changes if change.kind == "changed"} == {
            str(leaf.path) for leaf in whole if leaf.kind == "parameter"
        }, name

        if "NO_SHARD, True" in name:  # every rank has whole parameters, as with DistributedDataParallel
            saved = lw.save(model, f"{folder}/{number}.{rank}.safetensors")
        else:
            saved = lw.save(model, f"{folder}/{number}", format="dcp")
        assert lw.verify(saved)
        assert_same(fsdp1(Net(), True), lw.load(other_values(), saved), name)

        lw.load(model, files[1 + number % 2])
        assert_same(model, other_values(), name)
        lw.load(model, saved)
        assert_same(model, plain, name)

        lw.initialize(model, seed=3)
        assert_same(model, lw.initialize(Net(), seed=3), name)


def test_a_model_is_shown_measured_saved_and_loaded_as_the_whole_model(tmp_path: Path) -> None:
    run_ranks(4, as_the_whole_model, str(tmp_path))


# -- training ------------------------------------------------------------------------------------------


class Gpt(nn.Module):
    """A language model whose head is tied to its embedding; both belong to the outermost unit."""

    def __init__(self, width: int = 12, words: int = 17) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(
            [nn.TransformerEncoderLayer(width, 3, 20, dropout=0.0, batch_first=True) for _ in range(2)]
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> list[float]:
    """Steps with the same data on every rank, so that the gradients are those of one process."""
    losses = []
    for step in range(first, last):
        tokens = torch.randint(17, (3, 5), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        loss.backward()
        lw.clip(model, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1)


def uninterrupted() -> tuple[nn.Module, torch.optim.Optimizer, list[float]]:
    model = Gpt()
    optimizer = adamw(model)
    return model, optimizer, train(model, optimizer, 0, 6)


def trained_and_saved(folder: str) -> None:
    for original in (True, False):
        model = fsdp1(Gpt(), original)
        assert [str(path) for path in lw.tree(model)["embed.weight"].paths] == ["embed.weight", "head.weight"]
        assert len(lw.ties(model)) == 1
        optimizer = adamw(model)
        losses = train(model, optimizer, 0, 3)
        assert losses == pytest.approx(uninterrupted()[2][:3], rel=1e-5)
        both = {"optimizer": optimizer, "model": model} if original else {"model": model, "optimizer": optimizer}
        saved = lw.save(both, f"{folder}/{original}", format="dcp")

        # The checkpoint has what FSDP1 itself gathers. On a CPU, torch 2.13 gathers all state of a parameter into the
        # same memory, so that only the last is right.
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.FULL_STATE_DICT):
            states: Any = FullyShardedDataParallel.optim_state_dict(model, optimizer)["state"]
        alone = Gpt()
        own = adamw(alone)
        train(alone, own, 0, 3)
        names = dict(alone.named_parameters())
        assert states.keys() == names.keys()
        t = lw.open(saved)
        for name, parameter in names.items():
            stored = {
                key: torch.as_tensor(t[f"optimizer.state.model.{name}.{key}"].numpy().copy())
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
            assert torch.equal(stored["exp_avg_sq"], states[name]["exp_avg_sq"]), name
            for key, value in own.state[parameter].items():
                torch.testing.assert_close(stored[key], value, rtol=1e-4, atol=1e-7)
        whole = gathered(model)
        for name in whole:
            assert torch.equal(torch.as_tensor(t[f"model.{name}"].numpy().copy()), whole[name]), name
        t.close()


def resumed(folder: str) -> None:
    expected = uninterrupted()[2]
    for saved in (True, False):
        models: dict[str, nn.Module] = {"whole": Gpt()}
        if distributed.get_world_size() > 1:
            mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
            models["fsdp2"] = fsdp(Gpt(), mesh)
        for original in (True, False):
            models[f"fsdp1, {original}"] = fsdp1(Gpt(), original)
        for name, model in models.items():
            optimizer = adamw(model)
            lw.load({"model": model, "optimizer": optimizer}, f"{folder}/{saved}")
            assert len(lw.ties(model)) == 1
            losses = train(model, optimizer, 3, 6)
            assert losses == pytest.approx(expected[3:], rel=1e-5), (saved, name)


def test_training_goes_on_with_another_number_of_ranks_as_if_it_was_never_interrupted(tmp_path: Path) -> None:
    run_ranks(4, trained_and_saved, str(tmp_path))
    run_ranks(2, resumed, str(tmp_path))
    run_ranks(1, resumed, str(tmp_path))
