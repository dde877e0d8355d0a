"""Arrays in files: where their bytes are, and how they are read as NumPy arrays."""

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from operator import attrgetter
from typing import Any

from leafwise.core.dtypes import WORDS, stored_itemsizes
from leafwise.core.home import Memory, Spec
from leafwise.core.memory.ops import extent
from leafwise.core.path import escape
from leafwise.errors import Unsupported
from leafwise.files.arrays.slices import Index, c_strides, expanded, is_c_order, sliced
from leafwise.files.checksums import Checksums
from leafwise.files.sources.source import InflatedSource, Source

CHUNK = 8 << 20  # bytes that are read at a time
_GAP = 1 << 16  # bytes; rows farther apart than this are read one by one

ITEM_BYTES = stored_itemsizes()


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype with a plain name. Imports NumPy only when called."""
    from leafwise.kernels import dtypes

    return dtypes.numpy_dtype(name)


def as_bytes(array: Any) -> memoryview:
    """The bytes of a NumPy array in C order."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def same_values(a: Any, b: Any) -> bool:
    """Whether two NumPy arrays have the same bits, compared part by part."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.nbytes <= CHUNK or not a.ndim:
        return as_bytes(a) == as_bytes(b)
    rows = max(1, CHUNK * len(a) // a.nbytes)
    return all(as_bytes(a[at : at + rows]) == as_bytes(b[at : at + rows]) for at in range(0, len(a), rows))


def agree_in_memory(arrays: "list[tuple[Memory, Any]]") -> bool:
    """Whether arrays that overlap in one storage agree, so that writing one does not change the values of another."""
    import numpy as np

    ends = [extent(memory) for memory, _ in arrays]
    first = min(start for start, _ in ends)
    buffer = bytearray(max(stop for _, stop in ends) - first)
    places = [
        np.ndarray(memory.shape, array.dtype, buffer, memory.offset - first, memory.strides) for memory, array in arrays
    ]
    for place, (_, array) in zip(places, arrays, strict=True):
        place[...] = array
    return all(same_values(place, array) for place, (_, array) in zip(places, arrays, strict=True))


def spec_of(shape: tuple[int, ...], dtype: str, nbytes: int | None = None, trainable: bool | None = None) -> Spec:
    size = prod(shape)
    return Spec(shape, dtype, "file", size, size * ITEM_BYTES[dtype] if nbytes is None else nbytes, trainable)


def part_indices(spec: Spec) -> Iterator[tuple[slice, ...]]:
    """The indices of the parts of an array, in C order: it is split along the first axis with more than one element,
    into parts of at most a chunk, or one row."""
    shape = spec.shape or ()
    axis = next((axis for axis, size in enumerate(shape) if size > 1), None)
    if axis is None or spec.nbytes <= CHUNK:
        yield ()
        return
    rows = max(1, CHUNK * shape[axis] // spec.nbytes)
    for start in range(0, shape[axis], rows):
        yield (*[slice(None)] * axis, slice(start, start + rows))


class Storage:
    """A range of bytes in a source, which several arrays may share."""

    __slots__ = ("checksums", "nbytes", "shared", "source", "start")

    def __init__(self, source: Source, start: int, nbytes: int, shared: bool = True) -> None:
        self.source = source
        self.start = start
        self.nbytes = nbytes
        self.shared = shared  # whether several arrays may share it
        self.checksums: Checksums | None = None  # if the file has any

    def read(self, start: int, stop: int) -> Any:
        return self.source.read(self.start + start, self.start + stop)

    def read_into(self, start: int, view: memoryview) -> None:
        self.source.read_into(self.start + start, view)

    def view(self, start: int, stop: int) -> Any:
        return self.source.view(self.start + start, self.start + stop)


class LocatedStorage(Storage):
    """One whose start is found by a function when it is first needed."""

    __slots__ = ("_find", "_found")

    def __init__(self, source: Source, find: Callable[[], int], nbytes: int) -> None:
        self.source, self._find, self._found = source, find, -1
        self.nbytes, self.shared, self.checksums = nbytes, True, None

    @property
    def start(self) -> int:  # type: ignore[override]
        if self._found < 0:
            self._found = self._find()
        return self._found


class Stored:
    """An array in a file."""

    __slots__ = ("spec",)
    role: str | None = None  # where the format has it
    reads_parts = True  # whether a part can be read without the rest
    is_scattered = False  # whether a part in C order is scattered over the whole storage
    checks_itself = False  # whether reading the whole array compares a checksum although its storages have none
    why_unreadable = ""  # why its values cannot be read; empty if they can
    is_live = False  # whether some of its values are in memory, where they may change
    checks_parts = False  # whether reading a part finds the damage in that part; only where `checks_itself`

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def read(self, index: Index = ()) -> Any:
        """The values, or the part that the index selects, as a NumPy array. Reads as little as possible."""
        import numpy as np

        return np.asarray(self.whole()[expanded(index, self.spec.shape or ())])

    def whole(self) -> Any:
        raise NotImplementedError

    def view(self) -> Any:
        """The values as a NumPy array for the user to keep: memory-mapped if the file allows it."""
        return self.read()

    def storages(self) -> "list[Storage]":
        """The storages that contain its bytes."""
        return []

    def shared_storage(self) -> "Storage | None":
        """The storage that contains its bytes, if other arrays may be in it, too."""
        return None

    def check(self) -> None:
        """Reads the whole array, for arrays that compare a checksum while they are read."""
        for _ in self.parts():
            pass

    def is_checked(self) -> bool:
        """Whether all of its bytes have checksums."""
        storages = self.storages()
        return self.checks_itself or (bool(storages) and all(storage.checksums is not None for storage in storages))

    def chunks(self) -> Iterator[Any]:
        """The values in C order, as bytes, a chunk at a time."""
        for part in self.parts():
            yield as_bytes(part)

    def parts(self) -> Iterator[Any]:
        """The values in C order as arrays; see `part_indices`."""
        whole = None if self.reads_parts else self.read()
        for part in part_indices(self.spec):
            yield self.read(part) if whole is None else whole[(*part, ...)]

    def plain_run(self) -> "tuple[Storage, int, int] | None":
        """Storage, start and stop, if the array is one contiguous range of bytes that can be copied unchanged."""
        return None

    def runs(self) -> "list[tuple[Storage, int, int, int]] | None":
        """What to read to fill an array in C order without a copy: storages, the byte to begin at, the byte of the
        array, and the number of bytes. None if some bytes cannot be copied unchanged."""
        run = self.plain_run()
        return None if run is None else [(run[0], run[1], 0, run[2] - run[1])]

    def __getitem__(self, index: Index) -> Any:
        return self.read(index)

    def __repr__(self) -> str:
        return escape(f"<{type(self).__name__} {self.spec.shape} {self.spec.dtype}>")


class Strided(Stored):
    """An array over a storage, with strides in bytes."""

    __slots__ = ("big_endian", "offset", "storage", "strides")

    def __init__(
        self,
        spec: Spec,
        storage: Storage,
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
        big_endian: bool = False,
    ) -> None:
        self.spec = spec
        self.storage = storage
        self.offset = offset
        self.strides = strides
        self.big_endian = big_endian

    @property
    def is_scattered(self) -> bool:  # type: ignore[override]
        return self.strides is not None and self.plain_run() is None

    def tied_memory(self) -> Memory:
        """Its place in the storage, for finding ties."""
        return self.memory()

    def memory(self) -> Memory:
        shape = self.spec.shape or ()
        itemsize = ITEM_BYTES[self.spec.dtype]
        strides = c_strides(shape, itemsize) if self.strides is None else self.strides
        return Memory(self.offset, shape, strides, itemsize, self.spec.dtype)

    def read(self, index: Index = ()) -> Any:
        import numpy as np

        memory = self.memory()
        offset, shape, strides = sliced(memory, index)
        part = memory._replace(offset=offset, shape=shape, strides=strides)
        if 0 in part.shape:
            return np.empty(part.shape, numpy_dtype(part.dtype))
        low, high = extent(part)
        # A scattered part is gathered piece by piece, instead of reading everything between the pieces.
        if high - low <= CHUNK or high - low <= 2 * prod(part.shape) * part.itemsize:
            return self._array(self.storage.read(low, high), low, part)
        values = np.empty(part.shape, numpy_dtype(part.dtype))
        self._gather(part, values)
        return values

    def view(self) -> Any:
        memory = self.memory()
        if 0 in memory.shape:
            return self.read()
        low, high = extent(memory)
        return self._array(self.storage.view(low, high), low, memory)

    def storages(self) -> list[Storage]:
        return [self.storage]

    def shared_storage(self) -> Storage | None:
        return self.storage if self.storage.shared else None

    def _gather(self, part: Memory, target: Any) -> None:
        """Fills an array with a scattered part. Each read spans at most a chunk, or one row."""
        low, high = extent(part)
        if high - low <= CHUNK or not part.shape:
            target[...] = self._array(self.storage.read(low, high), low, part)
            return
        axis = max(range(len(part.shape)), key=lambda axis: abs(part.strides[axis]) * (part.shape[axis] - 1))
        stride, size = abs(part.strides[axis]), part.shape[axis]
        rows = 1 if stride > _GAP else max(1, min(CHUNK // stride, size // 2))
        ahead = (slice(None),) * axis
        for start in range(0, size, rows):
            taken = (*ahead, slice(start, start + rows))
            at, shape, strides = sliced(part, taken)
            self._gather(part._replace(offset=at, shape=shape, strides=strides), target[taken])

    def _array(self, buffer: Any, low: int, part: Memory) -> Any:
        """An array over bytes that begin at `low` in the storage."""
        import numpy as np

        dtype, offset = numpy_dtype(part.dtype), part.offset - low
        itemsize, words = dtype.itemsize, WORDS.get(dtype.itemsize)
        try:
            if not self.big_endian or itemsize == 1:
                return np.ndarray(part.shape, dtype, buffer, offset, part.strides)
            if words is None or dtype.kind == "c":
                shape, strides = (*part.shape, 2), (*part.strides, itemsize // 2)
                pairs = np.ndarray(shape, np.dtype(f"u{itemsize // 2}"), buffer, offset, strides).byteswap()
                return pairs.view(dtype)[..., 0]
            return np.ndarray(part.shape, words, buffer, offset, part.strides).byteswap().view(dtype)
        except (ValueError, MemoryError, OverflowError) as error:
            raise self.storage.source.error(self.storage.start + low, f"the array cannot be read ({error})") from error

    def plain_run(self) -> tuple[Storage, int, int] | None:
        if self.big_endian or (self.strides is not None and not is_c_order(self.memory())):
            return None
        return self.storage, self.offset, self.offset + self.spec.nbytes

    def chunks(self) -> Iterator[Any]:
        run = self.plain_run()
        if run is None:
            yield from super().chunks()
            return
        storage, start, stop = run
        while start < stop:
            yield storage.read(start, min(start + CHUNK, stop))
            start += CHUNK


class Placed(Strided):
    """An array in C order that is alone in its bytes. A header may list a hundred thousand of them, so that the storage
    of each is made only when it is needed."""

    __slots__ = ("_made_storage", "source", "start")
    offset = 0
    strides = None
    big_endian = False

    def __init__(self, source: Source, spec: Spec, start: int) -> None:
        self.spec = spec
        self.source = source
        self.start = start
        self._made_storage: Storage | None = None

    @property
    def storage(self) -> Storage:  # type: ignore[override]
        if self._made_storage is None:
            self._made_storage = Storage(self.source, self.start, self.spec.nbytes, shared=False)
        return self._made_storage

    def shared_storage(self) -> Storage | None:
        return self._made_storage and super().shared_storage()

    def plain_run(self) -> tuple[Storage, int, int]:
        return self.storage, 0, self.spec.nbytes


def shared_storages(arrays: list[Stored]) -> list[Storage | None]:
    """The storage of each array that other arrays may share."""
    if set(map(type, arrays)) == {Placed}:
        made: list[Storage | None] = list(map(_MADE_STORAGE, arrays))
        if made.count(None) == len(made):
            return made
    return [array.shared_storage() for array in arrays]


_MADE_STORAGE = attrgetter("_made_storage")  # of Placed


class Signed(Strided):
    """A conjugated or negated view, as in PyTorch: its values differ from the stored ones in their sign."""

    __slots__ = ("signs",)

    def __init__(
        self, spec: Spec, storage: Storage, offset: int, strides: tuple[int, ...] | None, signs: list[str]
    ) -> None:
        super().__init__(spec, storage, offset, strides)
        self.signs = signs

    def read(self, index: Index = ()) -> Any:
        return self._signed(super().read(index))

    def view(self) -> Any:
        return self._signed(super().view())

    def _signed(self, array: Any) -> Any:
        if "conj" in self.signs:
            array = array.conj()
        return -array if "neg" in self.signs else array

    def tied_memory(self) -> Memory:
        memory = self.memory()
        return memory._replace(dtype=f"{memory.dtype} {' '.join(self.signs)}")

    def plain_run(self) -> None:
        return None


class Inflated(Strided):
    """An array in a compressed entry of a zip. It is unpacked from beginning to end, a chunk at a time if it is in C
    order. Reading its last bytes compares the checksum."""

    __slots__ = ()
    checks_itself = True

    @property
    def reads_parts(self) -> bool:  # type: ignore[override]
        return self.strides is None

    def plain_run(self) -> None:
        return None  # each thread that reads a part would have to unpack everything before that part


class Coded(Stored):
    """An array that must be decoded: packed or quantized."""

    __slots__ = ("decode", "storage")
    reads_parts = False

    def __init__(self, spec: Spec, storage: Storage, decode: Callable[[Any, tuple[int, ...]], Any]) -> None:
        super().__init__(spec)
        self.storage = storage
        self.decode = decode

    def whole(self) -> Any:
        return self.decode(self.storage.read(0, self.storage.nbytes), self.spec.shape or ())

    def storages(self) -> list[Storage]:
        return [self.storage]


class InMemory(Stored):
    """An array that a function makes when it is read, for example of bytes that came with the header. What the function
    raises is raised by whoever reads the array; a load calls it before it changes anything."""

    __slots__ = ("array_of",)
    reads_parts = False

    def __init__(self, spec: Spec, array_of: Callable[[], Any]) -> None:
        super().__init__(spec)
        self.array_of = array_of

    def whole(self) -> Any:
        array, spec = self.array_of(), self.spec
        if (array.shape, array.dtype.name) != (spec.shape, spec.dtype):
            reason = f"{array.dtype} of shape {array.shape} was read for {spec.dtype} of shape {spec.shape}"
            raise Unsupported("a file", "provide these values", reason)
        return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


class Unreadable(Stored):
    """An array that can be listed but not read. Its bytes can be checked if the file says where they are."""

    __slots__ = ("storage", "why_unreadable")

    def __init__(self, spec: Spec, why: str, storage: Storage | None = None) -> None:
        super().__init__(spec)
        self.why_unreadable, self.storage = why, storage

    def whole(self) -> Any:
        raise Unsupported("a file", "provide these values", self.why_unreadable)

    def storages(self) -> list[Storage]:
        return [] if self.storage is None else [self.storage]

    @property
    def checks_itself(self) -> bool:  # type: ignore[override]
        return self.storage is not None and isinstance(self.storage.source, InflatedSource)

    def check(self) -> None:
        assert self.storage is not None
        for start in range(0, self.storage.nbytes, CHUNK):
            self.storage.read(start, min(start + CHUNK, self.storage.nbytes))


def unpacked(bits: int, dtype: str) -> Callable[[Any, tuple[int, ...]], Any]:
    """Decodes elements of 4 or 6 bits, packed from the low end of each byte."""
    return partial(_unpacked, bits, dtype)


def _unpacked(bits: int, dtype: str, data: Any, shape: tuple[int, ...]) -> Any:
    import ml_dtypes
    import numpy as np

    raw = np.frombuffer(data, np.uint8)
    if bits == 4:
        codes = np.stack([raw & 15, raw >> 4], -1)
    else:
        words = raw.reshape(-1, 3).astype(np.uint32)
        joined = words[:, 0] | words[:, 1] << 8 | words[:, 2] << 16
        codes = np.stack([joined >> shift & 63 for shift in (0, 6, 12, 18)], -1).astype(np.uint8)
    flat = codes.reshape(-1)[: prod(shape)]
    return flat.view(getattr(ml_dtypes, dtype)).reshape(shape)
