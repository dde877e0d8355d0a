"""Ties of models that are sharded. The truth is the loss of the model in one process, step by step."""

import random
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.distributed.ranks import run_ranks
from tests.long import short_or_long
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor

import leafwise as lw

COUNTS = pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
VOCABULARY, WIDTH, STEPS = 13, 8, 5


class Projection(nn.Module):
    """The transpose of a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, VOCABULARY))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Plain(nn.Module):
    def __init__(self, head: type[nn.Module] | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.head: Any = nn.Linear(WIDTH, VOCABULARY, bias=False) if head is None else head()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def by_hand() -> nn.Module:
    model = Plain()
    model.head.weight = model.embed.weight
    return model


def by_leafwise() -> nn.Module:
    return lw.tie(Plain(), "head.weight", to="embed.weight", keep="source")


def transposed() -> nn.Module:
    return lw.tie(Plain(Projection), "head.weight", to="embed.weight", transpose=True, keep="source")


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=WIDTH, n_layer=2, n_head=2, **drops)
    return GPT2LMHeadModel(config)


def losses(model: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)  # small, so that models with many ties do not diverge
    record = []
    for step in range(STEPS):
        tokens = (torch.arange(8).view(2, 4) + step) % VOCABULARY
        logits = model(tokens)
        logits = getattr(logits, "logits", logits)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), ((tokens * 3 + 1) % VOCABULARY).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        record.append(loss.item())
    return record


def shard(model: nn.Module, units: Any) -> nn.Module:
    mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for unit in units:
        fully_shard(unit, mesh=mesh)
    return model


def close(ours: list[float], theirs: list[float]) -> bool:
    return all(abs(a - b) < 1e-5 * max(1, abs(b)) for a, b in zip(ours, theirs, strict=True))


# -- units -------------------------------------------------------------------------------------------------

MODELS: dict[str, tuple[Callable[[], nn.Module], list[Any]]] = {
    "by hand": (by_hand, ["layers.*", ["layers.*", "head"], ["layers.*", "embed", "head"], ["layers.*", "embed"]]),
    "by leafwise": (by_leafwise, ["layers.*", ["layers.*", "embed", "head"], ["head"]]),
    "transposed": (
        transposed,
        ["layers.*", ["layers.*", "head"], ["layers.*", "embed"], ["layers.*", "embed", "head"]],
    ),
    "gpt2": (gpt2, ["transformer.h.*", ["transformer.h.*", "lm_head"], ["transformer", "lm_head"]]),
}


def trained(name: str) -> None:
    make, choices = MODELS[name]
    expected = losses(make())
    assert len({round(loss, 3) for loss in expected}) == STEPS
    untied = make()
    lw.untie(untied, str(lw.ties(untied)[0].names[1].path))
    assert not close(losses(untied), expected)  # so a tie that is lost makes a difference
    for units in choices:
        model = make()
        planned = lw.shard_units(model, units)
        shard(model, planned)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ties = lw.ties(model)
        assert len(ties) == 1, units
        assert all(isinstance(value, DTensor) for value in model.parameters())
        found = losses(model)
        assert close(found, expected), (units, found, expected)
        for module in model.modules():
            getattr(module, "reshard", lambda: None)()
        assert len(lw.ties(model)) == 1, units


@COUNTS
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "gpt2")) for name in MODELS])
def test_a_model_in_the_units_of_shard_units_trains_as_in_one_process(name: str, count: int) -> None:
    run_ranks(count, trained, name)


def trained_without_grouping() -> list[str]:
    problems = []
    expected = losses(by_hand())
    for units in (["layers.*"], ["layers.*", "head"], ["layers.*", "embed", "head"]):
        for make in (by_hand, by_leafwise, transposed):
            model: Any = make()
            planned = lw.shard_units(model, units)
            given = [*model.layers, *(getattr(model, name) for name in units[1:]), model]
            problem = "kept"
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    shard(model, given)
                    lw.tree(model)
                    found = losses(model)
                    problem = "kept" if close(found, expected) else f"other losses: {found}"
                except (ValueError, RuntimeError) as error:
                    problem = str(error)
            warned = any("declared tie undone" in str(warning.message) for warning in caught)
            assert (problem == "kept") == planned.ok, (make.__name__, units, problem)
            assert warned == (make is by_leafwise and not planned.ok), (make.__name__, units)
            problems.append(f"{make.__name__} {units[-1]}: {problem}")
    return problems


def test_units_that_are_said_to_break_a_tie_break_it() -> None:
    problems = run_ranks(2, trained_without_grouping)[0]
    assert sum("shared with a parameter already managed" in problem for problem in problems) == 4, problems


def random_model(seed: int) -> tuple[nn.Module, list[Any]]:
    """A model with random ties of every kind, and random units."""
    chance = random.Random(seed)
    model = Plain(chance.choice([None, Projection]))
    linears = [getattr(layer, name) for layer in model.layers for name in ("up", "down")]
    for _ in range(chance.randint(1, 3)):
        a, b = chance.sample(range(6), 2)
        kind = chance.choice(["weight", "bias", "transposed", "module", "layer"])
        try:
            if kind in ("weight", "bias"):
                setattr(linears[b], kind, getattr(linears[a], kind))
            elif kind == "module":
                setattr(model.layers[b // 2], "down" if b % 2 else "up", linears[a])
            elif kind == "layer":
                model.layers[2] = model.layers[chance.choice([0, 1])]
            else:
                paths = [f"layers.{number // 2}.{'down' if number % 2 else 'up'}.weight" for number in (a, b)]
                lw.tie(model, paths[1], to=paths[0], transpose=True, keep="source")
        except (lw.TieError, TypeError):
            continue  # the first of them is already a view of another parameter, and cannot be assigned
        linears = [getattr(layer, name) for layer in model.layers for name in ("up", "down")]
    if isinstance(model.head, nn.Linear) and chance.random() < 0.7:
        model.head.weight = model.embed.weight
    choices = ["layers.*", "layers.0", "layers.0.up", "layers.1.down", "embed", "head", ["layers.1", "layers.2.up"]]
    return model, chance.sample(choices, chance.randint(0, 4))


def trained_at_random(seeds: range) -> int:
    used = 0
    for seed in seeds:
        (model, units), (whole, _) = random_model(seed), random_model(seed)
        try:
            planned = lw.shard_units(model, units)
        except lw.QueryError:
            continue  # a module in two units, because it is used twice
        used += 1
        names = sorted(tuple(sorted(str(name.path) for name in tie.names)) for tie in lw.ties(model))
        shard(model, planned)
        now = sorted(tuple(sorted(str(name.path) for name in tie.names)) for tie in lw.ties(model))
        assert now == names, (seed, units, planned.paths)
        assert close(losses(model), losses(whole)), (seed, units, planned.paths)
    return used


@pytest.mark.parametrize("seeds", short_or_long([range(15)], [range(30), range(30, 60)]))
def test_random_ties_are_kept_by_the_units_of_shard_units(seeds: range) -> None:
    used = run_ranks(2, trained_at_random, seeds)
    assert used[0] == used[1] > len(seeds) // 2


# -- ties of a sharded model -------------------------------------------------------------------------------


def kept_after_sharding() -> None:
    model: Any = by_hand()
    shard(model, lw.shard_units(model, "layers.*"))
    assert lw.keep_ties(model) is model
    state = model.state_dict()
    model.load_state_dict(state)
    model.load_state_dict(state, assign=True)
    assert model.head.weight is model.embed.weight
    model.to(torch.float64)
    assert model.head.weight is model.embed.weight
    assert close(losses(model), losses(by_hand().double()))
    for module in model.modules():
        getattr(module, "reshard", lambda: None)()
    [tie] = lw.ties(model)
    assert [str(name.path) for name in tie.names] == ["embed.weight", "head.weight"]
    assert "embed.weight" in str(lw.ties(model))
    for verb in (
        lambda: lw.tie(model, "layers.0.up.weight", to="layers.1.up.weight", keep="source"),
        lambda: lw.untie(model, "head.weight"),
    ):
        with pytest.raises(lw.TieError, match=r"it is sharded \(shard\(0\) over 2 ranks\)"):
            verb()
    assert len(lw.ties(model)) == 1
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    with pytest.warns(lw.TieWarning, match=r"head.weight is no longer embed.weight"):
        lw.tree(model)


def test_ties_of_a_sharded_model_are_listed_and_kept_and_not_made() -> None:
    run_ranks(2, kept_after_sharding)


def from_meta(with_memory: bool) -> None:
    rules = [lw.Rule("head.weight", wins=True, init="normal", std=0.1)]
    whole = lw.initialize(lw.keep_ties(by_hand()), rules, seed=4)
    with torch.device("meta"):
        model: Any = by_hand()
    lw.keep_ties(model)
    shard(model, lw.shard_units(model, ["layers.*", "embed", "head"]))
    if with_memory:
        model.to_empty(device="cpu")
    assert model.head.weight is model.embed.weight
    lw.initialize(model, rules, seed=4)
    assert model.head.weight is model.embed.weight
    assert len(lw.ties(model)) == 1
    for value, other in zip(model.parameters(), whole.parameters(), strict=True):
        assert torch.equal(value.detach().full_tensor(), other)
    assert close(losses(model), losses(whole))


@pytest.mark.parametrize("with_memory", [True, False])
@COUNTS
def test_a_tied_model_on_meta_is_sharded_initialized_and_trained(count: int, with_memory: bool) -> None:
    run_ranks(count, from_meta, with_memory)


def clipped_and_averaged() -> None:
    whole, model = by_hand(), by_hand()
    shard(model, lw.shard_units(model, ["layers.*", "head"]))
    results: list[Any] = []
    for net in (whole, model):
        average = lw.Average(net, 0.5)
        optimizer = torch.optim.AdamW(lw.groups(net, [lw.no_decay()]), lr=0.1)
        for step in range(3):
            tokens = (torch.arange(8).view(2, 4) + step) % VOCABULARY
            net(tokens).square().mean().backward()
            norms = lw.clip(net, 0.1)
            results.append((list(norms), norms.total, norms["head.weight"]))
            optimizer.step()
            optimizer.zero_grad()
            average.update()
        values = average.state_dict()["values"]
        assert "head.weight" not in values
        table = values["embed.weight"]
        results.append(table.full_tensor() if isinstance(table, DTensor) else table)
    for ours, theirs in zip(results[:3], results[4:7], strict=True):
        assert ours[0] == theirs[0]
        assert close(list(ours[1:]), list(theirs[1:]))
    torch.testing.assert_close(results[3], results[7])


def test_a_tied_leaf_of_a_sharded_model_counts_once() -> None:
    run_ranks(2, clipped_and_averaged)


def ties_of_other_wrappers() -> None:
    expected = losses(by_hand())
    cpu = torch.device("cpu")
    for make in (by_hand, by_leafwise):
        wrapped: Any = nn.parallel.DistributedDataParallel(make())
        assert [str(name.path) for name in lw.ties(wrapped)[0].names] == ["embed.weight", "head.weight"]
        assert close(losses(wrapped), expected)
        for original in (True, False):
            inner: Any = make()
            inner.layers[1] = FullyShardedDataParallel(inner.layers[1], use_orig_params=original, device_id=cpu)
            wrapped = FullyShardedDataParallel(inner, use_orig_params=original, device_id=cpu)
            ties = lw.ties(wrapped)
            assert [[str(name.path) for name in tie.names] for tie in ties] == [["embed.weight", "head.weight"]]
            assert ties.undone == []
            assert close(losses(wrapped), expected)
    inner = by_leafwise()
    for name in ("embed", "head"):  # in two units, FSDP1 silently unties them
        inner.add_module(name, FullyShardedDataParallel(getattr(inner, name), use_orig_params=False, device_id=cpu))
    with pytest.warns(lw.TieWarning, match=r"head.weight is no longer embed.weight"):
        ties = lw.ties(FullyShardedDataParallel(inner, use_orig_params=False, device_id=cpu))
    assert [str(undone) for undone in ties.undone] == ["declared tie undone: head.weight is no longer embed.weight"]


def test_ties_under_ddp_and_fsdp1_are_reported() -> None:
    run_ranks(2, ties_of_other_wrappers)
