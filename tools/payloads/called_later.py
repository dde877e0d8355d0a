"""Payloads from a second reviewer: harmless functions and attributes that libraries call later, classes with
annotations that others evaluate, files of two formats, and values of distributed checkpoints that PyTorch reads in
another way."""

import dataclasses
import io
import pickle
import re
import struct
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.payloads.containers import Payload, Write, command, npy, torch_zip, zipped
from tools.payloads.outside_pickles import folder, folder_bytes, payload
from tools.payloads.pickle_code import (
    Built,
    Call,
    Code,
    Filled,
    Kept,
    Steps,
    call,
    encoded,
    name,
    partial,
    pickled,
)  # fmt: skip
from tools.payloads.programs import BODIES, rewritten, script

Data = Callable[[str], bytes]
_LIST, _DICT = (name(f"torch.nn.modules.container:Parameter{kind}") for kind in ("List", "Dict"))
_CONFIG, _HOOK = name("omegaconf.dictconfig:DictConfig"), name("torch.nn.modules.module:BackwardHook")
_LOAD = name("torch.storage:_load_from_bytes")


def payloads() -> Iterator[Payload]:
    for label, (data, mechanism, loader) in _PICKLES.items():
        yield payload(label, mechanism, loader, data)
    for label, (write, mechanism, loader, suffix) in _WRITTEN.items():
        yield Payload(label, mechanism, loader, suffix, write)


# -- what is called later ----------------------------------------------------------------------------------------


def _annotations(marker: str) -> dict[str, Any]:
    return {"__dataclass_fields__": {}, "__annotations__": {"a": f"open({marker!r}, 'w').close()"}}


def _class(marker: str) -> Call:
    """A class with code as an annotation, made by the Enum that a module of PyTorch imports."""
    return call("torch.nn.utils.parametrizations:Enum", "X", {**_annotations(marker), "A": 1})


def _factory(number: int, function: Any, key: str = "0") -> tuple[Any, ...]:
    """A function that a defaultdict calls for a missing key; the dict is entry `number` of the memo."""
    filled = call("collections:UserDict", call("collections:ChainMap", Kept(number), {key: 1}))
    return Kept(number, call("collections:defaultdict", function)), filled


def _result(number: int, function: Any) -> Steps:
    """The result of a function that is called in this way."""
    parts = Built(Call(_LIST, (), "new"), Kept(number))
    return Steps((*_factory(number, function), Filled(Kept(number), {"_size": 1}), call("builtins:max", parts)))


def _of_factories(marker: str) -> Any:
    kind = partial("builtins:type", "T", (), _annotations(marker))
    made = Built(Kept(2), (_CONFIG, (), Kept(1), {}))
    return Steps((*_factory(1, kind, "content"), Kept(2, partial(_CONFIG)), made, *_factory(3, Kept(2)), {}))


def _of_a_path(marker: str) -> Any:
    kind = partial("builtins:type", "P", (_DICT, name("pathlib:PosixPath")), {"__init__": name("builtins:print")})
    touch = partial(call("operator:itemgetter", "touch"), _result(2, partial(_result(1, kind), marker)))
    return Steps((_result(4, _result(3, touch)), {}))


def _of_a_set(marker: str) -> Any:
    largest = Kept(2, partial("builtins:max", Kept(1), key=name("builtins:str")))
    added = Code(encoded(Kept(1), 4) + b"(" + encoded(_LOAD, 4) + b"\x90")
    filled = [_LOAD, Kept(1, Code(b"\x8f(K\1\x90")), largest, added, Kept(1, None)]
    loaded = partial(Kept(3), pickled(call("posix:mkdir", marker), 0))
    return Steps((*filled, Kept(3, _result(11, Kept(2))), Kept(2, None), _result(12, loaded), {}))


def _of_a_layer(marker: str) -> Any:
    layer = name("torch.nn.modules.linear:Identity")
    rebuilt = partial("torch._tensor:_rebuild_from_type_v2", name("builtins:max"), name("builtins:type"), ([layer],),
                      _annotations(marker))  # fmt: skip
    return Steps((*_factory(1, rebuilt), *_factory(2, partial(_CONFIG, layer)), {}))


