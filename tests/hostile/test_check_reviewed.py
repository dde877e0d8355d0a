"""What reviews of `lw.check` found, each with the test that would have caught it."""

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw


def told(found: Any) -> list[tuple[str, str]]:
    return [(one.level, one.code) for one in found]


def levels(found: Any) -> set[str]:
    return {one.level for one in found}


def fresh() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


# -- healthy, and unusual --------------------------------------------------------------------------------------------


class Quantised(nn.Linear):
    """Values of a byte each, with their scales beside them."""

    def __init__(self) -> None:
        super().__init__(256, 256, dtype=torch.bfloat16)
        blocks = (torch.randn(256, 256) * 0.02).view(2, 128, 2, 128).permute(0, 2, 1, 3)
        scale = blocks.abs().amax((2, 3)) / 448
        packed = (blocks / scale[:, :, None, None]).permute(0, 2, 1, 3).reshape(256, 256).to(torch.float8_e4m3fn)
        self.weight = nn.Parameter(packed, requires_grad=False)
        self.weight_scale = nn.Parameter(scale)


def test_bytes_with_scales_beside_them_are_healthy() -> None:
    assert told(lw.check(Quantised())) == []


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
def test_frozen_filters_are_as_they_are_meant_to_be(layer: nn.Module) -> None:
    found = lw.check(layer)
    assert levels(found) <= {"note"}
    assert not any("lw.initialize" in one.message for one in found)


def test_inputs_that_are_alike_are_no_broken_symmetry() -> None:
    layer = nn.Conv2d(3, 64, 7)
    layer.weight.data = (torch.randn(64, 1, 7, 7) * 0.05).repeat(1, 3, 1, 1)
    assert told(lw.check(layer)) == [("note", "LW113")]


def test_one_unit_has_no_twin() -> None:
    layer = nn.Linear(64, 1)
    nn.init.constant_(layer.weight, 1 / 64)
    assert told(lw.check(layer)) == [("note", "LW104")]


def test_units_that_are_zero_by_padding_or_by_design_are_noted() -> None:
    for layer in (nn.Linear(64, 128), nn.Conv2d(16, 32, 3)):
        (nn.init.eye_ if isinstance(layer, nn.Linear) else nn.init.dirac_)(layer.weight)
        assert told(lw.check(layer)) == [("note", "LW110")]
    head = nn.Linear(16, 100)
    head.weight.data[90:] = 0
    assert told(lw.check(head)) == [("note", "LW110")]
    head.weight.data[5] = 0
    assert told(lw.check(head)) == [("warning", "LW110")]


def test_an_optimizer_may_step_what_is_elsewhere() -> None:
    net = fresh()
    temperature = nn.Parameter(torch.ones(()))
    assert told(lw.check(net, torch.optim.Adam([*net.parameters(), temperature]))) == [("note", "LW414")]
    half = fresh().half()
    masters = [nn.Parameter(one.detach().float()) for one in half.parameters()]
    assert levels(lw.check(half, torch.optim.SGD(masters, 0.1))) == {"note"}


def test_an_average_beside_the_model_needs_no_optimizer() -> None:
    net = fresh()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    found = lw.check({"model": net, "average": copy.deepcopy(net), "optimizer": optimizer}, select="LW4")
    assert [(one.level, one.code, one.path) for one in found] == [("note", "LW411", "average")]
    half = torch.optim.SGD(net[0].parameters(), 0.1)
    assert told(lw.check({"model": net, "optimizer": half}, select="LW411")) == [("warning", "LW411")] * 2


def test_several_optimizers_may_be_given() -> None:
    net = fresh()
    both = [torch.optim.SGD(net[0].parameters(), 0.1), torch.optim.Adam(net[2].parameters())]
    assert told(lw.check(net, both)) == []
    assert told(lw.check(net, {"one": both[0], "other": both[1]})) == []
    assert told(lw.check(net, both[0])) == [("warning", "LW411")] * 2


def test_the_row_of_padding_is_never_touched_and_not_told() -> None:
    table = nn.Embedding(20, 16, padding_idx=0)
    before = copy.deepcopy(table)
    optimizer = torch.optim.Adam(table.parameters())
    table(torch.arange(20)).square().sum().backward()
    assert told(lw.check(table)) == []
    optimizer.step()
    assert told(lw.check(table, optimizer)) == []
    assert told(lw.check(table, against=before)) == []


def test_a_gradient_of_zeros_is_none() -> None:
    net = fresh()
    net(torch.randn(4, 16)).sum().backward()
    net.zero_grad(set_to_none=False)
    assert told(lw.check(net)) == []
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


