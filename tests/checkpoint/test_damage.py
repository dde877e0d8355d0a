"""Every flipped bit of a saved file is reported, with the leaf or the byte; and the model stays as it is.

`make long` flips every bit of each byte; otherwise one bit of every fifth byte, of the bytes that give the length
of the header, and of the first and last byte of each leaf.
"""

import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests.checkpoint.models import Tied, bits
from tests.long import LONG, count

import leafwise as lw


def flips(size: int, name_of: dict[int, str]) -> list[tuple[int, int]]:
    if LONG:
        return [(byte, bit) for byte in range(size) for bit in range(8)]
    ends = {byte for pair in pairwise(range(size)) if name_of.get(pair[0]) != name_of.get(pair[1]) for byte in pair}
    some = sorted({*range(9), *range(9, size, 5), *ends, size - 1})
    return [(byte, (byte * 5 + byte // 8) % 8) for byte in some]


def flipped(data: bytes, byte: int, bit: int) -> bytes:
    damaged = bytearray(data)
    damaged[byte] ^= 1 << bit
    return bytes(damaged)


def check(path: Path, target: Path, name_of: dict[int, str]) -> None:
    """Flips bits of a file that belongs to the checkpoint `target`; `name_of` returns the leaf that a byte is in."""
    model = Tied()
    before = bits(model)
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8 if path.suffix == ".safetensors" else len(whole)
    chosen = flips(len(whole), name_of)
    count("bits flipped", len(chosen))
    try:
        for byte, bit in chosen:
            path.write_bytes(flipped(whole, byte, bit))
            said = []
            for look in (lambda: lw.verify(target), lambda: lw.load(model, target)):
                with pytest.raises(lw.FileError) as caught:
                    look()
                said.append(str(caught.value))
            for message in said:
                if byte >= header:
                    assert name_of[byte] in message, (byte, bit, message)
                elif byte >= 8:
                    # The flipped byte, or the place where the header became invalid because of it.
                    assert re.search(r"at byte [\d,]+", message), (byte, bit, message)
                    at = int(re.search(r"at byte ([\d,]+)", message)[1].replace(",", ""))  # type: ignore[index]
                    assert at == byte or "version" in message, (byte, bit, message)
            assert bits(model) == before, (byte, bit)
    finally:
        path.write_bytes(whole)
    assert lw.verify(target).unchecked == 0


def leaves_by_byte(path: Path) -> dict[int, str]:
    found = {}
    with lw.open(path) as t:
        for leaf in t:
            storage = t.columns.row_values[leaf.row].storage
            found.update(dict.fromkeys(range(storage.start, storage.start + storage.nbytes), str(leaf.path)))
    return found


@pytest.mark.slow
def test_a_flipped_bit_in_one_file_is_found(tmp_path: Path) -> None:
    path = Path(lw.save(Tied(width=2), tmp_path / "model.safetensors", metadata={"note": "é"}))
    with pytest.raises(lw.LoadError):
        lw.load(Tied(), path)
    path = Path(lw.save(Tied(), path))
    check(path, path, leaves_by_byte(path))


@pytest.mark.slow
def test_a_flipped_bit_in_shards_or_their_index_is_found(tmp_path: Path) -> None:
    index = Path(lw.save(Tied(), tmp_path / "model.safetensors", shard_size=200))
    shards = sorted(tmp_path.glob("*-of-*"))
    assert len(shards) == 2
    check(index, index, {})
    for shard in shards[-1:]:
        check(shard, index, leaves_by_byte(shard))


def test_damage_in_a_large_header_is_reported_with_its_byte(tmp_path: Path) -> None:
    path = Path(
        lw.save({f"some.long.name.{number}": torch.ones(1) for number in range(300)}, tmp_path / "a.safetensors")
    )
    whole = path.read_bytes()
    for byte in (8, 20, 40, 60, 4095, 4096, 10_000, 20_000):
        path.write_bytes(flipped(whole, byte, 1))
        with pytest.raises(lw.FileError, match=rf"at byte {byte:,}: the header is damaged"):
            lw.open(path)
    for length in (0, 7, 8, 100, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(lw.FileError, match=r"cut off|damaged"):
            lw.verify(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(lw.FileError, match=r"follow the last array, where the file should end"):
        lw.verify(path)


def test_several_damaged_leaves_are_all_named(tmp_path: Path) -> None:
    path = Path(lw.save({name: torch.ones(100) for name in "abcdef"}, tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    data[-2000] ^= 1
    path.write_bytes(data)
    for look in (lambda: lw.verify(path), lambda: lw.load({name: torch.zeros(100) for name in "abcdef"}, path)):
        with pytest.raises(lw.ChecksumError) as caught:
            look()
        assert caught.value.leaves == ("b", "f")
    target = {name: torch.zeros(100) for name in "abcdef"}
    lw.load(target, path, verify=False)
    assert target["a"].all()


def test_a_rewritten_file_is_read_as_any_other_and_a_kept_entry_is_refused(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = Path(lw.save(Tied(), tmp_path / "a.safetensors"))
    with safe_open(path, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    save_file(tensors, tmp_path / "moved.safetensors", {"another": "entry", **metadata})
    outcomes = set()
    for _ in range(8):  # in whatever order the library writes metadata
        save_file({**tensors, "more": torch.ones(3)}, tmp_path / "moved.safetensors", {"a": "b", **metadata})
        try:
            outcomes.add(lw.verify(tmp_path / "moved.safetensors").unchecked)
        except lw.ChecksumError:
            outcomes.add(-1)
    assert outcomes <= {-1, len(tensors) + 1}
    assert lw.tree(str(tmp_path / "moved.safetensors")) if -1 not in outcomes else True
    kept = lw.load(dict.fromkeys([*tensors, "more"], 0) | {k: torch.zeros_like(v) for k, v in tensors.items()}
                   | {"more": torch.zeros(3)}, tmp_path / "moved.safetensors", verify=False, ties="ignore",
                   allow={"unexpected"})  # fmt: skip
    assert torch.equal(kept["more"], torch.ones(3))


def test_a_file_whose_header_is_damaged_is_read_as_any_other_if_it_is_not_verified(tmp_path: Path) -> None:
    source = Tied()
    path = Path(lw.save(source, tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[data.index(b"leafwise/1 ") + len(b"leafwise/1 ")] ^= 1  # the first digit of the checksums of the header
    path.write_bytes(data)
    with pytest.raises(lw.ChecksumError, match="the header is damaged"):
        lw.load(Tied(), path)
    loaded = lw.load(Tied(), path, verify=False)
    assert bits(loaded) == bits(source)


def test_damage_is_found_while_a_model_on_meta_gets_its_values(tmp_path: Path) -> None:
    path = Path(lw.save(Tied(), tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with torch.device("meta"):
        model = Tied()
    model.scratch = torch.zeros(3)
    with pytest.raises(lw.ChecksumError, match="is damaged"):
        lw.load(model, path)
    assert model.embed.weight.is_meta


@pytest.mark.parametrize("background", [False, True])
def test_a_damaged_checkpoint_does_not_get_new_checksums(background: bool, tmp_path: Path) -> None:
    path = Path(lw.save(Tied(), tmp_path / "a.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    def save_again() -> None:
        saved = lw.save(lw.tree(path), tmp_path / "b.safetensors", background=background)
        if not isinstance(saved, str):
            saved.wait()

    with pytest.raises(lw.ChecksumError, match="is damaged"):
        save_again()
    assert not (tmp_path / "b.safetensors").exists()
