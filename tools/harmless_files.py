"""Harmless checkpoints of every kind that contains pickles or programs, drawn at random: `lw.check` must not say that
one of them runs code."""

import argparse
import collections
import datetime
import enum
import pathlib
import pickle
import random
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import torch
from tools import random_pickles
from torch import nn

Write = Callable[[random.Random, Path], Path]
Scan = Callable[[str], tuple[str, str]]
_LAYERS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Linear(3, 4), lambda: nn.Conv2d(2, 3, 3), lambda: nn.LSTM(3, 4, 2), lambda: nn.GRU(3, 4),
    lambda: nn.BatchNorm2d(3), lambda: nn.LayerNorm(4), lambda: nn.Embedding(5, 3), lambda: nn.MultiheadAttention(4, 2),
    lambda: nn.TransformerEncoderLayer(4, 2, 8), lambda: nn.Transformer(4, 2, 1, 1, 8), lambda: nn.PReLU(),
    lambda: nn.GroupNorm(2, 4), lambda: nn.ConvTranspose1d(2, 2, 3), lambda: nn.Bilinear(2, 3, 4),
    lambda: nn.utils.spectral_norm(nn.Linear(3, 4)),
    lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.1)), lambda: nn.ParameterDict({"a": torch.ones(2)}),
    lambda: nn.ModuleList([nn.Linear(2, 2)] * 2), lambda: nn.AdaptiveLogSoftmaxWithLoss(4, 9, [3]),
    lambda: nn.CrossEntropyLoss(torch.ones(3)), lambda: nn.LazyLinear(3),
)  # fmt: skip
# What PyTorch does not pickle as a whole.
_STATE_ONLY = (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)),)
_OPTIMIZERS = ["SGD", "Adam", "AdamW", "Adagrad", "Adadelta", "RMSprop", "NAdam", "RAdam", "Adamax", "ASGD", "Rprop"]


class Color(enum.Enum):
    RED = 1


def _network(rng: random.Random, more: tuple[Callable[[], nn.Module], ...] = ()) -> nn.Module:
    makers = [rng.choice([*_LAYERS, *more]) for _ in range(3)]
    return nn.Sequential(collections.OrderedDict((f"layer{number}", make()) for number, make in enumerate(makers)))


def _stepped(rng: random.Random) -> tuple[nn.Module, Any, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = getattr(torch.optim, rng.choice(_OPTIMIZERS))(model.parameters(), lr=0.01)
    schedules: tuple[Callable[[], Any], ...] = (
        lambda: torch.optim.lr_scheduler.StepLR(optimizer, 2), lambda: torch.optim.lr_scheduler.CosineAnnealingLR(
            optimizer, 5), lambda: torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
    )  # fmt: skip
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return model, optimizer, rng.choice(schedules)()


def _settings(rng: random.Random) -> dict[str, Any]:
    """What people store beside the weights."""
    options: list[tuple[str, Any]] = [
        ("args", argparse.Namespace(lr=0.1, out=pathlib.PurePosixPath("runs"), sizes=(1, 2))),
        ("date", datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC)), ("path", pathlib.Path("runs/a")),
        ("rng", random.getstate()), ("numpy_rng", np.random.get_state()), ("torch_rng", torch.get_rng_state()),
        ("generator", np.random.default_rng(3)), ("counts", collections.Counter("abca")),
        ("groups", collections.defaultdict(list, a=[1])), ("names", collections.deque(["a"], 3)),
        ("dtype", torch.bfloat16), ("device", torch.device("cpu")), ("size", torch.Size([1, 2])),
        ("array", np.arange(3.0)), ("strings", np.array(["a", "b"])), ("scalar", np.float32(3)), ("color", Color.RED),
        ("objects", np.array([None, "a"], dtype=object)), ("records", np.zeros(2, [("a", "f4"), ("b", "i8")])),
        ("set", {1, 2}), ("complex", 1j), ("bytes", b"abc" * 9), ("range", range(3)), ("slice", slice(1, 2)),
        ("sparse", torch.eye(3).to_sparse()), ("scaler", torch.amp.GradScaler("cpu").state_dict()),
        ("buffer", bytearray(b"ab")), ("version", torch.__version__), ("delta", datetime.timedelta(3)),
        ("masked", np.ma.masked_array([1, 2], [True, False])), ("half", torch.ones(2, dtype=torch.float16)),
    ]  # fmt: skip
    return dict(rng.sample(options, rng.randrange(1, 9)))


