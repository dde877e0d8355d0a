"""PyTorch Distributed Checkpoint: a folder with a pickle called `.metadata`, and files with pieces of tensors."""

import re
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from leafwise.core.opaque import Opaque
from leafwise.core.path import escape
from leafwise.errors import FileError
from leafwise.files.arrays.pieces import NotTiledError, Piece, Pieces
from leafwise.files.arrays.slices import counts
from leafwise.files.arrays.stored import ITEM_BYTES, Storage, Stored, spec_of
from leafwise.files.checksums import checksum
from leafwise.files.dcp import record
from leafwise.files.formats.inner_files import read_pickle
from leafwise.files.formats.torch_zip import entries, unpickled
from leafwise.files.limits import LimitError, names_cost
from leafwise.files.pickles.pickle_objects import (
    GlobalName,
    Table,
    TruncatedPickleError,
    UnpicklingError,
    Usage,
    pickled_object,
    shown,
)
from leafwise.files.pickles.torch_objects import TABLE, TorchDtype
from leafwise.files.pickles.unpickler import Unpickler, truncated_pickle
from leafwise.files.sources.folder import Folder
from leafwise.files.sources.source import PartSource, Source
from leafwise.files.stored_file import StoredFile

_METADATA = "torch.distributed.checkpoint.metadata"
_BYTES_OF_PIECE = 600  # bytes of memory for a piece
_LONGEST_OBJECT = 1 << 26  # bytes; longer ones are not read
_RANK = re.compile(r"__\d+\.metadata")
_ENUM = "_MEM_FORMAT_ENCODING"


def _member(owner: Any, name: Any) -> Opaque:
    """A member of an enum, which Python 3.11.0 to 3.11.3 pickle as a call to getattr. No attribute is looked up."""
    if owner != f"{_METADATA}.{_ENUM}" or not isinstance(owner, GlobalName) or not isinstance(name, str):
        raise UnpicklingError(f"it contains an attribute of {shown(owner)}, which leafwise does not load")
    return Opaque(_ENUM, (name,))


DCP_TABLE: Table = {
    **TABLE,
    **{
        (_METADATA, name): pickled_object(name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "MetadataIndex",
            "TensorProperties",
            "StorageMeta",
            _ENUM,
        )
    },
    ("builtins", "getattr"): _member,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): pickled_object("_StorageInfo"),
    ("torch.distributed.checkpoint.filesystem", "StorageInfo"): pickled_object("_StorageInfo"),
}


def read(folder: Folder) -> StoredFile:
    """Opens the folder: by leafwise's record if there is one, otherwise by `.metadata`."""
    source = folder.open(".metadata")
    data = bytes(source.read(0, source.size))
    if (opened := record.read(folder, source, data)) is not None:
        return opened
    tensors, storage_data = _described(source, data)
    places = _PieceLocations(folder, source, storage_data)
    record.check_foreign(folder, source, places.files())
    if not all(isinstance(name, str) for name in tensors):
        raise source.error(0, "the pickle contains a tensor whose name is not text")
    arrays = {name: _entry(source, name, description, places) for name, description in tensors.items()}
    source.close()
    opened = StoredFile(source, "DCP", arrays, sources=places.opened)
    opened.unread_objects = places.unread
    opened.unread_objects += [
        partial(_read_rank, folder, source, name) for name in filter(_RANK.fullmatch, folder.names)
    ]
    opened.seal = checksum(data)  # PyTorch writes an identifier of the save into it
    return opened


def _read_rank(folder: Folder, source: Source, name: str) -> None:
    """Adds to the names those of a pickle of one rank, which PyTorch reads if `.metadata` cannot be unpickled."""
    part = folder.open(name)
    try:
        read_pickle(Storage(part, 0, part.size), source, f"{name!a}")
    finally:
        part.close()


