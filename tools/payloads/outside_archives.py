"""Payloads from a reviewer who knew how the files are read: archives whose entries two readers find in different
places, arrays that are longer or shorter than they seem, and files of two formats."""

import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.payloads.containers import (
    LOAD,
    MAGIC,
    OBJECTS,
    Payload,
    dcp_value,
    dtype,
    legacy,
    npy,
    torch_zip,
    zipped,
)
from tools.payloads.outside_pickles import LEGACY_START, LONG_NUMBER, folder, folder_bytes, payload, text, u32, u64
from tools.payloads.pickle_code import Built, Call, Code, Filled, Name, Steps, call, encoded, name, pickled
from tools.payloads.tricks import msgpack

Data = Callable[[str], bytes]


def payloads() -> Iterator[Payload]:
    for label, (data, loader) in _TORCH.items():
        yield payload(label, "torch files", loader, data, ".pt")
    for label, data in _JOBLIB.items():
        yield payload(f"joblib: {label}", "joblib files", "joblib.load", data)
    for label, junk in _BEFORE_OPCODES.items():
        for loader in ("pickle.load", "torch.load"):

            def data_of(marker: str, junk: bytes = junk) -> bytes:
                return _opcodes_in_array(marker, junk)

            name_of = f"joblib: opcodes as the bytes of an array after {label}, {loader}"
            yield payload(name_of, "joblib files", loader, data_of, ".pkl")
    for label, (data, loader) in _JOBLIB_ELSEWHERE.items():
        yield payload(f"joblib: {label}", "joblib files", loader, data, ".pt" if "zip" in loader else ".pkl")
    for label, (data, suffix) in _NUMPY.items():
        yield payload(label, "NumPy files", "numpy.load", data, suffix)
    for label, (data, loader) in _TWO_FORMATS.items():
        yield payload(label, "files of two formats", loader, data)
    for label, data in _VALUES.items():

        def write(path: Path, marker: str, data: Data = data) -> None:
            dcp_value(path, data(marker))

        yield Payload(f"DCP: a value that is {label}", "distributed checkpoints", "dcp_to_torch_save", "", write)


# -- zips --------------------------------------------------------------------------------------------------------

_GOOD = pickled({"w": 1}, 2)
_REST = {"a/version": b"3\n"}


def _records(
    entries: dict[str, bytes], before: int = 0, flags: int = 0, extra: bytes = b"", gap: bytes = b"", other: str = ""
) -> tuple[bytes, bytes]:
    """The local records of a zip, and the directory, for an archive that begins after `before` bytes. `other` is the
    name of the first entry in its local record."""
    records = directory = b""
    for number, (entry, data) in enumerate(entries.items()):
        named = entry.encode()
        local = other.encode() if other and not number else named
        crc, size, offset = zlib.crc32(data), len(data), before + len(records)
        records += struct.pack("<IHHHHHIIIHH", 0x04034B50, 20, flags, 0, 0, 33, crc, size, size, len(local), len(extra))
        records += local + extra + data + gap
        directory += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014B50, 20, 20, flags, 0, 0, 33, crc, size, size, len(named),
                                 0, 0, 0, 0, 0, offset) + named  # fmt: skip
    return records, directory


def _zip(entries: dict[str, bytes], **how: Any) -> bytes:
    records, directory = _records(entries, **how)
    return records + directory + _end(len(entries), len(directory), len(records))


def _end(count: int, size: int, offset: int) -> bytes:
    return struct.pack("<IHHHHIIH", 0x06054B50, 0, 0, count, count, size, offset, 0)


def _end_of_zip64(count: int, size: int, offset: int) -> bytes:
    return struct.pack("<IQHHIIQQQQ", 0x06064B50, 44, 45, 45, 0, 0, count, count, size, offset)


def _two_directories(marker: str) -> bytes:
    """The end of the zip has the offset of one directory, and the end of zip64, which is before it, of another."""
    rest = {"a/version": b"3\n", "a/byteorder": b"little"}
    good, good_directory = _records({"a/data.pkl": _GOOD} | rest)
    bad, bad_directory = _records({"a/data.pkl": folder_bytes(marker)} | rest, before=len(good))
    bad_offset = len(good) + len(bad)
    data = good + bad + bad_directory
    bad_end = len(data)
    data += _end_of_zip64(3, len(bad_directory), bad_offset)
    good_offset = len(data)
    data += good_directory + _end_of_zip64(3, len(good_directory), good_offset)
    return data + struct.pack("<IIQI", 0x07064B50, 0, bad_end, 1) + _end(3, len(good_directory), good_offset)


