"""Saves of tensors that threads copy out of a device through buffers. Without a GPU, tensors on the CPU are copied out
in the same way."""

import errno
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.files.faulty import FailingDisk, steps_of
from tests.interrupts import interrupting
from tests.kernels.gpu import DEVICE
from tests.long import short_or_long
from torch import nn

import leafwise as lw
from leafwise.core.capabilities.saving import Part
from leafwise.core.memory import madvise
from leafwise.core.work.threads import _SharedWork
from leafwise.files.formats.safetensors import CODES
from leafwise.files.sources import disk as local
from leafwise.files.writing import live_arrays, writer
from leafwise.homes.torch.gpu import extraction
from leafwise.homes.torch.gpu.pinned import PinnedPool

DTYPES = [name for name in CODES if hasattr(torch, name)]
FLOATS = [name for name in DTYPES if name.startswith(("float", "bfloat"))]


@pytest.fixture(autouse=True)
def _as_if_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extraction, "EXTRACTED", frozenset({DEVICE.type}))
    monkeypatch.setattr(extraction, "BUFFER", 1 << 21)  # so that small tensors have several parts


def plain(source: Any, path: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> str:
    """Saves without copying out."""
    with monkeypatch.context() as patched:
        patched.setattr(extraction, "EXTRACTED", frozenset())
        saved: str = lw.save(source, path, **options)
        return saved


def every_kind() -> dict[str, torch.Tensor]:
    """Tensors of every dtype and layout."""
    torch.manual_seed(0)
    mixed = {
        "large": torch.randn(1500, 1001),
        "bfloat16": torch.randn(900, 1003).bfloat16(),
        "double": torch.randn(400, 401, dtype=torch.float64),
        "transposed": torch.randn(1000, 1501).T,
        "strided": torch.randn(500, 3000)[3::2, 1::3],
        "three axes": torch.randn(40, 90, 300).permute(2, 0, 1),
        "expanded": torch.randn(7, 1).expand(7, 90_000),
        "channels last": torch.randn(4, 30, 64, 64).to(memory_format=torch.channels_last),
        "conj": torch.randn(300_001, dtype=torch.complex64).conj(),
        "conj turned": torch.randn(30, 40, dtype=torch.complex64).conj().T,
        "neg": torch.randn(300, dtype=torch.complex64).conj().imag,
        "bool": torch.rand(1000) > 0.5,
        "number": torch.tensor(3.0),
        "empty": torch.empty(0, 5),
        "one": torch.randn(4, 4)[1:2, 1:2],
        "odd strides": torch.randn(100).as_strided((1, 1), (7, 13), 5),
    }
    for name in DTYPES:
        dtype = getattr(torch, name)
        mixed[name] = torch.rand(9, 4).to(dtype).T if name in FLOATS else torch.arange(50).to(dtype)
        mixed[f"{name} again"] = torch.arange(20).to(torch.float32).to(dtype)
    return {name: _moved(value) for name, value in mixed.items()}


def _moved(value: torch.Tensor) -> torch.Tensor:
    """The tensor on the device, with the same strides."""
    moved = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE)
    if DEVICE.type == "cpu" or value.is_conj() or value.is_neg() or 0 in value.stride():
        return value.to(DEVICE)
    return moved.copy_(value)


OPTIONS: dict[str, dict[str, Any]] = {
    "one file": {},
    "shards": {"shard_size": "3MB"},
    "a selection": {"where": "*l*"},
    "metadata": {"metadata": {"author": "me"}},
    **{f"as {name}": {"dtype": name, "cast": "saturate"} for name in FLOATS},
}


