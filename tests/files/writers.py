"""Checkpoints of every format, written by the real writers."""

import pickle
import struct
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import msgpack
import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

import leafwise as lw

Arrays = dict[str, torch.Tensor]


def arrays() -> Arrays:
    """Plain arrays of several dtypes that share no memory."""
    random = torch.Generator().manual_seed(0)
    return {
        "0.weight": torch.randn(6, 4, generator=random),
        "0.bias": torch.zeros(6),
        "1.weight": torch.randn(2, 6, generator=random).to(torch.float16),
        "count": torch.tensor(7),
    }


def safetensors(path: Path, state: Arrays) -> None:
    save_file(state, path)


def torch_zip(path: Path, state: Any) -> None:
    torch.save(state, path)


def torch_legacy(path: Path, state: Any) -> None:
    torch.save(state, path, _use_new_zipfile_serialization=False)


def pickled(path: Path, state: Any) -> None:
    path.write_bytes(pickle.dumps(state))


def pickled_numpy(path: Path, state: Arrays) -> None:
    path.write_bytes(pickle.dumps({name: value.numpy() for name, value in state.items()}, protocol=2))


def npz(path: Path, state: Arrays) -> None:
    with path.open("wb") as file:
        np.savez(file, **{name: value.numpy() for name, value in state.items()})


def npz_compressed(path: Path, state: Arrays) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, **{name: value.numpy() for name, value in state.items()})


def distributed(path: Path, state: Arrays) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(dict(state), checkpoint_id=path)


def leafwise_distributed(path: Path, state: Arrays) -> None:
    lw.save(dict(state), path, format="dcp")


def shards(path: Path, state: Arrays) -> None:
    path.mkdir()
    half = len(state) // 2
    parts = [dict(list(state.items())[:half]), dict(list(state.items())[half:])]
    weights = {}
    for number, part in enumerate(parts, 1):
        name = f"model-{number:05}-of-00002.safetensors"
        save_file(part, path / name)
        weights |= dict.fromkeys(part, name)
    import json

    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 1}, "weight_map": weights})
    )


def bin_shards(path: Path, state: Arrays) -> None:
    path.mkdir()
    for number, (name, value) in enumerate(state.items(), 1):
        torch.save({name: value}, path / f"pytorch_model-{number:05}-of-{len(state):05}.bin")


def gguf_file(path: Path, state: Arrays) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 2)
    writer.add_array("tokenizer.ggml.tokens", [str(number) for number in range(100)])
    for name, value in state.items():
        writer.add_tensor(name, value.reshape(-1).numpy() if value.dim() == 0 else value.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def mxnet(path: Path, state: Arrays, version: int = 2) -> None:
    """Files as MXNet writes them; those in `tests/files/golden` are from MXNet itself. V0 and V1 are older than its
    first release."""
    dtypes = {"float32": 0, "float64": 1, "float16": 2, "uint8": 3, "int32": 4, "int8": 5, "int64": 6}
    parts = [struct.pack("<QQQ", 0x112, 0, len(state))]
    for value in state.values():
        array = value.numpy() if value.dim() or version == 3 else value.reshape(1).numpy()
        shape = struct.pack("<i", array.ndim) + struct.pack(f"<{array.ndim}q", *array.shape)
        if version == 0:
            parts.append(struct.pack(f"<I{array.ndim}I", array.ndim, *array.shape))
        else:
            parts.append(struct.pack("<I", 0xF993FAC7 + version))
            parts += [struct.pack("<i", 0)] * (version > 1) + [shape]
        parts.append(struct.pack("<iii", 1, 0, dtypes[str(array.dtype)]) + array.tobytes())
    parts.append(struct.pack("<Q", len(state)))
    parts += [struct.pack("<Q", len(name)) + name.encode() for name in state]
    path.write_bytes(b"".join(parts))


def flax_msgpack(path: Path, state: Arrays) -> None:
    """Files as Flax writes them, which tests/jax/test_flax_msgpack.py shows: maps for the parts of names."""
    content: dict[str, Any] = {}
    for name, value in state.items():
        *groups, last = name.split(".")
        place = content
        for group in groups:
            place = place.setdefault(group, {})
        array = value.numpy()
        packed = msgpack.packb((array.shape, array.dtype.name, array.tobytes()), use_bin_type=True)
        place[last] = msgpack.ExtType(1, packed)
    path.write_bytes(msgpack.packb(content, strict_types=True))


Writer = Callable[[Path, Any], None]
WRITERS: dict[str, Writer] = {
    "safetensors": safetensors,
    "torch zip": torch_zip,
    "torch legacy": torch_legacy,
    "pickle": pickled,
    "pickle of NumPy arrays": pickled_numpy,
    "npz": npz,
    "npz compressed": npz_compressed,
    "DCP": distributed,
    "DCP of leafwise": leafwise_distributed,
    "sharded safetensors": shards,
    "bin shards": bin_shards,
    "GGUF": gguf_file,
    "MXNet V0": lambda path, state: mxnet(path, state, 0),
    "MXNet V1": lambda path, state: mxnet(path, state, 1),
    "MXNet V2": lambda path, state: mxnet(path, state, 2),
    "MXNet V3": lambda path, state: mxnet(path, state, 3),
    "Flax msgpack": flax_msgpack,
}
# Formats without scalars write them with one axis.
FLATTENS = {"GGUF", "MXNet V0", "MXNet V1", "MXNet V2"}
