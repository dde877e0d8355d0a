"""Saving sharded models, on real ranks. The truth is `full_tensor()`, and PyTorch's own `dcp.load`."""

import os
import re
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.distributed.models import Net, even, fsdp, sharded_models, tensor_parallel
from tests.distributed.ranks import run_ranks
from tests.distributed.test_loading import (
    OPTIMIZERS,
    TOKENS,
    Tied,
    check_equal,
    clear,
    full,
    load_whole,
    on_first,
    random_state,
    train,
)
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

import leafwise as lw

COUNTS = pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])


def filled(model: nn.Module, seed: int = 1) -> dict[str, torch.Tensor]:
    """Gives a model new values, and returns them."""
    state = random_state(model, seed)
    lw.load(model, state)
    return state


def load_with_torch(content: dict[str, Any], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this is one process
        dcp.load(content, checkpoint_id=path, no_dist=True)


# -- what is written ---------------------------------------------------------------------------------------


def saved_and_loaded(count: int, folder: Path) -> list[str]:
    for number, (name, model) in enumerate(sharded_models(count).items()):
        here = folder / f"{count}-{number}"
        state = filled(model)
        assert lw.save(model, here, format="dcp") == str(here)
        # PyTorch reads it, each rank its parts.
        clear(model)
        if name != "by hand":  # PyTorch itself cannot load strided shards that consist of several pieces
            content = model.state_dict()
            dcp.load(content, checkpoint_id=here)
            check_equal(model, state, name)
        # leafwise reads it.
        clear(model)
        lw.load(model, here)
        check_equal(model, state, name)
        on_first(lambda here=here, state=state: check_in_one_process(here, state))
    return sorted(sharded_models(count))


def check_in_one_process(path: Path, state: dict[str, torch.Tensor]) -> None:
    verified = lw.verify(path)
    assert verified.ok
    assert verified.unbound == 0
    loaded = load_whole(path)
    assert loaded.keys() == state.keys()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())
    # Every element is stored once.
    stored = sum(file.stat().st_size for file in path.glob("*.distcp"))
    nbytes = sum(value.nbytes for value in state.values())
    assert nbytes <= stored <= nbytes + 4000 * (len(state) + 1) * 4


@COUNTS
def test_every_rank_writes_its_parts_and_everyone_reads_them(count: int, tmp_path: Path) -> None:
    run_ranks(count, saved_and_loaded, count, tmp_path)
    state = random_state(Net())
    check_in_one_process(tmp_path / f"{count}-0", state)
    plain = Net()
    lw.load(plain, tmp_path / f"{count}-0")
    assert all(torch.equal(value, state[name]) for name, value in plain.state_dict().items())
    # PyTorch in one process.
    content = {name: torch.zeros_like(value) for name, value in state.items()}
    load_with_torch(content, tmp_path / f"{count}-0")
    assert all(torch.equal(value, state[name]) for name, value in content.items())
    # Conversion needs no ranks.
    lw.edit(tmp_path / f"{count}-0", tmp_path / "model.safetensors")
    assert load_whole(tmp_path / "model.safetensors").keys() == state.keys()
    lw.load(lw.initialize(Net()), tmp_path / "model.safetensors")


def bytes_of_each_rank(folder: Path) -> list[int]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "shards"))
    model = fully_shard(nn.Sequential(*[nn.Linear(64, 64) for _ in range(8)]), mesh=mesh)
    model.register_parameter("whole", nn.Parameter(torch.ones(100)))
    copies = [distribute_tensor(torch.ones(64, 64), mesh, (Replicate(), Replicate())) for _ in range(8)]
    lw.save({"model": model, "copies": copies}, folder / "saved", format="dcp")
    return [path.stat().st_size for path in sorted((folder / "saved").glob("*.distcp"))]


def test_copies_are_written_once_and_the_work_is_even(tmp_path: Path) -> None:
    sizes = run_ranks(4, bytes_of_each_rank, tmp_path)[0]
    assert len(sizes) == 4
    assert max(sizes) < 1.2 * min(sizes), sizes
    assert sum(sizes) < 1.2 * 4 * (8 * (64 * 64 + 64) + 8 * 64 * 64 + 100)


