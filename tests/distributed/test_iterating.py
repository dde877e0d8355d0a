"""clip, Average, groups, freeze and initialize on sharded models. The truth is the same verb on the whole model."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tests.distributed.models import Net, even, fsdp, sharded_models
from tests.distributed.ranks import received_bytes, run_ranks
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import leafwise as lw
from leafwise.iterate import initial_values

COUNTS = pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])


def full(value: Any) -> torch.Tensor:
    return value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()  # type: ignore[no-any-return]


def cut(whole: torch.Tensor, like: Any) -> torch.Tensor:
    """A tensor with these values, sharded like another one."""
    if not isinstance(like, DTensor):
        return whole.clone()
    return distribute_tensor(whole.clone(), like.device_mesh, like.placements, src_data_rank=None)


def whole_of(model: nn.Module) -> nn.Module:
    """A plain module with the same names and values."""
    whole = nn.Module()
    for kind in ("parameters", "buffers"):
        for path, value in getattr(model, f"named_{kind}")():
            owner = whole
            *names, last = path.split(".")
            for name in names:
                if name not in dict(owner.named_children()):
                    owner.add_module(name, nn.Module())
                owner = owner.get_submodule(name)
            tensor = full(value).clone()
            if kind == "parameters":
                owner.register_parameter(last, nn.Parameter(tensor))
            else:
                owner.register_buffer(last, tensor)
    return whole


@contextmanager
def collectives() -> Iterator[list[int]]:
    """Counts what leafwise sends, and refuses everything else."""
    from torch.distributed.tensor.debug import CommDebugMode

    with received_bytes() as calls, CommDebugMode() as communicated:
        yield calls
    assert sum(communicated.get_comm_counts().values()) <= len(calls), communicated.get_comm_counts()


def said(action: Callable[[], Any]) -> str:
    try:
        result = action()
    except lw.Error as error:
        return str(error)
    raise AssertionError(f"it was not refused: {result}")


# -- clip --------------------------------------------------------------------------------------------------


def give_gradients(model: nn.Module, whole: nn.Module, scale: float = 1.0) -> None:
    pairs = zip(model.parameters(), whole.parameters(), strict=True)
    for number, (value, other) in enumerate(pairs):
        drawn = torch.randn(other.shape, generator=torch.Generator().manual_seed(number)).to(other.dtype)
        drawn = drawn * scale * (number + 1)
        other.grad = drawn.clone()
        value.grad = cut(drawn, value)


def clipped(count: int) -> None:
    for name, model in sharded_models(count).items():
        whole = whole_of(model)
        paths = [str(leaf.path) for leaf in lw.tree(model).select(lw.where(kind="parameter"))]
        cases: list[dict[str, Any]] = [
            {},
            {"per": "leaf"},
            {"where": [paths[0], paths[-1]]},
            {"where": [paths[1], paths[-2]], "per": "leaf"},
        ]
        for case in cases:
            give_gradients(model, whole)
            norms, expected = lw.clip(model, 0.7, **case), lw.clip(whole, 0.7, **case)
            assert list(norms) == list(expected) == paths, (name, case)
            for path in paths:
                assert math.isclose(norms[path], expected[path], rel_tol=1e-6), (name, case, path)
            assert math.isclose(norms.total, expected.total, rel_tol=1e-6), (name, case)
            for path, value, other in zip(paths, model.parameters(), whole.parameters(), strict=True):
                assert other.grad is not None
                torch.testing.assert_close(
                    full(value.grad), other.grad, msg=lambda text, p=path, n=name: f"{n} {p} {text}"
                )


@COUNTS
def test_gradients_are_clipped_as_those_of_the_whole_model(count: int) -> None:
    run_ranks(count, clipped, count)


def clipped_in_one_exchange() -> None:
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    give_gradients(model, whole_of(model))
    with collectives() as calls:
        lw.clip(model, 1.0)
    assert len(calls) == 2  # whether all ranks do the same, and the norms of all leaves


def test_the_norms_of_all_leaves_are_exchanged_at_once() -> None:
    run_ranks(2, clipped_in_one_exchange)


def not_finite(count: int) -> None:
    rank = distributed.get_rank()
    for name, model in sharded_models(count).items():
        whole = whole_of(model)
        for path, parameter in list(model.named_parameters())[:3]:
            give_gradients(model, whole)
            gradient: Any = parameter.grad
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            # Only the last rank has it; in some models that is one of several copies.
            has_it = torch.tensor([local.numel() if rank == count - 1 else 0])
            if has_it.item():
                local.view(-1)[-1] = math.nan
            distributed.all_reduce(has_it)
            before = [value.grad.to_local().clone() for value in model.parameters() if isinstance(value.grad, DTensor)]
            if not has_it.item():
                continue
            with pytest.raises(lw.NonFiniteError) as caught:
                lw.clip(model, 0.1)
            assert caught.value.paths == (path,), name
            after = [value.grad.to_local() for value in model.parameters() if isinstance(value.grad, DTensor)]
            for a, b in zip(before, after, strict=True):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
            assert path in lw.clip(model, 0.1, strict=False).nonfinite


@COUNTS
def test_a_gradient_that_is_not_finite_on_one_rank_is_an_error_on_every_rank(count: int) -> None:
    run_ranks(count, not_finite, count)


def huge_and_pending() -> None:
    mesh = init_device_mesh("cpu", (2,))
    rank = distributed.get_rank()
    model = fully_shard(nn.Linear(3, 5, dtype=torch.float64), mesh=mesh)
    whole = whole_of(model)
    give_gradients(model, whole, scale=1e200)  # the squares overflow
    norms, expected = lw.clip(model, 1e100), lw.clip(whole, 1e100)
    assert math.isclose(norms.total, expected.total, rel_tol=1e-9)

    state = nn.Module()
    state.weight = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Replicate()]))
    state.other = nn.Parameter(distribute_tensor(torch.zeros(4), mesh, [Shard(0)]))
    state.weight.grad = DTensor.from_local(torch.full((4,), float(rank + 1)), mesh, [Partial()])
    state.other.grad = distribute_tensor(torch.ones(4), mesh, [Shard(0)])
    norms = lw.clip(state, 1.0)
    assert (norms["weight"], round(norms["other"], 6)) == (6.0, 2.0)
    factor = 1 / math.sqrt(40)
    torch.testing.assert_close(full(state.weight.grad), torch.full((4,), 3 * factor))
    torch.testing.assert_close(full(state.other.grad), torch.full((4,), factor))


def test_huge_gradients_and_sums_that_are_not_computed_yet_are_clipped() -> None:
    run_ranks(2, huge_and_pending)


def clips_differ() -> list[tuple[str, Any, str]]:
    rank = distributed.get_rank()
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    whole = whole_of(model)
    errors = []

    def record(action: Callable[[], Any]) -> None:
        with pytest.raises(lw.RankError) as caught:
            action()
        errors.append((str(caught.value), caught.value.rank, caught.value.path))

    give_gradients(model, whole)
    before = [full(value.grad) for value in model.parameters()]
    record(lambda: lw.clip(model, 1.0 + rank))
    record(lambda: lw.clip(model, 1.0, where=["embed.*", "head.bias" if rank else "head.weight"]))
    if rank:
        model.head.weight.grad = None
    record(lambda: lw.clip(model, 1.0))
    if rank:
        model.zero_grad()
    record(lambda: lw.clip(model, 1.0))
    if rank == 0:
        model.zero_grad()
    assert "no leaf has a gradient" in said(lambda: lw.clip(model, 1.0))
    assert len(before) == len(list(model.parameters()))
    return errors


def test_ranks_that_clip_differently_are_named() -> None:
    results = run_ranks(2, clips_differ)
    assert results[0] == results[1]
    limit, group, one, none = results[0]
    assert limit[1:] == (1, "embed.weight")
    assert "clipped to 2.0" in limit[0]
    assert "clipped to 1.0" in limit[0]
    assert group[1:] == (1, "head.weight")
    assert one[1:] == (1, "head.bias")
    assert "head.weight (a gradient" in one[0]
    assert none[1] == 1
    assert "rank 1 raised WalkError: no leaf has a gradient" in none[0]
    assert "rank 0 raised no error" in none[0]


# -- Average -----------------------------------------------------------------------------------------------


def change(model: nn.Module, whole: nn.Module, step: int) -> None:
    for number, (value, other) in enumerate(zip(model.parameters(), whole.parameters(), strict=True)):
        drawn = torch.randn(other.shape, generator=torch.Generator().manual_seed(100 * step + number)).to(other.dtype)
        with torch.no_grad():
            other.copy_(drawn)
            new = cut(drawn, value)
            local, new_local = (t.to_local() if isinstance(t, DTensor) else t for t in (value.detach(), new))
            local.copy_(new_local)


def averaged(count: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        for name, model in sharded_models(count).items():
            average_of(model.to(dtype), f"{name}, {dtype}")


def average_of(model: nn.Module, name: str) -> None:
    whole = whole_of(model)
    with collectives() as calls:
        average = lw.Average(model, 0.8)
    expected = lw.Average(whole, 0.8)
    for step in range(5):
        change(model, whole, step)
        expected.update()
        with collectives() as more:
            average.update()
        calls += more
    values, expected_values = average.state_dict()["values"], expected.state_dict()["values"]
    assert values.keys() == expected_values.keys()
    for path, value in values.items():
        torch.testing.assert_close(
            full(value),
            expected_values[path],
            rtol=1e-6,
            atol=1e-7,
            msg=lambda text, path=path: f"{name}, {path}: {text}",
        )
        assert value.dtype == expected_values[path].dtype
    own = [full(value).clone() for value in model.parameters()]
    with average.applied(), expected.applied():
        for value, other in zip(model.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(
                full(value), other.detach(), rtol=1e-2 if other.dtype == torch.bfloat16 else 1e-6, atol=1e-6
            )
    for value, before in zip(model.parameters(), own, strict=True):
        assert torch.equal(full(value), before), name
    copied = lw.Average(model, 0.8)
    copied.load_state_dict(average.state_dict())
    for path, value in copied.state_dict()["values"].items():
        assert torch.equal(full(value), full(values[path])), path
    assert copied.updates == 5
    assert not calls, name


@COUNTS
def test_averages_are_those_of_the_whole_model_and_nothing_is_sent(count: int) -> None:
    run_ranks(count, averaged, count)


TOKENS = torch.arange(8).view(2, 4)


def evaluated_between_steps() -> None:
    plain, model = Net(), fsdp(Net(), init_device_mesh("cpu", (2,)))
    losses: dict[Any, list[float]] = {}
    for net in (plain, model):
        average = lw.Average(net, 0.5)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        record = losses[net] = []
        for _ in range(4):
            loss = net(TOKENS).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            average.update()
            record.append(loss.item())
            with average.applied(), torch.no_grad():
                record.append(net(TOKENS).square().mean().item())
            with torch.no_grad():
                record.append(net(TOKENS).square().mean().item())
            if net is model:
                # The forward has left gathered copies of the root, which an average would have to go into.
                assert "gathered" in said(average.update)
                model.reshard()
    torch.testing.assert_close(torch.tensor(losses[plain]), torch.tensor(losses[model]))
    for averaged_loss, own_loss in zip(losses[plain][4::3], losses[plain][5::3], strict=True):
        assert abs(averaged_loss - own_loss) > 1e-3


def test_averages_can_be_evaluated_between_the_steps_of_fsdp2() -> None:
    run_ranks(2, evaluated_between_steps)


def failed_in_a_forward() -> None:
    plain, model = Net(), fsdp(Net(), init_device_mesh("cpu", (2,)))
    average = lw.Average(model, 0.5)
    average.update()
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(2)
        for value in plain.parameters():
            value.mul_(2)
    hook = model.head.register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError), average.applied(), torch.no_grad():
        model(TOKENS)
    hook.remove()
    for value, other in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(full(value), other)
    model.reset_iter_state()
    with torch.no_grad():
        torch.testing.assert_close(model(TOKENS), plain(TOKENS))


@pytest.mark.skipif(not hasattr(FSDPModule, "reset_iter_state"), reason="this torch does not recover from it")
def test_a_forward_that_fails_leaves_no_averages_behind() -> None:
    run_ranks(2, failed_in_a_forward)


def sharded_otherwise() -> None:
    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    linear = nn.Linear(4, 4)
    average = lw.Average(linear, 0.5)
    fully_shard(linear, mesh=mesh)
    message = said(average.update)
    assert "weight is sharded (shard(0) over dp=2), but its average is not sharded" in message
    average = lw.Average(linear, 0.5)
    assert "its average is sharded" in said(
        lambda: average.load_state_dict({"updates": 1, "values": {"weight": torch.zeros(4, 4), "bias": torch.zeros(4)}})
    )


def test_an_average_of_another_sharding_is_refused() -> None:
    run_ranks(2, sharded_otherwise)


# -- groups and freezing -----------------------------------------------------------------------------------


def grouped(count: int) -> None:
    for name, model in sharded_models(count).items():
        if name == "by hand":
            continue
        size = lw.tree(model)["blocks.0.up.weight"].shape
        assert size is not None
        whole = Net(size[1], size[0], lw.tree(model)["head.bias"].size)
        rules = [lw.Rule("**", lr=0.1, weight_decay=0.2), lw.no_decay(), lw.layer_decay(0.5)]
        groups, expected = lw.groups(model, rules), lw.groups(whole, rules)
        assert groups.text() == expected.text(), name
        for group, other in zip(groups, expected, strict=True):
            assert {**group, "params": 0} == {**other, "params": 0}, name
        by_path = dict(model.named_parameters())
        for group in groups:
            assert all(
                value is by_path[path] for path, value in zip(group["param_names"], group["params"], strict=True)
            )
        for verb, where in [(lw.freeze, "blocks.*.up.*"), (lw.freeze, "embed.*"), (lw.thaw, "blocks.1.**")]:
            verb(model, where)
            verb(whole, where)
            trained = [parameter.requires_grad for parameter in whole.parameters()]
            assert [parameter.requires_grad for parameter in model.parameters()] == trained, name
        assert lw.groups(model, rules).text() == lw.groups(whole, rules).text(), name


@COUNTS
def test_groups_and_frozen_leaves_are_those_of_the_whole_model(count: int) -> None:
    run_ranks(count, grouped, count)


def other_rules() -> list[tuple[str, Any, str]]:
    rank = distributed.get_rank()
    mesh = init_device_mesh("cpu", (4,))
    model = fsdp(even(), mesh)
    other = fsdp(Net(8, 24 if rank == 2 else 16, 4), mesh)
    extra = even()
    if rank == 3:
        extra.blocks[1].norm = nn.Identity()  # type: ignore[assignment]
    extra = fsdp(extra, mesh)
    errors = []

    def record(action: Callable[[], Any]) -> None:
        with pytest.raises(lw.RankError) as caught:
            action()
        errors.append((str(caught.value), caught.value.rank, caught.value.path))

    odd = rank == 1
    record(lambda: lw.groups(model, [lw.Rule("blocks.1.**", lr=0.2 if odd else 0.1)]))
    record(lambda: lw.groups(other))
    record(lambda: lw.groups(extra))
    record(lambda: lw.groups(model, [lw.Rule("nothing" if odd else "**", lr=0.2)]))
    record(lambda: lw.freeze(model, "blocks.0.**" if odd else "blocks.1.**"))
    record(lambda: lw.thaw(other, "**"))
    assert all(parameter.requires_grad for parameter in model.parameters())
    before = [full(value).clone() for value in model.parameters()]
    record(lambda: lw.initialize(model, seed=rank // 3))
    record(lambda: lw.initialize(model, [lw.Rule("**.up.weight", init="normal", std=2.0 if odd else 1.0)]))
    record(lambda: lw.initialize(other))
    record(lambda: lw.initialize(extra))
    assert all(torch.equal(full(value), old) for value, old in zip(model.parameters(), before, strict=True))
    record(
        lambda: lw.initialize(
            model, [lw.Rule("head.bias", init=lambda leaf, others: torch.full((4,), float(rank // 2)))]
        )
    )
    # The same rules, with functions that are at other addresses.
    half = 0.5
    rules = [
        lw.Rule("head.bias", init=lambda leaf, others: torch.full((4,), half)),
        lw.Rule(lambda leaf: True, std=1.0),
    ]
    lw.initialize(model, rules[:1])
    assert full(model.head.bias).tolist() == [0.5] * 4
    lw.groups(model, [lw.Rule(lambda leaf: True, lr=0.1)])
    assert "matches nothing" in said(lambda: lw.groups(model, [lw.Rule("nothing", lr=0.2)]))
    return errors


def test_a_rank_with_another_model_or_rule_is_named() -> None:
    results = run_ranks(4, other_rules)
    assert all(result == results[0] for result in results)
    places = [(rank, path) for _, rank, path in results[0]]
    assert places == [
        (1, "blocks.1.norm.weight"),
        (2, "blocks.0.up.weight"),
        (3, "blocks.1.up.weight"),
        (1, ""),
        (1, "blocks.0.norm.weight"),
        (2, "blocks.0.up.weight"),
        (3, "embed.weight"),
        (1, "blocks.0.up.weight"),
        (2, "blocks.0.up.weight"),
        (3, "blocks.1.up.weight"),
        (2, "head.bias"),
    ]
    messages = [message for message, *_ in results[0]]
    assert "rank 1 has lr=0.2, but rank 0 has lr=0.1" in messages[0]
    assert "rank 2 has 24×8 float32, shard(0) over 4 ranks, but rank 0 has 16×8 float32" in messages[1]
    assert "rank 1 raised RuleError: Rule('nothing', lr=0.2) matches nothing" in messages[3]
    assert "seed 1, but rank 0" in messages[6]
    assert "std=2.0" in messages[7]


# -- initialize --------------------------------------------------------------------------------------------

RULES = [lw.Rule("**.up.weight", init="orthogonal"), lw.Rule("**.down.weight", init="kaiming_normal")]


def on_meta(count: int) -> None:
    from torch.distributed.tensor.debug import CommDebugMode

    mesh = init_device_mesh("cpu", (count,))
    expected = lw.initialize(Net(), RULES, seed=5)
    for with_memory in (False, True):
        with torch.device("meta"):
            model: Any = Net()
        model.register_buffer("scale", torch.arange(1.0, 4))
        fsdp(model, mesh)
        model.scale = torch.arange(1.0, 4)
        if with_memory:
            model.to_empty(device="cpu")
            model.scale.copy_(torch.arange(1.0, 4))
        with CommDebugMode() as communicated:
            assert lw.initialize(model, RULES, seed=5) is model
        assert sum(communicated.get_comm_counts().values()) <= 1  # whether all ranks do the same
        whole = sum(value.numel() for value in expected.parameters())
        local = sum(value.to_local().untyped_storage().nbytes() for value in model.parameters())
        assert local <= 4 * (whole / count + 16 * len(list(model.parameters())))
        for (path, value), other in zip(model.named_parameters(), expected.parameters(), strict=True):
            assert value.device.type == "cpu", path
            assert torch.equal(full(value), other), (path, with_memory)
        losses = []
        for net in (model, expected_copy := lw.initialize(Net(), RULES, seed=5)):
            optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
            for _ in range(3):
                loss = net(TOKENS).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
        assert expected_copy is not expected
        torch.testing.assert_close(torch.tensor(losses[:3]), torch.tensor(losses[3:]))


@COUNTS
def test_a_model_on_meta_that_is_sharded_gets_memory_for_its_parts_only(count: int) -> None:
    run_ranks(count, on_meta, count)


def too_large_to_be_whole() -> None:
    initial_values._DRAWN_WHOLE = 59  # up has 60 elements
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    before = [full(value).clone() for value in model.parameters()]
    message = said(lambda: lw.initialize(model, RULES))
    assert "cannot initialize blocks.0.up.weight by Rule('**.up.weight', init='orthogonal')" in message
    assert "drawn as a whole on every rank, and this one has 60 elements" in message
    assert all(torch.equal(full(value), old) for value, old in zip(model.parameters(), before, strict=True))
    lw.initialize(Net(), RULES)  # not sharded
    lw.initialize(model)


def test_an_orthogonal_leaf_that_is_too_large_for_one_rank_is_refused() -> None:
    run_ranks(2, too_large_to_be_whole)
