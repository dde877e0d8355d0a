"""The file `.metadata` of a distributed checkpoint: a pickle of PyTorch's own classes, written without PyTorch."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from leafwise.files.dcp.names import Keys, flat_name
from leafwise.files.pickles.pickle_writer import Call, Global, Made, pickled

_METADATA = "torch.distributed.checkpoint.metadata."
_INDEX = f"{_METADATA}MetadataIndex"
_INFO = "torch.distributed.checkpoint.filesystem._StorageInfo"
_VERSION = "1.0.0"  # of PyTorch's format

Shape = tuple[int, ...]


class StoredBox(NamedTuple):
    """A part of a tensor: the position of its first element and its shape, the file, and where the item is in it."""

    position: Shape
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


def metadata_bytes(tensors: Iterable[StoredTensor], values: Mapping[Keys, tuple[str, int, int]], save_id: str) -> bytes:
    """The pickle. `values` are the file, the offset and the length of each plain value, by its keys."""
    described: dict[str, Any] = {}
    places: dict[Any, Any] = {}
    keys_of: dict[str, Any] = {}
    for tensor in tensors:
        name = flat_name(tensor.keys)
        keys_of[name] = tensor.keys
        properties = Made(f"{_METADATA}TensorProperties", _properties(tensor.dtype))
        chunks = []
        for number, box in enumerate(tensor.boxes):
            sizes = {"offsets": _size(box.position), "sizes": _size(box.size)}
            chunks.append(Made(f"{_METADATA}ChunkStorageMetadata", sizes))
            index = Made(_INDEX, {"fqn": name, "index": number, "offset": _size(box.position)})
            places[index] = _place(box.file, box.offset, box.length)
        state = {"properties": properties, "size": _size(tensor.shape), "chunks": chunks}
        described[name] = Made(f"{_METADATA}TensorStorageMetadata", state)
    for keys, place in values.items():
        name = flat_name(keys)
        keys_of[name] = keys
        described[name] = Made(f"{_METADATA}BytesStorageMetadata", {})
        places[Made(_INDEX, {"fqn": name, "index": None})] = _place(*place)
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


def _place(file: str, offset: int, length: int) -> Made:
    return Made(_INFO, {"relative_path": file, "offset": offset, "length": length})
