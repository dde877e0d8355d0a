"""`lw.save` writes files that others can read: ties once, views without their base, shards, also in the background."""

import enum
import gc
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from tests.checkpoint.models import Tied, run, train
from tests.interrupts import interrupting
from torch import nn

import leafwise as lw
from leafwise.checkpoint.saving.background import BackgroundSave
from leafwise.files import record
from leafwise.files.writing import checkpoint_writer


def arrays(path: Any) -> dict[str, Any]:
    with lw.open(path) as t:
        return {str(p): leaf.numpy().copy() for p, leaf in t.items()}


def test_other_libraries_read_what_was_saved(tmp_path: Path) -> None:
    model = Tied()
    path = lw.save(model, tmp_path / "a.safetensors", metadata={"author": "me"})
    state = model.state_dict()
    loaded = load_file(path)
    assert loaded.keys() == state.keys() - {"head.weight"}
    assert all(torch.equal(value, state[name]) for name, value in loaded.items())
    with safe_open(path, "np") as file:
        assert file.metadata()["author"] == "me"
        assert file.metadata()["format"] == "pt"


def test_the_tree_of_the_file_is_the_tree_of_the_model(tmp_path: Path) -> None:
    model = Tied()
    path = lw.save(model, tmp_path / "a.safetensors")
    live, rest = lw.tree(model), lw.open(path)
    for leaf in live:
        if leaf.persistent:
            there = rest[leaf.path]
            assert (there.shape, there.dtype, there.kind) == (leaf.shape, leaf.dtype, leaf.kind)
            assert (there.role, there.axes) == (leaf.role, leaf.axes)
    (tie,) = rest.ties
    assert [(str(name.path), name.role) for name in tie.names] == [
        ("embed.weight", "embedding.table"),
        ("head.weight", "linear.weight"),
    ]
    norms = lw.where(role="norm.*")
    assert rest.select(norms).counts.leaves == live.select(norms).counts.leaves > 2
    assert rest.counts.buffers == live.counts.buffers - 3  # without the non-persistent scratch
    assert "scratch" not in rest


def test_transposed_and_sliced_ties_are_stored_once(tmp_path: Path) -> None:
    model: Any = nn.Module()
    model.qkv, model.q, model.t = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(12, 4)
    lw.tie(model, "q.weight", to="qkv.weight", slice=slice(0, 4), keep="source")
    lw.tie(model, "t.weight", to="qkv.weight", transpose=True, keep="source")
    path = lw.save(model, tmp_path / "a.safetensors")
    assert sorted(load_file(path)) == ["q.bias", "qkv.bias", "qkv.weight", "t.bias"]
    saved = lw.open(path)
    assert np.array_equal(saved["q.weight"].numpy(), model.qkv.weight[:4].detach().numpy())
    assert np.array_equal(saved["t.weight"].numpy(), model.qkv.weight.T.detach().numpy())
    assert {str(name.path): str(name.op) for name in saved.ties[0].names} == {
        "qkv.weight": "same",
        "q.weight": "view",
        "t.weight": "transpose",
    }


def test_every_name_is_written_if_asked(tmp_path: Path) -> None:
    path = lw.save(Tied(), tmp_path / "a.safetensors", ties="copy")
    assert "head.weight" in load_file(path)
    with lw.open(path) as tree:  # the file has two arrays, although their values were one
        assert (tree["head.weight"].names[1:], tree.counts.leaves) == ((), 9)
    other = Tied(tied=False)
    lw.load(other, path)
    assert other.head.weight is other.embed.weight


def test_only_what_a_view_shows_is_saved(tmp_path: Path) -> None:
    big = torch.randn(1000, 100)
    for value in (big[:2], big[:, 3], big.T[:3, ::2], big[5:6].expand(3, 100), torch.randn(3).conj(), big[0, 0]):
        path = lw.save({"a": value}, tmp_path / "a.safetensors")
        assert os.path.getsize(path) < 400 + value.numel() * 8
        assert torch.equal(load_file(path)["a"], value)


def test_views_that_no_slice_describes_are_written_one_by_one(tmp_path: Path) -> None:
    flat = torch.arange(12.0)
    state = {"flat": flat, "w1": flat[:6].view(2, 3), "w2": flat[6:].view(2, 3), "d": flat.view(3, 4).diagonal()}
    path = lw.save(state, tmp_path / "a.safetensors")
    with lw.open(path) as t:
        for name, value in state.items():
            assert np.array_equal(t[name].numpy(), value.numpy()), name


