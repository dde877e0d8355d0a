"""Casts of stored values to another dtype: the arguments `cast=` and `dtype=`, and casting a chunk at a time."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from leafwise.core.dtypes import number_kind
from leafwise.errors import QueryError
from leafwise.files.arrays.computed import Elementwise
from leafwise.files.arrays.stored import CHUNK, Stored, as_bytes, numpy_dtype

SATURATE = 'cast="saturate" uses the nearest value that fits'  # advice for a value that does not fit
Cast = bool | Literal["saturate"]  # "saturate": values that do not fit become the nearest that do


def checked_cast(cast: Any) -> Cast:
    """Checks the argument `cast=`, and returns it."""
    if isinstance(cast, bool) or (isinstance(cast, str) and cast == "saturate"):
        return cast  # type: ignore[return-value]
    raise QueryError(f'cast= takes True, False or "saturate", not {cast!r}')


def checked_dtype(dtype: Any, known: Iterable[str]) -> str | None:
    """Checks the argument `dtype=`, the dtype to which floating-point arrays are cast, and returns its plain name."""
    name = None if dtype is None else str(dtype).removeprefix("torch.")
    fractional = [candidate for candidate in known if number_kind(candidate) == "float"]
    if name is not None and name not in fractional:
        raise QueryError(f"cannot cast to {dtype!r}; floating-point arrays can be cast to {', '.join(fractional)}")
    return name


def cast_to(array: Any, dtype: str, saturate: bool = False) -> Any:
    """A NumPy array cast to another dtype, by the rules of `leafwise.kernels.casting`."""
    from leafwise.kernels import casting

    return casting.cast_to(array, dtype, saturate)


def cast_into(array: Any, out: Any, saturate: bool = False) -> None:
    """Writes a flat NumPy array into one of another dtype or of the same dtype, with the bits of `cast_to`."""
    if array.dtype == out.dtype:
        out[...] = array
        return
    from leafwise.kernels import combining

    combining.cast(array, out, saturate)


def misfit(array: Any, dtype: str) -> str:
    """Why some values of an array do not fit a dtype; empty if all of them fit."""
    from leafwise.kernels import casting

    return casting.misfit(array, dtype)


def number_misfit(number: float, dtype: str) -> str:
    """Why a number cannot be an element of an array; empty if it can.

    >>> number_misfit(0.5, "int64"), number_misfit(2.0, "int64")
    ('0.5 cannot be stored as int64', '')
    """
    import numpy as np

    kind = number_kind(dtype)
    if kind in ("int", "bool") and (not np.isfinite(number) or number != int(number)):
        return f"{number:g} cannot be stored as {dtype}"
    if kind == "bool":
        return "" if number in (0, 1) else f"{number:g} cannot be stored as {dtype}"
    kinds: dict[str, type] = {"int": int, "complex": complex}
    return misfit(np.array(kinds.get(kind, float)(number)), dtype)


def cast_pieces(pieces: Iterable[Any], own: str, dtype: str, saturate: bool) -> Iterator[Any]:
    """Casts bytes of one dtype to bytes of another, a chunk at a time."""
    import numpy as np

    known = numpy_dtype(own)
    for piece in pieces:
        array = np.frombuffer(piece, known)
        step = CHUNK // known.itemsize
        for start in range(0, array.size, step):
            yield as_bytes(cast_to(array[start : start + step], dtype, saturate))


class CastArray(Elementwise):
    """A stored array, cast while it is read, by the rules of `leafwise.kernels.casting`."""

    __slots__ = ("saturate",)

    def __init__(self, inner: Stored, dtype: str, saturate: bool = False) -> None:
        super().__init__([inner], dtype)
        self.saturate = saturate

    def compute(self, arrays: list[Any], out: Any) -> None:
        from leafwise.kernels import combining

        combining.cast(arrays[0], out, self.saturate)

    def over(self, inputs: Sequence[Stored]) -> "CastArray":
        return CastArray(inputs[0], self.spec.dtype, self.saturate)