def cast_and_selected(folder: Path) -> None:
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    state = filled(model)
    lw.save(model, folder / "half", format="dcp", dtype="bfloat16", where="blocks.**", metadata={"note": "half"})
    with lw.open(folder / "half") as t:
        values = {str(path): torch.from_numpy(leaf.numpy().astype("float32")) for path, leaf in t.items()}
        assert t.columns.node_objects[0].metadata == {"note": "half"}
        assert t["blocks.0.up.weight"].dtype == "bfloat16"
        assert t["blocks.0.up.weight"].role == "linear.weight"
    expected = {name: value.bfloat16().float() for name, value in state.items() if name.startswith("blocks.")}
    assert values.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in values.items())
    huge = {name: value * 1e10 for name, value in state.items()}
    lw.load(model, huge)
    with pytest.raises(lw.Error, match="float16"):
        lw.save(model, folder / "half", format="dcp", dtype="float16")
    distributed.barrier()
    with lw.open(folder / "half") as t:
        assert t["blocks.0.up.weight"].dtype == "bfloat16", "the old checkpoint stays"
    lw.save(model, folder / "half", format="dcp", dtype="float16", cast="saturate")
    with lw.open(folder / "half") as t:
        assert t["blocks.0.up.weight"].dtype == "float16"


def test_dtype_where_and_metadata_work_for_parts(tmp_path: Path) -> None:
    run_ranks(2, cast_and_selected, tmp_path)


def refused(folder: Path) -> str:
    model = fsdp(Net(), init_device_mesh("cpu", (distributed.get_world_size(),)))
    with pytest.raises(lw.WalkError) as raised:
        lw.save(model, folder / "model.safetensors")
    with pytest.raises(lw.QueryError, match="ties="):
        lw.save(model, folder / "model", format="dcp", ties="copy")
    assert not list(folder.iterdir())
    return str(raised.value)


def test_safetensors_are_refused_with_what_to_type(tmp_path: Path) -> None:
    assert set(run_ranks(2, refused, tmp_path)) == {
        "cannot save embed.weight as safetensors: it is sharded over processes (shard(0) over 2 ranks), and no process "
        'has all of it; call lw.save(…, folder, format="dcp") in every process, and then, if you need safetensors, '
        'lw.edit(folder, "model.safetensors") in one'
    }
    (alone,) = run_ranks(1, refused, tmp_path)
    assert "it belongs to a mesh of processes (shard(0) over 1 rank); call lw.save(" in alone


# -- runs that go on elsewhere -----------------------------------------------------------------------------


def first_part_of_a_run(folder: Path, name: str) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = fsdp(Net(), mesh)
    optimizer = OPTIMIZERS[name](model)
    train(model, optimizer, 2)
    for module in model.modules():
        if hasattr(module, "reshard"):
            module.reshard()
    lw.save({"model": model, "optimizer": optimizer, "epoch": 2}, folder / name, format="dcp")
    train(model, optimizer, 2)
    return {key: full(value).numpy() for key, value in model.named_parameters()}


def second_part_of_a_run(folder: Path, name: str, how: str) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    model = fsdp(Net(), mesh) if how == "fsdp" else tensor_parallel(Net(), mesh)
    optimizer = OPTIMIZERS[name](model)
    run = {"model": model, "optimizer": optimizer, "epoch": 0}
    lw.load(run, folder / name)
    assert run["epoch"] == 2
    train(model, optimizer, 2)
    return {key: full(value).numpy() for key, value in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["AdamW", "SGD"])
def test_a_run_goes_on_with_other_ranks_or_in_one_process(name: str, tmp_path: Path) -> None:
    expected = run_ranks(4, first_part_of_a_run, tmp_path, name)[0]
    whole = Net()
    whole_optimizer = OPTIMIZERS[name](whole)
    lw.load({"model": whole, "optimizer": whole_optimizer, "epoch": 0}, tmp_path / name)
    train(whole, whole_optimizer, 2)
    results = [{key: value.detach().numpy() for key, value in whole.named_parameters()}]
    results += run_ranks(2, second_part_of_a_run, tmp_path, name, "fsdp")
    results += run_ranks(2, second_part_of_a_run, tmp_path, name, "tensor parallel")
    for result in results:
        for key, value in result.items():
            np.testing.assert_allclose(value, expected[key], rtol=1e-4, atol=1e-5)
    # PyTorch finds the state under its own names.
    names = dcp.FileSystemReader(tmp_path / name).read_metadata().state_dict_metadata
    assert {"model.embed.weight", "optimizer.param_groups.0.lr", "epoch"} <= set(names)
    state = "exp_avg" if name == "AdamW" else "momentum_buffer"
    assert f"optimizer.state.blocks.0.up.weight.{state}" in names


