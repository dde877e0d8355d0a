"""`lw.freeze` and `lw.thaw`: parameters and running statistics stop changing, and change again."""

import copy
import logging
import pickle
from typing import Any

import pytest
import torch
from tests.contract import toy
from tests.iterate.models import LanguageModel, batch, loss_of
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm

import leafwise as lw


def convnet() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def statistics(net: Any) -> list[Any]:
    return [net[1].running_mean.clone(), net[1].running_var.clone(), net[1].num_batches_tracked.clone()]


def test_frozen_parameters_have_no_gradient_and_the_same_model_comes_back() -> None:
    net = convnet()
    assert lw.freeze(net, "0.*") is net
    net(torch.randn(3, 4)).sum().backward()
    assert net[0].weight.grad is None
    assert net[2].weight.grad is not None


def test_no_optimizer_steps_what_was_frozen_after_a_backward() -> None:
    net = convnet()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.9, weight_decay=0.1)
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    net(torch.randn(3, 4)).sum().backward()
    lw.freeze(net, "0.*")
    before = net[0].weight.clone()
    optimizer.step()
    assert torch.equal(net[0].weight, before)


@pytest.mark.parametrize("again", [lambda net: net, copy.deepcopy, lambda net: pickle.loads(pickle.dumps(net))])
def test_running_statistics_stay_put_in_train_mode(again: Any) -> None:
    net = again(lw.freeze(convnet(), "{0,1}.**"))
    before = statistics(net)
    net.train()
    for _ in range(3):
        net(torch.randn(8, 4)).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(statistics(net), before, strict=True))


def test_a_frozen_batch_norm_normalizes_by_its_statistics() -> None:
    net = convnet()
    net(torch.randn(64, 4) * 3 + 1)
    x = torch.randn(8, 4)
    expected = copy.deepcopy(net).eval()(x)
    assert torch.equal(lw.freeze(net, "1.**").train()(x), expected)


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: torch.compile(m, backend="eager")])
def test_other_layers_that_drift_stand_still(wrap: Any) -> None:
    for make in (
        lambda: nn.Sequential(nn.InstanceNorm1d(3, track_running_stats=True)),
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(3, 3))),
        lambda: nn.Sequential(spectral_norm(nn.Linear(3, 3))),
    ):
        net = make().train()
        lw.freeze(net, "**")
        before = {name: buffer.clone() for name, buffer in net.named_buffers()}
        assert before
        wrap(net)(torch.randn(2, 3, 3))
        assert all(torch.equal(before[name], buffer) for name, buffer in net.named_buffers())


def test_thawed_layers_drift_again() -> None:
    net = lw.thaw(lw.freeze(convnet(), "**"), "**")
    before = statistics(net)
    net(torch.randn(8, 4)).sum().backward()
    assert net[1].training
    assert not torch.equal(net[1].running_mean, before[0])
    assert net[0].weight.grad is not None
    assert "train" not in vars(net[1])


def test_thawing_brings_back_the_mode_that_was_asked_for() -> None:
    assert not lw.thaw(lw.freeze(convnet(), "**").eval(), "**")[1].training
    assert not lw.thaw(lw.freeze({"a": convnet().eval()}, "**"), "**")["a"][1].training
    assert lw.thaw(lw.freeze(convnet().eval(), "**").train(), "**")[1].training


def test_a_model_that_was_compiled_before_stands_still() -> None:
    net = convnet().requires_grad_(False)
    compiled = torch.compile(net, backend="eager")
    compiled.train()(torch.randn(8, 4))
    lw.freeze(net, "1.running_*")
    before = statistics(net)
    compiled.train()(torch.randn(8, 4))
    assert all(torch.equal(a, b) for a, b in zip(statistics(net), before, strict=True))


def test_lazy_layers_are_frozen_before_they_have_a_shape() -> None:
    net = lw.freeze(nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d()), "**").train()
    net(torch.randn(8, 3))
    assert not any(parameter.requires_grad for parameter in net.parameters())
    assert net[1].num_batches_tracked == 0


