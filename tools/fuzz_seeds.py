"""Sound checkpoints of every format, which `tools/fuzz.py` damages, each with a target to load it into."""

import argparse
import itertools
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import gguf
import numpy as np
import torch
from tests.files import writers
from torch import nn

import leafwise as lw

Target = Callable[[], Any]


class Seed(NamedTuple):
    """How a checkpoint is written into a folder, which path is opened, and what it can be loaded into.

    `sealed`: every byte has a checksum. `checked`: only the arrays have one, the CRC-32 of a zip file.
    """

    write: Callable[[Path], None]
    target: Target
    opened: str = ""  # the file to open; if empty, the folder
    sealed: bool = False
    checked: bool = False


class Tied(nn.Module):
    """Tied weights, a view, buffers, and dtypes of several widths."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(4)
        self.half = nn.Linear(4, 3).to(torch.bfloat16)
        self.register_buffer("mask", torch.ones(5, dtype=torch.bool))


def run(steps: int = 1, seed: int = 0) -> dict[str, Any]:
    """A model, an optimizer that has stepped, and plain values."""
    torch.manual_seed(seed)
    net = Tied()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    for _ in range(steps):
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    plain = {"name": "run", "losses": [0.5, 0.25], "sizes": (3, None, True), "big": 1 << 70, 7: b"\0\xff"}
    return {"net": net, "optimizer": optimizer, "step": steps, "plain": plain}


def many() -> dict[str, torch.Tensor]:
    """Arrays of every dtype that safetensors and PyTorch both have, some without elements, and one tie."""
    bits = torch.arange(96, dtype=torch.uint8).reshape(4, 24)
    dtypes = [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64]
    dtypes += [torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64]
    found = {f"layer.{str(dtype)[6:]}": bits.view(dtype).clone() for dtype in dtypes}
    found["layer.bool"] = bits > 50
    found["layer.complex64"] = torch.view_as_complex(torch.arange(8.0).reshape(4, 2))
    found["layer.float32"] = torch.linspace(-1, 1, 12).reshape(3, 4)
    found["empty"], found["scalar"] = torch.zeros(0, 3), torch.tensor(2.5)
    found["turned"] = found["layer.float32"].T
    return found


def zeros(state: dict[str, torch.Tensor]) -> Target:
    return lambda: {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in state.items()}


def training() -> dict[str, Any]:
    """What a training script passes to torch.save: nearly every type that leafwise can read from a pickle."""
    state = run()
    shared = torch.arange(12.0)
    return {
        "model": OrderedDict(state["net"].state_dict()),
        "optimizer": state["optimizer"].state_dict(),
        "parameter": nn.Parameter(torch.ones(2, 3)),
        "views": [shared[2:8], shared.view(3, 4).t(), shared[3:4].expand(5)],
        "conjugate": torch.view_as_complex(torch.arange(12.0).view(6, 2)).conj(),
        "sparse": torch.eye(3).to_sparse(),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "unsigned": torch.arange(3).to(torch.uint16),
        "numpy": np.arange(6, dtype=">i4").reshape(2, 3),
        "number": np.float64(1.5),
        "args": argparse.Namespace(lr=0.1, path=Path("/tmp/x"), names=["a", "b"]),
        "sets": [{1, 2}, frozenset((3,)), complex(1, 2), bytearray(b"xyz")],
        "sizes": (torch.Size([1, 2]), torch.device("cpu")),
        "epoch": 3,
    }


def _folder(write: writers.Writer) -> Callable[[Path], None]:
    """For writers that create the folder themselves, so it must not exist yet."""

    def into(folder: Path) -> None:
        folder.rmdir()
        write(folder, writers.arrays())

    return into


def _file(name: str, write: writers.Writer, state: Callable[[], Any] = writers.arrays) -> Callable[[Path], None]:
    return lambda folder: write(folder / name, state())


def _leafwise(state: Callable[[], Any], **options: Any) -> Callable[[Path], None]:
    def into(folder: Path) -> None:
        numbers = itertools.count()
        # The names of shards have a random part. Here it is the same in each run, so that a case can be repeated.
        with mock.patch("secrets.token_hex", lambda size=4: f"{next(numbers):0{2 * size}x}"):
            lw.save(state(), folder / "model.safetensors", **options)

    return into


def _npy(folder: Path) -> None:
    np.save(folder / "array.npy", np.arange(24, dtype=np.float32).reshape(4, 6))


def _quantized(folder: Path) -> None:
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_array("tokenizer.ggml.tokens", [str(number) for number in range(100)])
    writer.add_array("scales", [1.0, 2.0])
    writer.add_bool("flag", True)
    values = np.random.default_rng(0).normal(size=(2, 256)).astype(np.float32)
    for kind in (gguf.GGMLQuantizationType.Q8_0, gguf.GGMLQuantizationType.Q4_0, gguf.GGMLQuantizationType.Q4_1):
        writer.add_tensor(kind.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("plain", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _sparse_mxnet(folder: Path) -> None:
    golden = Path(writers.__file__).parent / "golden"  # written by MXNet itself
    (folder / "model.params").write_bytes((golden / "mxnet-1.9.1-sparse.params").read_bytes())


def _small() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()


def _scripted(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(_small()).save(folder / "model.pt")


def _exported(folder: Path) -> None:
    torch.export.save(torch.export.export(_small(), (torch.zeros(2, 4),)), folder / "model.pt2")


def _stored() -> Any:
    return zeros(writers.arrays())()


def _flat() -> Any:
    """For formats that cannot store scalars."""
    return {name: value.reshape(1) if value.dim() == 0 else value for name, value in _stored().items()}


def _trained() -> Any:
    """The tensors that a training script would restore."""
    return {"model": run(0, 1)["net"].state_dict(), "half": torch.zeros(3, dtype=torch.bfloat16)}


def _tables() -> Any:
    return {"rows": torch.zeros(5, 3), "table": torch.zeros(4, 6)}


def _blocks() -> Any:
    return {name: torch.zeros(2, 256) for name in ("Q8_0", "Q4_0", "Q4_1", "plain")}


SEEDS: dict[str, Seed] = {
    "safetensors": Seed(_file("model.safetensors", writers.safetensors), _stored, "model.safetensors"),
    "leafwise": Seed(_leafwise(run), lambda: run(0, 1), "model.safetensors", sealed=True),
    "leafwise dtypes": Seed(_leafwise(many), lambda: zeros(many())(), "model.safetensors", sealed=True),
    "leafwise shards": Seed(_leafwise(run, shard_size=200), lambda: run(0, 1), sealed=True),
    "Hugging Face shards": Seed(_folder(writers.shards), _stored),
    "bin shards": Seed(_folder(writers.bin_shards), _stored, checked=True),
    "npz": Seed(_file("arrays.npz", writers.npz), _stored, "arrays.npz", checked=True),
    "npz compressed": Seed(_file("arrays.npz", writers.npz_compressed), _stored, "arrays.npz", checked=True),
    "npy": Seed(_npy, lambda: {"array": torch.zeros(4, 6)}, "array.npy"),
    "torch zip": Seed(_file("model.pt", writers.torch_zip), _stored, "model.pt", checked=True),
    "torch zip, training": Seed(_file("run.pt", writers.torch_zip, training), _trained, "run.pt", checked=True),
    "torch legacy": Seed(_file("model.pt", writers.torch_legacy), _stored, "model.pt"),
    "torch legacy, training": Seed(_file("run.pt", writers.torch_legacy, training), _trained, "run.pt"),
    "whole model": Seed(_file("model.pt", writers.torch_zip, Tied), Tied, "model.pt", checked=True),
    "whole model, legacy": Seed(_file("model.pt", writers.torch_legacy, Tied), Tied, "model.pt"),
    "TorchScript": Seed(_scripted, _small, "model.pt", checked=True),
    "torch.export": Seed(_exported, _small, "model.pt2", checked=True),
    "pickle": Seed(_file("model.pkl", writers.pickled), _stored, "model.pkl"),
    "pickle of NumPy arrays": Seed(_file("model.pkl", writers.pickled_numpy), _stored, "model.pkl"),
    "DCP": Seed(_folder(writers.distributed), _stored, checked=True),
    "DCP of leafwise": Seed(_folder(writers.leafwise_distributed), _stored, checked=True),
    "GGUF": Seed(_file("model.gguf", writers.gguf_file), _flat, "model.gguf"),
    "GGUF quantized": Seed(_quantized, _blocks, "model.gguf"),
    "MXNet V0": Seed(_file("model.params", writers.WRITERS["MXNet V0"]), _flat, "model.params"),
    "MXNet V1": Seed(_file("model.params", writers.WRITERS["MXNet V1"]), _flat, "model.params"),
    "MXNet V2": Seed(_file("model.params", writers.WRITERS["MXNet V2"]), _flat, "model.params"),
    "MXNet V3": Seed(_file("model.params", writers.WRITERS["MXNet V3"]), _stored, "model.params"),
    "Flax msgpack": Seed(_file("model.msgpack", writers.flax_msgpack), _stored, "model.msgpack"),
    "MXNet sparse": Seed(_sparse_mxnet, _tables, "model.params"),
}


def write_seeds(folder: Path, formats: list[str]) -> None:
    """Writes the seeds of these formats, each into its own folder. For leafwise's shards, also writes another save with
    the same shapes and different values."""
    for name in formats:
        (folder / name).mkdir(parents=True)
        SEEDS[name].write(folder / name)
    if "leafwise shards" in formats:
        (folder / STALE).mkdir()
        _leafwise(lambda: run(2, 3), shard_size=200)(folder / STALE)


STALE = "another save"


def files_of(folder: Path) -> dict[str, bytes]:
    """The files of a checkpoint, by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def generator(seed: int, name: str, number: int) -> random.Random:
    """The source of everything random in a case."""
    return random.Random(f"{seed}/{name}/{number}")