def _run(rng: random.Random) -> dict[str, Any]:
    model, optimizer, schedule = _stepped(rng)
    states = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict()}
    return {**states, "epoch": rng.randrange(9), **_settings(rng)}


def _lightning(rng: random.Random) -> dict[str, Any]:
    model, optimizer, schedule = _stepped(rng)
    return {
        "epoch": 1, "global_step": 20, "pytorch-lightning_version": "2.5.1", "state_dict": model.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}}}, "callbacks": {"ModelCheckpoint{}": {"best_k_models": {}}},
        "optimizer_states": [optimizer.state_dict()], "lr_schedulers": [schedule.state_dict()],
        "hparams_name": "kwargs", "hyper_parameters": {"lr": 0.1, **_settings(rng)},
    }  # fmt: skip


def _estimator(rng: random.Random) -> dict[str, Any]:
    numbers = np.random.default_rng(rng.randrange(99))
    return {
        "coef_": numbers.normal(size=(3, 4)), "classes_": np.array(["a", "b"]), "n_iter_": np.int64(5),
        "trees": [numbers.integers(9, size=3) for _ in range(3)], "params": {"C": 1.0, "kernel": "rbf"},
        "names": np.array(["a", None], dtype=object), **_settings(rng),
    }  # fmt: skip


