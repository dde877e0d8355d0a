"""Comparing arrays that are not contiguous, or of different dtypes, piece by piece."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import numpy as np

from leafwise.core.dtypes import WORDS, number_kind
from leafwise.core.results.comparison import Comparison, merged_comparisons
from leafwise.core.work.progress import Count
from leafwise.errors import WriteError
from leafwise.kernels import reference
from leafwise.kernels.casting import cast_to
from leafwise.kernels.comparing import compare_chunk
from leafwise.kernels.cpu import CHUNK
from leafwise.kernels.dtypes import byte_values, numpy_dtype

_INT64_MAX = np.iinfo(np.int64).max
_EXACT = 1 << 53  # up to here, float64 represents every integer
_TILE = 1024  # rows and columns that are transposed at a time


def arrays_of(pieces: Iterable[Any], dtype: str) -> Iterator[Any] | None:
    """Bytes, in pieces, as arrays of a dtype; None if NumPy does not know it."""
    if not is_numpy_dtype(dtype):
        return None
    known = numpy_dtype(dtype)
    return (np.frombuffer(piece, known) for piece in pieces)


def is_numpy_dtype(dtype: str) -> bool:
    """Whether NumPy has a dtype, or ml_dtypes does."""
    try:
        return bool(numpy_dtype(dtype).itemsize)
    except (TypeError, WriteError, ModuleNotFoundError):
        return False


def same_bytes(first: Iterable[Any], second: Iterable[Any]) -> bool:
    """Whether two streams of bytes are the same, in pieces of any length."""
    chunks = (regrouped(np.frombuffer(piece, np.uint8) for piece in pieces) for pieces in (first, second))
    return all(x is not None and y is not None and same_bits(x, y) for x, y in zip_longest(*chunks))


def compare_streams(
    first: Iterable[Any], second: Iterable[Any], count: Count = lambda done: None
) -> tuple[Comparison, bool]:
    """Compares two arrays of any dtypes, each given in parts of any length; and whether they differ only by a cast,
    that is, casting one of them gives the bits of the other. Differences are computed in a dtype that is wide enough
    for both.

    >>> wide = np.array([0.1, 1.0], np.float32)
    >>> comparison, is_cast = compare_streams([wide], [wide.astype(np.float16)])
    >>> comparison.changed, is_cast
    (1, True)
    """
    comparison, forth, back, same_dtype = compare_parts(first, second, count)
    if not comparison.changed:
        comparison = Comparison(comparison.size, 0)  # like the comparison of runs
    return comparison, (forth or back) and (not same_dtype or not comparison.changed)


class PartsCompared(NamedTuple):
    """How two arrays, or parts of them, compare: with norms, even if they are the same, so that the comparisons of
    several parts can be combined; whether casting the first gives the second, and the second the first; and whether
    they have the same dtype."""

    comparison: Comparison
    forth: bool
    back: bool
    same_dtype: bool


def compare_parts(first: Iterable[Any], second: Iterable[Any], count: Count = lambda done: None) -> PartsCompared:
    """Like `compare_streams`, for parts of arrays whose other parts are compared elsewhere."""
    parts = []
    forth = back = True
    same_dtype = False
    for x, y in zip(regrouped(first), regrouped(second), strict=True):
        same_dtype = x.dtype == y.dtype
        if not same_dtype:
            forth, back = forth and _gives(x, y), back and _gives(y, x)
        parts += _compared(x, y)
        count(x.nbytes)
    return PartsCompared(merged_comparisons(parts), forth, back, same_dtype)


def transposed(
    read: Callable[[Any], Any], read_turned: Callable[[Any], Any], shape: tuple[int, ...]
) -> Literal["same", "cast"] | None:
    """Whether a matrix is the transpose of another: with the same bits, or after a cast. Both are read in tiles."""
    rows, columns = shape
    forth = back = True
    for top in range(0, rows, _TILE):
        for left in range(0, columns, _TILE):
            rows_taken, columns_taken = slice(top, top + _TILE), slice(left, left + _TILE)
            x = np.ascontiguousarray(read((rows_taken, columns_taken)))
            y = np.ascontiguousarray(read_turned((columns_taken, rows_taken)).T)
            forth, back = forth and _gives(x, y), back and _gives(y, x)
            is_cast = x.dtype != y.dtype
            if not (forth or back):
                return None
    return "cast" if rows and columns and is_cast else "same"


def same_bits(x: Any, y: Any) -> bool:
    """Whether two arrays have the same dtype and the same bits."""
    return bool(x.dtype == y.dtype and x.tobytes() == y.tobytes())


def agree(x: Any, y: Any) -> bool:
    """Whether two arrays are the same, perhaps after a cast."""
    return _gives(x, y) or _gives(y, x)


def _cast(array: Any, dtype: Any) -> Any:
    if array.dtype == dtype:
        return array
    if array.dtype.kind == "c" and dtype.kind != "c":
        array = array.real  # NumPy would warn
    if array.dtype.type.__module__ == dtype.type.__module__ == "ml_dtypes":
        array = array.astype(np.float32)  # exact; not all of them can be cast to each other
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def _casts(array: Any, dtype: Any) -> Iterator[Any]:
    """The possible results of casting an array to a dtype. leafwise rounds once; PyTorch and ml_dtypes round to float32
    first. For values beyond the range of a float8, PyTorch uses its largest number, and ml_dtypes infinity or nan."""
    yield _cast(array, dtype)
    if array.dtype.itemsize > 4 and number_kind(array.dtype.name) == number_kind(dtype.name) == "float":
        with suppress(WriteError):
            yield cast_to(array, dtype.name, saturate=True)
    if "c" in (array.dtype.kind, dtype.kind) or dtype.kind in "iub" or dtype.itemsize > 2:
        return
    single = _cast(array, np.dtype(np.float32))
    if array.dtype.itemsize > 4 or array.dtype.kind in "iub":
        yield _cast(single, dtype)
    if dtype.itemsize == 1:
        finite = np.unique(np.abs(byte_values(dtype.name)))
        largest = finite[np.isfinite(finite)][-1]
        yield _cast(np.clip(single, -largest, largest), dtype)


def _gives(x: Any, y: Any) -> bool:
    """Whether casting one array gives the other. Numbers may be rounded, but not to integers."""
    if x.dtype == y.dtype:
        return same_bits(x, y)
    if x.dtype.kind == "c" and y.dtype.kind != "c" and x.imag.any():
        return False
    if not any(_same(cast, y) for cast in _casts(x, y.dtype)):
        return False
    if y.dtype.kind in "iub" and not _same(_cast(y, x.dtype), x):
        return False
    # A negative number that wraps around to a large one, and back, is another number.
    return x.dtype.kind not in "iu" or y.dtype.kind not in "iu" or bool(((x < 0) == (y < 0)).all())


def _same(x: Any, y: Any) -> bool:
    """Whether two arrays of one dtype have the same bits. All nan are equal, because casts may change their bits."""
    if x.tobytes() == y.tobytes():
        return True
    words = WORDS.get(x.dtype.itemsize)
    bits = x == y if words is None else np.ascontiguousarray(x).view(words) == np.ascontiguousarray(y).view(words)
    with np.errstate(invalid="ignore"):  # NumPy warns of signaling nan
        return bool((bits | ((x != x) & (y != y))).all())


def _compared(x: Any, y: Any) -> list[Comparison]:
    between = _exactly_between(x, y)
    if between is not None:
        wide = between.dtype
        return [reference.compare(_cast(x, wide), _cast(y, wide), between)]
    return [compare_chunk(np.ascontiguousarray(a), np.ascontiguousarray(b)) for a, b in _widened(x, y)]


def _exactly_between(x: Any, y: Any) -> Any:
    """The differences between large integers and floats, as if nothing had been rounded before; None if float64
    represents the integers exactly, so that nothing is rounded."""
    if y.dtype.kind in "iu":
        x, y = y, x
    if x.dtype.name not in ("int64", "uint64") or y.dtype.kind in "iub":
        return None
    if not ((x > _EXACT) | (x < -_EXACT if x.dtype.kind == "i" else False)).any():
        return None
    wide = _cast(y, _wide(x.dtype, y.dtype))
    # In two halves, which float64 represents exactly. The rounding error of the first difference is added again.
    upper, lower = (x & ~x.dtype.type(2047)).astype(np.float64), (x & x.dtype.type(2047)).astype(np.float64)
    real = wide.real
    with np.errstate(invalid="ignore"):
        first = upper - real
        back = first - upper
        lost = (upper - (first - back)) - (real + back)
        exact = first + (lost + lower)
    if wide.dtype.kind != "c":
        return exact
    between = np.empty_like(wide)
    between.real, between.imag = exact, wide.imag
    return between


def _widened(x: Any, y: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of arrays as pairs of one dtype that represents the numbers of both. Large integers would be rounded as
    floats, so pairs of int64 and uint64 are split by the dtype into which both numbers fit. Pairs that fit into
    neither differ in any case, and are compared as floats."""
    if x.dtype == y.dtype:
        yield x, y
        return
    if "uint64" in (x.dtype.name, y.dtype.name):  # which has no common integer dtype with the others in NumPy
        x, y = (side.astype(np.int64) if side.dtype.kind == "i" else side for side in (x, y))
    if {x.dtype.name, y.dtype.name} != {"int64", "uint64"}:
        wide = _wide(x.dtype, y.dtype)
        yield _cast(x, wide), _cast(y, wide)
    else:
        positive = (x >= 0) & (y >= 0)
        small = ~positive & (x <= _INT64_MAX) & (y <= _INT64_MAX)
        for mask, wide in ((positive, np.uint64), (small, np.int64), (~positive & ~small, np.float64)):
            if mask.any():
                yield x[mask].astype(wide), y[mask].astype(wide)


def _wide(first: Any, second: Any) -> Any:
    """A dtype that represents the numbers of both."""
    if "c" in (first.kind, second.kind):
        return np.dtype(np.complex128)
    if all(dtype.kind in "iub" for dtype in (first, second)):
        return np.promote_types(first, second)
    narrow = all(dtype.kind not in "iub" and dtype.itemsize <= 4 for dtype in (first, second))
    return np.dtype(np.float32 if narrow else np.float64)


def regrouped(arrays: Iterable[Any], size: int = CHUNK) -> Iterator[Any]:
    """The same values in pieces of one length, so that it does not matter how they were cut. A piece is valid until the
    next one: the memory of the arrays may be used again."""
    kept: Any = None
    for array in arrays:
        flat = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)
        at = 0
        if kept is not None:
            at = min(size - kept.size, flat.size)
            kept = np.concatenate([kept, flat[:at]])
            if kept.size < size:
                continue
            yield kept
            kept = None
        whole = at + (flat.size - at) // size * size
        yield from (flat[start : start + size] for start in range(at, whole, size))
        if whole < flat.size:
            kept = flat[whole:].copy()
    if kept is not None:
        yield kept
