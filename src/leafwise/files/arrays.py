"""Arrays at rest: where their bytes lie, and how these become numbers when somebody asks."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from math import prod
from typing import Any, Literal

from leafwise.core.dtypes import WORDS, is_float, stored_itemsizes
from leafwise.core.home import Memory, Spec
from leafwise.core.memory import extent
from leafwise.core.path import escape
from leafwise.errors import QueryError, Unsupported
from leafwise.files.checksums import Checksums
from leafwise.files.limits import Limits
from leafwise.files.slices import Index, c_strides, expanded, is_c_order, shifted, sliced, taken_of
from leafwise.files.source import InflatedSource, Source

CHUNK = 8 << 20  # how many bytes pass through memory at a time
_GAP = 1 << 16  # bytes between two rows from which on they are read one by one

ITEM_BYTES = stored_itemsizes()


def numpy_dtype(name: str) -> Any:
    """The NumPy dtype of a plain name. NumPy is imported when it is asked for."""
    from leafwise.kernels import dtypes

    return dtypes.numpy_dtype(name)


def as_bytes(array: Any) -> memoryview:
    """The bytes of a NumPy array in C order."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def same_values(a: Any, b: Any) -> bool:
    """Whether two NumPy arrays hold the same bits, part by part."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.nbytes <= CHUNK or not a.ndim:
        return as_bytes(a) == as_bytes(b)
    rows = max(1, CHUNK * len(a) // a.nbytes)
    return all(as_bytes(a[at : at + rows]) == as_bytes(b[at : at + rows]) for at in range(0, len(a), rows))


SATURATE = 'cast="saturate" takes the nearest number that does'  # what to type where a value does not fit
Cast = bool | Literal["saturate"]  # whether to cast, and whether what does not fit becomes the nearest that does


def checked_cast(cast: Any) -> Cast:
    """What `cast=` was given, if it is something to give."""
    if isinstance(cast, bool) or (isinstance(cast, str) and cast == "saturate"):
        return cast  # type: ignore[return-value]
    raise QueryError(f'cast= takes True, False or "saturate", not {cast!r}')


def checked_dtype(dtype: Any, known: Iterable[str]) -> str | None:
    """The plain name of the dtype that numbers with a fraction are to be cast to."""
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    fractional = [candidate for candidate in known if is_float(candidate)]
    if name is not None and name not in fractional:
        raise QueryError(f"cannot cast to {dtype!r}; numbers with a fraction can be cast to {', '.join(fractional)}")
    return name


def cast_to(array: Any, dtype: str, saturate: bool = False) -> Any:
    """A NumPy array in another dtype, by the one rule of casts: `leafwise.kernels.casting`."""
    from leafwise.kernels import casting

    return casting.cast_to(array, dtype, saturate)


def misfit(array: Any, dtype: str) -> str:
    """Why an array cannot be cast to a dtype without other numbers coming of it; empty where it can."""
    from leafwise.kernels import casting

    return casting.misfit(array, dtype)


def cast_pieces(pieces: Iterable[Any], own: str, dtype: str, saturate: bool) -> Iterator[Any]:
    """Bytes of one dtype as bytes of another, a chunk at a time."""
    import numpy as np

    known = numpy_dtype(own)
    for piece in pieces:
        array = np.frombuffer(piece, known)
        step = CHUNK // known.itemsize
        for start in range(0, array.size, step):
            yield as_bytes(cast_to(array[start : start + step], dtype, saturate))


def agree_in_memory(found: "list[tuple[Memory, Any]]") -> bool:
    """Whether arrays could all be written to where they belong in one storage, none over values of another."""
    import numpy as np

    ends = [extent(memory) for memory, _ in found]
    first = min(start for start, _ in ends)
    room = bytearray(max(stop for _, stop in ends) - first)
    places = [
        np.ndarray(memory.shape, array.dtype, room, memory.offset - first, memory.strides) for memory, array in found
    ]
    for place, (_, array) in zip(places, found, strict=True):
        place[...] = array
    return all(same_values(place, array) for place, (_, array) in zip(places, found, strict=True))


def spec_of(shape: tuple[int, ...], dtype: str, nbytes: int | None = None, trainable: bool | None = None) -> Spec:
    size = prod(shape)
    return Spec(shape, dtype, "file", size, size * ITEM_BYTES[dtype] if nbytes is None else nbytes, trainable)


class Storage:
    """A run of bytes in a source, which several arrays may see. Where it starts may be found out late."""

    __slots__ = ("_start", "nbytes", "shared", "source", "sums")

    def __init__(self, source: Source, start: "int | Callable[[], int]", nbytes: int, shared: bool = True) -> None:
        self.source = source
        self._start = start
        self.nbytes = nbytes
        self.shared = shared  # whether several arrays may see it
        self.sums: Checksums | None = None  # its checksums, where the file has some

    @property
    def start(self) -> int:
        if not isinstance(self._start, int):
            self._start = self._start()
        return self._start

    def read(self, start: int, stop: int) -> Any:
        return self.source.read(self.start + start, self.start + stop)

    def read_into(self, start: int, view: memoryview) -> None:
        self.source.read_into(self.start + start, view)

    def view(self, start: int, stop: int) -> Any:
        return self.source.view(self.start + start, self.start + stop)


class Stored:
    """An array at rest."""

    __slots__ = ("spec",)
    reads_parts = True  # whether a part can be read without the rest
    checks_itself = False  # whether reading it compares a checksum that no storage of it has

    def __init__(self, spec: Spec) -> None:
        self.spec = spec

    def read(self, index: Index = ()) -> Any:
        """The values as a NumPy array, or a part of them, with as little read as can be."""
        import numpy as np

        return np.asarray(self.whole()[expanded(index, self.spec.shape or ())])

    def whole(self) -> Any:
        raise NotImplementedError

    def view(self) -> Any:
        """The values as a NumPy array for the user to keep: over mapped memory where the file allows it."""
        return self.read()

    def storages(self) -> "list[Storage]":
        """Where the bytes lie from which the values are made."""
        return []

    def check(self) -> None:
        """Reads all of an array that checks itself."""
        for _ in self.parts():
            pass

    def is_checked(self) -> bool:
        """Whether all of its bytes have checksums."""
        storages = self.storages()
        return self.checks_itself or (bool(storages) and all(storage.sums is not None for storage in storages))

    def chunks(self) -> Iterator[Any]:
        """The values in C order, as bytes, a chunk at a time."""
        for part in self.parts():
            yield as_bytes(part)

    def parts(self) -> Iterator[Any]:
        """The values in C order as arrays, cut along the first axes so that none is larger than a chunk."""
        shape = self.spec.shape or ()
        axis = next((axis for axis, size in enumerate(shape) if size > 1), None)
        if axis is None or self.spec.nbytes <= CHUNK:
            yield self.read()
            return
        rows = max(1, CHUNK * shape[axis] // self.spec.nbytes)
        whole = None if self.reads_parts else self.read()
        for start in range(0, shape[axis], rows):
            part = (*[slice(None)] * axis, slice(start, start + rows))
            yield self.read(part) if whole is None else whole[part]

    def plain_run(self) -> "tuple[Storage, int, int] | None":
        """Storage, start and stop, where the array is a run of bytes that can be copied as it is."""
        return None

    def __getitem__(self, index: Index) -> Any:
        return self.read(index)

    @property
    def shape(self) -> tuple[int, ...] | None:
        return self.spec.shape

    @property
    def dtype(self) -> str:
        return self.spec.dtype

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        array = self.read()
        return array if dtype is None else array.astype(dtype)

    def __repr__(self) -> str:
        return escape(f"<{type(self).__name__} {self.spec.shape} {self.spec.dtype}>")


class Strided(Stored):
    """Numbers that lie in a storage by strides, counted in bytes."""

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

    def tied_memory(self) -> Memory:
        """Where it lies, for whoever looks for ties."""
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
        # A part that lies scattered is put together from its pieces, rather than read with all that lies between.
        if high - low <= CHUNK or high - low <= 2 * prod(part.shape) * part.itemsize:
            return self._array(self.storage.read(low, high), low, part)
        found = np.empty(part.shape, numpy_dtype(part.dtype))
        self._gather(part, found)
        return found

    def view(self) -> Any:
        memory = self.memory()
        if 0 in memory.shape:
            return self.read()
        low, high = extent(memory)
        return self._array(self.storage.view(low, high), low, memory)

    def storages(self) -> list[Storage]:
        return [self.storage]

    def _gather(self, part: Memory, found: Any) -> None:
        """Fills an array with a part that lies scattered. What is read at a time spans a chunk at most, or a row."""
        low, high = extent(part)
        if high - low <= CHUNK or not part.shape:
            found[...] = self._array(self.storage.read(low, high), low, part)
            return
        axis = max(range(len(part.shape)), key=lambda axis: abs(part.strides[axis]) * (part.shape[axis] - 1))
        stride, size = abs(part.strides[axis]), part.shape[axis]
        rows = 1 if stride > _GAP else max(1, min(CHUNK // stride, size // 2))
        ahead = (slice(None),) * axis
        for start in range(0, size, rows):
            taken = (*ahead, slice(start, start + rows))
            at, shape, strides = sliced(part, taken)
            self._gather(part._replace(offset=at, shape=shape, strides=strides), found[taken])

    def _array(self, buffer: Any, low: int, part: Memory) -> Any:
        """An array over bytes that begin at `low` in the storage."""
        try:
            return self._over(buffer, numpy_dtype(part.dtype), part.offset - low, part.shape, part.strides)
        except (ValueError, MemoryError, OverflowError) as error:
            raise self.storage.source.error(self.storage.start + low, f"an array that cannot be ({error})") from error

    def _over(self, buffer: Any, dtype: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        import numpy as np

        itemsize = dtype.itemsize
        words = WORDS.get(itemsize)
        if self.big_endian and itemsize > 1:
            if words is None or dtype.kind == "c":
                half = np.dtype(f"u{itemsize // 2}")
                pairs = np.ndarray((*shape, 2), half, buffer, offset, (*strides, itemsize // 2)).byteswap()
                return pairs.view(dtype)[..., 0]
            return np.ndarray(shape, words, buffer, offset, strides).byteswap().view(dtype)
        return np.ndarray(shape, dtype, buffer, offset, strides)

    def plain_run(self) -> tuple[Storage, int, int] | None:
        memory = self.memory()
        if self.big_endian or not is_c_order(memory):
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


class Signed(Strided):
    """What PyTorch calls a conjugated or a negated view: other numbers than the bytes say."""

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
    """Numbers in an entry of a zip that is compressed: read from front to back, and never all at once where they lie in
    that order. Whoever reads the last of them has compared the checksum."""

    __slots__ = ()
    checks_itself = True

    @property
    def reads_parts(self) -> bool:  # type: ignore[override]
        return self.strides is None

    def plain_run(self) -> None:
        return None  # several threads would each unpack all that comes before


class Coded(Stored):
    """Numbers that must be worked out from the bytes: packed, quantised, compressed."""

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


class NotTiledError(ValueError):
    """Pieces of an array that leave something of it out, or hold something twice."""


Piece = tuple[tuple[int, ...], tuple[int, ...], Callable[[], Stored]]  # position, shape, and how to open it


class Pieces(Stored):
    """An array that lies in pieces, each with the position of its first element. Raises NotTiledError where these do
    not hold every element just once: what none of them fills would be whatever was in memory before."""

    __slots__ = ("_axis", "_longest", "_starts", "pieces")

    def __init__(self, spec: Spec, pieces: list[Piece], limits: Limits) -> None:
        super().__init__(spec)
        shape = spec.shape or ()
        if not tiled(shape, [(position, size) for position, size, _ in pieces], limits):
            raise NotTiledError
        # In order along the axis that is cut into the most pieces, so that the few that a part needs are found.
        cuts = [len({str(position[axis]) for position, _, _ in pieces}) for axis in range(len(shape))]
        self._axis = axis = cuts.index(max(cuts)) if cuts else 0
        self.pieces = [piece for piece in pieces if prod(piece[1])]
        self._starts, self._longest = [0] * len(self.pieces), 1
        if shape:
            self.pieces.sort(key=lambda piece: piece[0][axis])
            self._starts = [piece[0][axis] for piece in self.pieces]
            self._longest = max((piece[1][axis] for piece in self.pieces), default=1)

    def _touching(self, low: int, high: int) -> list[Piece]:
        """The pieces that may hold something from `low` to `high` along the axis."""
        first = bisect_right(self._starts, low - self._longest)
        return self.pieces[first : bisect_left(self._starts, high)]

    def storages(self) -> list[Storage]:
        return [storage for _, _, open_piece in self.pieces for storage in open_piece().storages()]

    def read(self, index: Index = ()) -> Any:
        import numpy as np

        shape = self.spec.shape or ()
        ranges = [taken_of(part, size) for part, size in zip(expanded(index, shape), shape, strict=True)]
        lows = [min(r[0], r[-1]) if len(r) else 0 for r in ranges]
        highs = [max(r[0], r[-1]) + 1 if len(r) else 0 for r in ranges]
        box = np.empty([h - lo for lo, h in zip(lows, highs, strict=True)], numpy_dtype(self.spec.dtype))
        filled = 0
        touching = self._touching(lows[self._axis], highs[self._axis]) if shape else self.pieces
        for position, size, open_piece in touching:
            inside = [(max(lo, p), min(h, p + n)) for lo, h, p, n in zip(lows, highs, position, size, strict=True)]
            if all(a < b for a, b in inside):
                there = tuple(slice(a - p, b - p) for (a, b), p in zip(inside, position, strict=True))
                here = tuple(slice(a - lo, b - lo) for (a, b), lo in zip(inside, lows, strict=True))
                box[here] = open_piece().read(there)
                filled += prod(b - a for a, b in inside)
        if filled != box.size:  # which `tiled` has ruled out
            raise NotTiledError(f"the pieces fill {filled:,} of {box.size:,} numbers")
        inner = tuple(
            part - lo if isinstance(part, int) else shifted(part, size, lo)
            for part, size, lo in zip(expanded(index, shape), shape, lows, strict=True)
        )
        return np.asarray(box[inner])


def tiled(shape: tuple[int, ...], boxes: "list[tuple[tuple[int, ...], tuple[int, ...]]]", limits: Limits) -> bool:
    """Whether boxes, each a position and a shape inside of `shape`, hold every element of it just once.

    Take the number of boxes at each element, less the one that there should be, and its differences along one axis
    after the other. They are zero everywhere but at the corners of boxes, where each box adds one or takes one away;
    and they are zero there too just when the numbers were all zero. So it is enough to add up the corners: for n boxes
    that are cut along k axes, in about n * 2**k steps.

    >>> from leafwise.files.limits import Limits
    >>> tiled((4,), [((0,), (1,)), ((1,), (3,))], Limits()), tiled((4,), [((0,), (2,)), ((1,), (2,))], Limits())
    (True, False)
    """
    boxes = [box for box in boxes if prod(box[1])]
    if prod(shape):
        boxes.append(((0,) * len(shape), shape))  # the whole, which counts against the others
    cut = [axis for axis, size in enumerate(shape) if any(box[1][axis] != size for box in boxes)]
    limits.work(len(boxes) << len(cut))
    # By text: tuples of numbers can be chosen to have the same hash.
    corners: dict[str, int] = {}
    for number, (position, size) in enumerate(boxes):
        ends = [((position[axis], 1), (position[axis] + size[axis], -1)) for axis in cut]
        weight = -1 if prod(shape) and number == len(boxes) - 1 else 1
        for corner in product(*ends):
            key = str([at for at, _ in corner])
            corners[key] = corners.get(key, 0) + weight * prod(sign for _, sign in corner)
    return not any(corners.values())


class InMemory(Stored):
    """An array whose bytes came with the header."""

    __slots__ = ("array_of",)
    reads_parts = False

    def __init__(self, spec: Spec, array_of: Callable[[], Any]) -> None:
        super().__init__(spec)
        self.array_of = array_of

    def whole(self) -> Any:
        return self.array_of()


class Unreadable(Stored):
    """An array that can be listed, and not read. Its bytes can be checked where the file says which these are."""

    __slots__ = ("storage", "why")

    def __init__(self, spec: Spec, why: str, storage: Storage | None = None) -> None:
        super().__init__(spec)
        self.why, self.storage = why, storage

    def whole(self) -> Any:
        raise Unsupported("a file", "give these values", self.why)

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

    def decode(data: Any, shape: tuple[int, ...]) -> Any:
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

    return decode
