"""NumPy's arrays, dtypes and scalars in pickles, also as joblib writes them."""

import struct
from math import prod
from typing import TYPE_CHECKING, Any

from leafwise.core.dtypes import DTYPES
from leafwise.core.opaque import Opaque
from leafwise.files.arrays.slices import c_strides, is_shape
from leafwise.files.arrays.stored import ITEM_BYTES, InMemory, Storage, Stored, Strided, numpy_dtype, spec_of
from leafwise.files.pickles.pickle_objects import (
    StoredBytes,
    Table,
    UnexpectedArgumentsError,
    UnfinishedArray,
    UnpicklingError,
    WithStorage,
    pickled_object,
)
from leafwise.files.pickles.python_objects import bytes_of_python_2

if TYPE_CHECKING:
    from leafwise.files.pickles.unpickler import Unpickler

_ITEM_BYTES = 100  # of memory for an object in an array
_HAS_OBJECTS = 1  # the flag of dtypes with Python objects

_NUMPY_NAMES = {dtype.numpy: name for name, dtype in DTYPES.items() if dtype.is_native}
_SCALAR_CODES = {
    "f8": "d", "f4": "f", "f2": "e", "i8": "q", "i4": "i", "i2": "h", "i1": "b",
    "u8": "Q", "u4": "I", "u2": "H", "u1": "B", "b1": "?", "c16": "2d", "c8": "2f",
}  # fmt: skip


class NumpyDtype(Opaque):
    """A NumPy dtype. Its state, which follows in the pickle, contains the byte order."""

    __slots__ = ("code", "has_fields", "order")

    def __init__(self, code: str) -> None:
        super().__init__("numpy.dtype", (code,))
        self.code = code
        self.order = "<"
        self.has_fields = False

    def build_from(self, state: Any) -> None:
        # In the older versions of this state, the size is elsewhere.
        is_known = isinstance(state, tuple) and len(state) in (8, 9) and type(state[0]) is int and state[0] in (3, 4)
        if not is_known or state[1] not in ("<", ">", "|", "="):
            raise UnpicklingError("a NumPy dtype has an unexpected state")
        self.order, self.state = state[1], state
        # Text and bytes have a length there.
        self.has_fields = self.code[:1] not in "USV" and any(part not in (None, -1, 0) for part in state[2:7])
        self.has_fields = self.has_fields or any(part is not None for part in state[2:5])

    def itemsize(self) -> int | None:
        """The bytes of an element; None if that is not known."""
        plain = self.plain()
        if plain is not None:
            return ITEM_BYTES[plain]
        kind, digits = self.code[:1], self.code[1:]
        if (self.has_fields and kind != "V") or not digits.isdecimal() or kind not in "USVMm":
            return None
        size = int(digits) * (4 if kind == "U" else 1)
        # NumPy takes the size of text and of bytes from the state, and that of dates from the name.
        stated = self.state[5] if isinstance(self.state, tuple) and len(self.state) > 5 and kind in "USV" else size
        return size if type(stated) is int and stated == size else None

    def has_objects(self) -> bool:
        """Whether an array of this dtype contains Python objects, by its name or by the flags in its state."""
        flags = self.state[7] if isinstance(self.state, tuple) and len(self.state) > 7 else 0
        return self.code[:1] == "O" or type(flags) is not int or bool(flags & _HAS_OBJECTS)

    def plain(self) -> str | None:
        """The plain name of a dtype of numbers."""
        return None if self.has_fields else _NUMPY_NAMES.get(self.code)


def _dtype(code: Any, *_: Any) -> NumpyDtype:
    if not isinstance(code, str) or len(code) > 8:
        raise UnpicklingError("a NumPy dtype has an unexpected name")
    return NumpyDtype(code.lstrip("<>|=") or code)


class PickledArray(UnfinishedArray):
    """A NumPy array. Its state contains shape, dtype and bytes, or a list of Python objects."""

    __slots__ = ()

    def finished(self, state: Any, stream: "Unpickler") -> Stored | None:
        if not isinstance(state, tuple) or len(state) not in (4, 5):
            raise UnpicklingError("a NumPy array has an unexpected state")
        shape, dtype, fortran, data = state[-4:]
        if not isinstance(dtype, NumpyDtype) or not is_shape(shape):
            raise UnpicklingError("a NumPy array has an unexpected shape or dtype")
        plain = dtype.plain()
        if plain is None:  # text, objects, or fields
            self.class_name = "numpy.ndarray"
            self.args = (tuple(shape), dtype.code)
            self.items = data if isinstance(data, list) else None
            stream.limits.spend_bytes(len(data) if isinstance(data, str | bytes) else 0)
            if isinstance(data, list):  # which several arrays may share
                stream.limits.spend_bytes(_ITEM_BYTES * len(data))
                stream.limits.spend_steps(4 * len(data))
            self.state = (bool(fortran), dtype, None if isinstance(data, list) else data)
            return None
        if isinstance(data, str):
            stream.limits.spend_bytes(4 * len(data))
            data = bytes_of_python_2(data, prod(shape) * ITEM_BYTES[plain])
        if not isinstance(data, bytes | StoredBytes):
            raise UnpicklingError("a NumPy array of numbers has no bytes")
        return _array(tuple(shape), plain, dtype.order == ">", bool(fortran), data)


