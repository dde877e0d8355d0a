"""Optimizers as trees: their groups, and their state under the paths of the parameters."""

from typing import Any

import pytest
import torch
from tests.trees import paths
from torch import nn

import leafwise as lw


@pytest.fixture
def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))


def stepped(optimizer: torch.optim.Optimizer, net: nn.Module) -> Any:
    net(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    return optimizer


def test_groups_and_state_are_shown(net: nn.Sequential) -> None:
    groups = [{"params": net[0].parameters(), "lr": 0.5}, {"params": net[2].parameters()}]
    tree = lw.tree(stepped(torch.optim.SGD(groups, lr=0.1, momentum=0.9), net))
    assert tree["param_groups.0.lr"] == 0.5
    assert tree["param_groups.1.lr"] == 0.1
    assert tree["param_groups.1.params"] == ["2", "3"]
    assert paths(tree) == [f"state.{number}.momentum_buffer" for number in range(4)]
    assert {leaf.kind for leaf in tree} == {"state"}
    assert tree.counts.parameters == 0
    assert tree.counts.state == 13


def test_an_optimizer_that_knows_names_uses_them(net: nn.Sequential) -> None:
    tree = lw.tree(stepped(torch.optim.SGD(net.named_parameters(), lr=0.1, momentum=0.9), net))
    assert paths(tree)[0] == "state.0.weight.momentum_buffer"
    assert tree["param_groups.0.params"][0] == "0.weight"


@pytest.mark.parametrize("model_first", [True, False])
def test_an_optimizer_beside_its_model_uses_the_paths_of_the_tree(net: nn.Sequential, model_first: bool) -> None:
    optimizer = stepped(torch.optim.Adam(net.parameters()), net)
    obj = {"model": net, "opt": optimizer} if model_first else {"opt": optimizer, "model": net}
    tree = lw.tree(obj)
    assert "opt.state.model.0.weight.exp_avg" in paths(tree)
    assert tree["opt.param_groups.0.params"][0] == "model.0.weight"
    assert tree.counts.parameters == 13
    assert tree.ties == []
    for path, leaf in tree.items():
        assert path.fetch(obj) is leaf.value
        assert eval(path.code("obj"), {"obj": obj}) is leaf.value


def test_a_parameter_the_model_no_longer_has_keeps_its_number(net: nn.Sequential) -> None:
    optimizer = stepped(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net)
    net[0].weight = nn.Parameter(torch.zeros(3, 2))
    assert "opt.state.0.momentum_buffer" in paths(lw.tree({"opt": optimizer, "model": net}))


def test_a_fresh_optimizer_has_groups_and_no_state(net: nn.Sequential) -> None:
    tree = lw.tree(torch.optim.AdamW(net.parameters()))
    assert len(tree) == 0
    assert tree["param_groups.0.betas"] == (0.9, 0.999)
    assert "lr = 0.001" in tree.text()


def test_nested_state_is_walked(net: nn.Sequential) -> None:
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = net(torch.ones(4, 2)).square().sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert "state.0.d" in paths(lw.tree(optimizer))


def test_a_learning_rate_that_is_a_tensor_is_state(net: nn.Sequential) -> None:
    tree = lw.tree(torch.optim.Adam(net.parameters(), lr=torch.tensor(0.1)))
    assert paths(tree) == ["param_groups.0.lr"]
    assert tree["param_groups.0.lr"].kind == "state"
