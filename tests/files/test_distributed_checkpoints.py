"""Distributed checkpoints that leafwise writes: PyTorch loads them, and they are always the old or the new, whole."""

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.checkpoint.test_faults import checkpoint, generation
from tests.files.faulty import FailingDisk, crashing, steps_of
from torch import nn
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import leafwise as lw
from leafwise.files.arrays.stored import ITEM_BYTES
from leafwise.files.dcp import writer as dcp_writer
from leafwise.files.dcp.torch_items import tensor_zip, value_zip
from leafwise.files.pickles.pickle_writer import pickled
from leafwise.files.sources import disk as local
from leafwise.files.writing.item_writer import Checkpoint, Item, TiedCopies, stored_arrays
from leafwise.files.writing.writer import FileTransaction

pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is disabled", "ignore:Detected an existing checkpoint"
)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.middle = nn.Linear(4, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.middle(self.embed(x)))
        return result


def run(seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = Tied()
    decayed = {"params": [model.embed.weight, model.middle.weight]}
    optimizer = torch.optim.AdamW([decayed, {"params": [model.middle.bias], "weight_decay": 0.0}], lr=0.01 * seed)
    for _ in range(2):
        model(torch.arange(5)).square().sum().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer, "step": seed, "config": {"a": 1, "b": [1, {"c": "x"}]}}


def files_in(folder: Path) -> list[str]:
    return sorted(name.partition("-")[0] for name in os.listdir(folder))


def test_pytorch_resumes_from_what_leafwise_saved(tmp_path: Path) -> None:
    saved = run(1)
    assert lw.save(saved, tmp_path / "a", format="dcp") == str(tmp_path / "a")
    assert files_in(tmp_path / "a") == [".metadata", "__0_0", "leafwise"]
    other = run(2)
    weights, states = get_state_dict(other["model"], other["optimizer"])
    state = {"model": weights, "optimizer": states, "step": 0, "config": {"a": 0, "b": [0, {"c": ""}]}}
    dcp.load(state, checkpoint_id=tmp_path / "a", no_dist=True)
    set_state_dict(other["model"], other["optimizer"], model_state_dict=weights, optim_state_dict=states)
    assert (state["step"], state["config"]) == (1, saved["config"])
    assert lw.diff(_trained(saved), _trained(other)).same


def _trained(run: dict[str, Any]) -> dict[str, Any]:
    return {"model": run["model"], "optimizer": run["optimizer"]}


def test_pytorch_converts_it_to_one_file(tmp_path: Path) -> None:
    saved = run(1)
    lw.save(saved, tmp_path / "a", format="dcp")
    dcp_to_torch_save(tmp_path / "a", tmp_path / "a.pt")
    state = torch.load(tmp_path / "a.pt")
    weights, states = get_state_dict(saved["model"], saved["optimizer"])
    assert state.keys() == saved.keys()
    assert state["model"].keys() == weights.keys()
    assert all(torch.equal(state["model"][name], value) for name, value in weights.items())
    # The names are there a second time, for optimizers that were given names.
    groups = [{**group, "param_names": group["params"]} for group in states["param_groups"]]
    assert state["optimizer"]["param_groups"] == groups
    assert state["optimizer"]["state"].keys() == states["state"].keys()
    assert state["config"] == saved["config"]


def test_leafwise_loads_it_with_ties_kinds_and_plain_values(tmp_path: Path) -> None:
    saved, other = run(1), run(2)
    lw.save(saved, tmp_path / "a", format="dcp", metadata={"run": "7"})
    with lw.open(tmp_path / "a") as t:
        assert len(t.ties) == 1
        assert t["model.embed.weight"].role == "embedding.table"
        assert t.columns.node_objects[0].metadata == {"run": "7"}
    verified = lw.verify(tmp_path / "a")
    assert (verified.ok, verified.leaves, verified.bound) == (True, 12, 1)
    loaded = lw.load(other, tmp_path / "a")
    assert (loaded["step"], loaded["config"]) == (1, saved["config"])
    assert lw.diff(_trained(saved), _trained(other)).same