@pytest.mark.parametrize(
    "dtype",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "float8_e4m3fn",
        "float8_e5m2",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint64",
        "uint32",
        "uint16",
        "uint8",
        "bool",
        "complex64",
    ],
)
def test_every_dtype_comes_back_bit_by_bit(dtype: str, tmp_path: Path) -> None:
    values = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    target = {
        "a": torch.zeros_like(values),
        "empty": torch.ones(0, 3).to(values.dtype),
        "b": torch.zeros_like(values).T,
    }
    path = lw.save({"a": values, "empty": target["empty"], "b": values.T}, tmp_path / "a.safetensors")
    lw.load(target, path)
    assert torch.equal(target["a"], values)
    assert torch.equal(target["b"], values.T)


def test_arrays_of_numpy_in_any_order_are_saved(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    state = {
        "fortran": np.asfortranarray(values),
        "big": values.astype(">f4"),
        "back": values[::-1, ::-1],
        "scalar": np.array(3.0),
        "bf": values.astype(ml_dtypes.bfloat16),
    }
    saved = arrays(lw.save(state, tmp_path / "a.safetensors"))
    assert all(np.array_equal(saved[name], value) for name, value in state.items())


def test_dtype_casts_parameters_and_leaves_state(tmp_path: Path) -> None:
    a = run()
    train(a, 1)
    both = {"model": a["model"], "optimizer": a["optimizer"]}
    path = lw.save(both, tmp_path / "a.safetensors", dtype=torch.bfloat16)  # type: ignore[arg-type]
    with lw.open(path) as t:
        assert t["model.body.weight"].dtype == "bfloat16"
        assert t["model.norm.num_batches_tracked"].dtype == "int64"
        assert t["optimizer.state.model.body.weight.exp_avg"].dtype == "float32"


def test_only_saves_the_leaves_that_match(tmp_path: Path) -> None:
    path = lw.save(run(), tmp_path / "a.safetensors", where="model.head.*")
    assert list(load_file(path)) == ["model.head.weight"]
    assert lw.open(path).select("**").scalars == {}
    with pytest.raises(lw.QueryError, match=r"no leaf matches where='nothing'"):
        lw.save(run(), tmp_path / "b.safetensors", where="nothing")
    assert not (tmp_path / "b.safetensors").exists()


def test_names_that_are_saved_without_the_first_one_stay_tied(tmp_path: Path) -> None:
    model: Any = nn.Module()
    model.first = nn.Parameter(torch.arange(6.0).reshape(2, 3))
    model.second = model.third = model.first
    model.register_buffer("turned", model.first.detach().T)
    with lw.open(lw.save(model, tmp_path / "a.safetensors", where="{second,third,turned}")) as tree:
        [tie] = tree.ties
        assert [f"{name.path}{name.op.describe()}" for name in tie.names] == ["second", "third", "turned.T"]
        assert tree["turned"].numpy().tolist() == [[0, 3], [1, 4], [2, 5]]


def test_plain_values_are_saved_beside_arrays(tmp_path: Path) -> None:
    values = {
        "int": 7, "big": 1 << 100, "float": 0.1, "nan": float("nan"), "inf": -float("inf"), "text": 'é"\\\n',
        "none": None,
        "yes": True, "bytes": b"\0\xff", "complex": 1 + 2j, "list": [1, 2.5, None], "tuple": (1, "a"), "empty": [],
        "numpy": np.float32(0.5), "nested": {"a": {"b": [1, {"c": 3}]}},
    }  # fmt: skip
    saved = lw.open(lw.save(values, tmp_path / "a.safetensors"))
    for name, value in values.items():
        if name == "nan":
            assert saved[name] != saved[name]
        elif name == "nested":
            assert saved["nested.a.b.1.c"] == 3
        elif name != "empty":
            assert saved[name] == value
            assert type(saved[name]) is type(value) or name == "numpy"


class Word(str, enum.Enum):  # noqa: UP042
    A = "x"


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Word.A, "v"),
        ([10**5000], "v"),
        (object(), "v"),
        ({1, (2, object())}, "v"),
        (lambda: 1, "v"),
        ({"inner": [1, object()]}, "v.inner.1"),
        (np.ma.array([1, 2], mask=[0, 1]), "v"),
        (np.array(["a"]), "v"),
        (np.array([1], "datetime64[s]"), "v"),
        (torch.ones(2, dtype=torch.complex128), "v"),
        (torch.ones(2, device="meta"), "v"),
        (torch.eye(2).to_sparse(), "v"),
        (nn.LazyLinear(2), "v.weight"),
    ],
)
@pytest.mark.parametrize("background", [False, True])
def test_what_cannot_be_saved_is_named(value: Any, path: str, background: bool, tmp_path: Path) -> None:
    def save() -> None:
        saving = lw.save({"w": torch.ones(2), "v": value}, tmp_path / "a.safetensors", background=background)
        saving.wait()

    with pytest.raises(lw.Error, match=rf"cannot save {path}\b"):
        save()
    assert os.listdir(tmp_path) == []


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")
def test_packed_weights_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(4, 4)), {nn.Linear}, torch.qint8)
    with pytest.raises(lw.WalkError, match=r"keeps its weights packed"):
        lw.save(packed, tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == []


def test_a_container_that_holds_itself_is_not_saved(tmp_path: Path) -> None:
    circle: dict[str, Any] = {"w": torch.ones(2)}
    circle["again"] = {"up": [circle]}
    deep: list[Any] = [torch.ones(1)]
    deep.append(deep)
    for value, place in ((circle, "again.up.0"), ({"deep": deep}, "deep.1")):
        with pytest.raises(lw.WalkError, match=rf"cannot save {place}: it is (the root|deep), which contains it"):
            lw.save(value, tmp_path / "a.safetensors")
    shared = nn.Linear(2, 2)
    lw.save({"a": shared, "b": {"c": shared}}, tmp_path / "a.safetensors")  # twice, but not a cycle
    assert len(lw.ties(lw.open(tmp_path / "a.safetensors"))) == 2


def test_shards_have_the_index_of_hugging_face(tmp_path: Path) -> None:
    index = lw.save(Tied(), tmp_path / "model.safetensors", shard_size=200)
    said = json.loads(Path(index).read_text("utf-8"))
    assert said["metadata"]["total_size"] == sum(value.nbytes for value in arrays(index).values())
    files = set(said["weight_map"].values())
    assert len(files) > 1
    for name in files:
        for key in load_file(tmp_path / name):
            assert said["weight_map"][key] == name
    for way in (index, tmp_path, tmp_path / "model.safetensors"):
        assert str(lw.open(way).ties[0].leaf.path) == "embed.weight"
    lw.save(Tied(), tmp_path / "model.safetensors")
    assert os.listdir(tmp_path) == ["model.safetensors"]
    lw.save(Tied(), index, shard_size=200)
    assert "model.safetensors" not in os.listdir(tmp_path)


def test_a_header_that_would_be_too_long_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_writer, "MAX_HEADER", 2_000)
    state = {f"name.{number}": torch.full((1,), float(number)) for number in range(40)}
    index = lw.save(state, tmp_path / "a.safetensors")
    assert index.endswith(".index.json")
    assert lw.verify(index).leaves == 40
    for shard in tmp_path.glob("*-of-*"):
        assert int.from_bytes(shard.read_bytes()[:8], "little") < 2_500
    target = {name: torch.zeros(1) for name in state}
    assert lw.load(target, index) == state


