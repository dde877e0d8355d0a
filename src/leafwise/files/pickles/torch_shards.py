"""Tensors of which a file has only the part of one process: DTensor, and the ShardedTensor of FSDP1.

`torch.save` stores the part, and how the whole is split. A tensor that is all there becomes a normal array. Otherwise
its shape is shown, and its values are refused until the files of the other processes are opened with it; see
`rank_files`.
"""

from collections.abc import Iterable, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from leafwise.core.home import Spec
from leafwise.core.opaque import Opaque
from leafwise.files.arrays.pieces import NotTiledError, Piece, Pieces
from leafwise.files.arrays.slices import is_shape, sliced
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored, Strided, Unreadable, spec_of
from leafwise.files.limits import Limits
from leafwise.files.pickles.pickle_objects import TensorParts

_MOST_RUNS = 10_000  # ranges of indices along an axis
_MESH_AXES = 16
_RUN_STEPS = 12  # of work for each run of elements that is cut
_BOX_BYTES, _BOX_STEPS = 600, 80  # of memory and work for each part of a tensor

Run = tuple[int, int]  # from, to
Shape = tuple[int, ...]


class Box(NamedTuple):
    """A part of a tensor: the position of its first element, and the stored array, which has the shape of the part."""

    position: Shape
    array: Stored

    @property
    def size(self) -> Shape:
        return self.array.spec.shape or ()

    def text(self) -> str:
        """The part as an index, for messages."""
        ranges = [f"{start}:{start + size}" for start, size in zip(self.position, self.size, strict=True)]
        return f"[{', '.join(ranges)}]"


class PartOfTensor(Unreadable):
    """A tensor of which only some parts are there."""

    __slots__ = ("boxes",)

    def __init__(self, spec: Spec, boxes: Sequence[Box], of_files: int = 1) -> None:
        there = sum(prod(box.size) for box in boxes)
        texts = [box.text() for box in boxes[:3]] or ["no element"]
        parts = " and ".join(texts) + (f" and {len(boxes) - 3:,} more parts" if len(boxes) > 3 else "")
        have = "this file has" if of_files == 1 else f"these {of_files:,} files have"
        super().__init__(
            spec._replace(device=f"file, part {parts}", nbytes=sum(box.array.spec.nbytes for box in boxes)),
            f"{have} only {parts} of it, {there:,} of {spec.size:,} elements; open the files of all processes "
            "together, as a folder or as a list",
        )
        self.boxes = list(boxes)

    def storages(self) -> list[Storage]:
        return [storage for box in self.boxes for storage in box.array.storages()]


def whole_or_part(shape: Shape, dtype: str, trainable: bool | None, boxes: list[Box], of_files: int = 1) -> Stored:
    """The tensor that consists of these boxes, which do not overlap; if some are missing, a `PartOfTensor`."""
    spec = spec_of(shape, dtype, trainable=trainable)
    boxes = [box for box in boxes if prod(box.size)]
    if len(boxes) == 1 and boxes[0].size == shape and isinstance(boxes[0].array, Strided):
        local = boxes[0].array
        return Strided(spec, local.storage, local.offset, local.strides, local.big_endian)
    pieces: list[Piece] = [(box.position, box.size, lambda array=box.array: array) for box in boxes]  # type: ignore[misc]
    try:
        return Pieces(spec, pieces, Limits())
    except NotTiledError:
        return PartOfTensor(spec, boxes, of_files)