def _with_attributes(attributes: dict[str, Any], kind: Any = _HOOK) -> Built:
    return Built(Call(kind, (), "new"), attributes)


def _after(kind: str, opcodes: bytes) -> Data:
    """An object of omegaconf, and then opcodes that put a class into it."""

    def data(marker: str) -> bytes:
        import omegaconf

        empty: Any = omegaconf.DictConfig({}) if kind == "dict" else omegaconf.ListConfig([])
        body = pickle.dumps(empty, 4)[2:-1]
        body = body[9:] if body[:1] == b"\x95" else body
        key = encoded("x", 4) if kind == "dict" else b""
        return b"\x80\x04" + body + key + encoded(_class(marker), 4) + opcodes

    return data


def _value(make: Callable[[str], Any], protocol: int = 4) -> Data:
    return lambda marker: pickled(Steps((make(marker), {})), protocol)


def _zip(make: Callable[[str], Any]) -> Data:
    return lambda marker: torch_zip(pickled({"x": Steps((make(marker), None))}, 2))


def _configured(marker: str) -> Any:
    return partial(_CONFIG, _class(marker))


# -- files of two formats ----------------------------------------------------------------------------------------


def _tar(marker: str) -> bytes:
    stream = io.BytesIO()
    data = pickled(command(marker), 2)
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in ("storages", "tensors", "pickle"):
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def _summed(header: Callable[[bytes], bytes], form: bytes) -> bytes:
    """A header with the checksum of tar in it."""
    blank = header(b" " * 8)
    return header(form % (sum(blank[:148]) + 8 * 32 + sum(blank[156:512])))


def _tar_and_safetensors(marker: str) -> bytes:
    rest = _tar(marker)

    def header(checksum: bytes) -> bytes:
        end = f'"}},"w":{{"dtype":"U8","shape":[{len(rest)}],"data_offsets":[0,{len(rest)}]}}}}'
        start = '{"__metadata__":{"k":"'.ljust(140) + checksum.ljust(8).decode()
        return struct.pack("<Q", 504) + (start.ljust(504 - len(end)) + end).encode()

    return _summed(header, b"%06o ") + rest


def _tar_and_gguf(marker: str) -> bytes:
    rest = _tar(marker)

    def header(checksum: bytes) -> bytes:
        key = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 12) + b"general.name" + struct.pack("<I", 8)
        text = b"a" * (92 - len(key)) + b" " * 48 + checksum.ljust(8) + b" " * 356
        return key + struct.pack("<Q", len(text) + len(rest)) + text

    return _summed(header, b"0o%05o ") + rest


def _in_safetensors(before: bytes, protocol: int = 2, padding: int = 0) -> Data:
    """The opcodes of a pickle as the values of a tensor; the length of the header begins with one of text."""

    def data(marker: str) -> bytes:
        values = b"0" + before + b"0" + encoded(command(marker), protocol) + b"."
        array = f'"w":{{"dtype":"U8","shape":[{len(values)}],"data_offsets":[0,{len(values)}]}}\n}}'
        start = f'{{"__metadata__":{{"k":"{"a" * padding}"}},'
        start += " " * ((0x56 - len(start) - len(array)) % 256)
        return struct.pack("<Q", len(start + array)) + (start + array).encode() + values

    return data


def _in_gguf(marker: str) -> bytes:
    count = 0x5600  # of tensors; its second byte is an opcode
    text = b"a" * 1500 + b"\n0" + encoded(command(marker), 2) + b"."
    data = b"GGUF" + struct.pack("<IQQ", 3, count, 1) + struct.pack("<Q", 1) + b"k" + struct.pack("<I", 8)
    data += struct.pack("<Q", len(text)) + text
    for number in range(count):
        key = b"t%d" % number
        data += struct.pack("<Q", len(key)) + key + struct.pack("<IQIQ", 1, 1, 0, number * 32)
    return data + b"\0" * (-len(data) % 32) + b"\0" * 32 * count