def data_files(folder: Folder) -> set[str]:
    """The data files that `.metadata` in the folder refers to; none if there is no `.metadata`."""
    if ".metadata" not in folder.names:
        return set()
    source = folder.open(".metadata")
    _, storage_data = _described(source, bytes(source.read(0, source.size)))
    source.close()
    return _PieceLocations(folder, source, storage_data).files()


def _described(source: Source, data: bytes) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The descriptions of the tensors, and where they are stored."""
    try:
        content = Unpickler(data, DCP_TABLE, None, source.error, source.limits, names=source.pickle_names).run()
    except TruncatedPickleError:
        raise truncated_pickle(source, source.size) from None
    if not isinstance(content, Opaque) or content.class_name != "Metadata":
        raise source.error(0, "the pickle does not describe a checkpoint")
    tensors, storage_data = content.get("state_dict_metadata"), content.get("storage_data")
    if not isinstance(tensors, dict) or not isinstance(storage_data, dict):
        raise source.error(0, "the pickle does not list the tensors and where they are stored")
    return tensors, storage_data


def _object(source: Source, name: str, places: "_PieceLocations") -> Any:
    """A plain value, or another object, as its pickle describes it. If it is large or cannot be read, only a text that
    says so: the tensors can still be read."""
    length = places.length(name)
    item = places.item(name, ())
    if length > _LONGEST_OBJECT:
        places.unread.append(lambda: _unpickled_object(source, name, item))
        return UnreadObject(f"an object of {length:,} bytes, not read")
    try:
        return _unpickled_object(source, name, item)
    except LimitError:
        raise
    except FileError as error:
        # PyTorch reads it with torch.load, which may find another kind of file in it.
        source.pickle_names["torch", "load"] = Usage(f"for {name[:200]!a}, which leafwise cannot read")
        return UnreadObject(f"an object of {length:,} bytes, which cannot be read: {error}")


def _unpickled_object(source: Source, name: str, item: Callable[[], Source]) -> Any:
    part = item()
    part.limits = source.limits
    content = _unzipped(part, f"{name!a}")
    for named, use in part.pickle_names.items():
        source.pickle_names[named] = use.combined(source.pickle_names.get(named))
    return content


def _unzipped(part: Source, what: str) -> Any:
    """The content of an item, which is a zip file of `torch.save`. Errors refer to it as `what`."""
    zip_entries = entries(part)
    pickles = [entry for entry in zip_entries if entry.rpartition("/")[2] == "data.pkl"]
    if len(pickles) != 1 or any(entry.rpartition("/")[2] == "constants.pkl" for entry in zip_entries):
        raise part.error(0, f"{what} is not a PyTorch zip file")
    return unpickled(part, zip_entries, pickles[0].removesuffix("data.pkl"), TABLE)


class _PieceLocations:
    """Where each piece is stored, by the name of the tensor and the position of the piece."""

    def __init__(self, folder: Folder, source: Source, storage_data: dict[Any, Any]) -> None:
        self._folder, self._source = folder, source
        self.opened: dict[str, Source] = {}
        self.unread: list[Callable[[], object]] = []  # read the objects that are only listed
        # Keyed by the text of the position: a hostile file can choose tuples of numbers that have the same hash.
        self._by_key: dict[tuple[str, str], tuple[str, int, int]] = {}
        for index, info in storage_data.items():
            if not isinstance(index, Opaque) or not isinstance(info, Opaque):
                raise source.error(0, "the list of where pieces are stored has an unknown form")
            name = index.get("fqn")
            position = counts(index.get("offset") or (), source, 0, "the position of a piece")
            file, start, length = info.get("relative_path"), info.get("offset"), info.get("length")
            if info.get("transform_descriptors"):
                raise source.error(
                    0, f"{shown(name)} is compressed, which leafwise does not read; save it uncompressed"
                )
            if (
                not isinstance(name, str)
                or not isinstance(file, str)
                or type(start) is not int
                or type(length) is not int
            ):
                raise source.error(0, f"the pickle does not say where {shown(name)} is stored")
            if (name, str(position)) in self._by_key:
                raise source.error(0, f"the pickle says twice where the piece of {name!a} at {position} is stored")
            self._by_key[name, str(position)] = file, start, length

    def files(self) -> set[str]:
        """The files with pieces."""
        return {file for file, _, _ in self._by_key.values()}

    def length(self, name: str) -> int:
        place = self._by_key.get((name, "()"))
        if place is None:
            raise self._source.error(0, f"the pickle does not say where {name!a} is stored")
        return place[2]

    def item(self, name: str, position: tuple[int, ...]) -> Callable[[], Source]:
        place = self._by_key.get((name, str(position)))
        if place is None and not any(position):
            place = self._by_key.get((name, "()"))
        if place is None:
            raise self._source.error(0, f"the pickle does not say where the piece of {name!a} at {position} is stored")
        file, start, length = place

        def open_item() -> Source:
            if file not in self.opened:
                self.opened[file] = self._folder.open(file)
            return PartSource(self.opened[file], start, start + length)

        return open_item


class UnreadObject(Opaque):
    """Stands for an object that was not read, and says why."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        super().__init__("builtins.object")
        self.text = text

    def __repr__(self) -> str:
        return escape(f"<{self.text}>")