def tied_saved(folder: Path) -> None:
    model = fully_shard(Tied(), mesh=init_device_mesh("cpu", (2,)))
    whole = Tied()
    lw.save(model, folder / "tied", format="dcp")
    with lw.open(folder / "tied") as t:
        assert [[str(name.path) for name in tie.names] for tie in t.ties] == [["embed.weight", "head.weight"]]
    content = {name: torch.zeros(10, 6) for name in ("embed.weight", "head.weight")}
    dcp.load(content, checkpoint_id=folder / "tied")
    assert all(torch.equal(value, whole.embed.weight) for value in content.values())
    clear(model)
    lw.load(model, folder / "tied")
    assert model.head.weight is model.embed.weight
    assert torch.allclose(model(TOKENS), whole(TOKENS))


def test_ties_are_stored_once(tmp_path: Path) -> None:
    run_ranks(2, tied_saved, tmp_path)
    plain = Tied()
    plain.head.weight = nn.Parameter(torch.zeros(10, 6))
    lw.load(plain, tmp_path / "tied")
    assert plain.head.weight is plain.embed.weight


# -- in the background -------------------------------------------------------------------------------------


def saved_in_the_background(folder: Path, count: int) -> None:
    model = fsdp(Net(), init_device_mesh("cpu", (count,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(4):
        state = filled(model, step)
        saving = lw.save({"model": model, "step": step}, folder / "run", format="dcp", background=True)
        # What happens now does not change what is saved; training uses the process groups meanwhile.
        train(model, optimizer, 1)
        for module in model.modules():
            if hasattr(module, "reshard"):
                module.reshard()
        if step % 2:
            assert saving.wait() == str(folder / "run")
            assert saving.done
            with lw.open(folder / "run") as t:
                assert t["step"] == step
                for name, value in state.items():
                    assert torch.equal(torch.from_numpy(t[f"model.{name}"].numpy()), value), (step, name)
            distributed.barrier()


@COUNTS
def test_a_save_in_the_background_has_the_values_of_its_call(count: int, tmp_path: Path) -> None:
    run_ranks(count, saved_in_the_background, tmp_path, count)
    assert lw.verify(tmp_path / "run").ok
    assert len(list((tmp_path / "run").glob("*.distcp"))) == count, "the files of earlier saves are gone"


# -- copies that differ ------------------------------------------------------------------------------------


def diverging(folder: Path, layout: str, what: str) -> tuple[str, int | None, list[str], float]:
    """Saves a model of which rank 3 has another copy of something. Returns the error, the rank that it names, the
    warnings, and what was saved."""
    if layout == "tensor parallel":
        model = tensor_parallel(even(), init_device_mesh("cpu", (4,)))  # of which the norms are not split
    else:
        names, sizes = {"hybrid": (("copy", "shard"), (2, 2)), "sharded": (("shard",), (4,))}[layout]
        model = fsdp(Net(), init_device_mesh("cpu", sizes, mesh_dim_names=names))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    model(torch.arange(4)[None]).sum().backward()
    optimizer.step()
    weight: Any = model.blocks[0].norm.weight
    changed = {
        "parameter": weight, "state": optimizer.state[weight]["exp_avg"], "buffer": model.scale, "nothing": None
    }[what]  # fmt: skip
    local = changed.to_local() if isinstance(changed, DTensor) else changed
    if distributed.get_rank() == 3 and local is not None and local.numel():
        local.data.view(-1)[-1] += 1.0
    content = {"model": model, "optimizer": optimizer}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            lw.save(content, folder / "run", format="dcp")
            error: Any = None
        except lw.RankError as raised:
            error = raised
            lw.save(content, folder / "run", format="dcp", allow={"diverged"})
    distributed.barrier()
    assert lw.verify(folder / "run").ok
    texts = [str(warning.message) for warning in caught if "copies" in str(warning.message)]
    with lw.open(folder / "run") as saved:
        stored = float(saved["model.blocks.0.norm.weight"].numpy().sum())
    return str(error or ""), getattr(error, "rank", None), texts, stored


@pytest.mark.parametrize("layout", ["hybrid", "tensor parallel"])
@pytest.mark.parametrize("what", ["parameter", "state"])
def test_parameters_whose_copies_have_diverged_are_not_saved(layout: str, what: str, tmp_path: Path) -> None:
    results = run_ranks(4, diverging, tmp_path, layout, what)
    name = "model.blocks.0.norm.weight" if what == "parameter" else "blocks.0.norm.weight.exp_avg"
    for error, rank, _, stored in results:
        assert rank == 3
        assert name in error
        assert 'allow={"diverged"}' in error
        assert stored == pytest.approx(6.0 if layout == "hybrid" else 8.0)  # those of the first rank
    assert [len(texts) for _, _, texts, _ in results] == [1, 0, 0, 0]  # allowed, with a warning on the first rank


@pytest.mark.parametrize("layout", ["hybrid", "sharded", "tensor parallel"])
def test_buffers_that_differ_are_a_warning_and_equal_copies_are_nothing(layout: str, tmp_path: Path) -> None:
    for what, warns in (("buffer", 1), ("nothing", 0)):
        (tmp_path / what).mkdir()
        results = run_ranks(4, diverging, tmp_path / what, layout, what)
        assert [error for error, *_ in results] == [""] * 4
        assert [len(texts) for _, _, texts, _ in results] == [warns, 0, 0, 0]
        assert all("model.scale (rank 3 and rank 0)" in text for _, _, texts, _ in results for text in texts)


def test_values_that_no_other_rank_has_are_not_read_for_a_comparison(tmp_path: Path) -> None:
    assert run_ranks(2, compared_bytes, tmp_path, (2,)) == [0, 0]
    assert min(run_ranks(2, compared_bytes, tmp_path, (2, 1))) > 0


def compared_bytes(folder: Path, sizes: tuple[int, ...]) -> int:
    from leafwise.checkpoint.saving import diverged

    compared: list[int] = []
    diverged._digest = lambda content, part: compared.append(part.value.numel()) or ""  # type: ignore
    model = fsdp(Net(), init_device_mesh("cpu", sizes, mesh_dim_names=("copy", "shard")[-len(sizes) :]))
    del model.scale
    lw.save(model, folder / "run", format="dcp")
    return sum(compared)


# -- faults ------------------------------------------------------------------------------------------------

VICTIM = 1


def killed_while_saving(folder: Path, background: bool, moment: str) -> tuple[str, int | None, float]:
    import leafwise.homes.torch.parallel.signs_of_life as signs_of_life
    from leafwise.checkpoint.saving.joint_save import JointSave
    from leafwise.files.dcp import writer as dcp_writer

    model = fsdp(Net(), init_device_mesh("cpu", (distributed.get_world_size(),)))
    filled(model, 1)
    lw.save({"model": model, "step": 1}, folder / "run", format="dcp")
    filled(model, 2)
    signs_of_life.PATIENCE = 6.0
    if distributed.get_rank() == VICTIM:

        def die(*_: Any, **__: Any) -> Any:
            os.kill(os.getpid(), signal.SIGKILL)

        if moment == "writing":
            dcp_writer.write_items = die
        else:
            JointSave._write_own = die if moment == "before" else then_die(JointSave._write_own, die)  # type: ignore
    start = time.monotonic()
    try:
        saving = lw.save({"model": model, "step": 2}, folder / "run", format="dcp", background=background)
        if not isinstance(saving, str):
            saving.wait()
    except lw.RankError as error:
        return str(error), error.rank, time.monotonic() - start
    return "it was saved", None, 0.0


def then_die(function: Callable[..., Any], die: Callable[..., Any]) -> Callable[..., Any]:
    def both(*arguments: Any) -> None:
        function(*arguments)
        die()

    return both


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no such signal")
@pytest.mark.parametrize(("background", "moment"), [(False, "before"), (True, "writing"), (False, "after")])
def test_if_a_rank_is_killed_the_old_checkpoint_stays(background: bool, moment: str, tmp_path: Path) -> None:
    results = run_ranks(4, killed_while_saving, tmp_path, background, moment, dies=[VICTIM])
    for rank, result in enumerate(results):
        if rank == VICTIM:
            continue
        text, named, seconds = result
        assert re.fullmatch(rf"rank {VICTIM} has given no sign of life for \d+ seconds; .*", text)
        assert named == VICTIM
        assert seconds < 300  # instead of the 600 seconds that gloo waits
    run = tmp_path / "run"
    assert lw.verify(run).ok
    with lw.open(run) as t:
        assert t["step"] == 1
    expected = random_state(Net(), 1)
    plain = Net()
    lw.load({"model": plain, "step": 0}, run)
    assert all(torch.equal(value, expected[name]) for name, value in plain.state_dict().items())
    content = {"model": {name: torch.zeros_like(value) for name, value in expected.items()}}
    load_with_torch(content, run)
    assert all(torch.equal(value, expected[name]) for name, value in content["model"].items())
    # The next save works, and removes what the killed rank has left.
    run_ranks(2, saved_again, run)
    assert len([path for path in run.iterdir() if path.name.endswith((".distcp", ".part"))]) == 2
    with lw.open(run) as t:
        assert t["step"] == 3


def saved_again(run: Path) -> None:
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    lw.save({"model": model, "step": 3}, run, format="dcp")


def first_rank_killed(folder: Path) -> str:
    import leafwise.homes.torch.parallel.signs_of_life as signs_of_life
    from leafwise.files.dcp import writer as dcp_writer

    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    lw.save({"model": model, "step": 1}, folder / "run", format="dcp")
    signs_of_life.PATIENCE = 6.0
    if distributed.get_rank() == 0:
        dcp_writer.finish = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    with pytest.raises(lw.RankError) as raised:
        lw.save({"model": model, "step": 2}, folder / "run", format="dcp")
    assert raised.value.rank == 0
    return str(raised.value)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no such signal")
def test_if_the_first_rank_is_killed_before_the_end_the_others_do_not_wait(tmp_path: Path) -> None:
    said = run_ranks(2, first_rank_killed, tmp_path, dies=[0])[1]
    assert said.startswith("rank 0 has given no sign of life")
    assert lw.verify(tmp_path / "run").ok
    with lw.open(tmp_path / "run") as t:
        assert t["step"] == 1


def failing_on_one_rank(folder: Path, odd: int) -> str:
    from leafwise.files.dcp import writer as dcp_writer

    rank = distributed.get_rank()
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    lw.save({"model": model, "step": 1}, folder / "run", format="dcp")
    real = dcp_writer.write_items
    if rank == odd:

        def full_disk(*_: Any) -> Any:
            raise OSError(28, "No space left on device")

        dcp_writer.write_items = full_disk
    with pytest.raises(lw.Error) as raised:
        lw.save({"model": model, "step": 2}, folder / "run", format="dcp")
    assert isinstance(raised.value, lw.FileError if rank == odd else lw.RankError)
    dcp_writer.write_items = real
    distributed.barrier()
    with lw.open(folder / "run") as t:
        assert t["step"] == 1
    assert len(list((folder / "run").iterdir())) == 4, "nothing of the failed save is left"
    distributed.barrier()
    lw.save({"model": model, "step": 3}, folder / "run", format="dcp")  # the ranks still understand each other
    return str(raised.value)


@pytest.mark.parametrize("odd", [0, 1])
def test_if_a_rank_cannot_write_all_ranks_say_so(odd: int, tmp_path: Path) -> None:
    said = run_ranks(2, failing_on_one_rank, tmp_path, odd)
    assert re.fullmatch(r"cannot write '.*': No space left on device", said[odd])
    assert said[1 - odd] == f"rank {odd} failed: {said[odd]}"
    with lw.open(tmp_path / "run") as t:
        assert t["step"] == 3


def own_folders(folder: Path) -> str:
    rank = distributed.get_rank()
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    mine = folder / str(rank)
    mine.mkdir()
    with pytest.raises(lw.Error) as raised:
        lw.save(model, mine, format="dcp")
    assert not (mine / ".metadata").exists()
    return str(raised.value)


def test_folders_that_the_ranks_do_not_share_are_refused(tmp_path: Path) -> None:
    first, second = run_ranks(2, own_folders, tmp_path)
    assert re.fullmatch(
        r"cannot write '.*/0': the file __1_0-.*\.distcp that rank 1 has written is not there; save to a folder that "
        "all processes share",
        first,
    )
    assert second == f"rank 0 failed: {first}"


def different_runs(folder: Path) -> list[str]:
    rank = distributed.get_rank()
    mesh = init_device_mesh("cpu", (2,))
    model = fsdp(Net(), mesh)
    said = []
    for content in (
        {"model": fsdp(Net(6 + rank), mesh)},
        {"model": model, "step": rank},
        {"model": model, **({"scale": torch.ones(1)} if rank else {})},
    ):
        with pytest.raises(lw.RankError) as raised:
            lw.save(content, folder / "run", format="dcp")
        said.append(str(raised.value))
    assert not (folder / "run").exists()
    return said


def test_ranks_that_save_different_things_are_named_with_the_first_path(tmp_path: Path) -> None:
    first, second = run_ranks(2, different_runs, tmp_path)
    assert first == second
    model, value, further = first
    assert model.startswith(
        "lw.save stopped at model.embed.weight: rank 1 has 11×7 float32, shard(0) over 2 ranks, but"
    )
    assert value.startswith("lw.save stopped at step: rank 1 has 1, but rank 0 has 0; every rank must")
    assert further.startswith("lw.save stopped at scale: rank 1 has scale (1 float32), but rank 0 has nothing more")


def other_verbs(folder: Path) -> list[str]:
    rank = distributed.get_rank()
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    said = []
    for verb in (lw.stats, lw.check, lambda model: lw.clip(model, 1.0), lambda model: lw.load(model, folder / "run")):
        with pytest.raises(lw.RankError) as raised:
            verb(model) if rank else lw.save(model, folder / "run", format="dcp")
        said.append(str(raised.value))
    return said


def test_ranks_that_call_another_verb_are_named(tmp_path: Path) -> None:
    verbs = ("stats", "check", "clip", "load")
    for said in run_ranks(2, other_verbs, tmp_path):
        assert said == [f"rank 1 calls lw.{verb}, but rank 0 calls lw.save" for verb in verbs]


def restored_by_torch(folder: Path, count: int) -> None:
    model = fsdp(Net(), init_device_mesh("cpu", (count,)))
    optimizer = torch.optim.AdamW(lw.groups(model, [lw.no_decay()], lr=0.1), weight_decay=0.1)
    state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    if count == 2:
        train(model, optimizer, 1)
        state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
        lw.save({"model": model, "optimizer": optimizer}, folder / "run", format="dcp")
    else:
        dcp.load(state, checkpoint_id=folder / "run")
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    ours = [full(value) for own in optimizer.state.values() for value in own.values()]
    on_first(lambda: torch.save(ours, folder / f"{count}.pt"))


def test_pytorch_restores_the_groups_of_leafwise_on_other_ranks(tmp_path: Path) -> None:
    run_ranks(2, restored_by_torch, tmp_path, 2)
    run_ranks(3, restored_by_torch, tmp_path, 3)
    saved, loaded = (torch.load(tmp_path / f"{count}.pt") for count in (2, 3))
    assert len(saved) == len(loaded) == 45
    assert all(torch.equal(a, b) for a, b in zip(saved, loaded, strict=True))
    assert max(float(value.abs().max()) for value in loaded) > 0


class LocalMomentum(torch.optim.Optimizer):
    """Computes with the local tensors of parameters, and keeps plain tensors of their shape."""

    def step(self) -> None:  # type: ignore[override]
        for parameter in self.param_groups[0]["params"]:
            self.state[parameter]["momentum"] = parameter.grad.to_local().clone()
            self.state[parameter]["step"] = torch.tensor(1.0)


def state_of_parts(folder: Path) -> str:
    # All parts have the same shape, so nothing else shows that the state of each rank is another one.
    model = fully_shard(nn.Linear(8, 16), mesh=init_device_mesh("cpu", (2,)))
    optimizer = LocalMomentum(model.parameters(), {})
    model(torch.ones(8)).sum().backward()
    optimizer.step()
    with pytest.raises(lw.WalkError) as raised:
        lw.save({"model": model, "optimizer": optimizer}, folder / "run", format="dcp")
    assert not (folder / "run").exists()
    return str(raised.value)


def test_state_that_is_local_but_not_sharded_is_refused(tmp_path: Path) -> None:
    for said in run_ranks(2, state_of_parts, tmp_path):
        assert said.startswith("cannot save optimizer.state.model.weight.momentum: it belongs to the part of a sharded")


def test_a_missing_shard_and_one_from_another_save_are_named(tmp_path: Path) -> None:
    run_ranks(2, saved_again, tmp_path / "one")
    run_ranks(2, saved_again, tmp_path / "two")
    (file,) = (tmp_path / "one").glob("__1_0-*.distcp")
    (other,) = (tmp_path / "two").glob("__1_0-*.distcp")
    data = file.read_bytes()
    file.write_bytes(other.read_bytes())
    with pytest.raises(lw.ChecksumError, match=rf"{file.name}.* does not belong to this checkpoint"):
        lw.load(Net(), lw.open(tmp_path / "one")["model"])
    file.unlink()
    with pytest.raises(lw.FileError, match=rf"1 of its 2 data files is missing: {file.name}"):
        lw.open(tmp_path / "one")
    file.write_bytes(data)
    assert lw.verify(tmp_path / "one").ok
