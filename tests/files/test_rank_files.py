"""The files that each process of a training run saves for itself: DTensor, and FSDP1's ShardedTensor."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.files.processes import in_processes

import leafwise as lw

WHOLE = torch.arange(35.0).reshape(7, 5)  # uneven along both axes, for two and for four processes

_PLACED = """
    whole = torch.arange(35.0).reshape(7, 5)
    line = init_device_mesh("cpu", (count,))
    state = {
        "rows": distribute_tensor(whole, line, [Shard(0)]),
        "columns": distribute_tensor(whole, line, [Shard(1)]),
        "replicated": distribute_tensor(whole, line, [Replicate()]),
        "parameter": torch.nn.Parameter(distribute_tensor(whole, line, [Shard(0)])),
        "few": distribute_tensor(whole[:3], line, [Shard(0)]),
        "plain": torch.ones(3),
        "own": torch.full((2,), float(rank)),
        "seed": 100 + rank,
        "step": 7,
    }
"""
_MORE = """
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    state["both"] = distribute_tensor(whole, grid, [Shard(0), Shard(1)])
    state["twice"] = distribute_tensor(whole, grid, [Shard(0), Shard(0)])
    state["half"] = distribute_tensor(whole, grid, [Replicate(), Shard(0)])
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 6))
    if rank == 0:
        torch.save(net.state_dict(), f"{out}/../whole.pt")
    parallelize_module(net, grid["tp"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(net, mesh=grid["dp"])
    state["net"] = net.state_dict()
    kinds = {type(part).__name__ for value in state["net"].values() for part in value.placements}
    assert "_StridedShard" in kinds
"""
_CHANGED = """
    if rank == 2:
        state["half"].to_local().add_(1)
        state["replicated"].to_local().add_(1)
        torch.save(state, f"{out}/changed2.pt")
"""
_SAVE = """
    torch.save(state, f"{out}/rank{rank}.pt")
"""
_OTHER_KINDS = """
    from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType
    from torch.distributed.tensor import DTensor

    def save(what, name):
        os.makedirs(f"{out}/{name}", exist_ok=True)
        torch.save(what, f"{out}/{name}/rank{rank}.pt")

    save({"p": DTensor.from_local(torch.ones(3), line, [Partial()])}, "partial")
    for original in (False, True):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 6))
        if rank == 0:
            torch.save(net.state_dict(), f"{out}/../whole.pt")
        wrapped = FullyShardedDataParallel(net, use_orig_params=original, device_id=torch.device("cpu"))
        for kind in (StateDictType.SHARDED_STATE_DICT, StateDictType.LOCAL_STATE_DICT):
            with FullyShardedDataParallel.state_dict_type(wrapped, kind):
                save(wrapped.state_dict(), f"{kind.name} {original}")
