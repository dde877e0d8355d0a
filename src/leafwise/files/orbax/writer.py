"""Writes an Orbax checkpoint: a folder that `StandardCheckpointer` restores.

Everything is written into a folder beside the final one, under a name by which Orbax, too, recognizes an unfinished
save. The folder is then renamed. If there is a checkpoint already, the two folders are exchanged in one step. Whatever
happens, there is the old checkpoint or the new one.
"""

import errno
import json
import os
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from math import prod
from typing import Any

from leafwise.core.dtypes import DTYPES
from leafwise.core.path import escape, shown_file
from leafwise.core.roles.role_table import implementation_of
from leafwise.core.work.progress import Count
from leafwise.errors import FileError, WalkError
from leafwise.files.arrays.stored import CHUNK
from leafwise.files.limits import Limits
from leafwise.files.orbax import metadata as orbax_metadata
from leafwise.files.orbax import opening
from leafwise.files.orbax.metadata import METADATA, RANDOM_KEYS, SCALAR, STRING, Keys, stored_name
from leafwise.files.orbax.names import COMMITTED, PROCESS, STEP, UNFINISHED
from leafwise.files.orbax.values import (
    NNX,
    OrbaxNames,
    PlainLeaf,
    plain_leaves,
    type_rows,
    with_whole_lists,
)
from leafwise.files.orbax.zarr_arrays import ZarrArray, short_reason, tensorstore
from leafwise.files.reading import checked_reads
from leafwise.files.record import KEY
from leafwise.files.sources import disk as local
from leafwise.files.sources.folder import Folder
from leafwise.files.writing.item_writer import Checkpoint, Item
from leafwise.files.writing.writer import write_errors

_AHEAD = 8 * CHUNK  # bytes that may wait to be written
_HANDLER = "orbax.checkpoint._src.handlers.pytree_checkpoint_handler.PyTreeCheckpointHandler"
_METADATA_OF_SOURCE = "__metadata__"  # the name of the metadata of a file that is saved again
_OWN_NAMES = {METADATA, STEP, COMMITTED, opening.MANIFEST, opening.STRINGS, opening.ARRAY_METADATA, "_sharding", "d"}


def write(checkpoint: Checkpoint, path: str, progress: Count) -> str:
    """Writes a checkpoint into a new folder, durably, and gives it its name; returns the path."""
    ts = tensorstore()
    content = _Content(checkpoint)
    metadata = content.described()
    folder = os.path.realpath(path)
    _check_target(folder)
    arrays = [(item.name, item.array) for item in checkpoint.items if item.array is not None]
    checked_reads.verify_arrays(arrays)
    _remove_abandoned(folder)
    staged = _Staged(f"{folder}{UNFINISHED}-leafwise-{secrets.token_hex(8)}", path)
    try:
        staged.begin()
        try:
            _write_arrays(ts, staged.path, content, progress)
        except (ValueError, NotImplementedError, OSError) as error:
            if isinstance(error, FileError):
                raise
            raise FileError(f"cannot write {shown_file(path)}: {escape(short_reason(error))}") from error
        checked_reads.unchanged(storage.source for _, array in arrays for storage in array.storages())
        if strings := content.strings():
            staged.write(opening.STRINGS, json.dumps(strings))
        staged.write(METADATA, metadata)
        if keys := content.random_keys():
            staged.write(os.path.join(opening.ARRAY_METADATA, "process_0"), _key_metadata(keys))
        staged.write(COMMITTED, f"Checkpoint commit was successful to {folder}")
        staged.finish({name for name, _ in content.items()})
    except BaseException:
        staged.discard()
        raise
    return path


