"""Payloads from a reviewer who knew how programs are read: TorchScript whose calls are written in other ways, and
entries of torch.export and torch.package with other names than the usual ones."""

import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.payloads.containers import Payload, Write, zipped
from tools.payloads.outside_pickles import folder_bytes, payload
from tools.payloads.pickle_code import pickled
from tools.payloads.programs import BODIES, library, program, rewritten, script, symbolic

Entries = dict[str, bytes]


def payloads() -> Iterator[Payload]:
    yield from _scripts()
    yield from _exported()
    for label, data in _PACKAGES.items():
        yield payload(f"torch.package: {label}", "torch.package", "PackageImporter.load_pickle", data, ".pt")


# -- TorchScript -------------------------------------------------------------------------------------------------

_LOADERS = ("torch.jit.load", "torch.load")

# Other ways to write `torch.save(`.
_WRITTEN = {
    "a line that continues": "torch.\\\n    save(",
    "a line that continues before the bracket": "torch.save\\\n    (",
    "brackets": "(torch.save)(",
    "brackets and a comment": "(torch. # a\n  save)(",
    "getattr": 'getattr(torch, "save")(',
    "getattr of operators": 'getattr(ops.aten, "save")(',
}


def _scripts() -> Iterator[Payload]:
    def row(label: str, write: Write, loader: str, suffix: str = ".pt") -> Payload:
        return Payload(f"TorchScript: {label}, {loader}", "TorchScript", loader, suffix, write)

    saving = script(BODIES["torch.save"], "module")
    for loader in _LOADERS:
        for label, written in _WRITTEN.items():
            change = rewritten(saving, lambda code, w=written: code.replace("torch.save(", w))  # type: ignore[misc]
            yield row(label, change, loader)
        yield row("entries CODE/….PY", _renamed(saving, {"/code/": "/CODE/", ".py": ".PY"}), loader)
        yield row("entries code/….PY", _renamed(saving, {".py": ".PY"}), loader)
        yield row("DATA.PKL, and data.pkl in a folder", _with_data(saving), loader)
    yield row("CONSTANTS.PKL", _renamed(saving, {"constants.pkl": "CONSTANTS.PKL"}), "torch.jit.load")
    for_phones = rewritten(script(BODIES["torch.save"], "module", lite=True), lambda code: None)
    name = "for phones, without source, BYTECODE.pkl"
    change = _renamed(for_phones, {"bytecode.pkl": "BYTECODE.pkl"})
    yield row(name, change, "_load_for_lite_interpreter", ".ptl")


def _with_entries(write: Write, change: Callable[[Entries], Entries]) -> Write:
    """The archive with other entries."""

    def rewrite(path: Path, marker: str) -> None:
        write(path, marker)
        with zipfile.ZipFile(path) as archive:
            entries = {entry: archive.read(entry) for entry in archive.namelist()}
        path.write_bytes(zipped(change({key: data for key, data in entries.items() if not key.endswith(".debug_pkl")})))

    return rewrite


def _renamed(write: Write, names: dict[str, str]) -> Write:
    def change(entries: Entries) -> Entries:
        for old, new in names.items():
            entries = {entry.replace(old, new): data for entry, data in entries.items()}
        return entries

    return _with_entries(write, change)


def _with_data(write: Write) -> Write:
    def change(entries: Entries) -> Entries:
        root = next(iter(entries)).partition("/")[0]
        entries = {entry.replace("/data.pkl", "/DATA.PKL"): data for entry, data in entries.items()}
        return entries | {f"{root}/x/data.pkl": pickled({}, 2)}

    return _with_entries(write, change)


# -- torch.export ------------------------------------------------------------------------------------------------


def _exported() -> Iterator[Payload]:
    for label, change in _CHANGED.items():

        def write(path: Path, marker: str, change: Callable[[Entries, str], Entries] = change) -> None:
            path.write_bytes(zipped(change(dict(program()), marker)))

        yield Payload(f"torch.export: {label}", "torch.export", "torch.export.load", ".pt2", write)
    if shutil.which("gcc"):
        name = "torch.export: an enum that is a library beside the file"
        yield Payload(name, "torch.export", "torch.export.load", ".pt2", _library_beside)


def _model(entries: Entries) -> str:
    return next(entry for entry in entries if entry.endswith("models/model.json"))


def _symbolic_in(entry: Callable[[str], str], more: Callable[[str], Entries] = lambda root: {}) -> Any:
    """The graph with code as a symbolic shape, in the entry with this name, and more entries."""

    def change(entries: Entries, marker: str) -> Entries:
        model = _model(entries)
        changed = symbolic(entries.pop(model), f"__import__('os').mkdir('{marker}')")
        return entries | {entry(model): changed} | more(model.partition("/")[0])

    return change