def test_a_model_without_a_dict_around_it_has_the_names_of_its_state_dict(tmp_path: Path) -> None:
    model = Tied()
    lw.save(model, tmp_path / "a", format="dcp")
    state = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dcp.load(state, checkpoint_id=tmp_path / "a", no_dist=True)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    dcp_to_torch_save(tmp_path / "a", tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt").keys() == model.state_dict().keys()


def test_every_dtype_and_shape_is_written_as_torch_save_does(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for dtype, itemsize in ITEM_BYTES.items():
        for shape in ((), (3, 2), (0, 4)):
            data = random.integers(0, 2, int(np.prod(shape)) * itemsize, "uint8").tobytes()
            before, after = tensor_zip(shape, dtype)
            (tmp_path / "a.pt").write_bytes(before + data + after)
            tensor = torch.load(tmp_path / "a.pt")
            assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{dtype}", shape)
            if data:
                assert tensor.reshape(-1).view(torch.uint8).numpy().tobytes() == data


def test_a_tensor_of_more_than_four_gigabytes_is_read_by_pytorch(tmp_path: Path) -> None:
    length = (1 << 30) + 17
    before, after = tensor_zip((length,), "float32")
    with (tmp_path / "a.pt").open("wb") as file:  # sparse
        file.write(before)
        file.seek(4 * (length - 1), os.SEEK_CUR)
        file.write(np.float32(3).tobytes() + after)
    tensor = torch.load(tmp_path / "a.pt", mmap=True)
    assert (tensor.shape, tensor[0].item(), tensor[-1].item()) == ((length,), 0, 3)


VALUES = [
    *(None, True, 0, 255, 256, -1, 2**31, -(2**70), 1.5, float("inf"), 1 + 2j, "", "ü\n", b"", b"\xff\0"),
    *([1, [2]], (), (1, "a"), {"a": 1, 3: None}, {1, "b"}, frozenset({2}), [str(number) for number in range(600)] * 2),
]


# Without the values: the order of a set differs between processes, which must agree on the names of tests.
@pytest.mark.parametrize("value", VALUES, ids=[f"{type(value).__name__} {n}" for n, value in enumerate(VALUES)])
def test_plain_values_are_pickled_as_they_are(value: Any, tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(value_zip(value))
    for read in (pickle.loads(pickled(value)), torch.load(tmp_path / "a.pt", weights_only=False)):
        assert (read, type(read)) == (value, type(value))


def test_values_that_cannot_be_pickled_are_only_in_the_record(tmp_path: Path) -> None:
    lw.save({"w": torch.ones(2), "r": range(3), "n": 1}, tmp_path / "a", format="dcp")
    with lw.open(tmp_path / "a") as t:
        assert (t["r"], t["n"]) == (range(3), 1)
    dcp_to_torch_save(tmp_path / "a", tmp_path / "a.pt")
    assert torch.load(tmp_path / "a.pt").keys() == {"w", "n"}


def test_transposed_ties_are_in_the_record_and_copied_on_request(tmp_path: Path) -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    for ties in ("once", "copy"):
        lw.save({"a": weight, "b": weight.T}, tmp_path / ties, format="dcp", ties=ties)  # type: ignore[arg-type]
        with lw.open(tmp_path / ties) as t:
            assert np.array_equal(t["b"].numpy(), weight.T)
    assert len(lw.open(tmp_path / "once").ties) == 1
    state = {"a": torch.zeros(2, 3), "b": torch.zeros(3, 2)}
    dcp.load(state, checkpoint_id=tmp_path / "copy", no_dist=True)
    assert torch.equal(state["b"], weight.T)


def test_a_background_save_has_the_values_of_when_it_began(tmp_path: Path) -> None:
    value = torch.zeros(1000)
    saving = lw.save({"a": value}, tmp_path / "a", format="dcp", background=True)
    value.fill_(1)
    assert saving.wait() == str(tmp_path / "a")
    assert not lw.open(tmp_path / "a")["a"].numpy().any()


def test_it_converts_to_safetensors_and_back_without_a_difference(tmp_path: Path) -> None:
    saved = run(1)
    lw.save(saved, tmp_path / "a", format="dcp")
    for name, options in {"b.safetensors": {}, "c.safetensors": {"shard_size": 300}}.items():
        lw.edit(tmp_path / "a", tmp_path / name, **options)
        assert lw.diff(tmp_path / "a", tmp_path / name).same
        lw.edit(tmp_path / name, tmp_path / f"{name}.dcp", format="dcp")
        assert lw.diff(tmp_path / "a", tmp_path / f"{name}.dcp").same
        other = run(2)
        lw.load(other, tmp_path / f"{name}.dcp")
        assert lw.diff(_trained(saved), _trained(other)).same
        dcp_to_torch_save(tmp_path / f"{name}.dcp", tmp_path / "d.pt")
        assert torch.load(tmp_path / "d.pt")["optimizer"]["state"].keys() == {
            "embed.weight",
            "middle.weight",
            "middle.bias",
        }


@pytest.mark.slow
def test_the_command_line_converts_in_both_directions_without_pytorch(tmp_path: Path) -> None:
    state = {"w": torch.arange(6.0).reshape(2, 3), "half": torch.ones(4, dtype=torch.bfloat16)}
    dcp.save({**state, "step": 3}, checkpoint_id=tmp_path / "a", no_dist=True)
    script = (
        "import sys\nfrom leafwise.cli import main\nstatus = main(sys.argv[1:])\n"
        "assert 'torch' not in sys.modules\nsys.exit(status)"
    )

    def convert(*arguments: str) -> None:
        command = [sys.executable, "-c", script, "convert", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr

    convert("a", "b.safetensors")
    convert("b.safetensors", "c", "--format", "dcp")
    convert("c", "d.safetensors", "--shard-size", "10")
    with lw.open(tmp_path / "d.safetensors") as t:
        assert t["step"] == 3
        assert np.array_equal(t["w"].numpy(), state["w"])
    loaded = {name: torch.zeros_like(value) for name, value in state.items()}
    dcp.load(loaded, checkpoint_id=tmp_path / "c", no_dist=True)
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


def test_a_folder_is_not_converted_into_itself(tmp_path: Path) -> None:
    lw.save({"w": torch.ones(2)}, tmp_path / "a", format="dcp")
    with pytest.raises(lw.FileError, match="is also a source"):
        lw.edit(tmp_path / "a", tmp_path / "a", format="dcp")


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(lw.FileError, match="a distributed checkpoint is a folder, and this is a file"):
        lw.save({"w": torch.ones(2)}, tmp_path / "file", format="dcp")
    with pytest.raises(lw.QueryError, match="shard_size= is for safetensors"):
        lw.save({"w": torch.ones(2)}, tmp_path / "a", format="dcp", shard_size=5)
    with pytest.raises(lw.FileError, match="No such file or directory"):
        lw.save({"w": torch.ones(2)}, tmp_path / "none" / "a", format="dcp")
    with pytest.raises(lw.QueryError, match='format= takes "safetensors", "dcp" or "orbax"'):
        lw.save({"w": torch.ones(2)}, tmp_path / "a", format="npz")  # type: ignore[call-overload]


# -- faults ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["the process dies", "the power goes"])
def test_a_crash_after_any_call_of_a_save_leaves_the_old_or_the_new(
    power: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lw.save(checkpoint(1), tmp_path / "count", format="dcp")
    steps = steps_of(lambda: lw.save(checkpoint(2), tmp_path / "count", format="dcp"), monkeypatch)
    assert steps >= 10
    found = set()
    for stop_at in range(1, steps + 2):
        folder = tmp_path / str(stop_at)
        lw.save(checkpoint(1), folder, format="dcp")
        crashing(lambda folder=folder: lw.save(checkpoint(2), folder, format="dcp"), stop_at, power, monkeypatch)  # type: ignore[misc]
        found.add(generation(folder))
        state = {"a": torch.zeros(30, 4, dtype=torch.int64)}
        dcp.load(state, checkpoint_id=folder, no_dist=True)
        assert state["a"].unique().tolist() == [generation(folder)]
        lw.save(checkpoint(3), folder, format="dcp")
        assert generation(folder) == 3
        assert files_in(folder) == [".metadata", "__0_0", "leafwise"], os.listdir(folder)
    assert found == {1, 2}


def test_every_call_that_fails_is_reported_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    lw.save(checkpoint(1), folder, format="dcp")
    steps = steps_of(lambda: lw.save(checkpoint(1), folder, format="dcp"), monkeypatch)
    told = 0
    for stop_at in range(1, steps + 1):
        with monkeypatch.context() as patched:
            patched.setattr(local, "disk", FailingDisk(stop_at, lambda: OSError(28, "No space left on device")))
            said = ""
            try:
                lw.save(checkpoint(2), folder, format="dcp")
            except lw.FileError as error:
                said = str(error)
                told += 1
        assert not said or "No space left on device" in said
        assert generation(folder) in (1, 2)
        assert not [name for name in os.listdir(folder) if name.endswith(".part")]
        lw.save(checkpoint(1), folder, format="dcp")
        assert files_in(folder) == [".metadata", "__0_0", "leafwise"]
    assert told >= steps - 4


def test_a_save_that_never_finished_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = steps_of(lambda: lw.save(checkpoint(1), tmp_path / "count", format="dcp"), monkeypatch)
    seen = set()
    for stop_at in range(2, steps):
        folder = tmp_path / str(stop_at)
        crashing(lambda folder=folder: lw.save(checkpoint(1), folder, format="dcp"), stop_at, False, monkeypatch)  # type: ignore[misc]
        if (folder / ".metadata").exists() or not os.listdir(folder):
            continue
        with pytest.raises(lw.FileError, match=r"is not complete: .* but not '\.metadata', which") as e:
            lw.open(folder)
        seen.add("unfinished files" in str(e.value))
    assert seen == {True, False}


def test_a_checkpoint_of_pytorch_is_replaced_and_its_files_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    dcp.save({"w": torch.ones(2)}, checkpoint_id=folder, no_dist=True)
    (folder / "notes.txt").write_text("mine")
    lw.save({"w": torch.zeros(2)}, folder, format="dcp")
    assert files_in(folder) == [".metadata", "__0_0", "leafwise", "notes.txt"]
    assert lw.open(folder)["w"].numpy().tolist() == [0, 0]


def test_a_checkpoint_that_pytorch_wrote_over_ours_is_read_as_it_is(tmp_path: Path) -> None:
    lw.save({"w": torch.zeros(2)}, tmp_path / "a", format="dcp")
    dcp.save({"w": torch.ones(2)}, checkpoint_id=tmp_path / "a", no_dist=True)
    with lw.open(tmp_path / "a") as t:
        assert t["w"].numpy().tolist() == [1, 1]


def test_an_open_checkpoint_stays_readable_while_it_is_replaced(tmp_path: Path) -> None:
    lw.save({"w": torch.zeros(2)}, tmp_path / "a", format="dcp")
    with lw.open(tmp_path / "a") as t:
        lw.save({"w": torch.ones(2)}, tmp_path / "a", format="dcp")
        assert t["w"].numpy().tolist() == [0, 0]


def test_files_of_another_save_and_missing_files_are_named(tmp_path: Path) -> None:
    for name in "ab":
        lw.save({"w": torch.ones(2)}, tmp_path / name, format="dcp")
    (data,) = (tmp_path / "a").glob("*.distcp")
    (other,) = (tmp_path / "b").glob("*.distcp")
    content = data.read_bytes()
    shutil.copy(other, data)
    with pytest.raises(lw.ChecksumError, match=rf"{data.name}.* does not belong to this checkpoint"):
        lw.open(tmp_path / "a")
    data.write_bytes(content[:-1])
    with pytest.raises(lw.FileError, match=r"the file should have .* bytes and has"):
        lw.open(tmp_path / "a")
    data.unlink()
    with pytest.raises(lw.FileError, match=rf"1 of its 1 data files is missing: {data.name}"):
        lw.open(tmp_path / "a")
    data.write_bytes(content)
    (record,) = (tmp_path / "a").glob("*.json")
    record.rename(tmp_path / "elsewhere.json")
    with pytest.raises(lw.FileError, match=f"{record.name} is missing, in which lw.save recorded the checksums"):
        lw.open(tmp_path / "a")


@pytest.mark.slow
def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    lw.save({"w": torch.arange(40.0), "n": 7}, tmp_path / "a", format="dcp")
    (record,) = (tmp_path / "a").glob("*.json")
    (data,) = (tmp_path / "a").glob("*.distcp")
    places = {record: range(0, record.stat().st_size, 7), data: range(0, data.stat().st_size, 3)}
    places[tmp_path / "a" / ".metadata"] = range(0, (tmp_path / "a" / ".metadata").stat().st_size, 7)
    for path, offsets in places.items():
        good = path.read_bytes()
        for offset in offsets:
            damaged = bytearray(good)
            damaged[offset] ^= 1 << offset % 8
            path.write_bytes(damaged)
            with pytest.raises(lw.FileError):
                lw.verify(tmp_path / "a")
        path.write_bytes(good)
    assert lw.verify(tmp_path / "a").ok


def test_damage_between_the_arrays_is_named_and_does_not_keep_leafwise_from_reading(tmp_path: Path) -> None:
    lw.save({"w": torch.arange(40.0), "n": 1234567}, tmp_path / "a", format="dcp")
    (data,) = (tmp_path / "a").glob("*.distcp")
    good = data.read_bytes()
    at = good.index((1234567).to_bytes(4, "little"))  # what PyTorch would read as n
    data.write_bytes(good[:at] + b"\x01" + good[at + 1 :])
    with pytest.raises(lw.ChecksumError, match=f"{data.name}' is damaged between its arrays, where PyTorch reads"):
        lw.verify(tmp_path / "a")
    assert lw.open(tmp_path / "a")["n"] == 1234567
    assert lw.verify(lw.open(tmp_path / "a").select("w")).leaves == 1


# -- several processes -----------------------------------------------------------------------------------------


def test_several_processes_write_one_checkpoint_by_a_plan(tmp_path: Path) -> None:
    """What three processes would do, one after another."""
    whole = np.arange(70, dtype="float32").reshape(7, 10)
    cuts = [slice(0, 3), slice(3, 3), slice(3, 7)]

    def item(rank: int) -> Item:
        part = np.ascontiguousarray(whole[cuts[rank]])
        return Item("model.w", part.shape, "float32", "p", (None, None), lambda: [part.tobytes()])

    def boxes(name: str) -> list[dcp_writer.PlannedBox]:
        return [
            dcp_writer.PlannedBox(rank, (cut.start, 0), (cut.stop - cut.start, 10)) for rank, cut in enumerate(cuts)
        ]

    folder = str(tmp_path)
    first = Checkpoint([item(0)._replace(shape=whole.shape)], [], [], {"step": 3}, {}, {}, {})
    plan = dcp_writer.make_plan(first, boxes)
    assert plan.ranks == [0, 1, 2]
    written = []
    for rank in plan.ranks:
        name = os.path.join(folder, dcp_writer.data_name(rank, plan.save))
        with FileTransaction(dcp_writer.staged_name(rank)) as transaction:
            items = {"model.w": [item(rank)]}
            output = transaction.open(name)
            written.append(
                dcp_writer.write_rank(
                    plan, rank, items, output, TiedCopies(first), stored_arrays([]), lambda count: None
                )
            )
    with pytest.raises(lw.FileError, match="not complete"):
        lw.open(tmp_path)
    with (
        pytest.raises(lw.FileError, match="not all of its parts were written"),
        dcp_writer.ending(plan, first, folder) as transaction,
    ):
        dcp_writer.finish(plan, written[:-1], first, transaction, folder)
    with dcp_writer.ending(plan, first, folder) as transaction:
        dcp_writer.finish(plan, written, first, transaction, folder)
    assert lw.verify(tmp_path).ok
    with lw.open(tmp_path) as t:
        assert np.array_equal(t["model.w"].numpy(), whole)
        assert t["step"] == 3
    state = {"model.w": torch.zeros(7, 10), "step": 0}
    dcp.load(state, checkpoint_id=tmp_path, no_dist=True)
    assert np.array_equal(state["model.w"], whole)
    assert state["step"] == 3
