"""Calls in every kind of file that contains pickles: of pickle, torch, joblib, NumPy, pandas and Lightning."""

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tools.payloads.pickle_code import Built, Call, Code, attribute, call, encoded, list_of, name, partial, pickled

Write = Callable[[Path, str], None]
MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001


class Payload(NamedTuple):
    """A file that runs code. `write` gets the path of the file and the path of the marker."""

    name: str
    mechanism: str
    loader: str
    suffix: str
    write: Write


# -- the calls ---------------------------------------------------------------------------------------------------


def command(marker: str) -> Call:
    return call("posix:system", f"touch {marker}")


def evaluated(marker: str) -> Call:
    return call(attribute(name("enum:bltns"), "eval"), f"open({marker!r}, 'w').close()")


def mapped(marker: str) -> Call:
    return list_of(call("builtins:map", name("os:mkdir"), [marker]))


def inner(marker: str) -> bytes:
    """A pickle that `torch.load` runs before it notices that the magic number is wrong."""
    return pickled(command(marker), 0)


LOAD = name("torch.storage:_load_from_bytes")


def hidden(marker: str) -> Call:
    """Only names that checkpoints contain; the command is in bytes that `torch.load` unpickles."""
    return call(partial(LOAD, inner(marker)))


CALLS: dict[str, Callable[[str], Call]] = {
    "a command": command, "an evaluation": evaluated, "a map": mapped, "bytes for torch.load": hidden,
}  # fmt: skip


# -- the files ---------------------------------------------------------------------------------------------------


def zipped(entries: dict[str, bytes], packed: bool = False) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED) as archive:
        for entry, data in entries.items():
            archive.writestr(zipfile.ZipInfo(entry, (1980, 1, 1, 0, 0, 0)), data, archive.compression)
    return stream.getvalue()


def torch_zip(data: bytes, root: str = "archive", **more: bytes) -> bytes:
    return zipped({f"{root}/data.pkl": data, f"{root}/byteorder": b"little", f"{root}/version": b"3\n"} | {
        f"{root}/{entry}": content for entry, content in more.items()})  # fmt: skip


def _saved(before: bytes = b"", after: bytes = b"") -> bytes:
    """A file of `torch.save` with opcodes before or after those of its own object."""
    import torch

    stream = io.BytesIO()
    torch.save({"weight": torch.ones(2), "epoch": 3}, stream)
    with zipfile.ZipFile(stream) as archive:
        entries = {entry: archive.read(entry) for entry in archive.namelist()}
    [entry] = [entry for entry in entries if entry.endswith("/data.pkl")]
    entries[entry] = entries[entry][:2] + before + entries[entry][2:-1] + after + b"."
    return zipped(entries)


def legacy(content: bytes, position: int = 3, protocol: int = 2, storages: bytes = b"") -> bytes:
    """A file of PyTorch before 1.6, whose pickle at this position is `content`."""
    parts = [pickle.dumps(part, protocol) for part in (MAGIC, VERSION, {"little_endian": True}, {}, [])]
    return b"".join([*parts[:position], content, *parts[position + 1 :], storages])