def _save(make: Callable[[random.Random], Any], rng: random.Random, path: Path) -> Path:
    path = path.with_suffix(rng.choice([".pt", ".pth", ".bin", ".ckpt"]))
    zipped, protocol = rng.random() < 0.7, rng.choice([2, 2, 3, 4, 5])
    torch.save(make(rng), path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    return path


def _pickle(make: Callable[[random.Random], Any], rng: random.Random, path: Path) -> Path:
    path = path.with_suffix(".pkl")
    path.write_bytes(b"".join(pickle.dumps(make(rng), rng.choice([2, 3, 4, 5])) for _ in range(rng.choice([1, 1, 3]))))
    return path


def _joblib(rng: random.Random, path: Path) -> Path:
    path = path.with_suffix(".joblib")
    joblib.dump(_estimator(rng), path, protocol=rng.choice([2, 3, 4, 5]))
    return path


def _frame(rng: random.Random) -> Any:
    return pd.DataFrame({"a": [1, 2], "b": ["x", "y"], "c": pd.date_range("2026", periods=2)}).head(rng.randrange(3))


def _arrays(rng: random.Random, path: Path) -> Path:
    arrays = {f"a{number}": np.full((2, number), 3, rng.choice(["f4", "i8", "?", ">u2", "c8"])) for number in range(3)}
    arrays["text"] = np.array(["a", "bc"])
    arrays["records"] = np.zeros(2, [("a", "f4"), ("b", "i8", (2,))])
    if rng.random() < 0.3:
        np.save(path.with_suffix(".npy"), rng.choice(list(arrays.values())))
        return path.with_suffix(".npy")
    (np.savez if rng.random() < 0.5 else np.savez_compressed)(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    return path.with_suffix(".npz")


class Counted(nn.Module):
    """A module that restores its state when TorchScript loads it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.steps = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.steps

    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return self.steps, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        self.steps = state[0]
        self.training = state[1]


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, mode: str = "sum") -> torch.Tensor:
        if mode == "save":  # a word that is no call
            x = x + 1
        return self.linear(x)


def _script(rng: random.Random, path: Path) -> Path:
    path = path.with_suffix(".pt")
    makers: list[Callable[[], Any]] = [
        lambda: torch.jit.script(nn.Sequential(nn.Linear(3, 3), nn.ReLU())), lambda: torch.jit.script(nn.LSTM(3, 4)),
        lambda: torch.jit.trace(nn.Linear(3, 3), torch.ones(1, 3)), lambda: torch.jit.script(Gated()),
        lambda: torch.jit.script(nn.BatchNorm1d(3)), lambda: torch.jit.freeze(torch.jit.script(Gated().eval())),
        lambda: torch.jit.script(nn.Embedding(3, 2)), lambda: torch.jit.script(Counted()),
        lambda: torch.jit.script(torch.ao.nn.quantized.dynamic.Linear(3, 3)),
    ]  # fmt: skip
    torch.jit.save(rng.choice(makers)(), str(path))
    return path


def _program(rng: random.Random, path: Path) -> Path:
    path = path.with_suffix(".pt2")
    model: nn.Module = rng.choice([nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 2), nn.ReLU()), nn.LayerNorm(3)])
    shapes = rng.choice([None, ({0: torch.export.Dim("rows", min=2, max=64)},)])
    torch.export.save(torch.export.export(model, (torch.ones(4, 3),), dynamic_shapes=shapes), path)
    return path


def _folder(rng: random.Random, path: Path) -> Path:
    import torch.distributed.checkpoint as dcp

    content = _run(rng)
    content.pop("sparse", None)  # which a distributed checkpoint cannot contain
    dcp.save(content, checkpoint_id=path, no_dist=True)
    return path


def _random(rng: random.Random, path: Path) -> Path:
    seed, number = rng.randrange(1_000_000), rng.randrange(1_000_000)
    return random_pickles.written(seed, number, path.parent).path


# How often each is drawn.
KINDS: dict[str, tuple[int, Write]] = {
    "random pickles": (120, _random),
    "runs of torch": (80, partial(_save, _run)),
    "state dicts": (50, partial(_save, lambda rng: _network(rng, _STATE_ONLY).state_dict())),
    "whole modules": (60, partial(_save, _network)),
    "whole optimizers": (25, partial(_save, lambda rng: _stepped(rng)[1])),
    "checkpoints of Lightning": (30, partial(_save, _lightning)),
    "pickles": (40, partial(_pickle, _estimator)),
    "pickles of tensors": (20, partial(_pickle, _run)),
    "pickles of pandas": (10, partial(_pickle, _frame)),
    "joblib": (35, _joblib),
    "NumPy": (20, _arrays),
    "TorchScript": (25, _script),
    "distributed checkpoints": (10, _folder),
    "torch.export": (5, _program),
}


def write(seed: int, count: int, folder: Path) -> Iterator[tuple[str, Path]]:
    """Writes files, each when it is asked for: its kind, and its path."""
    weights = [share for share, _ in KINDS.values()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(count):
            rng = random.Random(f"{seed} {number}")
            torch.manual_seed(rng.randrange(1_000_000))
            [kind] = rng.choices(list(KINDS), weights)
            (folder / str(number)).mkdir()
            yield kind, KINDS[kind][1](rng, folder / str(number) / f"file{number}")


def scan(seed: int, count: int, scanned: Scan) -> list[tuple[str, str, str]]:
    """Writes files, and returns for each its kind, and what `scanned` says about it."""
    found = []
    with tempfile.TemporaryDirectory(prefix="harmless") as folder:
        for number, (kind, path) in enumerate(write(seed, count, Path(folder))):
            result, why = scanned(str(path))
            found.append((kind, result, why))
            if result in ("error", "crashed"):
                print(f"false alarm: {kind}, seed {seed}, file {number}: {why}", file=sys.stderr)
    return found
