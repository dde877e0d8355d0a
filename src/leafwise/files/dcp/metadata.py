"""The file `.metadata` of a distributed checkpoint: a pickle of PyTorch's own classes, written without PyTorch."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from leafwise.files.dcp.names import Keys, flat_name
from leafwise.files.pickles.pickle_writer import Call, Global, Made, pickled

_METADATA = "torch.distributed.checkpoint.metadata."
_INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
_VERSION = "1.0.0"  # of PyTorch's format

Shape = tuple[int, ...]


class StoredBox(NamedTuple):
    """A part of a tensor, or a plain value: the position of its first element and its shape, the file, and where the
    item is in it. Plain values have no position."""

    position: Shape | None
    size: Shape
    file: str
    offset: int
    length: int


class StoredTensor(NamedTuple):
    """A tensor with its parts."""

    keys: Keys
    dtype: str
    shape: Shape
    boxes: list[StoredBox]


def metadata_bytes(tensors: Iterable[StoredTensor], values: Mapping[Keys, StoredBox], save_id: str) -> bytes:
    """The pickle. `values` are the plain values, by their keys."""
    described: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    keys_of: dict[str, Any] = {}
    for tensor in tensors:
        name = flat_name(tensor.keys)
        keys_of[name] = tensor.keys
        properties = Made(f"{_METADATA}TensorProperties", _properties(tensor.dtype))
        chunks = []
        for number, box in enumerate(tensor.boxes):
            assert box.position is not None
            sizes = {"offsets": _size(box.position), "sizes": _size(box.size)}
            chunks.append(Made(f"{_METADATA}ChunkStorageMetadata", sizes))
            places[_index(name, box.position, number)] = _place(box)
        state = {"properties": properties, "size": _size(tensor.shape), "chunks": chunks}
        described[name] = Made(f"{_METADATA}TensorStorageMetadata", state)
    for keys, box in values.items():
        name = flat_name(keys)
        keys_of[name] = keys
        described[name] = Made(f"{_METADATA}BytesStorageMetadata", {})
        places[_index(name, None, None)] = _place(box)
    about: dict[str, Any] = {"checkpoint_id": None, "save_id": save_id, "load_id": None, "modules": []}
    state = {
        "state_dict_metadata": described,
        "planner_data": keys_of,
        "storage_data": places,
        "storage_meta": Made(f"{_METADATA}StorageMeta", about),
        "version": _VERSION,
    }
    return pickled(Made(f"{_METADATA}Metadata", state))


def _properties(dtype: str) -> tuple[Any, ...]:
    layout = Call("torch.serialization._get_layout", "torch.strided")
    contiguous = Call(f"{_METADATA}_MEM_FORMAT_ENCODING", 0)
    return Global(f"torch.{dtype}"), layout, False, contiguous, False


def _size(shape: Shape) -> Call:
    return Call("torch.Size", shape)


def _index(name: str, position: Shape | None, number: int | None) -> Made:
    state = {"fqn": name, "index": number}
    if position is not None:
        state["offset"] = _size(position)  # type: ignore[assignment]
    return Made(f"{_METADATA}MetadataIndex", state)


def _place(box: StoredBox) -> Made:
    return Made(_INFO, {"relative_path": box.file, "offset": box.offset, "length": box.length})