def _older_dtype(marker: str) -> bytes:
    """An array of joblib whose dtype has the state of an older version, in which the size is elsewhere."""
    state = {"subclass": name("numpy:ndarray"), "shape": (1,), "order": "C", "allow_mmap": True,
             "dtype": Built(call("numpy:dtype", "V1000", False, True), (1, "|", None, None, 8, 1000)),
             "numpy_array_alignment_bytes": 16}  # fmt: skip
    wrapper = Built(Call(name("joblib.numpy_pickle:NumpyArrayWrapper"), (), "new"), state)
    body = b"\x80\x04" + encoded(wrapper, 4)
    padding = -(len(body) + 1) % 16
    values = b"\xff" * 8 + b"0" + encoded(folder(marker), 4) + b"."
    return body + bytes([padding]) + b"\xff" * padding + values.ljust(1000, b"\0") + b"."


_PICKLES: dict[str, tuple[Data, str, str]] = {
    "type and DictConfig, which defaultdicts call": (_value(_of_factories), "names that count as harmless",
                                                     "pickle.load"),
    "a ParameterDict that is a Path, which a defaultdict calls": (_value(_of_a_path), "names that count as harmless",
                                                                  "pickle.load"),
    "_load_from_bytes, added to a set": (_value(_of_a_set), "functions that call others", "pickle.load"),
    "_rebuild_from_type_v2, which a defaultdict calls": (_value(_of_a_layer), "functions that call others",
                                                         "pickle.load"),
    "an Enum of PyTorch, set in a DictConfig": (_after("dict", b"s."), "names that count as harmless", "pickle.load"),
    "an Enum of PyTorch, appended to a ListConfig": (
        lambda marker: torch_zip(_after("list", b"a.")(marker)), "names that count as harmless", "torch.load"),
    "an attribute called append": (
        _zip(lambda marker: Filled(_with_attributes({"append": _CONFIG}), [_class(marker)])),
        "names that count as harmless", "torch.load"),
    "a Namespace with an attribute called __setstate__": (
        _value(lambda m: Built(Built(call("argparse:Namespace"), {"__setstate__": _configured(m)}), {"k": 1})),
        "names that count as harmless", "pickle.load"),
    "an attribute called __deepcopy__, and AveragedModel": (
        _value(lambda m: call("torch.optim.swa_utils:AveragedModel", _with_attributes(
            {"__reduce_ex__": partial("builtins:tuple"), "__deepcopy__": _configured(m)}))),
        "names that count as harmless", "pickle.load"),
    "an attribute called detach, and _rebuild_parameter": (
        _zip(lambda m: call("torch._utils:_rebuild_parameter", _with_attributes({"detach": _configured(m)}), True, {})),
        "names that count as harmless", "torch.load"),
    "an attribute called extra_repr, and str": (
        _value(lambda m: call("builtins:str", _with_attributes(
            {"_modules": {}, "extra_repr": _configured(m)}, name("torch.nn.modules.linear:Identity")))),
        "names that count as harmless", "pickle.load"),
    "safetensors and tar": (_tar_and_safetensors, "files of two formats", "torch.load"),
    "GGUF and tar, with a checksum that begins with 0o": (_tar_and_gguf, "files of two formats", "torch.load"),
    "safetensors and a pickle, with a long line": (_in_safetensors(b"", padding=1200), "files of two formats",
                                                   "torch.load"),
    "safetensors and a pickle, with a zero byte in a number": (_in_safetensors(b"p0\0x\n"), "files of two formats",
                                                               "pickle.load"),
    "safetensors and a pickle, with READONLY_BUFFER": (_in_safetensors(b"0C\x01a\x98", 4), "files of two formats",
                                                       "pickle.load"),
    "GGUF and a pickle, with a long line": (_in_gguf, "files of two formats", "joblib.load"),
    "joblib: a dtype with an older state": (_older_dtype, "joblib files", "joblib.load"),
}  # fmt: skip


