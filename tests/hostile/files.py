"""Hostile files, and the scripts that make them. Nothing here may run when it is read."""

import functools
import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tests.files.writers import WRITERS, arrays

MARK = "leafwise_was_executed"


class Call:
    """An object that is pickled as a call of any function with any arguments."""

    def __init__(self, module: str, name: str, *args: Any) -> None:
        self.module, self.name, self.args = module, name, args


def pickled(module: str, name: str, args: tuple[Any, ...], protocol: int) -> bytes:
    """A pickle that calls module.name(*args)."""
    inner = pickle.dumps(args, protocol=2)[2:-1]
    if protocol < 4:
        return b"\x80\x02c" + module.encode() + b"\n" + name.encode() + b"\n" + inner + b"R."
    text = b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (module, name))
    return b"\x80\x04" + text + b"\x93" + inner + b"R."


def _command(folder: Path) -> str:
    return f"touch {folder / MARK}"


def gadgets(folder: Path) -> dict[str, bytes]:
    """The known families of calls that run code, write files, load libraries or reach the network from a pickle."""
    command = _command(folder)
    code = f"open({str(folder / MARK)!r}, 'w')"
    families: dict[str, tuple[str, str, tuple[Any, ...]]] = {
        "os.system": ("os", "system", (command,)),
        "posix.system": ("posix", "system", (command,)),
        "nt.system": ("nt", "system", (command,)),
        "os.popen": ("os", "popen", (command,)),
        "os.execv": ("os", "execv", ("/bin/sh", ["sh", "-c", command])),
        "subprocess": ("subprocess", "check_output", (command,)),
        "Popen": ("subprocess", "Popen", (["sh", "-c", command],)),
        "eval": ("builtins", "eval", (code,)),
        "exec": ("builtins", "exec", (code,)),
        "compile": ("builtins", "compile", (code, "x", "exec")),
        "open": ("builtins", "open", (str(folder / MARK), "w")),
        "getattr": ("builtins", "getattr", ("", "join")),
        "__import__": ("builtins", "__import__", ("os",)),
        "apply": ("builtins", "map", (1, 2)),
        "python 2": ("__builtin__", "eval", (code,)),
        "importlib": ("importlib", "import_module", ("os",)),
        "runpy": ("runpy", "run_path", ("x.py",)),
        "pty": ("pty", "spawn", (["sh", "-c", command],)),
        "timeit": ("timeit", "timeit", (code,)),
        "pickle": ("pickle", "loads", (b"N.",)),
        "marshal": ("marshal", "loads", (b"N",)),
        "torch.load": ("torch", "load", ("x.pt",)),
        "torch.serialization": ("torch.serialization", "load", ("x.pt",)),
        "torch storage": ("torch.storage", "_load_from_bytes", (b"x",)),
        "torch hub": ("torch.hub", "load", ("x", "y")),
        "torch ops": ("torch.ops", "load_library", ("x.so",)),
        "torch jit": ("torch.jit", "load", ("x",)),
        "torch collect_env": ("torch.utils.collect_env", "run", (command,)),
        "torch inductor": ("torch._inductor.codecache", "compile_file", ("x", "y", "z")),
        "numpy runstring": ("numpy.testing._private.utils", "runstring", (code, {})),
        "numpy f2py": ("numpy.f2py.diagnose", "run_command", (command,)),
        "ctypes": ("ctypes", "CDLL", ("x.so",)),
        "socket": ("socket", "create_connection", (("127.0.0.1", 9),)),
        "webbrowser": ("webbrowser", "open", ("http://127.0.0.1:9",)),
        "urllib": ("urllib.request", "urlopen", ("http://127.0.0.1:9",)),
        "shutil": ("shutil", "rmtree", (str(folder),)),
        "os.remove": ("os", "remove", (str(folder / "x"),)),
        "code": ("code", "InteractiveInterpreter", ()),
        "functools": ("functools", "partial", (1,)),
        "operator": ("operator", "attrgetter", ("system",)),
        "types": ("types", "FunctionType", (1, {})),
        "weights_only escape": ("torch._dynamo.guards", "GuardBuilder.get", (None, code)),
        "dotted name": ("collections", "OrderedDict.fromkeys.__globals__", ()),
        "asyncio": ("asyncio.unix_events", "_UnixSubprocessTransport._start", ()),
        "pip": ("pip", "main", (["install", "x"],)),
        "cloudpickle": ("cloudpickle.cloudpickle", "_make_function", ()),
        "dill": ("dill._dill", "_load_type", ("CodeType",)),
        "joblib": ("joblib.numpy_pickle", "NumpyArrayWrapper", ()),
        "sklearn": ("sklearn.externals.joblib", "load", ("x",)),
    }
    found = {}
    for name, (module, attribute, args) in families.items():
        for protocol in (2, 4):
            found[f"{name} {protocol}"] = pickled(module, attribute, args, protocol)
    found["inst"] = b"(S'x'\nios\nsystem\n."
    found["obj"] = b"(cos\nsystem\nS'x'\no."
    found["extension"] = b"\x80\x02\x82\x01."
    found["build setstate"] = b"\x80\x02ccollections\nOrderedDict\n)R}(U\x0c__setstate__cos\nsystem\nub."
    found["newobj"] = b"\x80\x02cos\nsystem\nU\x01x\x85\x81."
    found["newobj ex"] = b"\x80\x04\x8c\x02os\x8c\x06system\x93U\x01x\x85}\x92."
    found["persistent"] = b"\x80\x02(U\x07storagecos\nsystem\nU\x010U\x03cpuK\x01tQ."
    return found


