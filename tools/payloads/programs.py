"""Programs: TorchScript, archives of torch.export, and packages of torch.package."""

import io
import json
import shutil
import subprocess
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from tools.payloads.containers import CALLS, Payload, torch_zip, zipped
from tools.payloads.pickle_code import call, pickled

# The body of a method of a TorchScript class, which may call any operator. Some create a file.
BODIES = {
    "torch.save": "torch.save(1, {marker!r})",
    "torch.from_file": "self.training_steps += torch.from_file({marker!r}, True, 4).numel()",
}


def payloads() -> Iterator[Payload]:
    yield from _scripts()
    yield from _exported()
    for which, made in CALLS.items():
        yield Payload(
            f"{which}, torch.package: pickle", "torch.package", "PackageImporter.load_pickle", ".pt",
            lambda path, marker, made=made: _package(path, pickled(made(marker), 4), ""),  # type: ignore[misc]
        )  # fmt: skip
    yield Payload(
        "torch.package: source code of a known name", "torch.package", "PackageImporter.load_pickle", ".pt",
        lambda path, marker: _package(path, pickled(call("datetime:date", 2026, 1, 2), 2), (
            f"open({marker!r}, 'w').close()"), "datetime", **{"data.pkl": pickled({}, 2)}),
    )  # fmt: skip
    yield Payload(
        "torch.package: source code", "torch.package", "PackageImporter.load_pickle", ".pt",
        lambda path, marker: _package(path, pickled(call("evil:run"), 4), f"open({marker!r}, 'w').close()"),
    )  # fmt: skip


# -- TorchScript -------------------------------------------------------------------------------------------------


def _scripts() -> Iterator[Payload]:
    def row(name: str, write: Any, loader: str = "torch.jit.load", suffix: str = ".pt") -> Payload:
        return Payload(f"TorchScript: {name}", "TorchScript", loader, suffix, write)

    for operator, body in BODIES.items():
        for loader in ("torch.jit.load", "torch.load"):
            yield row(f"{operator} in __setstate__ of the module, {loader}", script(body, "module"), loader)
        yield row(f"{operator} in __setstate__ of a submodule", script(body, "submodule"))
        yield row(f"{operator} in __setstate__, for phones", script(body, "module", lite=True),
                  "_load_for_lite_interpreter", ".ptl")  # fmt: skip
    yield row("torch.from_file with a space", rewritten(script(BODIES["torch.from_file"], "module"), lambda code: (
        code.replace("torch.from_file(", "torch.from_file ("))))  # fmt: skip
    for label, change in _REWRITTEN.items():
        for loader in ("torch.jit.load", "torch.load"):
            yield row(f"{label}, {loader}", rewritten(script(BODIES["torch.save"], "module"), change), loader)
    for_phones = script(BODIES["torch.save"], "module", lite=True)
    yield row(
        "for phones, without source", rewritten(for_phones, lambda code: None), "_load_for_lite_interpreter", ".ptl"
    )
    for which, made in CALLS.items():
        yield row(f"{which} in an extra file", _with_extra_file(made), "torch.jit.load of extra files")