def test_a_save_to_a_folder_takes_the_file_name_of_hugging_face(tmp_path: Path) -> None:
    assert lw.save(Tied(), tmp_path) == str(tmp_path / "model.safetensors")


# -- in the background -------------------------------------------------------------------------------------


def test_later_steps_do_not_leak_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = run()
    train(a, 2)
    expected = arrays(lw.save(a, tmp_path / "now.safetensors"))
    go = threading.Event()
    write = checkpoint_writer.write

    def waiting(*arguments: Any) -> str:
        go.wait()
        return write(*arguments)

    monkeypatch.setattr(checkpoint_writer, "write", waiting)
    saving = lw.save(a, tmp_path / "later.safetensors", background=True)
    train(a, 3)
    assert not saving.done
    assert "saving" in repr(saving)
    go.set()
    path = saving.wait()
    assert saving.done
    found = arrays(path)
    assert all(np.array_equal(found[name], value) for name, value in expected.items())
    assert lw.open(path)["step"] == 2


def test_errors_surface_at_wait_and_at_the_next_save(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "a.safetensors"
    saving = lw.save(Tied(), missing, background=True)
    with pytest.raises(lw.FileError, match=r"No such file"):
        saving.wait()
    assert "failed" in repr(saving)
    lw.save(Tied(), missing, background=True)
    with pytest.raises(lw.FileError, match=r"No such file"):
        lw.save(Tied(), tmp_path / "b.safetensors")
    assert lw.save(Tied(), tmp_path / "b.safetensors")


@pytest.mark.slow
def test_the_end_of_a_process_waits_for_saves_and_reports_errors(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np, leafwise as lw\n"
        "lw.save({'a': np.ones(3_000_000)}, sys.argv[1] + '/a.safetensors', background=True)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True)
    assert lw.verify(tmp_path / "a.safetensors").leaves == 1
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "no")], capture_output=True, encoding="utf-8")
    assert "was not saved: cannot write" in done.stderr