def _array(shape: tuple[int, ...], plain: str, big_endian: bool, fortran: bool, data: bytes | StoredBytes) -> Stored:
    if prod(shape) * ITEM_BYTES[plain] != len(data):
        raise UnpicklingError(f"a NumPy array of shape {shape} in {plain} has {len(data):,} bytes")
    if isinstance(data, StoredBytes):
        return _in_file(shape, plain, big_endian, fortran, data.storage)

    def array() -> Any:
        import numpy as np

        wide = np.frombuffer(data, numpy_dtype(plain).newbyteorder(">" if big_endian else "<"))
        return wide.reshape(shape, order="F" if fortran else "C").astype(numpy_dtype(plain))

    return InMemory(spec_of(shape, plain), array)


def fortran_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...] | None:
    """The strides of an array whose first axis is the fastest, in bytes; None if it has at most one axis."""
    return tuple(reversed(c_strides(shape[::-1], itemsize))) if len(shape) > 1 else None


def _in_file(shape: tuple[int, ...], plain: str, big_endian: bool, fortran: bool, storage: Storage) -> Stored:
    strides = fortran_strides(shape, ITEM_BYTES[plain]) if fortran else None
    return Strided(spec_of(shape, plain), storage, 0, strides, big_endian)


def _from_buffer(data: Any, dtype: Any, shape: Any, order: Any, *_: Any) -> Any:
    if not isinstance(dtype, NumpyDtype) or not is_shape(shape):
        raise UnexpectedArgumentsError("a NumPy array has an unexpected shape or dtype")
    plain = dtype.plain()
    if isinstance(data, bytearray):
        data = bytes(data)
    if plain is None or not isinstance(data, bytes | StoredBytes):
        raise UnexpectedArgumentsError("a NumPy array does not contain plain numbers")
    return _array(tuple(shape), plain, dtype.order == ">", order == "F", data)


def _scalar(dtype: Any, data: Any = None) -> Any:
    if isinstance(data, str) and isinstance(dtype, NumpyDtype) and dtype.code[1:].isdecimal():
        data = bytes_of_python_2(data, int(dtype.code[1:]) * (4 if dtype.code[:1] == "U" else 1))
    if not isinstance(dtype, NumpyDtype) or not isinstance(data, bytes):
        raise UnexpectedArgumentsError("a NumPy scalar is not valid")
    big_endian = dtype.order == ">"
    if dtype.code[:1] == "U" and len(data) % 4 == 0:
        return str(data, "utf-32-be" if big_endian else "utf-32-le").rstrip("\0")
    if dtype.code[:1] == "S":
        return data.rstrip(b"\0")
    form = _SCALAR_CODES.get(dtype.code)
    if form is None or len(data) != struct.calcsize(form):
        raise UnexpectedArgumentsError(f"a NumPy scalar has the unsupported dtype {ascii(dtype.code)[:40]}")
    numbers = struct.unpack((">" if big_endian else "<") + form, data)
    return complex(*numbers) if len(numbers) == 2 else numbers[0]


class JoblibArray(UnfinishedArray):
    """The description of an array in a file of joblib: the bytes of the array follow in the file, outside of the
    pickle."""

    __slots__ = ()

    def finished(self, state: Any, stream: "Unpickler") -> Any:
        if not isinstance(state, dict) or not all(type(key) is str for key in state):
            raise UnpicklingError("an array of joblib has an unexpected state")
        shape: Any = state.get("shape")
        dtype, order = state.get("dtype"), state.get("order")
        if not isinstance(dtype, NumpyDtype) or not is_shape(shape):
            raise UnpicklingError("an array of joblib has an unexpected shape or dtype")
        stream.probe(is_pickle=dtype.has_objects())
        if dtype.has_objects():
            return stream.nested()  # joblib pickles arrays of objects
        plain, itemsize = dtype.plain(), dtype.itemsize()
        if itemsize is None:
            raise UnpicklingError(
                f"an array of joblib has the dtype {ascii(dtype.code)[:40]}, whose size is not known, so the rest of "
                "the file cannot be read"
            )
        aligned = state.get("numpy_array_alignment_bytes") is not None
        if plain is None:
            storage = stream.array_bytes(prod(shape) * itemsize, aligned)
            return WithStorage("numpy.ndarray", (tuple(shape), dtype.code, dtype), storage)
        storage = stream.array_bytes(prod(shape) * ITEM_BYTES[plain], aligned)
        return _in_file(tuple(shape), plain, dtype.order == ">", order == "F", storage)


NUMPY_TABLE: Table = {
    ("numpy", "ndarray"): pickled_object("numpy.ndarray"),
    ("numpy", "dtype"): _dtype,
}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    NUMPY_TABLE[_module, "_reconstruct"] = lambda *_: PickledArray("numpy.ndarray")
    NUMPY_TABLE[_module, "scalar"] = _scalar
for _module in ("numpy.core.numeric", "numpy._core.numeric"):
    NUMPY_TABLE[_module, "_frombuffer"] = _from_buffer

JOBLIB_TABLE: Table = {
    ("joblib.numpy_pickle", "NumpyArrayWrapper"): lambda *_: JoblibArray("joblib.numpy_pickle.NumpyArrayWrapper"),
}
