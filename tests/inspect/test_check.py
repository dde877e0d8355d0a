"""`lw.check`: every fault is found where it is planted, and nothing is found in healthy models."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract import toy
from tools import alarms, healthy_models
from tools.healthy_models import Healthy
from torch import nn

import leafwise as lw
from leafwise.inspect.check.findings import LEVELS
from leafwise.inspect.check.rules.registry import all_rules

# Of each kind of model one, in which a fault can be planted or not.
PLACES = ("Linear float32", "Conv2d bfloat16", "ConvTranspose2d float32", "LSTM float32", "Transformer float32")


def codes(found: Any) -> list[str]:
    return [one.code for one in found]


def fresh() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))


# -- healthy models --------------------------------------------------------------------------------------------------


def wrong(models: Any) -> list[str]:
    return [
        f"{healthy.name}: {one}" for healthy, found in alarms.alarms(models) for one in (*found.errors, *found.warnings)
    ]


def test_fresh_layers_of_every_type_raise_no_alarm() -> None:
    assert wrong(healthy_models.layers()) == []


def test_the_layers_are_all_that_torch_has() -> None:
    for name in dir(nn):
        cls = getattr(nn, name)
        if not isinstance(cls, type) or not issubclass(cls, nn.Module) or name in healthy_models.LAYERS:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                layer = cls()
        except TypeError:
            continue  # needs more than nothing; those with parameters are in the table, as the next lines say
        assert not list(layer.parameters()), f"nn.{name} has parameters, and is not in healthy_models.LAYERS"


def test_trained_models_raise_no_alarm_and_hold_planted_faults() -> None:
    for healthy in healthy_models.trained(steps=60):
        assert wrong([healthy]) == []
        missed = [code for code in alarms.FAULTS if alarms.outcome(healthy, code) is False]
        assert missed == [], healthy.name


def test_some_architectures_raise_no_alarm_and_hold_planted_faults() -> None:
    import transformers

    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for healthy in healthy_models.architectures(["bert", "t5", "gpt2", "convnext", "mamba"]):
            assert wrong([healthy]) == []
            if healthy.name.isidentifier():
                missed = [code for code in alarms.FAULTS if alarms.outcome(healthy, code) is False]
                assert missed == [], healthy.name


@pytest.fixture(scope="module")
def places() -> list[Healthy]:
    return [one for one in healthy_models.layers() if one.name in PLACES]


@pytest.mark.parametrize("code", alarms.FAULTS)
def test_a_planted_fault_is_found(code: str, places: list[Healthy]) -> None:
    found = [alarms.outcome(place, code) for place in places]
    # What needs an embedding, or a matrix of 64 rows, is planted elsewhere.
    assert False not in found
    assert True in found or code in ("LW115", "LW116")


def test_every_rule_has_a_fault_that_is_planted() -> None:
    assert set(all_rules()) == set(alarms.FAULTS)


def test_every_rule_has_a_place_in_the_docs() -> None:
    page = alarms.PAGE.read_text("utf-8")
    for code, rule in all_rules().items():
        assert f"### {code} {rule.name}" in page, code
        assert f'("{code}"' in page, f"{code} has no example"


def test_the_tables_of_the_docs_are_of_these_rules() -> None:
    table = alarms.PAGE.read_text("utf-8").partition(alarms.START)[2].partition(alarms.END)[0]
    healthy = [
        line.split("|")[1:-1] for line in table.splitlines() if line.startswith(("| fresh", "| trained", "| arch"))
    ]
    assert [[cell.strip() for cell in row[3:5]] for row in healthy] == [["0", "0"]] * 3
    planted = [line.split("|")[1:-1] for line in table.splitlines() if line.startswith("| `LW")]
    assert [row[0].strip()[1:6] for row in planted] == sorted(all_rules())
    for _, places, found in planted:
        assert places.strip() == found.strip() != "0"


# -- choosing rules --------------------------------------------------------------------------------------------------


def faulty() -> nn.Sequential:
    net = fresh()
    with torch.no_grad():
        net[0].weight[3] = 0
        net[2].bias[0] = float("nan")
    return net


def test_select_takes_codes_and_fronts_of_codes() -> None:
    net = faulty()
    assert codes(lw.check(net)) == ["LW101", "LW110"]
    assert codes(lw.check(net, select="LW101")) == ["LW101"]
    assert codes(lw.check(net, select=["LW11", "LW3"])) == ["LW110"]
    assert codes(lw.check(net, select="LW101,LW110")) == ["LW101", "LW110"]
    assert codes(lw.check(net, ignore="LW10")) == ["LW110"]
    assert codes(lw.check(net, select="LW1", ignore=["LW110"])) == ["LW101"]


def test_a_rule_that_must_be_asked_for_runs_only_by_its_very_code() -> None:
    net = nn.Linear(128, 128)
    with torch.no_grad():
        net.weight.copy_(torch.randn(128, 2) @ torch.randn(2, 128) * 0.02)
    assert codes(lw.check(net)) == []
    assert codes(lw.check(net, select="LW1")) == []
    assert codes(lw.check(net, select=["LW1", "LW116"])) == ["LW116"]


@pytest.mark.parametrize("bad", ["LW999", "lw101", "X", ["LW101", "LW77"], 3, [3]])
def test_a_code_that_does_not_exist_is_an_error(bad: Any) -> None:
    with pytest.raises(lw.QueryError, match=r"no rule has the code|takes codes"):
        lw.check(fresh(), select=bad)
    with pytest.raises(lw.QueryError, match=r"no rule has the code|takes codes"):
        lw.check(fresh(), ignore=bad)


def test_a_code_with_a_slip_gets_a_hint() -> None:
    with pytest.raises(lw.QueryError, match="'LW511O'; did you mean 'LW511'"):
        lw.check(fresh(), select="LW511O")


# -- what is given ---------------------------------------------------------------------------------------------------


def test_values_that_are_not_there_are_an_error_unless_no_rule_wants_them() -> None:
    with torch.device("meta"):
        net = fresh()
    with pytest.raises(lw.WalkError, match=r"no leaf has values.*0\.weight.*select"):
        lw.check(net)
    assert codes(lw.check(net, select=["LW3", "LW4"], ignore=["LW303"])) == []


def test_some_leaves_without_values_are_told() -> None:
    net = fresh()
    net.add_module("far", nn.Linear(2, 2, device="meta"))
    found = lw.check(net)
    assert set(found.skipped) == {"far.weight", "far.bias"}
    assert "values not looked at: far.weight, far.bias" in found.text()


def test_a_model_without_parameters_has_no_findings() -> None:
    found = lw.check(nn.ReLU())
    assert found.ok
    assert list(found) == []
    assert found.checked == 0


def test_an_optimizer_must_be_one() -> None:
    with pytest.raises(lw.WalkError, match="optimizer= takes an optimizer, not int"):
        lw.check(fresh(), optimizer=3)


def test_an_optimizer_in_the_tree_is_looked_at() -> None:
    net = fresh()
    optimizer = torch.optim.AdamW(net[0].parameters())
    assert codes(lw.check({"model": net, "optimizer": optimizer})) == ["LW411", "LW411"]
    assert codes(lw.check(optimizer)) == []


def test_the_state_of_an_optimizer_is_looked_at() -> None:
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


# -- single rules ----------------------------------------------------------------------------------------------------


def test_infinities_of_a_mask_are_noted_and_nan_is_an_error() -> None:
    net = nn.Linear(4, 4)
    net.register_buffer("mask", torch.full((4, 4), float("-inf")).triu(1))
    assert [(one.level, one.path) for one in lw.check(net)] == [("note", "mask")]
    net.mask[0, 0] = float("nan")
    assert [(one.level, one.path) for one in lw.check(net)] == [("error", "mask")]


def test_the_message_has_the_figure_and_what_to_do() -> None:
    net = nn.Linear(512, 512)
    nn.init.normal_(net.weight)
    [one] = lw.check(net)
    assert (one.code, one.level) == ("LW201", "note")
    assert "16 × that of kaiming_normal (0.0625)" in one.message
    assert "its shape is normal" in one.message
    command = one.message.rpartition("; ")[2]
    model = net
    torch.nn.init.zeros_(net.bias)
    eval(command, {"lw": lw, "model": model})
    assert codes(lw.check(net)) == []
    assert not net.bias.any()  # nothing but the leaf was drawn anew


def test_what_is_proposed_for_a_leaf_without_a_role_can_be_typed() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(8, 8))

    model = Own()
    [one] = lw.check(model)
    eval(one.message.rpartition(": ")[2], {"lw": lw, "model": model})
    assert codes(lw.check(model)) == []


def test_units_that_are_all_alike_are_a_warning_and_a_copy_is_a_note() -> None:
    net = fresh()
    with torch.no_grad():
        net[0].weight[7] = net[0].weight[2]
        net[2].weight.copy_(net[2].weight[:1].expand(16, 32))
    found = lw.check(net, select="LW113")
    assert [(one.level, one.path) for one in found] == [("warning", "2.weight"), ("note", "0.weight")]
    assert "such as 2, 7" in found[1].message


def test_units_of_layers_that_store_them_the_other_way_round() -> None:
    layer = nn.ConvTranspose2d(8, 16, 3)
    with torch.no_grad():
        layer.weight[:, 5] = 0
    [one] = lw.check(layer, select="LW110")
    assert "1 of 16 units is all zero: 5" in one.message


def test_the_row_of_padding_is_no_dead_unit() -> None:
    assert codes(lw.check(nn.Embedding(10, 16, padding_idx=0))) == []


def test_rows_of_an_embedding_that_no_step_has_reached() -> None:
    table = nn.Embedding(10, 8)
    optimizer = torch.optim.Adam(table.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        table(torch.tensor([1, 2, 3])).sum().backward()
        optimizer.step()
    [one] = lw.check(table, optimizer, select="LW115")
    assert "7 of 10 rows are untouched: 0, 4, 5, 6, 7, …; no step of the optimizer has reached them" in one.message


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
    for seed in range(20):
        layer = nn.Linear(shape[1], shape[0], bias=False, dtype=dtype)
        assert codes(lw.check(lw.initialize(layer, [rule], seed=seed), init=rule, select="LW202")) == []


def test_shapes_of_equal_deviation_are_told_apart() -> None:
    layer = nn.Linear(100, 100, bias=False)
    nn.init.uniform_(layer.weight, -(3**0.5), 3**0.5)
    [one] = lw.check(layer, init=lw.Rule("weight", init="normal", std=1.0), select="LW202")
    assert "uniform; declared is normal with mean 0, std 1" in one.message


# -- what is printed -------------------------------------------------------------------------------------------------


def test_findings_are_a_sequence_the_worst_first() -> None:
    found = lw.check(faulty())
    assert [one.level for one in found] == ["error", "warning"]
    assert (len(found.errors), len(found.warnings), len(found.notes), found.ok) == (1, 1, 0, False)
    assert found.codes == {"LW101": 1, "LW110": 1}
    assert found[0] == lw.check(faulty())[0]
    assert set(found.rules) == {code for code, rule in all_rules().items() if not rule.opt_in}


def test_the_table_says_what_was_looked_at() -> None:
    text = lw.check(faulty()).text()
    assert text.splitlines()[0].split()[:3] == ["error", "LW101", "2.bias"]
    assert "1 error, 1 warning · 4 leaves checked by" in text
    assert lw.check(fresh()).text().startswith("nothing found · 4 leaves checked by")


def test_many_findings_of_one_code_are_cut_unless_all_are_wanted() -> None:
    net = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)])
    for layer in net:
        nn.init.constant_(layer.weight, 1.0)
    found = lw.check(net, select="LW104")
    assert len(found) == 30
    assert "… 22 more" in found.text()
    assert found.text(full=True).count("LW104") == 30


def test_names_are_escaped_wherever_they_are_shown() -> None:
    name = "<b>\x1b[31m"
    found = lw.check({name: torch.full((4, 4), float("nan"))})
    assert "\x1b" not in found.text()
    assert "<b>" not in found._repr_html_()
    assert found.json()["findings"][0]["path"] == '"<b>\\u001b[31m"'


def test_findings_as_plain_data() -> None:
    data = lw.check(faulty()).json()
    assert data["counts"] == {"error": 1, "warning": 1, "note": 0}
    assert data["findings"][0]["code"] == "LW101"
    assert data["ok"] is False
    assert data["checked"] == 4
    assert set(data["counts"]) == set(LEVELS)


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


def test_a_usual_weight_among_tiny_ones_is_no_alarm() -> None:
    """Some architectures begin with almost nothing, and a layer or two of their own."""
    net = three_layers(1e-10)
    nn.init.normal_(net[2].weight, std=0.02)
    assert ("2.weight", "warning") not in scaled(net, 2, 1)


def test_layers_of_very_different_widths_are_no_alarm() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Linear(1, 64), nn.Linear(4096, 8), nn.Linear(4096, 16), nn.Linear(2, 2048)])
    assert scaled(net, 0, 1) == []
    for layer in net:
        nn.init.normal_(layer.weight, std=0.02)
    assert scaled(net, 0, 1) == []