# -- faults in awkward places ----------------------------------------------------------------------------------------


def test_the_state_of_an_optimizer_that_is_given_is_looked_at() -> None:
    net = fresh()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(4, 16)).square().sum().backward()
    optimizer.step()
    optimizer.state[net[0].weight]["exp_avg_sq"].fill_(float("nan"))
    [one] = lw.check(net, optimizer).errors
    assert (one.level, one.code, one.path) == ("error", "LW101", "optimizer.state.0.weight.exp_avg_sq")


def test_a_leaf_of_two_optimizers_is_noted() -> None:
    net = nn.Linear(4, 4)
    both = [torch.optim.SGD(net.parameters(), 0.1), torch.optim.Adam(net.parameters())]
    assert told(lw.check(net, both)) == [("note", "LW412")] * 2


def test_gradients_that_are_not_looked_at_are_told() -> None:
    table = nn.Embedding(10, 4, sparse=True)
    table(torch.tensor([1])).sum().backward()
    net = nn.ModuleDict({"table": table, "other": nn.Linear(4, 4)})
    net["other"](torch.ones(1, 4)).sum().backward()
    assert list(lw.check(net).skipped) == ["gradient of table.weight"]
    assert list(lw.check(table).skipped) == ["gradient of weight"]


def test_leaves_without_values_are_not_counted_as_checked() -> None:
    found = lw.check({"a": torch.randn(4, 4), "b": torch.randn(4, dtype=torch.complex64)})
    assert found.checked == 1
    assert list(found.skipped) == ["b"]


@pytest.mark.parametrize("against", [{}, [], {"other": torch.zeros(3)}])
def test_against_nothing_is_an_error(against: Any) -> None:
    with pytest.raises(lw.QueryError, match=r"against=.*give the same model, as it was") as error:
        lw.check(fresh(), against=against)
    assert "rename" not in str(error.value)


def test_what_could_not_be_compared_is_told() -> None:
    before = fresh()
    after = copy.deepcopy(before)
    after[0].weight.data.add_(1)
    after[2] = nn.Linear(32, 17)
    found = lw.check(after, against=before, select="LW6")
    assert found.skipped == dict.fromkeys(("2.weight", "2.bias"), "against= has it in another shape")


def test_a_cast_is_no_training() -> None:
    net = fresh()
    [one] = lw.check(copy.deepcopy(net).bfloat16(), against=net, select="LW6")
    assert "nothing has changed" in one.message


def test_a_dead_unit_of_one_input() -> None:
    layer = nn.Linear(1, 64)
    layer.weight.data[7] = 0
    assert told(lw.check(layer)) == [("warning", "LW110")]


def test_a_matrix_of_the_right_norm_need_not_be_orthogonal() -> None:
    rule = lw.Rule("weight", init="orthogonal")
    layer = lw.initialize(nn.Linear(64, 32, bias=False), [rule])
    assert told(lw.check(layer, init=rule)) == []
    assert told(lw.check(lw.initialize(nn.Linear(32, 64, bias=False), [rule]), init=rule)) == []
    layer.weight.data.normal_().mul_(32**0.5 / layer.weight.norm())
    assert told(lw.check(layer, init=rule)) == [("warning", "LW202")]


def test_every_parameter_over_one_memory_is_named() -> None:
    data = torch.randn(8, 8)
    net = nn.ParameterDict({name: nn.Parameter(data) for name in "abc"})
    assert [one.path for one in lw.check(net, select="LW304")] == ["b", "c"]


def test_copies_beside_a_dead_unit_are_still_a_broken_symmetry() -> None:
    layer = nn.Linear(64, 64)
    layer.weight.data[:] = layer.weight.data[0]
    layer.weight.data[9] = 0
    assert ("warning", "LW113") in told(lw.check(layer))


# -- numbers near the ends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e-300, 1e-30, 1.0, 1e30, 1e300])
def test_large_and_small_numbers_are_compared_without_a_warning(size: float) -> None:
    layer = nn.Linear(128, 128, bias=False).double()
    layer.weight.data *= size
    layer.weight.data[3] = layer.weight.data[4]
    layer.weight.data[90] = layer.weight.data[91] * 1.0001
    found = lw.check(layer, select=["LW113", "LW114", "LW116"])
    assert [one.code for one in found] == ["LW113", "LW114"]
    layer.weight.data[:] = torch.randn(128, 2).double() @ torch.randn(2, 128).double() * size
    assert told(lw.check(layer, select="LW116")) == [("warning", "LW116")]


# -- cliffs ----------------------------------------------------------------------------------------------------------


