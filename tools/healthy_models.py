"""Healthy models, for which no rule of `lw.check` may report an error or a warning.

Fresh layers of every type in torch.nn, trained small models, and architectures of transformers, built small from their
configs. Nothing is downloaded.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from tools.architectures import models
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations


class Healthy(NamedTuple):
    """A model, its optimizer, and a copy from before training, if it was trained."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer | None = None
    before: nn.Module | None = None


# -- fresh layers ----------------------------------------------------------------------------------------------


def _encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "Linear": lambda: nn.Linear(32, 48),
    "Bilinear": lambda: nn.Bilinear(16, 12, 20),
    "Conv1d": lambda: nn.Conv1d(16, 32, 5),
    "Conv2d": lambda: nn.Conv2d(16, 32, 3),
    "Conv3d": lambda: nn.Conv3d(8, 16, 3),
    "ConvTranspose1d": lambda: nn.ConvTranspose1d(16, 32, 5),
    "ConvTranspose2d": lambda: nn.ConvTranspose2d(16, 32, 3),
    "ConvTranspose3d": lambda: nn.ConvTranspose3d(8, 16, 3),
    "LazyLinear": lambda: nn.LazyLinear(8),
    "LazyConv1d": lambda: nn.LazyConv1d(8, 3),
    "LazyConv2d": lambda: nn.LazyConv2d(8, 3),
    "LazyConv3d": lambda: nn.LazyConv3d(8, 3),
    "LazyConvTranspose1d": lambda: nn.LazyConvTranspose1d(8, 3),
    "LazyConvTranspose2d": lambda: nn.LazyConvTranspose2d(8, 3),
    "LazyConvTranspose3d": lambda: nn.LazyConvTranspose3d(8, 3),
    "BatchNorm1d": lambda: nn.BatchNorm1d(16),
    "BatchNorm2d": lambda: nn.BatchNorm2d(16),
    "BatchNorm3d": lambda: nn.BatchNorm3d(16),
    "SyncBatchNorm": lambda: nn.SyncBatchNorm(16),
    "LazyBatchNorm1d": lambda: nn.LazyBatchNorm1d(),
    "LazyBatchNorm2d": lambda: nn.LazyBatchNorm2d(),
    "LazyBatchNorm3d": lambda: nn.LazyBatchNorm3d(),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(16, affine=True, track_running_stats=True),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(16, affine=True, track_running_stats=True),
    "InstanceNorm3d": lambda: nn.InstanceNorm3d(16, affine=True, track_running_stats=True),
    "LazyInstanceNorm1d": lambda: nn.LazyInstanceNorm1d(affine=True),
    "LazyInstanceNorm2d": lambda: nn.LazyInstanceNorm2d(affine=True),
    "LazyInstanceNorm3d": lambda: nn.LazyInstanceNorm3d(affine=True),
    "GroupNorm": lambda: nn.GroupNorm(4, 16),
    "LayerNorm": lambda: nn.LayerNorm((8, 16)),
    "RMSNorm": lambda: nn.RMSNorm((8, 16)),
    "Embedding": lambda: nn.Embedding(50, 16, padding_idx=0),
    "EmbeddingBag": lambda: nn.EmbeddingBag(50, 16, padding_idx=3),
    "RNN": lambda: nn.RNN(16, 24, 2, bidirectional=True),
    "LSTM": lambda: nn.LSTM(16, 24, 2, proj_size=8),
    "GRU": lambda: nn.GRU(16, 24, 2),
    "RNNBase": lambda: nn.RNNBase("GRU", 16, 24),
    "RNNCell": lambda: nn.RNNCell(16, 24),
    "RNNCellBase": lambda: nn.RNNCellBase(16, 24, bias=True, num_chunks=4),
    "LSTMCell": lambda: nn.LSTMCell(16, 24),
    "GRUCell": lambda: nn.GRUCell(16, 24),
    "MultiheadAttention": lambda: nn.MultiheadAttention(32, 4, kdim=16, vdim=24, add_bias_kv=True),
    "TransformerEncoderLayer": _encoder_layer,
    "TransformerEncoder": lambda: nn.TransformerEncoder(_encoder_layer(), 3),
    "TransformerDecoderLayer": lambda: nn.TransformerDecoderLayer(32, 4, 64),
    "TransformerDecoder": lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64), 2),
    "Transformer": lambda: nn.Transformer(32, 4, 2, 2, 64),
    "PReLU": lambda: nn.PReLU(8),
    "AdaptiveLogSoftmaxWithLoss": lambda: nn.AdaptiveLogSoftmaxWithLoss(32, 200, [20, 60]),
}
# More cases worth checking: narrow layers, groups, parametrizations and initializers.
VARIANTS: dict[str, Callable[[], nn.Module]] = {
    "Linear, one input": lambda: nn.Linear(1, 64),
    "Linear, one output": lambda: nn.Linear(64, 1),
    "Linear, two inputs": lambda: nn.Linear(2, 64),
    "Linear, wide": lambda: nn.Linear(1024, 1024),
    "Conv2d, depthwise": lambda: nn.Conv2d(64, 64, 3, groups=64),
    "Conv2d, pointwise": lambda: nn.Conv2d(64, 64, 1),
    "Conv1d, one channel": lambda: nn.Conv1d(1, 32, 3),
    "Embedding, large": lambda: nn.Embedding(5000, 32),
    "Linear, weight norm": lambda: parametrizations.weight_norm(nn.Linear(32, 32)),
    "Linear, spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(32, 32)),
    "Linear, orthogonal": lambda: parametrizations.orthogonal(nn.Linear(32, 32)),
    "Linear, xavier": lambda: _init(nn.init.xavier_uniform_),
    "Linear, kaiming": lambda: _init(nn.init.kaiming_normal_),
    "Linear, orthogonal_": lambda: _init(nn.init.orthogonal_),
    "Linear, trunc_normal_": lambda: _init(lambda weight: nn.init.trunc_normal_(weight, std=0.02)),
    "Linear, eye_": lambda: _init(nn.init.eye_),
    "Linear, zeros_": lambda: _init(nn.init.zeros_),
    "Linear, sparse_": lambda: _init(lambda weight: nn.init.sparse_(weight, 0.5)),
    "residual, zero scale": lambda: _zero_scale(),
}


