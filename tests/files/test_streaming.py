"""Arrays of files are streamed into new checkpoints by several threads: the same bytes whatever their number."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.files.faulty import FailingDisk, crashing, steps_of
from tests.files.streams import checkpoint_of, item_of, stored, stream
from tests.long import short_or_long

import leafwise as lw
from leafwise.core.memory.ops import SAME
from leafwise.files.arrays.computed import Combined
from leafwise.files.arrays.ranges import boxes, fill_range
from leafwise.files.arrays.stored import InMemory, Storage, Stored, Strided, spec_of
from leafwise.files.casts import CastArray
from leafwise.files.sources import disk as local
from leafwise.files.sources.disk import Disk
from leafwise.files.sources.source import BytesSource
from leafwise.files.writing import checkpoint_writer

CHUNK = 1 << 20


class Short(InMemory):
    def whole(self) -> Any:
        return np.zeros((1, 3), np.float32)


def tensors(seed: int = 0) -> dict[str, torch.Tensor]:
    """Some are shorter than a chunk, some end inside one, some have no elements."""
    torch.manual_seed(seed)
    return {
        "large": torch.randn(500_001),
        "half": torch.randn(3, 200, 1_001).to(torch.bfloat16),
        "small": torch.randn(5, 7),
        "scalar": torch.tensor(seed + 0.5),
        "empty": torch.zeros(0, 4),
        "whole": torch.arange(1_000) + seed,
        "exact": torch.randn(512, 512).double(),
    }


def leafwise_file(path: Path, seed: int = 0) -> str:
    return lw.save(tensors(seed), path.with_suffix(".safetensors"))


def plain_file(path: Path, seed: int = 0) -> str:
    save_file(tensors(seed), path.with_suffix(".safetensors"))
    return str(path.with_suffix(".safetensors"))


def zip_file(path: Path, seed: int = 0) -> str:
    torch.save(tensors(seed), path.with_suffix(".pt"))
    return str(path.with_suffix(".pt"))


def deflated_file(path: Path, seed: int = 0) -> str:
    arrays = {name: tensor.float().numpy() for name, tensor in tensors(seed).items()}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    return str(path.with_suffix(".npz"))


WRITERS = [leafwise_file, plain_file, zip_file, deflated_file]


def tidy(folder: Path) -> bool:
    return not [name for name in os.listdir(folder) if name.endswith(".part")]


# -- the values ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("shard_size", [None, 3_000_000], ids=["one file", "shards"])
@pytest.mark.parametrize("writer", WRITERS)
def test_arrays_of_every_format_arrive_unchanged_with_checksums(
    writer: Any, shard_size: int | None, tmp_path: Path
) -> None:
    counted: list[int] = []
    with lw.open(writer(tmp_path / "a")) as t:
        path = stream(stored(t), tmp_path / "b.safetensors", shard_size, counted.append)
        assert sum(counted) == sum(leaf.nbytes for leaf in t)
        expected = {str(leaf.path): leaf.numpy() for leaf in t}
    verified = lw.verify(path)
    assert verified.ok
    assert verified.bytes == sum(counted)
    with lw.open(path) as copy:
        assert {str(leaf.path) for leaf in copy} == expected.keys()
        for leaf in copy:
            assert leaf.numpy().tobytes() == expected[str(leaf.path)].tobytes(), leaf.path
            assert (leaf.shape, leaf.dtype) == (expected[str(leaf.path)].shape, expected[str(leaf.path)].dtype.name)


def test_other_programs_read_what_was_streamed(tmp_path: Path) -> None:
    with lw.open(zip_file(tmp_path / "a")) as t:
        path = stream(stored(t), tmp_path / "b.safetensors")
    for name, tensor in load_file(path).items():
        assert torch.equal(tensor, tensors()[name]), name


@pytest.mark.slow
@pytest.mark.parametrize("writer", WRITERS)
def test_the_file_has_the_same_bytes_for_any_number_of_threads(
    writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = []
    with lw.open(writer(tmp_path / "a")) as t:
        for threads in (1, 2, 7):
            monkeypatch.setattr("leafwise.core.work.threads.THREADS", threads)
            files.append(Path(stream(stored(t), tmp_path / f"{threads}.safetensors")).read_bytes())
    assert files[0] == files[1] == files[2]


def test_the_file_has_the_same_bytes_as_a_save(tmp_path: Path) -> None:
    arrays = {name: tensor.numpy() for name, tensor in tensors().items() if tensor.dtype != torch.bfloat16}
    source = lw.save(arrays, tmp_path / "a.safetensors")
    with lw.open(source) as t:
        saved = Path(lw.save(t, tmp_path / "b.safetensors")).read_bytes()
        items = [item_of(name, array)._replace(kind="s") for name, array in stored(t).items()]
        path = checkpoint_writer.write(
            checkpoint_of({}, items=items), str(tmp_path / "c.safetensors"), None, lambda count: None
        )
    data = Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    begin_of_saved = 8 + int.from_bytes(saved[:8], "little")
    assert data[begin:] == saved[begin_of_saved:]


def test_ranges_are_the_bytes_of_the_array() -> None:
    for shape in [(), (1,), (7,), (3, 4), (2, 3, 4), (1, 5, 1, 2), (4, 1, 3)]:
        values = np.arange(int(np.prod(shape)), dtype=np.int16).reshape(shape)
        array = InMemory(spec_of(shape, "int16"), lambda values=values: values)
        for start in range(values.size + 1):
            for stop in range(start, values.size + 1):
                assert len(list(boxes(shape, start, stop))) <= 2 * len(shape) + 1
                room = bytearray(2 * (stop - start))
                fill_range(array, 2 * start, memoryview(room))
                assert bytes(room) == values.tobytes()[2 * start : 2 * stop]


def test_transposed_and_cut_arrays_are_streamed_in_their_order(tmp_path: Path) -> None:
    wide = torch.arange(3_000_000, dtype=torch.float32).reshape(1_000, 3_000)
    views = {"turned": wide.t(), "cut": wide[:, 5:2_001], "cube": wide.reshape(20, 50, 3_000).permute(2, 0, 1)}
    torch.save(views, tmp_path / "a.pt")
    with lw.open(tmp_path / "a.pt") as t:
        path = stream(stored(t), tmp_path / "b.safetensors")
    for name, tensor in load_file(path).items():
        assert torch.equal(tensor, views[name]), name


def test_an_array_that_is_decoded_as_a_whole_is_streamed(tmp_path: Path) -> None:
    values = np.arange(3_000_000, dtype=np.float32).reshape(3, 1_000, 1_000)
    array = InMemory(spec_of(values.shape, "float32"), lambda: values)
    path = stream({"a": array, "b": CastArray(array, "float64")}, tmp_path / "b.safetensors")
    with lw.open(path) as t:
        assert np.array_equal(t["a"].numpy(), values)
        assert np.array_equal(t["b"].numpy(), values.astype(np.float64))


def test_arrays_in_memory_and_in_files_share_a_checkpoint_and_its_ties(tmp_path: Path) -> None:
    with lw.open(leafwise_file(tmp_path / "a")) as t:
        arrays = stored(t)
        live = np.arange(400_000, dtype=np.float32)
        items = [item_of(name, array) for name, array in arrays.items()]
        items.insert(1, checkpoint_writer.Item("live", live.shape, "float32", "p", (None, None), lambda: [live]))
        # A copy of a tied leaf, from the bytes that were written for the leaf.
        items.append(items[0]._replace(name="copy", array=None))
        items.append(items[0]._replace(name="other copy"))
        ties = [("copy", "large", SAME), ("other copy", "large", SAME)]
        path = checkpoint_writer.write(
            checkpoint_of({}, items=items, ties=ties, tie_roles=[(None, None)] * 2),
            str(tmp_path / "b.safetensors"),
            None,
            lambda count: None,
        )
    lw.verify(path)
    loaded = load_file(path)
    assert torch.equal(loaded["live"], torch.from_numpy(live))
    assert all(torch.equal(loaded[name], tensors()["large"]) for name in ("large", "copy", "other copy"))


def test_an_array_of_another_shape_than_announced_is_refused(tmp_path: Path) -> None:
    array = InMemory(spec_of((2, 3), "float32"), lambda: np.zeros((2, 3), np.float32))
    item = item_of("a", array)._replace(shape=(3, 2))
    with pytest.raises(
        lw.FileError, match=r"cannot write 'a': it should be float32 of shape \(3, 2\) but is .*\(2, 3\)"
    ):
        checkpoint_writer.write(checkpoint_of({}, items=[item]), str(tmp_path / "b"), None, lambda count: None)
    short = Short(spec_of((2, 3), "float32"), lambda: None)
    with pytest.raises(lw.FileError, match=r"cannot write a: it should have 24 bytes but has 12"):
        stream({"a": short}, tmp_path / "b.safetensors")
    assert os.listdir(tmp_path) == []


# -- arithmetic and casts --------------------------------------------------------------------------------------


@pytest.fixture
def four(tmp_path: Path) -> Iterator[list[dict[str, Stored]]]:
    """The arrays of four files, of different formats."""
    trees = [lw.open(writer(tmp_path / f"{seed}", seed)) for seed, writer in enumerate(WRITERS)]
    yield [stored(tree) for tree in trees]
    for tree in trees:
        tree.close()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_weighted_sums_are_those_of_float64_rounded_once(
    dtype: str, four: list[dict[str, Stored]], tmp_path: Path
) -> None:
    weights = [0.5, 0.25, -1.5, 0.1]
    names = [name for name in four[0] if name != "whole"]
    sums = {name: Combined([arrays[name] for arrays in four], weights, dtype) for name in names}
    path = stream(sums, tmp_path / "out.safetensors")
    lw.verify(path)
    with lw.open(path) as t:
        for name in names:
            total = sum(w * arrays[name].read().astype(np.float64) for w, arrays in zip(weights, four, strict=True))
            expected = _rounded_once(np.asarray(total), dtype)
            assert np.array_equal(t[name].numpy(), expected), name


def _rounded_once(total: Any, dtype: str) -> Any:
    """Rounded to 16 bits by comparing with both neighbors, in float64."""
    wanted = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    near = total.astype(np.float32).astype(wanted) if wanted.itemsize == 2 else total.astype(wanted)
    if wanted.itemsize > 2 or not total.size:
        return near
    bits = np.atleast_1d(near).view(np.uint16)
    candidates = np.stack([bits - 1, bits, bits + 1])
    distances = np.abs(candidates.view(wanted).astype(np.float64) - total)
    distances[np.isnan(distances)] = np.inf
    tied = distances == distances.min(0)
    best = np.where(tied, candidates % 2, 2).argmin(0)  # of two neighbors at the same distance, the even one
    return np.take_along_axis(candidates, best[None], 0)[0].view(wanted).reshape(total.shape)


def test_a_part_of_a_sum_can_be_read(four: list[dict[str, Stored]]) -> None:
    inputs = [arrays["half"] for arrays in four]
    whole = Combined(inputs, [1, 1, 1, 1], "float32").read()
    assert np.array_equal(Combined(inputs, [1, 1, 1, 1], "float32").read((1, slice(3, 40, 5))), whole[1, 3:40:5])


def test_complex_numbers_are_combined_part_by_part(tmp_path: Path) -> None:
    a = np.array([1 + 2j, np.inf + 1j, complex(0, np.nan)], np.complex64)
    b = np.array([3 - 1j, 1 + 1j, 1 + 1j], np.complex128)
    inputs = [InMemory(spec_of((3,), array.dtype.name), lambda array=array: array) for array in (a, b)]
    found = Combined(inputs, [2.0, 1.0], "complex64").read()
    assert np.array_equal(found.view(np.float32), np.array([5, 3, np.inf, 3, 1, np.nan], np.float32), equal_nan=True)


def test_integers_are_not_combined() -> None:
    array = InMemory(spec_of((2,), "int32"), lambda: np.zeros(2, np.int32))
    with pytest.raises(lw.WriteError, match="cannot combine arrays of int32"):
        Combined([array], [1.0], "float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float64"])
def test_casts_while_streaming_are_those_of_a_save(dtype: str, tmp_path: Path) -> None:
    path = leafwise_file(tmp_path / "a")
    with lw.open(path) as t:
        arrays = {
            name: array if array.spec.dtype == "int64" else CastArray(array, dtype) for name, array in stored(t).items()
        }
        streamed = stream(arrays, tmp_path / "b.safetensors")
    saved = lw.save(tensors(), tmp_path / "c.safetensors", dtype=dtype)
    assert lw.diff(saved, streamed).same


@pytest.mark.parametrize("kind", ["cast", "sum"])
def test_a_value_that_does_not_fit_names_the_leaf_and_nothing_is_written(kind: str, tmp_path: Path) -> None:
    path = lw.save({"a": torch.zeros(700_000), "b.c": torch.full((700_000,), 7e4)}, tmp_path / "a.safetensors")
    (tmp_path / "out.safetensors").write_bytes(b"old")
    with lw.open(path) as t:

        def made(array: Stored, saturate: bool) -> Stored:
            if kind == "cast":
                return CastArray(array, "float16", saturate)
            return Combined([array, array], [0.5, 0.5], "float16", saturate=saturate)

        with pytest.raises(
            lw.WriteError, match=r'cannot write b\.c: some values do not fit into float16.*70000.*; cast="saturate"'
        ):
            stream({name: made(array, False) for name, array in stored(t).items()}, tmp_path / "out.safetensors")
        assert (tmp_path / "out.safetensors").read_bytes() == b"old"
        assert tidy(tmp_path)
        stream({name: made(array, True) for name, array in stored(t).items()}, tmp_path / "out.safetensors")
    assert load_file(tmp_path / "out.safetensors")["b.c"].unique().tolist() == [65504]


# -- sources that are damaged, or change -------------------------------------------------------------------------


def flip(path: str, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(at, os.SEEK_SET if at >= 0 else os.SEEK_END)
        file.write(bytes([byte ^ 4]))


def damaged(path: str, name: str) -> None:
    """Flips a bit in the last byte of an array."""
    with lw.open(path) as t:
        [storage] = stored(t)[name].storages()
        at = storage.start + storage.nbytes - 1
    flip(path, at)


@pytest.mark.parametrize("way", ["copy", "cast", "sum", "part"])
@pytest.mark.parametrize("writer", [leafwise_file, zip_file])
def test_a_damaged_source_is_named_and_nothing_is_written(writer: Any, way: str, tmp_path: Path) -> None:
    path = writer(tmp_path / "a")
    damaged(path, "half")
    (tmp_path / "out.safetensors").write_bytes(b"old")

    def made(array: Stored) -> Stored:
        if way == "cast":
            return CastArray(array, "float32")
        if way == "sum":
            return Combined([array, CastArray(array, "float64")], [1, 1], "float32")
        return FirstRow(array) if way == "part" else array

    with lw.open(path) as t:
        arrays = {name: made(array) if name == "half" else array for name, array in stored(t).items()}
        with pytest.raises(lw.ChecksumError, match=r"half is damaged: its checksum does not match") as error:
            stream(arrays, tmp_path / "out.safetensors")
        assert error.value.leaves == ("half",)
    assert (tmp_path / "out.safetensors").read_bytes() == b"old"
    assert tidy(tmp_path)


class FirstRow(Stored):
    """A part of an array, like the results of recipes."""

    def __init__(self, inner: Stored) -> None:
        super().__init__(spec_of((inner.spec.shape or ())[1:], inner.spec.dtype))
        self.inner = inner

    def read(self, index: Any = ()) -> Any:
        return self.inner.read((0, *(index if isinstance(index, tuple) else (index,))))

    def storages(self) -> list[Any]:
        return self.inner.storages()


def test_a_damaged_compressed_source_is_an_error(tmp_path: Path) -> None:
    path = deflated_file(tmp_path / "a")
    with lw.open(path) as t:
        sizes = os.path.getsize(path)
        flip(path, sizes // 3)
        with pytest.raises(lw.FileError, match=r"damaged|was changed"):
            stream(stored(t), tmp_path / "out.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["a.npz"]


class Disturbed(Disk):
    """Does something to a file at its fifth read."""

    def __init__(self, disturb: Any) -> None:
        self.disturb, self.reads = disturb, 0

    def read_into(self, file: int, start: int, view: memoryview) -> int:
        self.reads += 1
        if self.reads == 5:
            self.disturb()
        return super().read_into(file, start, view)


@pytest.mark.parametrize("writer", [leafwise_file, plain_file, zip_file])
def test_a_source_that_is_changed_or_cut_off_while_it_is_read_is_refused(
    writer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "out.safetensors").write_bytes(b"old")
    path = writer(tmp_path / "a")

    def change() -> None:
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(last)  # the same bytes; only the time says so
        os.utime(path, ns=(1, 1))

    for disturb, said in [(change, "was changed while"), (lambda: os.truncate(path, 3_000_000), "shorter than when")]:
        writer(tmp_path / "a")
        with lw.open(path) as t, monkeypatch.context() as patched:
            patched.setattr(local, "disk", Disturbed(disturb))
            with pytest.raises(lw.FileError, match=said):
                stream(stored(t), tmp_path / "out.safetensors")
        assert (tmp_path / "out.safetensors").read_bytes() == b"old"
        assert tidy(tmp_path)


# -- a disk that fails, a process that is interrupted or killed --------------------------------------------------


def generation(number: int) -> dict[str, Stored]:
    """Every value is the number of the generation, so that a mixture is visible. More than one task."""
    arrays = {"a": np.full((30, 40), number), "b.c": np.full(140_000, number), "d": np.full(7, number)}
    sources = {name: BytesSource(name, array.tobytes()) for name, array in arrays.items()}
    return {
        name: Strided(spec_of(arrays[name].shape, "int64"), Storage(source, 0, source.size))
        for name, source in sources.items()
    }


def generation_of(path: Path) -> int:
    lw.verify(path)
    with lw.open(path) as t:
        found = {int(value) for leaf in t for value in np.unique(leaf.numpy())}
    assert len(found) == 1, found
    return found.pop()


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True], ids=["the process dies", "the power goes"])
@pytest.mark.parametrize(
    ("shard_size", "threads"), [(None, 1), (None, 2), (1_000_000, 2)], ids=["one thread", "two threads", "shards"]
)
def test_a_crash_after_any_call_leaves_the_old_or_the_new(
    shard_size: int | None, threads: int, power: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leafwise.core.work.threads.THREADS", threads)
    new = generation(2)
    stream(generation(1), tmp_path / "count.safetensors", shard_size)
    steps = steps_of(lambda: stream(new, tmp_path / "count.safetensors", shard_size), monkeypatch)
    assert steps >= 8
    found = set()
    for stop_at in range(1, steps + 2):
        path = tmp_path / str(stop_at) / "model.safetensors"
        path.parent.mkdir()
        stream(generation(1), path, shard_size)
        crashing(lambda path=path: stream(new, path, shard_size), stop_at, power, monkeypatch)  # type: ignore[misc]
        found.add(generation_of(path))
        stream(generation(3), path, shard_size)
        assert generation_of(path) == 3
        assert tidy(path.parent)
    assert found == {1, 2}


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("shard_size", [None, 1_000_000], ids=["one file", "shards"])
def test_every_call_that_fails_is_reported_and_leaves_the_old_file(
    shard_size: int | None, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.safetensors"
    stream(generation(1), path, shard_size)
    steps = steps_of(lambda: stream(generation(1), path, shard_size), monkeypatch)
    reported = 0
    for stop_at in range(1, steps + 1):
        message = ""
        with monkeypatch.context() as patched:
            patched.setattr(local, "disk", FailingDisk(stop_at, lambda: OSError(number, os.strerror(number))))
            try:
                stream(generation(2), path, shard_size)
            except lw.FileError as error:
                message = str(error)
                reported += 1
        assert not message or (message.startswith("cannot write ") and message.endswith(os.strerror(number)))
        assert generation_of(path) in (1, 2)
        assert tidy(tmp_path)
        stream(generation(1), path, shard_size)
    assert reported >= steps - 4  # only the removal of old files may fail silently


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Disk):
        room = 3_000_000

        def write_at(self, file: int, data: Any, start: int) -> None:
            self.room -= memoryview(data).nbytes
            if self.room < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            super().write_at(file, data, start)

    (tmp_path / "out.safetensors").write_bytes(b"old")
    with lw.open(plain_file(tmp_path / "a")) as t, monkeypatch.context() as patched:
        patched.setattr(local, "disk", Full())
        with pytest.raises(lw.FileError, match=r"cannot write .*out\.safetensors'?: No space left on device$"):
            stream(stored(t), tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == b"old"
    assert tidy(tmp_path)


def test_writes_and_reads_that_stop_early_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    with lw.open(plain_file(tmp_path / "a")) as t:
        expected = Path(stream(stored(t), tmp_path / "b.safetensors")).read_bytes()
        monkeypatch.setattr(os, "pwrite", lambda file, data, start: pwrite(file, data[:300_001], start))
        monkeypatch.setattr(os, "preadv", lambda file, views, start: preadv(file, [views[0][:400_001]], start))
        assert Path(stream(stored(t), tmp_path / "c.safetensors")).read_bytes() == expected


def test_an_interrupt_leaves_the_old_file_and_no_thread_behind(tmp_path: Path) -> None:
    (tmp_path / "out.safetensors").write_bytes(b"old")
    before = set(threading.enumerate())
    with lw.open(plain_file(tmp_path / "a")) as t, pytest.raises(KeyboardInterrupt):
        stream(stored(t), tmp_path / "out.safetensors", None, lambda count: signal.raise_signal(signal.SIGINT))
    assert set(threading.enumerate()) <= before
    assert (tmp_path / "out.safetensors").read_bytes() == b"old"
    assert tidy(tmp_path)


@pytest.mark.slow
def test_a_stream_that_is_killed_leaves_a_whole_file(tmp_path: Path) -> None:
    script = """
    import itertools, os, pytest, random, sys
    from pathlib import Path
    from tests.files.faulty import killed_after, steps_of
    from tests.files.streams import stream
    from tests.files.test_streaming import generation, generation_of
    from tests.long import SEED
    path = Path(sys.argv[1], "model.safetensors")
    random.seed(SEED)
    steps = max(steps_of(lambda: stream(generation(0), path, size), pytest.MonkeyPatch()) for size in (1_000_000, None))
    for turn in range(int(sys.argv[2])):
        numbers = itertools.count(1000 * turn + 1)
        moment = int(random.random() ** 2 * 3 * steps)  # in any part of three streams
        killed_after(moment, lambda: stream(generation(next(numbers)), path, None if turn % 2 else 1_000_000))
        generation_of(path)
    stream(generation(-1), path)
    assert generation_of(path) == -1
    assert os.listdir(path.parent) == ["model.safetensors"], os.listdir(path.parent)
    """
    run(script, tmp_path, short_or_long(10, 100))


def run(script: str, *arguments: Any) -> str:
    root = str(Path(__file__).parents[2])
    source = f"import sys; sys.path.insert(0, {root!r})\n" + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", source, *map(str, arguments)], capture_output=True, encoding="utf-8", timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("way", ["copy", "transpose", "sum", "cast"])
def test_memory_does_not_grow_with_the_leaf(way: str, tmp_path: Path) -> None:
    """One leaf of 256 MiB. NumPy alone takes about 30 MB."""
    script = """
    import os, sys
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])  # each thread has buffers of its own
    from leafwise.files.arrays.stored import Storage, Strided, spec_of
    from leafwise.files.casts import CastArray
    from leafwise.files.writing.checkpoint_writer import Checkpoint, Item, write
    from leafwise.files.arrays.computed import Combined
    from leafwise.files.sources.source import LocalSource

    path, way = sys.argv[1:]
    rows, columns = 8_192, 16_384
    with open(path, "wb") as file:
        file.truncate(rows * columns * 2)  # a file without content takes no room on the disk
    storage = Storage(LocalSource(path), 0, rows * columns * 2)
    array = Strided(spec_of((rows, columns), "bfloat16"), storage)
    if way == "transpose":
        array = Strided(spec_of((columns, rows), "bfloat16"), storage, 0, (2, columns * 2))
    if way == "sum":
        array = Combined([array] * 4, [0.25] * 4, "bfloat16")
    if way == "cast":
        array = CastArray(array, "float16")
    item = Item("w", array.spec.shape, array.spec.dtype, "p", (None, None), array=array)
    write(Checkpoint([item], [], [], {}, {}, {}, {}), path + ".safetensors", None, lambda count: None)
    # Not getrusage, which counts the memory of the process that started this one.
    print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])
    """
    if not os.path.exists("/proc/self/status"):
        pytest.skip("this system does not say how much memory a process used")
    assert int(run(script, tmp_path / "a", way)) < 190_000