def test_a_leaf_whose_memory_is_trained_under_another_parameter_is_not_frozen() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    net[1].weight = nn.Parameter(net[0].weight.data)
    with pytest.raises(lw.RuleError, match=r"cannot freeze 0\.weight: 1\.weight shares its memory and is trained"):
        lw.freeze(net, "0.weight")
    assert net[0].weight.requires_grad
    lw.freeze(net, "**")


def test_only_what_matches_is_frozen() -> None:
    net = lw.freeze(convnet(), "1.weight")
    net(torch.randn(8, 4))
    assert net[1].num_batches_tracked == 1
    assert [leaf.trainable for leaf in lw.tree(net[1])] == [False, True, None, None, None]


def test_freezing_any_name_freezes_the_leaf() -> None:
    model = lw.freeze(LanguageModel(), "head.*")
    assert not model.embed.weight.requires_grad
    loss_of(model, batch(0)).backward()
    assert model.embed.weight.grad is None


def test_a_transposed_tie_is_frozen_at_its_source() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(4, 2), "decoder": nn.Linear(2, 4)})
    lw.tie(model, "decoder.weight", to="encoder.weight", transpose=True, keep="source")
    lw.freeze(model, "decoder.weight")
    assert not model["encoder"].weight.requires_grad


def test_the_tree_shows_what_is_frozen() -> None:
    net = lw.freeze(convnet(), "1.**")
    t = lw.tree(net)
    assert t["1.running_mean"].trainable is False
    assert t["0.weight"].trainable is True
    assert [str(path) for path, _ in t.select(lw.where(trainable=False)).items()] == [
        "1.weight", "1.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked",
    ]  # fmt: skip
    lines = t.text().splitlines()
    assert sum("frozen" in line for line in lines[:-1]) == 5
    assert next(line for line in lines if "running_mean" in line).endswith("buffer  frozen")


def test_what_froze_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="leafwise"):
        lw.freeze(convnet(), "{0,1}.**")
    assert caplog.messages == [
        "frozen: 4 leaves with 42 parameters and 3 buffers: 0.weight, 0.bias, 1.weight, 1.bias, 1.running_mean, "
        "1.running_var, 1.num_batches_tracked"
    ]


def test_an_empty_match_is_an_error() -> None:
    for verb in (lw.freeze, lw.thaw):
        with pytest.raises(lw.PathError, match=r"no leaf matches '3\.\*'"):
            verb(convnet(), "3.*")
        with pytest.raises(lw.PathError, match=r'"0" is a node without leaves'):
            verb(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), "0")


def test_the_path_of_a_node_freezes_everything_below_it() -> None:
    net = lw.freeze(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), "0")
    assert [parameter.requires_grad for parameter in net.parameters()] == [False, False, True, True]


def test_a_buffer_that_nothing_is_known_about_is_an_error() -> None:
    net = nn.Module()
    net.register_buffer("mask", torch.ones(3))
    with pytest.raises(lw.RuleError, match="cannot freeze mask: neither a parameter nor a buffer that training"):
        lw.freeze(net, "mask")


def test_what_cannot_be_trained_is_not_thawed_and_nothing_changes() -> None:
    net = nn.Module()
    net.first = nn.Parameter(torch.ones(2), requires_grad=False)
    net.whole = nn.Parameter(torch.ones(2, dtype=torch.int32), requires_grad=False)
    with pytest.raises(lw.RuleError, match="cannot thaw whole: only floating point can be trained, and it is int32"):
        lw.thaw(net, "whole")
    lw.thaw(net, "**")
    assert [parameter.requires_grad for parameter in (net.first, net.whole)] == [True, False]


def test_a_home_whose_arrays_say_nothing_about_training_says_so() -> None:
    with toy.registered(), pytest.raises(lw.Unsupported, match="toy cannot freeze"):
        lw.freeze(toy.Model(a=toy.matrix(2, 2)), "a")


def test_frozen_twice_is_frozen_once() -> None:
    net = lw.thaw(lw.freeze(lw.freeze(convnet(), "1.**"), "1.**"), "1.**")
    assert net[1].training
    assert "train" not in vars(net[1])
