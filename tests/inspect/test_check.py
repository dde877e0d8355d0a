"""`lw.check` finds every fault where it is planted, and nothing in healthy models."""

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract import toy
from tests.inspect.helpers import codes, faulty, fresh, levels_and_codes
from tests.long import short_or_long
from tools import alarms, healthy_models
from tools.healthy_models import Healthy
from torch import nn

import leafwise as lw
from leafwise.inspect.check.rules.registry import all_rules

# One model of each kind, for planting faults.
PLACES = ("Linear float32", "Conv2d bfloat16", "ConvTranspose2d float32", "LSTM float32", "Transformer float32")


# -- healthy models --------------------------------------------------------------------------------------------------


def wrong(models: Any) -> list[str]:
    return [
        f"{healthy.name}: {one}" for healthy, found in alarms.alarms(models) for one in (*found.errors, *found.warnings)
    ]


def test_fresh_layers_of_every_type_raise_no_alarm() -> None:
    assert wrong(healthy_models.layers()) == []


def test_no_layer_of_torch_with_parameters_is_left_out() -> None:
    for name in dir(nn):
        cls = getattr(nn, name)
        if not isinstance(cls, type) or not issubclass(cls, nn.Module) or name in healthy_models.LAYERS:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                layer = cls()
        except TypeError:
            continue  # needs arguments; layers of this kind that have parameters are in the table
        assert not list(layer.parameters()), f"nn.{name} has parameters, and is not in healthy_models.LAYERS"


def test_trained_models_raise_no_alarm_and_hold_planted_faults() -> None:
    for healthy in healthy_models.trained(steps=60):
        assert wrong([healthy]) == []
        missed = [code for code in alarms.FAULTS if alarms.outcome(healthy, code) is False]
        assert missed == [], healthy.name


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "t5", "gpt2", "convnext", "mamba"])
def test_architectures_raise_no_alarm_and_hold_planted_faults(name: str) -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    found = alarms.architecture_tally(name)
    assert found.models == 3
    assert found.wrong == []


@pytest.fixture(scope="module")
def places() -> list[Healthy]:
    return [one for one in healthy_models.layers() if one.name in PLACES]


@pytest.mark.parametrize("code", alarms.FAULTS)
def test_a_planted_fault_is_found(code: str, places: list[Healthy]) -> None:
    found = [alarms.outcome(place, code) for place in places]
    # Faults that need an embedding or a matrix of 64 rows are planted elsewhere.
    assert False not in found
    assert True in found or code in ("LW115", "LW116")


def test_every_rule_has_a_fault_that_is_planted() -> None:
    assert set(all_rules()) == {name.partition(" ")[0] for name in alarms.FAULTS}


def test_every_rule_has_a_place_in_the_docs() -> None:
    page = alarms.PAGE.read_text("utf-8")
    for code, rule in all_rules().items():
        assert f"### {code} {rule.name}" in page, code
        assert f'("{code}"' in page, f"{code} has no example"


