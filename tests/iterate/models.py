"""Small models for the tests in this folder."""

from typing import Any

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        y = self.norm1(x)
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        x = x + self.attention(y, y, y, attn_mask=mask, need_weights=False)[0]
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    """A small transformer whose head is tied to its embedding."""

    def __init__(self, vocab: int = 17, width: int = 8, layers: int = 3, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def batch(step: int, vocab: int = 17) -> Any:
    generator = torch.Generator().manual_seed(step)
    return torch.randint(vocab, (4, 9), generator=generator)


def loss_of(model: nn.Module, tokens: Any) -> Any:
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