def in_zip(data: bytes, **entries: bytes) -> bytes:
    """A torch zip with this pickle."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", data)
        archive.writestr("archive/version", "3\n")
        for name, value in entries.items():
            archive.writestr(f"archive/data/{name}", value)
    return file.getvalue()


def in_legacy(data: bytes) -> bytes:
    """PyTorch's older format with this pickle."""
    start = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
    system = pickle.dumps({"protocol_version": 1001, "little_endian": True, "type_sizes": {}}, protocol=2)
    return start + system + data + pickle.dumps([], protocol=2)


def deep(depth: int, opens: bytes, closes: bytes) -> bytes:
    return b"\x80\x02" + opens * depth + closes * depth + b"."


def strange_pickles() -> dict[str, bytes]:
    """Pickles that are neither gadgets nor checkpoints."""
    laughs = b"\x80\x04)" + b"2\x86" * 60 + b"}" + b"r\0\0\0\0" + b"0" + b"}j\0\0\0\0K\x01s."
    key = b"\x80\x04}" + b")" + b"2\x86" * 60 + b"K\x01s."
    tensor = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n((U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuK\x04tQ"
    return {
        "nothing": b"",
        "only a protocol": b"\x80\x02",
        "protocol 9": b"\x80\x09N.",
        "no stop": b"\x80\x02N",
        "an empty stack": b"\x80\x02.",
        "a mark alone": b"\x80\x02(.",
        "no mark": b"\x80\x02Nt.",
        "a memo that is not there": b"\x80\x02h\x05.",
        "a string as long as the world": b"\x80\x02X\xff\xff\xff\x7fabc.",
        "bytes as long as the world": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        "a number as long as the world": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
        "a number in words": b"\x80\x02Labc\n.",
        "a very long number in words": b"I" + b"9" * 100_000 + b"\n.",
        "a tuple as a key that takes for ever": key,
        "a billion laughs": laughs,
        "a list as a key": b"\x80\x02}]K\x01s.",
        "append to a tuple": b"\x80\x02)K\x01a.",
        "an unknown opcode": b"\x80\x02\xff.",
        "a buffer from outside": b"\x80\x05\x97.",
        "a state for a number": b"\x80\x02K\x01}b.",
        "a call of a number": b"\x80\x02K\x01)R.",
        "a call without a tuple": b"\x80\x02ccollections\nOrderedDict\nK\x01R.",
        "a name that is not text": b"\x80\x04K\x01K\x02\x93.",
        "a tensor beyond its storage": tensor + b"K\x00(K\x64K\x64t(K\x64K\x01t\x89}tR.",
        "a tensor that is larger than any": tensor + b"K\x00(\x8a\x09" + b"\xff" * 8 + b"\0K\x02t(K\x01K\x01t\x89}tR.",
        "a tensor with a negative stride": tensor + b"K\x00(K\x02t(J\xff\xff\xff\xfft\x89}tR.",
        "a tensor with a shape of words": tensor + b"K\x00(U\x01xt(K\x01t\x89}tR.",
        "a tensor with too many axes": tensor + b"K\x00(" + b"K\x01" * 100 + b"t(" + b"K\x01" * 100 + b"t\x89}tR.",
        "a storage that is not there": b"\x80\x02(U\x07storagectorch\nFloatStorage\nU\x0599999U\x03cpuK\x04tQ.",
        "a storage that is too small": b"\x80\x02(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpuM\xff\xfftQ.",
        "a storage out of the folder": b"\x80\x02(U\x07storagectorch\nFloatStorage\nU\x08../../..U\x03cpuK\x04tQ.",
        "a reference that is none": b"\x80\x02K\x01Q.",
        "a dtype that is called": b"\x80\x02ctorch\nfloat32\n)R.",
    }


def recursive_pickles() -> dict[str, bytes]:
    """Pickles that contain themselves, or are deeply nested: they must be opened or refused without hanging."""
    return {
        "a list in itself": b"\x80\x02]q\x00h\x00a.",
        "a dict in itself": b"\x80\x02}q\x00K\x01h\x00s.",
        "lists as deep as the sea": deep(200_000, b"]", b"a")[:-1].replace(b"]a", b"]", 1) + b".",
        "tuples as deep as the sea": b"\x80\x02)" + b"\x85" * 200_000 + b".",
        "wide as the sea": b"\x80\x02](" + b"K\x01" * 300_000 + b"e.",
    }


# The names of those below: a file that imports them does not have to make them.
STRANGE_ZIPS = (
    "a bomb",
    "a bomb of NumPy",
    "one entry twice",
    "an entry beyond the end",
    "a TorchScript program",
    "no entries",
    "text in a zip",
)


@functools.cache
def strange_zips() -> dict[str, bytes]:
    good = in_zip(b"\x80\x02}.")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02]" + b"N" * 50_000_000 + b".")
    bomb = file.getvalue()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (100,), }".ljust(117) + b"\n"
        archive.writestr("x.npy", b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(60_000_000))
    npz_bomb = file.getvalue()
    twice = io.BytesIO()
    import warnings

    with warnings.catch_warnings(), zipfile.ZipFile(twice, "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/data.pkl", b"\x80\x02].")
    far = bytearray(good)
    at = good.rindex(b"PK\x01\x02")
    far[at + 42 : at + 46] = (0x7FFFFFFF).to_bytes(4, "little")
    script = io.BytesIO()
    with zipfile.ZipFile(script, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}.")
        archive.writestr("archive/constants.pkl", b"\x80\x02).")
    return {
        "a bomb": bomb,
        "a bomb of NumPy": npz_bomb,
        "one entry twice": twice.getvalue(),
        "an entry beyond the end": bytes(far),
        "a TorchScript program": script.getvalue(),
        "no entries": b"PK\x05\x06" + bytes(18),
        "text in a zip": in_zip(b"hello"),
    }


