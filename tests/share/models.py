"""Models with ties, and helper functions for tests of ties."""

import warnings
from typing import Any

import torch
from tools.tie_table import Architecture, Autoencoder, LanguageModel
from torch import nn

import leafwise as lw


def tied_by_hand() -> Any:
    model = LanguageModel()
    model.head.weight = model.embed.weight
    return model


def tied_language_model() -> Any:
    return lw.tie(LanguageModel(), "head.weight", to="embed.weight", keep="source")


def tied_autoencoder() -> Any:
    return lw.tie(Autoencoder(), "decoder.weight", to="encoder.weight", transpose=True, keep="source")


def cloned_state(model: nn.Module) -> dict[str, Any]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def undone_names(model: nn.Module) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.TieWarning)
        return [str(one.path) for one in lw.tree(model).undone]


class Parts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.src = nn.Linear(4, 4, bias=False)
        self.part = nn.ModuleDict({name: nn.Linear(4, 4, bias=False) for name in "ab"})


def tied(architecture: Architecture) -> Any:
    torch.manual_seed(0)
    return architecture.by_leafwise(architecture.build())


def facts(model: nn.Module) -> list[Any]:
    return [[(str(name.path), name.op, name.op.describe()) for name in tie.names] for tie in lw.ties(model)]


def names(model: Any) -> list[list[str]]:
    return [[str(name.path) + name.op.describe() for name in tie.names] for tie in lw.ties(model)]


def view_model() -> tuple[Any, torch.Tensor]:
    torch.manual_seed(0)
    model = tied_autoencoder()
    return model, torch.randn(5, 4)
