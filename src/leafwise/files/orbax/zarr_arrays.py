"""Arrays in zarr, opened with tensorstore: in a database of keys and values (OCDBT), or as files of their own."""

import os
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from leafwise.core.dtypes import DTYPES
from leafwise.core.home import Spec
from leafwise.core.path import escape, shown_file
from leafwise.errors import Error, FileError
from leafwise.files.arrays.slices import Index, expanded, is_shape
from leafwise.files.arrays.stored import CHUNK, ITEM_BYTES, Stored, numpy_dtype
from leafwise.files.sources.source import Source

_ARRAYS_AT_ONCE = 500  # arrays that are opened at a time
_MESSAGE_CHARACTERS = 300  # characters of a message of tensorstore
_WHOLE = 4 * CHUNK  # bytes; if reading one row decodes more than this, an array is better read at once
SMALL_INTEGERS = frozenset({"int4", "int2"})  # dtypes that are listed and read, but not measured, cast or saved


def tensorstore() -> Any:
    """The package. Imported when needed."""
    try:
        import tensorstore
    except ImportError as error:
        raise Error("Orbax checkpoints need the tensorstore package: pip install 'leafwise[orbax]'") from error
    return tensorstore


class ZarrStore(NamedTuple):
    """Where arrays are stored: the absolute path of a folder, whether it is a database, the version of zarr, and
    whether chunks that are missing are filled with zeros (otherwise, a missing chunk is damage). `source` is a file of
    the folder that is open, and `number` its inode."""

    folder: str
    is_database: bool
    version: int
    fills: bool
    source: Source
    number: int

    def spec(self, name: str) -> dict[str, Any]:
        """What tensorstore opens. Only the name comes from the checkpoint."""
        place: dict[str, Any] = {"driver": "file", "path": self.folder.rstrip("/") + "/"}
        if self.is_database:
            kvstore = {"driver": "ocdbt", "base": place, "path": f"{name}/", "cache_pool": "cache_pool#nodes"}
        else:
            kvstore = {**place, "path": f"{place['path']}{name}/"}
        return {
            "driver": "zarr3" if self.version == 3 else "zarr",
            "kvstore": kvstore,
            "fill_missing_data_reads": self.fills,
            "recheck_cached_data": "open",
        }

    def check_unchanged(self) -> None:
        """Raises if another checkpoint has replaced this one: tensorstore opens files by their names again."""
        place = os.path.join(self.folder, os.path.basename(self.source.name))
        if self.source.was_changed() or inode(place) != self.number:
            raise FileError(f"{shown_file(self.folder)} was changed since it was opened; open it again")

    def error(self, name: str, error: BaseException) -> FileError:
        reason = escape(short_reason(error))
        return FileError(f"{shown_file(self.folder)}: {escape(name)[:_MESSAGE_CHARACTERS]} cannot be read: {reason}")


def inode(path: str) -> int:
    """The number of a file, which differs from that of a file that replaces it; -1 if it does not exist."""
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1


def short_reason(error: BaseException) -> str:
    """What an error of tensorstore says. Behind the first bracket is where in its code the error was raised."""
    return str(error).partition(" [")[0].strip()[:_MESSAGE_CHARACTERS] or type(error).__name__


def open_arrays(store: ZarrStore, names: Iterable[str]) -> "Iterator[ZarrArray]":
    """Opens arrays; reads their headers, but no values."""
    ts = tensorstore()
    # The nodes of a database are kept: each contains the headers of many arrays.
    context = ts.Context({"cache_pool#nodes": {"total_bytes_limit": 100_000_000}})
    waiting = list(names)
    for start in range(0, len(waiting), _ARRAYS_AT_ONCE):
        batch = waiting[start : start + _ARRAYS_AT_ONCE]
        futures = [_opening(ts, store, name, context) for name in batch]
        for name, future in zip(batch, futures, strict=True):
            try:
                opened = future.result()
            except Exception as error:
                raise store.error(name, error) from error
            yield ZarrArray(store, name, opened)


def _opening(ts: Any, store: ZarrStore, name: str, context: Any) -> Any:
    try:
        return ts.open(store.spec(name), open=True, read=True, context=context)
    except Exception as error:
        raise store.error(name, error) from error


