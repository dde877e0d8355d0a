"""Checkpoints of Lightning, with the kinds of hyperparameters that people pass to `save_hyperparameters`."""

import argparse
import dataclasses
import datetime
import decimal
import enum
import functools
import logging
import operator
import pathlib
import types
import uuid
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tools.checkpoint_kinds.kind import Kind, Written, kind, pretended, recorded
from tools.checkpoint_kinds.models import ResNet, adamw
from torch import nn


def run(folder: Path, value: Any, opaque: tuple[str, ...] = ()) -> Written:
    """Trains for two steps with Lightning, with a hyperparameter of this value, and saves a checkpoint."""
    import lightning

    class Classifier(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self, value: Any, lr: float = 1e-3) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = ResNet()

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            return self.net(batch).pow(2).mean()

        def configure_optimizers(self) -> Any:
            return adamw(self.parameters())

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_steps=2,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=True,
            default_root_dir=folder,
        )
        data = torch.utils.data.DataLoader(torch.randn(4, 3, 8, 8), batch_size=2)
        trainer.fit(Classifier(value), data)
        path = folder / "last.ckpt"
        with recorded() as truths:
            trainer.save_checkpoint(path)
    return Written(path, truths[0], "optimizer_states", opaque)


@kind("Lightning hparams AttributeDict", tool="lightning")
def attribute_dict(folder: Path) -> Written:
    from lightning.fabric.utilities.data import AttributeDict

    return run(folder, AttributeDict(width=8, encoder=AttributeDict(depth=2, dropout=0.1)))


# -- hyperparameters -------------------------------------------------------------------------------------------------


class Schedule(enum.Enum):
    COSINE = "cosine"


class Precision(enum.IntEnum):
    HALF = 16


@dataclasses.dataclass
class EncoderConfig:
    width: int = 64
    rates: list[float] = dataclasses.field(default_factory=lambda: [0.1, 0.2])


class Scaler:
    """A callable object, as people use in the place of a lambda."""

    def __init__(self) -> None:
        self.factor = 2.0

    def __call__(self, x: float) -> float:
        return x * self.factor


def _omegaconf() -> Any:
    from omegaconf import OmegaConf

    return OmegaConf.create({"model": {"width": 64, "name": "${kind}"}, "kind": "vit", "betas": [0.9, 0.95]})


# Name → a function that makes the value, and the classes that leafwise must list as not loaded.
VALUES: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "datetime": (lambda: datetime.datetime(2026, 11, 17, 9, tzinfo=datetime.UTC), ("datetime.datetime",)),
    "date and timedelta": (
        lambda: [datetime.date(2026, 11, 17), datetime.timedelta(hours=2)],
        ("datetime.date", "datetime.timedelta"),
    ),
    "enum": (lambda: Schedule.COSINE, ("train.Schedule",)),
    "IntEnum": (lambda: Precision.HALF, ("train.Precision",)),
    "dataclass": (EncoderConfig, ("train.EncoderConfig",)),
    "OmegaConf": (_omegaconf, ("omegaconf.dictconfig.DictConfig",)),
    "functools.partial": (lambda: functools.partial(torch.optim.AdamW, lr=1e-3), ("functools.partial",)),
    "nested list of partials": (
        lambda: {"blocks": [[functools.partial(nn.Linear, 4, 8)], [functools.partial(nn.GELU, approximate="tanh")]]},
        ("functools.partial",),
    ),
    "pathlib.Path": (lambda: {"data": pathlib.PurePosixPath("/data/imagenet"), "out": pathlib.Path("runs")}, ()),
    "argparse.Namespace": (lambda: argparse.Namespace(lr=0.1, layers=[2, 2], nested=argparse.Namespace(a=1)), ()),
    "SimpleNamespace": (lambda: types.SimpleNamespace(lr=0.1, layers=[2, 2]), ()),
    "NumPy scalar and text": (lambda: [np.float32(0.5), np.int64(3), np.str_("vit"), np.bool_(True)], ()),
    "NumPy generator": (lambda: np.random.default_rng(0), ()),
    "deque": (lambda: deque([1.0, 2.0], maxlen=5), ()),
    "set of tuples": (lambda: {(0, 1), (2, 3)}, ()),
    "defaultdict(int)": (lambda: defaultdict(int, {"cat": 3}), ()),
    "loss module": (lambda: nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]), label_smoothing=0.1), ()),
    "activation class": (lambda: {"act": nn.GELU, "norm": nn.LayerNorm}, ()),
    "function": (lambda: [torch.nn.functional.relu, operator.itemgetter(1)], ()),
    "callable object": (Scaler, ("train.Scaler",)),
    "torch.dtype, device, Size": (lambda: [torch.bfloat16, torch.device("cuda", 1), torch.Size([2, 3])], ()),
    "Decimal": (lambda: decimal.Decimal("0.1"), ("decimal.Decimal",)),
    "UUID": (lambda: uuid.UUID(int=7), ("uuid.UUID",)),
    "range, slice, complex, bytes": (lambda: [range(3), slice(1, 5, 2), 1 + 2j, b"\x00\xff", bytearray(b"ab")], ()),
}


def hyperparameter(folder: Path, name: str) -> Written:
    make, opaque = VALUES[name]
    with pretended({"train": [Schedule, Precision, EncoderConfig, Scaler]}):
        return run(folder, make(), opaque)


HYPERPARAMETERS = [Kind(name, "lightning", "", (), functools.partial(hyperparameter, name=name)) for name in VALUES]
