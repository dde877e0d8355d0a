"""The messages of `lw.check`: the figures, what to type, and how they are printed."""

import copy
from typing import Any

import pytest
import torch
from tests.inspect.helpers import codes, faulty, fresh, levels_and_codes
from torch import nn

import leafwise as lw
from leafwise.inspect.check.findings import LEVELS
from leafwise.inspect.check.rules.registry import all_rules


def test_the_message_has_the_figure_and_what_to_do() -> None:
    net = nn.Linear(512, 512)
    nn.init.normal_(net.weight)
    [one] = lw.check(net)
    assert (one.code, one.level) == ("LW201", "note")
    assert "16 × that of kaiming_normal (0.0625)" in one.message
    assert "the distribution looks normal" in one.message
    command = one.message.partition("to draw it again: ")[2]
    model = net
    torch.nn.init.zeros_(net.bias)
    eval(command, {"lw": lw, "model": model})
    assert codes(lw.check(net)) == []
    assert not net.bias.any()  # only that leaf was drawn again


def test_what_is_proposed_for_a_leaf_without_a_role_can_be_typed() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(8, 8))

    model = Own()
    [one] = lw.check(model)
    eval(one.message.rpartition(": ")[2], {"lw": lw, "model": model})
    assert codes(lw.check(model)) == []


@pytest.mark.parametrize("name", ['a"b', "a*", "a b", "a\\b", "back\n"])
def test_what_to_type_can_be_typed_whatever_the_names_are(name: str) -> None:
    model = nn.ModuleDict({name: nn.Linear(8, 8), "ab": nn.Linear(8, 8)})
    nn.init.constant_(model[name].weight, 1.0)
    other = model["ab"].weight.detach().clone()
    [one] = lw.check(model)
    eval(one.message.partition("symmetry: ")[2], {"lw": lw, "model": model})
    assert levels_and_codes(lw.check(model)) == []
    assert torch.equal(model["ab"].weight, other)


def test_a_proposed_tie_can_be_made_as_it_is_written() -> None:
    def tie(found: Any, model: Any) -> None:
        [one] = found
        eval(one.message.partition("be tied: ")[2], {"lw": lw, "model": model})

    model = nn.ModuleDict({"a": nn.Linear(12, 12, bias=False), "b": nn.Linear(12, 12, bias=False)})
    model["b"].weight.data.copy_(model["a"].weight.T)
    tie(lw.check(model, select="LW303"), model)
    assert levels_and_codes(lw.check(model, select="LW3")) == []
    model = nn.ModuleDict({"a": nn.Linear(8, 12, bias=False), "b": nn.Linear(8, 12, bias=False)})
    model["b"].weight = nn.Parameter(model["a"].weight.data)
    tie(lw.check(model, select="LW304"), model)
    assert levels_and_codes(lw.check(model, select="LW3")) == []


def test_no_tie_is_proposed_if_the_leaves_cannot_be_tied() -> None:
    net = nn.Linear(4, 4)
    net.register_buffer("kept", net.weight.detach().clone())
    [one] = lw.check(net, select="LW303")
    assert "lw.tie" not in one.message


def test_findings_are_a_sequence_the_worst_first() -> None:
    found = lw.check(faulty())
    assert [one.level for one in found] == ["error", "warning"]
    assert (len(found.errors), len(found.warnings), len(found.notes), found.ok) == (1, 1, 0, False)
    assert found.codes == {"LW101": 1, "LW110": 1}
    assert found[0] == lw.check(faulty())[0]
    assert set(found.rules) == {code for code, rule in all_rules().items() if not rule.opt_in}


def test_the_footer_says_how_much_was_checked() -> None:
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


def test_findings_as_plain_data_have_counts_and_levels() -> None:
    data = lw.check(faulty()).json()
    assert data["counts"] == {"error": 1, "warning": 1, "note": 0}
    assert data["findings"][0]["code"] == "LW101"
    assert data["ok"] is False
    assert data["checked"] == 4
    assert set(data["counts"]) == set(LEVELS)


def test_messages_are_wrapped_when_a_line_is_too_short() -> None:
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
    assert any(line.startswith("warning LW104  short.0.weight  all 512 values are 1") for line in lines)
