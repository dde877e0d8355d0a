"""Weights of a PyTorch model as other tools store them: by names alone."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn


def as_dict(model: nn.Module, _: Path) -> Any:
    return model.state_dict()


def as_pt(model: nn.Module, folder: Path) -> Any:
    torch.save(model.state_dict(), folder / "model.pt")
    return folder / "model.pt"


def as_safetensors(model: nn.Module, folder: Path) -> Any:
    save_file(model.state_dict(), str(folder / "model.safetensors"))
    return folder / "model.safetensors"
