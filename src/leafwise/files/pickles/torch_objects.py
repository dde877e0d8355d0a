"""The names that may occur in PyTorch's pickles, and our replacements."""

import copy
from math import prod
from typing import TYPE_CHECKING, Any

from leafwise.core.home import Spec
from leafwise.core.opaque import Opaque, StoredText
from leafwise.errors import FileError
from leafwise.files.arrays.slices import c_strides, is_shape
from leafwise.files.arrays.stored import ITEM_BYTES, Signed, Storage, Stored, Strided, Unreadable, spec_of
from leafwise.files.limits import ALLOW_MORE, Limits
from leafwise.files.pickles.numpy_objects import NUMPY_TABLE
from leafwise.files.pickles.pickle_costs import ARRAY_STEPS
from leafwise.files.pickles.pickle_objects import (
    MAKES_OPAQUE,
    GlobalName,
    StoredBytes,
    Table,
    TensorParts,
    UnexpectedArgumentsError,
    UnpicklingError,
    WithStorage,
    cheap,
    makes_opaque,
    pickled_object,
    shown,
    takes_machine,
)
from leafwise.files.pickles.python_objects import PYTHON_TABLE, class_text, sequence
from leafwise.files.pickles.torch_shards import tensor_of
from leafwise.files.sources.source import BytesSource, PartSource, Source

if TYPE_CHECKING:
    from leafwise.files.pickles.unpickler import Unpickler

MAX_PICKLE = 1 << 30  # bytes

# The dtypes that have a class of typed storages, in files of PyTorch before 2.0.
TYPED_STORAGES = {
    "float64": "DoubleStorage", "float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage",
    "complex64": "ComplexFloatStorage", "complex128": "ComplexDoubleStorage", "int64": "LongStorage",
    "int32": "IntStorage", "int16": "ShortStorage", "int8": "CharStorage", "uint8": "ByteStorage",
    "bool": "BoolStorage",
}  # fmt: skip
STORAGES = {
    **{storage: dtype for dtype, storage in TYPED_STORAGES.items()},
    "UntypedStorage": "uint8", "QInt8Storage": "qint8", "QUInt8Storage": "quint8", "QInt32Storage": "qint32",
}  # fmt: skip
QUANTIZED = {"qint8": 1, "quint8": 1, "qint32": 4}
_SIZES = {**ITEM_BYTES, **QUANTIZED}
_SHORT_NAMES = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32"}