def _entry(source: Source, name: str, description: Any, places: _PieceLocations) -> Any:
    if not isinstance(description, Opaque):
        raise source.error(0, f"the description of {name!a} has an unknown form")
    if description.class_name == "BytesStorageMetadata":
        return _object(source, name, places)
    shape = counts(description.get("size"), source, 0, f"the shape of {name!a}")
    dtype = _dtype(source, name, description.get("properties"))
    pieces: list[Piece] = []
    chunks = description.get("chunks") or []
    if not isinstance(chunks, list | tuple) or not all(isinstance(chunk, Opaque) for chunk in chunks):
        raise source.error(0, f"the list of the pieces of {name!a} has an unknown form")
    # Counted for each tensor: many tensors may refer to one list of pieces in the pickle.
    source.limits.spend_steps(20 * len(chunks))
    source.limits.spend_bytes(_BYTES_OF_PIECE * len(chunks))
    for chunk in chunks:
        position = counts(chunk.get("offsets"), source, 0, f"the position of a piece of {name!a}")
        size = counts(chunk.get("sizes"), source, 0, f"the shape of a piece of {name!a}")
        fits = len(position) == len(size) == len(shape)
        if not fits or any(p + n > whole for p, n, whole in zip(position, size, shape, strict=True)):
            raise source.error(0, f"the piece of {name!a} at {position}, of shape {size}, does not fit into {shape}")
        pieces.append((position, size, _piece(places.item(name, position), name, size, dtype)))
    source.limits.spend_bytes(names_cost([name], source.limits.bytes))
    try:
        return Pieces(spec_of(shape, dtype), pieces, source.limits)
    except NotTiledError:
        text = f"the pieces of {name!a} do not cover each of its {prod(shape):,} elements exactly once"
        raise source.error(0, text) from None


def _dtype(source: Source, name: str, properties: Any) -> str:
    state = properties.state if isinstance(properties, Opaque) else None
    first = state[0] if isinstance(state, tuple) and state else None
    if isinstance(state, dict):
        first = state.get("dtype")
    make = getattr(first, "make", None)
    if not isinstance(make, TorchDtype) or str(make) not in ITEM_BYTES:
        raise source.error(0, f"{name!a} has the unknown dtype {shown(first)}")
    return str(make)


def _piece(item: Callable[[], Source], name: str, shape: tuple[int, ...], dtype: str) -> Callable[[], Stored]:
    def open_piece() -> Stored:
        part = item()
        array = _unzipped(part, f"the piece of {name!a}")
        if not isinstance(array, Stored) or array.spec.shape != shape or array.spec.dtype != dtype:
            raise part.error(
                0, f"the piece of {name!a} does not have the shape {shape} and dtype {dtype} that .metadata lists"
            )
        return array

    return open_piece