"""


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("two")
    in_processes(2, _PLACED + _SAVE + _OTHER_KINDS, folder)
    return folder / "out"


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("four")
    in_processes(4, _PLACED + _MORE + _SAVE + _CHANGED, folder)
    return folder / "out"


@pytest.mark.slow
def test_the_file_of_one_process_shows_whole_shapes_and_its_part(two: Path) -> None:
    with lw.open(two / "rank0.pt") as t:
        text = t.text()
        assert t["rows"].shape == (7, 5)
        assert t["rows"].nbytes == 4 * 5 * 4
        assert "part [0:4, 0:5]" in text
        assert "part [0:7, 0:3]" in text
        assert np.array_equal(t["replicated"].numpy(), WHOLE)
        assert t["parameter"].trainable is True
        with pytest.raises(lw.Unsupported, match=r"this file has only \[0:4, 0:5\] of it, 20 of 35 elements; open the"):
            t["rows"].numpy()
        assert lw.verify(t).ok


@pytest.mark.slow
def test_a_part_is_refused_by_name_when_it_is_loaded_or_converted(two: Path, tmp_path: Path) -> None:
    target = {"rows": torch.zeros(7, 5)}
    with lw.open(two / "rank1.pt") as t, pytest.raises(lw.Error, match=r"rows.*only \[4:7, 0:5\]"):
        lw.load(target, t, allow={"unexpected"})
    assert not target["rows"].any()
    with pytest.raises(lw.Error, match=r"rows.*only \[4:7, 0:5\]"):
        lw.edit(two / "rank1.pt", tmp_path / "a.safetensors", keep="rows")


@pytest.mark.parametrize("count", [2, 4])
def test_the_files_of_all_processes_are_one_checkpoint(count: int, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue({2: "two", 4: "four"}[count])
    files = [folder / f"rank{rank}.pt" for rank in range(count)]
    for source in (folder if count == 2 else files, files):
        with lw.open(source) as t:
            for name in ("rows", "columns", "replicated", "parameter"):
                assert np.array_equal(t[name].numpy(), WHOLE), name
                assert np.array_equal(t[name].numpy((slice(1, 6, 2), slice(None, None, -1))), WHOLE[1:6:2].flip(1))
            assert np.array_equal(t["few"].numpy(), WHOLE[:3])
            assert t["plain"].numpy().tolist() == [1, 1, 1]
            assert t["step"] == 7
            assert [t[f"seed.rank{rank}"] for rank in range(count)] == [100 + rank for rank in range(count)]
            assert [t[f"own.rank{rank}"].numpy()[0] for rank in range(count)] == list(range(count))
            assert lw.verify(t).ok


def test_shards_along_two_axes_and_strided_shards_are_put_together(four: Path) -> None:
    whole = torch.load(four.parent / "whole.pt")
    with lw.open([four / f"rank{rank}.pt" for rank in range(4)]) as t:
        for name in ("both", "twice", "half"):
            assert np.array_equal(t[name].numpy(), WHOLE), name
        for name, value in whole.items():
            assert np.array_equal(t[f"net.{name}"].numpy(), value.numpy()), name
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Linear(7, 6))
    with lw.open([four / f"rank{rank}.pt" for rank in (3, 1, 0, 2)]) as t:
        lw.load(net, t["net"])
    assert all(torch.equal(value, whole[name]) for name, value in net.state_dict().items())


def test_a_missing_file_is_named_by_the_arrays_that_need_it(four: Path) -> None:
    with lw.open([four / f"rank{rank}.pt" for rank in (0, 1, 3)]) as t:
        with pytest.raises(lw.Unsupported, match=r"these 3 files have only .* of it, 25 of 35 elements"):
            t["rows"].numpy()
        assert np.array_equal(t["half"].numpy(), WHOLE)  # two of the four have each half
        assert np.array_equal(t["replicated"].numpy(), WHOLE)


def test_copies_that_differ_are_refused(four: Path, tmp_path: Path) -> None:
    """Processes 0 and 2 have the same half; one of them is changed, so that neither is right."""
    folder = tmp_path / "changed"
    shutil.copytree(four, folder)
    shutil.move(folder / "changed2.pt", folder / "rank2.pt")
    with lw.open(folder) as t:
        with pytest.raises(lw.Unsupported, match=r"rank0 and rank2 have different values for its part \[0:4, 0:5\]"):
            t["half"].numpy()
        assert t["replicated.rank2"].numpy()[0, 0] == 1
        assert t["replicated.rank1"].numpy()[0, 0] == 0


def test_partial_sums_are_refused(two: Path) -> None:
    with lw.open(two / "partial" / "rank0.pt") as t:
        assert t["p"].shape == (3,)
        with pytest.raises(lw.Unsupported, match="a partial sum of one process"):
            t["p"].numpy()


@pytest.mark.parametrize("original", [False, True], ids=["flat parameters", "original parameters"])
def test_sharded_state_dicts_of_fsdp1_are_put_together(original: bool, two: Path) -> None:
    whole = torch.load(two.parent / "whole.pt")
    with lw.open(two / f"SHARDED_STATE_DICT {original}") as t:
        for name, value in whole.items():
            assert np.array_equal(t[name].numpy(), value.numpy()), name
    local = two / f"LOCAL_STATE_DICT {original}"
    with lw.open(local) as t:
        flat = t["_flat_param"].numpy()
        values = torch.cat([value.reshape(-1) for value in whole.values()]).numpy()
        assert set(values.tolist()) <= set(flat.tolist())  # in order, but for padding
    with lw.open(local / "rank1.pt") as t:
        assert "part [" in t.text()