def contents(folder: Path) -> list[bytes]:
    """The bytes of all files in a folder but the index, whose file names are random."""
    return [path.read_bytes() for path in sorted(folder.glob("*.safetensors"), key=lambda path: path.name[-22:])]


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_the_file_has_the_same_bytes(options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = every_kind()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    lw.verify(lw.save(values, tmp_path / "a" / "model.safetensors", **options))
    plain(values, tmp_path / "b" / "model.safetensors", monkeypatch, **options)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_tied_names_are_stored_once_or_with_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.ModuleDict({"a": nn.Linear(40, 40), "b": nn.Linear(40, 40)}).to(DEVICE)
    net["b"].weight = net["a"].weight
    net.register_buffer("turned", net["a"].weight.detach().T)
    for ties in ("once", "copy"):
        first = lw.save(net, tmp_path / "a.safetensors", ties=ties)  # type: ignore[call-overload]
        second = plain(net, tmp_path / "b.safetensors", monkeypatch, ties=ties)
        assert Path(first).read_bytes() == Path(second).read_bytes()


def test_an_optimizer_and_arrays_of_other_homes_are_saved_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = nn.Sequential(nn.Linear(300, 300), nn.Linear(300, 300)).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.ones(2, 300, device=DEVICE)).sum().backward()
    optimizer.step()
    run = {"net": net, "optimizer": optimizer, "array": np.arange(6.0), "step": 3, "cpu": torch.ones(3)}
    first = lw.save(run, tmp_path / "a.safetensors")
    assert Path(first).read_bytes() == Path(plain(run, tmp_path / "b.safetensors", monkeypatch)).read_bytes()


def test_tensors_on_the_cpu_are_copied_with_those_of_a_device() -> None:
    """An optimizer has its step counts on the CPU, between states that are on the GPU."""
    pool = extraction.pinned_pool(torch.device("cpu"), 2, 1 << 16)
    assert pool is not None
    pool.device = torch.device("cuda:0")  # so that the tensors below are on another device than the pool's
    values = [torch.tensor(3.0), torch.arange(6.0).reshape(2, 3).T, torch.randn(4, dtype=torch.complex64).conj()]
    with extraction.TorchExtraction(pool).copied([Part(value, 0, value.nbytes) for value in values]) as view:
        assert bytes(view) == b"".join(value.resolve_conj().contiguous().numpy().tobytes() for value in values)
    made = extraction.extractions([torch.zeros(3, device=DEVICE), torch.zeros(2), torch.zeros(0)])
    assert made[0] is not None
    assert made[0] is made[1] is made[2]


@pytest.mark.parametrize("background", [False, True])
def test_a_save_works_in_inference_mode_and_with_another_default_device(background: bool, tmp_path: Path) -> None:
    values = {"a": torch.arange(5.0, device=DEVICE), "b": torch.zeros(3, 600_000, device=DEVICE).T}
    with torch.inference_mode():
        values["c"] = torch.ones(3, device=DEVICE)
        first = lw.save(values, tmp_path / "a.safetensors", background=background)
    with torch.device("meta"):  # as torch.set_default_device("cuda") would, but for the CPU
        second = lw.save(values, tmp_path / "b.safetensors", background=background)
    for saving in (first, second):
        with lw.open(saving if isinstance(saving, str) else saving.wait()) as t:
            assert t["a"].numpy().tolist() == [0, 1, 2, 3, 4]
            assert t["c"].numpy().tolist() == [1, 1, 1]
            assert t["b"].shape == (600_000, 3)


def test_a_tensor_that_is_resized_meanwhile_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.ones(1_500_000, device=DEVICE)
    path = lw.save({"old": torch.zeros(2)}, tmp_path / "a.safetensors")
    write = live_arrays.write

    def resized(*arguments: Any) -> list[list[str]]:
        value.resize_(1_400_000)
        return write(*arguments)

    monkeypatch.setattr(live_arrays, "write", resized)
    with pytest.raises(lw.FileError, match=r"that was resized meanwhile: .* nothing was saved"):
        lw.save({"a": value}, path)
    assert lw.open(path)["old"].shape == (2,)
    assert os.listdir(tmp_path) == ["a.safetensors"]


class Tagged(torch.Tensor):
    """A subclass of another library."""


def test_a_subclass_is_read_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = torch.randn(30, device=DEVICE).as_subclass(Tagged)
    assert extraction.extractions([value, torch.randn(3, device=DEVICE)])[0] is None
    path = lw.save({"a": value}, tmp_path / "a.safetensors")
    with lw.open(path) as t:
        assert np.array_equal(t["a"].numpy(), value.as_subclass(torch.Tensor).cpu().numpy())


