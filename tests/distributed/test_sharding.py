"""Sharded models on real ranks. The truth is `full_tensor()`, which gathers a DTensor."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.distributed.models import Net, even, fsdp, sharded_models
from tests.distributed.ranks import received_bytes, run_ranks
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import leafwise as lw
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.memory.sharding import Split, local_ranges
from leafwise.core.parts import sharded_rows
from leafwise.homes.torch.home import HOME

COUNTS = pytest.mark.parametrize("count", [2, 4])
distributing = HOME.capability(Distributing)


def full(value: Any) -> torch.Tensor:
    return value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()  # type: ignore[no-any-return]


# -- parts -------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 30),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(1, 4)), max_size=3),
)
def test_ranges_are_those_of_chunks(size: int, drawn: list[tuple[int, int, int]]) -> None:
    splits = [Split(chunks, number % chunks, pieces) for chunks, number, pieces in drawn]
    kept = torch.arange(size)
    for split in splits:
        pieces = [_chunk(kept, split.pieces, number) for number in range(split.pieces)]
        kept = torch.cat([_chunk(piece, split.chunks, split.number) for piece in pieces])
    ranges = local_ranges(size, splits)
    assert [element for part in ranges for element in range(part.first, part.first + part.size)] == kept.tolist()
    assert [part.local for part in ranges] == [
        sum(part.size for part in ranges[:number]) for number in range(len(ranges))
    ]


def _chunk(values: torch.Tensor, count: int, number: int) -> torch.Tensor:
    chunks = values.chunk(count)
    return chunks[number] if number < len(chunks) else values[:0]


def parts_are_the_values(count: int) -> set[str]:
    seen = set()
    for name, model in sharded_models(count).items():
        leaves = list(lw.tree(model))
        values = [leaf.value for leaf in leaves]
        team = distributing.team(values)
        assert team is not None
        assert (team.size, team.ranks[team.rank]) == (count, distributed.get_rank())
        for leaf, value in zip(leaves, values, strict=True):
            where, whole = (name, str(leaf.path), str(leaf.sharding)), full(value)
            if name == "by hand" and leaf.ndim == 2:
                assert whole.flatten().tolist() == list(range(35)), where
            assert leaf.shape == tuple(whole.shape), where
            assert (leaf.size, leaf.nbytes) == (whole.numel(), whole.nbytes), where
            assert (leaf.sharding is None) == (not isinstance(value, DTensor)), where
            assert distributing.cannot_use_parts(value) == "", where
            covered = np.zeros(whole.shape, np.int64)
            parts = distributing.parts(value)
            for part in parts:
                assert torch.equal(whole[part.inside()], part.value), where
                assert tuple(part.value.shape) == part.shape, where
                assert part.value.untyped_storage().data_ptr() == leaf.local.untyped_storage().data_ptr(), where
                covered[part.inside()] += 1
            assert covered.sum() * whole.element_size() == leaf.local_nbytes == leaf.local.nbytes, where
            assert leaf.local is leaf.local, where
            if leaf.sharding is None:
                assert leaf.local is value, where
            seen.add(f"{name}: {leaf.sharding}")
            counted = covered * distributing.counts_here(value, team)
            assert (sum(team.gather(counted)) == 1).all(), where
    return seen


@COUNTS
def test_the_parts_of_all_ranks_are_every_element_once(count: int) -> None:
    results = run_ranks(count, parts_are_the_values, count)
    assert all(result == results[0] for result in results)
    kinds = {
        2: {
            "fsdp on 2: shard(0) over dp=2",
            "fsdp by columns: shard(1) over 2 ranks",
            "tensor parallel: shard(1) over tp=2",
        },
        4: {
            "fsdp on 4: shard(0) over dp=4",
            "hybrid: replicate, shard(0) over replicate=2, shard=2",
            "fsdp and tensor parallel: strided shard(0, 2), shard(0) over dp=2, tp=2",
            "by hand: shard(0), shard(0) over a=2, b=2",
            "by hand: shard(1), replicate over a=2, b=2",
            "by hand: strided shard(0, 3), replicate over a=2, b=2",
            "by hand: strided shard(1, 2), shard(0) over a=2, b=2",
        },
    }
    assert kinds[count] <= results[0], results[0]


# -- facts -------------------------------------------------------------------------------------------------


def shown_without_communication(count: int) -> dict[str, Any]:
    from torch.distributed.tensor.debug import CommDebugMode

    models = sharded_models(count)

    def refused(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("something was communicated")

    names = [
        "all_gather", "all_gather_into_tensor", "all_gather_object", "all_gather_single", "all_reduce", "all_to_all",
        "all_to_all_single", "barrier", "broadcast", "gather", "monitored_barrier", "recv", "reduce_scatter",
        "reduce_scatter_tensor", "scatter", "send",
    ]  # fmt: skip
    kept = {name: getattr(distributed, name) for name in names if hasattr(distributed, name)}
    shown = {}
    try:
        for name in kept:
            setattr(distributed, name, refused)
        with received_bytes() as received, CommDebugMode() as communicated:
            for name, model in models.items():
                t = lw.tree(model)
                t.select("**.weight")
                shown[name] = {
                    "text": str(t),
                    "counts": t.counts,
                    "json": json.loads(json.dumps(t.json())),
                    "full": t.text(full=True),
                }
                assert [leaf.local for leaf in t]
                assert t.find("weight").counts.leaves <= t.counts.leaves
    finally:
        for name, function in kept.items():
            setattr(distributed, name, function)
    assert communicated.get_total_counts() == 0
    assert received == []
    return shown


@COUNTS
def test_one_rank_shows_the_whole_model_and_nothing_is_communicated(count: int) -> None:
    results = run_ranks(count, shown_without_communication, count)
    plain = lw.tree(Net())
    for shown in results:
        facts = shown[f"fsdp on {count}"]
        assert facts["counts"].parameters == plain.counts.parameters
        assert facts["counts"].bytes == plain.counts.bytes
        assert f"shard(0) over dp={count}" in facts["full"]
        assert f"{facts['counts'].local_bytes:,} B on this rank" in " ".join(facts["text"].split())
        assert "cannot read" not in facts["text"]
        # Apart from the sharding, the picture of the whole model is that of the model in one process.
        sharded_lines, plain_lines = facts["full"].splitlines(), plain.text(full=True).splitlines()
        for line, plain_line in zip(sharded_lines[:-1], plain_lines[:-1], strict=True):
            assert line.replace(f"shard(0) over dp={count}", "").split() == plain_line.split()
        leaf = next(leaf for leaf in facts["json"]["leaves"] if leaf["path"] == "embed.weight")
        assert leaf["sharding"] == {"mesh": [count], "mesh_names": ["dp"], "placements": ["shard(0)"]}
        assert leaf["bytes"] == 11 * 6 * 4
        assert facts["json"]["counts"]["local_bytes"] == sum(leaf["local_bytes"] for leaf in facts["json"]["leaves"])
    # The rest of the model is a buffer, which every rank has.
    shards = [shown[f"fsdp on {count}"]["counts"].local_bytes - 12 for shown in results]
    assert sum(shards) + 12 == plain.counts.bytes


def kept_names() -> None:
    mesh = init_device_mesh("cpu", (2,))
    plain, model = lw.tree(Net()), lw.tree(fsdp(Net(), mesh))
    assert type(model["blocks.0"].nodes[0].value).__name__ == "FSDPBlock"
    assert [node.type for node in model.nodes] == [node.type for node in plain.nodes]
    for leaf, plain_leaf in zip(model, plain, strict=True):
        assert leaf.names == plain_leaf.names
        assert (leaf.kind, leaf.trainable, leaf.device) == (plain_leaf.kind, plain_leaf.trainable, plain_leaf.device)
    linear = fully_shard(nn.Linear(4, 4), mesh=mesh)
    leaf = lw.tree(linear)["weight"]
    assert (leaf.role, leaf.axes, leaf.owner) == ("linear.weight", ("out", "in"), "Linear")
    assert lw.tree(linear).select(lw.where(owner="Linear")).counts.leaves == 2
    wrapped = lw.tree(nn.parallel.DistributedDataParallel(Net()))
    assert [str(leaf.path) for leaf in wrapped] == [str(leaf.path) for leaf in plain]
    assert all(leaf.sharding is None for leaf in wrapped)
    assert "on this rank" not in str(wrapped)


def test_names_types_and_roles_are_those_of_the_model_before_it_was_sharded() -> None:
    run_ranks(2, kept_names)


def recognized_at_once() -> None:
    linear = nn.Linear(4, 4, bias=False)
    linear.weight = nn.Parameter(distribute_tensor(torch.eye(4), init_device_mesh("cpu", (2,)), [Shard(0)]))
    for source in (linear, nn.ModuleDict({"a": linear}), {"a": linear}, {"w": linear.weight}):
        assert lw.tree(source).columns.may_be_sharded
        assert len(sharded_rows(lw.tree(source))) == 1
    assert not lw.tree(nn.Linear(4, 4)).columns.may_be_sharded


def test_sharded_leaves_are_recognized_before_anything_else_is_asked() -> None:
    run_ranks(2, recognized_at_once)


# -- verbs -------------------------------------------------------------------------------------------------

RULES = [lw.Rule("**.up.weight", init="orthogonal"), lw.Rule("**.down.weight", init="kaiming_normal")]


def initialized(count: int) -> None:
    for name, model in sharded_models(count).items():
        if name == "by hand":
            whole = nn.Module()
            for key, value in model.named_parameters():
                whole.register_parameter(key, nn.Parameter(full(value).clone()))
            rules = [lw.Rule("*", init="normal", std=1.0)]
        else:
            tree = lw.tree(model)
            shape = tree["blocks.0.up.weight"].shape
            assert shape is not None
            whole, rules = Net(shape[1], shape[0], tree["head.bias"].size), RULES
        lw.initialize(model, rules, seed=3)
        lw.initialize(whole, rules, seed=3)
        for (key, value), expected in zip(model.named_parameters(), whole.parameters(), strict=True):
            assert torch.equal(full(value), expected), (name, key)


@COUNTS
def test_initial_values_are_those_of_the_whole_model(count: int) -> None:
    run_ranks(count, initialized, count)


def trained(rank_mesh: tuple[int, ...]) -> None:
    tokens = torch.arange(8).view(2, 4)
    plain = Net()
    model = fsdp(Net(), init_device_mesh("cpu", rank_mesh, mesh_dim_names=("a", "b")[: len(rank_mesh)]))
    for net in (plain, model):
        lw.freeze(net, "blocks.0.**")
        optimizer = torch.optim.AdamW(lw.groups(net, [lw.no_decay()]), lr=0.1)
        for _ in range(2):
            net(tokens).square().sum().backward()
            norms = lw.clip(net, 1.0)
            optimizer.step()
            optimizer.zero_grad()
        lw.thaw(net, "blocks.0.norm.*")
        net(tokens).sum().backward()
        assert net.blocks[0].norm.weight.grad is not None
        assert net.blocks[0].up.weight.grad is None
        assert norms.total > 1
        if isinstance(net, FSDPModule):
            for module in net.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()
    for (name, value), expected in zip(model.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(full(value), expected[1].detach(), msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("mesh", [(2,), (2, 2)])
def test_a_model_that_was_frozen_grouped_and_clipped_trains_as_in_one_process(mesh: tuple[int, ...]) -> None:
    run_ranks(int(np.prod(mesh)), trained, mesh)


def said(action: Any) -> str:
    try:
        result = action()
    except lw.Error as error:
        return str(error)
    raise AssertionError(f"it was not refused: {result}")


def refused_verbs(folder: Path) -> None:
    mine = folder / f"{distributed.get_rank()}.safetensors"
    everything = {"missing", "unexpected", "shape"}
    for model in sharded_models(2).values():
        leaf = next(leaf for leaf in lw.tree(model) if leaf.sharding is not None)
        verbs = {
            "load from": lambda model=model: lw.load(Net(), model, allow=everything),
            "edit": lambda model=model: lw.edit(model, mine),
            "flat": lambda model=model: lw.flat(model),
            "uses": lambda model=model: lw.uses(model, torch.zeros(1, 2, dtype=torch.int64)),
            "ties": lambda model=model: lw.ties(model, equal_untied=True),
            "numpy": lambda leaf=leaf: leaf.numpy(),
        }
        for name, verb in verbs.items():
            assert "DTensor" in said(verb), name
        assert not mine.exists()
        assert "sharded" in str(lw.plan(Net(), model, allow=everything))


def test_verbs_that_need_whole_arrays_refuse_sharded_ones(tmp_path: Path) -> None:
    run_ranks(2, refused_verbs, tmp_path)


def gathered_for_a_forward() -> None:
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    with torch.no_grad():
        model(torch.zeros(1, 2, dtype=torch.int64))
    assert type(model.head.weight) is nn.Parameter  # gathered: the root stays so until the backward
    assert "FSDP2 has gathered its parameters" in str(lw.tree(model))
    for part in (model, model.head):  # fully_shard was called on the first, the second has its parameters
        for verb in (
            lambda part=part: lw.stats(part),
            lambda part=part: lw.initialize(part),
            lambda part=part: lw.groups(part),
            lambda part=part: lw.freeze(part, "**"),
            lambda part=part: lw.clip(part, 1.0),
            lambda part=part: lw.image(part, "weight" if part is model.head else "head.weight"),
            lambda part=part: lw.save(part, "never.safetensors"),
            lambda part=part: lw.load(part, Net(), allow={"missing", "unexpected", "shape"}),
            lambda part=part: lw.save(part, "never", format="dcp"),
            lambda part=part: lw.Average(part, 0.9),
        ):
            refusal = said(verb)
            reasons = ("FSDP2 has gathered its parameters", "DTensor", "sharded over processes")
            assert any(reason in refusal for reason in reasons), refusal
        assert "FSDP2 has gathered" in said(lambda part=part: lw.initialize(part))
    model.reshard()
    assert "gathered" not in str(lw.tree(model))
    lw.initialize(model)
    expected = lw.initialize(Net())
    for value, other in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(full(value), other)


def test_parameters_that_are_gathered_for_a_forward_are_refused() -> None:
    run_ranks(2, gathered_for_a_forward)


def other_tensors() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    with torch.device("meta"):
        model = even()
    model = fsdp(model, mesh)
    leaf = lw.tree(model)["head.weight"]
    assert (leaf.device, leaf.shape, str(leaf.sharding)) == ("meta", (4, 8), "shard(0) over dp=2")
    assert leaf.local_nbytes == leaf.nbytes // 2
    assert distributing.parts(leaf.value)[0].value.is_meta

    pending = DTensor.from_local(torch.ones(3, 3), mesh, [Partial()])
    state = {"pending": pending, "copy": distribute_tensor(torch.ones(3), mesh, [Replicate()])}
    t = lw.tree(state)
    assert str(t["pending"].sharding) == "partial(sum) over dp=2"
    assert "cannot read pending: a DTensor whose values are a sum over ranks" in str(t)
    assert "cannot read copy" not in str(t)
    with pytest.raises(lw.Unsupported, match="Partial"):
        distributing.parts(pending)
    message = said(lambda: lw.initialize(state, [lw.Rule("*", init="zeros")]))
    assert "Partial" in message, message

    odd = DTensor.from_local(
        torch.ones(3 if distributed.get_rank() else 1, 2), mesh, [Shard(0)], shape=(4, 2), stride=(2, 1)
    )
    assert "not (2, 2), as shard(0) over dp=2 makes it" in distributing.cannot_use_parts(odd)
    with pytest.raises(lw.Unsupported, match="has the shape"):
        distributing.parts(odd)

    linear = fully_shard(nn.Linear(3, 5), mesh=mesh)
    linear(torch.ones(1, 3)).sum().backward()
    gradient = lw.tree(linear)["weight"].grad
    assert isinstance(gradient, DTensor)
    assert str(distributing.sharding(gradient)) == "shard(0) over dp=2"
    assert torch.equal(full(gradient)[distributing.parts(gradient)[0].inside()], gradient.to_local())


def test_tensors_on_meta_gradients_and_sums_that_are_not_computed_yet() -> None:
    run_ranks(2, other_tensors)