def _changed_zip(**how: Any) -> tuple[Data, str]:
    return lambda marker: _zip({"a/data.pkl": folder_bytes(marker)} | _REST, **how), "torch.load"


def _packed(compression: int) -> tuple[Data, str]:
    """A second pickle, compressed in a way that torch cannot read."""

    def data(marker: str) -> bytes:
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr(_info("archive/data.pkl"), pickled({}, 2))
            archive.writestr(_info("archive/more.pkl"), pickled(folder(marker), 4), compression)
        return stream.getvalue()

    return data, "zipfile and pickle.load"


def _info(entry: str) -> zipfile.ZipInfo:
    return zipfile.ZipInfo(entry, (1980, 1, 1, 0, 0, 0))


# -- torch files -------------------------------------------------------------------------------------------------

_MAGIC_SIZE = len(pickle.dumps(MAGIC, 2))
_LINEAR = name("torch.nn.modules.linear:Linear")


def _source(kind: Any, *before: Any) -> bytes:
    """A file before 1.6 with a class whose source is another one, so that torch writes a patch with its name."""
    module = Code(encoded(("module", kind, "model.py", "import os\n"), 2) + b"Q")
    return legacy(pickled(Steps((*before, module)), 2))


def _made_class(marker: str, *bases: Any) -> Call:
    attributes = {"dump_patches": True, "__module__": "torch.nn.modules.linear", "__qualname__": "Linear"}
    return call("builtins:type", marker, bases, attributes)


def _renamed_class(marker: str) -> Call:
    return call("torch._tensor:_rebuild_from_type_v2", name("builtins:max"), name("builtins:type"), ([_LINEAR],), {
        "__name__": marker, "dump_patches": True})  # fmt: skip


def _long_frame(marker: str, padding: int = 0) -> bytes:
    """A file before 1.6 without calls, whose first frame ends before its storage. `torch.load` goes on there."""
    magic, start = LEGACY_START[2:_MAGIC_SIZE], LEGACY_START[_MAGIC_SIZE:]
    other = start + folder_bytes(marker) + pickled([], 2)
    storage = Code(encoded(("storage", name("torch:ByteStorage"), "0", "cpu", len(other), None), 2) + b"Q")
    tensor = call("torch._utils:_rebuild_tensor_v2", storage, 0, (len(other),), (1,), False, call(
        "collections:OrderedDict"))  # fmt: skip
    good = start + pickled({"p": "x" * padding, "w": tensor}, 2) + pickled(["0"], 2) + u64(len(other))
    return b"\x80\x04\x95" + u64(len(magic + good)) + magic + good + other


_TORCH: dict[str, tuple[Data, str]] = {
    "torch zip, DATA.PKL, and data.pkl in a folder": (lambda m: zipped({
        "a/DATA.PKL": folder_bytes(m, 0), "a/b/data.pkl": _GOOD, **_REST}), "torch.load"),
    "torch zip, DATA.PKL beside data.pkl": (lambda m: _zip({
        "a/DATA.PKL": folder_bytes(m), "a/data.pkl": _GOOD, **_REST}), "torch.load"),
    "torch zip, two directories of zip64": (_two_directories, "torch.load"),
    "torch zip, another name in the local record": _changed_zip(other="a/xxxx.pkl"),
    "torch zip, bytes between entries": _changed_zip(gap=b"xyz"),
    "torch zip, the flag of UTF-8": _changed_zip(flags=0x800),
    "torch zip, the flag of a data descriptor": _changed_zip(flags=8),
    "torch zip, extra fields": _changed_zip(extra=b"FB\x04\0ZZZZ"),
    "torch zip, a text with many starts of zips": (lambda m: torch_zip(pickled({
        "a": "PK\x03\x04" * 20_000, "b": folder(m)}, 2)), "torch.load"),
    "torch zip, another entry compressed with bz2": _packed(zipfile.ZIP_BZIP2),
    "torch zip, another entry compressed with lzma": _packed(zipfile.ZIP_LZMA),
    "torch zip, constants.pkl": (lambda m: torch_zip(pickled({"w": 1}, 2), **{
        "constants.pkl": folder_bytes(m)}), "zipfile and pickle.load"),
    "torch zip, constants.pkl in a folder": (lambda m: torch_zip(pickled({}, 2), **{
        "sub/constants.pkl": folder_bytes(m, 4)}), "zipfile and pickle.load"),
    "before 1.6, source of a class that type made": (lambda m: _source(_made_class(m)), "torch.load"),
    "before 1.6, source of a layer's class that type made": (lambda m: _source(_made_class(m, _LINEAR)), "torch.load"),
    "before 1.6, source of a layer's class that gets another name": (lambda m: _source(
        _LINEAR, _renamed_class(m)), "torch.load"),
    "before 1.6, a frame that ends before the storage": (lambda m: _long_frame(m, 200_000), "torch.load"),
    "before 1.6, a frame that ends before the storage, in _load_from_bytes": (lambda m: pickled({
        "s": call(LOAD, _long_frame(m))}, 4), "pickle.load"),
}  # fmt: skip


