"""Loading checkpoints into sharded models, on real ranks. The truth is `full_tensor()`, and PyTorch itself."""

import functools
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.distributed.models import Net, fsdp, sharded_models, tensor_parallel
from tests.distributed.ranks import run_ranks
from tests.files.test_remote import RangeServer, _Handler
from torch import distributed, nn
from torch.distributed import checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import leafwise as lw
from leafwise.files.sources.source import LocalSource

COUNTS = pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
TOKENS = torch.arange(8).view(2, 4)


def full(value: Any) -> torch.Tensor:
    return value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()  # type: ignore[no-any-return]


def on_first(action: Callable[[], Any]) -> None:
    """Does something on rank 0, for which the others wait."""
    if distributed.get_rank() == 0:
        action()
    distributed.barrier()


def random_state(model: nn.Module, seed: int = 1) -> dict[str, torch.Tensor]:
    """New values for a model, the same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(value.shape, generator=generator) * 100).to(value.dtype)
        for name, value in model.state_dict().items()
    }


def clear(model: nn.Module) -> None:
    with torch.no_grad():
        for value in model.state_dict().values():
            value.zero_()


def check_equal(model: nn.Module, state: dict[str, torch.Tensor], where: object = "") -> None:
    values = {name: full(value) for name, value in model.state_dict().items()}
    assert values.keys() == state.keys()
    for name, value in values.items():
        assert torch.equal(value, state[name]), (where, name)


# -- every source ------------------------------------------------------------------------------------------


def loaded_from_everything(count: int, folder: Path, url: str) -> int:
    loads = 0
    for number, (name, model) in enumerate(sharded_models(count).items()):
        state = random_state(model)
        here = folder / f"{count}-{number}"

        def write(here: Path = here, state: dict[str, torch.Tensor] = state) -> None:
            here.mkdir()
            lw.save(state, here / "one.safetensors")
            (here / "shards").mkdir()
            lw.save(state, here / "shards" / "many.safetensors", shard_size=200)
            lw.save(state, here / "folder", format="dcp")
            torch.save(state, here / "model.pt")
            np.savez_compressed(here / "packed.npz", **{key: value.numpy() for key, value in state.items()})

        on_first(write)
        sources: list[Any] = [here / "one.safetensors", here / "shards", here / "folder", here / "model.pt"]
        sources += [here / "packed.npz", f"{url}/{count}-{number}/one.safetensors", f"{url}/{count}-{number}/model.pt"]
        sources += [state, lw.open(here / "one.safetensors")]
        for source in sources:
            pointers = [leaf.local.data_ptr() for leaf in lw.tree(model)]
            clear(model)
            assert lw.load(model, source) is model
            check_equal(model, state, (name, source))
            assert [leaf.local.data_ptr() for leaf in lw.tree(model)] == pointers, "values are written in place"
            loads += 1
        if name == "by hand":
            continue  # PyTorch itself cannot save strided shards that consist of several pieces
        # Pieces that other ranks wrote, with PyTorch's own writer.
        dcp.save(model.state_dict(), checkpoint_id=here / "pieces")
        clear(model)
        lw.load(model, here / "pieces")
        check_equal(model, state, name)
    return loads


@COUNTS
def test_any_source_loads_into_models_that_are_sharded_in_any_way(count: int, tmp_path: Path) -> None:
    server = RangeServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        loads = run_ranks(count, loaded_from_everything, count, tmp_path, f"http://127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
    assert min(loads) >= 27


def cast_and_renamed() -> None:
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    state = random_state(model)
    halves = {f"module.{name}": value.bfloat16() for name, value in state.items()}
    with pytest.raises(lw.LoadError, match="pass cast=True"):
        lw.load(model, halves)
    lw.load(model, halves, cast=True)
    check_equal(model, {name: value.bfloat16().float() for name, value in state.items()})
    huge = {name: value.double() for name, value in state.items()}
    huge["blocks.1.up.weight"][9, 0] = 1e300  # only the last rank has this row
    before = {name: full(value).clone() for name, value in model.state_dict().items()}
    with pytest.raises(lw.Error, match=r"blocks\.1\.up\.weight") as raised:
        lw.load(model, huge, cast=True)
    assert isinstance(raised.value, lw.LoadError if distributed.get_rank() == 1 else lw.RankError)
    check_equal(model, before)


def test_values_are_cast_and_renamed_part_by_part() -> None:
    run_ranks(2, cast_and_renamed)


# -- only what a rank needs --------------------------------------------------------------------------------


class Counted:
    """Counts the bytes that this process reads from files."""

    def __init__(self) -> None:
        self.bytes = 0
        self._lock = threading.Lock()

    def __enter__(self) -> "Counted":
        self._read, self._read_into = LocalSource._read, LocalSource.read_into

        def read(source: LocalSource, start: int, stop: int) -> Any:
            self.add(stop - start)
            return self._read(source, start, stop)

        def read_into(source: LocalSource, start: int, view: memoryview) -> None:
            self.add(len(view))
            self._read_into(source, start, view)

        LocalSource._read, LocalSource.read_into = read, read_into  # type: ignore[method-assign]
        return self

    def add(self, count: int) -> None:
        with self._lock:
            self.bytes += count

    def __exit__(self, *_: object) -> None:
        LocalSource._read, LocalSource.read_into = self._read, self._read_into  # type: ignore[method-assign]


def bytes_read(folder: Path, on_meta: bool) -> list[float]:
    mesh = init_device_mesh("cpu", (4,))
    with torch.device("meta" if on_meta else "cpu"):
        model = fully_shard(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(2)]), mesh=mesh)

    def write() -> None:
        torch.manual_seed(0)
        whole = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(2)])
        lw.save(whole, folder / "model.safetensors")
        lw.save(whole, folder / "folder", format="dcp")
        lw.save(whole, folder / "more.safetensors", shard_size="5MB")

    on_first(write)
    read = []
    for source in ("model.safetensors", "folder", "more.safetensors.index.json"):
        for verify in (True, False):
            if on_meta:
                with torch.device("meta"):
                    model = fully_shard(nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(2)]), mesh=mesh)
            with Counted() as counted:
                lw.load(model, folder / source, verify=verify)
            local = sum(leaf.local.nbytes for leaf in lw.tree(model))
            assert local == sum(leaf.local.untyped_storage().nbytes() for leaf in lw.tree(model))
            read.append(counted.bytes / local)
    expected = load_whole(folder / "model.safetensors")
    check_equal(model, expected)
    return read


def load_whole(path: Path) -> dict[str, torch.Tensor]:
    with lw.open(path) as t:
        return {str(name): torch.from_numpy(leaf.numpy().copy()) for name, leaf in t.items()}


@pytest.mark.parametrize("on_meta", [False, True])
def test_each_rank_reads_only_its_parts(on_meta: bool, tmp_path: Path) -> None:
    for ratios in run_ranks(4, bytes_read, tmp_path, on_meta):
        for number, ratio in enumerate(ratios):
            # Verifying reads everything once more, and small leaves to the end of their chunk.
            assert 0.9 <= ratio <= (2.6 if number % 2 == 0 else 1.1), ratios


# -- models on meta ----------------------------------------------------------------------------------------


def filled_from_meta(count: int, folder: Path) -> None:
    mesh = init_device_mesh("cpu", (count,))
    torch.manual_seed(3)
    whole = Net()
    path = folder / "model.safetensors"
    on_first(lambda: lw.save(whole, path))
    with torch.device("meta"):
        model = fsdp(Net(), mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    plan = lw.plan(model, path)
    assert plan.holds
    lw.load({"model": model, "optimizer": optimizer}, lw.tree({"model": whole}), allow={"missing"})
    assert all(type(new) is type(old) for new, old in zip(model.parameters(), parameters, strict=True))
    assert [id(value) for value in optimizer.param_groups[0]["params"]] == [id(value) for value in model.parameters()]
    check_equal(model, whole.state_dict())
    whole_optimizer = torch.optim.AdamW(whole.parameters(), lr=0.1)
    for _ in range(3):
        loss, expected = model(TOKENS).square().mean(), whole(TOKENS).square().mean()
        assert torch.allclose(loss, expected)
        loss.backward()
        expected.backward()
        for step in (optimizer, whole_optimizer):
            step.step()
            step.zero_grad()
    for value, other in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(full(value), other.detach())
    with torch.device("meta"):
        other_model = tensor_parallel(Net(), mesh)
    lw.load(other_model, path)
    check_equal(other_model, load_whole(path))


@COUNTS
def test_a_model_on_meta_is_filled_shard_by_shard_and_trains(count: int, tmp_path: Path) -> None:
    run_ranks(count, filled_from_meta, count, tmp_path)


# -- optimizers --------------------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda model: torch.optim.AdamW(lw.groups(model, [lw.no_decay()]), lr=0.05, amsgrad=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.05),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        model(TOKENS).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def resumed(count: int, folder: Path) -> None:
    for name, make in OPTIMIZERS.items():
        whole = Net()
        whole_optimizer = make(whole)
        train(whole, whole_optimizer, 2)
        path = folder / f"{name}.safetensors"
        content = {"model": whole, "optimizer": whole_optimizer, "epoch": 4}
        on_first(lambda path=path, content=content: lw.save(content, path))
        sizes, names = ((2,), ("a",)) if count == 2 else ((2, 2), ("a", "b"))
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        model = fsdp(Net(), mesh)
        optimizer = make(model)
        for stepped in (False, True):
            if stepped:
                train(model, optimizer, 1)
                model.reshard()
            run = {"model": model, "optimizer": optimizer, "epoch": 0}
            lw.load(run, path)
            assert run["epoch"] == 4
            check_equal(model, whole.state_dict(), name)
            ours = list(zip(model.parameters(), whole.parameters(), strict=True))
            for parameter, expected in ours:
                state, other = optimizer.state[parameter], whole_optimizer.state[expected]
                assert list(state) == list(other)
                for key, value in state.items():
                    assert torch.equal(full(value), other[key]), (name, key)
                    assert isinstance(value, DTensor) == (value.dim() > 0), (name, key)
        train(model, optimizer, 2)
        train(whole, whole_optimizer, 2)
        for parameter, expected in zip(model.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(full(parameter), expected.detach())


@COUNTS
def test_optimizer_states_are_restored_by_name_and_training_goes_on(count: int, tmp_path: Path) -> None:
    run_ranks(count, resumed, count, tmp_path)


def refused_states(folder: Path) -> None:
    whole = nn.Linear(4, 6)
    whole_optimizer = torch.optim.Adafactor(whole.parameters())
    whole(torch.ones(1, 4)).sum().backward()
    whole_optimizer.step()
    model = fully_shard(nn.Linear(4, 6), mesh=init_device_mesh("cpu", (2,)))
    optimizer = torch.optim.Adafactor(model.parameters())
    source = {"model": whole, "optimizer": whole_optimizer}
    with pytest.raises(lw.LoadError, match=r"row_var.*call step\(\) once"):
        lw.load({"model": model, "optimizer": optimizer}, source)


def test_state_whose_sharding_is_not_known_is_refused(tmp_path: Path) -> None:
    run_ranks(2, refused_states, tmp_path)


# -- ties --------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.embed = nn.Embedding(10, 6)
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(tokens))  # type: ignore[no-any-return]


def tied(folder: Path) -> None:
    whole = Tied()
    once, copies = folder / "once.safetensors", folder / "copies.pt"

    def write() -> None:
        lw.save(whole, once)
        state = {name: value.clone() for name, value in whole.state_dict().items()}
        torch.save(state, copies)
        state["head.weight"][9, 5] += 1  # only the last rank has this element
        torch.save(state, folder / "different.pt")

    on_first(write)
    for on_meta in (False, True):
        for source in (once, copies):
            with torch.device("meta" if on_meta else "cpu"):
                model = fully_shard(Tied(), mesh=init_device_mesh("cpu", (2,)))
            lw.load(model, source)
            assert model.head.weight is model.embed.weight
            assert torch.equal(full(model.head.weight), whole.head.weight)
            assert torch.allclose(model(TOKENS), whole(TOKENS))
            model.reshard()
    with pytest.raises(lw.Error, match="two different values") as raised:
        lw.load(model, folder / "different.pt")
    assert isinstance(raised.value, lw.LoadError if distributed.get_rank() == 1 else lw.RankError)


def test_ties_inside_a_unit_are_filled_once_and_kept(tmp_path: Path) -> None:
    run_ranks(2, tied, tmp_path)


def tied_after_a_step(folder: Path) -> str:
    whole = Tied()
    on_first(lambda: lw.save(whole, folder / "tied.safetensors"))
    model = Tied()
    model.head.weight = nn.Parameter(torch.zeros(10, 6))
    mesh = init_device_mesh("cpu", (2,))
    for unit in (model.embed, model.head, model):
        fully_shard(unit, mesh=mesh)
    model(TOKENS)  # from now on, FSDP2 uses its own record of the parameters
    before = {name: full(value).clone() for name, value in model.state_dict().items()}
    with pytest.raises(lw.LoadError) as raised:
        lw.load(model, folder / "tied.safetensors")
    check_equal(model, before)
    lw.load(model, folder / "tied.safetensors", ties="ignore")
    torch.testing.assert_close(model(TOKENS), whole(TOKENS))
    return str(raised.value)


def test_ties_are_not_made_in_a_model_that_is_sharded(tmp_path: Path) -> None:
    for said in run_ranks(2, tied_after_a_step, tmp_path):
        assert re.search(
            r"head.weight is tied to embed.weight in the checkpoint, and this tie cannot be restored: cannot tie "
            r'head.weight: it is sharded .*; pass ties="ignore"',
            said,
        )


# -- all or nothing ----------------------------------------------------------------------------------------


def failing_on_one_rank(folder: Path, count: int) -> list[str]:
    rank = distributed.get_rank()
    odd = count - 1
    model = fsdp(Net(), init_device_mesh("cpu", (count,)))
    mine = folder / f"{rank}.safetensors"
    lw.save(random_state(model), mine)
    before = {name: full(value).clone() for name, value in model.state_dict().items()}
    said = []

    def refused(source: Any, kind: type, **options: Any) -> None:
        with pytest.raises(lw.Error) as raised:
            lw.load(model, source, **options)
        assert isinstance(raised.value, kind if rank == odd else lw.RankError), raised.value
        if rank != odd:
            assert raised.value.rank == odd  # type: ignore[attr-defined]
        check_equal(model, before)
        said.append(str(raised.value))

    refused(mine if rank != odd else folder / "nowhere.safetensors", lw.FileError)
    data = bytearray(mine.read_bytes())
    with lw.open(mine) as t:
        nbytes = t["blocks.0.up.weight"].nbytes
    at = data.index(random_state(model)["blocks.0.up.weight"].numpy().tobytes()) + nbytes - 1
    data[at] ^= 1  # only the last rank needs this byte, but every rank compares its chunk
    broken = folder / f"{rank}-broken.safetensors"
    broken.write_bytes(data)
    refused(broken if rank == odd else mine, lw.ChecksumError)
    other = folder / f"{rank}-other.safetensors"
    lw.save({**random_state(model), "extra": torch.ones(1)}, other)
    refused(other if rank == odd else mine, lw.LoadError)
    # Each of these would be possible by itself.
    refused(other if rank == odd else mine, lw.RankError, allow={"unexpected"})
    lw.load(model, mine)
    check_equal(model, random_state(model))
    return said


@COUNTS
def test_if_one_rank_cannot_load_no_rank_is_changed(count: int, tmp_path: Path) -> None:
    results = run_ranks(count, failing_on_one_rank, tmp_path, count)
    missing, damaged, unexpected, different = results[0]
    odd = count - 1
    assert re.fullmatch(rf"rank {odd} failed: cannot open '.*nowhere.safetensors': .*", missing)
    assert re.fullmatch(
        rf"rank {odd} failed: .*-broken.safetensors' at byte .*: blocks.0.up.weight is damaged: .*", damaged
    )
    assert f"rank {odd} failed: cannot load (1 unexpected); nothing was changed" in unexpected
    assert re.match(rf"lw.load stopped at the checkpoint: rank {odd} has ", different)
    assert results[odd][1].endswith("its checksum does not match")


def save_in_every_format(folder: Path, seed: int) -> dict[str, Path]:
    """Checkpoints whose headers do not depend on the values."""
    folder.mkdir()
    state = random_state(Net(), seed)
    paths = {name: folder / name for name in ("one.safetensors", "shards", "dcp", "torch.pt", "torch-dcp", "plain")}
    lw.save(state, paths["one.safetensors"])
    paths["shards"].mkdir()
    lw.save(state, paths["shards"], shard_size="500B")
    lw.save(state, paths["dcp"], format="dcp")
    torch.save(state, paths["torch.pt"])
    dcp.save(state, checkpoint_id=paths["torch-dcp"], no_dist=True)
    paths["plain"] = folder / "plain.safetensors"
    save_file(state, paths["plain"])
    return paths


def other_values_on_one_rank(folder: Path) -> list[str]:
    rank = distributed.get_rank()
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    before = {name: full(value).clone() for name, value in model.state_dict().items()}
    said = []
    for path in save_in_every_format(folder / f"values-{rank}", seed=rank).values():
        for verb in (lw.load, lw.diff, lambda model, path: lw.check(model, against=path)):
            with pytest.raises(lw.RankError) as raised:
                verb(model, path)
            said.append(str(raised.value))
    check_equal(model, before)
    # Copies are not refused, also if each was written by itself.
    for name, path in save_in_every_format(folder / f"copies-{rank}", seed=1).items():
        if name != "torch-dcp":  # PyTorch writes a new identifier for each save
            lw.load(model, path)
            check_equal(model, random_state(model), name)
            assert lw.diff(path, model).same
    return said


def test_ranks_that_find_other_values_under_the_same_path_are_named(tmp_path: Path) -> None:
    first, second = run_ranks(2, other_values_on_one_rank, tmp_path)
    assert first == second
    for text, verb in zip(first, 6 * ["load", "diff", "check"], strict=True):
        assert re.match(rf"lw.{verb} stopped at the checkpoint: rank 1 has .* with checksum .*, but rank 0 has ", text)


def interrupted_on_one_rank(folder: Path) -> str:
    rank = distributed.get_rank()
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    path = folder / f"{rank}.safetensors"
    lw.save(random_state(model), path)
    if rank == 1:
        from leafwise.checkpoint.loading import load_steps

        def interrupted(*_: Any) -> Any:
            raise KeyboardInterrupt

        load_steps.prepare = interrupted
    try:
        lw.load(model, path)
    except lw.RankError as error:
        return str(error)
    except KeyboardInterrupt:
        return "interrupted"
    return "loaded"


def test_if_one_rank_is_interrupted_the_others_do_not_wait(tmp_path: Path) -> None:
    said = run_ranks(2, interrupted_on_one_rank, tmp_path)
    assert said == ["rank 1 failed: it was interrupted", "interrupted"]


def another_model() -> str:
    width = 6 + 2 * distributed.get_rank()
    model = fsdp(Net(width), init_device_mesh("cpu", (2,)))
    with pytest.raises(lw.RankError) as raised:
        lw.load(model, Net(width))
    assert raised.value.path == "embed.weight"
    return str(raised.value)


def test_a_rank_with_another_model_is_named_with_the_first_path() -> None:
    first, second = run_ranks(2, another_model)
    assert first == second
    assert first.startswith(
        "lw.load stopped at embed.weight: rank 1 has 11×8 float32, shard(0) over 2 ranks, but rank 0"
    )


# -- plans -------------------------------------------------------------------------------------------------


def planned_alone(folder: Path) -> None:
    model = fsdp(Net(), init_device_mesh("cpu", (2,)))
    on_first(lambda: lw.save(Net(), folder / "model.safetensors"))
    if distributed.get_rank() == 0:  # the other rank does not take part
        plan = lw.plan(model, folder / "model.safetensors")
        assert (plan.holds, plan.coverage) == (True, 1.0)
        other = lw.plan(model, {"embed.weight": torch.zeros(3, 3)})
        assert "embed.weight is 11×6 in the model but 3×3 in the source" in str(other)
        assert not lw.plan(Net(), model).holds, "a sharded source is refused"


def test_one_rank_plans_without_the_others(tmp_path: Path) -> None:
    run_ranks(2, planned_alone, tmp_path)