def tensor_of(parts: TensorParts) -> Stored | None:
    """The tensor that its pickled parts describe; None if it is of another kind, or if it has an unknown form."""
    name = parts.class_name.rpartition(".")[2]
    if name not in ("DTensor", "ShardedTensor") or ".distributed." not in parts.class_name or len(parts.args) < 7:
        return None
    shape, trainable = parts.args[1], True if parts.args[6] is True else None
    if not is_shape(shape):
        return None
    shape = tuple(shape)
    if name == "DTensor":
        local, spec = parts.get("_local_tensor"), parts.get("_spec")
        if not isinstance(local, Strided) or not isinstance(spec, Opaque):
            return None
        placements = _sequence(spec.get("placements"))
        if len(placements) > _MESH_AXES:
            return None
        if any(_kind(placement) == "Partial" for placement in placements):
            why = "it is a partial sum of one process; redistribute it before saving"
            return Unreadable(spec_of(shape, local.spec.dtype, trainable=trainable), why, local.storage)
        boxes = _boxes_of_dtensor(local, spec, shape)
    else:
        boxes = _boxes_of_shards(parts.state, shape)
    if boxes is None:
        return None
    dtypes = {box.array.spec.dtype for box in boxes} or {str(getattr(parts.args[0], "make", ""))}
    dtype = dtypes.pop()
    return whole_or_part(shape, dtype, trainable, boxes) if not dtypes and dtype in ITEM_BYTES else None


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, tuple | list) else ()


def _kind(placement: Any) -> str:
    return placement.class_name.rpartition(".")[2] if isinstance(placement, Opaque) else ""


# -- DTensor -----------------------------------------------------------------------------------------------------


def _boxes_of_dtensor(local: Strided, spec: Opaque, shape: Shape) -> list[Box] | None:
    placements = _sequence(spec.get("placements"))
    if len(_sequence(spec.get("shard_order"))) > _MESH_AXES:
        return None
    mesh = spec.get("mesh")
    sizes, coordinate = _mesh_of(mesh) if isinstance(mesh, Opaque) else (None, None)
    if sizes is None or coordinate is None or not len(placements) == len(sizes) == len(coordinate):
        return None
    if not _in_default_order(spec.get("shard_order")):
        return None
    runs: list[list[Run]] = [[(0, size)] for size in shape]
    for placement, count, number in zip(placements, sizes, coordinate, strict=True):
        kind, axis = _kind(placement), placement.get("dim") if isinstance(placement, Opaque) else None
        if kind == "Replicate":
            continue
        if kind not in ("Shard", "_StridedShard") or type(axis) is not int or not 0 <= axis < len(shape):
            return None
        factor = placement.get("split_factor", placement.get("sf")) if kind == "_StridedShard" else 1
        if type(factor) is not int or not 1 <= factor <= _MOST_RUNS:
            return None
        if factor * len(runs[axis]) > _MOST_RUNS:
            return None
        local.storage.source.limits.spend_steps(_RUN_STEPS * factor * (len(runs[axis]) + 1))
        pieces = (_chunk(runs[axis], factor, piece) for piece in range(factor))
        runs[axis] = _joined(run for piece in pieces for run in _chunk(piece, count, number))
    if tuple(sum(stop - start for start, stop in along) for along in runs) != (local.spec.shape or ()):
        return None  # it is split in a way that this version of leafwise does not know
    count = prod(max(len(along), 1) for along in runs)
    if count > _MOST_RUNS:
        return None
    _spend_boxes(local, count)
    return list(_cut(local, runs))


def _spend_boxes(local: Strided, count: int) -> None:
    """Counts boxes: many tensors may refer to the same description of them."""
    local.storage.source.limits.spend_bytes(_BOX_BYTES * count)
    local.storage.source.limits.spend_steps(_BOX_STEPS * count)


def _mesh_of(mesh: Opaque) -> tuple[Shape | None, Shape | None]:
    """The shape of a mesh of processes, and the coordinate of the process that wrote the file."""
    coordinate = mesh.get("_coordinate_on_dim")
    array, layout = mesh.get("mesh"), mesh.get("_layout")
    sizes: Any = None
    if isinstance(array, Stored):
        sizes = array.spec.shape
    elif isinstance(layout, Opaque):
        axes, shape = _sequence(layout.get("axes")), _sequence(layout.get("shape"))
        if len(axes or shape) > _MESH_AXES:
            return None, None
        shapes = [axis.get("shape") for axis in axes if isinstance(axis, Opaque)] if axes else shape
        sizes = list(map(_flat_size, shapes))
    if not is_shape(sizes) or not is_shape(coordinate) or len(sizes) > _MESH_AXES:
        return None, None
    if not all(number < size for number, size in zip(coordinate, sizes, strict=False)):
        return None, None
    return tuple(sizes), tuple(coordinate)