# -- joblib files ------------------------------------------------------------------------------------------------

_WRAPPER = name("joblib.numpy_pickle:NumpyArrayWrapper")
_BYTES = dtype("u1", 3, "|", None, None, None, -1, -1, 0)


def _state(count: int, kind: Any = _BYTES) -> dict[str, Any]:
    return {
        "subclass": name("numpy:ndarray"), "shape": (count,), "order": "C", "dtype": kind, "allow_mmap": False,
        "numpy_array_alignment_bytes": None,
    }  # fmt: skip


def _array(count: int, kind: Any = _BYTES) -> Built:
    return Built(Call(_WRAPPER, (), "new"), _state(count, kind))


def _ending(marker: str) -> bytes:
    """A call and the end of a pickle, for a reader that gets there."""
    return encoded(folder(marker), 3) + b"0N."


def _after_array(wrapper: Any, protocol: int = 3) -> Data:
    """joblib reads an array of five bytes; to others, the bytes are the length of a text with the call in it."""

    def data(marker: str) -> bytes:
        ending = _ending(marker)
        opcodes = encoded(wrapper, protocol) + encoded(_state(5), 3) + b"b"
        return bytes([0x80, protocol]) + opcodes + b"B" + u32(len(ending)) + ending + b"0."

    return data


def _size_in_state(marker: str) -> bytes:
    """The items of the array have the size that the state of their dtype says, 1,000 bytes."""
    size, ending = 1000, _ending(marker)
    kind = dtype("V1", 3, "|", None, None, None, size, 1, 0)
    rest = b"B" + u32(size - 6 + len(ending)) + bytes(size - 6)
    return b"\x80\x03" + encoded(_array(1, kind), 3) + b"\0" + rest + ending + b"0."


def _path_as_key(marker: str) -> bytes:
    """A path is not the attribute with the alignment, so joblib reads five bytes, and no padding."""
    state = _state(5)
    del state["numpy_array_alignment_bytes"]
    key = encoded(call("pathlib:PosixPath", "numpy_array_alignment_bytes"), 3)
    items = b"".join(encoded(part, 3) for pair in state.items() for part in pair) + key + encoded(1, 3)
    ending = encoded(folder(marker), 3) + b"0N."
    start = b"\x80\x03" + encoded(Call(_WRAPPER, (), "new"), 3) + b"(" + items + b"db"
    return start + bytes([4 + len(ending)]) + bytes(4) + ending + bytes(5) + b"0N."


def _end_of_frame(marker: str) -> bytes:
    """The bytes of the array come after the frame, and not directly after the wrapper."""
    wrapper, ending = encoded(_array(5), 4), _ending(marker)
    filler = b"\x01" * 1995
    opcodes = b"\x8b" + u32(2000) + b"B" + u32(len(filler) + 1 + len(ending)) + filler + b"0" + ending
    return b"\x80\x04\x95" + u64(len(wrapper + opcodes)) + wrapper + opcodes + b"0N0N."


def _opcodes_in_array(marker: str, junk: bytes) -> bytes:
    """What only joblib reads as the bytes of an array, after opcodes at which another reader may stop."""
    opcodes = junk + encoded(folder(marker), 3) + b"0"
    return b"\x80\x03" + encoded({"a": 1}, 3) + b"0" + encoded(_array(len(opcodes)), 3) + opcodes + b"."


def _outer_memo(marker: str) -> bytes:
    """To joblib, a pickle of its own begins after the wrapper; to pickle, the memo is that of the file."""
    names = text("posix") + b"\x940" + text("mkdir") + b"\x940"
    others = text("collections") + b"\x940" + text("OrderedDict") + b"\x940h\0h\1\x93"
    return b"\x80\x04" + names + encoded(_array(1, OBJECTS), 3) + others + text(marker) + b"\x85R.N."