def _escaped(entries: Entries, marker: str) -> Entries:
    entries = _symbolic_in(lambda model: model)(entries, marker)
    model = _model(entries)
    return entries | {model: entries[model].replace(b'"expr_str"', b'"expr\\u005fstr"')}


def _listed_as_tensor(path_name: str, protocol: int) -> Callable[[Entries, str], Entries]:
    """A constant of a class that torch does not know, which the archive lists as a tensor."""

    def change(entries: Entries, marker: str) -> Entries:
        data = folder_bytes(marker, protocol)
        [config] = [entry for entry in entries if entry.endswith("_constants_config.json")]
        content = json.loads(entries[config])
        tensor = {
            "dtype": 1, "sizes": [{"as_int": len(data)}], "strides": [{"as_int": 1}], "storage_offset": {"as_int": 0},
            "layout": 7, "requires_grad": False, "device": {"type": "cpu", "index": None},
        }  # fmt: skip
        row = {"path_name": path_name, "is_param": False, "use_pickle": False, "tensor_meta": tensor}
        content["config"] = {**content["config"], "extra": row}
        folder = config.rpartition("/")[0]
        return entries | {config: json.dumps(content).encode(), f"{folder}/{path_name}": data}

    return change


def _sample_inputs(entries: Entries, marker: str) -> Entries:
    [inputs] = [entry for entry in entries if "sample_inputs" in entry]
    data = {"a/DATA.PKL": folder_bytes(marker, 0), "a/b/data.pkl": pickled({}, 2), "a/version": b"3\n"}
    return entries | {inputs: zipped(data)}


_CHANGED: dict[str, Callable[[Entries, str], Entries]] = {
    "a call in a symbolic shape, whose key has an escape": _escaped,
    "a call in a symbolic shape, models/model.JSON": _symbolic_in(lambda model: model.removesuffix("json") + "JSON"),
    "a call in a symbolic shape, models/model.text": _symbolic_in(lambda model: model.removesuffix("json") + "text"),
    "a call in a symbolic shape, and an extra data.pkl": _symbolic_in(
        lambda model: model, lambda root: {f"{root}/extra/data.pkl": pickled({}, 0)}
    ),
    "an opaque constant of protocol 0 that is listed as a tensor": _listed_as_tensor("opaque_obj_0", 0),
    "an opaque constant called constants.pkl": _listed_as_tensor("opaque_obj_/constants.pkl", 4),
    "DATA.PKL in the sample inputs": _sample_inputs,
}


def _library_beside(path: Path, marker: str) -> None:
    """The key of a dict in the inputs is an enum, which `ctypes.cdll` looks up by the name of a file."""
    file = path.with_suffix(".so")
    [data] = library(path, marker).values()
    file.write_bytes(data)
    enum = json.dumps([{"__enum__": True, "fqn": "ctypes:cdll", "name": str(file)}])
    leaf = {"type": None, "context": None, "children_spec": []}
    tree = {"type": "builtins.dict", "context": enum, "children_spec": [leaf]}

    def changed(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spec(held) if key in ("in_spec", "out_spec") else changed(held) for key, held in value.items()}
        return [changed(held) for held in value] if isinstance(value, list) else value

    def spec(written: str) -> str:
        version, _ = json.loads(written)
        return json.dumps([version, tree])

    entries = program()
    model = _model(entries)
    path.write_bytes(zipped(entries | {model: json.dumps(changed(json.loads(entries[model]))).encode()}))


# -- torch.package -----------------------------------------------------------------------------------------------


def _package(data: bytes, **more: bytes) -> bytes:
    """A package with the object in MODEL.PKL, which the reader of torch finds as model.pkl."""
    return zipped({
        "archive/model/MODEL.PKL": data, "archive/.data/version": b"6\n", "archive/.data/extern_modules": b"posix\n",
        "archive/.data/python_version": b"3.11", "archive/version": b"6\n", "archive/byteorder": b"little",
        "archive/data.pkl": pickled({}, 2), **{f"archive/{entry}": content for entry, content in more.items()},
    })  # fmt: skip


_PACKAGES: dict[str, Callable[[str], bytes]] = {
    "MODEL.PKL of protocol 0": lambda m: _package(folder_bytes(m, 0)),
    "MODEL.PKL, and source code in a folder called code": lambda m: _package(
        b"N0ca.code.evil\nrun\n(tR.", **{"a/code/evil.py": f"open({m!r}, 'w').close()\n\ndef run(): pass\n".encode()}
    ),
}
