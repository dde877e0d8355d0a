"""Loads into tensors on a device, through buffers. Without a GPU, the tests treat the CPU as a device."""

import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.kernels.gpu import DEVICE
from torch import nn

import leafwise as lw
from leafwise.core.dtypes import DTYPES
from leafwise.files.reading import checked_reads
from leafwise.files.sources import disk as local
from leafwise.files.sources.disk import Disk
from leafwise.homes.torch.gpu import landing
from leafwise.homes.torch.gpu.landing import EXACT_CASTS, TorchTransfer
from leafwise.homes.torch.home import TorchHome
from leafwise.homes.torch.tensors import as_numpy, tensor_over
from leafwise.homes.torch.values.tensor_values import same_bits
from leafwise.kernels import reading
from leafwise.kernels.casting import cast_to
from leafwise.kernels.reading import ReadRange

MIB = 1 << 20


class Counts:
    """What the transfers of a test did."""

    def __init__(self, buffer: int, spare: int) -> None:
        self.buffer, self.spare = buffer, spare
        self.copies = self.finished = self.writes = 0


@pytest.fixture(
    params=[(4 * MIB, 0), (4 * MIB, 1 << 40), (96 << 10, 0), (96 << 10, 2 * MIB)],
    ids=["large buffers", "large buffers, spare memory", "small buffers", "small buffers, some spare memory"],
)
def counts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Loads go through buffers: large ones, or those that are smaller than what has one checksum. The device has spare
    memory to keep values until all are verified, or only some, or none."""
    made = Counts(*request.param)
    copy, finish, write = TorchTransfer.copy, TorchTransfer.finish, TorchHome.write

    def counted_copy(self: TorchTransfer, *args: Any) -> None:
        made.copies += 1
        copy(self, *args)

    def counted_finish(self: TorchTransfer) -> None:
        made.finished += 1
        finish(self)

    def counted_write(self: TorchHome, *args: Any) -> None:
        made.writes += 1
        write(self, *args)

    monkeypatch.setattr(landing, "LANDING_DEVICES", frozenset({DEVICE.type}))
    monkeypatch.setattr(landing, "BUFFER", request.param[0])
    monkeypatch.setattr(landing, "spare_bytes", lambda device: made.spare)
    monkeypatch.setattr(landing, "BUFFERS", 3)
    monkeypatch.setattr(TorchTransfer, "copy", counted_copy)
    monkeypatch.setattr(TorchTransfer, "finish", counted_finish)
    monkeypatch.setattr(TorchHome, "write", counted_write)
    return made


@pytest.fixture(autouse=True)
def default_device() -> Iterator[None]:
    with torch.device(DEVICE):
        yield


def some_values() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    floats = {
        "large": torch.randn(700_001),
        "matrix": torch.randn(1000, 1300, dtype=torch.float64),
        "odd": torch.randn(7, dtype=torch.bfloat16),
        "scalar": torch.tensor(2.5),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(33).half(),
        "eighth": torch.randn(35).to(torch.float8_e4m3fn),
        "complex": torch.randn(5, dtype=torch.complex64),
    }
    return {**floats, "whole": torch.arange(101), "flags": torch.rand(9) > 0.5, "byte": torch.arange(3).byte()}


def blank(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) for name, value in values.items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(same_bits(a[name], b[name]) for name in a)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("kind", ["safetensors", "shards", "torch", "npz"])
def test_every_leaf_gets_its_bits(kind: str, verify: bool, counts: Counts, tmp_path: Path) -> None:
    values = some_values()
    path: Any = tmp_path / f"a.{kind}"
    if kind == "torch":
        torch.save(values, path)
    elif kind == "npz":
        values = {name: value for name, value in values.items() if name not in ("odd", "eighth")}
        np.savez(path, **{name: as_numpy(value) for name, value in values.items()})
    else:
        path = lw.save(values, tmp_path / "a.safetensors", shard_size=3 * MIB if kind == "shards" else None)
    target = blank(values)
    versions = {name: value._version for name, value in target.items()}
    assert lw.load(target, path, verify=verify) is target
    assert same(target, values)
    assert all(target[name]._version > versions[name] for name in values if name != "empty")
    assert counts.copies > 2
    assert counts.writes <= 1  # the empty leaf


@pytest.mark.parametrize("verify", [True, False])
def test_a_meta_model_gets_its_values_on_the_device(verify: bool, counts: Counts, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(900, 700), nn.BatchNorm1d(700))
    path = lw.save(model, tmp_path / "a.safetensors")
    with torch.device("meta"):
        empty = nn.Sequential(nn.Linear(900, 700), nn.BatchNorm1d(700))
    loaded = lw.load(empty, path, verify=verify)
    assert same(loaded.state_dict(), model.state_dict())
    assert loaded[0].weight.device.type == DEVICE.type
    assert counts.copies
    assert not counts.writes


def test_pieces_of_a_distributed_checkpoint_are_read_to_the_device(counts: Counts, tmp_path: Path) -> None:
    dcp: Any = pytest.importorskip("torch.distributed.checkpoint")
    values = {name: value for name, value in some_values().items() if name != "empty"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(values, checkpoint_id=tmp_path / "dcp")
    target = blank(values)
    lw.load(target, tmp_path / "dcp")
    assert same(target, values)
    assert counts.copies


def test_joined_leaves_are_read_part_by_part(counts: Counts) -> None:
    from leafwise.core.roles.recipes import Joined, Taken
    from leafwise.files.arrays.assembled import Assembled
    from leafwise.files.arrays.stored import Storage, Strided, spec_of
    from leafwise.files.reading.checked_reads import Read, fill
    from leafwise.files.reading.landings import Transfers
    from leafwise.files.sources.source import BytesSource

    arrays = {name: np.random.default_rng(0).normal(size=(300, 200)) for name in "ab"}
    stored = {
        name: Strided(spec_of(array.shape, "float64"), Storage(BytesSource(name, array.tobytes()), 0, array.nbytes))
        for name, array in arrays.items()
    }
    whole = Assembled(Joined(tuple(Taken(name, (300, 200)) for name in "ab"), 0, is_stack=False), stored)
    runs = whole.runs()
    assert runs is not None
    target = torch.zeros(600, 200, dtype=torch.float64)
    landed = landing.landing_of(target, whole.spec, None, only_check=False)
    assert landed is not None
    requests = [Read(storage, start, landed.part(at, size), "w") for storage, start, at, size in runs]
    fill(requests, False, lambda count: None, Transfers())
    assert np.array_equal(target.cpu(), np.concatenate([arrays["a"], arrays["b"]]))
    assert counts.copies


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("spare", [0, 3 * MIB, 1 << 40])
def test_values_are_read_once_if_the_device_has_spare_memory(
    spare: int, in_c: bool, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if counts.buffer < MIB:
        pytest.skip("checksums of larger pieces are compared by an extra read")
    if not in_c:
        monkeypatch.setattr(reading, "can_read", lambda: False)
    counts.spare = spare
    values = {name: torch.randn(MIB // 4) for name in "abcdef"}
    turned = {name: torch.randn(512, 512).t() for name in "gh"}
    path = lw.save({**values, **turned}, tmp_path / "a.safetensors")
    target = {**blank(values), **{name: torch.zeros(512, 512).t() for name in turned}}
    passes = []
    verify_storages = checked_reads.verify_storages

    def counted(storages: Any, *options: Any) -> int:
        listed = list(storages)
        passes.extend(name for name, _ in listed)
        return verify_storages(listed, *options)

    monkeypatch.setattr(checked_reads, "verify_storages", counted)
    lw.load(target, path)
    assert same(target, {**values, **turned})
    assert len(passes) == {0: 8, 3 * MIB: 5, 1 << 40: 0}[spare]


def test_spare_memory_is_free_after_an_error(counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not counts.spare:
        pytest.skip("there is no spare memory")
    values = {name: torch.randn(MIB // 8) for name in "ab"}
    path = Path(lw.save(values, tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    made = []
    spare = TorchTransfer.spare

    def recorded(self: TorchTransfer, landings: Any) -> Any:
        made.extend(landings := spare(self, landings))
        return landings

    monkeypatch.setattr(TorchTransfer, "spare", recorded)
    with pytest.raises(lw.ChecksumError, match=r"b is damaged"):
        lw.load(blank(values), path)
    assert len(made) == 2
    assert all(landed.tensor.untyped_storage().nbytes() == 0 for landed in made)


@pytest.mark.parametrize("in_c", [True, False])
def test_a_file_that_is_cut_off_changes_nothing(
    in_c: bool, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file loses its end after it was opened."""
    if not in_c:
        monkeypatch.setattr(reading, "can_read", lambda: False)
    values = {name: torch.randn(MIB // 4) for name in "abc"}
    path = lw.save(values, tmp_path / "a.safetensors")
    target = blank(values)
    with lw.open(path) as stored:
        os.truncate(path, os.path.getsize(path) - 1000)
        with pytest.raises(lw.Error, match=r"cut off|was changed"):
            lw.load(target, stored)
    assert not any(value.any() for value in target.values())


@pytest.mark.parametrize("byte", [-1, 1])
@pytest.mark.parametrize("fresh", [False, True])
def test_damage_anywhere_changes_nothing(byte: int, fresh: bool, counts: Counts, tmp_path: Path) -> None:
    model = nn.Linear(1000, 700)
    path = Path(lw.save(model, tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1 if byte < 0 else len(data) - 4 * (model.weight.numel() + 700)] ^= 64
    path.write_bytes(data)
    target = nn.Linear(1000, 700, device="meta" if fresh else None)
    before = target.weight if fresh else target.weight.detach().clone()
    with pytest.raises(lw.ChecksumError, match=r"is damaged"):
        lw.load(target, path)
    assert target.weight is before if fresh else torch.equal(target.weight, before)
    lw.load(target, path, verify=False)
    assert counts.copies


# -- layouts -----------------------------------------------------------------------------------------------

LAYOUTS = {
    "channels last": lambda: torch.zeros(40, 30, 14, 13).contiguous(memory_format=torch.channels_last),
    "reversed axes": lambda: torch.zeros(13, 14, 30, 40).permute(3, 2, 1, 0),
    "part of a larger tensor": lambda: torch.zeros(50, 33, 14, 20)[5:45, 1:31, :, 3:16],
    "every second": lambda: torch.zeros(40, 30, 14, 26)[..., ::2],
    "one large row": lambda: torch.zeros(13, 14, 1200).permute(2, 1, 0).reshape(1, 1200, 14, 13).permute(0, 1, 3, 2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_elements_in_any_order_get_their_values(layout: str, counts: Counts, tmp_path: Path) -> None:
    target = {"weight": LAYOUTS[layout]()}
    values = {"weight": torch.randn(target["weight"].shape)}
    strides = target["weight"].stride()
    lw.load(target, lw.save(values, tmp_path / "a.safetensors"))
    assert torch.equal(target["weight"], values["weight"])
    assert target["weight"].stride() == strides
    assert counts.copies
    assert not counts.writes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_axes_are_turned_on_the_device(dtype: torch.dtype, counts: Counts) -> None:
    from leafwise.files.arrays.stored import Storage, spec_of
    from leafwise.files.reading.checked_reads import Read, fill
    from leafwise.files.reading.landings import Transfers
    from leafwise.files.sources.source import BytesSource

    array = np.random.default_rng(0).normal(size=(30, 20, 500)).astype(np.float32)
    target = torch.zeros(500, 30, 20, dtype=dtype)
    landed = landing.landing_of(target, spec_of(array.shape, "float32"), (2, 0, 1), only_check=False)
    assert landed is not None
    storage = Storage(BytesSource("w", array.tobytes()), 0, array.nbytes)
    fill([Read(storage, 0, landed, "w")], False, lambda count: None, Transfers())
    assert same_bits(target.cpu(), torch.from_numpy(array.transpose(2, 0, 1).copy()).to(dtype))
    assert landed.fits()


def test_a_tensor_of_inference_mode_is_written_by_the_thread_that_may(counts: Counts, tmp_path: Path) -> None:
    values = {"a": torch.randn(100)}
    path = lw.save(values, tmp_path / "a.safetensors")
    with torch.inference_mode():
        target = {"a": torch.zeros(100)}
        lw.load(target, path)
        assert torch.equal(target["a"], values["a"])
    assert not counts.copies


def test_a_load_inside_inference_mode_fills_ordinary_tensors(counts: Counts, tmp_path: Path) -> None:
    values = {"a": torch.randn(700, 1000), "b": torch.randn(700, 1000)}
    path = lw.save(values, tmp_path / "a.safetensors")
    plain: dict[str, Any] = {name: torch.zeros(700, 1000, requires_grad=True) for name in values}
    cast: dict[str, Any] = {name: torch.zeros(700, 1000, dtype=torch.bfloat16) for name in values}
    turned: dict[str, Any] = {name: torch.zeros(1000, 700).t() for name in values}
    for target, options in ((plain, {}), (cast, {"cast": True}), (turned, {})):
        versions = [value._version for value in target.values()]
        with torch.inference_mode():
            lw.load(target, path, **options)
        assert counts.copies
        for name, value in target.items():
            assert torch.equal(value.detach(), values[name].to(value.dtype))
            assert not value.is_inference()
        assert all(value._version > version for value, version in zip(target.values(), versions, strict=True))


def test_a_live_source_is_copied_through_buffers(counts: Counts) -> None:
    source: dict[str, Any] = {"a": torch.randn(300_000, device="cpu"), "b": np.arange(5.0)}
    target = {"a": torch.zeros(300_000), "b": torch.zeros(5, dtype=torch.float64)}
    lw.load(target, source)
    assert torch.equal(target["a"].cpu(), source["a"])
    assert target["b"].tolist() == [0, 1, 2, 3, 4]
    assert counts.copies


def test_values_that_the_load_overwrites_are_copied_first(counts: Counts) -> None:
    base = torch.arange(200_000.0)
    lw.load({"a": base[1:]}, {"a": base[:-1]})
    assert torch.equal(base.cpu(), torch.cat([torch.zeros(1), torch.arange(199_999.0)]).cpu())


@pytest.mark.slow
def test_many_small_leaves_share_reads_and_copies(
    counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Counting(Disk):
        reads = 0

        def read_into(self, file: int, start: int, view: memoryview) -> int:
            self.reads += 1
            return super().read_into(file, start, view)

    values = {f"leaf{number}": torch.full((25,), float(number)) for number in range(500)}
    path = lw.save(values, tmp_path / "a.safetensors")
    counting = Counting()
    target = blank(values)
    with monkeypatch.context() as patched:
        patched.setattr(local, "disk", counting)  # all reads are made by Python then
        lw.load(target, path, verify=False)
    assert same(target, values)
    assert counts.copies <= 4
    assert 0 < counting.reads <= 4

    ranges: list[ReadRange] = []
    threaded = reading.ThreadedReader

    def counted(tasks: Any, *options: Any) -> Any:
        ranges.extend(one for task in tasks for one in task)
        return threaded(tasks, *options)

    monkeypatch.setattr(reading, "ThreadedReader", counted)
    target = blank(values)
    lw.load(target, path, verify=False)
    assert same(target, values)
    assert len(ranges) >= 500 or not reading.can_read()
    assert sum(one.file >= 0 for one in ranges) <= 4


def test_a_model_on_two_devices_is_loaded(counts: Counts, tmp_path: Path) -> None:
    values = some_values()
    path = lw.save(values, tmp_path / "a.safetensors")
    there = {name: torch.zeros_like(value, device="cpu" if number % 2 else DEVICE)
             for number, (name, value) in enumerate(values.items())}  # fmt: skip
    lw.load(there, path)
    assert same(there, values)


# -- casts -------------------------------------------------------------------------------------------------


def numbers_of(dtype: str) -> torch.Tensor:
    """All numbers of a dtype of 16 bits. Of a longer one, many numbers, and those where rounding to 16 bits changes."""
    codes = torch.arange(1 << 16, dtype=torch.int32, device="cpu").to(torch.int16)
    if dtype in ("float16", "bfloat16"):
        return codes.view(getattr(torch, dtype))
    near = torch.cat([codes.view(half).float() for half in (torch.float16, torch.bfloat16)]).view(torch.int32)
    steps = (0, 1, -1, 0xFFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)
    words = torch.cat([near + step for step in steps] + [torch.arange(-(1 << 31), 1 << 31, 65_521, device="cpu").int()])
    single = words.view(torch.float32)
    if dtype == "float32":
        return single
    return torch.cat([single.double() * factor for factor in (1, 1 + 2.0**-25, 1 - 2.0**-25, 1 + 2.0**-40)])


@pytest.mark.parametrize(("own", "dtype"), sorted(EXACT_CASTS))
def test_casts_on_the_device_give_the_bits_of_the_kernels(own: str, dtype: str) -> None:
    numbers = numbers_of(own)
    limit = DTYPES[dtype].range
    assert limit is not None
    numbers = numbers[numbers.double().abs() < limit.limit]
    cast = numbers.to(DEVICE).to(getattr(torch, dtype)).cpu()
    assert same_bits(cast, tensor_over(cast_to(as_numpy(numbers), dtype)))


def test_only_what_is_cast_is_read_to_check_its_cast(
    counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []
    landing_of = landing.landing_of

    def recorded(value: torch.Tensor, stored: Any, order: Any, only_check: bool) -> Any:
        checked.extend([stored.dtype] * only_check)
        return landing_of(value, stored, order, only_check)

    monkeypatch.setattr(landing, "landing_of", recorded)
    values = {"plain": torch.randn(500).bfloat16(), "cast": torch.randn(500), "other": torch.randn(70).bfloat16()}
    target = {name: torch.zeros(value.shape, dtype=torch.bfloat16) for name, value in values.items()}
    lw.load(target, lw.save(values, tmp_path / "a.safetensors"), cast=True)
    assert checked == ["float32"]
    assert same(target, {name: value.bfloat16() for name, value in values.items()})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_cast_that_pytorch_rounds_twice_is_not_made_on_the_device(dtype: str) -> None:
    numbers = numbers_of("float64")
    limit = DTYPES[dtype].range
    assert limit is not None
    numbers = numbers[numbers.abs() < limit.limit]
    assert not same_bits(numbers.to(getattr(torch, dtype)), tensor_over(cast_to(as_numpy(numbers), dtype)))
    assert ("float64", dtype) not in EXACT_CASTS


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(("own", "dtype"), [*sorted(EXACT_CASTS), ("float64", "bfloat16"), ("float32", "float8_e5m2")])
def test_a_load_casts_as_on_the_cpu(own: str, dtype: str, fresh: bool, counts: Counts, tmp_path: Path) -> None:
    values = {"a": torch.randn(600, 700).to(getattr(torch, own)), "b": torch.randn(3).to(getattr(torch, own))}
    path = lw.save(values, tmp_path / "a.safetensors")
    model = nn.ParameterDict(
        {
            name: torch.zeros(value.shape, dtype=getattr(torch, dtype), device="meta" if fresh else None)
            for name, value in values.items()
        }
    )
    lw.load(model, path, cast=True)
    for name, value in values.items():
        assert same_bits(model[name].detach().cpu(), tensor_over(cast_to(as_numpy(value), dtype)))
    assert bool(counts.copies) == ((own, dtype) in EXACT_CASTS)


@pytest.mark.parametrize("fresh", [False, True])
def test_a_value_that_does_not_fit_is_refused_before_anything_changes(
    fresh: bool, counts: Counts, tmp_path: Path
) -> None:
    values = {"a": torch.randn(400_000), "b": torch.randn(400_000), "c": torch.ones(2)}
    values["b"][-1] = 3.4e38
    path = lw.save(values, tmp_path / "a.safetensors")

    def made() -> nn.ParameterDict:
        device = "meta" if fresh else None
        return nn.ParameterDict(
            {n: torch.zeros(v.shape, dtype=torch.bfloat16, device=device) for n, v in values.items()}
        )

    model = made()
    with pytest.raises(lw.LoadError, match=r"cannot load b: some values do not fit into bfloat16.*nothing was changed"):
        lw.load(model, path, cast=True)
    assert all(value.is_meta if fresh else not value.any() for value in model.values())
    lw.load(model, path, cast="saturate")
    for name, value in values.items():
        expected = tensor_over(cast_to(as_numpy(value), "bfloat16", saturate=True))
        assert same_bits(model[name].detach().cpu(), expected)
    assert counts.copies


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("special", [0x7FC00000, -0x3FFFFF, 0x7F800001, 0x7F800000])
def test_nan_and_infinity_are_cast_as_on_the_cpu(special: int, fresh: bool, counts: Counts, tmp_path: Path) -> None:
    words = torch.zeros(5000, dtype=torch.int32)
    words[4321] = special
    values = {"a": words.view(torch.float32)}
    device = "meta" if fresh else None
    model = nn.ParameterDict({"a": torch.zeros(5000, dtype=torch.bfloat16, device=device)})
    lw.load(model, lw.save(values, tmp_path / "a.safetensors"), cast=True)
    assert same_bits(model["a"].detach().cpu(), tensor_over(cast_to(as_numpy(values["a"]), "bfloat16")))


# -- failures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [False, True])
def test_a_device_that_fails_says_what_changed(
    fresh: bool, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(*[nn.Linear(300, 400) for _ in range(4)])
    path = lw.save(model, tmp_path / "a.safetensors")
    with torch.device("meta" if fresh else DEVICE):
        target = nn.Sequential(*[nn.Linear(300, 400) for _ in range(4)])

    def failing(self: Any, buffer: Any) -> None:
        raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be reported later.")

    monkeypatch.setattr("leafwise.homes.torch.gpu.pinned.PinnedPool.record", failing)
    # Copies to spare memory come first, and fail first.
    state = "nothing was changed" if fresh or counts.spare else "the model is partly changed"
    text = rf"copying values to {DEVICE}.* failed: CUDA error: unspecified launch failure; {state}$"
    with pytest.raises(lw.LoadError, match=text):
        lw.load(target, path)
    assert counts.finished
    assert all(value.is_meta for value in target.parameters()) == fresh


def test_an_interrupt_waits_for_the_copies_and_says_what_changed(
    counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {name: torch.randn(900_000) for name in "abcdefgh"}
    path = lw.save(values, tmp_path / "a.safetensors")
    copy, running = TorchTransfer.copy, []

    def interrupted(self: TorchTransfer, *args: Any) -> None:
        running.append(threading.current_thread())
        if len(running) == 3:
            raise KeyboardInterrupt
        copy(self, *args)

    monkeypatch.setattr(TorchTransfer, "copy", interrupted)
    finished, target = counts.finished, blank(values)
    # Without enough spare memory, these are copies to the model itself.
    text = "^$" if counts.spare > 32 * MIB else r"the model is partly changed; load it again"
    with pytest.raises(KeyboardInterrupt, match=text):
        lw.load(target, path)
    assert counts.spare <= 32 * MIB or not any(value.any() for value in target.values())
    assert counts.finished > finished
    assert not any(thread.is_alive() for thread in running if thread is not threading.main_thread())


@pytest.mark.parametrize("fresh", [False, True])
def test_without_pinned_memory_values_are_written_as_before(
    fresh: bool, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(300, 400)
    path = lw.save(model, tmp_path / "a.safetensors")
    asked = []

    def refused(device: torch.device, *args: Any, **options: Any) -> None:
        asked.append(device)

    monkeypatch.setattr(landing, "pinned_pool", refused)
    with torch.device("meta" if fresh else DEVICE):
        target = nn.Linear(300, 400)
    lw.load(target, path)
    assert same(target.state_dict(), model.state_dict())
    assert asked
    assert not counts.copies
    assert DEVICE.type == "cpu" or counts.writes == 2


def test_pinned_memory_is_memory_of_the_host_whatever_the_default_device() -> None:
    from leafwise.homes.torch.gpu.pinned import pinned_pool

    with torch.device("meta"):
        pool = pinned_pool(torch.device("cpu"), 2, 4096)
    assert pool is not None
    with pool.buffer() as buffer:
        assert len(buffer.view) == 4096


def test_too_little_memory_for_a_leaf_changes_nothing(
    counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lw.save(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), tmp_path / "a.safetensors")
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    empty = torch.empty

    def full(*args: Any, **options: Any) -> torch.Tensor:
        if args == ((4,),) and "dtype" in options:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.\nGPU 0 has a total of")
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(lw.LoadError, match=r"cannot load 0\.bias: .*16 bytes are needed.*; nothing was changed"):
        lw.load(model, path)
    assert all(value.is_meta for value in model.parameters())


@pytest.mark.parametrize("pinned", [True, False])
def test_the_state_of_an_optimizer_is_copied_through_buffers(
    pinned: bool, counts: Counts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from leafwise.homes.torch.gpu.pinned import PinnedPool

    def trained(seed: int) -> dict[str, Any]:
        torch.manual_seed(seed)
        model = nn.Linear(700, 900)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(2, 700)).sum().backward()
        optimizer.step()
        return {"model": model, "optimizer": optimizer}

    run, other, copies = trained(1), trained(2), []
    path = lw.save(run, tmp_path / "run.safetensors")
    copy = PinnedPool.copy

    def counted(self: PinnedPool, *args: Any) -> None:
        copies.append(1)
        copy(self, *args)

    monkeypatch.setattr(PinnedPool, "copy", counted)
    if not pinned:
        monkeypatch.setattr(landing, "pinned_pool", lambda *args, **options: None)
    lw.load(other, path)
    for mine, theirs in zip(other["model"].parameters(), run["model"].parameters(), strict=True):
        state, expected = other["optimizer"].state[mine], run["optimizer"].state[theirs]
        assert same(state, expected)
        assert state["exp_avg"].device == mine.device
    assert bool(copies) == pinned


needs_gpu = pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")


@needs_gpu
def test_the_load_waits_for_the_current_stream_and_the_stream_sees_the_values(counts: Counts, tmp_path: Path) -> None:
    values = {"a": torch.randn(3_000_000)}
    path = lw.save(values, tmp_path / "a.safetensors")
    cuda: Any = torch.cuda
    with cuda.stream(cuda.Stream()):
        target = torch.zeros(3_000_000)
        for _ in range(200):
            target.add_(1)  # still under way when the load begins
        lw.load({"a": target}, path)
        assert torch.equal(target * 1, values["a"])


@needs_gpu
def test_a_load_is_refused_while_a_graph_is_captured(counts: Counts, tmp_path: Path) -> None:
    path = lw.save({"a": torch.ones(5)}, tmp_path / "a.safetensors")
    target = {"a": torch.zeros(5)}
    cuda: Any = torch.cuda
    other = torch.zeros(5)
    with cuda.graph(cuda.CUDAGraph()):
        other.add_(1)  # PyTorch warns of an empty graph
        with pytest.raises(lw.Error, match=r"cannot load while a CUDA graph is being captured"):
            lw.load(target, path)
    assert not target["a"].any()


@needs_gpu
def test_a_model_larger_than_the_device_says_how_much_it_needs(counts: Counts, tmp_path: Path) -> None:
    size = 400 << 30
    header = f'{{"weight":{{"dtype":"U8","shape":[{size}],"data_offsets":[0,{size}]}}}}'.encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    os.truncate(path, 8 + len(header) + size)  # a file without blocks
    model = {"weight": torch.empty(size, dtype=torch.uint8, device="meta")}
    text = rf"cannot load weight: .*cuda:0 is out of memory: {size:,} bytes are needed.* free; nothing was changed"
    with pytest.raises(lw.LoadError, match=text):
        lw.load(model, path)
    assert model["weight"].is_meta
