"""Both versions of weight norm load each other's checkpoints."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import leafwise as lw


def by_hook(layer: nn.Module, **options: Any) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(layer, **options)


by_parametrization = parametrizations.weight_norm
VERSIONS = {"hook": by_hook, "parametrization": by_parametrization}
Norm = Callable[..., nn.Module]


def build(norm: Norm) -> nn.Sequential:
    return nn.Sequential(norm(nn.Conv1d(2, 3, 3)), nn.ReLU(), norm(nn.Linear(4, 4), dim=None), nn.Linear(4, 2))


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("theirs", VERSIONS)
@pytest.mark.parametrize("ours", VERSIONS)
def test_the_layers_compute_the_same(ours: str, theirs: str, prefix: str) -> None:
    source, model = build(VERSIONS[theirs]), build(VERSIONS[ours])
    state = {prefix + name: value for name, value in source.state_dict().items()}
    plan = lw.plan(model, state)
    assert plan.library == ("" if ours == theirs else "PyTorch's other weight norm")
    lw.load(model, state)
    x = torch.randn(1, 2, 6)
    assert torch.equal(source(x), model(x))


def test_the_plan_shows_the_stored_names() -> None:
    plan = lw.plan(build(by_parametrization), build(by_hook).state_dict())
    sources = {leaf["target"]: leaf["source"] for leaf in plan.json()["leaves"]}
    assert sources["0.parametrizations.weight.original0"] == "0.weight_g"
    assert sources["0.parametrizations.weight.original1"] == "0.weight_v"
    assert "read as PyTorch's other weight norm stores it: 4 renamed" in str(plan)


class Halves(nn.Module):
    """A parametrization with two tensors that is not weight norm."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return first + second

    def right_inverse(self, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return weight[:, :1] / 2, weight - weight[:, :1] / 2


def test_another_parametrization_is_not_taken_for_weight_norm() -> None:
    layer = nn.Linear(4, 3)
    parametrize.register_parametrization(layer, "weight", Halves())
    plan = lw.plan(layer, by_hook(nn.Linear(4, 3)).state_dict())
    assert plan.library == ""
    assert plan.missing == ["parametrizations.weight.original0", "parametrizations.weight.original1"]