def script(body: str, place: str, lite: bool = False) -> Callable[[Path, str], None]:
    def write(path: Path, marker: str) -> None:
        import torch

        made = _compiled(body.format(marker=marker), place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if lite:
                made._save_for_lite_interpreter(str(path))
            else:
                torch.jit.save(made, str(path))
        _remove(Path(marker))

    return write


def _remove(marker: Path) -> None:
    """Removes a marker that was made when the file was written."""
    for file in marker.parent.glob(marker.name + "*"):
        file.unlink()


_SOURCE = """
from typing import Tuple

import torch


class Inner(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.training_steps = 1

    def forward(self, x):
        return x

    @torch.jit.export
    def __getstate__(self) -> Tuple[int, bool]:
        return self.training_steps, self.training

    @torch.jit.export
    def __setstate__(self, state: Tuple[int, bool]) -> None:
        self.training_steps = state[0]
        self.training = state[1]
        BODY


class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.inner = Inner()

    def forward(self, x):
        return self.inner(self.linear(x))
"""


def _compiled(body: str, place: str) -> Any:
    """A scripted module. TorchScript compiles classes from their source, so this is a file."""
    import importlib.util
    import tempfile

    import torch

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "scripted.py"
        file.write_text(_SOURCE.replace("BODY", body), "utf-8")
        # TorchScript adds a number to the name of a class that it has seen before.
        module_name = f"scripted_{zlib.crc32((body + place).encode())}"
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.script(module.Inner() if place == "module" else module.Outer())


# Other ways to write the same call.
_REWRITTEN: dict[str, Callable[[str], str]] = {
    "torch.save with a space": lambda code: code.replace("torch.save(", "torch.save ("),
    "torch.save with spaces": lambda code: code.replace("torch.save(", "torch . save("),
    "torch.save as an operator": lambda code: code.replace("torch.save(", "ops.aten.save("),
    "torch.save as an operator, with a space": lambda code: code.replace("torch.save(", "ops.aten.save ("),
    "torch.save of a variable": lambda code: code.replace("torch.save(", "torch.save(# a comment\n    "),
}


def rewritten(write: Callable[[Path, str], None], change: Callable[[str], str | None]) -> Callable[[Path, str], None]:
    """The archive with other source code, or without it."""

    def rewrite(path: Path, marker: str) -> None:
        write(path, marker)
        with zipfile.ZipFile(path) as archive:
            entries = {entry: archive.read(entry) for entry in archive.namelist()}
        for entry in [entry for entry in entries if entry.endswith(".py")]:
            code = change(entries.pop(entry).decode())
            if code is not None:
                entries[entry] = code.encode()
        entries = {entry: data for entry, data in entries.items() if not entry.endswith(".debug_pkl")}
        path.write_bytes(zipped(entries))

    return rewrite


def _with_extra_file(made: Callable[[str], Any]) -> Callable[[Path, str], None]:
    def write(path: Path, marker: str) -> None:
        import torch

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2))
            torch.jit.save(module, str(path), _extra_files={"config.pkl": pickled(made(marker), 4)})

    return write


# -- torch.export ------------------------------------------------------------------------------------------------


@cache
def program() -> dict[str, bytes]:
    """The entries of an archive with a dynamic shape."""
    import torch

    stream = io.BytesIO()
    dynamic = ({0: torch.export.Dim("rows", max=64)},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),), dynamic_shapes=dynamic)
        torch.export.save(exported, stream)
    with zipfile.ZipFile(stream) as archive:
        return {entry: archive.read(entry) for entry in archive.namelist()}


def _exported() -> Iterator[Payload]:
    def row(name: str, write: Any, loader: str = "torch.export.load") -> Payload:
        return Payload(f"torch.export: {name}", "torch.export", loader, ".pt2", write)

    for which, made in CALLS.items():
        for loader in ("torch.export.load", "load_pt2"):
            yield row(f"{which} in the sample inputs, {loader}", _changed("sample_inputs", lambda data, m, made=made: (
                torch_zip(pickled(made(m), 4)))), loader)  # fmt: skip
        yield row(f"{which} in a pickled weight", _pickled_tensor(made, "weights"))
        yield row(f"{which} in a pickled constant", _pickled_tensor(made, "constants"))
        for protocol in (0, 4):
            yield row(f"{which} in an opaque constant of protocol {protocol}", _opaque_constant(made, protocol))
        yield row(f"{which} in an older archive", _older(made))
    if shutil.which("gcc"):
        yield row("a library", _compiled_program(library), "load_pt2")
    yield row("flags of a compiler", _compiled_program(_flags), "load_pt2")
    code = "__import__('os').system('touch {marker}')"
    for label, expression in (
        ("a call", code),
        ("a call in an expression", "Max(1, " + code + ")"),
        ("open()", "open('{marker}', 'w')"),
    ):
        yield row(f"{label} in a symbolic shape", _changed("models/model.json", lambda data, m, e=expression: (
            symbolic(data, e.format(marker=m)))))  # fmt: skip


def _compiled_program(entries: Callable[[Path, str], dict[str, bytes]]) -> Callable[[Path, str], None]:
    """An archive that also contains what AOTInductor compiled."""

    def write(path: Path, marker: str) -> None:
        metadata = json.dumps({"AOTI_DEVICE_KEY": "cpu", "AOTI_PLATFORM": "linux"}).encode()
        [root] = {entry.partition("/")[0] for entry in program()}
        more = {"a.wrapper_metadata.json": metadata} | entries(path, marker)
        folder = f"{root}/data/aotinductor/model"
        path.write_bytes(zipped(program() | {f"{folder}/{entry}": data for entry, data in more.items()}))

    return write


def library(path: Path, marker: str) -> dict[str, bytes]:
    code, made = path.with_suffix(".c"), path.with_suffix(".so")
    code.write_text(f'#include <stdio.h>\n__attribute__((constructor)) void run(void) {{ fopen("{marker}", "w"); }}\n')
    subprocess.run(["gcc", "-shared", "-fPIC", "-s", "-o", str(made), str(code)], check=True)
    data = made.read_bytes()
    code.unlink()
    made.unlink()
    return {"a.wrapper.so": data}


