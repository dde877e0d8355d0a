"""Teams of ranks, whether they agree, and the functions that tests run on ranks."""

import os
import time
from multiprocessing import connection
from typing import Any

import numpy as np
import pytest
import torch
from tests.distributed.ranks import run_ranks
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import leafwise as lw
from leafwise.core.capabilities.sharding import Distributing, Team
from leafwise.core.work.ranks import agree, start_agreeing
from leafwise.homes.torch.home import HOME

distributing = HOME.capability(Distributing)


def team_over(mesh: Any) -> Team:
    copies = [Replicate()] * mesh.ndim
    team = distributing.team([torch.ones(2), distribute_tensor(torch.ones(4), mesh, copies)])
    assert team is not None
    return team


# -- teams -------------------------------------------------------------------------------------------------


def gathered_in_order(shape: tuple[int, ...]) -> None:
    rank, mesh = distributed.get_rank(), init_device_mesh("cpu", shape)
    team = team_over(mesh)
    assert team.ranks == tuple(range(team.size))
    assert team.rank == rank
    assert team.gather(bytes([rank, 7])) == [bytes([number, 7]) for number in range(team.size)]
    rows = team.gather(np.full((2, 3), rank, np.float64))
    assert [row.tolist() for row in rows] == [[[number] * 3] * 2 for number in range(team.size)]
    assert team.gather(b"") == [b""] * team.size
    assert team.gather_any(b"x" * rank) == [b"x" * number for number in range(team.size)]
    later = team.start_gather(bytes([rank]))
    assert later() == [bytes([number]) for number in range(team.size)]
    if len(shape) == 2:
        column = team_over(init_device_mesh("cpu", shape, mesh_dim_names=("a", "b"))["a"])
        assert column.ranks == (rank % 2, rank % 2 + 2)
        assert column.gather(bytes([rank])) == [bytes([number]) for number in column.ranks]


@pytest.mark.parametrize("shape", [(2,), (4,), (2, 2), (2, 1, 2)])
def test_data_is_gathered_in_the_order_of_the_ranks(shape: tuple[int, ...]) -> None:
    run_ranks(int(np.prod(shape)), gathered_in_order, shape)


def gathered_from_an_unsorted_mesh() -> None:
    for order in ([3, 1, 2, 0], [[2, 0], [3, 1]]):
        team = team_over(distributed.device_mesh.DeviceMesh("cpu", order))
        assert team.ranks == tuple(np.ravel(order).tolist())
        assert team.ranks[team.rank] == distributed.get_rank()
        assert team.gather(bytes([distributed.get_rank()])) == [bytes([rank]) for rank in team.ranks]


def test_data_is_gathered_in_the_order_of_a_mesh_that_is_not_sorted() -> None:
    run_ranks(4, gathered_from_an_unsorted_mesh)


def exchanged(order: Any) -> None:
    team = team_over(distributed.device_mesh.DeviceMesh("cpu", order))
    rank = team.ranks[team.rank]
    assert team.exchange([f"{rank}>{other}".encode() * (rank + 1) for other in team.ranks]) == [
        f"{other}>{rank}".encode() * (other + 1) for other in team.ranks
    ]
    assert team.exchange([b""] * team.size) == [b""] * team.size
    own = bytes(team.rank) + bytes([100 + team.rank]) + bytes(team.size - team.rank - 1)
    assert team.overlay(own) == bytes(100 + number for number in range(team.size))
    assert team.overlay(b"") == b""
    for lengths in ([0, 0, 300_000, 5], [100_000, 0, 0, 0], [70_000, 70_001, 70_002, 70_003], [0, 0, 0, 0]):
        data = [bytes([1 + number]) * length for number, length in enumerate(lengths)]
        assert team.gather_any(data[team.rank]) == data


@pytest.mark.parametrize(
    "order", [[0, 1, 2, 3], [3, 1, 2, 0], [[0, 1], [2, 3]], [[0, 3], [2, 1]], [[[1], [3]], [[2], [0]]]]
)
def test_pieces_are_exchanged_and_combined_in_the_order_of_any_mesh(order: Any) -> None:
    run_ranks(4, exchanged, order)


