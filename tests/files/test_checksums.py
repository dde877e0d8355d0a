"""The checksums of every format are compared by each verb that copies values: load, verify, convert, save."""

import random
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.files import writers
from torch.serialization import set_crc32_options

import leafwise as lw
from leafwise.cli import main
from leafwise.files.checksums import CHUNK, crc32_of_both

CHECKED = {
    "npz": writers.npz,
    "npz compressed": writers.npz_compressed,
    "torch zip": writers.torch_zip,
    "bin shards": writers.bin_shards,
    "DCP": writers.distributed,
}


def state() -> writers.Arrays:
    random = torch.Generator().manual_seed(0)
    return {name: torch.randn(40, 30, generator=random) for name in "abc"}


def empty() -> writers.Arrays:
    return {name: torch.zeros(40, 30) for name in "abc"}


@contextmanager
def crc_switched_off() -> Iterator[None]:
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(True)


def written(folder: Path, write: Callable[..., None]) -> tuple[Path, list[Path]]:
    """A checkpoint, and the files that contain its arrays."""
    path = folder / "checkpoint"
    write(path, state())
    files = [path] if path.is_file() else [one for one in path.iterdir() if not one.name.startswith(".")]
    return path, files


def places_in_arrays(file: Path) -> list[int]:
    """The offsets of bytes that belong to values."""
    data = file.read_bytes()
    found = []
    for value in state().values():
        at = data.find(value.numpy().tobytes())
        if at >= 0:
            found += range(at, at + 4800)
    if not found:  # compressed
        for info in zipfile.ZipFile(file).infolist():
            start = (
                info.header_offset
                + 30
                + len(info.filename)
                + int.from_bytes(data[info.header_offset + 28 : info.header_offset + 30], "little")
            )
            found += range(start, start + info.compress_size)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("write", CHECKED.values(), ids=CHECKED)
def test_a_flipped_bit_is_found_and_changes_nothing(write: Callable[..., None], tmp_path: Path) -> None:
    path, files = written(tmp_path, write)
    assert lw.verify(path)[:3] == (3, 3 * 4800, 0)
    chance = random.Random(0)
    for _ in range(25):
        file = chance.choice(files)
        data = bytearray(file.read_bytes())
        before = bytes(data)
        data[chance.choice(places_in_arrays(file))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        target = empty()
        for verb in (
            lambda target=target: lw.load(target, path),
            lambda: lw.verify(path),
            lambda: lw.save(lw.open(path), tmp_path / "again.safetensors"),
        ):
            with pytest.raises(lw.FileError, match=r"damaged|unpacked"):
                verb()
        assert not any(value.any() for value in target.values())
        for options in (["--dtype", "float16"], []):
            assert main(["convert", str(path), str(tmp_path / "again.safetensors"), *options]) == 1
        assert not (tmp_path / "again.safetensors").exists()
        file.write_bytes(before)
    assert torch.equal(lw.load(empty(), path)["a"], state()["a"])


def test_the_error_names_every_damaged_leaf(tmp_path: Path) -> None:
    path, _ = written(tmp_path, writers.torch_zip)
    data = bytearray(path.read_bytes())
    for name in "ac":
        data[data.find(state()[name].numpy().tobytes()) + 7] ^= 4
    path.write_bytes(data)
    with pytest.raises(lw.ChecksumError, match="a is damaged: its checksum does not match; also damaged: c") as caught:
        lw.verify(path)
    assert caught.value.leaves == ("a", "c")
    assert torch.equal(lw.load(empty(), path, verify=False)["b"], state()["b"])


def test_a_view_of_a_damaged_storage_is_damaged(tmp_path: Path) -> None:
    base = torch.arange(1000.0)
    torch.save({"part": base[100:200], "turned": base.view(10, 100).T}, tmp_path / "a.pt")
    data = bytearray((tmp_path / "a.pt").read_bytes())
    data[data.find(base.numpy().tobytes()) + 4 * 150] ^= 1
    (tmp_path / "a.pt").write_bytes(data)
    target = {"part": torch.zeros(100), "turned": torch.zeros(100, 10)}
    with pytest.raises(lw.ChecksumError):
        lw.load(target, tmp_path / "a.pt")
    assert not any(value.any() for value in target.values())


def test_files_written_without_crc_are_not_checked_and_not_reported_as_damaged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with crc_switched_off():
        path, _ = written(tmp_path, writers.torch_zip)
    found = lw.verify(path)
    assert found[:4] == (0, 0, 3, ("PyTorch zip, written without CRC-32",))
    assert torch.equal(lw.load(empty(), path)["a"], state()["a"])
    assert main(["verify", str(path)]) == 1
    printed = capsys.readouterr().err
    assert "3 leaves without checksums (PyTorch zip, written without CRC-32): nothing could be verified" in printed


def test_a_checksum_that_is_zero_is_compared_if_others_are_not_zero(tmp_path: Path) -> None:
    path, _ = written(tmp_path, writers.torch_zip)
    wanted = zlib.crc32(state()["b"].numpy().tobytes()).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(wanted, bytes(4)))
    with pytest.raises(lw.ChecksumError, match="b is damaged"):
        lw.load(empty(), path)