def copies_of(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """The number of copies out of the device."""
    count = 0
    copy = PinnedPool.copy

    def counted(self: PinnedPool, *arguments: Any) -> None:
        nonlocal count
        count += 1
        copy(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(PinnedPool, "copy", counted)
        work()
    return count


@pytest.mark.slow
def test_small_leaves_are_copied_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = short_or_long(4_000, 20_000)
    values = {f"layer{number}": torch.full((3, number % 5), number, device=DEVICE) for number in range(count)}
    made: list[Any] = []
    assert copies_of(lambda: made.append(lw.save(values, tmp_path / "a.safetensors")), monkeypatch) <= 25
    assert Path(made[0]).read_bytes() == Path(plain(values, tmp_path / "b.safetensors", monkeypatch)).read_bytes()
    in_background = copies_of(
        lambda: made.append(lw.save(values, tmp_path / "c.safetensors", background=True)), monkeypatch
    )
    assert in_background <= 25
    assert Path(made[1].wait()).read_bytes() == Path(made[0]).read_bytes()


def test_small_leaves_are_copied_one_by_one_if_the_device_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {str(number): torch.full((3,), number, device=DEVICE) for number in range(20)}

    def full(tensors: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory")

    path = plain(values, tmp_path / "b.safetensors", monkeypatch)
    monkeypatch.setattr(torch, "cat", full)
    assert copies_of(lambda: lw.save(values, tmp_path / "a.safetensors"), monkeypatch) == 20
    assert (tmp_path / "a.safetensors").read_bytes() == Path(path).read_bytes()


@pytest.mark.parametrize("background", [False, True])
def test_without_pinned_memory_a_save_works_as_before(
    background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = every_kind()
    path = plain(values, tmp_path / "b.safetensors", monkeypatch)
    monkeypatch.setattr(extraction, "pinned_pool", lambda *arguments: None)

    def copy() -> None:
        saved = lw.save(values, tmp_path / "a.safetensors", background=background)
        assert isinstance(saved, str) or saved.wait()

    assert copies_of(copy, monkeypatch) == 0
    assert (tmp_path / "a.safetensors").read_bytes() == Path(path).read_bytes()


def test_a_small_model_gets_small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    pool = extraction.pinned_pool

    def recorded(device: torch.device, buffers: int, nbytes: int) -> PinnedPool | None:
        sizes.append((buffers, nbytes))
        return pool(device, buffers, nbytes)

    monkeypatch.setattr(extraction, "pinned_pool", recorded)
    for elements in (1, 100_000, 10_000_000):
        extraction.extractions([torch.zeros(elements, device=DEVICE)], threads=4)
    assert sizes == [(2, 1 << 20), (2, 1 << 20), (4, 1 << 21)]


def test_progress_counts_every_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    write = live_arrays.write

    def writing(output: Any, arrays: Any, progress: Any) -> list[list[str]]:
        return write(output, arrays, lambda count: (counted.append(count), progress(count))[1])

    monkeypatch.setattr(live_arrays, "write", writing)
    values = {"a": torch.zeros(3_000_000, device=DEVICE), "b": torch.zeros(5, device=DEVICE)}
    lw.save(values, tmp_path / "a.safetensors", progress=True)
    assert sum(counted) == sum(value.nbytes for value in values.values())


# -- values that do not fit ----------------------------------------------------------------------------------


def test_the_first_value_that_does_not_fit_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    for values in (
        {"small": torch.tensor([1.0, 7e4]), "other": torch.tensor([8e4])},
        {"fine": torch.zeros(5), "large": torch.zeros(2_000_000), "other": torch.tensor([8e4])},
    ):
        values["large" if "large" in values else "small"][-1] = 7e4
        on_device = {name: value.to(DEVICE) for name, value in values.items()}
        lw.save({"a": torch.zeros(2)}, path)
        messages = []
        for save in (partial(plain, values, monkeypatch=monkeypatch), partial(lw.save, on_device)):
            with pytest.raises(lw.WalkError, match=r"do not fit into float16.*70000 for instance; cast=") as caught:
                save(path=path, dtype="float16")
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
        assert lw.open(path)["a"].shape == (2,)
        assert os.listdir(tmp_path) == ["a.safetensors"]


# -- in the background -----------------------------------------------------------------------------------------


def test_a_background_save_has_the_values_of_the_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = every_kind()
    path = plain(values, tmp_path / "b.safetensors", monkeypatch)
    saving = lw.save(values, tmp_path / "a.safetensors", background=True)
    for value in values.values():
        value.untyped_storage().fill_(0)
    assert Path(saving.wait()).read_bytes() == Path(path).read_bytes()


def test_a_background_save_casts_and_names_what_does_not_fit(tmp_path: Path) -> None:
    saving = lw.save(
        {"a": torch.full((5,), 7e4, device=DEVICE)}, tmp_path / "a.safetensors", dtype="float16", background=True
    )
    with pytest.raises(lw.WalkError, match="cannot save a: some values do not fit"):
        saving.wait()


def test_a_background_save_without_memory_for_the_copies_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def empty(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: not enough memory")

    values = {"a": torch.zeros(100, device=DEVICE)}
    path = lw.save({"old": torch.zeros(2)}, tmp_path / "a.safetensors")
    pool = extraction.pinned_pool(DEVICE, 2, 1 << 16)
    monkeypatch.setattr(extraction, "pinned_pool", lambda *arguments: pool)
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", empty)
        with pytest.raises(lw.WalkError, match="no memory for another 400 bytes, and nothing was saved; save without"):
            lw.save(values, path, background=True)
    assert os.listdir(tmp_path) == ["a.safetensors"]
    assert lw.open(path)["old"].shape == (2,)


# -- faults --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
def test_an_error_of_the_device_leaves_the_old_file(
    background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lw.save({"old": torch.zeros(2)}, tmp_path / "a.safetensors")
    left = 3
    copy = PinnedPool.copy

    def failing(self: PinnedPool, *arguments: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")
        copy(self, *arguments)

    monkeypatch.setattr(PinnedPool, "copy", failing)
    with pytest.raises(lw.WalkError, match=r"cannot copy values from [\w:]+: CUDA error: an illegal memory access was"):
        lw.save({"a": torch.zeros(5_000_000, device=DEVICE)}, path, background=background)
    assert os.listdir(tmp_path) == ["a.safetensors"]
    assert lw.open(path)["old"].shape == (2,)


@pytest.mark.parametrize("background", [False, True])
def test_a_device_that_is_gone_is_an_error(background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*arguments: Any) -> PinnedPool:
        raise RuntimeError("CUDA error: GPU is lost")

    monkeypatch.setattr(extraction, "pinned_pool", gone)
    with pytest.raises(lw.WalkError, match=r"values from [\w:]+: CUDA error: GPU is lost; nothing was saved"):
        lw.save({"a": torch.zeros(5, device=DEVICE)}, tmp_path / "a.safetensors", background=background)
    assert not os.listdir(tmp_path)


def test_an_interrupt_ends_the_threads_before_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lw.save({"old": torch.zeros(2)}, tmp_path / "a.safetensors")
    before = threading.active_count()
    copied = extraction.TorchExtraction.copied

    calls = count(1)

    def slow(self: Any, parts: Any) -> Any:
        if next(calls) == 2:
            interrupt(inside=_SharedWork.wait)  # returns when it was raised; this thread still has work to do
        return copied(self, parts)

    monkeypatch.setattr(extraction.TorchExtraction, "copied", slow)
    with interrupting() as interrupt, pytest.raises(KeyboardInterrupt):
        lw.save({"a": torch.zeros(40_000_000, device=DEVICE)}, path)
    assert threading.active_count() == before
    assert os.listdir(tmp_path) == ["a.safetensors"]
    assert lw.open(path)["old"].shape == (2,)


def test_a_save_while_a_graph_is_captured_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for background in (False, True):
        with pytest.raises(lw.WalkError, match="cannot save tensors that are on a GPU while a CUDA graph is being"):
            lw.save({"a": torch.zeros(3, device=DEVICE)}, tmp_path / "a.safetensors", background=background)
    assert not os.listdir(tmp_path)


def test_what_is_saved_while_a_thread_writes_has_right_checksums(tmp_path: Path) -> None:
    value = torch.zeros(3_000_000, device=DEVICE)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            value.add_(1)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for options in ({}, {"dtype": "bfloat16"}, {"background": True}):
            saved: Any = lw.save({"a": value}, tmp_path / "a.safetensors", **options)  # type: ignore[call-overload]
            lw.verify(saved if isinstance(saved, str) else saved.wait())
    finally:
        stop.set()
        thread.join()


# -- files in memory -----------------------------------------------------------------------------------------------


@pytest.fixture
def mapped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Maps all files, wherever they are; returns the offsets of what is written through mappings."""
    filled: list[int] = []
    fill = local.Disk.fill_mapped

    def filling(self: Any, memory: Any, file: int, data: Any, start: int) -> None:
        filled.append(start)
        fill(self, memory, file, data, start)

    monkeypatch.setattr(local.Disk, "fill_mapped", filling)
    monkeypatch.setattr(local, "is_in_memory", lambda path: True)
    monkeypatch.setattr(writer, "_MAPPED", 1)
    monkeypatch.setattr(writer, "_MAPPING_THREADS", 1)
    return filled


@pytest.mark.parametrize("options", [{}, {"shard_size": "3MB"}, {"dtype": "bfloat16", "cast": "saturate"}])
def test_a_file_in_memory_has_the_same_bytes(
    options: dict[str, Any], mapped: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = every_kind()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    lw.verify(lw.save(values, tmp_path / "a" / "model.safetensors", **options))
    assert 0 in mapped
    assert len(mapped) > 5
    plain(values, tmp_path / "b" / "model.safetensors", monkeypatch, **options)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_memory_that_the_system_does_not_provide_is_written_in_the_usual_way(
    mapped: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(madvise, "provide", lambda address, nbytes: False)
    values = every_kind()
    first = lw.save(values, tmp_path / "a.safetensors")
    assert mapped
    assert Path(first).read_bytes() == Path(plain(values, tmp_path / "b.safetensors", monkeypatch)).read_bytes()


def test_a_file_that_cannot_be_mapped_is_written_in_the_usual_way(
    mapped: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: Any) -> Any:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(local, "FileMemory", refused)
    lw.verify(lw.save(every_kind(), tmp_path / "a.safetensors"))
    assert not mapped


@pytest.mark.slow
@pytest.mark.parametrize("in_memory", [False, True], ids=["on disk", "in memory"])
@pytest.mark.parametrize("options", [{}, {"shard_size": 5_000_000}], ids=["one file", "shards"])
def test_every_disk_call_that_fails_is_reported_and_leaves_the_old_file(
    options: dict[str, Any],
    in_memory: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if in_memory:
        request.getfixturevalue("mapped")
    number = errno.ENOSPC
    path = tmp_path / "model.safetensors"
    values = {name: torch.ones(1_000_000, device=DEVICE) for name in "abc"}
    lw.save(values, path, **options)
    steps = steps_of(lambda: lw.save(values, path, **options), monkeypatch)
    reported = 0
    for stop_at in range(1, steps + 1):
        with monkeypatch.context() as patched:
            patched.setattr(local, "disk", FailingDisk(stop_at, lambda: OSError(number, os.strerror(number))))
            message = ""
            try:
                lw.save(values, path, **options)
            except lw.FileError as error:
                message = str(error)
                reported += 1
        assert not message or os.strerror(number) in message
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]
        lw.verify(path)
    assert reported >= steps - 4


FULL = """
    import os, sys
    from pathlib import Path
    import torch, leafwise as lw
    from leafwise.files.writing import writer
    from leafwise.homes.torch.gpu import extraction
    from tests.kernels.gpu import DEVICE

    extraction.EXTRACTED, extraction.BUFFER = frozenset({DEVICE.type}), 1 << 20
    writer.WRITERS, writer._MAPPED = 4, 1
    folder = Path(sys.argv[1])
    expected = "No space left on device"
    if len(sys.argv) > 2 or os.system(f"mount -t tmpfs -o size=4m tmpfs '{folder}' 2> /dev/null"):
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 22, 1 << 22))
        expected = "File too large"
    try:
        path = folder / "model.safetensors"
        lw.save({"a": torch.ones(200_000, device=DEVICE)}, path)
        try:
            lw.save({"big": torch.ones(3_000_000, device=DEVICE)}, path)
        except lw.FileError as error:
            assert expected in str(error), error
        else:
            sys.exit("it should have been full")
        assert os.listdir(folder) == ["model.safetensors"], os.listdir(folder)
        lw.verify(path)
        lw.save({"b": torch.ones(200_000, device=DEVICE)}, path)
        assert lw.open(path)["b"].shape == (200_000,)
    finally:
        os.system(f"umount -l '{folder}' 2> /dev/null")
"""


@pytest.mark.slow
@pytest.mark.parametrize("limited", [[], ["by the limit"]], ids=["mounted", "limited"])
def test_a_full_disk_in_memory_is_an_error_and_leaves_the_old_file(limited: list[str], tmp_path: Path) -> None:
    source = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n" + textwrap.dedent(FULL)
    done = subprocess.run(
        [sys.executable, "-c", source, str(tmp_path), *limited], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr
