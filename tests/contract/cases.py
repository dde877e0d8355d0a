"""The models that every home must describe correctly, with the expected facts."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tests.contract import toy
from tests.files.writers import WRITERS, arrays
from torch import nn

import leafwise as lw
from leafwise.files import open_file
from leafwise.files.stored_file import StoredFile
from leafwise.testing import Case


class TiedLanguageModel(nn.Module):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 4, device=device)
        self.block = nn.Linear(4, 4, device=device)
        self.head = nn.Linear(4, 10, bias=False, device=device)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.block(self.embed(tokens)))


class TransposedAutoencoder(nn.Module):
    """Two Parameters over the same memory, as a transposed tie made by hand gives."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(6, 3, bias=False)
        self.decoder = nn.Linear(3, 6, bias=False)
        self.decoder.weight = nn.Parameter(self.encoder.weight.data.t())


class FusedAttention(nn.Module):
    """Buffers that are views of one parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Parameter(torch.randn(12, 4))
        for position, name in enumerate("qkv"):
            self.register_buffer(f"{name}_view", self.qkv.data[4 * position : 4 * position + 4])


class FlatModel(nn.Module):
    """Parameters that are neighbors in one buffer."""

    def __init__(self, registered: bool) -> None:
        super().__init__()
        flat = torch.randn(12)
        if registered:
            self.register_buffer("flat", flat)
        self.a = nn.Parameter(flat[:4])
        self.b = nn.Parameter(flat[4:12].view(2, 4))


class SharedSubmodule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.second = nn.ModuleDict({"again": self.first})


class LazyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lazy = nn.LazyLinear(3)
        self.norm = nn.LazyBatchNorm1d()


def distributed() -> nn.Module:
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(TiedLanguageModel())


def view_state_dict() -> dict[str, torch.Tensor]:
    fused = torch.randn(12, 4)
    return {
        "attn.q": fused[:4],
        "attn.qkv": fused,
        "attn.kv": fused[4:],
        "out.weight": fused.t(),
        "column": fused[:, 1],
        "other": torch.randn(3),
    }


_TIED = {"embed.weight": [("head.weight", "same")], "block.weight": [], "block.bias": []}
_TIED_STATE = {"embed.weight": [("head.weight", "same")], "block.weight": [], "block.bias": []}

TORCH = {
    "a tied language model": Case(TiedLanguageModel, _TIED, 60),
    "a transposed autoencoder": Case(
        TransposedAutoencoder,
        {"encoder.weight": [], "decoder.weight": []},
        36,
        shared_memory=(("encoder.weight", "decoder.weight"),),
    ),
    "fused qkv with views": Case(
        FusedAttention, {"qkv": [("q_view", "view"), ("k_view", "view"), ("v_view", "view")]}, 48
    ),
    "a flat buffer that is not registered": Case(lambda: FlatModel(registered=False), {"a": [], "b": []}, 12),
    "a flat buffer that is registered": Case(
        lambda: FlatModel(registered=True), {"a": [], "b": [], "flat": []}, 12, shared_memory=(("a", "b", "flat"),)
    ),
    "a shared submodule": Case(
        SharedSubmodule,
        {"first.0.weight": [("second.again.0.weight", "same")], "first.0.bias": [("second.again.0.bias", "same")]},
        6,
    ),
    "DataParallel": Case(lambda: nn.DataParallel(TiedLanguageModel()), _TIED, 60),
    "DistributedDataParallel": Case(distributed, _TIED, 60),
    "torch.compile": Case(lambda: torch.compile(TiedLanguageModel(), backend="eager"), _TIED, 60),
    "torch.compile in DataParallel": Case(
        lambda: nn.DataParallel(torch.compile(TiedLanguageModel(), backend="eager")), _TIED, 60
    ),
    "a lazy model": Case(
        LazyModel,
        {
            "lazy.weight": [],
            "lazy.bias": [],
            "norm.weight": [],
            "norm.bias": [],
            "norm.running_mean": [],
            "norm.running_var": [],
            "norm.num_batches_tracked": [],
        },
        0,
        holds_values=False,
    ),
    "a meta model": Case(lambda: TiedLanguageModel("meta"), _TIED, 60, holds_values=False),
    "a state dict of a tied model": Case(lambda: TiedLanguageModel().state_dict(), _TIED_STATE, 60),
    "a state dict with views": Case(
        view_state_dict,
        {
            "attn.qkv": [("attn.q", "view"), ("attn.kv", "view"), ("out.weight", "transpose"), ("column", "view")],
            "other": [],
        },
        51,
    ),
    "a dict of models": Case(
        lambda: {"model": TiedLanguageModel(), "step": 7},
        {f"model.{path}": [(f"model.{other}", op) for other, op in names] for path, names in _TIED.items()},
        60,
    ),
}


def _toy_tied() -> toy.Model:
    table = toy.matrix(10, 4)
    return toy.Model(
        embed=toy.Model(weight=table), block=toy.Model(weight=toy.matrix(4, 4)), head=toy.Model(weight=table)
    )


def _toy_autoencoder() -> toy.Model:
    weight = toy.matrix(3, 6)
    return toy.Model(encoder=toy.Model(weight=weight), decoder=toy.Model(weight=toy.transposed(weight)))


def _toy_fused() -> toy.Model:
    fused = toy.matrix(12, 4)
    return toy.Model(q=toy.rows_of(fused, 0, 4), qkv=fused, kv=toy.rows_of(fused, 4, 12))


def _toy_neighbors() -> toy.Model:
    flat = toy.matrix(12, 1)
    return toy.Model(a=toy.rows_of(flat, 0, 4), b=toy.rows_of(flat, 4, 12))


def _toy_shared() -> toy.Model:
    first = toy.Model(weight=toy.matrix(2, 2), inner=toy.Model(bias=toy.matrix(2, 1)))
    return toy.Model(first=first, second=toy.Model(again=first))


TOY = {
    "a tied toy": Case(_toy_tied, {"embed.weight": [("head.weight", "same")], "block.weight": []}, 56, mutable=False),
    "a transposed toy": Case(
        _toy_autoencoder, {"encoder.weight": [("decoder.weight", "transpose")]}, 18, mutable=False
    ),
    "a fused toy": Case(_toy_fused, {"qkv": [("q", "view"), ("kv", "view")]}, 48, mutable=False),
    "a flat toy": Case(_toy_neighbors, {"a": [], "b": []}, 12, mutable=False),
    "a shared toy": Case(
        _toy_shared,
        {"first.weight": [("second.again.weight", "same")], "first.inner.bias": [("second.again.inner.bias", "same")]},
        6,
        mutable=False,
    ),
    "a toy in a list": Case(
        lambda: [_toy_tied()],
        {"0.embed.weight": [("0.head.weight", "same")], "0.block.weight": []},
        56,
        mutable=False,
    ),
}

# A file of every format, written by the format's own library; removed after the tests.
_FOLDER = TemporaryDirectory()


def _file(name: str) -> Callable[[], StoredFile]:
    def build() -> StoredFile:
        path = Path(_FOLDER.name) / name.replace(" ", "-")
        if not path.exists():
            WRITERS[name](path, arrays())
        return open_file(path)

    return build


def _tied_file() -> StoredFile:
    path = Path(_FOLDER.name) / "tied"
    fused = torch.randn(12, 4)
    torch.save({"step": 3, "model": {"qkv.weight": fused, "q.weight": fused[:4], "out.weight": fused.t()}}, path)
    return open_file(path)


FILES = {
    f"a file of {name}": Case(
        _file(name),
        {str(leaf.path): [] for leaf in lw.tree(_file(name)())},
        sum(value.numel() for value in arrays().values() if value.is_floating_point()),
        mutable=False,
    )
    for name in WRITERS
} | {
    "a file with ties": Case(
        _tied_file,
        {"model.qkv.weight": [("model.q.weight", "view"), ("model.out.weight", "transpose")]},
        48,
        mutable=False,
    ),
}

ALL = TORCH | TOY | FILES