WITHOUT = {
    "safetensors": "safetensors",
    "torch legacy": "PyTorch, before 1.6",
    "sharded safetensors": "safetensors",
    "GGUF": "GGUF",
    "MXNet V2": "MXNet params",
}


@pytest.mark.parametrize("name", WITHOUT)
def test_verify_reports_formats_without_checksums(name: str, tmp_path: Path) -> None:
    writers.WRITERS[name](tmp_path / "a", writers.arrays())
    assert lw.verify(tmp_path / "a")[:4] == (0, 0, 4, (WITHOUT[name],))


def test_verify_of_shards_lists_only_formats_without_checksums(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    torch.save({"a": torch.ones(3)}, folder / "model-00001-of-00002.bin")
    with crc_switched_off():
        torch.save({"b": torch.ones(3)}, folder / "model-00002-of-00002.bin")
    assert lw.verify(folder)[:4] == (1, 12, 1, ("PyTorch zip, written without CRC-32",))


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_checksums_of_parts_combine_to_that_of_the_whole(first: bytes, second: bytes, third: bytes) -> None:
    crc = crc32_of_both(zlib.crc32(first), zlib.crc32(second), len(second))
    assert crc32_of_both(crc, zlib.crc32(third), len(third)) == zlib.crc32(first + second + third)


def test_arrays_larger_than_one_task_of_a_thread_are_checked(tmp_path: Path) -> None:
    value = np.random.default_rng(0).integers(0, 255, (40 << 20) + 3, np.uint8)
    np.savez(tmp_path / "a.npz", value=value, other=np.ones(3))
    assert lw.verify(tmp_path / "a.npz")[:3] == (2, value.nbytes + 24, 0)
    target = {"value": np.zeros_like(value), "other": np.zeros(3)}
    lw.load(target, tmp_path / "a.npz")
    assert (target["value"] == value).all()
    with open(tmp_path / "a.npz", "r+b") as file:
        file.seek(30 << 20)
        file.write(bytes([~file.read(1)[0] & 255]))
    with pytest.raises(lw.ChecksumError, match="value is damaged"):
        lw.verify(tmp_path / "a.npz")


@pytest.mark.parametrize("compressed", [False, True])
def test_arrays_that_cannot_be_read_are_compared_too(compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    values = {"a": np.ones(3, np.float32), "texts": np.array(["leaf", "wise"] * 50)}
    (np.savez_compressed if compressed else np.savez)(path, **values)
    assert lw.verify(path)[:3] == (2, 12 + values["texts"].nbytes, 0)
    with pytest.raises(lw.Error, match="texts"):
        lw.save(lw.open(path), tmp_path / "b.safetensors")
    data = path.read_bytes()
    at = zipfile.ZipFile(path).getinfo("texts.npy").header_offset + 60
    for place in range(at, at + 60):
        path.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        with pytest.raises(lw.FileError):
            lw.verify(path)


@pytest.mark.parametrize("live", [True, False])
def test_every_chunk_of_an_array_has_its_own_checksum(live: bool, tmp_path: Path) -> None:
    values = {"w": torch.arange(2 * CHUNK + 1000, dtype=torch.int64).to(torch.uint8)}
    path = Path(lw.save(values, tmp_path / "w.safetensors"))
    if not live:  # written from a file, by other code
        path = Path(lw.save(lw.tree(path), tmp_path / "again.safetensors"))
    assert lw.verify(path).ok
    data = path.read_bytes()
    start = len(data) - values["w"].nbytes
    for chunk in range(3):
        damaged = bytearray(data)
        damaged[start + chunk * CHUNK + 7] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(lw.ChecksumError, match=f"at byte {start + chunk * CHUNK:,}: w is damaged"):
            lw.verify(path)