class ZarrArray(Stored):
    """An array in zarr. A part is read without the rest, except for the chunks that it touches."""

    __slots__ = ("_opened", "name", "role", "store")
    checks_itself = True  # a chunk that is missing or cannot be decoded is an error, which a load must find in time
    checks_parts = True

    def __init__(self, store: ZarrStore, name: str, opened: Any) -> None:
        shape, dtype = tuple(opened.shape), str(opened.dtype.name)
        if not is_shape(shape):
            raise FileError(f"{shown_file(store.folder)}: {escape(name)} has a shape that is larger than any file")
        known = DTYPES.get(dtype)
        if known is None and dtype not in SMALL_INTEGERS:
            raise FileError(
                f"{shown_file(store.folder)}: {escape(name)} has the dtype {escape(dtype)}, which leafwise does not "
                "know"
            )
        size = prod(shape)
        super().__init__(Spec(shape, dtype, "file", size, size * (1 if known is None else known.itemsize)))
        self.store, self.name, self._opened = store, name, opened
        self.role: str | None = None

    def __getstate__(self) -> tuple[ZarrStore, str, str | None]:
        return self.store, self.name, self.role

    def __setstate__(self, state: tuple[ZarrStore, str, str | None]) -> None:
        self.store, self.name, self.role = state
        (again,) = open_arrays(self.store, [self.name])
        self.spec, self._opened = again.spec, again._opened

    @property
    def chunk_shape(self) -> tuple[int, ...]:
        """The shape of what is decoded at a time."""
        return tuple(self._opened.chunk_layout.read_chunk.shape or ())

    @property
    def reads_parts(self) -> bool:  # type: ignore[override]
        shape = self.spec.shape
        if self.spec.dtype not in ITEM_BYTES:
            return False  # it is cast as a whole
        if not shape or not self.spec.size:
            return True
        return self.chunk_shape[0] * self.spec.nbytes // shape[0] <= _WHOLE

    def read(self, index: Index = ()) -> Any:
        import numpy as np

        ts = tensorstore()
        parts = expanded(index, self.spec.shape or ())
        self._check_chunks()
        try:
            # Positive steps, since tensorstore numbers elements otherwise if they are negative.
            forward, turned = _forward(parts, self.spec.shape or ())
            seen = self._opened[forward][ts.d[:].translate_to[0]] if forward else self._opened
            values = np.empty(seen.shape, numpy_dtype(self.spec.dtype))
            if values.size:
                ts.array(values).write(seen).result()
        except Exception as error:
            raise self.store.error(self.name, error) from error
        self.store.check_unchanged()
        return values[turned] if turned else values

    def is_checked(self) -> bool:
        return False  # there are no checksums of the values

    def parts(self) -> Iterator[Any]:
        shape = self.spec.shape or ()
        if not shape or self.spec.nbytes <= CHUNK:
            yield self.read()
            return
        # Rows of whole chunks, so that each chunk is decoded once.
        chunk = self.chunk_shape[0]
        rows = chunk * max(1, CHUNK * shape[0] // (self.spec.nbytes * chunk))
        for start in range(0, shape[0], rows):
            yield self.read(slice(start, start + rows))

    def _check_chunks(self) -> None:
        """Raises if a chunk does not fit into the memory of the machine: tensorstore would end the process."""
        itemsize = self.spec.nbytes // max(self.spec.size, 1)
        nbytes = prod(self.chunk_shape) * itemsize
        if nbytes > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise FileError(
                f"{shown_file(self.store.folder)}: {escape(self.name)} is stored in chunks of {nbytes:,} bytes, more "
                "than the memory of this machine"
            )


def _forward(parts: tuple[Any, ...], shape: tuple[int, ...]) -> tuple[tuple[Any, ...], tuple[slice, ...]]:
    """An index without negative steps, and the index that turns round what it selects.

    >>> _forward((2, slice(None, None, -2)), (3, 4))
    ((2, slice(1, 4, 2)), (slice(None, None, -1),))
    """
    forward: list[Any] = []
    turned: list[slice] = []
    for part, size in zip(parts, shape, strict=True):
        if isinstance(part, int):
            forward.append(part)
            continue
        taken = range(*part.indices(size))
        if taken.step < 0:
            taken = taken[::-1]
        turned.append(slice(None, None, -1 if part.step is not None and part.step < 0 else None))
        forward.append(slice(taken.start, taken[-1] + 1 if len(taken) else taken.start, taken.step))
    return tuple(forward), tuple(turned)
