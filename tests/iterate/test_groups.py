"""`lw.groups`: rules put every trainable leaf into one parameter group, and the account says why."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.contract import toy
from tests.iterate.models import LanguageModel, batch, loss_of
from torch import nn

import leafwise as lw


def names(groups: Any) -> list[list[str]]:
    return [group["param_names"] for group in groups]


def two_layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 1))


def test_without_rules_there_is_one_group_of_every_trainable_leaf() -> None:
    net = two_layers()
    groups = lw.groups(net)
    assert names(groups) == [[name for name, _ in net.named_parameters()]]
    assert all(a is b for a, b in zip(groups[0]["params"], net.parameters(), strict=True))
    optimizer = torch.optim.SGD(groups, lr=0.1)
    assert optimizer.param_groups[0]["param_names"][0] == "0.weight"


def test_the_result_is_what_torch_optim_takes() -> None:
    groups = lw.groups(two_layers(), [lw.no_decay()])
    assert isinstance(groups, list)
    assert all(isinstance(group, dict) for group in groups)
    for cls in (torch.optim.AdamW, torch.optim.SGD):
        optimizer = cls(groups, lr=3e-4, weight_decay=0.1)
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
        assert {group["lr"] for group in optimizer.param_groups} == {3e-4}


def test_later_rules_override_the_options_that_they_name_and_no_others() -> None:
    rules = [lw.Rule("**", lr=1.0, weight_decay=0.1), lw.Rule("**.bias", lr=2.0), lw.Rule("2.*", weight_decay=0.0)]
    found = {
        name: (group["lr"], group["weight_decay"])
        for group in lw.groups(two_layers(), rules)
        for name in group["param_names"]
    }
    assert found == {
        "0.weight": (1.0, 0.1), "0.bias": (2.0, 0.1), "1.weight": (1.0, 0.1), "1.bias": (2.0, 0.1),
        "2.weight": (1.0, 0.0), "2.bias": (2.0, 0.0),
    }  # fmt: skip


@pytest.mark.parametrize(
    "where",
    ["**.bias", re.compile(r"bias$"), lambda leaf: leaf.path.name == "bias", lw.where(role=("bias", "norm.bias"))],
    ids=["glob", "regex", "callable", "where"],
)
def test_a_rule_takes_any_query(where: Any) -> None:
    groups = lw.groups(two_layers(), [lw.Rule(where, lr=1.0)])
    assert [group["param_names"] for group in groups if "lr" in group] == [["0.bias", "1.bias", "2.bias"]]


def test_every_trainable_leaf_is_in_exactly_one_group() -> None:
    model = LanguageModel()
    groups = lw.groups(model, [lw.no_decay(), lw.Rule("layers.1.**", lr=0.5), lw.Rule("**.weight", betas=(0.9, 0.9))])
    grouped = [id(value) for group in groups for value in group["params"]]
    assert sorted(grouped) == sorted(id(parameter) for parameter in model.parameters())


def test_rules_that_say_the_same_make_one_group() -> None:
    rules = [lw.Rule("0.*", lr=0.5), lw.Rule("2.*", lr=0.5), lw.Rule("1.*", lr=0.25)]
    assert len(lw.groups(two_layers(), rules)) == 2


def test_a_rule_that_matches_nothing_is_named() -> None:
    with pytest.raises(lw.RuleError, match=r"Rule\('3\.\*', lr=1.0\).*matches nothing|Rule\('3\.\*', lr=1\)"):
        lw.groups(two_layers(), [lw.Rule("3.*", lr=1.0)])
    with pytest.raises(lw.RuleError, match=r'Rule\(.1., lr=1\) matches nothing: "1" is a node without leaves'):
        lw.groups(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), [lw.Rule("1", lr=1.0)])
    with pytest.raises(lw.RuleError, match=r'nothing at "bias".*did you mean "\*\*.bias", which matches 3 leaves\?'):
        lw.groups(two_layers(), [lw.Rule("bias", lr=1.0)])  # a rule is exact: a word is not a part of a path
    with pytest.raises(lw.RuleError, match="did you mean"):
        lw.groups(two_layers(), [lw.Rule("2.wieght", lr=1.0)])
    with pytest.raises(lw.RuleError, match=r"matches no parameter, only 0.running_mean"):
        lw.groups(nn.Sequential(nn.BatchNorm1d(3)), [lw.Rule("**.running_mean", lr=1.0)])


def test_a_rule_for_a_node_is_for_everything_below_it() -> None:
    groups = lw.groups(two_layers(), [lw.Rule("2", lr=0.5)], lr=1.0)
    named, below = lw.groups(two_layers(), [lw.Rule("2", lr=0.5)]), lw.groups(two_layers(), [lw.Rule("2.**", lr=0.5)])
    assert sorted(group["lr"] for group in groups) == [0.5, 1.0]
    assert [len(group["params"]) for group in named] == [len(group["params"]) for group in below]


def test_a_model_without_biases_and_norms_needs_no_other_rules() -> None:
    groups = lw.groups(nn.Linear(3, 3, bias=False), [lw.no_decay()], weight_decay=0.1)
    assert [group["weight_decay"] for group in groups] == [0.1]
    [no_decay, *_] = [line for line in groups.text().splitlines() if "no_decay()" in line]
    assert no_decay.split()[-2:] == ["0", "0"]


def test_what_no_rule_covers_takes_the_defaults_and_is_listed() -> None:
    groups = lw.groups(two_layers(), [lw.no_decay()])
    assert groups.uncovered == ["0.weight", "2.weight"]
    assert groups.uncovered_parameters == 40
    assert "no rule" in groups.text()
    with pytest.raises(lw.RuleError, match=r"no rule covers 0\.weight, 2\.weight"):
        lw.groups(two_layers(), [lw.no_decay()], strict=True)
    covered = lw.groups(two_layers(), [lw.Rule("**", lr=1.0), lw.no_decay()], strict=True)
    assert covered.uncovered == []


# -- shared leaves ---------------------------------------------------------------------------------------


def test_a_shared_leaf_counts_once() -> None:
    model = LanguageModel()
    groups = lw.groups(model, [lw.no_decay()])
    assert sum(name == "embed.weight" for group in groups for name in group["param_names"]) == 1
    assert not any("head.weight" in group["param_names"] for group in groups)
    assert sum(account.parameters for account in groups.groups) == sum(p.numel() for p in model.parameters())


def test_names_that_disagree_are_an_error_that_names_both() -> None:
    rules = [lw.Rule("head.*", lr=0.5)]
    with pytest.raises(lw.RuleError, match=r"embed\.weight and head\.weight are one leaf.*the default.*lr=0\.5"):
        lw.groups(LanguageModel(), rules)
    with pytest.raises(lw.RuleError, match=r"weight_decay=0.1 for embed\.weight.*weight_decay=0 for head\.weight"):
        lw.groups(LanguageModel(), [lw.Rule("embed.*", weight_decay=0.1), lw.Rule("head.*", weight_decay=0.0)])


def test_names_that_agree_are_not_an_error() -> None:
    assert len(lw.groups(LanguageModel(), [lw.Rule("{embed,head}.weight", lr=0.5)])) == 2
    rates = [lw.Rule(f"{name}.weight", lr=torch.tensor(0.5)) for name in ("embed", "head")]
    assert len(lw.groups(LanguageModel(), rates)) == 2


@pytest.mark.parametrize(
    "settling",
    [
        lw.Rule("head.weight", lr=0.5, wins=True),
        lw.Rule("head.weight", wins=True),
        lw.Rule(lw.where(role="linear.weight", owner="Linear") & "head.*", lr=0.5, wins=True),
    ],
    ids=["option", "name", "query"],
)
def test_a_rule_that_wins_settles_it(settling: lw.Rule) -> None:
    groups = lw.groups(LanguageModel(), [lw.Rule("embed.*", lr=0.1), lw.Rule("head.*", lr=0.5), settling])
    (lr,) = [group["lr"] for group in groups if "embed.weight" in group["param_names"]]
    assert lr == 0.5


def test_a_leaf_is_covered_by_a_rule_for_any_of_its_names() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(7, 4), "head": nn.Linear(4, 7, bias=False)})
    model["head"].weight = model["embed"].weight
    groups = lw.groups(model, [lw.Rule("head.weight", lr=0.5, wins=True)], strict=True)
    assert (groups[0]["lr"], groups.uncovered) == (0.5, [])


def test_the_last_rule_that_wins_decides() -> None:
    rules = [lw.Rule("embed.weight", lr=0.1, wins=True), lw.Rule("head.weight", lr=0.5, wins=True)]
    assert rates(LanguageModel(), *rules)["embed.weight"] == 0.5
    assert rates(LanguageModel(), *rules[::-1])["embed.weight"] == 0.1
    assert rates(LanguageModel(), *rules, lw.Rule("embed.weight", wins=True))["embed.weight"] == 0.1


def test_a_leaf_wins_only_about_the_options_named() -> None:
    rules = [
        lw.Rule("embed.*", lr=0.1, weight_decay=0.0),
        lw.Rule("head.*", lr=0.5, weight_decay=0.1),
        lw.Rule("embed.*", lr=0.1, wins=True),
    ]
    with pytest.raises(lw.RuleError, match="weight_decay"):
        lw.groups(LanguageModel(), rules)


def test_a_part_of_a_model_names_its_leaves_absolutely() -> None:
    model = LanguageModel()
    groups = lw.groups(lw.tree(model)["head"])
    assert names(groups) == [["head.weight"]]
    assert groups[0]["params"][0] is model.embed.weight


# -- frozen leaves ---------------------------------------------------------------------------------------


def test_frozen_leaves_are_left_out_and_listed() -> None:
    net = lw.freeze(two_layers(), "0.*")
    groups = lw.groups(net, [lw.no_decay()])
    assert groups.frozen == ["0.weight", "0.bias"]
    assert all("0.weight" not in group for group in names(groups))
    assert "frozen and left out: 2 leaves, 40 parameters: 0.weight, 0.bias" in groups.text()
    assert groups.rules[0].frozen == 1


def test_a_decay_for_a_frozen_leaf_is_an_error_naming_path_and_rule() -> None:
    net = lw.freeze(two_layers(), "0.*")
    with pytest.raises(
        lw.RuleError,
        match=r"Rule\('0\.\*', weight_decay=0\.1\) matches only frozen leaves: 0\.weight, 0\.bias.*lw\.thaw",
    ):
        lw.groups(net, [lw.Rule("0.*", weight_decay=0.1)])
    # Not an error if trained leaves match as well, or if the rule only turns decay off.
    assert lw.groups(net, [lw.Rule("**", weight_decay=0.1)])[0]["weight_decay"] == 0.1
    lw.groups(lw.freeze(nn.Sequential(nn.Linear(3, 3, bias=False), nn.LayerNorm(3)), "1.*"), [lw.no_decay()])


def test_a_model_with_nothing_to_train_is_an_error() -> None:
    with pytest.raises(lw.RuleError, match="all 6 parameters are frozen"):
        lw.groups(lw.freeze(two_layers(), "**"))
    with pytest.raises(lw.RuleError, match="no parameters"):
        lw.groups(nn.ReLU())


# -- options ---------------------------------------------------------------------------------------------


def test_an_option_that_no_optimizer_knows_is_an_error() -> None:
    with pytest.raises(
        lw.RuleError, match=r"Rule\('\*\*', weight_deacy=0\.1\) for 0\.weight: .*did you mean 'weight_decay'"
    ):
        lw.groups(two_layers(), [lw.Rule("**", weight_deacy=0.1)])
    with pytest.raises(lw.RuleError, match=r"lw\.groups: no optimizer of torch has an option 'trust'"):
        lw.groups(two_layers(), trust=1)
    with pytest.raises(lw.RuleError, match="cannot be an option"):
        lw.groups(two_layers(), [lw.Rule("**", params=[])])


def test_with_its_class_the_options_are_those_of_the_optimizer() -> None:
    rule = lw.Rule("**", momentum=0.9)
    lw.groups(two_layers(), [rule], optimizer=torch.optim.SGD)
    with pytest.raises(lw.RuleError, match="AdamW has no option 'momentum'"):
        lw.groups(two_layers(), [rule], optimizer=torch.optim.AdamW)

    class Mine(torch.optim.SGD):
        def __init__(self, params: Any, lr: float, trust: float = 1.0) -> None:
            super().__init__(params, lr=lr)

    lw.groups(two_layers(), [lw.Rule("**", trust=0.5)], optimizer=Mine)
    with pytest.raises(lw.RuleError, match="Mine has no option 'momentum'"):
        lw.groups(two_layers(), [rule], optimizer=Mine)
    with pytest.raises(lw.RuleError, match="no option 'trust'"):
        lw.groups(two_layers(), trust=1, optimizer=torch.optim.SGD(two_layers().parameters(), lr=0.1))


def test_what_is_not_a_rule_is_an_error() -> None:
    with pytest.raises(lw.RuleError, match="a rule must be"):
        lw.groups(two_layers(), [{"params": "**"}])
    with pytest.raises(lw.RuleError, match="has no options; add some"):
        lw.Rule("**")
    assert len(lw.groups(two_layers(), lw.no_decay())) == 2


@pytest.mark.parametrize(
    ("rules", "options", "message"),
    [
        (5, {}, "a rule must be"),
        ("no_decay", {}, "not 'no_decay'"),
        ([lw.Rule(lambda leaf: leaf.nonsense, lr=1.0)], {}, "its query raised AttributeError"),
        (None, {"optimizer": "adamw"}, "optimizer= takes an optimizer class"),
        ([lw.layer_decay(0.5)], {"lr": "fast"}, "needs a learning rate to scale"),
        ([lw.Rule("**", wins=True)], {"strict": True}, "no rule covers"),
    ],
)
def test_what_makes_no_sense_is_an_error(rules: Any, options: Any, message: str) -> None:
    with pytest.raises(lw.RuleError, match=message):
        lw.groups(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), rules, **options)
    for wrong in ("a", None):
        with pytest.raises(lw.RuleError, match="decay= takes a number above 0 and at most 1"):
            lw.layer_decay(wrong)
    with pytest.raises(lw.RuleError, match="blocks= takes a glob"):
        lw.layer_decay(0.5, blocks=["0"])


def test_an_optimizer_that_takes_anything_gets_anything_but_parameters() -> None:
    class Mine(torch.optim.SGD):
        def __init__(self, params: Any, **options: Any) -> None:
            super().__init__(params, lr=0.1)

    assert lw.groups(two_layers(), whatever=3, optimizer=Mine)[0]["whatever"] == 3
    with pytest.raises(lw.RuleError, match="cannot be an option"):
        lw.groups(two_layers(), params=[1], optimizer=Mine)


def test_numbers_that_are_equal_agree() -> None:
    rules = [lw.Rule("embed.*", weight_decay=0), lw.Rule("head.*", weight_decay=0.0), lw.Rule("norm.*", weight_decay=0)]
    assert len(lw.groups(LanguageModel(), rules)) == 2


def test_options_may_be_lists_and_arrays() -> None:
    betas = [0.9, 0.99]
    groups = lw.groups(two_layers(), [lw.Rule("0.*", betas=betas), lw.Rule("2.*", betas=[0.9, 0.99])])
    assert len(groups) == 2
    lw.groups(two_layers(), [lw.Rule("0.*", weight_decay=torch.tensor([0.0, 1.0]))]).text()


def test_options_may_be_tensors() -> None:
    rate = torch.tensor(0.1)
    groups = lw.groups(two_layers(), [lw.Rule("0.*", lr=rate), lw.Rule("2.*", lr=rate)])
    assert len(groups) == 2
    assert groups[0]["lr"] is rate


# -- layer decay -----------------------------------------------------------------------------------------


def rates(model: nn.Module, *rules: lw.Rule, lr: float = 1.0) -> dict[str, float]:
    groups = lw.groups(model, rules, lr=lr)
    return {name: group["lr"] for group in groups for name in group["param_names"]}


def test_each_block_learns_more_slowly_than_the_next() -> None:
    found = rates(LanguageModel(tied=False), lw.layer_decay(0.5))
    assert found["embed.weight"] == 0.5**4
    assert [found[f"layers.{n}.up.weight"] for n in range(3)] == [0.5**3, 0.5**2, 0.5]
    assert found["norm.weight"] == found["head.weight"] == 1.0


def test_a_tied_embedding_must_be_settled() -> None:
    with pytest.raises(lw.RuleError, match=r"embed\.weight and head\.weight"):
        rates(LanguageModel(), lw.layer_decay(0.5))
    assert rates(LanguageModel(), lw.layer_decay(0.5), lw.Rule("embed.weight", wins=True))["embed.weight"] == 0.5**4


def test_layer_decay_scales_what_earlier_rules_say_and_later_ones_override_it() -> None:
    found = rates(LanguageModel(tied=False), lw.Rule("head.*", lr=8.0), lw.layer_decay(0.5), lw.Rule("embed.*", lr=3.0))
    assert (found["head.weight"], found["embed.weight"]) == (8.0, 3.0)


def test_blocks_are_found_in_many_shapes_of_model() -> None:
    stages = nn.Module()
    stages.stem = nn.Linear(2, 2)
    for stage in range(1, 4):
        stages.add_module(f"layer{stage}", nn.Sequential(*[nn.Linear(4, 4) for _ in range(2)]))
    stages.fc = nn.Linear(2, 2)
    found = rates(stages, lw.layer_decay(0.5))
    assert found["layer1.0.weight"] == 0.5**6
    assert found["layer3.1.weight"] == 0.5
    assert (found["stem.weight"], found["fc.weight"]) == (0.5**7, 1.0)

    with_head = nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(9, 9) for _ in range(3)]),
                               "head": nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))})  # fmt: skip
    assert rates(with_head, lw.layer_decay(0.5))["head.0.weight"] == 1.0


def test_several_stacks_are_an_error_that_says_what_to_write() -> None:
    towers = nn.ModuleDict(
        {name: nn.ModuleDict({"layers": nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])}) for name in ("a", "b")}
    )
    with pytest.raises(lw.RuleError, match=r"several stacks of blocks: a\.layers, b\.layers.*0\.5, 'a\.\*\*'"):
        rates(towers, lw.layer_decay(0.5))
    found = rates(towers, lw.layer_decay(0.5, "a.**"), lw.layer_decay(0.25, "b.**"))
    assert [found[f"{name}.layers.{n}.weight"] for name in "ab" for n in (0, 1)] == [0.25, 0.5, 0.0625, 0.25]


def test_blocks_can_be_named() -> None:
    model = nn.ModuleDict({"first": nn.Linear(2, 2), "second": nn.Conv1d(2, 2, 1)})
    with pytest.raises(lw.RuleError, match="no repeated blocks"):
        rates(model, lw.layer_decay(0.5))
    found = rates(model, lw.layer_decay(0.5, blocks="*"))
    assert (found["first.weight"], found["second.weight"]) == (0.25, 0.5)
    with pytest.raises(lw.RuleError, match="no node with parameters matches"):
        rates(model, lw.layer_decay(0.5, blocks="third"))
    with pytest.raises(lw.RuleError, match=r"matches layers\.0 and also layers\.0\.up inside it"):
        rates(LanguageModel(tied=False), lw.layer_decay(0.5, blocks="layers.0{,.up}"))


def test_layer_decay_needs_a_learning_rate_and_a_factor() -> None:
    with pytest.raises(lw.RuleError, match=r"pass one: lw\.groups\(…, lr=3e-4\)"):
        lw.groups(LanguageModel(tied=False), [lw.layer_decay(0.5)])
    for wrong in (0, -1, 1.5, float("nan")):
        with pytest.raises(lw.RuleError, match="decay= takes a number above 0 and at most 1"):
            lw.layer_decay(wrong)


# -- the account -----------------------------------------------------------------------------------------


def test_the_account_adds_up_and_prints() -> None:
    model = LanguageModel()
    groups = lw.groups(model, [lw.no_decay(), lw.Rule("layers.0.**", lr=0.5)], lr=1.0, weight_decay=0.1)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert sum(account.parameters for account in groups.groups) == total
    assert sum(account.leaves for account in groups.groups) == len(list(model.parameters()))
    decayed = sum(account.parameters for account in groups.groups if account.decayed)
    text = groups.text()
    assert f"{decayed:,} decayed" in text
    assert "no_decay()" in text
    assert "Rule('layers.0.**', lr=0.5)" in text
    assert str(groups) == repr(groups) == text
    assert "no_decay()" in groups._repr_html_()


def test_the_account_can_be_written_as_json() -> None:
    import json

    data = json.loads(json.dumps(lw.groups(two_layers(), [lw.no_decay()], lr=torch.tensor(0.1)).json()))
    assert data["rules"][0] == {
        "rule": "no_decay()", "options": {"weight_decay": 0.0}, "leaves": 4, "parameters": 25, "frozen": 0,
        "note": "",
    }  # fmt: skip
    assert data["groups"][0]["param_names"] == ["0.weight", "2.weight"]
    assert data["groups"][0]["decayed"] is None
    assert data["groups"][1]["decayed"] is False


def test_names_in_the_account_are_escaped() -> None:
    model = nn.ModuleDict({"evil\x1b[31m": nn.Linear(2, 2)})
    text = lw.groups(model, [lw.Rule("**.bias", lr=1.0)]).text()
    assert "\x1b" not in text


def test_an_immutable_home_has_groups_too() -> None:
    with toy.registered():
        model = toy.Model(a=toy.matrix(2, 3), b=toy.matrix(1, 4))
        groups = lw.groups(model, [lw.Rule("a", lr=0.5), lw.no_decay()])
        assert names(groups) == [["a"], ["b"]]
        assert groups[0]["params"][0] is model.a


def test_the_state_of_the_optimizer_is_named_by_path() -> None:
    model = LanguageModel()
    optimizer = torch.optim.AdamW(lw.groups(model, [lw.no_decay()]), lr=1e-3)
    loss_of(model, batch(0)).backward()
    optimizer.step()
    state = lw.tree(optimizer)
    assert state["state.layers.0.up.weight.exp_avg"].shape == (32, 8)


def test_layer_decay_orders_blocks_of_sorted_files_by_number(tmp_path: Path) -> None:
    import safetensors.torch

    arrays = {f"layers.{n}.{part}.weight": torch.ones(2, 2) for n in range(12) for part in ("up", "down")}
    for outside, rule in (
        ({}, lw.layer_decay(0.5)),
        ({"head.weight": torch.ones(2, 2)}, lw.layer_decay(0.5, last="head.*")),
    ):
        safetensors.torch.save_file(arrays | outside, tmp_path / "sorted.safetensors")
        groups = lw.groups(tmp_path / "sorted.safetensors", [rule], lr=1.0)
        found = {name: group["lr"] for group in groups for name in group["param_names"]}
        assert [found[f"layers.{n}.up.weight"] for n in range(12)] == [0.5 ** (12 - n) for n in range(12)]
        assert found.get("head.weight", 1.0) == 1.0


def test_layer_decay_refuses_files_that_do_not_keep_the_order_of_layers(tmp_path: Path) -> None:
    import safetensors.torch

    model = nn.ModuleDict({"wte": nn.Embedding(9, 4), "h": nn.ModuleList(nn.Linear(4, 4) for _ in range(3))})
    model["ln_f"] = nn.LayerNorm(4)
    rates = [group.options["lr"] for group in lw.groups(model, [lw.layer_decay(0.5)], lr=1.0).groups]
    in_order = lw.save(model, tmp_path / "ours.safetensors")
    assert [group.options["lr"] for group in lw.groups(in_order, [lw.layer_decay(0.5)], lr=1.0).groups] == rates
    safetensors.torch.save_file(model.state_dict(), tmp_path / "sorted.safetensors")
    with pytest.raises(
        lw.RuleError, match=r"alphabetical order, .* whether ln_f\.bias comes before or after .*last=.….$"
    ):
        lw.groups(tmp_path / "sorted.safetensors", [lw.layer_decay(0.5)], lr=1.0)


def test_a_checkpoint_is_grouped_by_its_weights_without_buffers_and_the_account_says_what_is_left_out(
    tmp_path: Path,
) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    checkpoint = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state()}
    torch.save(checkpoint, tmp_path / "last.pt")
    groups = lw.groups(tmp_path / "last.pt")
    assert names(groups) == [["model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias"]]
    assert groups.left_out == groups.json()["left_out"] == {"optimizer": 12, "rest": 1}
    assert (
        groups.text().splitlines()[-1] == "weights only; left out: 12 leaves of optimizer state, 1 leaf of other state"
    )
    assert lw.groups(net).left_out == {}


def test_whole_numbers_of_a_file_or_of_numpy_are_not_trained(tmp_path: Path) -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(2, 2))
    model.order = nn.Parameter(torch.arange(3), requires_grad=False)
    path = lw.save(model, tmp_path / "m.safetensors")
    for source in (path, {"weight": np.ones((2, 2)), "order": np.arange(3)}):
        groups = lw.groups(source)
        assert ([group["param_names"] for group in groups], groups.frozen) == ([["weight"]], [])


def test_lists_that_differ_make_different_groups() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(3)])
    rules = [lw.Rule("0.*", betas=[0.9, 0.99]), lw.Rule("1.*", betas=[0.8, 0.99]), lw.Rule("2.*", betas=[0.9, 0.99])]
    groups = lw.groups(model, rules)
    assert [(group["param_names"], group["betas"]) for group in groups] == [
        (["0.weight", "2.weight"], [0.9, 0.99]),
        (["1.weight"], [0.8, 0.99]),
    ]


def test_a_group_has_its_leaves_in_the_order_of_the_model_whichever_rules_made_it() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(3)])
    for tied in (False, True):
        rules = [lw.Rule("{0,2}.*", lr=0.1), lw.Rule("1.*", lr=0.1)]
        if tied:
            model.append(nn.Linear(2, 2, bias=False))
            model[3].weight = model[2].weight
            rules[0] = lw.Rule("{0,2,3}.*", lr=0.1)
        [group] = lw.groups(model, rules)
        assert group["param_names"] == ["0.weight", "1.weight", "2.weight"]
