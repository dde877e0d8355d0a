"""Models and runs that the tests of checkpoints share."""

from typing import Any

import torch
from torch import nn


class Tied(nn.Module):
    """An embedding, a body with buffers, and a head that is tied to the embedding."""

    def __init__(self, tied: bool = True, width: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.norm = nn.BatchNorm1d(width)
        self.body = nn.Linear(width, width)
        self.head = nn.Linear(width, 10, bias=False)
        self.register_buffer("scratch", torch.zeros(3), persistent=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> Any:
        return self.head(self.body(self.norm(self.embed(tokens))))


def run(tied: bool = True, lr: float = 0.01) -> dict[str, Any]:
    model = Tied(tied)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "step": 0, "rng": torch.get_rng_state()}


def train(run: dict[str, Any], steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        tokens = torch.randint(0, 10, (8,))
        run["optimizer"].zero_grad()
        loss = nn.functional.cross_entropy(run["model"](tokens), tokens)
        loss.backward()
        run["optimizer"].step()
        run["scheduler"].step()
        run["step"] += 1
        losses.append(loss.item())
    return losses


def bits(model: nn.Module) -> dict[str, bytes]:
    """Every value of a model, to check whether anything changed."""
    return {name: value.detach().reshape(-1).view(torch.uint8).numpy().tobytes() for name, value in _values(model)}


def _values(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]


def same(a: nn.Module, b: nn.Module) -> bool:
    return bits(a) == bits(b)


def parameters(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        setattr(module, name, nn.Parameter(tensor, requires_grad=tensor.is_floating_point()))
    return module


def buffers(**tensors: torch.Tensor) -> nn.Module:
    module = nn.Module()
    for name, tensor in tensors.items():
        module.register_buffer(name, tensor)
    return module