class StorageType:
    """Our replacement for one of PyTorch's classes of storages."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.itemsize = _SIZES[dtype]

    def __call__(self, *args: Any) -> Any:
        raise UnpicklingError("a storage has its bytes in the pickle itself, which leafwise does not read")


def storage_reference(reference: Any) -> tuple[StorageType, str, int]:
    """The class, the key and the number of elements, from the tuple with which a pickle refers to a storage."""
    if not isinstance(reference, tuple) or len(reference) < 5 or reference[0] != "storage":
        raise UnpicklingError(f"it contains a reference that is not a storage: {shown(reference)}")
    kind, key, count = getattr(reference[1], "make", None), reference[2], reference[4]
    if not isinstance(kind, StorageType) or not isinstance(key, str) or type(count) is not int or count < 0:
        raise UnpicklingError(f"it contains a reference to a storage that is not valid: {shown(reference)}")
    return kind, key, count


class TorchDtype(str):
    """A dtype, by its plain name. It is an entry of the table, but is never called."""

    __slots__ = ()

    def __call__(self, *args: Any) -> Any:
        raise UnpicklingError(f"it calls the dtype {self} as a function")


class TypedStorage(WithStorage):
    """A storage with the dtype of its class. Tensors refer to it; on its own it is an object that is not loaded."""

    __slots__ = ("dtype",)

    def __init__(self, storage: Storage, dtype: str) -> None:
        super().__init__("torch.storage.TypedStorage", (dtype,), storage)
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
    dtype, held = dtype or storage.dtype, storage.storage
    shape = _counts(shape)
    trainable = True if trains is True else None
    itemsize = _SIZES.get(dtype)
    if itemsize is None:
        spec = Spec(shape, dtype, "file", prod(shape), held.nbytes, trainable)
        return Unreadable(spec, f"leafwise does not read the dtype {dtype}; cast it before saving", held)
    steps = strides if isinstance(strides, tuple | list) else ()
    sound = len(steps) == len(shape) and all(
        type(number) is int and 0 <= number < 1 << 58 for number in (offset, *steps)
    )
    if not sound:
        raise UnpicklingError(f"a tensor of shape {shape} has an offset or strides that are not valid")
    reach = offset + sum((size - 1) * stride for size, stride in zip(shape, steps, strict=True)) + 1
    if prod(shape) and reach * itemsize > held.nbytes:
        raise UnpicklingError(
            f"a tensor of shape {shape} needs {reach * itemsize:,} bytes but its storage has {held.nbytes:,}"
        )
    if dtype in QUANTIZED:
        spec = Spec(shape, dtype, "file", prod(shape), prod(shape) * itemsize, trainable)
        return Unreadable(spec, f"it is quantized ({dtype}); dequantize it before saving")
    spec = spec_of(shape, dtype, trainable=trainable)
    if spec.nbytes > held.nbytes and not held.source.limits.allows_repeats(spec.nbytes - held.nbytes):
        why = f"it is an expanded tensor: {held.nbytes:,} bytes are stored, and its values would take {spec.nbytes:,}"
        return Unreadable(spec, f"{why}; {ALLOW_MORE}")
    in_bytes = tuple(stride * itemsize for stride in steps)
    plain = None if in_bytes == c_strides(shape, itemsize) else in_bytes
    signs = [sign for sign in ("conj", "neg") if isinstance(metadata, dict) and metadata.get(sign)]
    if signs:
        return Signed(spec, held, offset * itemsize, plain, signs)
    return Strided(spec, held, offset * itemsize, plain)


def _counts(numbers: Any) -> tuple[int, ...]:
    if not is_shape(numbers):
        raise UnpicklingError("a shape is not a list of non-negative whole numbers, or is larger than any file")
    return tuple(numbers)


@cheap
def _tensor_v2(
    storage: Any, offset: Any, shape: Any, strides: Any, trains: Any = False, hooks: Any = None, metadata: Any = None
) -> Stored:
    return _tensor(storage, offset, shape, strides, trains=trains, metadata=metadata)


@cheap
def _tensor_v3(
    storage: Any, offset: Any, shape: Any, strides: Any, trains: Any, hooks: Any, dtype: Any, metadata: Any = None
) -> Stored:
    return _tensor(storage, offset, shape, strides, dtype=str(_dtype(dtype)), trains=trains, metadata=metadata)


def _quantized(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> Stored:
    return _tensor(storage, offset, shape, strides)


@cheap
@takes_machine
def _parameter(machine: "Unpickler", data: Any, trains: Any = True, *_: Any) -> "Stored | Opaque":
    if type(data) is Opaque:
        machine.note_used(data)
    return _as_parameter(data, trains)


def _as_parameter(data: Any, trains: Any) -> "Stored | Opaque":
    if isinstance(data, Opaque):
        return data  # a tensor of a class that leafwise does not load, such as a DTensor
    if not isinstance(data, Stored):
        raise UnpicklingError("a parameter has no tensor")
    spec = data.spec._replace(trainable=bool(trains))
    # A copy: the file may contain the tensor itself, too.
    if type(data) is Strided:
        return Strided(spec, data.storage, data.offset, data.strides, data.big_endian)
    parameter = copy.copy(data)
    parameter.spec = spec
    return parameter


@takes_machine
def _parameter_with_state(
    machine: "Unpickler", data: Any, trains: Any = True, hooks: Any = None, state: Any = None, *_: Any
) -> Any:
    return _with_attributes(_parameter(machine, data, trains), state)


def _on_meta(dtype: Any, shape: Any, strides: Any, trains: Any = False) -> Stored:
    shape, dtype = _counts(shape), str(_dtype(dtype))
    spec = Spec(shape, dtype, "meta", prod(shape), 0, True if trains is True else None)
    return Unreadable(spec, "it was on meta when it was saved, and has no values")


def _dtype(value: Any) -> TorchDtype:
    make = getattr(value, "make", None)
    if isinstance(make, TorchDtype):
        return make
    if isinstance(value, Opaque) and value.class_name.startswith("torch.") and value.class_name.count(".") == 1:
        return TorchDtype(ascii(value.class_name[6:46])[1:-1])  # one that is newer than leafwise
    raise UnpicklingError(f"{shown(value)} is used as a dtype")


def _sparse(layout: Any, data: Any) -> dict[str, Any]:
    if not isinstance(layout, str) or len(layout) > 100:
        raise UnpicklingError(f"a sparse tensor has the unknown layout {shown(layout)}")
    return {"layout": str(layout), "parts": data}


@takes_machine
def _nested(machine: "Unpickler", values: Any, *sizes: Any) -> dict[str, Any]:
    machine.limits.spend_steps(ARRAY_STEPS)  # each part is listed
    names = ("sizes", "strides", "offsets", "lengths")
    return {"values": values, **dict(zip(names, sizes, strict=False))}


@makes_opaque
def _wrapper(kind: Any, *args: Any) -> TensorParts:
    """A tensor of a class that consists of other tensors, which its state contains."""
    return TensorParts(class_text(kind), args)


@takes_machine
def _from_type(machine: "Unpickler", function: Any, kind: Any, args: Any, state: Any) -> Any:
    """The plain tensor from which a tensor of a subclass is made, or the parts of which it consists."""
    if not isinstance(function, GlobalName) or not function.startswith("torch._utils.") or not isinstance(args, tuple):
        machine.note_called(function, args)
        raise UnexpectedArgumentsError(f"a tensor is made by {shown(function)}, which leafwise does not support")
    made = function.make(*args)
    if isinstance(made, TensorParts):
        made.state = state
        whole_or_part = tensor_of(made)
        return made if whole_or_part is None else whole_or_part
    return _with_attributes(made, state)


def _with_attributes(tensor: Any, state: Any) -> Any:
    """A tensor, or its parts if some of its attributes are tensors."""
    states = state if isinstance(state, tuple) else (state,)
    attributes: dict[Any, Any] = next((part for part in states if isinstance(part, dict)), {})
    if not any(isinstance(value, Stored) for value in attributes.values()):
        return tensor
    parts = TensorParts("torch.Tensor")
    parts.state = {"data": tensor, **attributes}
    return parts


def _from_numpy(data: Any, dtype: Any, device: Any = None, trains: Any = False, *_: Any) -> Any:
    """A tensor of a device without storages of its own, such as XLA: its values are in a NumPy array or a tensor."""
    if not isinstance(data, Stored):
        raise UnexpectedArgumentsError("a tensor has no values")
    if data.spec.dtype != str(_dtype(dtype)):
        reason = f"it is stored as {data.spec.dtype} and was {_dtype(dtype)}; load it with PyTorch and save it again"
        return Unreadable(data.spec._replace(dtype=str(_dtype(dtype))), reason)
    return _as_parameter(data, True) if trains is True else data


@takes_machine
def _embedded_storage(machine: "Unpickler", data: Any) -> TypedStorage:
    """A storage that was pickled without torch.save: its bytes are a file of their own, in the format before 1.6."""
    from leafwise.files.formats.pickle_files import legacy_content

    if id(data) in machine.changeable:
        raise UnpicklingError("a storage in the pickle has bytes that the pickle may change")
    if isinstance(data, StoredBytes):
        place = data.storage
        source: Source = PartSource(place.source, place.start, place.start + place.nbytes)
        source.limits = place.source.limits
    elif isinstance(data, bytes):
        source = BytesSource("a storage in the pickle", data)
        source.pickle_names = machine.names
        # Nothing but its description is read here, which is counted as a part of the pickle that contains it.
        source.limits = Limits(1 << 20, 1 << 16, strict=True)
    else:
        raise UnpicklingError("a storage has no bytes")
    before = source.limits.steps
    try:
        storage = legacy_content(source)
    except FileError as error:
        raise UnpicklingError(f"a storage in the pickle cannot be read: {error}") from error
    if isinstance(data, bytes):
        machine.limits.spend_steps(before - source.limits.steps + len(data) // 16)
    if not isinstance(storage, TypedStorage):
        raise UnpicklingError("a storage in the pickle is not a storage")
    return storage


def _text(*args: Any) -> StoredText:
    if len(args) > 3 or not all(isinstance(arg, str | int) and len(shown(arg)) < 90 for arg in args):
        raise UnexpectedArgumentsError("a device or layout is made from unexpected arguments")
    return StoredText(":".join(map(str, args)), "torch.device")


TABLE: Table = {
    **PYTHON_TABLE,
    **NUMPY_TABLE,
    ("torch._utils", "_rebuild_tensor"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor_v2,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor_v3,
    ("torch._utils", "_rebuild_qtensor"): _quantized,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter_with_state,
    ("torch._utils", "_rebuild_meta_tensor_no_storage"): _on_meta,
    ("torch._utils", "_rebuild_sparse_tensor"): _sparse,
    ("torch._utils", "_rebuild_nested_tensor"): _nested,
    ("torch._utils", "_rebuild_wrapper_subclass"): _wrapper,
    ("torch._utils", "_rebuild_device_tensor_from_numpy"): _from_numpy,
    ("torch._utils", "_rebuild_device_tensor_from_cpu_tensor"): _from_numpy,
    ("torch._utils", "_rebuild_xla_tensor"): _from_numpy,
    ("torch.storage", "_load_from_bytes"): _embedded_storage,
    ("torch._tensor", "_rebuild_from_type_v2"): _from_type,
    ("torch", "Size"): sequence(tuple),
    ("torch", "device"): _text,
    ("torch", "Tensor"): pickled_object("torch.Tensor"),
    ("torch.nn.parameter", "Parameter"): pickled_object("torch.nn.Parameter"),
    ("torch.serialization", "_get_layout"): _text,
}
for _name in (*_SIZES, *_SHORT_NAMES):
    TABLE["torch", _name] = TorchDtype(_SHORT_NAMES.get(_name, _name))
for _name, _held in STORAGES.items():
    for _module in ("torch", "torch.storage", "torch.cuda"):
        TABLE[_module, _name] = StorageType(_held)
for _name in (
    "per_tensor_affine",
    "per_channel_affine",
    "strided",
    "contiguous_format",
    "preserve_format",
    "channels_last",
):
    TABLE["torch", _name] = pickled_object(f"torch.{_name}")

# The names that ordinary checkpoints contain, without those that make objects of any class.
EXPECTED = frozenset(f"{module}.{name}" for (module, name), make in TABLE.items() if not hasattr(make, MAKES_OPAQUE))
