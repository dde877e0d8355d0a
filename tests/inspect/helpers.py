"""Small models, and short forms of findings and changes, for the tests in this folder."""

from typing import Any

import torch
from torch import nn


def levels_and_codes(findings: Any) -> list[tuple[str, str]]:
    return [(finding.level, finding.code) for finding in findings]


def levels(findings: Any) -> set[str]:
    return {finding.level for finding in findings}


def fresh() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


def kinds(changes: Any) -> dict[str, tuple[str, ...]]:
    return {change.path: change.kinds for change in changes if change.kinds != ("same",)}


def codes(findings: Any) -> list[str]:
    return [finding.code for finding in findings]


def faulty() -> nn.Sequential:
    net = fresh()
    with torch.no_grad():
        net[0].weight[3] = 0
        net[2].bias[0] = float("nan")
    return net


class Tied(nn.Module):
    def __init__(self, width: int = 8, words: int = 20) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.body = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.LayerNorm(width)
        )
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight


def state(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}
