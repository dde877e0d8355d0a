"""Checkpoints of training libraries for vision and speech: detectron2, mmcv, MMEngine, fairseq, early Lightning."""

import argparse
from collections import OrderedDict
from pathlib import Path

import torch
from tools.checkpoint_kinds.kind import Written, kind, pretended, recorded, saved
from tools.checkpoint_kinds.models import GPT, ResNet, adamw, sgd, trained
from tools.with_timm import torchvision_if_absent
from torch import nn


@kind("detectron2 `model_final.pth`", layout="detectron2")
def detectron2(folder: Path) -> Written:
    model = nn.ModuleDict({"backbone": ResNet(), "roi_heads": nn.ModuleDict({"cls_score": nn.Linear(16, 81)})})
    optimizer = trained(model["backbone"], sgd)
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": {"base_lrs": [0.02], "last_epoch": 90_000},
        "iteration": 89_999,
    }
    path = folder / "model_final.pth"
    return Written(path, saved(content, path), "optimizer")


@kind("Lightning <= 1.4 (Stable Diffusion v1 `.ckpt`)", layout="Lightning 1.4")
def early_lightning(folder: Path) -> Written:
    class ModelCheckpoint:
        """Not an object of it, but the class itself is the key of a callback's state."""

    model = nn.ModuleDict({"model": nn.ModuleDict({"diffusion_model": ResNet()}), "cond_stage_model": GPT()})
    model.register_buffer("betas", torch.linspace(0.00085, 0.012, 1000))
    optimizer = trained(model["cond_stage_model"], adamw)
    state = {
        "monitor": "val/loss_simple_ema",
        "best_model_score": torch.tensor(0.1424),
        "best_model_path": "/runs/checkpoints/epoch=000012.ckpt",
        "current_score": torch.tensor(0.1424),
        "dirpath": "/runs/checkpoints",
    }
    with pretended({"pytorch_lightning.callbacks.model_checkpoint": [ModelCheckpoint]}):
        content = {
            "epoch": 13,
            "global_step": 470_000,
            "pytorch-lightning_version": "1.4.2",
            "state_dict": model.state_dict(),
            "callbacks": {ModelCheckpoint: state},
            "optimizer_states": [optimizer.state_dict()],
            "lr_schedulers": [{"base_lrs": [1e-4], "last_epoch": 470_000, "lr_lambdas": [{}]}],
            "hparams_name": "kwargs",
            "hyper_parameters": {"linear_start": 0.00085, "first_stage_key": "jpg", "unet_config": {"target": "ldm"}},
        }
        path = folder / "sd-v1-4.ckpt"
        return Written(path, saved(content, path), "optimizer_states")


@kind("mmcv 1.x `epoch_N.pth`", tool="mmcv", extra=("mmcv",))
def mmcv_epoch(folder: Path) -> Written:
    with torchvision_if_absent():
        from mmcv.runner import EpochBasedRunner
        from mmcv.utils import get_logger

    class Detector(nn.Module):
        CLASSES = ("person", "bicycle")

        def __init__(self) -> None:
            super().__init__()
            self.backbone = ResNet()

        def train_step(self) -> None: ...

    model = Detector()
    optimizer = trained(model.backbone, sgd)
    meta = {"config": "model = dict(type='FasterRCNN')\n", "seed": 0, "exp_name": "faster_rcnn.py", "env_info": "linux"}
    runner = EpochBasedRunner(
        model, optimizer=optimizer, work_dir=str(folder), logger=get_logger("kinds", log_level="ERROR"), meta=meta
    )
    with recorded() as truths:
        runner.save_checkpoint(str(folder), meta={"CLASSES": model.CLASSES}, create_symlink=False)
    return Written(folder / "epoch_1.pth", truths[0], "optimizer")


