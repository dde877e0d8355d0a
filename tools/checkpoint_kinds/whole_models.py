"""Checkpoints that contain pickled models, with their classes."""

import datetime
import math
import os
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import torch
from tools.checkpoint_kinds.kind import Written, kind, pretended, recorded, saved
from tools.checkpoint_kinds.models import GPT, BasicBlock, ResNet, adamw
from torch import nn


@kind("`torch.save(model)`", tool="torch")
def whole_model(folder: Path) -> Written:
    class Net(nn.Module):
        """With the things that models of users have: a tie, a loss, a list, a function, a buffer that is not saved."""

        def __init__(self) -> None:
            super().__init__()
            self.gpt = GPT()
            self.encoder = nn.TransformerEncoderLayer(16, 2, 32)
            self.rnn = nn.LSTM(4, 5, batch_first=True)
            self.loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0]))
            self.act = torch.nn.functional.gelu
            self.sizes = [4, 5]
            self.anchors = [torch.arange(3), {"grid": torch.ones(2, 2)}]
            self.register_buffer("mask", torch.ones(4, 4).tril(), persistent=False)
            self.register_parameter("bias", None)

    with pretended({"__main__": [Net]}):
        model = Net().eval()
        path = folder / "model.pth"
        return Written(path, saved(model, path))


@kind("`torch.save(model)` of a torchvision ResNet", layout="torchvision")
def torchvision_model(folder: Path) -> Written:
    with pretended({"torchvision.models.resnet": [ResNet, BasicBlock]}):
        path = folder / "resnet18.pth"
        return Written(path, saved(ResNet(), path))


@kind("YOLOv5 `.pt` (whole model)", layout="YOLOv5")
def yolov5(folder: Path) -> Written:
    class Conv(nn.Module):
        default_act = nn.SiLU()

        def __init__(self, c1: int, c2: int, k: int = 1, s: int = 1) -> None:
            super().__init__()
            self.conv = nn.Conv2d(c1, c2, k, s, k // 2, bias=False)
            self.bn = nn.BatchNorm2d(c2)
            self.act = self.default_act

    class Concat(nn.Module):
        def __init__(self, dimension: int = 1) -> None:
            super().__init__()
            self.d = dimension

    class Detect(nn.Module):
        def __init__(self, nc: int, channels: list[int]) -> None:
            super().__init__()
            self.nc, self.nl, self.na = nc, len(channels), 3
            self.grid = [torch.empty(0) for _ in channels]
            self.anchor_grid = [torch.empty(0) for _ in channels]
            self.register_buffer("anchors", torch.rand(self.nl, self.na, 2))
            self.m = nn.ModuleList(nn.Conv2d(c, (nc + 5) * self.na, 1) for c in channels)
            self.stride = torch.tensor([8.0, 16.0])

    class DetectionModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [
                Conv(3, 8, 6, 2),
                Conv(8, 16, 3, 2),
                nn.Upsample(None, 2, "nearest"),
                Concat(),
                Detect(2, [8, 16]),
            ]
            for number, layer in enumerate(layers):
                layer.i, layer.f, layer.type = number, -1, f"models.{type(layer).__name__}"
                layer.np = sum(parameter.numel() for parameter in layer.parameters())
            self.model = nn.Sequential(*layers)
            self.save = [1, 3]
            self.yaml = {"nc": 2, "depth_multiple": 0.33, "anchors": [[10, 13, 16, 30]], "backbone": [[-1, 1, "Conv"]]}
            self.names = {0: "person", 1: "bicycle"}
            self.stride = layers[-1].stride  # the same tensor
            self.inplace, self.hyp, self.nc = True, {"lr0": 0.01, "box": 0.05}, 2

    modules = {"models.common": [Conv, Concat], "models.yolo": [Detect, DetectionModel]}
    with pretended(modules):
        content = {
            "epoch": -1,
            "best_fitness": None,
            "model": DetectionModel().half(),
            "ema": None,
            "updates": None,
            "optimizer": None,
            "opt": None,
            "git": {"branch": None, "commit": None, "origin": None},
            "date": datetime.datetime(2022, 11, 22, 9, 30).isoformat(),
        }
        path = folder / "yolov5n.pt"
        return Written(path, saved(content, path))


@kind("ultralytics YOLO `.pt` (whole model)", tool="ultralytics", extra=("ultralytics",))
def ultralytics_yolo(folder: Path) -> Written:
    """The checkpoint that its trainer writes after an epoch. Training needs data, but `save_model` itself does not."""
    os.environ["YOLO_CONFIG_DIR"] = str(folder)  # it writes its settings when it is imported
    version = metadata.version
    metadata.version = lambda name: "0.0" if name == "torchvision" else version(name)  # asked for, and not needed
    try:
        from ultralytics.cfg import get_cfg
        from ultralytics.engine.trainer import BaseTrainer
        from ultralytics.nn.tasks import DetectionModel
        from ultralytics.utils.torch_utils import ModelEMA
    finally:
        metadata.version = version
    model = DetectionModel("yolov8n.yaml", nc=3, verbose=False)
    model.args = get_cfg()
    model.names = {0: "cat", 1: "dog", 2: "kangaroo"}
    average = ModelEMA(model)
    optimizer = adamw(model.parameters())
    trainer = SimpleNamespace(
        model=model,
        ema=average,
        optimizer=optimizer,
        epoch=3,
        best_fitness=0.5,
        fitness=0.5,
        stopper=SimpleNamespace(best_fitness=0.5, best_epoch=3),
        scaler=torch.amp.GradScaler("cpu"),
        args=get_cfg(),
        metrics={"metrics/mAP50(B)": 0.5},
        read_results_csv=lambda: {"epoch": [1, 2, 3], "time": [1.5, 3.0, math.nan]},
        wdir=folder,
        last=folder / "last.pt",
        best=folder / "best.pt",
        save_period=-1,
    )
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    average.update(model)
    with recorded() as truths:
        BaseTrainer.save_model(trainer)
    return Written(folder / "best.pt", truths[0], "optimizer")