def absurd_headers() -> dict[str, bytes]:
    huge = (1 << 62).to_bytes(8, "little")
    return {
        "safetensors of 2**62 bytes": huge + b"{}",
        "GGUF of 2**62 tensors": b"GGUF" + struct.pack("<I", 3) + huge + bytes(8) + bytes(64),
        "GGUF of 2**62 values": b"GGUF" + struct.pack("<I", 3) + bytes(8) + huge + bytes(64),
        "GGUF with a string of 2**62": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + huge + bytes(64),
        "GGUF with an array of 2**62": b"GGUF"
        + struct.pack("<IQQQ", 3, 0, 1, 1)
        + b"k"
        + struct.pack("<II", 9, 8)
        + huge,
        "GGUF of arrays of arrays": b"GGUF"
        + struct.pack("<IQQQ", 3, 0, 1, 1)
        + b"k"
        + struct.pack("<I", 9)
        + struct.pack("<IQ", 9, 1) * 1000,
        "GGUF of version 77": b"GGUF" + struct.pack("<IQQ", 77, 0, 0),
        "MXNet of 2**62 arrays": struct.pack("<QQ", 0x112, 0) + huge + bytes(64),
        "MXNet of 2**31 axes": struct.pack("<QQQ", 0x112, 0, 1)
        + struct.pack("<IIi", 0xF993FAC9, 0, 1 << 30)
        + bytes(64),
        "MXNet of a shape of 2**60": struct.pack("<QQQ", 0x112, 0, 1)
        + struct.pack("<IIiqqiii", 0xF993FAC9, 0, 2, 1 << 60, 1 << 60, 1, 0, 0),
        "MXNet of a negative shape": struct.pack("<QQQ", 0x112, 0, 1)
        + struct.pack("<IIiqiii", 0xF993FAC9, 0, 1, -5, 1, 0, 0),
        "npy with a deep header": b"\x93NUMPY\x01\0" + (60_000).to_bytes(2, "little") + b"(" * 60_000,
        "npy with a call": _npy(b"__import__('os').system('x')"),
        "npy of a shape of 2**60": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (1152921504606846976, 8)}"),
        "npy of a negative shape": _npy(b"{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}"),
        "npy of words": _npy(b"{'descr': '<f8', 'fortran_order': 'no', 'shape': (1,)}"),
    }


def _npy(header: bytes) -> bytes:
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header + bytes(8)


def sound_files(folder: Path) -> dict[str, bytes]:
    """A small valid file of each format that consists of one file."""
    found = {}
    for name, write in WRITERS.items():
        path = folder / name.replace(" ", "-")
        write(path, arrays())
        if path.is_file():
            found[name] = path.read_bytes()
    return found


def names() -> dict[str, str]:
    """Names that must be escaped when they are shown."""
    return {
        "control": "a\x1b[31mred",
        "bidi": "user\u202etxt.exe",
        "path": "../../etc/passwd",
        "markup": "<script>alert(1)</script>",
        "newline": "a\nb",
        "null": "a\0b",
        "empty": "",
    }


def safetensors_with(name: str) -> bytes:
    header = json.dumps({name: {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    return len(header).to_bytes(8, "little") + header + b"\0"


Maker = Callable[[Path], Any]
TORCH = torch.__version__
