"""Plain Python values as JSON, and back, with the same value and type.

JSON has text, numbers, true, false, null and lists. Everything else becomes an object with one key, which names its
type. A type that is not in the table below raises `TypeError`, even if it is a subclass of one that is: a value that
came back with another type would be silently wrong.
"""

import base64
import json
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from importlib import import_module
from json.encoder import encode_basestring_ascii
from math import isfinite
from typing import Any

from leafwise.core.opaque import Opaque, StoredText, same_records
from leafwise.files.limits import filled_dict, filled_set
from leafwise.files.pickles.pickle_objects import GlobalName, StoredDeque

MAX_DEPTH = 100  # nested containers; Python's JSON reader fails at a few hundred
_MAX_BITS = 10_000  # of an int; Python refuses to parse longer ones
_FACTORIES: dict[str, Any] = {kind.__name__: kind for kind in (bool, bytes, dict, float, int, list, set, str, tuple)}
_NUMPY_KINDS = "biufcSUMm"


class TooDeepError(TypeError):
    """Containers are nested too deeply, or one contains itself."""


def encoded(value: Any, depth: int = 0) -> Any:
    """A plain value as a JSON value. Raises TypeError if `decoded` would not return an equal value."""
    kind = type(value)
    if value is None or kind in (bool, str, StoredText):
        return value
    if kind is int:
        if value.bit_length() > _MAX_BITS:
            raise TypeError(f"a whole number of {value.bit_length():,} bits")
        return value
    if kind is float:
        return value if isfinite(value) else {"float": repr(value)}
    if depth >= MAX_DEPTH:
        raise TooDeepError(f"more than {MAX_DEPTH} containers inside each other")
    if kind is list:
        return [encoded(item, depth + 1) for item in value]
    if kind in _WRITERS:
        return {"deque" if kind is StoredDeque else kind.__name__: _WRITERS[kind](value, depth + 1)}
    if kind.__module__ in ("numpy", "ml_dtypes") and _is_numpy_scalar(kind):
        return {"numpy": _numpy_scalar(value)}
    if kind.__module__ == "torch" and kind.__name__ == "Size":
        return {"torch.Size": [*value]}
    if kind.__module__ == "torch" and kind.__name__ == "dtype":
        return {"torch.dtype": str(value).removeprefix("torch.")}
    if isinstance(value, Opaque):
        raise TypeError(f"an object of class {value.class_name}, which was not loaded from its file")
    raise TypeError(_type_text(kind, value))


def _type_text(kind: type, value: Any) -> str:
    if isinstance(value, GlobalName):
        return f"the Python class or function {value}"
    return kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__qualname__}"


def _items(value: Iterable[Any], depth: int) -> list[Any]:
    return [encoded(item, depth) for item in value]


def _unordered(value: Iterable[Any], depth: int) -> list[Any]:
    # Sorted, so that equal sets give equal files.
    return sorted(_items(value, depth), key=_json_text)


def _json_text(item: Any) -> str:
    """An item of a set as JSON. Text and whole numbers are by far the most common, and take a tenth of the time."""
    if type(item) is str:
        return encode_basestring_ascii(item)
    return str(item) if type(item) is int else json.dumps(item, sort_keys=True)


def _pairs(value: Any, depth: int) -> list[Any]:
    return [[encoded(key, depth), encoded(item, depth)] for key, item in value.items()]


def _defaulting(value: Any, depth: int) -> list[Any]:
    factory = value.default_factory
    name: str = "" if factory is None else getattr(factory, "__name__", "")
    if factory is not None and _FACTORIES.get(name) is not factory:
        raise TypeError(f"a defaultdict that makes its values with {factory!r:.60}")
    return [name or None, _pairs(value, depth)]


def _base64(value: "bytes | bytearray", depth: int) -> str:
    return base64.b64encode(value).decode()