@kind("MMEngine Runner `epoch_N.pth` (message_hub)", tool="mmengine", extra=("mmengine",))
def mmengine_epoch(folder: Path) -> Written:
    with torchvision_if_absent():
        from mmengine.model import BaseModel
        from mmengine.runner import Runner

    class Classifier(BaseModel):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.backbone = ResNet()

        def forward(self, inputs: torch.Tensor, mode: str = "loss") -> dict[str, torch.Tensor]:
            return {"loss": self.backbone(inputs).pow(2).mean()}

    data = torch.utils.data.DataLoader([{"inputs": torch.randn(3, 8, 8)} for _ in range(6)], batch_size=2)
    runner = Runner(
        model=Classifier(),
        work_dir=str(folder),
        train_dataloader=data,
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "AdamW", "lr": 1e-3}},
        param_scheduler={"type": "StepLR", "step_size": 1},
        default_scope="mmengine",
        default_hooks={"logger": {"type": "LoggerHook", "interval": 1}},
        experiment_name=f"kinds-{folder.name}",
        log_level="ERROR",
    )
    with recorded() as truths:
        runner.train()
    return Written(folder / "epoch_1.pth", truths[0], "optimizer", ("mmengine.logging.history_buffer.HistoryBuffer",))


# -- fairseq ---------------------------------------------------------------------------------------------------


@kind("fairseq < 0.10 (args Namespace)", layout="fairseq 0.9")
def fairseq_with_args(folder: Path) -> Written:
    class AverageMeter:
        def __init__(self) -> None:
            self.val, self.avg, self.sum, self.count = 2.5, 2.4, torch.tensor(240.0), 100

    class StopwatchMeter:
        def __init__(self) -> None:
            self.sum, self.n, self.start_time = 12.5, 100, None

    model = GPT()
    optimizer = trained(model, adamw)
    with pretended({"fairseq.meters": [AverageMeter, StopwatchMeter]}):
        history = {
            "criterion_name": "LabelSmoothedCrossEntropyCriterion",
            "optimizer_name": "FairseqAdam",
            "lr_scheduler_state": {"best": 4.1},
            "num_updates": 2000,
        }
        content = {
            "args": argparse.Namespace(arch="transformer_lm", lr=[5e-4], adam_betas="(0.9, 0.98)", data="data-bin"),
            "model": model.state_dict(),
            "optimizer_history": [history],
            "extra_state": {
                "train_iterator": {"epoch": 3, "iterations_in_epoch": 0, "shuffle": True},
                "train_meters": OrderedDict(train_loss=AverageMeter(), train_wall=StopwatchMeter()),
                "val_loss": 4.1,
                "best": 4.1,
            },
            "last_optimizer_state": optimizer.state_dict(),
        }
        path = folder / "checkpoint_best.pt"
        opaque = ("fairseq.meters.StopwatchMeter",)
        return Written(path, saved(content, path), "last_optimizer_state", opaque)


@kind("fairseq wav2vec2/HuBERT (task_state Dictionary)", layout="fairseq 0.12")
def hubert(folder: Path) -> Written:
    from omegaconf import OmegaConf

    class Dictionary:
        def __init__(self) -> None:
            self.bos_word, self.unk_word, self.pad_word, self.eos_word = "<s>", "<unk>", "<pad>", "</s>"
            self.symbols = ["<s>", "<pad>", "</s>", "<unk>", *map(str, range(500))]
            self.count = [1] * len(self.symbols)
            self.indices = {symbol: number for number, symbol in enumerate(self.symbols)}
            self.bos_index, self.pad_index, self.eos_index, self.unk_index, self.nspecial = 0, 1, 2, 3, 4

    position = torch.nn.utils.weight_norm(nn.Conv1d(16, 16, 8, padding=4, groups=4), dim=2)
    encoder = nn.ModuleDict({"pos_conv": nn.Sequential(position), "layer_norm": nn.LayerNorm(16)})
    model = nn.ModuleDict({"encoder": encoder, "final_proj": nn.Linear(16, 8)})
    model.register_parameter("label_embs_concat", nn.Parameter(torch.randn(504, 8)))
    cfg = OmegaConf.create({"task": {"_name": "hubert_pretraining", "labels": ["km"]}, "optimizer": {"lr": [5e-4]}})
    with pretended({"fairseq.data.dictionary": [Dictionary]}):
        content = {
            "args": None,
            "cfg": cfg,
            "model": model.state_dict(),
            "criterion": {},
            "optimizer_history": [{"optimizer_name": "FP16Optimizer", "num_updates": 400_000}],
            "task_state": {"dictionaries": [Dictionary()]},
            "extra_state": {"metrics": [(0, "loss", "AverageMeter", {"val": torch.tensor(3.1), "round": 3})]},
            "last_optimizer_state": None,
        }
        path = folder / "hubert_base.pt"
        return Written(path, saved(content, path), opaque=("fairseq.data.dictionary.Dictionary",))
