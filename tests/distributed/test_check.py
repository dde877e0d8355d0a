"""`lw.check` of sharded models on real ranks: the findings are those of the same model in one process."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.models import Net, fsdp, tensor_parallel
from tests.distributed.ranks import run_ranks
from tests.distributed.test_stats import said, whole_state
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Shard, distribute_tensor

import leafwise as lw


class Wide(Net):
    """Large enough for every rule. No size can be divided by 4."""

    def __init__(self) -> None:
        super().__init__(18, 70, 9)


def nothing(model: Any) -> None:
    pass


def nan_and_infinite(model: Any) -> None:
    model.blocks[0].up.weight[40, 3] = float("nan")
    model.blocks[0].up.weight[1, 17] = float("inf")
    model.head.bias[8] = -float("inf")
    model.scale[1] = float("nan")


def dead_units(model: Any) -> None:
    """Rows at the boundary of shards of 2 and 4 ranks, a column, and a row of zeros in an embedding."""
    model.blocks[0].up.weight[34:36] = 0
    model.blocks[0].down.weight[4:6] = 0
    model.blocks[1].up.weight[:, 8:10] = 0
    model.embed.weight[5] = 0


def duplicate_rows(model: Any) -> None:
    """On two ranks, and on one."""
    model.blocks[0].up.weight[3] = model.blocks[0].up.weight[66]
    model.blocks[0].up.weight[50] = model.blocks[0].up.weight[66]
    model.blocks[1].down.weight[:, 0] = model.blocks[1].down.weight[:, 69]
    model.blocks[1].up.weight[2] = model.blocks[1].up.weight[60] * (1 + 1e-5)
    model.embed.weight[1] = model.embed.weight[10]


def all_units_equal(model: Any) -> None:
    model.blocks[0].up.weight[:] = model.blocks[0].up.weight[7]


def zeros_and_constants(model: Any) -> None:
    model.blocks[0].down.weight.zero_()
    model.blocks[1].up.weight.fill_(0.5)


def wrong_scale(model: Any) -> None:
    model.blocks[0].up.weight *= 3e6
    model.blocks[1].down.weight *= 1e-4


def equal_leaves(model: Any) -> None:
    model.blocks[1].up.weight.copy_(model.blocks[0].up.weight)
    model.blocks[1].down.weight.copy_(model.blocks[0].up.weight.t())


FAULTS = [
    nothing, nan_and_infinite, dead_units, duplicate_rows, all_units_equal, zeros_and_constants, wrong_scale,
    equal_leaves,
]  # fmt: skip
CODES = {
    "LW101", "LW103", "LW104", "LW110", "LW111", "LW113", "LW114", "LW201", "LW303", "LW501", "LW503",
}  # fmt: skip


def _fsdp(model: nn.Module, count: int) -> nn.Module:
    return fsdp(model, init_device_mesh("cpu", (count,)))  # type: ignore[no-any-return]


def _columns(model: nn.Module, count: int) -> nn.Module:
    # FSDP2 needs columns of equal length.
    mesh = init_device_mesh("cpu", (count,))
    for module in model.modules():
        for name, value in list(module.named_parameters(recurse=False)):
            sharded = distribute_tensor(value.detach(), mesh, [Shard(value.ndim - 1)])
            setattr(module, name, nn.Parameter(sharded))
    return model


def _tensor_parallel(model: nn.Module, count: int) -> nn.Module:
    return tensor_parallel(model, init_device_mesh("cpu", (count,)))


def _both(model: nn.Module, count: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("dp", "tp"))
    return fsdp(tensor_parallel(model, mesh["tp"]), mesh["dp"])  # type: ignore[no-any-return]


def _hybrid(model: nn.Module, count: int) -> nn.Module:
    return fsdp(model, init_device_mesh("cpu", (2, count // 2), mesh_dim_names=("a", "b")))  # type: ignore[no-any-return]


SHARDED = {2: [_fsdp, _columns, _tensor_parallel], 4: [_fsdp, _both, _hybrid]}


def as_texts(findings: Any) -> list[Any]:
    return [(str(finding), finding.indices, finding.axis, finding.total) for finding in findings]


def assert_same_findings(findings: Any, expected: Any, where: object) -> None:
    assert as_texts(findings) == as_texts(expected), (where, as_texts(findings), as_texts(expected))
    assert findings.rules == expected.rules, where
    assert (findings.checked, findings.sections) == (expected.checked, expected.sections), where
    assert findings.skipped == expected.skipped, where


def planted(count: int) -> tuple[set[str], int]:
    codes: set[str] = set()
    checked = 0
    for fault in FAULTS:
        plain = Wide()
        with torch.no_grad():
            fault(plain)
        expected = lw.check(plain)
        for shard in SHARDED[count]:
            model = Wide()
            model.load_state_dict(plain.state_dict())
            findings = lw.check(shard(model, count))
            assert_same_findings(findings, expected, (shard.__name__, fault.__name__))
            codes |= set(findings.codes)
            checked += 1
    return codes, checked


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_planted_faults_are_found_as_in_one_process(count: int) -> None:
    for codes, checked in run_ranks(count, planted, count):
        assert codes >= CODES, CODES - codes
        assert checked == 24


def _trained(mesh: Any) -> list[tuple[Any, Any]]:
    """A whole and a sharded model after a step, each with its optimizer; both have exactly the same values."""
    tokens, rank = torch.tensor([[1, 2, 3], [4, 4, 2]]), distributed.get_rank()
    plain, sharded = Wide(), fsdp(Wide(), mesh)
    for net in (plain, sharded):
        lw.freeze(net, "head.*")
    pairs = []
    for net in (plain, sharded):
        optimizer = torch.optim.AdamW([value for value in net.parameters() if value.requires_grad], lr=0.01)
        net(tokens).square().sum().backward()
        optimizer.step()
        pairs.append((net, optimizer))
    state = pairs[1][1].state[sharded.blocks[0].up.weight]["exp_avg"]
    pairs[0][1].state[plain.blocks[0].up.weight]["exp_avg"][40, 2] = float("nan")
    if rank == 1:
        state.to_local()[5, 2] = float("nan")
    for module in sharded.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    with torch.no_grad():
        for value, trained in zip(sharded.parameters(), plain.parameters(), strict=True):
            placements = value.placements
            value.copy_(distribute_tensor(trained.detach(), mesh, placements))
            if trained.grad is not None:
                value.grad = distribute_tensor(trained.grad, mesh, placements)
    return pairs


def after_training(folder: Path) -> None:
    """Gradients, optimizer state, initial values and a baseline."""
    before = Wide()
    rank, codes = distributed.get_rank(), set()
    path = folder / "before.safetensors"
    if rank == 0:
        lw.save(before, path)
    distributed.barrier()
    mesh = init_device_mesh("cpu", (2,))
    pairs = _trained(mesh)
    plain = pairs[0][0]
    for options in (
        {"optimizer": True},
        {"against": path},
        {"against": before},
        {"against": "sharded"},
        {"init": [lw.Rule("**", init="normal", std=3.0)]},
        {"init": True},
        {"select": "LW4"},
        {},
    ):
        found = []
        for net, optimizer in pairs:
            arguments: Any = dict(options)
            if "optimizer" in arguments:
                arguments["optimizer"] = optimizer
            if arguments.get("against") == "sharded":
                arguments["against"] = before if net is plain else _columns(Wide(), 2)
            found.append(lw.check(net, **arguments))
        assert_same_findings(found[1], found[0], options)
        codes |= set(found[1].codes)
    assert {"LW101", "LW115", "LW202"} <= codes, codes
    assert {"LW112", "LW401", "LW601"} & codes, codes


def test_gradients_optimizer_state_and_baselines_are_checked_too(tmp_path: Path) -> None:
    run_ranks(2, after_training, tmp_path)


def multiplied() -> None:
    """Rules that multiply matrices: their rank, and whether they are orthogonal."""
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    collapsed = torch.randn(90, 4) @ torch.randn(4, 70) + 1e-4 * torch.randn(90, 70)
    turned, off = nn.init.orthogonal_(torch.empty(90, 70)), nn.init.orthogonal_(torch.empty(70, 90))
    off[0], off[1] = off[1].clone(), off[1].clone()
    for axis in (0, 1):
        plain, sharded = nn.ModuleDict(), nn.ModuleDict()
        for name, value in {"collapsed": collapsed, "turned": turned, "off": off}.items():
            for net, weight in ((plain, value), (sharded, distribute_tensor(value, mesh, [Shard(axis)]))):
                net[name] = nn.Linear(value.shape[1], value.shape[0], bias=False)
                net[name].weight = nn.Parameter(weight)
        expected = lw.check(plain, init=[lw.Rule("**", init="orthogonal")], select=["LW116", "LW202"])
        assert sorted(expected.codes) == ["LW116", "LW202"], expected
        assert {finding.path for finding in expected} == {"collapsed.weight", "off.weight"}
        found = lw.check(sharded, init=[lw.Rule("**", init="orthogonal")], select=["LW116", "LW202"])
        assert_same_findings(found, expected, axis)


def test_matrices_are_multiplied_across_ranks() -> None:
    run_ranks(2, multiplied)


def skipped_and_refused(folder: Path) -> None:
    rank, mesh = distributed.get_rank(), init_device_mesh("cpu", (2,))
    state = {
        "pending": DTensor.from_local(torch.ones(3, 3), mesh, [Partial()]),
        "w": distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]),
    }
    findings = lw.check(state)
    assert list(findings.skipped) == ["pending"]
    assert "Partial" in findings.skipped["pending"]
    model = _fsdp(Wide(), 2)
    message = said(lambda: lw.check(model, select="LW101" if rank else "LW103"))
    assert message.startswith("lw.check stopped at rules: rank 1 has LW101, but rank 0 has LW103"), message
    # An error on the first rank, in a rule, is the same error on the others.
    other = {"other.weight": torch.ones(3)}
    with pytest.raises(lw.QueryError, match="against=: the two trees have no leaf in common"):
        lw.check(model, against=other)
    # Copies of a whole leaf that differ: those of the first rank count, and no rank waits.
    model.scale[0] = float("nan") if rank else 1.0
    assert lw.check(model, select="LW101").ok
    model.scale[0] = 1.0 if rank else float("nan")
    assert lw.check(model, select="LW101").codes == {"LW101": 1}
    linear = fully_shard(nn.Linear(3, 5), mesh=mesh)
    if rank:
        linear.weight.grad = distribute_tensor(torch.ones(5, 3), mesh, [Shard(0)], src_data_rank=None)
        message = said(lambda: lw.check(linear, select="LW102"))
    else:
        linear.bias.grad = distribute_tensor(torch.ones(5), mesh, [Shard(0)], src_data_rank=None)
        message = said(lambda: lw.check(linear, select="LW102"))
    assert "weight" in message, message


def test_what_cannot_be_checked_is_listed_and_ranks_that_differ_are_named(tmp_path: Path) -> None:
    run_ranks(2, skipped_and_refused, tmp_path)


def one_fails(where: str) -> str:
    from leafwise.homes.torch.values import measuring
    from leafwise.inspect.check import zero_lines

    model = Wide()
    with torch.no_grad():
        dead_units(model)
    expected, sharded = lw.check(model), _fsdp(model, 2)
    assert "LW110" in expected.codes

    def failing(*arguments: Any) -> Any:
        raise MemoryError("no memory left")

    kept = measuring._on_cpu, zero_lines.zero_lines_of
    if distributed.get_rank():
        if where == "statistics":
            measuring._on_cpu = failing
        else:
            zero_lines.zero_lines_of = failing
    start = time.monotonic()
    message = said(lambda: lw.check(sharded))
    assert time.monotonic() - start < 300  # instead of the 600 seconds that gloo waits
    measuring._on_cpu, zero_lines.zero_lines_of = kept
    assert_same_findings(lw.check(sharded), expected, where)  # the ranks can go on
    return message


@pytest.mark.parametrize("where", ["statistics", "zero lines"])
def test_a_rank_that_fails_in_the_middle_is_an_error_on_every_rank(where: str) -> None:
    assert run_ranks(2, one_fails, where) == ["rank 1 failed: MemoryError: no memory left"] * 2


def one_dies() -> str:
    from leafwise.inspect.check import zero_lines

    model = Wide()
    with torch.no_grad():
        dead_units(model)
    model = _fsdp(model, 2)  # type: ignore[assignment]
    if distributed.get_rank():

        def killed(*arguments: Any) -> Any:
            os._exit(9)

        zero_lines.zero_lines_of = killed
    start = time.monotonic()
    message = said(lambda: lw.check(model))
    assert time.monotonic() - start < 300  # instead of the 600 seconds that gloo waits
    return message


def test_a_rank_that_dies_in_the_middle_is_an_error() -> None:
    message, nothing_at_all = run_ranks(2, one_dies, dies={1})
    assert message.startswith("cannot reach every one of the ranks 0, 1: ")
    assert nothing_at_all is None


def counted_collectives() -> int:
    from leafwise.homes.torch.parallel.teams import TorchTeam

    model, calls, kept = _fsdp(Net(128, 512), 2), [], TorchTeam.start_gather

    def counted(team: Any, data: bytes) -> Any:
        calls.append(len(data))
        return kept(team, data)

    TorchTeam.start_gather = counted  # type: ignore[method-assign]
    lw.check(model)
    assert sum(calls) < sum(value.numel() * 4 for value in whole_state(model).values())
    return len(calls)


def test_checking_a_healthy_model_sends_less_than_its_values() -> None:
    first, second = run_ranks(2, counted_collectives)
    assert first == second < 40