def _init(how: Callable[[torch.Tensor], Any]) -> nn.Module:
    layer = nn.Linear(64, 64)
    how(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _zero_scale() -> nn.Module:
    block = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))
    nn.init.zeros_(block[4].weight)
    return block


def layers(seed: int = 0) -> Iterator[Healthy]:
    """Fresh layers, in two precisions."""
    for name, build in {**LAYERS, **VARIANTS}.items():
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(seed + len(name))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = build().to(dtype)
                optimizer = None if name.startswith("Lazy") else torch.optim.AdamW(model.parameters())
            yield Healthy(f"{name} {str(dtype).removeprefix('torch.')}", model, optimizer)


# -- trained models ----------------------------------------------------------------------------------------------


class Autoencoder(nn.Module):
    """The decoder uses the transposed weight of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(32, 12), nn.Parameter(torch.zeros(32))

    def forward(self, x: Any) -> Any:
        return functional.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T, self.bias)


class Words(nn.Module):
    """A small transformer over tokens, with its head tied to its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2)
        self.head = nn.Linear(32, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Any) -> Any:
        return self.head(self.blocks(self.embed(tokens))).mean(1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn, self.out = nn.Embedding(20, 16), nn.LSTM(16, 24, batch_first=True), nn.Linear(24, 5)

    def forward(self, tokens: Any) -> Any:
        return self.out(self.rnn(self.embed(tokens))[0][:, -1])


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2))


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4),
    )  # fmt: skip


def _points(_: Any) -> tuple[Any, Any]:
    x = torch.randn(128, 2)
    return x, (x[:, 0] * x[:, 1] > 0).long()


def _images(_: Any) -> tuple[Any, Any]:
    y = torch.randint(4, (32,))
    x = torch.randn(32, 1, 10, 10) * 0.3
    x[:, 0, 4] += (y[:, None] - 1.5) * torch.linspace(-1, 1, 10)
    return x, y


def _vectors(_: Any) -> tuple[Any, Any]:
    x = torch.randn(64, 8) @ torch.linspace(-1, 1, 8 * 32).view(8, 32).sin()
    return x, x


def _tokens(size: int, classes: int) -> Callable[[Any], tuple[Any, Any]]:
    def batch(_: Any) -> tuple[Any, Any]:
        tokens = torch.randint(size, (64, 8))
        return tokens, tokens.sum(1) % classes

    return batch


TRAINED: dict[str, tuple[Callable[[], nn.Module], Callable[[Any], tuple[Any, Any]]]] = {
    "MLP on points": (_mlp, _points),
    "convolutions with batch norm": (_convolutional, _images),
    "transposed autoencoder": (Autoencoder, _vectors),
    "transformer, tied head": (Words, _tokens(40, 40)),
    "LSTM": (Recurrent, _tokens(20, 5)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, weight_decay=0.1),
}


def trained(steps: int = 150, seed: int = 1) -> Iterator[Healthy]:
    """Small models after some training steps, with the gradients of the last step."""
    for name, (build, batch) in TRAINED.items():
        for how, make in OPTIMIZERS.items():
            torch.manual_seed(seed)
            model = build()
            before = copy.deepcopy(model)
            optimizer = make(model.parameters())
            for step in range(steps):
                x, y = batch(step)
                found = model(x)
                loss = functional.cross_entropy(found, y) if y.dtype == torch.long else functional.mse_loss(found, y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            yield Healthy(f"{name}, {how}", model, optimizer, before)


# -- architectures -----------------------------------------------------------------------------------------------


def architecture(name: str, seed: int | None = None) -> Iterator[Healthy]:
    """An architecture of transformers, built small: fresh, in bfloat16, and after a step that changes every parameter.
    Nothing if it cannot be built."""
    for model in models(name, seed=seed):
        yield Healthy(name, model, torch.optim.AdamW(model.parameters()))
        yield Healthy(f"{name}, bfloat16", copy.deepcopy(model).to(torch.bfloat16))
        yield _stepped(name, model)


def _stepped(name: str, model: nn.Module) -> Healthy:
    before = copy.deepcopy(model)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-4)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter) * 1e-3
    optimizer.step()
    return Healthy(f"{name}, stepped", model, optimizer, before)
