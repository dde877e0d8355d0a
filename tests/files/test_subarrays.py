"""Parts of stored arrays. The truth is NumPy's own indexing."""

from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import leafwise as lw
from leafwise.files.arrays.pieces import Pieces
from leafwise.files.arrays.stored import Stored, Strided
from leafwise.files.arrays.subarrays import subarray, touched
from leafwise.files.checksums import CHUNK
from leafwise.files.limits import Limits
from leafwise.files.reading import checked_reads

SHAPE = (7, 5, 4)
VALUES = np.arange(prod(SHAPE), dtype=np.float32).reshape(SHAPE)
BOX = st.tuples(*[st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted).map(lambda e: slice(*e)) for n in SHAPE])
INDEX = st.tuples(*[st.slices(n) for n in SHAPE])


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stored]:
    """The same values, stored in every way."""
    folder = tmp_path_factory.mktemp("sections")
    lw.save({"w": VALUES}, folder / "w.safetensors")
    torch.save({"w": torch.from_numpy(VALUES)}, folder / "w.pt")
    turned = torch.from_numpy(VALUES.transpose(2, 0, 1).copy()).permute(1, 2, 0)
    torch.save({"w": turned}, folder / "turned.pt")
    negated = torch.complex(torch.zeros(SHAPE), -torch.from_numpy(VALUES)).conj().imag
    assert negated.is_neg()
    torch.save({"w": negated}, folder / "negated.pt")
    np.save(folder / "big.npy", VALUES.astype(">f4"))
    np.savez_compressed(folder / "packed.npz", w=VALUES)
    stored = {}
    for path in sorted(folder.iterdir()):
        t = lw.open(path)
        (leaf,) = t
        stored[path.name] = t.columns.row_values[0]
        assert np.array_equal(leaf.numpy(), VALUES), path
    whole = stored["w.safetensors"]
    cuts = [slice(0, 3), slice(3, 4), slice(4, 7)]
    pieces = [
        (
            (cut.start, low, 0),
            (cut.stop - cut.start, high - low, 4),
            _piece(whole, (cut, slice(low, high), slice(0, 4))),
        )
        for cut in cuts
        for low, high in ((0, 2), (2, 5))
    ]
    stored["pieces"] = Pieces(whole.spec, pieces, Limits.none())
    return stored


def _piece(whole: Stored, box: Any) -> Any:
    return lambda: subarray(whole, box)


@pytest.mark.slow
@given(BOX, INDEX)
@settings(max_examples=150)
def test_a_section_has_the_values_of_its_box(arrays: dict[str, Stored], box: Any, index: Any) -> None:
    expected = VALUES[box]
    for name, array in arrays.items():
        part = subarray(array, box)
        assert part.spec.shape == expected.shape, name
        assert part.spec.nbytes == expected.nbytes, name
        assert np.array_equal(part.read(), expected), name
        assert np.array_equal(part.read(index), expected[index]), name
        assert b"".join(map(bytes, part.chunks())) == expected.tobytes(), name
        if expected.size:
            assert np.array_equal(checked_reads.checked_subarray(name, part), expected), name
        runs = part.runs()
        if runs is not None:
            memory = bytearray(expected.nbytes)
            for storage, start, at, nbytes in runs:
                memory[at : at + nbytes] = storage.read(start, start + nbytes)
            assert bytes(memory) == expected.tobytes(), name


def test_an_index_into_a_section_counts_from_the_start_of_the_section(arrays: dict[str, Stored]) -> None:
    box = slice(2, 6), slice(1, 5), slice(1, 3)
    for name, array in arrays.items():
        part = subarray(array, box)
        for index in ((0,), (3, slice(None), 1), (-1, 2, 0)):
            assert np.array_equal(part.read(index), VALUES[box][index]), name


def test_only_the_checksums_of_a_section_are_compared(tmp_path: Path) -> None:
    rows = 6
    values = np.random.default_rng(0).integers(0, 255, (rows, CHUNK), dtype=np.uint8)
    path = Path(lw.save({"w": values}, tmp_path / "w.safetensors"))
    with lw.open(path) as t:
        array: Strided = t.columns.row_values[0]
        data = bytearray(path.read_bytes())
        data[array.storage.start + 3 * CHUNK] ^= 1  # the first byte of row 3
    path.write_bytes(data)
    with lw.open(path) as t:
        array = t.columns.row_values[0]
        for row in range(rows):
            part = subarray(array, (slice(row, row + 1), slice(0, 10)))
            assert [(start, stop) for _, start, stop in touched(part)] == [(row * CHUNK, (row + 1) * CHUNK)]
            for check in (
                lambda part=part: checked_reads.verify_subarrays([("w", part)]),
                lambda part=part: part_of(part),
            ):
                if row == 3:
                    with pytest.raises(lw.ChecksumError, match="w is damaged"):
                        check()
                else:
                    check()


def part_of(part: Stored) -> Any:
    return checked_reads.checked_subarray("w", part)
