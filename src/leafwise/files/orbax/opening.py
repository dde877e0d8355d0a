"""Orbax checkpoints: a folder with `_METADATA`, which lists the values of a tree, and their arrays in zarr.

A step of Orbax's CheckpointManager is a folder of such folders, one for each item. Nothing in them is a pickle, and
nothing outside of the folder is read: tensorstore gets the path of the folder and names of arrays in it, and links that
lead out of the folder are refused.
"""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from leafwise.core.opaque import Opaque
from leafwise.core.path import listed, shown_file
from leafwise.core.roles.role_table import KEY_ROLE
from leafwise.errors import FileError
from leafwise.files.arrays.stored import Unreadable
from leafwise.files.checksums import checksum
from leafwise.files.limits import names_cost
from leafwise.files.orbax import metadata as orbax_metadata
from leafwise.files.orbax.metadata import (
    METADATA,
    RANDOM_KEYS,
    SCALAR,
    STRING,
    OrbaxMetadata,
    OrbaxValue,
    json_in,
    parsed_json,
    under,
)
from leafwise.files.orbax.names import PROCESS, STEP, unfinished, unfinished_error
from leafwise.files.orbax.values import restore_types
from leafwise.files.orbax.zarr_arrays import ZarrArray, ZarrStore, inode, open_arrays
from leafwise.files.record import KEY
from leafwise.files.sources.folder import Folder, is_bare
from leafwise.files.sources.source import LocalSource, Source
from leafwise.files.stored_file import StoredFile

MANIFEST = "manifest.ocdbt"
STRINGS = "_strings.json"
_JSON = ("metadata", "metrics")  # files of items that are JSON
ARRAY_METADATA = "array_metadatas"
_ENTRY = 200  # bytes of memory for the name of a file


def read(folder: Folder) -> StoredFile:
    """Opens a checkpoint, or a step; reads the headers of the arrays."""
    if folder.is_remote:
        raise FileError(
            f"cannot open {shown_file(folder.path)}: leafwise opens Orbax checkpoints on local disks only; download "
            "the folder first"
        )
    if error := unfinished(folder):
        raise error
    return read_tree(folder) if METADATA in folder.names else _step(folder)


def read_tree(folder: Folder) -> StoredFile:
    """Opens a folder with `_METADATA`, whatever its name."""
    return _opened(folder, _Files(folder))


# -- a step --------------------------------------------------------------------------------------------------------


def _step(folder: Folder) -> StoredFile:
    """Opens a step. If only one of its items has arrays, that is the checkpoint, and the others are its metadata."""
    files = _Files(folder)
    source = folder.open(STEP)
    handlers = under(parsed_json(source), "item_handlers")
    items, others = _items(folder, handlers if isinstance(handlers, dict) else {})
    if not items:
        raise FileError(
            f"cannot open {shown_file(folder.path)}: none of the items of this Orbax checkpoint contains arrays; "
            f"it has {listed([ascii(name) for name in others]) or 'no items'}"
        )
    if len(items) == 1:
        source.close()
        (item,) = items.values()
        opened = _opened(item, files)
        opened.metadata |= others
        return opened
    content: dict[str, Any] = {}
    step = StoredFile(source, "Orbax", content)
    for names, item in items.items():
        opened = _opened(item, files)
        inside = content
        for name in names[:-1]:
            inside = inside.setdefault(name, {})
        inside[names[-1]] = opened.content
        step.add_sources({".".join(names): opened.source})
        if opened.metadata:
            step.metadata[".".join(names)] = opened.metadata
    content |= others
    step.seal = files.seal()
    return step


def _items(folder: Folder, handlers: dict[str, Any]) -> tuple[dict[tuple[str, ...], Folder], dict[str, Any]]:
    """The folders of the items of a step that have arrays, by their names, and the content of the other items."""
    items: dict[tuple[str, ...], Folder] = {}
    others: dict[str, Any] = {}
    for name in sorted(folder.folders):
        below = folder.folder(name)
        if error := unfinished(below):
            raise error
        if METADATA in below.names:
            items[name,] = below
            continue
        inside = [inner for inner in sorted(below.folders) if METADATA in below.folder(inner).names]
        for inner in inside:  # of the item of a random key
            items[name, inner] = below.folder(inner)
        json_files = [file for file in _JSON if file in below.names and file not in below.folders]
        if json_files:
            others[name] = json_in(below, json_files[0])
        elif not inside:
            others[name] = Opaque(str(handlers.get(name, "an item of Orbax"))[:200])
    return items, others


# -- a tree --------------------------------------------------------------------------------------------------------


def _opened(folder: Folder, files: "_Files") -> StoredFile:
    """Opens a folder with `_METADATA`; `files` are those of the whole checkpoint."""
    source = folder.open(METADATA)
    try:
        metadata = orbax_metadata.read(source)
        if metadata.is_database and MANIFEST not in folder.names:
            if any(name.startswith(PROCESS) for name in folder.names):
                raise unfinished_error(folder, f"it has no {MANIFEST}")
            raise FileError(f"cannot open {shown_file(folder.path)}: {MANIFEST} is missing; is the copy complete?")
        source.limits.spend_bytes(names_cost((value.stored_name for value in metadata.values), source.limits.bytes))
        opened = StoredFile(source, "Orbax", orbax_metadata.nested(source, _contents(folder, source, metadata)))
        if isinstance(metadata.custom, dict) and KEY in metadata.custom:
            restore_types(metadata.custom.pop(KEY), opened.content, source)
        if metadata.is_database:
            opened.add_sources({MANIFEST: folder.open(MANIFEST)})
        if isinstance(metadata.custom, dict):
            opened.metadata |= metadata.custom
        elif metadata.custom is not None:
            opened.metadata["custom_metadata"] = metadata.custom
        opened.seal = files.seal()
        return opened
    except BaseException:
        source.close()
        raise


