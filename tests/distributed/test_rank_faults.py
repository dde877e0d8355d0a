"""Ranks that are killed, stopped or late at every step of a load or a save; and saves by one rank alone."""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.models import Net
from tests.distributed.ranks import run_ranks
from tests.long import SEED, count, short_or_long
from tools import rank_faults
from tools.rank_faults import Case, Faults
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import leafwise as lw

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no such signal")
RANKS = 4  # gloo tells only the neighbors of a rank in its ring that it has died
SAMPLE = short_or_long(1, 20)  # cases of each verb and kind of fault that are drawn
# At these moments, ranks once waited without a limit: the rank has sent its data, but not counted them.
KILLED = [
    ("load", "parent", 1, "after sending data 3"),
    ("save", "parent", 2, "after sending data 4"),
]


@pytest.fixture(scope="module")
def faults() -> Iterator[Faults]:
    with Faults(RANKS) as made:
        yield made


def drawn(faults: Faults, kind: str) -> list[Case]:
    draw = random.Random(f"{kind} {SEED}")
    cases = []
    for verb in rank_faults.VERBS:
        steps = [
            (rank, step)
            for rank, steps in enumerate(faults.steps(verb))
            for step in steps
            if rank_faults.is_case(kind, step)
        ]
        for rank, step in draw.sample(steps, SAMPLE):
            cases.append(Case(verb, draw.choice(rank_faults.STORES), kind, RANKS, rank, step))
    return cases


def check(faults: Faults, cases: list[Case]) -> None:
    problems = [f"{case}: {text}" for case, texts, _ in rank_faults.run_all(faults, cases) for text in texts]
    assert not problems, "\n".join(problems)


@pytest.mark.slow
def test_if_a_rank_is_killed_at_any_step_the_others_raise_in_time_and_the_checkpoint_is_whole(faults: Faults) -> None:
    fixed = [Case(verb, store, "killed", RANKS, rank, step) for verb, store, rank, step in KILLED]
    check(faults, [*fixed, *(cases := drawn(faults, "killed"))])
    count("ranks killed", len(fixed) + len(cases))


@pytest.mark.slow
def test_if_a_rank_is_stopped_at_any_step_the_others_raise_in_time_and_the_checkpoint_is_whole(faults: Faults) -> None:
    fixed = [Case("load", "first", "stopped", RANKS, 0, "after gather 1")]  # no store answers any more
    check(faults, [*fixed, *(cases := drawn(faults, "stopped"))])
    count("ranks stopped", len(fixed) + len(cases))


@pytest.mark.slow
def test_a_rank_that_is_slow_is_not_taken_for_a_dead_one(faults: Faults) -> None:
    check(faults, cases := drawn(faults, "late"))
    count("ranks late", len(cases))


def test_there_are_steps_in_every_part_of_a_load_and_of_a_save(faults: Faults) -> None:
    for verb, least in (("load", 40), ("save", 40), ("background", 40)):
        for rank, steps in enumerate(faults.steps(verb)):
            assert len(steps) >= least, (verb, rank)
            assert {"before the call 1", "before gather 1", "after meet 1", "after the call 1"} <= set(steps)
            assert ("after apply 1" in steps) == (verb == "load")
            assert ("after finish 1" in steps) == (verb != "load" and rank == 0)
            assert ("within fill 1" in steps) == (verb == "load")
            assert ("within write 1" in steps) == (verb != "load")


def alone(folder: Path) -> int:
    """Rank 0 saves and loads, while the others wait until it is done; then each of them does, one after another."""
    from leafwise.homes.torch.parallel.teams import TorchTeam

    def refused(*_: Any) -> Any:
        raise AssertionError("waits for other ranks")

    rank, count = distributed.get_rank(), distributed.get_world_size()
    ones = init_device_mesh("cpu", (count, 1), mesh_dim_names=("all", "own"))["own"]
    own = fully_shard(Net(), mesh=ones)  # sharded, but over this rank only
    parallel = torch.nn.parallel.DistributedDataParallel(Net())
    plain = Net()
    optimizer = torch.optim.AdamW(plain.parameters())
    plain(torch.arange(4)[None]).sum().backward()
    optimizer.step()
    TorchTeam._started = refused  # type: ignore[assignment, method-assign]
    distributed.barrier()
    while rank and not (folder / f"{rank - 1}.done").exists():
        time.sleep(0.02)
    saves = 0
    for model in (plain, parallel, own):
        for form, ending in (("safetensors", ".safetensors"), ("dcp", "")):
            if model is own and form != "dcp":
                continue
            for background in (False, True):
                path = folder / f"{rank}-{saves}{ending}"
                content = {"model": model, "step": rank, **({"optimizer": optimizer} if model is plain else {})}
                saving = lw.save(content, path, format=form, background=background)  # type: ignore[call-overload]
                assert (saving if isinstance(saving, str) else saving.wait()) == str(path)
                assert lw.verify(path).ok
                assert lw.load({**content, "step": -1}, path)["step"] == rank
                saves += 1
    (folder / f"{rank}.done").touch()
    distributed.barrier()
    return saves


def test_a_save_by_one_rank_alone_never_waits_for_the_others(tmp_path: Path) -> None:
    assert run_ranks(3, alone, tmp_path, timeout=300) == [10] * 3
