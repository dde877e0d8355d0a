"""FSDP1, with both settings of `use_orig_params`: parameters that are flattened, joined and split over ranks."""

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.models import Net, fsdp, fsdp1
from tests.distributed.ranks import run_ranks
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy, StateDictType
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

import leafwise as lw

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
    in_smaller_groups(folder)


def in_smaller_groups(folder: str) -> None:
    """A unit that is split over half of the ranks, so that the other half has a copy of it."""
    halves = [distributed.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    net = Net()
    half = halves[distributed.get_rank() // 2]
    net.blocks[0] = fsdp1_of(net.blocks[0], True, process_group=half)
    model = fsdp1_of(net, True)
    assert lw.stats(model).total.count == lw.stats(Net()).total.count
    assert lw.stats(model)["blocks.0.up.weight"].count == 60
    saved = lw.save(model, f"{folder}/halves", format="dcp")
    assert lw.diff(saved, Net()).same
    lw.load(model, f"{folder}/other.safetensors")
    assert lw.diff(model, other_values()).same
    # Copies that FSDP1 knows only in part: its two groups are not all ranks of the job.
    alone = [distributed.new_group([rank]) for rank in range(4)][distributed.get_rank()]
    strategy = ShardingStrategy.HYBRID_SHARD
    model = fsdp1_of(Net(), True, sharding_strategy=strategy, process_group=(half, alone))
    assert "not on all ranks" in str(lw.stats(model))
    for verb in (lw.initialize, lw.Average, lambda model: lw.save(model, f"{folder}/hybrid", format="dcp")):
        with pytest.raises(lw.Error, match="not on all ranks"):
            verb(model)


@pytest.mark.slow
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
    without_some_gradients(folder)


class Half(Gpt):
    """Does not use its second block."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks[0](self.embed(tokens))))  # type: ignore[no-any-return]


def without_some_gradients(folder: str) -> None:
    """Parameters that are frozen, and a unit that is not used, have no state on any rank. A rank without elements of a
    parameter must know that."""
    model = lw.freeze(fsdp1(Half(), True), "blocks.0.linear1.*")
    optimizer = adamw(model)
    train(model, optimizer, 0, 1)
    saved = lw.save({"model": model, "optimizer": optimizer}, f"{folder}/half", format="dcp")
    with lw.open(saved) as t:
        names = {str(leaf.path) for leaf in t if leaf.path.name == "exp_avg"}
    trained = [
        name for name, value in Gpt().named_parameters() if not name.startswith(("blocks.1", "blocks.0.linear1"))
    ]
    assert names == {f"optimizer.state.model.{name}.exp_avg" for name in trained}


def resumed(folder: str) -> None:
    expected = uninterrupted()[2]
    for saved in (True, False):
        if distributed.get_world_size() > 1:
            mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
            models: dict[str, nn.Module] = {"fsdp2": fsdp(Gpt(), mesh), "fsdp1": fsdp1(Gpt(), not saved)}
        else:
            models = {"whole": Gpt(), "fsdp1": fsdp1(Gpt(), saved)}
        for name, model in models.items():
            optimizer = adamw(model)
            lw.load({"model": model, "optimizer": optimizer}, f"{folder}/{saved}")
            assert len(lw.ties(model)) == 1
            losses = train(model, optimizer, 3, 6)
            assert losses == pytest.approx(expected[3:], rel=1e-5), (saved, name)


@pytest.mark.slow
def test_training_goes_on_with_another_number_of_ranks_as_if_it_was_never_interrupted(tmp_path: Path) -> None:
    run_ranks(4, trained_and_saved, str(tmp_path))
    run_ranks(2, resumed, str(tmp_path))
    run_ranks(1, resumed, str(tmp_path))


# -- between the steps of FSDP1 ------------------------------------------------------------------------


def changed_after_a_forward(folder: str) -> None:
    """A forward leaves gathered copies, which the next one would use: the outermost unit always, others sometimes."""
    other, plain = f"{folder}/other.safetensors", other_values()
    if distributed.get_rank() == 0:
        lw.save(plain, other)
    distributed.barrier()
    own, expected = Net()(TOKENS), plain(TOKENS)
    started = lw.initialize(Net(), seed=5)(TOKENS)
    for strategy in (ShardingStrategy.FULL_SHARD, ShardingStrategy.SHARD_GRAD_OP):
        for original in (True, False):
            for with_grad in (True, False):
                where = strategy, original, with_grad
                model = fsdp1(Net(), original, sharding_strategy=strategy)
                average = lw.Average(model, decay=0.5)
                with torch.set_grad_enabled(with_grad):
                    torch.testing.assert_close(model(TOKENS), own)
                    lw.load(model, other)
                    torch.testing.assert_close(model(TOKENS), expected, msg=str(where))
                    with average.applied():
                        torch.testing.assert_close(model(TOKENS), own, msg=str(where))
                    torch.testing.assert_close(model(TOKENS), expected, msg=str(where))
                    lw.initialize(model, seed=5)
                    torch.testing.assert_close(model(TOKENS), started, msg=str(where))
                lw.load(model, other)
                model(TOKENS).sum().backward()
                assert_same(model, plain, where)


def gradients() -> None:
    """Gradients are those of the whole model: the figures, the norms, and what they are after clipping."""
    plain = Net()
    plain(TOKENS).pow(2).sum().backward()
    expected = lw.stats(plain, of="grad")
    clipped = lw.clip(plain, 0.5)
    for name, model in each_model():
        model(TOKENS).pow(2).sum().backward()
        found = lw.stats(model, of="grad")
        assert set(found) == set(expected), name
        for path in expected:
            assert found[path].l2 == pytest.approx(expected[path].l2, rel=1e-5), (name, path)
        norms = lw.clip(model, 0.5)
        assert norms.total == pytest.approx(clipped.total, rel=1e-5), name
        assert lw.stats(model, of="grad")["head.weight"].l2 == pytest.approx(
            lw.stats(plain, of="grad")["head.weight"].l2, rel=1e-5
        ), name
        model.zero_grad()
        assert lw.tree(model)["head.weight"].grad is None, name


def refused(folder: str) -> None:
    for original in (True, False):
        model = fsdp1(Net(), original)
        with FullyShardedDataParallel.summon_full_params(model):
            for verb in (lw.stats, lw.initialize, lambda m: lw.load(m, Net())):
                with pytest.raises(lw.Error, match="summon_full_params"):
                    verb(model)
        model(TOKENS).sum().backward()

        raised: list[str] = []

        def inside(module: nn.Module, arguments: Any, model: Any = model, raised: list[str] = raised) -> None:
            with pytest.raises(lw.WalkError, match="a forward or backward that has not ended") as info:
                lw.stats(model)
            raised.append(str(info.value))

        hook = model.module.head.register_forward_pre_hook(inside)
        model(TOKENS)
        assert raised
        hook.remove()
        model.zero_grad()
        with model.no_sync():
            model(TOKENS).sum().backward()
            with pytest.raises(lw.Unsupported, match="no_sync"):
                lw.clip(model, 1.0)
        model(TOKENS).sum().backward()
        lw.clip(model, 1.0)

        leaf = lw.tree(model)["head.weight"]
        assert "elements" in repr(leaf.value)
        for operation in (lambda value: value + 1, torch.Tensor.detach, torch.sum):
            with pytest.raises(lw.Unsupported, match="each process has only a range of its elements"):
                operation(leaf.value)
        with pytest.raises(lw.WriteError, match="only a range"):
            leaf.write(torch.zeros(3, 6))
        with pytest.raises(lw.WalkError, match='format="dcp"'):
            lw.save(model, f"{folder}/{original}.safetensors")
        with pytest.raises(lw.WalkError, match="cannot track the uses"), lw.uses(model):
            pass
        with pytest.raises(lw.WalkError, match=r"cannot flatten embed\.weight"):
            lw.flat(model)
        with pytest.raises(lw.TieError, match="before the model is sharded"):
            lw.tie(model, "blocks.0.up.weight", to="blocks.1.up.weight")

        # A state dict with the parts of each rank.
        with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
            state = model.state_dict()
        assert {name: lw.tree(state)[name].shape for name in state} == {
            name: tuple(value.shape) for name, value in Net().state_dict().items()
        }
        for verb in (lambda s: lw.load(Net(), s), lambda s: lw.save(s, f"{folder}/state", format="dcp")):
            with pytest.raises(lw.Error, match=r"a ShardedTensor, from a state dict of FSDP1.*FULL_STATE_DICT"):
                verb(state)

        # State in lists: each rank has its own.
        small = fsdp1_of(nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False)), original)
        lbfgs = torch.optim.LBFGS(small.parameters())
        lbfgs.state[next(small.parameters())] = {"old_dirs": [torch.ones(3), torch.ones(3)]}
        # With the original parameters, ranks may have elements of different ones, and then name that difference first.
        reason = r"old_dirs\.0: rank 1" if original else r"old_dirs\.0: its parameter is flattened and split"
        with pytest.raises(lw.Error, match=reason):
            lw.save({"model": small, "optimizer": lbfgs}, f"{folder}/lbfgs", format="dcp")

        # What only an FSDP module knows, without it.
        alone = fsdp1(Net(), original)
        with pytest.raises(lw.WalkError, match=r"lw\.tree\(model\)\[path\]"):
            lw.save(alone.module.head, f"{folder}/part", format="dcp")
        with pytest.raises(lw.Error):
            lw.save(alone.module, f"{folder}/part", format="dcp")
        with pytest.raises(lw.WalkError, match="pass both"):
            lw.save(adamw(alone), f"{folder}/optimizer", format="dcp")
        lw.tree(alone)
        assert lw.tree(alone.module.head)["weight"].shape == (3, 6)

        if original:
            lw.freeze(model, "embed.weight")
            assert not model.module.embed.weight.requires_grad
            assert not lw.tree(model)["embed.weight"].trainable
            groups = lw.groups(model, [lw.Rule("**", lr=0.1), lw.no_decay()])
            given = {id(parameter) for group in groups for parameter in group["params"]}
            assert given == {id(value) for value in model.parameters() if value.requires_grad}
            torch.optim.SGD(list(groups)).step()
            lw.thaw(model, "**")
            assert model.module.embed.weight.requires_grad
        else:
            with pytest.raises(lw.RuleError, match="use_orig_params=True"):
                lw.freeze(model, "embed.weight")
            with pytest.raises(lw.RuleError, match=r"embed\.weight.*use_orig_params=True"):
                lw.groups(model)
            assert lw.tree(model)["embed.weight"].trainable


def not_kept_alive() -> None:
    for original in (True, False):
        model = fsdp1(Net(), original)
        t = lw.tree({"model": model, "optimizer": adamw(model)})
        lw.stats(t)
        # Without the original parameters, FSDP1 itself keeps the modules alive whose parameters it has joined.
        modules = model.modules() if original else FullyShardedDataParallel.fsdp_modules(model)
        alive = [weakref.ref(module) for module in modules]
        del t, model, modules
        gc.collect()
        assert not [reference for reference in alive if reference() is not None], original


def test_values_written_after_a_forward_are_used_by_the_next(tmp_path: Path) -> None:
    run_ranks(2, changed_after_a_forward, str(tmp_path))


def test_gradients_are_those_of_the_whole_model() -> None:
    run_ranks(4, gradients)


def test_what_cannot_be_done_is_refused_and_models_are_not_kept_alive(tmp_path: Path) -> None:
    run_ranks(2, refused, str(tmp_path))
    run_ranks(1, not_kept_alive)


# -- every kind of model -------------------------------------------------------------------------------


class Strided(nn.Module):
    """Parameters that are not contiguous, which FSDP1 flattens in the order of their memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.pointwise = nn.Conv2d(5, 5, 1).to(memory_format=torch.channels_last)
        self.linear = nn.Linear(4, 6)
        self.linear.weight = nn.Parameter(torch.randn(4, 6).t())
        self.turned = nn.Parameter(torch.randn(2, 3, 4).permute(2, 0, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(self.pointwise(self.conv(x))).pow(2).sum() + self.turned.pow(2).sum()  # type: ignore[no-any-return]


def strided(folder: str, original: bool) -> None:
    model, plain = fsdp1_of(Strided(), original), Strided()
    optimizers = [torch.optim.AdamW(each.parameters()) for each in (model, plain)]
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    for each, optimizer in zip((model, plain), optimizers, strict=True):
        each(x).backward()
        optimizer.step()
    saved = lw.save({"model": model, "optimizer": optimizers[0]}, f"{folder}/strided {original}", format="dcp")
    assert_near(model, plain)
    with lw.open(saved) as t:
        for name, parameter in plain.named_parameters():
            expected = optimizers[1].state[parameter]["exp_avg_sq"]
            found = torch.as_tensor(t[f"optimizer.state.model.{name}.exp_avg_sq"].numpy().copy())
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)
    again, new = fsdp1_of(Strided(), not original), Strided()
    lw.load({"model": again, "optimizer": (optimizer := torch.optim.AdamW(again.parameters()))}, saved)
    lw.load({"model": new, "optimizer": (other := torch.optim.AdamW(new.parameters()))}, saved)
    for each, its_optimizer in ((again, optimizer), (new, other)):
        each(x).backward()
        its_optimizer.step()
    assert_near(again, new)


def assert_near(model: nn.Module, expected: nn.Module) -> None:
    state = gathered(model)
    for name, value in expected.state_dict().items():
        torch.testing.assert_close(state[name], value, rtol=1e-4, atol=1e-6)


def fsdp1_of(model: nn.Module, original: bool, **options: Any) -> FullyShardedDataParallel:
    return FullyShardedDataParallel(model, use_orig_params=original, device_id=torch.device("cpu"), **options)


def every_kind(folder: str) -> None:
    other, plain = f"{folder}/other.safetensors", other_values()
    if distributed.get_rank() == 0:
        lw.save(plain, other)
    distributed.barrier()
    for original in (True, False):
        strided(folder, original)

        # With mixed precision, parameters at rest are those in full precision.
        low = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, keep_low_precision_grads=True)
        model = fsdp1(Net(), original, mixed_precision=low)
        model(TOKENS).sum().backward()
        assert lw.tree(model)["head.weight"].dtype == "float32"
        assert lw.stats(model, of="grad")["head.weight"].l2 > 0
        with torch.no_grad():
            before = model(TOKENS)
        lw.load(model, other)
        assert_same(model, plain, "mixed precision")
        assert not torch.equal(model(TOKENS), before)

        # Parameters that FSDP1 leaves alone are whole.
        net = Net()
        model = fsdp1_of(net, original, ignored_states=[net.head.weight, net.blocks[0].norm.weight])
        whole = [str(leaf.path) for leaf in lw.tree(model) if leaf.sharding is None]
        assert whole == ["scale", "blocks.0.norm.weight", "head.weight"]
        lw.load(model, other)
        assert_same(model, plain, "ignored")
        optimizer = adamw(model)
        model(TOKENS).sum().backward()
        optimizer.step()
        saved = lw.save({"model": model, "optimizer": optimizer}, f"{folder}/ignored {original}", format="dcp")
        lw.load({"model": model, "optimizer": optimizer}, saved)
        assert lw.diff(model, lw.load(Net(), lw.open(saved)["model"])).same

        # A model that is cast before its first forward; FSDP1 itself fails if it is cast later.
        model = fsdp1(Net(), original)
        assert lw.tree(model)["head.weight"].dtype == "float32"
        model.double()
        assert lw.tree(model)["head.weight"].dtype == "float64"
        assert lw.stats(model)["head.weight"].mean == pytest.approx(lw.stats(Net())["head.weight"].mean)
        model(TOKENS)

        # Names that are tied in the checkpoint, in two units.
        net = Gpt()
        lw.untie(net, "head.weight")
        net.head, net.embed = fsdp1_of(net.head, original), fsdp1_of(net.embed, original)
        model = fsdp1(net, original)
        lw.save(Gpt(), (tied := f"{folder}/tied {distributed.get_rank()} {original}.safetensors"))
        with pytest.raises(lw.LoadError, match="tie it before the model is sharded"):
            lw.load(model, tied)
        lw.load(model, tied, ties="ignore")
        assert_same(model, Gpt(), "tied in the checkpoint")

        # Without the original parameters, all of a unit have the same number of steps.
        net, model = Gpt(), fsdp1(Gpt(), original)
        train(net, (stepped := adamw(net)), 0, 1)
        stepped.state[net.blocks[0].linear1.bias]["step"] += 1
        lw.save(
            {"model": net, "optimizer": stepped}, (both := f"{folder}/{distributed.get_rank()} {original}.safetensors")
        )
        target = {"model": model, "optimizer": adamw(model)}
        if original:
            lw.load(target, both)
        else:
            with pytest.raises(lw.Error, match="one value for all of them"):
                lw.load(target, both)
        assert_same(model, net if original else Gpt(), "steps")

        # Made on meta.
        with torch.device("meta"):
            net = Net()
        model = fsdp1_of(net, original, param_init_fn=lambda module: module.to_empty(device="cpu", recurse=False))
        lw.load(model, other)
        assert {
            name: value for name, value in gathered(model).items() if not torch.equal(value, plain.state_dict()[name])
        } == {}

    # FSDP1 accepts new memory, and a new parameter, from the next forward on.
    model = fsdp1(Net(), True)
    head: Any = model.module.head
    head.weight.data = torch.full_like(head.weight, 7.0)
    head.bias = nn.Parameter(torch.full_like(head.bias, 3.0))
    for _ in range(2):
        found = lw.stats(model)
        assert [found[f"head.{name}"].min for name in ("weight", "bias")] == [7.0, 3.0]
        model(TOKENS)


def test_every_kind_of_model(tmp_path: Path) -> None:
    run_ranks(2, every_kind, str(tmp_path))


def of_transformers(folder: str) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    config = LlamaConfig(
        vocab_size=19, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    plain = LlamaForCausalLM(config)
    if distributed.get_rank() == 0:
        plain.save_pretrained(f"{folder}/llama")
    distributed.barrier()
    policy = partial(transformer_auto_wrap_policy, transformer_layer_cls={LlamaDecoderLayer})
    for original in (True, False):
        torch.manual_seed(1)
        model = fsdp1_of(LlamaForCausalLM(config), original, auto_wrap_policy=policy)
        lw.load(model, f"{folder}/llama")
        torch.testing.assert_close(model(TOKENS).logits, plain(TOKENS).logits)
        assert len(lw.ties(model)) == 1
        saved = lw.save(model, f"{folder}/{original}", format="dcp")
        assert lw.diff(plain, saved).same
        optimizer = adamw(model)
        model(TOKENS, labels=TOKENS).loss.backward()
        optimizer.step()
        saved = lw.save({"model": model, "optimizer": optimizer}, f"{folder}/both {original}", format="dcp")
        resumed = LlamaForCausalLM(config)
        lw.load({"model": resumed, "optimizer": adamw(resumed)}, saved)
        torch.testing.assert_close(resumed(TOKENS).logits, model(TOKENS).logits)


@pytest.mark.slow
def test_a_model_of_transformers_that_is_wrapped_by_a_policy(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    run_ranks(2, of_transformers, str(tmp_path))
