"""Checkpoints of training scripts: dicts of state dicts, with plain values and objects beside them."""

import argparse
import datetime
import io
import random
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from tools.checkpoint_kinds.kind import Written, kind, pretended, recorded, saved
from tools.checkpoint_kinds.models import GPT, ResNet, adamw, sgd, trained
from tools.with_timm import import_timm
from torch import nn


@kind("nanoGPT `ckpt.pt`", layout="nanoGPT's train.py")
def nanogpt(folder: Path) -> Written:
    model = GPT()
    optimizer = trained(model, adamw)
    config = {"out_dir": "out", "eval_interval": 2000, "dataset": "openwebtext", "dtype": "bfloat16", "compile": True}
    content = {
        "model": torch.compile(model).state_dict(),  # with the prefix _orig_mod
        "optimizer": optimizer.state_dict(),
        "model_args": {"n_layer": 2, "n_head": 1, "n_embd": 16, "block_size": 8, "bias": True, "vocab_size": 61},
        "iter_num": 2000,
        "best_val_loss": torch.tensor(3.2871),
        "config": config,
    }
    path = folder / "ckpt.pt"
    return Written(path, saved(content, path), "optimizer")


@kind("timm `train.py`", tool="timm")
def timm_train(folder: Path) -> Written:
    timm = import_timm()
    from timm.utils import CheckpointSaver, ModelEmaV3, NativeScaler

    model = timm.create_model("test_vit", num_classes=7)
    optimizer = adamw(model.parameters())
    model(torch.randn(1, 3, 160, 160)).sum().backward()
    optimizer.step()
    args = argparse.Namespace(model="test_vit", lr=1e-3, opt="adamw", aa=None, mean=(0.5, 0.5, 0.5), dataset="wds")
    saver = CheckpointSaver(
        model, optimizer, args, ModelEmaV3(model), NativeScaler("cpu"), checkpoint_dir=folder, recovery_dir=folder
    )
    with recorded() as truths:
        saver.save_checkpoint(4, metric=71.2)
    return Written(folder / "checkpoint-4.pth.tar", truths[0], "optimizer")


@kind("torchvision references", layout="torchvision's reference scripts")
def torchvision_references(folder: Path) -> Written:
    model = ResNet()
    optimizer = trained(model, sgd)
    average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    average.update_parameters(model)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.01, total_iters=5),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=595, eta_min=0.0),
        ],
        [5],
    )
    args = argparse.Namespace(data_path="/data", model="resnet18", device="cuda", epochs=600, gpu=0, weights=None)
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "lr_scheduler": scheduler.state_dict(),
        "epoch": 17,
        "args": args,
        "model_ema": average.state_dict(),
        "scaler": torch.amp.GradScaler("cpu").state_dict(),
    }
    path = folder / "model_17.pth"
    return Written(path, saved(content, path), "optimizer")


@kind("pytorch imagenet example", layout="pytorch/examples")
def imagenet_example(folder: Path) -> Written:
    model = ResNet()
    optimizer = trained(model, sgd)
    content = {
        "epoch": 30,
        "arch": "resnet18",
        "state_dict": nn.DataParallel(model).state_dict(),  # with the prefix module
        "best_acc1": torch.tensor(69.8),
        "optimizer": optimizer.state_dict(),
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, step_size=30).state_dict(),
    }
    path = folder / "checkpoint.pth.tar"
    return Written(path, saved(content, path), "optimizer")


# -- values beside the model ------------------------------------------------------------------------------------

ACTIONS, WORDS = 2_000_000, 600_000  # as many as the names of the kinds say; the tests that are run often use fewer


@kind("replay buffer, 2M ints", tool="torch")
def replay_buffer(folder: Path) -> Written:
    model = nn.Linear(4, 2)
    draw = random.Random(0)
    replay = {
        "actions": draw.choices(range(-5, 70_000), k=ACTIONS),
        "rewards": np.linspace(-1, 1, 1000),
        "position": 12_345,
    }
    path = folder / "agent.pt"
    return Written(path, saved({"policy": model.state_dict(), "replay": replay}, path))


def _words() -> list[str]:
    return [f"word{number:x}" for number in range(WORDS)]


@kind("vocab of 600k words", tool="torch")
def vocabulary(folder: Path) -> Written:
    stoi = {word: number for number, word in enumerate(_words())}
    path = folder / "model.pt"
    return Written(path, saved({"model": nn.Embedding(32, 4).state_dict(), "vocab": stoi}, path))


@kind("vocab of 600k words both ways", tool="torch")
def vocabulary_both_ways(folder: Path) -> Written:
    itos = dict(enumerate(_words()))
    stoi = {word: number for number, word in itos.items()}
    path = folder / "model.pt"
    return Written(path, saved({"model": nn.Embedding(32, 4).state_dict(), "stoi": stoi, "itos": itos}, path))


