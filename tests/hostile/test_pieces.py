"""The pieces of a distributed checkpoint must contain every element exactly once."""

import functools
import io
import itertools
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.files.writers import WRITERS
from tests.long import short_or_long

import leafwise as lw
from leafwise.files.arrays.pieces import NotTiledError, Pieces, tiled
from leafwise.files.arrays.stored import spec_of
from leafwise.files.limits import Limits


def _by_counting(shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> bool:
    times = np.zeros(shape, int)
    for position, size in boxes:
        times[tuple(slice(p, p + n) for p, n in zip(position, size, strict=True))] += 1
    return bool((times == 1).all())


@st.composite
def _boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """A grid that is cut at random; some of its boxes are then moved, dropped, doubled or made empty."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    ends = [sorted({0, size, *draw(st.lists(st.integers(0, size), max_size=3))}) for size in shape]
    cells = itertools.product(*[list(itertools.pairwise(end)) for end in ends])
    boxes = [(tuple(a for a, _ in cell), tuple(b - a for a, b in cell)) for cell in cells]
    for _ in range(draw(st.integers(0, 3))):
        position = tuple(draw(st.integers(0, size)) for size in shape)
        size = tuple(draw(st.integers(0, whole - at)) for at, whole in zip(position, shape, strict=True))
        if boxes and draw(st.booleans()):
            boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        if draw(st.booleans()):
            boxes.append((position, size))
    return shape, draw(st.permutations(boxes))


@settings(max_examples=short_or_long(150, 500), deadline=None)
@given(_boxes())
def test_the_check_that_pieces_cover_everything_once_agrees_with_counting(
    given: tuple[tuple[int, ...], list[tuple[tuple[int, ...], tuple[int, ...]]]],
) -> None:
    shape, boxes = given
    assert tiled(shape, boxes, Limits()) == _by_counting(shape, boxes)


def test_thirty_thousand_pieces_take_a_few_steps_each() -> None:
    boxes = [((row, 10 * column), (1, 10)) for row in range(300) for column in range(100)]
    random.Random(0).shuffle(boxes)
    limits = Limits(max_steps=200_000)
    assert tiled((300, 1000), boxes, limits)
    boxes[7] = boxes[8]  # a gap, and an equally large overlap
    assert not tiled((300, 1000), boxes, limits.anew())
    shifted = [((max(row - 1, 0),), (2,)) for row in range(5000)]
    assert not tiled((9999,), shifted, limits.anew())


def test_pieces_cannot_be_made_with_a_gap() -> None:
    halves = [((0,), (2,)), ((3,), (1,))]
    with pytest.raises(NotTiledError):
        Pieces(spec_of((4,), "float32"), [(*half, lambda: None) for half in halves], Limits())  # type: ignore[misc]


def _dcp(
    folder: Path, shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]], numbered: bool = True
) -> Path:
    """A distributed checkpoint with one tensor in these pieces; each is filled with the number of the piece, or with
    zeros."""
    from torch.distributed.checkpoint import metadata as meta
    from torch.distributed.checkpoint.filesystem import _StorageInfo

    folder.mkdir()
    chunks, where, data = [], {}, bytearray()
    for number, (position, size) in enumerate(boxes):
        chunks.append(meta.ChunkStorageMetadata(torch.Size(position), torch.Size(size)))
        item = _saved(size, float(number) if numbered else 0.0)
        index = meta.MetadataIndex("w", torch.Size(position), number)
        where[index] = _StorageInfo("0.distcp", len(data), len(item))
        data += item
    tensor = meta.TensorStorageMetadata(meta.TensorProperties(torch.float32), torch.Size(shape), chunks)
    (folder / "0.distcp").write_bytes(data)
    (folder / ".metadata").write_bytes(pickle.dumps(meta.Metadata({"w": tensor}, None, where)))
    return folder


@functools.cache
def _saved(size: tuple[int, ...], value: float) -> bytes:
    item = io.BytesIO()
    torch.save(torch.full(size, value), item)
    return item.getvalue()


def test_distributed_checkpoints_with_gaps_and_overlaps_are_refused(tmp_path: Path) -> None:
    good = [((0, 0), (2, 3)), ((0, 3), (2, 1)), ((2, 0), (1, 4))]
    with lw.open(_dcp(tmp_path / "good", (3, 4), good)) as tree:
        expected = np.array([[0, 0, 0, 1], [0, 0, 0, 1], [2, 2, 2, 2]], "float32")
        assert np.array_equal(tree["w"].numpy(), expected)
        assert np.array_equal(tree["w"].numpy((slice(1, None), slice(None, None, 2))), expected[1:, ::2])
    hole = [((0, 0), (2, 3)), ((0, 2), (2, 1)), ((2, 0), (1, 4))]  # the right number of elements
    with pytest.raises(lw.FileError, match="do not cover each of its 12 elements exactly once"):
        lw.open(_dcp(tmp_path / "hole", (3, 4), hole))


@pytest.mark.slow
def test_many_pieces_that_overlap_far_from_each_other_are_refused(tmp_path: Path) -> None:
    """In the order in which they begin, the two that overlap are more than two thousand pieces apart."""
    boxes = [((0, column), (1, 1)) for column in range(2500)]
    boxes = [((0, 0), (2, 1)), *boxes[1:], ((1, 0), (1, 2498)), ((1, 2499), (1, 1))]
    with pytest.raises(lw.FileError, match="do not cover each of its 5,000 elements exactly once"):
        lw.open(_dcp(tmp_path / "far", (2, 2500), boxes, numbered=False))


def test_pieces_must_contain_every_element_once(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata

    WRITERS["DCP"](tmp_path / "a", {"w": torch.randn(4, 5)})
    metadata = pickle.loads((tmp_path / "a" / ".metadata").read_bytes())
    said = metadata.state_dict_metadata["w"]
    said.size = torch.Size([8, 5])
    said.chunks = [ChunkStorageMetadata(torch.Size([0, 0]), torch.Size([4, 5]))] * 2
    (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(lw.FileError, match=r"do not cover each of its 40 elements exactly once"):
        lw.open(tmp_path / "a")
    for chunks in ([1, 2], 5):
        said.chunks = chunks
        (tmp_path / "a" / ".metadata").write_bytes(pickle.dumps(metadata))
        with pytest.raises(lw.FileError):
            lw.open(tmp_path / "a")