def _flags(path: Path, marker: str) -> dict[str, bytes]:
    options: dict[str, Any] = {"compiler": f"touch {marker}; true", "compile_only": False, "preprocessing": False}
    lists = ("definitions", "include_dirs", "cflags", "ldflags", "libraries", "libraries_dirs", "passthrough_args")
    flags = json.dumps(options | {key: [] for key in lists} | {"aot_mode": True, "use_relative_path": False}).encode()
    return {
        "a.wrapper.cpp": b"int main() { return 0; }\n", "a.wrapper_compile_flags.json": flags,
        "a.wrapper_linker_flags.json": flags,
    }  # fmt: skip


def _changed(part: str, change: Callable[[bytes, str], bytes]) -> Callable[[Path, str], None]:
    def write(path: Path, marker: str) -> None:
        entries = {
            entry: change(data, marker) if part in entry and not entry.endswith("_config.json") else data
            for entry, data in program().items()
        }
        path.write_bytes(zipped(entries))

    return write


def symbolic(data: bytes, expression: str) -> bytes:
    """The graph with an expression instead of the first symbol."""

    def replaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: expression if key == "expr_str" else replaced(held) for key, held in value.items()}
        return [replaced(held) for held in value] if isinstance(value, list) else value

    return json.dumps(replaced(json.loads(data))).encode()


def _pickled_tensor(made: Callable[[str], Any], part: str) -> Callable[[Path, str], None]:
    def write(path: Path, marker: str) -> None:
        entries = dict(program())
        [config] = [entry for entry in entries if entry.endswith(f"_{part}_config.json")]
        folder = config.rpartition("/")[0]
        content = json.loads(entries[config])
        names = list(content["config"]) or ["extra"]
        file = "weight_evil" if part == "weights" else "tensor_evil"  # the prefix says what it is
        row = {"path_name": file, "is_param": part == "weights", "use_pickle": True, "tensor_meta": None}
        content["config"] = {**content["config"], names[0]: row}
        entries[config] = json.dumps(content).encode()
        entries[f"{folder}/{file}"] = torch_zip(pickled(made(marker), 4))
        path.write_bytes(zipped(entries))

    return write


def _opaque_constant(made: Callable[[str], Any], protocol: int = 4) -> Callable[[Path, str], None]:
    """A constant of a class that torch does not know, which it pickles as it is."""

    def write(path: Path, marker: str) -> None:
        entries = dict(program())
        [config] = [entry for entry in entries if entry.endswith("_constants_config.json")]
        folder = config.rpartition("/")[0]
        content = json.loads(entries[config])
        name = "opaque_obj_0"
        row = {"path_name": name, "is_param": False, "use_pickle": True, "tensor_meta": None}
        content["config"] = {**content["config"], "extra": row}
        entries[config] = json.dumps(content).encode()
        entries[f"{folder}/{name}"] = pickled(made(marker), protocol)
        path.write_bytes(zipped(entries))

    return write


def _older(made: Callable[[str], Any]) -> Callable[[Path, str], None]:
    """The layout of PyTorch before 2.8."""

    def write(path: Path, marker: str) -> None:
        entries = program()
        [model] = [data for entry, data in entries.items() if entry.endswith("models/model.json")]
        good = torch_zip(pickled({}, 2))
        version = json.loads(model)["schema_version"]
        path.write_bytes(zipped({
            "version": f"{version['major']}.{version['minor']}".encode(),
            "serialized_exported_program.json": model, "serialized_state_dict.pt": torch_zip(pickled(made(marker), 4)),
            "serialized_constants.pt": good, "serialized_example_inputs.pt": torch_zip(pickled(made(marker), 4)),
        }))  # fmt: skip

    return write


# -- torch.package -----------------------------------------------------------------------------------------------


def _package(path: Path, data: bytes, code: str, module: str = "evil", **more: bytes) -> None:
    source = f"{code}\n\ndef run(*_):\n    return 1\n\ndate = run\n".encode()
    path.write_bytes(zipped({
        "archive/model/model.pkl": data, f"archive/{module}.py": source, "archive/.data/version": b"6\n",
        "archive/.data/extern_modules": b"posix\nenum\nbuiltins\nfunctools\nos\ntorch.storage\n",
        "archive/.data/python_version": b"3.11", "archive/version": b"6\n", "archive/byteorder": b"little",
        "archive/.data/serialization_id": b"1", **{f"archive/{entry}": content for entry, content in more.items()},
    }))  # fmt: skip
