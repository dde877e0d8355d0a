"""Loads each payload with its own loader, in a process of its own, and reports whether it ran.

    python -I tools/payloads/running.py MANIFEST

Imports nothing of this repository, because `-I` leaves out its folder. Prints one JSON row for each payload: its name,
whether its marker exists, and what the loader raised.
"""

import contextlib
import glob
import importlib
import io
import json
import os
import signal
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

LIMIT = 30  # seconds for a payload
_LATER = 1.5  # seconds in which a process that the payload started may make the marker

# Imported before the first payload runs, so that each costs a fork only.
_FIRST = ("numpy", "torch", "joblib", "pandas", "torch.export", "torch.package", "torch.distributed.checkpoint")


def _pickle_load(path: str) -> Any:
    import pickle

    with open(path, "rb") as file:
        return pickle.load(file)


def _pickle_each(path: str) -> Any:
    """As a program reads a file with several pickles."""
    import pickle

    with open(path, "rb") as file, contextlib.suppress(EOFError):
        while True:
            pickle.load(file)


def _one_unpickler(path: str) -> Any:
    """As `_pickle_each`, with an Unpickler that keeps its memo."""
    import pickle

    with open(path, "rb") as file, contextlib.suppress(EOFError):
        unpickler = pickle.Unpickler(file)
        while True:
            unpickler.load()


def _python_unpickler(path: str) -> Any:
    """Without the C code, as in PyPy, or a subclass that overrides opcodes."""
    import pickle

    with open(path, "rb") as file:
        return pickle._Unpickler(file).load()  # type: ignore[attr-defined]


def _extension_registry(path: str) -> Any:
    """As a program that registers its classes for the opcodes EXT1, EXT2 and EXT4."""
    import copyreg

    for number in (7, 700, 70_000):
        copyreg.add_extension("posix", "system", number)  # type: ignore[arg-type]
        copyreg.remove_extension("posix", "system", number)  # type: ignore[arg-type]
        copyreg._inverted_registry[number] = "posix", "system"  # type: ignore[attr-defined]
    return _pickle_load(path)


def _persistent(path: str) -> Any:
    """As a program whose persistent ids are names."""
    import pickle

    class Unpickler(pickle.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            module, _, name = str(pid).rpartition(".")
            return getattr(importlib.import_module(module), name)

    with open(path, "rb") as file:
        return Unpickler(file).load()


def _torch_load(path: str) -> Any:
    import torch

    return torch.load(path, weights_only=False, map_location="cpu")


def _numpy_load(path: str) -> Any:
    import numpy as np

    loaded = np.load(path, allow_pickle=True)
    return [loaded[key] for key in loaded.files] if hasattr(loaded, "files") else loaded


def _joblib_load(path: str) -> Any:
    import joblib

    return joblib.load(path)


def _pandas(path: str) -> Any:
    import pandas as pd

    return pd.read_pickle(path)


def _jit(path: str) -> Any:
    import torch

    return torch.jit.load(path)


def _jit_extra_files(path: str) -> Any:
    import pickle

    import torch

    files: dict[str, Any] = {"config.pkl": ""}
    torch.jit.load(path, _extra_files=files)
    return pickle.loads(files["config.pkl"])


def _lite(path: str) -> Any:
    from torch.jit.mobile import _load_for_lite_interpreter

    return _load_for_lite_interpreter(path)


def _export(path: str) -> Any:
    import torch

    return torch.export.load(path)


def _export_archive(path: str) -> Any:
    from torch.export.pt2_archive._package import load_pt2

    return load_pt2(path)


def _package(path: str) -> Any:
    from torch.package import PackageImporter

    return PackageImporter(path).load_pickle("model", "model.pkl")


def _dcp(path: str) -> Any:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    return dcp_to_torch_save(path, path + ".converted")


def _lightning(path: str) -> Any:
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        pass

    return Module.load_from_checkpoint(path, weights_only=False, strict=False)


def _zipped(path: str) -> Any:
    """Pickles in a zip, or in a zip in it."""
    import pickle

    def read(data: bytes) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                inner = archive.read(name)
                if name.endswith(".zip"):
                    read(inner)
                elif name.endswith(".pkl"):
                    pickle.loads(inner)

    with open(path, "rb") as file:
        read(file.read())


def _gzipped(path: str) -> Any:
    import gzip
    import pickle

    with gzip.open(path, "rb") as file:
        return pickle.load(file)


def _dcp_value(path: str) -> Any:
    import torch
    import torch.distributed.checkpoint as dcp

    values = {"w": torch.zeros(2), "x": None}
    dcp.load(values, checkpoint_id=path, no_dist=True)
    return values


def _dcp_of_a_rank(path: str) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    return FileSystemReader(path).read_metadata(rank=0)


LOADERS: dict[str, Callable[[str], Any]] = {
    "pickle.load": _pickle_load,
    "pickle.load, repeatedly": _pickle_each,
    "pickle.Unpickler, repeatedly": _one_unpickler,
    "pickle._Unpickler": _python_unpickler,
    "pickle.load with copyreg extensions": _extension_registry,
    "pickle.Unpickler with persistent_load": _persistent,
    "torch.load": _torch_load,
    "numpy.load": _numpy_load,
    "joblib.load": _joblib_load,
    "pandas.read_pickle": _pandas,
    "torch.jit.load": _jit,
    "torch.jit.load of extra files": _jit_extra_files,
    "_load_for_lite_interpreter": _lite,
    "torch.export.load": _export,
    "load_pt2": _export_archive,
    "PackageImporter.load_pickle": _package,
    "dcp_to_torch_save": _dcp,
    "dcp_value": _dcp_value,
    "dcp_of_a_rank": _dcp_of_a_rank,
    "load_from_checkpoint": _lightning,
    "zipfile and pickle.load": _zipped,
    "gzip and pickle.load": _gzipped,
}


def _made(marker: str) -> bool:
    """Whether the marker exists; some functions add a suffix."""
    return os.path.lexists(marker) or bool(glob.glob(glob.escape(marker) + "*"))


def _child(row: dict[str, str], errors: int) -> None:
    """Loads one payload, and ends the process."""
    import atexit

    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    atexit._clear()  # what the libraries registered before the fork
    home = os.path.join(os.path.dirname(row["marker"]), ".homes", os.path.basename(row["marker"]))
    os.makedirs(home)
    os.chdir(home)
    os.environ["HOME"] = home
    why = ""
    try:
        LOADERS[row["loader"]](row["file"])
    except BaseException as error:
        why = f"{type(error).__name__}: {error}"[:300]
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    os.write(errors, why.encode("utf-8", "replace"))
    os._exit(0)


def run(row: dict[str, str]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        try:
            _child(row, writing)
        finally:
            os._exit(1)
    os.close(writing)
    stop = time.monotonic() + LIMIT
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < stop:
        time.sleep(0.005)
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    later = time.monotonic() + _LATER
    while not _made(row["marker"]) and time.monotonic() < later:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)  # what the payload started
    os.set_blocking(reading, False)
    with contextlib.suppress(BlockingIOError):
        why = os.read(reading, 4096).decode("utf-8", "replace")
    os.close(reading)
    return {"name": row["name"], "ran": _made(row["marker"]), "why": why if ended else f"more than {LIMIT} seconds"}


def main(manifest: str) -> None:
    warnings.simplefilter("ignore")
    for module in _FIRST:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    import torch

    torch.set_num_threads(1)
    with open(manifest, encoding="utf-8") as file:
        rows = json.load(file)
    for row in rows:
        print(json.dumps(run(row)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