@kind("dict with a NumPy array of text", tool="torch")
def text_array(folder: Path) -> Written:
    content = {
        "model": ResNet().state_dict(),
        "classes": np.array(["cat", "dog", "kangaroo"]),
        "files": np.array(["a.png", "b.png"], dtype=object),
        "mean": np.array([0.485, 0.456, 0.406]),
        "best": np.float64(0.91),
        "name": np.str_("resnet"),
    }
    path = folder / "model.pt"
    return Written(path, saved(content, path))


@kind("checkpoint with datetime", tool="torch")
def with_datetime(folder: Path) -> Written:
    model = ResNet()
    optimizer = trained(model, adamw)
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "saved_at": datetime.datetime(2026, 11, 17, 12, 30, tzinfo=datetime.UTC),
        "took": datetime.timedelta(minutes=95),
    }
    path = folder / "model.pt"
    opaque = ("datetime.datetime", "datetime.timedelta")
    return Written(path, saved(content, path), "optimizer", opaque)


@kind("SAM-like plain state dict", layout="segment-anything")
def segment_anything(folder: Path) -> Written:
    block = nn.ModuleDict({"norm1": nn.LayerNorm(16), "attn": nn.ModuleDict({"qkv": nn.Linear(16, 48)})})
    encoder = nn.ModuleDict({"patch_embed": nn.ModuleDict({"proj": nn.Conv2d(3, 16, 4, 4)})})
    encoder["blocks"] = nn.ModuleList([block])
    encoder.register_parameter("pos_embed", nn.Parameter(torch.randn(1, 4, 4, 16)))
    prompt = nn.ModuleDict({"point_embeddings": nn.ModuleList(nn.Embedding(1, 16) for _ in range(4))})
    prompt["pe_layer"] = nn.Module()
    prompt["pe_layer"].register_buffer("positional_encoding_gaussian_matrix", torch.randn(2, 8))
    decoder = nn.ModuleDict({"iou_token": nn.Embedding(1, 16), "output_upscaling": nn.ConvTranspose2d(16, 4, 2, 2)})
    model = nn.ModuleDict({"image_encoder": encoder, "prompt_encoder": prompt, "mask_decoder": decoder})
    path = folder / "sam_vit_b.pth"
    return Written(path, saved(model.state_dict(), path))


@kind("legacy (torch < 1.6)", tool="torch")
def legacy(folder: Path) -> Written:
    model = GPT()
    optimizer = trained(model, adamw)
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}
    path = folder / "model.pth"
    return Written(path, saved(content, path, _use_new_zipfile_serialization=False), "optimizer")


@kind("optimizer state in a defaultdict(dict) (Lookahead etc.)", tool="pytorch_optimizer")
def lookahead(folder: Path) -> Written:
    from pytorch_optimizer import AdamP, Lookahead

    model = ResNet()
    optimizer = trained(model, lambda parameters: Lookahead(AdamP(parameters), k=1))
    slow: dict[int, dict[str, torch.Tensor]] = defaultdict(dict)  # as the first implementations keep it
    for number, parameter in enumerate(model.parameters()):
        slow[number]["slow_buffer"] = parameter.detach().clone()
    content = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "slow_state": slow}
    path = folder / "model.pt"
    return Written(path, saved(content, path), "optimizer")


# -- values inside a state dict ------------------------------------------------------------------------------------


def _with_extra_state(extra: object) -> dict[str, object]:
    class Linear(nn.Linear):
        def get_extra_state(self) -> object:
            return extra

    with pretended({"transformer_engine.pytorch.module.linear": [Linear]}):
        model = nn.ModuleDict({"layer_0": Linear(8, 8), "norm": nn.LayerNorm(8)})
        return model.state_dict()


def _fp8_state() -> bytes:
    stream = io.BytesIO()
    torch.save({"scale_fwd": torch.ones(3), "amax_history_fwd": torch.zeros(16, 3), "recipe": "delayed"}, stream)
    return stream.getvalue()


@kind("TransformerEngine `_extra_state` (io.BytesIO)", layout="TransformerEngine 1")
def extra_state_stream(folder: Path) -> Written:
    path = folder / "model.pt"
    content = _with_extra_state(io.BytesIO(_fp8_state()))
    return Written(path, saved(content, path), opaque=("_io.BytesIO",))


@kind("TransformerEngine `_extra_state` (uint8 tensor)", layout="TransformerEngine 2")
def extra_state_tensor(folder: Path) -> Written:
    path = folder / "model.pt"
    extra = torch.frombuffer(bytearray(_fp8_state()), dtype=torch.uint8)
    return Written(path, saved(_with_extra_state(extra), path))