_JOBLIB: dict[str, Data] = {
    "an array made by _reconstructor": _after_array(call(
        "copyreg:_reconstructor", _WRAPPER, name("builtins:object"), None)),
    "an array made by __newobj__": _after_array(call("copyreg:__newobj__", _WRAPPER)),
    "an array made by __newobj_ex__": _after_array(call("copyreg:__newobj_ex__", _WRAPPER, (), {})),
    "an array of a class that type made": _after_array(call("copyreg:_reconstructor", call(
        "builtins:type", "W", (_WRAPPER,), {}), name("builtins:object"), None)),
    "an array, numpy_pickle.NumpyArrayWrapper in joblib": _after_array(Call(
        Name("joblib", "numpy_pickle.NumpyArrayWrapper"), (), "new"), 4),
    "the size of the items in the state of the dtype": _size_in_state,
    "a path instead of the name of the alignment": _path_as_key,
    "opcodes between an array and the end of the frame": _end_of_frame,
}  # fmt: skip
_BEFORE_OPCODES: dict[str, bytes] = {
    "a long number": LONG_NUMBER,
    "two states of a layer": encoded(Built(Built(Call(name("torch.nn.modules.linear:Identity"), (), "new"), {
        "_modules": {}}), {"a": 1}), 3) + b"0",
    "a bytearray that grows": encoded(Filled(call("builtins:bytearray", [1]), [2]), 3) + b"0",
    "a number in base 16": b"I0x10\n0",
}  # fmt: skip
_JOBLIB_ELSEWHERE: dict[str, tuple[Data, str]] = {
    "an array of objects with the memo of the file": (_outer_memo, "pickle.load"),
    "opcodes as the bytes of an array after a long number, in a torch zip": (lambda m: torch_zip(
        pickled({}, 2), **{"more.pkl": _opcodes_in_array(m, LONG_NUMBER)}), "zipfile and pickle.load"),
}  # fmt: skip


# -- NumPy files -------------------------------------------------------------------------------------------------


def _objects(descr: str, shape: str = "(1,)") -> tuple[Data, str]:
    return lambda marker: npy(descr, shape, pickled([folder(marker)], 4)), ".npy"


_NUMPY: dict[str, tuple[Data, str]] = {
    ".npy with the shape of Python 2": _objects("'|O'", "(1L,)"),
    ".npy of a field whose type has a shape": _objects("[('a', ('|O', (1,)))]"),
    ".npy of 'object'": _objects("'object'"),
    ".npy of 'O,i4'": _objects("'O,i4'"),
    ".npy of a field of objects after one without a name": _objects("[('', '|V4'), ('b', 'O')]"),
    ".npy of opcodes as the bytes of an array of joblib": (lambda m: npy(
        "'|O'", "(1,)", _opcodes_in_array(m, LONG_NUMBER)), ".npy"),
    ".npy of an array of objects of joblib, with the memo of the file": (lambda m: npy(
        "'|O'", "(1,)", _outer_memo(m)), ".npy"),
    ".npz with the entries of torch.save": (lambda m: zipped({
        "archive/data.pkl": pickled({}, 2), "archive/version": b"3\n",
        "x.npy": npy("'|O'", "(1,)", pickled([folder(m)], 4))}), ".npz"),
}  # fmt: skip


# -- files of two formats ----------------------------------------------------------------------------------------


def _tar(marker: str, start: bytes, after: bytes) -> bytes:
    """A tar whose first name is a pickle that reads the rest of the tar as bytes."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:", format=tarfile.USTAR_FORMAT) as archive:
        archive.addfile(tarfile.TarInfo("first"))
        for entry, data in {"storages": folder_bytes(marker), "tensors": b"x", "pickle": b"x"}.items():
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    whole = bytearray(stream.getvalue())
    opcodes = start + b"\x80\x02B"
    whole[:100] = (opcodes + u32(len(whole) - len(opcodes) - 4)).ljust(100, b"\0")
    whole[148:156] = b" " * 8
    whole[148:156] = b"%06o\0 " % sum(whole[:512])
    return bytes(whole) + after


_TWO_FORMATS: dict[str, tuple[Data, str]] = {
    "a pickle that is also a tar of torch": (lambda m: _tar(m, b"", b"."), "torch.load"),
    "a file of torch before 1.6 that is also a tar of torch": (lambda m: _tar(
        m, LEGACY_START, b"." + pickled([], 2)), "torch.load"),
    "a pickle that is also msgpack, after a long number": (lambda m: msgpack(m, LONG_NUMBER), "pickle.load"),
}  # fmt: skip


# -- distributed checkpoints -------------------------------------------------------------------------------------

_VALUES: dict[str, Data] = {
    "a plain pickle": folder_bytes,
    "a plain pickle of protocol 0": lambda m: folder_bytes(m, 0),
    "a file before 1.6": lambda m: legacy(folder_bytes(m)),
    "a zip with DATA.PKL": lambda m: zipped({
        "a/DATA.PKL": folder_bytes(m, 0), "a/b/data.pkl": pickled(1, 2), **_REST}),
}  # fmt: skip
