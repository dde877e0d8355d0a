"""Whether many tensors are still where they were, with the same shapes and dtypes: the fastest check that is exact."""

import ctypes
from functools import cache, partial
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from leafwise.kernels.library import load_for_objects

_PLAIN = frozenset({torch.Tensor, nn.Parameter, nn.Buffer})
# What sparse, fake and wrapping tensors raise, and dtypes that DLPack does not have.
_UNDESCRIBED = (RuntimeError, BufferError, NotImplementedError, TypeError, ValueError)
_WORDS = 9  # that most tensors need: three, and two for each axis


def are_plain(values: list[torch.Tensor]) -> bool:
    """Whether the bytes of each tensor are its numbers: it is not of a subclass, and not negated by a bit."""
    return have_plain_types(values) and not are_negated(values)


def have_plain_types(values: list[torch.Tensor]) -> bool:
    """Whether no tensor is of a subclass, which may use its memory in another way."""
    return set(map(type, values)) <= _PLAIN


def are_negated(values: list[torch.Tensor]) -> bool:
    """Whether the numbers of any tensor are the negatives of those in its memory."""
    return True in map(torch.Tensor.is_neg, values)


def snapshot(values: list[torch.Tensor]) -> Any:
    """The addresses, dtypes, devices, shapes and strides of tensors, which `same` compares. None if one of them has no
    memory."""
    try:
        return _described(values)
    except _UNDESCRIBED:
        pass
    try:
        return [(value.data_ptr(), value.dtype, value.device, value.shape, value.stride()) for value in values]
    except _UNDESCRIBED:
        return None


class Layouts(NamedTuple):
    """Where tensors are, as NumPy arrays with an element for each tensor. Their memory is plain: strided, and neither
    quantized nor on meta. An address is zero where there is no memory."""

    addresses: Any
    item_bytes: Any
    devices: Any
    sizes: Any  # numbers of elements
    is_contiguous: Any
    rows: Any  # of matrices; zero for other tensors
    columns: Any


def layouts(values: list[torch.Tensor]) -> Layouts | None:
    """The layouts of tensors, all at once; None if they are not known of one of them."""
    describe = _function("leafwise_describe_layouts")
    if describe is None:
        return None
    objects = np.fromiter(values, dtype=object, count=len(values))
    facts = np.empty((len(values), 7), np.int64)
    try:
        describe(objects.ctypes.data, len(values), facts.ctypes.data)
    except _UNDESCRIBED:
        return None
    return Layouts(*facts.T)


def are_marked(values: list[torch.Tensor]) -> bool:
    """Whether any tensor has attributes, by which libraries mark those that are not what they seem."""
    return any(map(attrgetter("__dict__"), values))


def have_plain_memory(values: list[torch.Tensor]) -> bool:
    """Whether all values of all tensors can certainly be read from their memory. If not, each must be checked."""
    if not set(map(type, values)) <= {torch.Tensor, nn.Parameter} or are_marked(values):
        return False
    tensor_layouts = layouts(values)
    if tensor_layouts is None or not tensor_layouts.addresses.all() or not tensor_layouts.is_contiguous.all():
        return False
    stored = np.fromiter((value.untyped_storage().nbytes() for value in values), np.int64, len(values))
    offsets = np.fromiter(map(torch.Tensor.storage_offset, values), np.int64, len(values))
    return bool((stored >= (offsets + tensor_layouts.sizes) * tensor_layouts.item_bytes).all())


def same(first: Any, second: Any) -> bool:
    """Whether two snapshots are equal; None is equal to nothing."""
    if first is None or second is None:
        return False
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        return bool(np.array_equal(first, second))
    return type(first) is type(second) and bool(first == second)


def _described(values: list[torch.Tensor]) -> Any:
    """Asks each tensor through DLPack, in C. Raises if that is not possible."""
    describe = _function("leafwise_describe_tensors")
    if describe is None:
        raise NotImplementedError
    objects = np.fromiter(values, dtype=object, count=len(values))
    capacity = _WORDS * len(values)
    while True:
        facts = np.empty(capacity, np.int64)
        used = describe(objects.ctypes.data, len(values), facts.ctypes.data, ctypes.c_int64(capacity))
        if used >= 0:
            return facts[:used]
        capacity *= 2


@cache
def _function(name: str) -> Any:
    """A function in C, with PyTorch's function for a tensor; None if there is none."""
    function = getattr(load_for_objects(), name, None)
    capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if function is None or capsule is None:
        return None
    pointer_in = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_in.restype, pointer_in.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address = pointer_in(capsule, b"dlpack_exchange_api")
    major, minor = (ctypes.c_uint32 * 2).from_address(address)
    # The version, an older version of the table, three functions, and then the one that describes a tensor.
    get = (ctypes.c_void_p * 6).from_address(address)[5]
    if (major, minor) < (1, 3) or major > 1 or not get:
        return None
    function.restype = ctypes.c_int64
    # The function of PyTorch, the number of objects, and where they and their facts are; then what else it needs.
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
    return partial(function, get)