def tar(**entries: bytes) -> bytes:
    """A file of PyTorch before 0.1.10."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:", format=tarfile.PAX_FORMAT) as archive:
        for entry, data in entries.items():
            info = tarfile.TarInfo(entry)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def npy(descr: str, shape: str, data: bytes, version: int = 1) -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    width, form = (2, "<H") if version == 1 else (4, "<I")
    header += b" " * (63 - (8 + width + len(header)) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack(form, len(header)) + header + data


def _array_of_joblib(descr: Any, data: bytes, shape: tuple[int, ...] = (1,)) -> Code:
    """The opcodes of an array of joblib, and the bytes that follow them."""
    wrapper = call("copyreg:_reconstructor", name("joblib.numpy_pickle:NumpyArrayWrapper"), name("builtins:object"),
                   None)  # fmt: skip
    state = {"subclass": name("numpy:ndarray"), "shape": shape, "order": "C", "dtype": descr, "allow_mmap": False}
    wrapper = Call(name("joblib.numpy_pickle:NumpyArrayWrapper"), (), "new")
    return Code(encoded(Built(wrapper, {**state, "numpy_array_alignment_bytes": None}), 3) + data)


def dtype(code: str, *state: Any) -> Built:
    return Built(call("numpy:dtype", code, False, True), state)


OBJECTS = dtype("O8", 3, "|", None, None, None, -1, -1, 63)


# -- the payloads ------------------------------------------------------------------------------------------------


def payloads() -> Iterator[Payload]:
    for which, made in CALLS.items():
        yield from _pickles(which, made)
        yield from _torch(which, made)
        yield from _joblib(which, made)
        yield from _numpy(which, made)
    yield from _folders()


def _bytes(make: Callable[[str], bytes]) -> Write:
    return lambda path, marker: path.write_bytes(make(marker)) and None


def _pickles(which: str, made: Callable[[str], Call]) -> Iterator[Payload]:
    def row(kind: str, loader: str, suffix: str, make: Callable[[str], bytes]) -> Payload:
        return Payload(f"{which}, {kind}", "pickle files", loader, suffix, _bytes(make))

    for protocol in range(6):
        yield row(f"protocol {protocol}", "pickle.load", ".pkl", lambda m, p=protocol: pickled(
            {"weights": [1.0, 2.0], "extra": made(m)}, p))  # type: ignore[misc]  # fmt: skip
    for protocol in (4, 5):
        yield row(f"protocol {protocol} with a frame", "pickle.load", ".pkl", lambda m, p=protocol: pickled(
            made(m), p, framed=True))  # type: ignore[misc]  # fmt: skip
    yield row("second of several pickles", "pickle.load, repeatedly", ".pkl", lambda m: pickled({"a": 1}, 4) + pickled(
        made(m), 4))  # fmt: skip
    yield row("last of several pickles", "pickle.load, repeatedly", ".pkl", lambda m: pickled(1, 2) * 5 + pickled(
        [made(m)], 4))  # fmt: skip
    yield row("first of several pickles", "pickle.load", ".pkl", lambda m: pickled([made(m)], 4) + pickled(1, 4))
    yield row("with bytes after the end", "pickle.load", ".pkl", lambda m: pickled([made(m)], 4) + b"\0\xffend")
    yield row("cut off after the call", "pickle.load", ".pkl", lambda m: pickled([made(m), 1], 4)[:-3])
    yield row("protocol 4, C code not used", "pickle._Unpickler", ".pkl", lambda m: pickled([made(m)], 4))
    yield row("read by pandas", "pandas.read_pickle", ".pkl", lambda m: pickled([made(m)], 4))
    yield row("read by pandas, compressed", "pandas.read_pickle", ".pkl.gz", lambda m: gzip.compress(
        pickled([made(m)], 4), mtime=0))  # fmt: skip
    yield row("compressed with gzip", "gzip and pickle.load", ".pkl.gz", lambda m: gzip.compress(
        pickled([made(m)], 4), mtime=0))  # fmt: skip
    yield row("in a zip", "zipfile and pickle.load", ".zip", lambda m: zipped({"model.pkl": pickled(made(m), 4)}))
    yield row("in a zip in a zip", "zipfile and pickle.load", ".zip", lambda m: zipped(
        {"a.zip": zipped({"model.pkl": pickled(made(m), 4)}, True)}))  # fmt: skip
    yield row("in a zip with the entries of torch.save", "zipfile and pickle.load", ".pt", lambda m: torch_zip(
        pickled({}, 2), **{"data/more.pkl": pickled(made(m), 4)}))  # fmt: skip


def _torch(which: str, made: Callable[[str], Call]) -> Iterator[Payload]:
    def row(kind: str, suffix: str, make: Callable[[str], bytes], loader: str = "torch.load") -> Payload:
        return Payload(f"{which}, {kind}", "torch files", loader, suffix, _bytes(make))

    for protocol in range(2, 6):
        yield row(f"torch zip, protocol {protocol}", ".pt", lambda m, p=protocol: torch_zip(pickled(
            {"state_dict": {}, "extra": made(m)}, p)))  # type: ignore[misc]  # fmt: skip
    yield row("torch zip, before the object", ".pt", lambda m: _saved(before=encoded(made(m), 4) + b"0"))
    yield row("torch zip, after the object", ".pt", lambda m: _saved(after=encoded(made(m), 4) + b"0"))
    yield row("torch zip, instead of the object", ".pt", lambda m: _saved(after=b"0" + encoded(made(m), 4)))
    yield row("torch zip, compressed", ".pt", lambda m: zipped({
        "a/data.pkl": pickled(made(m), 4), "a/version": b"3\n", "a/byteorder": b"little"}, packed=True))  # fmt: skip
    yield row("torch zip, another root", ".pth", lambda m: torch_zip(pickled(made(m), 4), "model"))
    yield row("torch zip, with constants.pkl elsewhere", ".pt", lambda m: torch_zip(
        pickled(made(m), 4), **{"x/constants.pkl": pickled((), 2)}))  # fmt: skip
    yield row("torch zip, bytes before it", ".pt", lambda m: pickled(made(m), 4) + torch_zip(pickled({}, 2)))
    yield row("torch zip, read with pandas as a pickle before a zip", ".pkl", lambda m: pickled(
        made(m), 4) + torch_zip(pickled({}, 2)), "pandas.read_pickle")  # fmt: skip
    yield row("a plain pickle", ".pt", lambda m: pickled(made(m), 4))
    for position in range(5):
        yield row(f"before 1.6, pickle {position}", ".pt", lambda m, n=position: legacy(
            pickled(made(m), 4), n))  # type: ignore[misc]  # fmt: skip
    yield row("before 1.6, in the object", ".pt", lambda m: legacy(pickled({"epoch": 1, "x": made(m)}, 4)))
    yield row("before 1.6, and a good value", ".pt", lambda m: legacy(
        b"\x80\x04" + encoded(made(m), 4) + b"0" + pickled({"epoch": 1}, 4)[2:]))  # fmt: skip
    yield row("tar, in storages", ".pt", lambda m: tar(storages=pickled(made(m), 4), tensors=b"", pickle=b""))
    yield row("tar, in tensors", ".pt", lambda m: tar(
        storages=pickled(0, 2) + pickled([], 2), tensors=pickled(made(m), 4), pickle=b""))  # fmt: skip
    yield row("tar, in pickle", ".pt", lambda m: tar(
        storages=pickled(0, 2) + pickled([], 2), tensors=pickled(0, 2), pickle=pickled(made(m), 4)))  # fmt: skip
    lightning = {"pytorch-lightning_version": "2.5.0", "epoch": 1, "global_step": 3, "state_dict": {}, "loops": {}}
    for key in ("hyper_parameters", "callbacks", "optimizer_states"):
        for loader in ("torch.load", "load_from_checkpoint"):
            yield row(f"Lightning, in {key}, {loader}", ".ckpt", lambda m, k=key: torch_zip(pickled(
                {**lightning, k: {"x": made(m)}}, 4)), loader)  # type: ignore[misc]  # fmt: skip


def _joblib(which: str, made: Callable[[str], Call]) -> Iterator[Payload]:
    def row(kind: str, make: Callable[[str], bytes], loader: str = "joblib.load", suffix: str = ".joblib") -> Payload:
        return Payload(f"{which}, joblib: {kind}", "joblib files", loader, suffix, _bytes(make))

    def arrays(marker: str) -> bytes:
        return pickled(made(marker), 4)

    def with_array(descr: Any, data: bytes, shape: tuple[int, ...] = (1,)) -> bytes:
        return pickled({"a": 1, "w": _array_of_joblib(descr, data, shape)}, 3)

    plain = "|", None, None, None, -1, -1
    yield row("plain", lambda m: pickled({"a": made(m)}, 4))
    for label, compress in (("zlib", zlib.compress), ("gzip", lambda data: gzip.compress(data, mtime=0)),
                            ("bz2", bz2.compress), ("xz", lzma.compress),
                            ("lzma", lambda data: lzma.compress(data, lzma.FORMAT_ALONE))):  # fmt: skip
        yield row(label, lambda m, c=compress: c(pickled({"a": made(m)}, 4)))  # type: ignore[misc]
    yield row("array of objects", lambda m: with_array(OBJECTS, arrays(m)))
    yield row("array of objects of protocol 0", lambda m: with_array(
        OBJECTS, pickled(call("builtins:list", [made(m)]), 4)))  # fmt: skip
    yield row("numbers with the flags of objects", lambda m: with_array(
        dtype("i8", 3, *plain, 63), _padded(arrays(m), 8), (_count(arrays(m), 8),)))  # fmt: skip
    yield row("bytes with the flags of objects", lambda m: with_array(
        dtype("V1", 3, "|", None, None, None, 1, 1, 63), arrays(m), (len(arrays(m)),)))  # fmt: skip
    yield row("opcodes as the bytes of an array, read by pickle", lambda m: with_array(
        dtype("u1", 3, *plain, 0), _opcodes(made, m), (len(_opcodes(made, m)),)), "pickle.load", ".pkl")  # fmt: skip
    yield row("opcodes as the bytes of an array, read by torch", lambda m: with_array(
        dtype("u1", 3, *plain, 0), _opcodes(made, m), (len(_opcodes(made, m)),)), "torch.load", ".pkl")  # fmt: skip
    yield row("opcodes as the bytes of an array, read by pandas", lambda m: with_array(
        dtype("u1", 3, *plain, 0), _opcodes(made, m), (len(_opcodes(made, m)),)), "pandas.read_pickle",
        ".pkl")  # fmt: skip
    yield row("a function as the dtype's flags", lambda m: with_array(
        Built(call("argparse:Namespace"), {"hasobject": True}), arrays(m)))  # fmt: skip
    yield row("fields of objects", lambda m: with_array(
        dtype("V8", 3, "|", None, ("a",), {"a": (OBJECTS, 0)}, 8, 1, 63), arrays(m)))  # fmt: skip


def _opcodes(made: Callable[[str], Call], marker: str) -> bytes:
    """Opcodes that run a call between two others, and leave the stack as it was."""
    return encoded(made(marker), 4) + b"0"


def _count(data: bytes, size: int) -> int:
    return -(-len(data) // size)


def _padded(data: bytes, size: int) -> bytes:
    return data.ljust(_count(data, size) * size, b".")


def _numpy(which: str, made: Callable[[str], Call]) -> Iterator[Payload]:
    def row(kind: str, suffix: str, make: Callable[[str], bytes], loader: str = "numpy.load") -> Payload:
        return Payload(f"{which}, {kind}", "NumPy files", loader, suffix, _bytes(make))

    def objects(marker: str) -> bytes:
        return pickled([made(marker)], 4)

    shapes = {"objects": ("'|O'", "(1,)"), "objects without a byte order": ("'O'", "(1,)"),
              "objects with size": ("'|O8'", "(1,)"), "one object": ("'|O'", "()"),
              "no objects": ("'|O'", "(0,)"), "a field of objects": ("[('a', '|O')]", "(1,)"),
              "a field of objects among numbers": ("[('a', '<f4'), ('b', '|O')]", "(1,)"),
              "a field with a list of objects": ("[('a', '|O', (2,))]", "(1,)"),
              "a field in a field": ("[('a', [('b', '|O')])]", "(1,)"),
              "a field with a title": ("[(('t', 'a'), '|O')]", "(1,)")}  # fmt: skip
    for label, (descr, shape) in shapes.items():
        yield row(f".npy of {label}", ".npy", lambda m, d=descr, s=shape: npy(d, s, objects(m)))  # type: ignore[misc]
        yield row(f".npz of {label}", ".npz", lambda m, d=descr, s=shape: zipped({
            "w.npy": npy("'<f4'", "(1,)", bytes(4)), "x.npy": npy(d, s, objects(m))}))  # type: ignore[misc]  # fmt: skip
    for version in (2, 3):
        yield row(f".npy of version {version}", ".npy", lambda m, v=version: npy(
            "'|O'", "(1,)", objects(m), v))  # type: ignore[misc]  # fmt: skip
    yield row(".npz, compressed", ".npz", lambda m: zipped({"x.npy": npy("'|O'", "(1,)", objects(m))}, True))
    yield row(".npz, entry without .npy", ".npz", lambda m: zipped({
        "w.npy": npy("'<f4'", "(1,)", bytes(4)), "x": npy("'|O'", "(1,)", objects(m))}))  # fmt: skip
    yield row(".npz, entry in a folder", ".npz", lambda m: zipped({"a/x.npy": npy("'|O'", "(1,)", objects(m))}))
    yield row(".npy that is a pickle", ".npy", lambda m: pickled(made(m), 4))
    yield row(".npz that is a pickle", ".npz", lambda m: pickled(made(m), 4))
    yield row("array of objects in a pickle", ".pkl", lambda m: pickled(_array(
        "numpy._core.multiarray", [made(m)]), 4), "pickle.load")  # fmt: skip
    yield row("array of objects in a pickle, older name", ".pkl", lambda m: pickled(_array(
        "numpy.core.multiarray", [made(m)]), 2), "pickle.load")  # fmt: skip
    yield row("array of objects in torch zip", ".pt", lambda m: torch_zip(pickled(_array(
        "numpy._core.multiarray", [made(m)]), 4)), "torch.load")  # fmt: skip


def _array(module: str, items: list[Any]) -> Built:
    made = call(f"{module}:_reconstruct", name("numpy:ndarray"), (0,), b"b")
    return Built(made, (1, (len(items),), OBJECTS, False, items))


def _folders() -> Iterator[Payload]:
    """Distributed checkpoints of torch."""
    for which, made in CALLS.items():

        def in_metadata(path: Path, marker: str, made: Callable[[str], Call] = made) -> None:
            _dcp(path)
            metadata = path / ".metadata"
            data = metadata.read_bytes()
            metadata.write_bytes(b"\x80\x04" + encoded(made(marker), 4) + b"0" + data)

        def in_values(path: Path, marker: str, made: Callable[[str], Call] = made) -> None:
            dcp_value(path, torch_zip(pickled(made(marker), 4)))

        yield Payload(f"{which}, DCP: in .metadata", "distributed checkpoints", "dcp_to_torch_save", "", in_metadata)
        yield Payload(f"{which}, DCP: in a value", "distributed checkpoints", "dcp_to_torch_save", "", in_values)


def _dcp(path: Path) -> None:
    import warnings

    import torch.distributed.checkpoint as dcp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save({"w": 1}, checkpoint_id=path, no_dist=True)


def dcp_value(path: Path, data: bytes) -> None:
    """A distributed checkpoint whose only value, which is not a tensor, is `data`."""
    _dcp(path)
    [file] = path.glob("*.distcp")
    file.write_bytes(data.ljust(file.stat().st_size, b"\0"))
    metadata_file = path / ".metadata"
    metadata = pickle.loads(metadata_file.read_bytes())
    for info in metadata.storage_data.values():
        info.length = len(data)
    metadata_file.write_bytes(pickle.dumps(metadata))
