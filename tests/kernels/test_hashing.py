"""The checksums of the C code are those of xxhash."""

import os
from typing import Any

import pytest
import xxhash

from leafwise.files.checksums import ChunkChecksums
from leafwise.kernels import library, reading
from leafwise.kernels.reading import checksums_of

CHUNK = 1 << 20
# Around the ends of stripes of 64 bytes and of blocks of 1024.
LENGTHS = [241, 255, 256, 257, 319, 320, 321, 1023, 1024, 1025, 1087, 1088, 1089, 2047, 2048, 2049, 99_999, CHUNK]


@pytest.fixture(autouse=True)
def built() -> None:
    if checksums_of(bytes(300), 300) is None:
        pytest.skip("leafwise was installed without a C compiler")


@pytest.mark.parametrize("instruction_set", [1, None])
@pytest.mark.parametrize("length", LENGTHS)
def test_checksums_are_those_of_xxhash(
    length: int, instruction_set: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if instruction_set is not None:
        monkeypatch.setattr(library.load(), "leafwise_instruction_sets", lambda: instruction_set)
    data = os.urandom(length)
    assert checksums_of(data, CHUNK) == [xxhash.xxh3_64_intdigest(data)]
    shifted = memoryview(b"x" + data)[1:]  # at an odd address
    assert checksums_of(shifted, CHUNK) == [xxhash.xxh3_64_intdigest(data)]


@pytest.mark.parametrize("piece", [241, 1000, 4096, 65_536])
def test_each_piece_has_its_own_checksum(piece: int) -> None:
    data = os.urandom(10 * piece + 300 % piece)
    expected = [xxhash.xxh3_64_intdigest(data[at : at + piece]) for at in range(0, len(data), piece)]
    assert checksums_of(data, piece) == (expected if 300 % piece > 240 or not 300 % piece else None)


def test_short_pieces_are_left_to_xxhash() -> None:
    assert checksums_of(bytes(2400), 240) is None
    assert checksums_of(bytes(1240), 1000) is None
    assert checksums_of(bytes(1241), 1000) is not None


@pytest.mark.parametrize("in_c", [True, False])
@pytest.mark.parametrize("rest", [0, 100, 5000])
def test_damage_is_found_wherever_the_checksums_are_computed(
    rest: int, in_c: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_c:
        monkeypatch.setattr(reading, "load_with", lambda function: None)
    data = bytearray(os.urandom(4 * 8192 + rest))
    pieces: list[Any] = [data[at : at + 8192] for at in range(0, len(data), 8192)]
    digits = "".join(f"{xxhash.xxh3_64_intdigest(piece):016x}" for piece in pieces)
    sums = ChunkChecksums("f" * 32 + digits, 2, 8192)
    for flipped in (0, 8192, 3 * 8192 - 1, len(data) - 1):
        data[flipped] ^= 1
        whole, parts = sums.new_pass(), sums.new_pass()
        whole.add(0, data)
        parts.add(2 * 8192, memoryview(data)[2 * 8192 :])
        parts.add(0, memoryview(data)[: 2 * 8192])
        assert whole.damaged() == parts.damaged() == [flipped // 8192 * 8192]
        data[flipped] ^= 1
    clean = sums.new_pass()
    clean.add(0, data)
    assert clean.damaged() == []