def test_saves_keep_their_order(tmp_path: Path) -> None:
    for number in range(5):
        lw.save({"n": number, "a": np.full(10, number)}, tmp_path / "a.safetensors", background=True)
    lw.save({"n": 5, "a": np.full(10, 5)}, tmp_path / "a.safetensors")
    assert lw.open(tmp_path / "a.safetensors")["n"] == 5


@pytest.mark.slow
def test_a_save_takes_a_bounded_amount_of_memory(tmp_path: Path) -> None:
    """Measures, in a separate process, the memory that a save needs beyond the model, even if it must copy."""
    script = """
import sys, numpy, torch, leafwise as lw
def peak():
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
lw.save({"a": torch.ones(3), "b": torch.ones(999, 999).T}, sys.argv[1], dtype="bfloat16")  # loads what is needed
state = {"a": torch.ones(32 << 20), "b": torch.ones(8 << 10, 4 << 10).T}
before = peak()
lw.save(state, sys.argv[1])
lw.save(state, sys.argv[1], dtype="bfloat16")
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.safetensors")], capture_output=True, encoding="utf-8"
    )
    assert int(done.stdout) < 64_000_000, done.stderr
    gc.collect()


def test_an_interrupt_while_waiting_does_not_end_the_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an interrupt, `Thread.join` returns at once in Python 3.11 and 3.12, as if the thread had ended."""
    may_go_on, write = threading.Event(), checkpoint_writer.write

    def slowly(*args: Any, **options: Any) -> str:
        interrupt(inside=BackgroundSave.wait)
        assert may_go_on.wait(120)
        return write(*args, **options)

    monkeypatch.setattr(checkpoint_writer, "write", slowly)
    with interrupting() as interrupt:
        saving = lw.save({"a": torch.ones(10)}, tmp_path / "a.safetensors", background=True)
        with pytest.raises(KeyboardInterrupt):
            saving.wait()
    assert not saving.done
    timer = threading.Timer(0.5, may_go_on.set)
    timer.start()
    assert lw.verify(saving.wait()).ok
    assert saving.done
    timer.join()


def test_several_threads_may_save_in_the_background(tmp_path: Path) -> None:
    wrong: list[BaseException] = []

    def saves(thread: int) -> None:
        try:
            for number in range(12):
                model = nn.Linear(8, 8)
                path = tmp_path / f"{thread}-{number}.safetensors"
                saving = lw.save(model, path, background=True)
                if number % 3 == 0:
                    saving.wait()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=saves, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lw.save(nn.Linear(1, 1), tmp_path / "last.safetensors")  # which waits for all of them
    assert wrong == []
    assert len(list(tmp_path.glob("*.safetensors"))) == 6 * 12 + 1


def test_a_save_whose_thread_cannot_start_does_not_stop_later_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", cannot)
        with pytest.raises(RuntimeError, match="can't start"):
            lw.save(nn.Linear(1, 1), tmp_path / "a.safetensors", background=True)
    assert lw.save(nn.Linear(1, 1), tmp_path / "b.safetensors", background=True).wait()
    assert lw.save(nn.Linear(1, 1), tmp_path / "c.safetensors")


def test_a_forked_child_does_not_wait_for_a_save_that_is_not_its_own(tmp_path: Path) -> None:
    saving = lw.save({"a": torch.ones(10)}, tmp_path / "a.safetensors", background=True)
    saving.wait()
    saving._process -= 1  # as in a child
    with pytest.raises(lw.FileError, match=r"from which this process was forked"):
        saving.wait()
    assert not saving.done


@pytest.mark.parametrize(("column", "reason"), [("kinds", "cannot be read back"), ("scalars", "has the wrong names")])
def test_a_new_file_that_cannot_be_read_does_not_replace_the_old_one(
    column: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lw.save({"w": torch.ones(2), "step": 1}, tmp_path / "a.safetensors")
    text_of = record.text_of
    empty: dict[str, Any] = {"kinds": "??", "scalars": {}}
    monkeypatch.setattr(record, "text_of", lambda **columns: text_of(**{**columns, column: empty[column]}))
    with pytest.raises(lw.FileError, match=reason):
        lw.save({"w": torch.zeros(2), "step": 2}, path)
    with lw.open(path) as tree:
        assert (tree["step"], tree["w"].numpy().tolist()) == (1, [1, 1])