class _Content:
    """What is written: arrays and plain values, by their keys."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        names = OrbaxNames(checkpoint.nodes)
        values: list[tuple[Keys, Item | PlainLeaf]] = [(names.keys(item.name), item) for item in checkpoint.items]
        self.metadata: dict[str, Any] = {}
        plain: list[tuple[Keys, Any]] = []
        of_nnx = _nodes_of_nnx(checkpoint)
        for name, value in checkpoint.scalars.items():
            head, _, key = name.partition(".")
            if head == _METADATA_OF_SOURCE:
                self.metadata |= {key: value} if key else value
            elif value != () or of_nnx.isdisjoint(_nodes_above(name)):  # its states have no empty tuples
                plain.append((names.keys(name), value))
                values += plain_leaves(*plain[-1])
        values += [(names.keys(name), PlainLeaf("None", None)) for name in _empty_nodes(checkpoint)]
        self.metadata |= checkpoint.metadata
        if rows := type_rows(plain):
            self.metadata[KEY] = rows
        all_keys = with_whole_lists([keys for keys, _ in values])
        self._values: dict[str, tuple[Keys, Item | PlainLeaf]] = {}
        for keys, (_, value) in zip(all_keys, values, strict=True):
            name = stored_name(keys)
            if name in self._values:
                raise WalkError(
                    f"cannot save {escape(name)}: Orbax joins keys with dots, so that two values would have this name; "
                    "rename one of them"
                )
            self._values[name] = keys, value

    def described(self) -> str:
        """The text of `_METADATA`, with what Orbax calls the type of each value."""
        kinds: dict[Keys, str] = {}
        for keys, value in self._values.values():
            if isinstance(value, Item):
                kinds[keys] = "jax.Array" if implementation_of(value.role[0]) else "np.ndarray"
            else:
                kinds[keys] = value.kind
        try:
            return orbax_metadata.text_of(kinds, self.metadata)
        except TypeError as error:
            raise WalkError(
                f"cannot save the metadata of the source: Orbax stores it as JSON ({error}); save the arrays only, as "
                'in lw.save(source, path, where="**", format="orbax")'
            ) from error

    def random_keys(self) -> list[tuple[Item, str]]:
        """The arrays that are the data of typed random keys, each with the implementation of the key."""
        keys = [(item, implementation_of(item.role[0])) for _, item in self.items()]
        return [(item, kind) for item, kind in keys if kind]

    def items(self) -> Iterator[tuple[str, Item]]:
        return ((name, value) for name, (_, value) in self._values.items() if isinstance(value, Item))

    def scalars(self) -> Iterator[tuple[str, Any]]:
        for name, (_, value) in self._values.items():
            if isinstance(value, PlainLeaf) and value.kind == SCALAR:
                yield name, value.value

    def strings(self) -> dict[str, str]:
        return {
            name: value.value
            for name, (_, value) in self._values.items()
            if isinstance(value, PlainLeaf) and value.kind == STRING
        }


def _empty_nodes(checkpoint: Checkpoint) -> Iterator[str]:
    """The nodes in which nothing is, such as an `EmptyState` of optax: Orbax stores them as None. A state of Flax NNX
    only has those that are in a Variable."""
    names = (*checkpoint.names, *checkpoint.scalars, *checkpoint.nodes)
    filled = {above for name in names for above in _nodes_above(name)}
    of_nnx = _nodes_of_nnx(checkpoint)
    for name in sorted(checkpoint.nodes.keys() - filled - of_nnx - {""}):
        above = _nodes_above(name)
        if of_nnx.isdisjoint(above) or above[-1] in of_nnx:
            yield name


def _nodes_of_nnx(checkpoint: Checkpoint) -> set[str]:
    return {name for name, node in checkpoint.nodes.items() if node.type.startswith(NNX)}


def _nodes_above(name: str) -> list[str]:
    """The names of the nodes that a name is below, except the root, beginning with the outermost."""
    return [name[:end] for end, character in enumerate(name) if character == "."]


def _key_metadata(keys: list[tuple[Item, str]]) -> str:
    """What Orbax stores about arrays that are the data of random keys."""
    rows = [
        {
            "param_name": item.name,
            "write_shape": item.shape,
            "chunk_shape": _chunk_shape(item)[0],
            "ext_metadata": {RANDOM_KEYS: kind},
        }
        for item, kind in keys
    ]
    return json.dumps({"array_metadatas": [{"array_metadata": row} for row in rows]})


# -- arrays --------------------------------------------------------------------------------------------------------


def _write_arrays(ts: Any, folder: str, content: _Content, progress: Count) -> None:
    """Writes the arrays and numbers into a database, as uncompressed zarr: the bytes of a chunk are its values."""
    import numpy as np

    spec = {
        "driver": "ocdbt",
        "base": {"driver": "file", "path": f"{folder}/"},
        "config": {"max_inline_value_bytes": 1024, "max_decoded_node_bytes": 100_000_000},
        "target_data_file_size": 1 << 31,
    }
    queue = _Queue(ts.KvStore.open(spec).result())
    for name, number in content.scalars():
        value = np.asarray(number)
        queue.add(f"{name}/.zarray", _header((), (), value.dtype.name))
        queue.add(f"{name}/0", value.tobytes())
    for name, item in content.items():
        chunk, axis = _chunk_shape(item)
        queue.add(f"{name}/.zarray", _header(item.shape, chunk, item.dtype))
        for number, data in enumerate(_chunks(item, prod(chunk) * DTYPES[item.dtype].itemsize)):
            position = [str(number) if at == axis else "0" for at in range(len(chunk))]
            queue.add(f"{name}/{'.'.join(position) or '0'}", data)
            progress(min(len(data), item.nbytes))
    queue.finish()


class _Queue:
    """Writes keys and values, several at a time."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._waiting: list[tuple[int, Any]] = []
        self._nbytes = 0

    def add(self, key: str, value: bytes) -> None:
        self._waiting.append((len(value), self._store.write(key, value)))
        self._nbytes += len(value)
        while self._nbytes > _AHEAD:
            self._wait()

    def _wait(self) -> None:
        nbytes, future = self._waiting.pop(0)
        future.result()
        self._nbytes -= nbytes

    def finish(self) -> None:
        while self._waiting:
            self._wait()