_WRITERS: dict[type, Callable[[Any, int], Any]] = {
    bytes: _base64,
    bytearray: _base64,
    complex: lambda value, depth: [encoded(value.real), encoded(value.imag)],
    tuple: _items,
    set: _unordered,
    frozenset: _unordered,
    deque: lambda value, depth: [_items(value, depth), value.maxlen],
    StoredDeque: lambda value, depth: [_items(value, depth), value.maxlen],
    range: lambda value, depth: [value.start, value.stop, value.step],
    dict: _pairs,
    OrderedDict: _pairs,
    Counter: _pairs,
    defaultdict: _defaulting,
}


# Containers that are restored with their own type; the walk makes nodes of them.
CONTAINERS = frozenset({list, tuple, dict, OrderedDict, Counter, defaultdict})


def _is_numpy_scalar(kind: type) -> bool:
    return any((base.__module__, base.__name__) == ("numpy", "generic") for base in kind.__mro__)


def _numpy_scalar(value: Any) -> list[str]:
    dtype = value.dtype
    if dtype.kind in _NUMPY_KINDS:
        if not dtype.itemsize:
            raise TypeError(f"an empty NumPy scalar, {value!r}")
        if dtype.byteorder == ">" or (dtype.byteorder == "=" and sys.byteorder == "big"):
            raise TypeError(f"a NumPy scalar of {dtype}")
        return [dtype.str, _base64(value.tobytes(), 0)]
    if type(value).__module__ == "ml_dtypes":
        return [dtype.name, _base64(value.tobytes(), 0)]
    raise TypeError(f"a NumPy scalar of {dtype}")


def copied(value: Any) -> Any:
    """A copy of a plain value, made by encoding and decoding it. Raises TypeError if the copy is not identical, for
    example if a text contains two surrogates that JSON joins into one character."""
    copy = decoded(json.loads(json.dumps(encoded(value))))
    if not identical(value, copy):
        raise TypeError(f"{_type_text(type(value), value)} {value!r:.60}, which would be read back as {copy!r:.60}")
    return copy


def identical(left: Any, right: Any) -> bool:
    """Whether two plain values are equal in value and in type, at every level. NaN equals NaN; -0.0 is not 0.0."""
    kind = _type_of(left)
    if kind is not _type_of(right):
        return False
    if isinstance(left, Opaque):
        return same_records(left, right)
    if kind in CONTAINERS or kind is deque:
        if len(left) != len(right) or getattr(left, "maxlen", None) != getattr(right, "maxlen", None):
            return False
        if getattr(left, "default_factory", None) is not getattr(right, "default_factory", None):
            return False
        if isinstance(left, dict):
            pairs = zip(left.items(), right.items(), strict=True)
            return all(identical(a, b) and identical(x, y) for (a, x), (b, y) in pairs)
        return all(map(identical, left, right))
    if kind in (set, frozenset):
        return sorted(map(_mark, left)) == sorted(map(_mark, right))
    if kind in (float, complex) or _is_numpy_scalar(kind):
        # NumPy's text may end with null characters, which its repr leaves out.
        return repr(left) == repr(right) and (not isinstance(left, str | bytes) or len(left) == len(right))
    return bool(left == right)


def _type_of(value: Any) -> type:
    kind = type(value)
    return deque if kind is StoredDeque else str if kind is StoredText else kind


def _mark(value: Any) -> str:
    """A text for an item of a set; it differs for items that are not identical."""
    if isinstance(value, tuple | frozenset):
        inner = map(_mark, value) if isinstance(value, tuple) else sorted(map(_mark, value))
        return f"{type(value).__name__}({', '.join(inner)})"
    return f"{_type_of(value).__name__} {value!r}"


def as_loaded(value: Any) -> Any:
    """A plain value of a file as a live object gets it."""
    kind = type(value)
    if kind in (list, tuple, set, frozenset):
        return kind(map(as_loaded, value))
    if kind is dict:
        return {as_loaded(key): as_loaded(item) for key, item in value.items()}
    return (
        deque(map(as_loaded, value), value.maxlen)
        if kind is StoredDeque
        else str(value)
        if kind is StoredText
        else value
    )


