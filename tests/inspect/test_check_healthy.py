"""`lw.check` gives at most notes for models that are unusual but healthy."""

import copy
from typing import Any

import pytest
import torch
from tests.inspect.helpers import fresh, levels, levels_and_codes
from torch import nn

import leafwise as lw


class Quantized(nn.Linear):
    """A weight of one byte per value, with its scales in the same layer."""

    def __init__(self) -> None:
        super().__init__(256, 256, dtype=torch.bfloat16)
        blocks = (torch.randn(256, 256) * 0.02).view(2, 128, 2, 128).permute(0, 2, 1, 3)
        scale = blocks.abs().amax((2, 3)) / 448
        packed = (blocks / scale[:, :, None, None]).permute(0, 2, 1, 3).reshape(256, 256).to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.weight_scale = nn.Parameter(scale)


def test_one_byte_weights_with_scales_are_healthy() -> None:
    assert levels_and_codes(lw.check(Quantized())) == []


def frozen(layer: nn.Module, value: torch.Tensor) -> nn.Module:
    layer.weight.data = value
    return layer.requires_grad_(False)


@pytest.mark.parametrize(
    "layer",
    [
        frozen(nn.Conv2d(8, 8, 3, groups=8, bias=False), torch.full((8, 1, 3, 3), 1 / 9)),
        frozen(nn.Conv2d(8, 8, 3, groups=8, bias=False), torch.arange(9.0).view(1, 1, 3, 3).repeat(8, 1, 1, 1)),
        frozen(nn.Conv1d(1, 64, 64, bias=False), torch.arange(64.0).outer(torch.arange(64.0)).mul(0.1).sin()[:, None]),
        frozen(nn.Linear(3, 64, bias=False), torch.randn(64, 3) * 100),
    ],
)  # fmt: skip
def test_frozen_filters_raise_no_alarm(layer: nn.Module) -> None:
    found = lw.check(layer)
    assert levels(found) <= {"note"}
    assert not any("lw.initialize" in one.message for one in found)


def test_equal_inputs_are_not_a_broken_symmetry() -> None:
    layer = nn.Conv2d(3, 64, 7)
    layer.weight.data = (torch.randn(64, 1, 7, 7) * 0.05).repeat(1, 3, 1, 1)
    assert levels_and_codes(lw.check(layer)) == [("note", "LW113")]


def test_a_constant_layer_of_one_unit_is_noted() -> None:
    layer = nn.Linear(64, 1)
    nn.init.constant_(layer.weight, 1 / 64)
    assert levels_and_codes(lw.check(layer)) == [("note", "LW104")]


def test_units_that_are_zero_by_padding_or_by_design_are_noted() -> None:
    for layer in (nn.Linear(64, 128), nn.Conv2d(16, 32, 3)):
        (nn.init.eye_ if isinstance(layer, nn.Linear) else nn.init.dirac_)(layer.weight)
        assert levels_and_codes(lw.check(layer)) == [("note", "LW110")]
    head = nn.Linear(16, 100)
    head.weight.data[90:] = 0
    assert levels_and_codes(lw.check(head)) == [("note", "LW110")]
    head.weight.data[5] = 0
    assert levels_and_codes(lw.check(head)) == [("warning", "LW110")]


def test_an_optimizer_may_step_parameters_of_another_model() -> None:
    net = fresh()
    temperature = nn.Parameter(torch.ones(()))
    assert levels_and_codes(lw.check(net, torch.optim.Adam([*net.parameters(), temperature]))) == [("note", "LW414")]
    half = fresh().half()
    masters = [nn.Parameter(one.detach().float()) for one in half.parameters()]
    assert levels(lw.check(half, torch.optim.SGD(masters, 0.1))) == {"note"}


def test_an_average_beside_the_model_needs_no_optimizer() -> None:
    net = fresh()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found = lw.check({"model": net, "average": copy.deepcopy(net), "optimizer": optimizer}, select="LW4")
    assert [(one.level, one.code, one.path) for one in found] == [("note", "LW411", "average")]
    half = torch.optim.SGD(net[0].parameters(), 0.1)
    assert levels_and_codes(lw.check({"model": net, "optimizer": half}, select="LW411")) == [("warning", "LW411")] * 2


def test_several_optimizers_may_be_given() -> None:
    net = fresh()
    both = [torch.optim.SGD(net[0].parameters(), 0.1), torch.optim.Adam(net[2].parameters())]
    assert levels_and_codes(lw.check(net, both)) == []
    assert levels_and_codes(lw.check(net, {"one": both[0], "other": both[1]})) == []
    assert levels_and_codes(lw.check(net, both[0])) == [("warning", "LW411")] * 2


def test_an_untouched_row_of_padding_is_not_reported() -> None:
    table = nn.Embedding(20, 16, padding_idx=0)
    before = copy.deepcopy(table)
    optimizer = torch.optim.Adam(table.parameters())
    table(torch.arange(20)).square().sum().backward()
    assert levels_and_codes(lw.check(table)) == []
    optimizer.step()
    assert levels_and_codes(lw.check(table, optimizer)) == []
    assert levels_and_codes(lw.check(table, against=before)) == []


def test_gradients_of_zeros_count_as_no_gradients() -> None:
    net = fresh()
    net(torch.randn(4, 16)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert levels_and_codes(lw.check(net)) == []
    net[0].requires_grad_(False)
    assert levels(lw.check(net, torch.optim.SGD(net.parameters(), 0.1))) == {"note"}


def test_one_half_of_an_adapter_has_no_gradient_at_first() -> None:
    class Adapter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
            nn.init.zeros_(self.b.weight)

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x))

    net = Adapter()
    before = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    (net(torch.randn(8, 16)) - torch.randn(8, 16)).square().sum().backward()
    optimizer.step()
    assert levels(lw.check(net, optimizer, against=before)) == {"note"}
