"""Results that are so large that each rank combines a share of them: the same bits, and fewer bytes for each rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.models import sharded_models
from tests.distributed.ranks import received_bytes, run_ranks
from tests.distributed.test_check import planted
from tests.distributed.test_diff import against_files_and_models, odd_meshes
from tests.distributed.test_iterating import clipped, give_gradients, not_finite, whole_of
from tests.distributed.test_stats import measured
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import leafwise as lw
from leafwise.core.capabilities.sharding import Distributing
from leafwise.core.work import ranks
from leafwise.homes.torch.home import HOME
from leafwise.inspect.ranks import team_measuring
from leafwise.inspect.ranks.spread_arrays import read_boxes


def shared_out(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns on a rank if everything is so large that the ranks share it out."""
    ranks.LARGE = 0
    team_measuring.COMBINED_AT_ONCE = 5
    return function(*arguments)


def both_ways(function: Callable[..., Any], first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[Any, Any]:
    """What a function returns on a rank, with arguments for each way: as usual, and if the ranks share everything."""
    return function(*first), shared_out(function, *second)


@pytest.mark.slow
def test_statistics_have_the_same_bits() -> None:
    for together, shared in run_ranks(4, both_ways, measured, (4,), (4,)):
        assert shared == together


def test_integers_that_no_float_has_and_empty_arrays_are_combined_exactly() -> None:
    run_ranks(3, shared_out, odd_dtypes_of_three)


def odd_dtypes_of_three() -> None:
    mesh = init_device_mesh("cpu", (3,))
    large = torch.tensor([[2**62 + 1, -(2**63)], [2**63 - 1, 0], [5, 7]])
    wholes = {"signed": large, "unsigned": large.to(torch.uint64), "empty": torch.zeros(0, 2), "number": torch.ones(1)}
    state = {name: distribute_tensor(value, mesh, [Shard(0)], src_data_rank=None) for name, value in wholes.items()}
    table, expected = lw.stats(state), lw.stats(wholes)
    for name in wholes:
        for statistic in ("count", "min", "max", "zeros", "histogram"):
            ours, whole = getattr(table[name], statistic), getattr(expected[name], statistic)
            assert type(ours) is type(whole)
            assert ours == whole or (ours != ours and whole != whole), (name, statistic)


def norms_of_clip(count: int) -> list[Any]:
    norms = []
    for model in sharded_models(count).values():
        give_gradients(model, whole_of(model))
        found = lw.clip(model, 0.7)
        norms.append(([(path, norm.hex()) for path, norm in found.items()], found.total.hex()))
    return norms


@pytest.mark.slow
def test_norms_have_the_same_bits() -> None:
    results = run_ranks(4, both_ways, norms_of_clip, (4,), (4,))
    assert all(norms == results[0][0] for result in results for norms in result)


@pytest.mark.slow
@pytest.mark.parametrize("function", [clipped, not_finite])
def test_gradients_are_clipped_as_those_of_the_whole_model(function: Callable[..., Any]) -> None:
    run_ranks(4, shared_out, function, 4)


@pytest.mark.slow
def test_differences_have_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for together, shared in run_ranks(4, both_ways, against_files_and_models, (4, tmp_path / "a"), (4, tmp_path / "b")):
        assert shared == together


@pytest.mark.slow
def test_meshes_in_another_order_are_compared() -> None:
    run_ranks(4, shared_out, odd_meshes)


@pytest.mark.slow
def test_faults_are_found() -> None:
    run_ranks(4, shared_out, planted, 4)  # it compares with one process


# -- how much a rank receives -----------------------------------------------------------------------------------


def many_leaves(shape: tuple[int, ...]) -> dict[str, int]:
    mesh = init_device_mesh("cpu", shape)
    leaves = 1_400
    values = torch.arange(8.0)
    state = {
        f"leaf{number}": distribute_tensor(values, mesh, [Shard(0)] * mesh.ndim, src_data_rank=None)
        for number in range(leaves)
    }
    received = {}
    for verb, act in {
        "stats": lambda: lw.stats(state),
        "diff": lambda: lw.diff(state, {name: values + number for number, name in enumerate(state, 1)}),
    }.items():
        with received_bytes() as sizes:
            act()
        received[verb] = sum(sizes) // leaves
    return received


@pytest.mark.slow
@pytest.mark.parametrize(("count", "shape"), [(4, (4,)), (8, (8,)), (4, (2, 2))])
def test_a_rank_receives_no_more_if_there_are_more_ranks(count: int, shape: tuple[int, ...]) -> None:
    row = 2_176  # bytes of the statistics of a leaf
    for received in run_ranks(count, many_leaves, shape):
        # What it has to combine, and all results: twice in all, for each dimension of the mesh.
        assert row < received["stats"] < 2.1 * len(shape) * row
        assert received["diff"] < 2.1 * len(shape) * 400


def differing_models() -> tuple[str, int]:
    """A model of which one rank has another leaf: only two ranks send what they have."""
    mesh = init_device_mesh("cpu", (4,))
    odd = distributed.get_rank() == 2
    state = {
        f"a_leaf_with_a_long_name_{number}{'x' if odd and number == 1_000 else ''}": distribute_tensor(
            torch.ones(4), mesh, [Shard(0)], src_data_rank=None
        )
        for number in range(1_500)
    }
    with received_bytes() as sizes:
        try:
            lw.stats(state)
        except lw.RankError as error:
            return str(error), sum(sizes)
    raise AssertionError("the ranks differ")


def test_ranks_that_differ_are_named_without_sending_the_models_of_all() -> None:
    for message, received in run_ranks(4, differing_models):
        assert message.startswith("lw.stats stopped at a_leaf_with_a_long_name_1000")
        assert "rank 2 has a_leaf_with_a_long_name_1000x" in message
        assert received < 3 * 1_500 * 100


def boxes_of_all_dtypes() -> None:
    """Boxes that are in the parts of several ranks, empty ones, and numbers, of dtypes with other sizes."""
    mesh = init_device_mesh("cpu", (4,))
    wholes = [
        torch.arange(30.0).view(10, 3),
        torch.arange(14).view(7, 2).to(torch.bfloat16),
        torch.arange(9, dtype=torch.int8),
        torch.zeros(0, 5),
        torch.tensor(7.0),
    ]
    arrays = [
        (HOME, distribute_tensor(value, mesh, [Shard(0)], src_data_rank=None) if value.ndim else value)
        for value in wholes
    ]
    team = HOME.capability(Distributing).team([value for _, value in arrays])
    assert team is not None
    boxes = [(slice(2, 9), slice(1, 3)), (slice(0, 7),), (slice(4, 4),), (), ()]
    for (index, whole), read in zip(enumerate(wholes), read_boxes(team, arrays, boxes), strict=True):
        assert torch.equal(torch.from_numpy(read.astype("f4")), whole[boxes[index]].float())
        read += 1  # it is the caller's own
    with received_bytes() as sizes:
        read_boxes(team, arrays, boxes)
    assert sum(sizes) < 2 * 200
    assert [read.shape for read in read_boxes(team, arrays[3:4], [()])] == [(0, 5)]
    assert read_boxes(team, [], []) == []


def test_boxes_are_read_together_whatever_their_dtypes_and_wherever_they_are() -> None:
    run_ranks(4, boxes_of_all_dtypes)
