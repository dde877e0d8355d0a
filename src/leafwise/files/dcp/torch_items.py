"""Tensors and plain values as `torch.save` writes them, one zip each, for the files of distributed checkpoints.

The size of everything around the bytes of a tensor is known before they are written, so the bytes may come from
anywhere, in any order. The CRC-32 of each entry is zero, as after `torch.serialization.set_crc32_options(False)`:
PyTorch does not compare it, and leafwise has checksums of its own, which take a tenth of the time.
"""

import struct
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from leafwise.files.arrays.slices import c_strides
from leafwise.files.arrays.stored import ITEM_BYTES
from leafwise.files.pickles.pickle_writer import Call, Global, Reference, pickled
from leafwise.files.pickles.torch_objects import TYPED_STORAGES

_FOLDER = "archive/"
_ZIP64_FROM = 0xFFFFFFFF  # from this size on, numbers do not fit into the fields of a zip
_VERSION, _LARGE_VERSION = 20, 45  # of the zip format, without and with large numbers


class ZipAround(NamedTuple):
    """The bytes of a zip before and after those of its last entry."""

    before: bytes
    after: bytes


@lru_cache(maxsize=4096)  # the layers of a model have the same shapes
def tensor_zip(shape: tuple[int, ...], dtype: str) -> ZipAround:
    """What is around the bytes of a tensor in C order, in the file that `torch.save` would write for it."""
    nbytes = prod(shape) * ITEM_BYTES[dtype]
    return _around([*_entries(_tensor_pickle(shape, dtype)), (f"{_FOLDER}data/0", nbytes, b"")])


def value_zip(value: Any) -> bytes:
    """The file that `torch.save` would write for a plain value. Raises TypeError for other values."""
    return b"".join(_around(_entries(pickled(value))))


def _tensor_pickle(shape: tuple[int, ...], dtype: str) -> bytes:
    strides = c_strides(shape, 1)
    typed = TYPED_STORAGES.get(dtype)
    storage = f"torch.{typed}" if typed else "torch.storage.UntypedStorage"
    elements = prod(shape) * (1 if typed else ITEM_BYTES[dtype])
    reference = Reference(("storage", Global(storage), "0", "cpu", elements))
    arguments = (reference, 0, shape, strides, False, Call("collections.OrderedDict"))
    if typed:
        return pickled(Call("torch._utils._rebuild_tensor_v2", *arguments))
    return pickled(Call("torch._utils._rebuild_tensor_v3", *arguments, Global(f"torch.{dtype}")))


_Entry = tuple[str, int, bytes]  # name, size, and content, unless that is what the zip is made for


def _entries(pickle: bytes) -> list[_Entry]:
    contents = {"data.pkl": pickle, "byteorder": b"little", "version": b"3\n"}
    return [(_FOLDER + name, len(content), content) for name, content in contents.items()]


def _around(entries: list[_Entry]) -> ZipAround:
    before, directory = b"", b""
    at = 0
    for name, size, content in entries:
        encoded = name.encode("ascii")
        large = struct.pack("<HHQQ", 1, 16, size, size) if size >= _ZIP64_FROM else b""
        version = _LARGE_VERSION if large else _VERSION
        short = min(size, _ZIP64_FROM)
        # Flags, method, time, date, CRC-32, both sizes, and the lengths of what follows. 33 is the first of January
        # 1980, since a date of zero is not valid.
        fields = struct.pack("<HHHHIIIHH", 0, 0, 0, 33, 0, short, short, len(encoded), len(large))
        header = b"PK\x03\x04" + struct.pack("<H", version) + fields + encoded + large
        directory += b"PK\x01\x02" + struct.pack("<HH", version, version) + fields
        directory += struct.pack("<HHHII", 0, 0, 0, 0, at) + encoded + large
        before += header + content
        at += len(header) + size
    end = b""
    if at >= _ZIP64_FROM:
        sizes = struct.pack("<QQQQ", len(entries), len(entries), len(directory), at)
        end = b"PK\x06\x06" + struct.pack("<QHHII", 44, _LARGE_VERSION, _LARGE_VERSION, 0, 0) + sizes
        end += b"PK\x06\x07" + struct.pack("<IQI", 0, at + len(directory), 1)
    counts = struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries), len(directory), min(at, _ZIP64_FROM), 0)
    return ZipAround(before, directory + end + b"PK\x05\x06" + counts)