def test_many_layers_of_two_values_are_not_compared_each_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.share import equal

    compared = []
    plain = equal.how_equal
    monkeypatch.setattr(equal, "how_equal", lambda *leaves: (compared.append(1), plain(*leaves))[1])
    torch.manual_seed(0)
    first = torch.sign(torch.randn(64, 64)) * 0.1
    layers = {f"l{n}": first.view(-1)[torch.randperm(4096)].view(64, 64) for n in range(60)}
    layers["copy"], layers["turned"] = layers["l5"].clone(), layers["l7"].T.clone()
    found = lw.check(layers, select="LW303")
    assert {one.path for one in found} == {"copy", "turned"}
    assert len(compared) < 10
    assert "transposed" in next(one for one in found if one.path == "turned").message


def test_a_compressed_array_is_unpacked_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from leafwise.files.source import InflatedSource

    rows = np.random.default_rng(0).standard_normal((300, 64)).astype(np.float32)
    rows[100:] = rows[0] * (1 + np.arange(200, dtype=np.float32)[:, None] * 1e-6)
    np.savez_compressed(tmp_path / "a.npz", w=rows)
    unpacked = []
    rewind = InflatedSource._rewind
    monkeypatch.setattr(InflatedSource, "_rewind", lambda self: (unpacked.append(1), rewind(self))[1])
    [one] = lw.check(tmp_path / "a.npz", select="LW114")
    assert "at least 20 pairs of rows" in one.message
    assert len(unpacked) < 10


# -- what is said ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ['a"b', "a*", "a b", "a\\b", "back\n"])
def test_what_to_type_can_be_typed_whatever_the_names_are(name: str) -> None:
    model = nn.ModuleDict({name: nn.Linear(8, 8), "ab": nn.Linear(8, 8)})
    nn.init.constant_(model[name].weight, 1.0)
    other = model["ab"].weight.detach().clone()
    [one] = lw.check(model)
    eval(one.message.partition("symmetry: ")[2], {"lw": lw, "model": model})
    assert told(lw.check(model)) == []
    assert torch.equal(model["ab"].weight, other)


def test_ties_that_are_proposed_can_be_made() -> None:
    def tie(found: Any, model: Any) -> None:
        [one] = found
        eval(one.message.partition("be one: ")[2], {"lw": lw, "model": model})

    model = nn.ModuleDict({"a": nn.Linear(12, 12, bias=False), "b": nn.Linear(12, 12, bias=False)})
    model["b"].weight.data.copy_(model["a"].weight.T)
    tie(lw.check(model, select="LW303"), model)
    assert told(lw.check(model, select="LW3")) == []
    model = nn.ModuleDict({"a": nn.Linear(8, 12, bias=False), "b": nn.Linear(8, 12, bias=False)})
    model["b"].weight = nn.Parameter(model["a"].weight.data)
    tie(lw.check(model, select="LW304"), model)
    assert told(lw.check(model, select="LW3")) == []


def test_no_tie_is_proposed_where_there_can_be_none() -> None:
    net = nn.Linear(4, 4)
    net.register_buffer("kept", net.weight.detach().clone())
    [one] = lw.check(net, select="LW303")
    assert "lw.tie" not in one.message


def test_a_lazy_layer_does_not_keep_others_from_being_compared_with_init() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    assert told(lw.check(net, init=True)) == [("note", "LW512")] * 2


def test_no_rule_at_all_is_an_error() -> None:
    for select in ("", [], ","):
        with pytest.raises(lw.QueryError, match="names no rule"):
            lw.check(fresh(), select=select)


def test_an_optimizer_and_a_file_do_not_go_together(tmp_path: Path) -> None:
    net = fresh()
    path = lw.save(net, tmp_path / "a.safetensors")
    with pytest.raises(lw.WalkError, match="this is a file"):
        lw.check(path, torch.optim.SGD(net.parameters(), 0.1))


def test_messages_go_on_below_where_a_line_is_too_short() -> None:
    from leafwise.render import text_of
    from leafwise.render.terminal import Terminal

    net = fresh()
    nn.init.constant_(net[0].weight, 1.0)
    found = lw.check(net)
    text = text_of(found, terminal=Terminal(width=60))
    assert max(map(len, text.splitlines())) <= 60
    assert "kaiming_normal" in " ".join(text.split())
    long = nn.ModuleDict({"x" * 150: net})
    lines = text_of(lw.check({"long": long, "short": copy.deepcopy(net)}), terminal=Terminal()).splitlines()
    assert any(line.startswith("warning LW104  short.0.weight  all of") for line in lines)