def test_the_tables_of_the_docs_list_these_rules() -> None:
    table = alarms.PAGE.read_text("utf-8").partition(alarms.START)[2].partition(alarms.END)[0]
    healthy = [
        line.split("|")[1:-1] for line in table.splitlines() if line.startswith(("| fresh", "| trained", "| arch"))
    ]
    assert [[cell.strip() for cell in row[3:5]] for row in healthy] == [["0", "0"]] * 3
    planted = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `LW")]
    assert list(dict.fromkeys(row[0].strip()[1:6] for row in planted)) == sorted(all_rules())
    for _, places, found in planted:
        assert places.strip() == found.strip() != "0"


# -- choosing rules --------------------------------------------------------------------------------------------------


def test_select_takes_codes_and_prefixes_of_codes() -> None:
    net = faulty()
    assert codes(lw.check(net)) == ["LW101", "LW110"]
    assert codes(lw.check(net, select="LW101")) == ["LW101"]
    assert codes(lw.check(net, select=["LW11", "LW3"])) == ["LW110"]
    assert codes(lw.check(net, select="LW101,LW110")) == ["LW101", "LW110"]
    assert codes(lw.check(net, ignore="LW10")) == ["LW110"]
    assert codes(lw.check(net, select="LW1", ignore=["LW110"])) == ["LW101"]


def test_an_opt_in_rule_runs_only_if_its_exact_code_is_selected() -> None:
    net = nn.Linear(128, 128)
    with torch.no_grad():
        net.weight.copy_(torch.randn(128, 2) @ torch.randn(2, 128) * 0.02)
    assert codes(lw.check(net)) == []
    assert codes(lw.check(net, select="LW1")) == []
    assert codes(lw.check(net, select=["LW1", "LW116"])) == ["LW116"]


@pytest.mark.parametrize("bad", ["LW999", "lw101", "X", ["LW101", "LW77"], 3, [3]])
def test_a_code_that_does_not_exist_is_an_error(bad: Any) -> None:
    with pytest.raises(lw.QueryError, match=r"no rule has the code|takes rule codes or their prefixes"):
        lw.check(fresh(), select=bad)
    with pytest.raises(lw.QueryError, match=r"no rule has the code|takes rule codes or their prefixes"):
        lw.check(fresh(), ignore=bad)


def test_a_code_with_a_slip_gets_a_hint() -> None:
    with pytest.raises(lw.QueryError, match="'LW511O'; did you mean 'LW511'"):
        lw.check(fresh(), select="LW511O")


# -- arguments ---------------------------------------------------------------------------------------------------


def test_missing_values_are_an_error_unless_no_selected_rule_needs_them() -> None:
    with torch.device("meta"):
        net = fresh()
    with pytest.raises(lw.WalkError, match=r"no leaf has values.*0\.weight.*select"):
        lw.check(net)
    assert codes(lw.check(net, select=["LW3", "LW4"], ignore=["LW303"])) == []


def test_leaves_without_values_are_listed_as_skipped() -> None:
    net = fresh()
    net.add_module("far", nn.Linear(2, 2, device="meta"))
    found = lw.check(net)
    assert set(found.skipped) == {"far.weight", "far.bias"}
    assert "values not checked: far.weight, far.bias" in found.text()


def test_a_model_without_parameters_has_no_findings() -> None:
    found = lw.check(nn.ReLU())
    assert found.ok
    assert list(found) == []
    assert found.checked == 0


def test_what_is_not_an_optimizer_is_an_error() -> None:
    with pytest.raises(lw.WalkError, match="optimizer= takes an optimizer, not int"):
        lw.check(fresh(), optimizer=3)


def test_an_optimizer_in_the_tree_is_checked() -> None:
    net = fresh()
    optimizer = torch.optim.AdamW(net[0].parameters())
    assert codes(lw.check({"model": net, "optimizer": optimizer})) == ["LW411", "LW411"]
    assert codes(lw.check(optimizer)) == []


def test_the_state_of_an_optimizer_in_the_tree_is_checked() -> None:
    net = fresh()
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 16)).sum().backward()
    optimizer.step()
    optimizer.state[net[0].weight]["exp_avg"][0, 0] = float("inf")
    [one] = lw.check({"model": net, "optimizer": optimizer}).errors
    assert (one.code, one.path) == ("LW101", "optimizer.state.model.0.weight.exp_avg")


def test_a_file_without_roles_gives_notes_where_a_model_gives_warnings(tmp_path: Path) -> None:
    net = faulty()
    with torch.no_grad():
        net[2].bias.zero_()
    torch.save(net.state_dict(), tmp_path / "plain.pt")
    lw.save(net, tmp_path / "ours.safetensors")
    assert [(one.level, one.code, one.path) for one in lw.check(tmp_path / "plain.pt")] == [
        ("note", "LW110", "0.weight")
    ]
    assert [(one.level, one.code) for one in lw.check(tmp_path / "ours.safetensors")] == [("warning", "LW110")]


def test_a_file_that_was_opened_here_is_closed(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.eye(4))
    with lw.open(tmp_path / "a.npz") as t:
        lw.check(t)
        assert t["w"].numpy().shape == (4, 4)
    lw.check(tmp_path / "a.npz")
    (tmp_path / "a.npz").unlink()


def test_a_part_of_a_tree_is_checked_alone() -> None:
    net = faulty()
    assert codes(lw.check(lw.tree(net)["0"])) == ["LW110"]
    assert codes(lw.check(lw.tree(net).select("**.bias"))) == ["LW101"]


def test_arrays_that_cannot_change_are_checked_too() -> None:
    rows = np.random.default_rng(0).standard_normal((32, 32))
    rows[5] = rows[9]
    assert codes(lw.check({"w": rows})) == ["LW113"]
    with toy.registered():
        model = toy.Model(w=toy.Array(tuple(rows.reshape(-1).tolist()), (32, 32), (32, 1)))
        assert codes(lw.check(model)) == ["LW113"]


def test_the_state_of_an_optimizer_passed_as_an_argument_is_checked() -> None:
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
    assert levels_and_codes(lw.check(net, both)) == [("note", "LW412")] * 2


def test_sparse_gradients_are_listed_as_skipped() -> None:
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
def test_an_against_with_nothing_in_common_is_an_error(against: Any) -> None:
    with pytest.raises(lw.QueryError, match=r"against=.*give the same model as it was before") as error:
        lw.check(fresh(), against=against)
    assert "rename" not in str(error.value)


def test_leaves_that_cannot_be_compared_with_against_are_listed_as_skipped() -> None:
    before = fresh()
    after = copy.deepcopy(before)
    after[0].weight.data.add_(1)
    after[2] = nn.Linear(32, 17)
    found = lw.check(after, against=before, select="LW6")
    assert found.skipped == dict.fromkeys(("2.weight", "2.bias"), "another shape in against=")


def test_selecting_no_rule_is_an_error() -> None:
    for select in ("", [], ","):
        with pytest.raises(lw.QueryError, match="select= is empty; name at least one rule"):
            lw.check(fresh(), select=select)


def test_an_optimizer_for_a_file_is_an_error(tmp_path: Path) -> None:
    net = fresh()
    path = lw.save(net, tmp_path / "a.safetensors")
    with pytest.raises(lw.WalkError, match="cannot check optimizer= against a file"):
        lw.check(path, torch.optim.SGD(net.parameters(), 0.1))


def test_a_lazy_layer_does_not_keep_others_from_being_compared_with_init() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    assert levels_and_codes(lw.check(net, init=True)) == [("note", "LW512")] * 2


# -- single rules ----------------------------------------------------------------------------------------------------


def test_infinities_of_a_mask_are_noted_and_nan_is_an_error() -> None:
    net = nn.Linear(4, 4)
    net.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
    assert [(one.level, one.path) for one in lw.check(net)] == [("note", "mask")]
    net.mask[0, 0] = float("nan")
    assert [(one.level, one.path) for one in lw.check(net)] == [("error", "mask")]


def test_units_that_are_all_equal_are_a_warning_and_a_copy_is_a_note() -> None:
    net = fresh()
    with torch.no_grad():
        net[0].weight[7] = net[0].weight[2]
        net[2].weight.copy_(net[2].weight[:1].expand(16, 32))
    found = lw.check(net, select="LW113")
    assert [(one.level, one.path) for one in found] == [("warning", "2.weight"), ("note", "0.weight")]
    assert "such as 2, 7" in found[1].message


def test_a_dead_unit_of_a_layer_that_stores_its_inputs_first_is_found() -> None:
    layer = nn.ConvTranspose2d(8, 16, 3)
    with torch.no_grad():
        layer.weight[:, 5] = 0
    [one] = lw.check(layer, select="LW110")
    assert "1 of 16 units is all zero: 5" in one.message


def test_the_row_of_padding_is_not_a_dead_unit() -> None:
    assert codes(lw.check(nn.Embedding(10, 16, padding_idx=0))) == []


def test_rows_of_an_embedding_that_no_step_has_reached_are_counted() -> None:
    table = nn.Embedding(10, 8)
    optimizer = torch.optim.Adam(table.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.tensor([1, 2, 3])).sum().backward()
        optimizer.step()
    [one] = lw.check(table, optimizer, select="LW115")
    assert "7 of 10 rows are untouched: 0, 4-9; no optimizer step has changed them" in one.message


def test_a_table_and_a_head_that_are_equal_are_a_warning() -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(20, 8), "head": nn.Linear(8, 20, bias=False)})
    with torch.no_grad():
        net["head"].weight.copy_(net["embed"].weight)
    assert [(one.level, one.code, one.path) for one in lw.check(net)] == [("warning", "LW303", "head.weight")]
    net["head"].to(torch.bfloat16)
    [one] = lw.check(net, select="LW3")
    assert (one.code, one.level) == ("LW302", "warning")
    assert "float32 and bfloat16" in one.message


def test_a_transposed_copy_is_equal_too() -> None:
    net = nn.ModuleDict({"a": nn.Linear(12, 8, bias=False), "b": nn.Linear(8, 12, bias=False)})
    with torch.no_grad():
        net["b"].weight.copy_(net["a"].weight.T)
    assert codes(lw.check(net)) == ["LW303"]


def test_a_declared_distribution_that_holds_is_not_found() -> None:
    rules = [
        lw.Rule("**.weight", init="kaiming_normal"),
        lw.Rule("2.weight", init="orthogonal"),
        lw.Rule("**.bias", init="constant", value=0.25),
    ]
    net = lw.initialize(fresh(), rules, seed=3)
    assert codes(lw.check(net, init=rules)) == []
    assert codes(lw.check(fresh(), init=True)) == []
    assert codes(lw.check(fresh(), init=rules)) == ["LW202"] * 4
    assert codes(lw.check(nn.Embedding(12, 8, padding_idx=1), init=True)) == []


def test_one_rule_may_be_given_and_must_match_something() -> None:
    assert codes(lw.check(fresh(), init=lw.Rule("0.weight", init="normal", std=1.0), select="LW202")) == ["LW202"]
    with pytest.raises(lw.RuleError, match="matches nothing"):
        lw.check(fresh(), init=lw.Rule("nowhere", init="zeros"))


@pytest.mark.parametrize("init", ["normal", "uniform", "truncated_normal", "kaiming_uniform", "xavier_normal"])
@pytest.mark.parametrize("shape", [(4, 4), (16, 24), (300, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_drawn_is_not_taken_for_something_else(init: str, shape: tuple[int, int], dtype: Any) -> None:
    rule = lw.Rule("weight", init=init)
    for seed in range(short_or_long(5, 20)):
        layer = nn.Linear(shape[1], shape[0], bias=False, dtype=dtype)
        assert codes(lw.check(lw.initialize(layer, [rule], seed=seed), init=rule, select="LW202")) == []


def test_distributions_with_the_same_deviation_are_distinguished() -> None:
    layer = nn.Linear(100, 100, bias=False)
    nn.init.uniform_(layer.weight, -(3**0.5), 3**0.5)
    [one] = lw.check(layer, init=lw.Rule("weight", init="normal", std=1.0), select="LW202")
    assert "looks uniform" in one.message
    assert "declares normal with mean 0, std 1;" in one.message


def test_a_cast_does_not_count_as_training() -> None:
    net = fresh()
    [one] = lw.check(copy.deepcopy(net).bfloat16(), against=net, select="LW6")
    assert "nothing has changed" in one.message


def test_a_dead_unit_of_one_input_is_found() -> None:
    layer = nn.Linear(1, 64)
    layer.weight.data[7] = 0
    assert levels_and_codes(lw.check(layer)) == [("warning", "LW110")]


def test_a_matrix_of_the_right_norm_need_not_be_orthogonal() -> None:
    rule = lw.Rule("weight", init="orthogonal")
    layer = lw.initialize(nn.Linear(64, 32, bias=False), [rule])
    assert levels_and_codes(lw.check(layer, init=rule)) == []
    assert levels_and_codes(lw.check(lw.initialize(nn.Linear(32, 64, bias=False), [rule]), init=rule)) == []
    layer.weight.data.normal_().mul_(32**0.5 / layer.weight.norm())
    assert levels_and_codes(lw.check(layer, init=rule)) == [("warning", "LW202")]


def test_every_parameter_over_one_memory_is_named() -> None:
    data = torch.randn(8, 8)
    net = nn.ParameterDict({name: nn.Parameter(data) for name in "abc"})
    assert [one.path for one in lw.check(net, select="LW304")] == ["b", "c"]


def test_copies_beside_a_dead_unit_are_still_a_broken_symmetry() -> None:
    layer = nn.Linear(64, 64)
    layer.weight.data[:] = layer.weight.data[0]
    layer.weight.data[9] = 0
    assert ("warning", "LW113") in levels_and_codes(lw.check(layer))


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


# -- scale beside siblings ---------------------------------------------------------------------------------------------


def three_layers(std: float = 0.02) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
    for layer in (net[0], net[2], net[4]):
        nn.init.normal_(layer.weight, std=std)
    return net


def scaled(net: nn.Sequential, number: int, factor: float) -> list[tuple[str, str]]:
    net[number].weight.data.mul_(factor)
    return [(one.path, one.level) for one in lw.check(net, select="LW201")]


@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_weight_that_is_a_thousand_times_as_large_as_its_siblings_is_a_warning(number: int) -> None:
    assert scaled(three_layers(), number, 1000) == [(f"{number}.weight", "warning")]


def test_it_takes_two_siblings_to_say_what_is_usual() -> None:
    net = three_layers()
    assert scaled(nn.Sequential(*net[:4]), 2, 1000) == [("2.weight", "note")]


def test_siblings_may_differ_by_some_tens() -> None:
    assert scaled(three_layers(0.1), 2, 40) == [("2.weight", "note")]


def test_siblings_of_another_kind_say_nothing() -> None:
    net = three_layers()
    net.append(nn.Conv2d(4, 4, 3))
    nn.init.normal_(net[5].weight, std=20.0)
    assert [(one.path, one.level) for one in lw.check(net, select="LW201")] == [("5.weight", "note")]


def test_a_usual_weight_among_tiny_ones_raises_no_alarm() -> None:
    """Some architectures start with tiny weights, except in a layer or two."""
    net = three_layers(1e-10)
    nn.init.normal_(net[2].weight, std=0.02)
    assert ("2.weight", "warning") not in scaled(net, 2, 1)


def test_layers_of_very_different_widths_raise_no_alarm() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(1, 64), nn.Linear(4096, 8), nn.Linear(4096, 16), nn.Linear(2, 2048)])
    assert scaled(net, 0, 1) == []
    for layer in net:
        nn.init.normal_(layer.weight, std=0.02)
    assert scaled(net, 0, 1) == []


def test_a_parameter_of_another_model_in_the_optimizer_is_noted_by_its_place() -> None:
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([*net.parameters(), nn.Parameter(torch.zeros(7))], 0.1)
    [note] = lw.check(net, optimizer=optimizer, select="LW414")
    assert note.message.startswith("parameter 2 of group 0 (7) is in the optimizer but not among the checked leaves")


# -- sections --------------------------------------------------------------------------------------------------------


def checkpoint(**more: Any) -> dict[str, Any]:
    net = nn.Linear(16, 16)
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(3, 16)).sum().backward()
    optimizer.step()
    return {"state_dict": net.state_dict(), "optimizer_states": [optimizer.state_dict()], **more}


def test_an_infinite_score_of_a_callback_is_not_a_finding(tmp_path: Path) -> None:
    callbacks = {"ModelCheckpoint": {"kth_value": torch.tensor(float("inf")), "best": torch.tensor(float("-inf"))}}
    torch.save(checkpoint(callbacks=callbacks), tmp_path / "last.ckpt")
    findings = lw.check(tmp_path / "last.ckpt")
    assert not findings
    assert findings.sections == findings.json()["sections"] == {"weights": 2, "optimizer": 6, "rest": 2}
    assert findings.text().endswith("32 rules: 2 of weights, 6 of optimizer state, 2 of other state")


def test_nan_in_optimizer_state_of_a_checkpoint_is_an_error_that_says_so() -> None:
    broken = checkpoint()
    broken["optimizer_states"][0]["state"][0]["exp_avg"][0, 0] = float("nan")
    (finding,) = lw.check(broken)
    assert (finding.level, finding.code) == ("error", "LW101")
    assert finding.path == "optimizer_states.0.state.0.exp_avg"
    assert "1 NaN among 256 values of optimizer state" in finding.message


def test_nan_in_other_state_is_a_warning_or_a_note_for_a_single_number() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert levels_and_codes(lw.check(checkpoint(history=nan))) == [("warning", "LW101")]
    assert levels_and_codes(lw.check(checkpoint(best_loss=nan[0]))) == [("note", "LW101")]


def test_equal_optimizer_state_is_not_a_lost_tie() -> None:
    twice = checkpoint()
    twice["optimizer_states"].append(copy.deepcopy(twice["optimizer_states"][0]))
    assert not lw.check(twice)


# -- the same leaf in other blocks --------------------------------------------------------------------------------


def blocks(count: int = 2) -> nn.Module:
    torch.manual_seed(0)
    block = lambda: nn.ModuleDict({"up": nn.Linear(8, 16), "down": nn.Linear(16, 8), "conv": nn.Conv1d(4, 4, 3)})  # noqa: E731
    return nn.ModuleDict({"layers": nn.ModuleList(block() for _ in range(count)), "head": nn.Linear(8, 4)})


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("name", ["up", "down", "conv"])
def test_a_leaf_that_is_zero_only_in_one_block_is_a_warning(name: str, count: int) -> None:
    model: Any = blocks(count)
    model.layers[1][name].weight.data.zero_()
    [finding] = lw.check(model, select="LW103")
    assert (finding.level, finding.path) == ("warning", f"layers.1.{name}.weight")
    assert f"but not those of the same leaf in {count - 1} of {count - 1} other block" in finding.message
    for block in model.layers:  # as zero-initialized residual branches are
        block[name].weight.data.zero_()
    assert [finding.level for finding in lw.check(model, select="LW103")] == ["note"] * count


def test_a_leaf_that_is_in_no_other_block_is_a_note_if_it_is_zero() -> None:
    model: Any = blocks()
    model.head.weight.data.zero_()
    assert [finding.level for finding in lw.check(model, select="LW103")] == ["note"]
    sequence = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    sequence[1].weight.data.zero_()
    assert [finding.level for finding in lw.check(sequence, select="LW103")] == ["note"]


@pytest.mark.parametrize("name", ["up", "conv"])
def test_a_leaf_that_is_a_thousand_times_larger_in_one_of_two_blocks_is_a_warning(name: str) -> None:
    model: Any = blocks()
    model.layers[0][name].weight.data.mul_(1000)
    [finding] = lw.check(model, select="LW201")
    assert (finding.level, finding.path) == ("warning", f"layers.0.{name}.weight")