# -- archives and folders ----------------------------------------------------------------------------------------


def _raw_name(path: Path, marker: str) -> None:
    objects = npy("'|O'", "(1,)", pickled([folder(marker)], 2))
    path.write_bytes(zipped({"x/data.pkl": pickled({}, 2), "x/version": b"3\n", "x/data/0": objects}))


def _distributed(path: Path, change: Callable[[Any, Any, Any], None]) -> None:
    """A distributed checkpoint with a tensor and a value, whose metadata `change` gets: the index and the place of the
    value, too."""
    import torch
    import torch.distributed.checkpoint as dcp

    dcp.save({"w": torch.ones(2), "x": "hello"}, checkpoint_id=path, no_dist=True)
    metadata = pickle.loads((path / ".metadata").read_bytes())
    ((index, info),) = ((index, info) for index, info in metadata.storage_data.items() if index.fqn == "x")
    change(metadata, index, info)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def _appended(path: Path, info: Any, data: bytes) -> Any:
    """Where some bytes are, at the end of the file of a value."""
    file = path / info.relative_path
    start = file.stat().st_size
    with file.open("ab") as stream:
        stream.write(data)
    return dataclasses.replace(info, offset=start, length=len(data))


def _listed_twice(path: Path, marker: str) -> None:
    import torch
    from torch.distributed.checkpoint.metadata import MetadataIndex

    def change(metadata: Any, index: Any, info: Any) -> None:
        others = {key: place for key, place in metadata.storage_data.items() if key.fqn != "x"}
        first = {MetadataIndex("x"): _appended(path, info, torch_zip(folder_bytes(marker)))}
        metadata.storage_data = others | first | {MetadataIndex("x", offset=torch.Size([])): info}

    _distributed(path, change)


def _of_a_rank(path: Path, marker: str) -> None:
    _distributed(path, lambda *_: None)
    (path / "__0.metadata").write_bytes(folder_bytes(marker))


def _script_bytes(marker: str) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        script(BODIES["torch.save"], "module")(Path(place, "made.pt"), marker)
        return Path(place, "made.pt").read_bytes()


def _distributed_script(path: Path, marker: str) -> None:
    def change(metadata: Any, index: Any, info: Any) -> None:
        metadata.storage_data[index] = _appended(path, info, _script_bytes(marker))

    _distributed(path, change)


def _sample_inputs(path: Path, marker: str) -> None:
    import torch

    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "made.pt2")
        torch.export.save(torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), file)
        with zipfile.ZipFile(file) as archive:
            entries = {entry: archive.read(entry) for entry in archive.namelist()}
    made = _script_bytes(marker)
    path.write_bytes(zipped({key: made if "sample_inputs" in key else data for key, data in entries.items()}))


def _hidden_by_a_text(code: str) -> str:
    return re.sub(r"^( *)(?:_\d+ = )?torch\.save\((.*)\)$", r'\1_7 = ("#", torch.save(\2))', code, flags=re.MULTILINE)


_WRITTEN: dict[str, tuple[Write, str, str, str]] = {
    "an array of objects with the name of a tensor": (_raw_name, "NumPy files", "numpy.load", ".npz"),
    "DCP: a value that is listed twice": (_listed_twice, "distributed checkpoints", "dcp_value", ""),
    "DCP: the metadata of a rank": (_of_a_rank, "distributed checkpoints", "dcp_of_a_rank", ""),
    "DCP: a value that is TorchScript": (_distributed_script, "distributed checkpoints", "dcp_value", ""),
    "torch.export: sample inputs that are TorchScript": (_sample_inputs, "torch.export", "torch.export.load", ".pt2"),
    "TorchScript: a text with # before the call": (
        rewritten(script(BODIES["torch.save"], "module"), _hidden_by_a_text), "TorchScript", "torch.jit.load", ".pt"),
}  # fmt: skip