def _contents(folder: Folder, source: Source, metadata: OrbaxMetadata) -> list[tuple[OrbaxValue, Any]]:
    """Each value of the tree with its content: an array that was opened, or a plain value."""
    path = os.path.realpath(folder.path)
    number = inode(os.path.join(path, METADATA))
    store = ZarrStore(path, metadata.is_database, metadata.zarr_version, metadata.fills, source, number)
    times = Counter(value.stored_name for value in metadata.values if value.is_stored)
    if not metadata.is_database:
        _check_names(source, times)
    arrays = {array.name: array for array in open_arrays(store, times)}
    for name, kind in _random_keys(folder):
        if name in arrays:
            arrays[name].role = KEY_ROLE + kind
    strings = json_in(folder, STRINGS) if any(value.kind == STRING for value in metadata.values) else None
    contents: list[tuple[OrbaxValue, Any]] = []
    for value in metadata.values:
        content: Any
        if value.is_stored and times[value.stored_name] > 1:
            content = Unreadable(arrays[value.stored_name].spec, _OVERWRITTEN)
        elif value.kind == SCALAR:
            content = _scalar(source, arrays[value.stored_name])
        elif value.is_stored:
            content = arrays[value.stored_name]
        elif value.kind == STRING:
            content = _string(source, strings, value.stored_name)
        else:
            content = orbax_metadata.empty_or_inert(value.kind)
        contents.append((value, content))
    return contents


def _random_keys(folder: Folder) -> Iterator[tuple[str, str]]:
    """The name and the implementation of each array that contains the data of typed random keys."""
    if ARRAY_METADATA not in folder.folders:
        return
    below = folder.folder(ARRAY_METADATA)
    for name in below.names:
        rows = under(json_in(below, name), "array_metadatas")
        for row in rows if isinstance(rows, list) else ():
            kind = under(row, "array_metadata", "ext_metadata", RANDOM_KEYS)
            if isinstance(kind, str):
                yield str(under(row, "array_metadata", "param_name")), kind


_OVERWRITTEN = (
    "Orbax stored another value under the same name, because a key contains a dot, and one of them was overwritten"
)


def _check_names(source: Source, names: Iterable[str]) -> None:
    """Raises for a name that could lead out of the folder. Each array has a folder of its name."""
    for name in names:
        if not all(map(is_bare, name.split("/"))):
            raise source.error(0, f"{name[:200]!a} cannot be the name of an array: it is not a path in the folder")


def _scalar(source: Source, array: ZarrArray) -> Any:
    if array.spec.shape != ():
        raise source.error(0, f"{array.name[:200]!a} should be a single number, but has the shape {array.spec.shape}")
    return array.read().item()


def _string(source: Source, strings: Any, name: str) -> str:
    text = under(strings, *name.split("/"))
    if not isinstance(text, str):
        raise source.error(0, f"{STRINGS} has no text for {name[:200]!a}")
    return text


# -- the files -----------------------------------------------------------------------------------------------------


class _Files:
    """The files in a folder and its subfolders. Raises if one is not a plain file, or is a link that leads elsewhere:
    tensorstore would read what is there."""

    def __init__(self, folder: Folder) -> None:
        self._root = os.path.realpath(folder.path)
        self._allowed = [self._root]
        above, snapshots, _ = self._root.rpartition("/snapshots/")
        if snapshots:  # the files of a folder in the cache of huggingface_hub are links to its blobs
            self._allowed.append(f"{above}/blobs")
        self._sizes: dict[str, int] = {}  # by their paths in the folder
        pending = [self._root]
        while pending:
            try:
                with os.scandir(pending.pop()) as entries:
                    for entry in entries:
                        folder.limits.spend_bytes(_ENTRY)
                        folder.limits.spend_steps(10)
                        self._add(entry, pending)
            except OSError as error:
                raise FileError(f"cannot open {shown_file(folder.path)}: {error.strerror or error}") from error

    def _add(self, entry: "os.DirEntry[str]", pending: list[str]) -> None:
        if entry.is_symlink():
            there = os.path.realpath(entry.path)
            if entry.is_dir() or not any(there.startswith(f"{folder}/") for folder in self._allowed):
                raise FileError(
                    f"cannot open {shown_file(entry.path)}: it is a link, to {shown_file(there)}; in an Orbax "
                    "checkpoint leafwise only follows links to files of the same checkpoint"
                )
        status = entry.stat()
        if stat.S_ISDIR(status.st_mode):
            pending.append(entry.path)
        elif stat.S_ISREG(status.st_mode):
            self._sizes[os.path.relpath(entry.path, self._root)] = status.st_size
        else:
            raise FileError(f"cannot open {shown_file(entry.path)}: it is not a file, but a pipe or a device")

    def seal(self) -> str:
        """A checksum that differs for every save. It covers the sizes of all files, the manifests, which have the names
        of the data files, and the time of the save."""
        names = sorted(self._sizes)
        text = "".join(f"{name!a} {self._sizes[name]}\n" for name in names).encode()
        for name in names:
            if os.path.basename(name) in (METADATA, MANIFEST, STEP):
                source = LocalSource(os.path.join(self._root, name))
                text += bytes(source.read(0, source.size))
                source.close()
        return checksum(text)