def _flat_size(size: Any) -> Any:
    """The number of processes along an axis, which may itself consist of several."""
    if not isinstance(size, tuple | list):
        return size
    sizes: list[Any] = []
    for part in size[: _MESH_AXES + 1]:
        sizes += part[: _MESH_AXES + 1] if isinstance(part, tuple | list) else [part]
        if len(sizes) > _MESH_AXES:
            return None
    return prod(sizes) if all(type(part) is int for part in sizes) else None


def _in_default_order(order: Any) -> bool:
    """Whether the axes of the mesh split each axis of the tensor from left to right."""
    for entry in _sequence(order):
        mesh_axes: Any = entry.args[1] if isinstance(entry, Opaque) and len(entry.args) == 2 else None
        if not is_shape(mesh_axes) or list(mesh_axes) != sorted(mesh_axes):
            return False
    return True


def _chunk(runs: Sequence[Run], count: int, number: int) -> list[Run]:
    """The indices that `torch.chunk` puts into the chunk with this number.

    >>> _chunk([(0, 3), (6, 10)], 2, 0), _chunk([(0, 3), (6, 10)], 2, 1), _chunk([(0, 1)], 2, 1)
    ([(0, 3), (6, 7)], [(7, 10)], [])
    """
    length = sum(stop - start for start, stop in runs)
    size = -(-length // count)
    low, high = number * size, min((number + 1) * size, length)
    chunk, at = [], 0
    for start, stop in runs:
        first, last = max(low - at, 0), min(high - at, stop - start)
        if first < last:
            chunk.append((start + first, start + last))
        at += stop - start
    return chunk


def _joined(runs: Iterable[Run]) -> list[Run]:
    """Runs of which no two follow one another without a gap."""
    joined: list[Run] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = joined[-1][0], stop
        else:
            joined.append((start, stop))
    return joined


def _cut(local: Strided, runs: list[list[Run]]) -> Iterable[Box]:
    """The boxes of the whole tensor that a local tensor consists of."""
    along_axes = []
    for along in runs:
        at, placed = 0, []
        for start, stop in along:
            placed.append((start, slice(at, at + stop - start)))
            at += stop - start
        along_axes.append(placed)
    for parts in product(*along_axes):
        yield Box(tuple(start for start, _ in parts), _slice_of(local, tuple(part for _, part in parts)))


def _slice_of(local: Strided, index: tuple[slice, ...]) -> Strided:
    offset, shape, strides = sliced(local.memory(), index)
    if shape == local.spec.shape:
        return local
    return Strided(spec_of(shape, local.spec.dtype), local.storage, offset, strides, local.big_endian)


# -- ShardedTensor -----------------------------------------------------------------------------------------------


def _boxes_of_shards(state: Any, shape: Shape) -> list[Box] | None:
    """The local shards, each with the position that is stored beside it."""
    shards = state[0] if isinstance(state, tuple) and state else None
    if not isinstance(shards, list):
        return None
    boxes: list[Box] = []
    for shard in shards:
        metadata = shard.get("metadata") if isinstance(shard, Opaque) else None
        array = shard.get("tensor") if isinstance(shard, Opaque) else None
        if not isinstance(metadata, Opaque) or not isinstance(array, Strided):
            return None
        _spend_boxes(array, 1)
        position, size = metadata.get("shard_offsets"), metadata.get("shard_sizes")
        if not is_shape(position) or not is_shape(size) or tuple(size) != array.spec.shape:
            return None
        if len(position) != len(shape) or any(
            start + length > whole for start, length, whole in zip(position, size, shape, strict=False)
        ):
            return None
        boxes.append(Box(tuple(position), array))
    return boxes
