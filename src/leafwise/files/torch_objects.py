"""The names that may occur in PyTorch's pickles, and our replacements: tensors, containers, NumPy arrays."""

import copy
from collections.abc import Callable
from math import prod
from typing import Any

from leafwise.core.dtypes import DTYPES
from leafwise.core.home import Spec
from leafwise.files.arrays import (
    ITEM_BYTES,
    InMemory,
    Signed,
    Storage,
    Stored,
    Strided,
    Unreadable,
    numpy_dtype,
    spec_of,
)
from leafwise.files.limits import filled_set
from leafwise.files.pickle_objects import GlobalName, Table, UnpicklingError, pickled_object, shown
from leafwise.files.slices import c_strides, is_shape

# The classes of typed storages → their dtypes.
STORAGES = {
    **{dtype.torch_storage: name for name, dtype in DTYPES.items() if dtype.torch_storage},
    "UntypedStorage": "uint8", "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32",
}  # fmt: skip
_NUMPY_NAMES = {dtype.numpy: name for name, dtype in DTYPES.items() if dtype.is_native}
QUANTIZED = {"qint8": 1, "quint8": 1, "qint32": 4}
_SHORT_NAMES = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32"}


class StorageType:
    """Our replacement for one of PyTorch's classes of typed storages."""

    def __init__(self, dtype: str, untyped: bool) -> None:
        self.dtype = dtype
        self.untyped = untyped

    def __call__(self, *args: Any) -> Any:
        raise UnpicklingError("a storage has its bytes in the pickle itself, which leafwise does not read")


class TorchDtype(str):
    """A dtype, by its plain name."""

    __slots__ = ()


class TypedStorage:
    """A storage with the dtype of its class."""

    __slots__ = ("dtype", "storage")

    def __init__(self, storage: Storage, dtype: str) -> None:
        self.storage = storage
        self.dtype = dtype


def _tensor(
    storage: Any,
    offset: Any,
    shape: Any,
    strides: Any,
    dtype: str | None = None,
    trains: Any = None,
    metadata: Any = None,
) -> Stored:
    if not isinstance(storage, TypedStorage):
        raise UnpicklingError("a tensor has no storage")
    dtype = dtype or storage.dtype
    itemsize = ITEM_BYTES.get(dtype) or QUANTIZED.get(dtype)
    if itemsize is None:
        raise UnpicklingError(f"a tensor has the unknown dtype {dtype!a}")
    shape = _counts(shape)
    steps = strides if isinstance(strides, tuple | list) else ()
    sound = len(steps) == len(shape) and all(
        type(number) is int and 0 <= number < 1 << 58 for number in (offset, *steps)
    )
    if not sound:
        raise UnpicklingError(f"a tensor of shape {shape} has an offset or strides that are not valid")
    reach = offset + sum((size - 1) * stride for size, stride in zip(shape, steps, strict=True)) + 1
    if prod(shape) and reach * itemsize > storage.storage.nbytes:
        raise UnpicklingError(
            f"a tensor of shape {shape} needs {reach * itemsize:,} bytes but its storage has {storage.storage.nbytes:,}"
        )
    trainable = True if trains is True else None
    if dtype in QUANTIZED:
        spec = Spec(shape, dtype, "file", prod(shape), prod(shape) * itemsize, trainable)
        return Unreadable(spec, f"it is quantized ({dtype}); dequantize it before saving")
    spec = spec_of(shape, dtype, trainable=trainable)
    held = storage.storage
    if spec.nbytes > held.nbytes and not held.source.limits.allows_repeats(spec.nbytes - held.nbytes):
        why = f"it is an expanded tensor: {held.nbytes:,} bytes are stored, and its values would take {spec.nbytes:,}"
        return Unreadable(
            spec, f"{why}; if you trust the file, allow more with lw.open(path, max_bytes=…) or --max-bytes"
        )
    in_bytes = tuple(stride * itemsize for stride in steps)
    plain = None if in_bytes == c_strides(shape, itemsize) else in_bytes
    signs = [sign for sign in ("conj", "neg") if isinstance(metadata, dict) and metadata.get(sign)]
    if signs:
        return Signed(spec, storage.storage, offset * itemsize, plain, signs)
    return Strided(spec, storage.storage, offset * itemsize, plain)


def _counts(numbers: Any) -> tuple[int, ...]:
    if not is_shape(numbers):
        raise UnpicklingError("a shape is not a list of non-negative whole numbers, or is larger than any file")
    return tuple(numbers)


def _tensor_v2(
    storage: Any, offset: Any, shape: Any, strides: Any, trains: Any = False, hooks: Any = None, metadata: Any = None
) -> Stored:
    return _tensor(storage, offset, shape, strides, trains=trains, metadata=metadata)


def _tensor_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, trains: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> Stored:
    return _tensor(storage, offset, shape, strides, dtype=str(_dtype(dtype)), trains=trains, metadata=metadata)