def teams_of_several_meshes() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    copy = [Replicate()]
    on_dp, on_tp = (distribute_tensor(torch.ones(4), mesh[name], copy) for name in ("dp", "tp"))
    on_both = distribute_tensor(torch.ones(4), mesh, [Shard(0), Replicate()])
    assert distributing.team([torch.ones(1)]) is None
    assert distributing.team([]) is None
    for values, size in [([on_dp], 2), ([on_dp, on_both], 4), ([on_both, on_tp], 4), ([on_dp, on_tp], 4)]:
        team = distributing.team(values)
        assert team is not None
        assert team.size == size
        assert team.gather(bytes([team.ranks[team.rank]])) == [bytes([rank]) for rank in team.ranks]
    unnamed = [init_device_mesh("cpu", (2, 2)), init_device_mesh("cpu", (4,))]
    mixed = [distribute_tensor(torch.ones(4), unnamed[0], copy * 2), distribute_tensor(torch.ones(4), unnamed[1], copy)]
    assert distributing.team(mixed).size == 4  # type: ignore[union-attr]
    pairs = [distributed.device_mesh.DeviceMesh("cpu", ranks) for ranks in ([[0, 1], [2, 3]],)]
    one_row = distribute_tensor(torch.ones(4), pairs[0], copy * 2)
    assert distributing.team([one_row]).size == 4  # type: ignore[union-attr]
    first_half = distributed.device_mesh.DeviceMesh("cpu", [0, 1])
    other = distributed.device_mesh.DeviceMesh("cpu", [1, 2])
    if distributed.get_rank() == 1:
        values = [distribute_tensor(torch.ones(4), half, copy, src_data_rank=None) for half in (first_half, other)]
        with pytest.raises(lw.RankError, match=r"no mesh contains the ranks of both"):
            distributing.team(values)


def test_a_team_is_the_mesh_that_contains_all_others() -> None:
    run_ranks(4, teams_of_several_meshes)


# -- agreeing ----------------------------------------------------------------------------------------------

ROWS = [("0.weight", "8×4 float32"), ("0.bias", "8 float32"), ("1.weight", "2×8 float32")]


def compared(shape: tuple[int, ...], rows: dict[int, Any]) -> tuple[str, Any, Any]:
    team = team_over(init_device_mesh("cpu", shape))
    verb, facts = rows.get(team.rank, ("stats", ROWS))
    wait = start_agreeing(team, verb, facts)
    try:
        wait()
    except lw.RankError as error:
        agree(team, "stats", ROWS)  # the team can go on
        return str(error), error.rank, error.path
    return "", None, ""


EVERY = "every rank must call it with the same model and the same arguments"


@pytest.mark.parametrize(
    ("rows", "message", "path"),
    [
        ({}, "", ""),
        (
            {2: ("stats", [ROWS[0], ("0.bias", "8 float64"), ROWS[2]])},
            f"lw.stats stopped at 0.bias: rank 2 has 8 float64, but rank 0 has 8 float32; {EVERY}",
            "0.bias",
        ),
        (
            {0: ("stats", ROWS[:2])},
            f"lw.stats stopped at 1.weight: rank 0 has nothing more, but rank 1 has 1.weight (2×8 float32); {EVERY}",
            "1.weight",
        ),
        (
            {3: ("stats", [("other.weight", ""), *ROWS])},
            "lw.stats stopped at other.weight: rank 3 has other.weight, but rank 0 has 0.weight (8×4 float32); "
            + EVERY,
            "other.weight",
        ),
        ({1: ("check", ROWS)}, "rank 1 calls lw.check, but rank 0 calls lw.stats", ""),
    ],
)
@pytest.mark.parametrize("shape", [(4,), (2, 2)])
def test_the_rank_and_the_first_path_that_differ_are_named_on_every_rank(
    shape: tuple[int, ...], rows: dict[int, Any], message: str, path: str
) -> None:
    rank = next(iter(rows), None)
    assert run_ranks(4, compared, shape, rows) == [(message, rank, path)] * 4


def rank_1_dies() -> str:
    team = team_over(init_device_mesh("cpu", (2,)))
    if team.rank == 1:
        os._exit(9)
    start = time.monotonic()
    try:
        agree(team, "stats", ROWS)
    except lw.RankError as error:
        assert time.monotonic() - start < 300  # instead of the 600 seconds that gloo waits
        return str(error)
    raise AssertionError("the other rank is gone")


def test_a_rank_that_died_is_an_error_and_does_not_hang() -> None:
    message, nothing = run_ranks(2, rank_1_dies, dies={1})
    assert message.startswith("cannot reach every one of the ranks 0, 1: ")
    assert nothing is None


# -- the functions of the tests ----------------------------------------------------------------------------


def fails_on_rank_1() -> int:
    print("printed before it failed", flush=True)
    if distributed.get_rank() == 1:
        raise ValueError("this rank cannot")
    time.sleep(600)
    return 1


def hangs() -> None:
    if distributed.get_rank() == 1:
        time.sleep(600)


def test_a_rank_that_fails_or_hangs_is_the_failure_of_the_test(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.monotonic()
    with pytest.raises(pytest.fail.Exception, match="rank 1 failed") as caught:
        run_ranks(2, fails_on_rank_1)
    assert "ValueError: this rank cannot" in str(caught.value)
    assert "printed before it failed" in str(caught.value)
    # The time is up soon after only the rank that hangs is left.
    wait = connection.wait
    monkeypatch.setattr(connection, "wait", lambda pipes, seconds: wait(pipes, seconds if len(pipes) == 2 else 0.5))
    with pytest.raises(pytest.fail.Exception, match=r"^rank 1 was still running when the time was up"):
        run_ranks(2, hangs)
    assert time.monotonic() - start < 300  # instead of 600 seconds for each