# -- decoding ------------------------------------------------------------------------------------------------


def decoded(value: Any) -> Any:
    """The value that was passed to `encoded`. Raises ValueError, or another error, for input that `encoded` never
    returns."""
    if isinstance(value, list):
        return [decoded(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind not in _READERS:
        raise ValueError(f"a plain value of unknown kind {kind!r:.50}")
    return _READERS[kind](inner)


def _decoded_float(inner: Any) -> float:
    if inner not in ("nan", "inf", "-inf"):
        raise ValueError(f"{inner!r:.50} is not nan, inf or -inf")
    return float(inner)


def _bytes(inner: Any) -> bytes:
    return base64.b64decode(inner, validate=True)


def _list(inner: Any) -> list[Any]:
    if type(inner) is not list:
        raise ValueError(f"{inner!r:.50} is not a list")
    return [decoded(item) for item in inner]


def _distinct(inner: Any) -> set[Any]:
    items = _list(inner)
    distinct = filled_set(items)
    if len(distinct) < len(items) and not any(item != item for item in items):
        raise ValueError("a set contains an item twice")
    return distinct


def _mapping(inner: Any) -> dict[Any, Any]:
    mapping = filled_dict([(decoded(key), decoded(value)) for key, value in inner])
    if len(mapping) < len(inner):
        raise ValueError("a dict contains a key twice")
    return mapping


def _decoded_complex(inner: Any) -> complex:
    real, imaginary = inner
    return complex(decoded(real), decoded(imaginary))


def _decoded_deque(inner: Any) -> deque[Any]:
    items, longest = inner
    return deque(_list(items), longest)


def _decoded_default(inner: Any) -> defaultdict[Any, Any]:
    name, pairs = inner
    return defaultdict(None if name is None else _FACTORIES[name], _mapping(pairs))


def _decoded_numpy(inner: Any) -> Any:
    name, data = inner
    np = import_module("numpy")
    if name[:1] in "<|>=":
        dtype = np.dtype(name)
        if dtype.kind not in _NUMPY_KINDS:
            raise ValueError(f"a NumPy scalar of {name!r:.50}")
    else:
        dtype = np.dtype(getattr(import_module("ml_dtypes"), name))
    scalars = np.frombuffer(_bytes(data), dtype)
    if len(scalars) != 1:
        raise ValueError(f"{len(scalars)} NumPy scalars instead of one")
    return scalars[0]


def _decoded_size(inner: Any) -> Any:
    sizes = _list(inner)
    if not all(type(size) is int for size in sizes):
        raise ValueError("a torch.Size contains something other than whole numbers")
    try:
        return import_module("torch").Size(sizes)
    except ImportError:
        return tuple(sizes)  # a torch.Size is a tuple; PyTorch is not installed


def _decoded_dtype(inner: Any) -> Any:
    torch = import_module("torch")
    dtype = getattr(torch, inner, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{inner!r:.50} is not a PyTorch dtype")
    return dtype


_READERS: dict[str, Callable[[Any], Any]] = {
    "float": _decoded_float,
    "bytes": _bytes,
    "bytearray": lambda inner: bytearray(_bytes(inner)),
    "complex": _decoded_complex,
    "tuple": lambda inner: tuple(_list(inner)),
    "set": _distinct,
    "frozenset": lambda inner: frozenset(_distinct(inner)),
    "deque": _decoded_deque,
    "range": lambda inner: range(*inner),
    "dict": _mapping,
    "OrderedDict": lambda inner: OrderedDict(_mapping(inner)),
    "Counter": lambda inner: Counter(_mapping(inner)),
    "defaultdict": _decoded_default,
    "numpy": _decoded_numpy,
    "torch.Size": _decoded_size,
    "torch.dtype": _decoded_dtype,
}