def _chunk_shape(item: Item) -> tuple[tuple[int, ...], int | None]:
    """The shape of the chunks of an array, and the axis along which it is cut; None if there is only one chunk."""
    axis = next((axis for axis, size in enumerate(item.shape) if size > 1), None)
    whole = tuple(max(size, 1) for size in item.shape)
    if axis is None or item.nbytes <= CHUNK:
        return whole, None
    rows = max(1, CHUNK * item.shape[axis] // item.nbytes)
    return (*whole[:axis], rows, *whole[axis + 1 :]), axis


def _chunks(item: Item, nbytes: int) -> Iterator[bytes]:
    """The bytes of each chunk. The last one is filled up with zeros, which are not part of the array."""
    filled, written = bytearray(), 0
    for piece in item.pieces():
        view = memoryview(piece).cast("B")
        written += len(view)
        while view:
            taken = view[: nbytes - len(filled)]
            filled += taken
            view = view[len(taken) :]
            if len(filled) == nbytes:
                yield bytes(filled)
                filled.clear()
    if written != item.nbytes:
        raise FileError(
            f"cannot write {escape(item.name)}: it should have {item.nbytes:,} bytes but has {written:,}; nothing was "
            "written"
        )
    if filled:
        yield bytes(filled).ljust(nbytes, b"\0")


def _header(shape: tuple[int, ...], chunk: tuple[int, ...], dtype: str) -> bytes:
    known = DTYPES[dtype]
    code = f"{'|' if known.itemsize == 1 else '<'}{known.numpy}" if known.is_native else dtype
    header = {
        "chunks": chunk,
        "compressor": None,
        "dimension_separator": ".",
        "dtype": code,
        "fill_value": None,
        "filters": None,
        "order": "C",
        "shape": shape,
        "zarr_format": 2,
    }
    return json.dumps(header).encode()


# -- folders -------------------------------------------------------------------------------------------------------


def _check_target(folder: str) -> None:
    """Raises if there is a folder that contains anything but an Orbax checkpoint: all of it would be replaced."""
    if not os.path.isdir(os.path.dirname(folder)):
        raise FileError(f"cannot write {shown_file(folder)}: there is no folder {shown_file(os.path.dirname(folder))}")
    if not os.path.isdir(folder):
        return
    names = local.disk.names_in(folder)
    others = [name for name in names if name not in _OWN_NAMES and not name.startswith(PROCESS)]
    if names and (METADATA not in names or others):
        other = ascii(others[0]) if others else "files"
        raise FileError(
            f"cannot write {shown_file(folder)}: the folder contains {other}, and leafwise only replaces folders that "
            "contain an Orbax checkpoint in a database and nothing else; choose a new name, or remove the folder first"
        )


class _Staged:
    """The folder that is being written, and will be renamed. `target` is the path that the caller gave."""

    def __init__(self, path: str, target: str) -> None:
        self.path, self._target = path, target
        self._began = time.time_ns()
        self._lock: int | None = None

    def begin(self) -> None:
        """Makes the folder. Its first file is locked until the folder is complete, so that nobody removes it."""
        with write_errors(self._target):
            local.disk.make_folder(self.path)
            self._lock = local.disk.create(os.path.join(self.path, STEP))
            local.disk.lock(self._lock)

    def write(self, name: str, text: str) -> None:
        """Writes a small file."""
        with write_errors(self._target):
            if os.path.dirname(name):
                local.disk.make_folder(os.path.join(self.path, os.path.dirname(name)))
            file = local.disk.create(os.path.join(self.path, name))
            try:
                local.disk.write(file, text.encode())
                local.disk.sync(file)
            finally:
                local.disk.close(file)

    def finish(self, arrays: set[str]) -> None:
        """Reads the folder back, and puts it into its place."""
        assert self._lock is not None
        step = {
            "item_handlers": _HANDLER,
            "metrics": {},
            "performance_metrics": {},
            "init_timestamp_nsecs": self._began,
            "commit_timestamp_nsecs": time.time_ns(),
            "custom_metadata": {},
        }
        folder = os.path.realpath(self._target)
        with write_errors(self._target):
            local.disk.write(self._lock, json.dumps(step).encode())
            local.disk.sync(self._lock)
            for inside, _, _ in os.walk(self.path):
                local.disk.sync_folder(inside)
        self._check_readable(arrays)
        with write_errors(self._target):
            if os.path.isdir(folder) and local.disk.names_in(folder):
                self._exchange(folder)
            else:
                local.disk.rename(self.path, folder)
            local.disk.sync_folder(os.path.dirname(folder))
        local.disk.close(self._lock)
        self._lock = None
        with suppress(OSError):  # the old checkpoint, if there was one; the new one is in place
            local.disk.remove_tree(self.path)

    def _exchange(self, folder: str) -> None:
        """Exchanges the new folder and the old one."""
        code = local.disk.exchange_folders(self.path, folder)
        if code in (errno.EINVAL, errno.ENOSYS):
            raise FileError(
                f"cannot replace {shown_file(folder)}: this file system cannot replace a folder in one step; choose a "
                "new name, or remove the old checkpoint first"
            )
        if code:
            raise FileError(f"cannot replace {shown_file(folder)}: {os.strerror(code)}")

    def _check_readable(self, arrays: set[str]) -> None:
        try:
            opened = opening.read_tree(Folder(self.path, limits=Limits.none()))
        except FileError as error:
            raise FileError(f"the new checkpoint cannot be read back, so nothing was replaced: {error}") from error
        names = set(_names_in(opened.content))
        opened.close()
        if names != arrays:
            raise FileError(
                f"cannot write {shown_file(self._target)}: the new checkpoint has the wrong names; nothing was replaced"
            )

    def discard(self) -> None:
        """Removes what was written."""
        if self._lock is not None:
            local.disk.close(self._lock)
        with suppress(OSError):
            local.disk.remove_tree(self.path)


def _names_in(content: Any) -> Iterator[str]:
    """The stored names of the arrays in a tree."""
    if isinstance(content, ZarrArray):
        yield content.name
    elif isinstance(content, dict | list):
        for part in content.values() if isinstance(content, dict) else content:
            yield from _names_in(part)


def _remove_abandoned(folder: str) -> None:
    """Removes folders that saves of leafwise to this folder left behind."""
    above, name = os.path.split(folder)
    is_leftover = re.compile(re.escape(f"{name}{UNFINISHED}-leafwise-") + "[0-9a-f]{16}").fullmatch
    with suppress(OSError):
        for leftover in filter(is_leftover, local.disk.names_in(above)):
            with suppress(OSError):
                file = local.disk.open_abandoned(os.path.join(above, leftover, STEP))
                if file is not None:
                    local.disk.remove_tree(os.path.join(above, leftover))
                    local.disk.close(file)