def _quantized(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Stored:
    return _tensor(storage, offset, shape, strides)


def _parameter(data: Any, trains: Any = True, *_: Any) -> Stored:
    if not isinstance(data, Stored):
        raise UnpicklingError("a parameter has no tensor")
    parameter = copy.copy(data)  # a copy: the file may contain the tensor itself, too
    parameter.spec = data.spec._replace(trainable=bool(trains))
    return parameter


def _on_meta(dtype: Any, shape: Any, strides: Any, trains: Any = False) -> Stored:
    shape, dtype = _counts(shape), str(_dtype(dtype))
    spec = Spec(shape, dtype, "meta", prod(shape), 0, True if trains is True else None)
    return Unreadable(spec, "it was on meta when it was saved, and has no values")


def _dtype(value: Any) -> TorchDtype:
    make = getattr(value, "make", None)
    if isinstance(make, TorchDtype):
        return make
    raise UnpicklingError(f"{shown(value)} is used as a dtype")


def _sparse(layout: Any, data: Any) -> dict[str, Any]:
    if not isinstance(layout, str) or len(layout) > 100:
        raise UnpicklingError(f"a sparse tensor has the unknown layout {shown(layout)}")
    return {"layout": str(layout), "parts": data}


def _from_type(function: Any, kind: Any, args: Any, state: Any) -> Any:
    """The plain tensor from which a tensor of a subclass is made."""
    if not isinstance(function, GlobalName) or not function.startswith("torch._utils.") or not isinstance(args, tuple):
        raise UnpicklingError(f"a tensor is made by {shown(function)}, which leafwise does not support")
    return function.make(*args)


class _DtypeName(TorchDtype):
    """A table entry for a dtype, which is never called."""

    __slots__ = ()

    def __call__(self, *args: Any) -> Any:
        raise UnpicklingError(f"it calls the dtype {self} as a function")


def _mapping(*args: Any) -> dict[Any, Any]:
    if not args or args == ([],):
        return {}
    raise UnpicklingError("a dict is made from unexpected arguments")


def _default_mapping(*args: Any) -> dict[Any, Any]:
    return {}


def _counter(*args: Any) -> dict[Any, Any]:
    counted = args[0] if args else {}
    if not isinstance(counted, dict):
        raise UnpicklingError("a Counter is made from unexpected arguments")
    return dict(counted)


def _bytes(*args: Any) -> bytes:
    if not args or isinstance(args[0], bytes):
        return args[0] if args else b""
    return _encoded(*args)


def _sequence(of: Callable[[Any], Any]) -> Callable[..., Any]:
    def make(*args: Any) -> Any:
        items = args[0] if args else ()
        if len(args) > 1 or not isinstance(items, list | tuple):
            raise UnpicklingError("a collection is made from unexpected arguments")
        if of in (set, frozenset) and any(isinstance(item, list | dict | tuple | set) for item in items):
            raise UnpicklingError("a set contains collections")
        return of(filled_set(items) if of in (set, frozenset) else items)

    return make


def _text(*args: Any) -> str:
    if len(args) > 3 or not all(isinstance(arg, str | int) and len(shown(arg)) < 90 for arg in args):
        raise UnpicklingError("a device or layout is made from unexpected arguments")
    return ":".join(map(str, args))


def _path(*args: Any) -> str:
    if len(args) > 1000 or not all(isinstance(arg, str) and len(arg) < 1000 for arg in args):
        raise UnpicklingError("a file path is made from unexpected arguments")
    return "/".join(args).replace("//", "/", 1) if args[:1] == ("/",) else "/".join(args)


def _encoded(text: Any, how: Any = "latin1") -> bytes:
    if not isinstance(text, str) or how not in ("latin1", "latin-1"):
        raise UnpicklingError("bytes are encoded in an unexpected way")
    return text.encode("latin-1")


def _complex(real: Any, imaginary: Any) -> complex:
    return complex(float(real), float(imaginary))


# -- NumPy objects, as in random states and metrics ------------------------------------------------------


class NumpyDtype:
    """A NumPy dtype. Its state, which follows in the pickle, contains the byte order."""

    def __init__(self, code: str) -> None:
        self.code = code
        self.order = "<"

    def build_from(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) < 5 or state[1] not in ("<", ">", "|", "="):
            raise UnpicklingError("a NumPy dtype has an unexpected state")
        if any(part not in (None, -1, 0) for part in state[2:7]):
            raise UnpicklingError("a NumPy dtype has fields")
        self.order = state[1]

    def plain(self) -> str:
        name = _NUMPY_NAMES.get(self.code)
        if name is None:
            raise UnpicklingError(
                f"it contains a NumPy array of {ascii(self.code)[:40]}, whose elements are not plain numbers"
            )
        return name


def _numpy_dtype(code: Any, *_: Any) -> NumpyDtype:
    if not isinstance(code, str) or len(code) > 8:
        raise UnpicklingError("a NumPy dtype has an unexpected name")
    return NumpyDtype(code)


class NumpyArray(InMemory):
    """A NumPy array whose bytes are in the pickle."""

    __slots__ = ("is_built",)

    def __init__(self) -> None:
        super().__init__(spec_of((0,), "uint8"), lambda: None)
        self.is_built = False  # until it gets its values

    def build_from(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != 5:
            raise UnpicklingError("a NumPy array has an unexpected state")
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, NumpyDtype) or not isinstance(data, bytes):
            raise UnpicklingError("a NumPy array contains Python objects")
        shape, plain = _counts(shape), dtype.plain()
        if prod(shape) * ITEM_BYTES[plain] != len(data):
            raise UnpicklingError(f"a NumPy array of shape {shape} in {plain} has {len(data):,} bytes")
        self.spec = spec_of(shape, plain)

        def array() -> Any:
            import numpy as np

            wide = np.frombuffer(data, numpy_dtype(plain).newbyteorder(">" if dtype.order == ">" else "<"))
            return wide.reshape(shape, order="F" if fortran else "C").astype(numpy_dtype(plain))

        self.array_of = array
        self.is_built = True


def _reconstruct(*_: Any) -> NumpyArray:
    return NumpyArray()


def _numpy_from_buffer(data: Any, dtype: Any, shape: Any, order: Any) -> NumpyArray:
    array = NumpyArray()
    array.build_from((1, shape, dtype, order == "F", data))
    return array


def _numpy_scalar(dtype: Any, data: Any = None) -> Any:
    if not isinstance(dtype, NumpyDtype) or not isinstance(data, bytes) or len(data) > 16:
        raise UnpicklingError("a NumPy scalar is not valid")
    import struct

    codes = {
        "f8": "d",
        "f4": "f",
        "f2": "e",
        "i8": "q",
        "i4": "i",
        "i2": "h",
        "i1": "b",
        "u8": "Q",
        "u4": "I",
        "u2": "H",
    }
    codes |= {"u1": "B", "b1": "?"}
    if dtype.code not in codes or len(data) != struct.calcsize(codes[dtype.code]):
        raise UnpicklingError(f"a NumPy scalar has the unsupported dtype {ascii(dtype.code)[:40]}")
    return struct.unpack((">" if dtype.order == ">" else "<") + codes[dtype.code], data)[0]


class Namespace(dict[str, Any]):
    """The attributes of an argparse.Namespace."""

    def build_from(self, state: Any) -> None:
        if not isinstance(state, dict):
            raise UnpicklingError("a Namespace has an unexpected state")
        self.update({str(key): value for key, value in state.items()})


TABLE: Table = {
    ("collections", "OrderedDict"): _mapping,
    ("collections", "defaultdict"): _default_mapping,
    ("collections", "Counter"): _counter,
    ("builtins", "set"): _sequence(set),
    ("builtins", "frozenset"): _sequence(frozenset),
    ("builtins", "list"): _sequence(list),
    ("builtins", "dict"): _mapping,
    ("builtins", "complex"): _complex,
    ("builtins", "bytearray"): _bytes,
    ("builtins", "bytes"): _bytes,
    ("builtins", "slice"): pickled_object("slice"),
    ("builtins", "range"): pickled_object("range"),
    ("_codecs", "encode"): _encoded,
    ("argparse", "Namespace"): lambda *_: Namespace(),
    ("pathlib", "PosixPath"): _path,
    ("pathlib", "WindowsPath"): _path,
    ("pathlib", "PurePosixPath"): _path,
    ("pathlib._local", "PosixPath"): _path,
    ("torch._utils", "_rebuild_tensor"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_qtensor"): _quantized,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _on_meta,
    ("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch", "Size"): _sequence(tuple),
    ("torch", "device"): _text,
    ("torch", "Tensor"): pickled_object("torch.Tensor"),
    ("torch.nn.parameter", "Parameter"): pickled_object("torch.nn.Parameter"),
    ("torch.serialization", "_get_layout"): _text,
    ("numpy", "ndarray"): pickled_object("numpy.ndarray"),
    ("numpy", "dtype"): _numpy_dtype,
}
for _module, _name in list(TABLE):
    if _module == "builtins":  # older protocols write the module name of Python 2
        TABLE["__builtin__", {"range": "xrange"}.get(_name, _name)] = TABLE[_module, _name]
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    TABLE[_module, "_reconstruct"] = _reconstruct
    TABLE[_module, "scalar"] = _numpy_scalar
for _module in ("numpy.core.numeric", "numpy._core.numeric"):
    TABLE[_module, "_frombuffer"] = _numpy_from_buffer
for _name in (*ITEM_BYTES, *QUANTIZED, *_SHORT_NAMES):
    TABLE["torch", _name] = _DtypeName(_SHORT_NAMES.get(_name, _name))
for _name, _held in STORAGES.items():
    for _module in ("torch", "torch.storage", "torch.cuda"):
        TABLE[_module, _name] = StorageType(_held, untyped=_name == "UntypedStorage")
for _name in (
    "per_tensor_affine",
    "per_channel_affine",
    "strided",
    "contiguous_format",
    "preserve_format",
    "channels_last",
):
    TABLE["torch", _name] = pickled_object(f"torch.{_name}")
