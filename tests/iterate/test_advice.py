"""Models with methods for their own training: `group_matcher()` for depths, `no_weight_decay()` for decay."""

import re
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import leafwise as lw


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.mix, self.grow = nn.Linear(width, width), nn.Linear(width, width)


class Advised(nn.Module):
    """Two stages of two blocks each, with `matcher` as its `group_matcher()`."""

    matcher: ClassVar[Any] = {
        "stem": r"^stem|^token",
        "blocks": [
            (r"^stages\.(\d+)\.shrink", (0,)),
            (r"^stages\.(\d+)\.blocks\.(\d+)", None),
            (r"^norm", (99999,)),
        ],
        "unused": None,
    }

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(4, 4)
        self.stages = nn.ModuleList(
            nn.ModuleDict({"shrink": nn.Linear(4, 4), "blocks": nn.ModuleList([Block(), Block()])}) for _ in range(2)
        )
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2)
        self.token = nn.Parameter(torch.zeros(1, 4, 4))

    def group_matcher(self, coarse: bool = False) -> Any:
        assert not coarse
        return self.matcher

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.stem(x)))


def below_top(model: Any, *rules: lw.Rule) -> dict[str, int]:
    """How many times the learning rate of each leaf is halved."""
    groups = lw.groups(model, rules or [lw.layer_decay(0.5)], lr=1.0)
    return {name: -int(torch.tensor(group["lr"]).log2()) for group in groups for name in group["param_names"]}


EXPECTED = {
    "token": 5, "stem.weight": 5, "stages.0.shrink.weight": 4, "stages.0.blocks.0.mix.weight": 4,
    "stages.0.blocks.1.mix.weight": 3, "stages.1.shrink.weight": 2, "stages.1.blocks.0.mix.weight": 2,
    "stages.1.blocks.1.grow.bias": 1, "norm.weight": 1, "head.weight": 0,
}  # fmt: skip


def chosen(found: dict[str, int], front: str = "") -> dict[str, int]:
    return {name: found[front + name] for name in EXPECTED}


def test_a_model_says_itself_how_deep_its_leaves_lie() -> None:
    model = Advised()
    assert chosen(below_top(model)) == EXPECTED
    [account] = lw.groups(model, [lw.layer_decay(0.5)], lr=1.0).rules
    assert account.note == "6 levels by Advised.group_matcher()"
    assert "6 levels by Advised.group_matcher()" in lw.groups(model, [lw.layer_decay(0.5)], lr=1.0).text()


def by_function(name: str) -> Any:
    found = re.match(r"stages\.(\d)\.blocks\.(\d)", name)
    if found:
        return int(found[1]), int(found[2])
    return float("inf") if name.startswith("head") else (1, 99999) if name.startswith("norm") else -1


def test_a_model_may_say_by_a_function_how_deep_its_leaves_lie() -> None:
    model = Advised()
    vars(model)["matcher"] = by_function
    expected = {**EXPECTED, "stages.0.shrink.weight": 5, "stages.1.shrink.weight": 5}
    assert chosen(below_top(model)) == expected


class Wrapper(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.backbone, self.after = nn.Linear(2, 2), Advised(), nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("wrapped", "front"),
    [
        (lambda model: {"net": model}, "net."),
        (lambda model: nn.ModuleDict({"net": model}), "net."),
        (lambda model: nn.DataParallel(model), ""),
        (lambda model: torch.compile(model, backend="eager"), ""),
        (lambda model: lw.tree({"net": model})["net"], "net."),
    ],
    ids=["dict", "module", "wrapper", "compiled", "part"],
)
def test_names_are_seen_from_the_model_that_says_so(wrapped: Callable[[Any], Any], front: str) -> None:
    assert chosen(below_top(wrapped(Advised())), front) == EXPECTED


def test_the_rate_of_a_leaf_does_not_depend_on_which_others_are_asked_for() -> None:
    model = Advised()
    part = below_top(lw.tree(model)["stages"][0])
    assert part == {name: depth for name, depth in below_top(model).items() if name.startswith("stages.0.")}
    where = below_top(model, lw.layer_decay(0.5, "stages.1.**"))
    assert {where[name] for name in where if name.startswith("stages.1.")} == {1, 2}
    assert where["stem.weight"] == 0


def test_what_comes_before_such_a_model_is_as_deep_as_its_stem_and_what_comes_after_as_its_head() -> None:
    found = below_top(Wrapper())
    assert chosen(found, "backbone.") == EXPECTED
    assert (found["before.weight"], found["after.weight"]) == (5, 0)
    headless = Wrapper()
    headless.backbone.head = nn.Identity()
    found = below_top(headless)
    assert (found["before.weight"], found["backbone.norm.weight"], found["after.weight"]) == (5, 1, 0)
    # On its own, the last level has the full learning rate, because nothing comes after it.
    assert below_top(headless.backbone)["norm.weight"] == 0


class Outer(Advised):
    """A model whose children have the method, too."""

    matcher: ClassVar[Any] = {"stem": r"^inner", "blocks": r"^stages\.(\d+)"}

    def __init__(self) -> None:
        super().__init__()
        self.inner = Advised()


def test_the_outermost_model_decides() -> None:
    found = below_top(Outer())
    assert {depth for name, depth in found.items() if name.startswith("inner.")} == {3}
    assert [found[f"stages.{n}.blocks.1.mix.weight"] for n in (0, 1)] == [2, 1]


def test_several_such_models_need_a_rule_each() -> None:
    towers = nn.ModuleList([Advised(), Advised()])
    with pytest.raises(lw.RuleError, match=r"several stacks of blocks: 0, 1; .*layer_decay\(0\.5, '0\.\*\*'\)"):
        below_top(towers)
    found = below_top(towers, lw.layer_decay(0.5, "0.**"), lw.layer_decay(0.25, "1.**"))
    assert chosen(found, "0.") == EXPECTED
    assert chosen(found, "1.") == {name: 2 * depth for name, depth in EXPECTED.items()}


def test_named_blocks_come_before_the_word_of_the_model() -> None:
    found = below_top(Advised(), lw.layer_decay(0.5, blocks="stages.*"))
    assert (found["stages.0.shrink.weight"], found["stages.1.shrink.weight"], found["norm.weight"]) == (2, 1, 0)


def test_a_matcher_that_matches_nothing_leaves_it_to_the_blocks_and_the_account_says_so() -> None:
    model = Advised()
    vars(model)["matcher"] = {"blocks": r"^layers\.(\d+)"}
    groups = lw.groups(model, [lw.layer_decay(0.5)], lr=1.0)
    assert groups.rules[0].note.endswith("by stages.*: Advised.group_matcher() matches no parameter")
    assert below_top(model)["stages.0.blocks.0.mix.weight"] == 2


@pytest.mark.parametrize(
    ("matcher", "message"),
    [
        (["blocks"], "not a dict of patterns or a function"),
        ({"blocks": [r"^stages"]}, "not a pair of pattern and order"),
        ({"blocks": r"^(sta)ges"}, "could not convert"),
        ({"blocks": r"("}, "unterminated"),
        (lambda name: None, "TypeError"),
    ],
)
def test_a_matcher_that_cannot_be_used_is_an_error_that_says_what_to_write(matcher: Any, message: str) -> None:
    model = Advised()
    vars(model)["matcher"] = matcher
    with pytest.raises(
        lw.RuleError, match=rf"Advised\.group_matcher\(\) cannot be used: .*{message}.*blocks='encoder\.\*'"
    ):
        below_top(model)


# -- decay -----------------------------------------------------------------------------------------------------


class Picky(nn.Module):
    def __init__(self, wishes: Any = ("positions", "table.weight"), keywords: Any = ()) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.zeros(1, 5, 4))
        self.table, self.layers = nn.Embedding(7, 4), nn.ModuleList([Block(), Block()])
        self.norm = nn.LayerNorm(4)
        self.wishes, self.keywords = wishes, keywords

    def no_weight_decay(self) -> Any:
        return self.wishes

    def no_weight_decay_keywords(self) -> Any:
        return self.keywords


def undecayed(model: Any, *more: lw.Rule) -> set[str]:
    groups = lw.groups(model, [lw.no_decay(), *more], weight_decay=0.1)
    found = {name for group in groups if not group["weight_decay"] for name in group["param_names"]}
    return {name for name in found if not name.endswith("bias") and "norm" not in name}


def test_what_the_model_wants_without_decay_gets_none_and_the_account_says_why() -> None:
    model = Picky()
    assert undecayed(model) == {"positions", "table.weight"}
    [account] = lw.groups(model, [lw.no_decay()]).rules
    assert account.note == "2 by the model's no_weight_decay(): positions, table.weight"
    assert account.note in lw.groups(model, [lw.no_decay()]).text()
    assert lw.groups(Picky({"norm.weight"}), [lw.no_decay()]).rules[0].note == ""  # not decayed because of its role


def test_a_later_rule_overrides_the_wish() -> None:
    assert undecayed(Picky(), lw.Rule("positions", weight_decay=0.1)) == {"table.weight"}


def test_wishes_may_have_wildcards_and_keywords() -> None:
    assert undecayed(Picky({"layers.*.mix.weight"})) == {"layers.0.mix.weight", "layers.1.mix.weight"}
    assert undecayed(Picky((), {"posi", "0.grow"})) == {"positions", "layers.0.grow.weight"}
    assert undecayed(Picky({"not there"}, [""])) == set()


@pytest.mark.parametrize(
    ("wrapped", "front"),
    [
        (lambda model: {"net": model}, "net."),
        (lambda model: nn.DataParallel(model), ""),
        (lambda model: nn.ModuleDict({"a": nn.ModuleDict({"b": model})}), "a.b."),
    ],
    ids=["dict", "wrapper", "inside"],
)
def test_wishes_are_seen_from_the_model_that_has_them(wrapped: Callable[[Any], Any], front: str) -> None:
    assert undecayed(wrapped(Picky())) == {f"{front}positions", f"{front}table.weight"}


def test_a_part_of_the_model_keeps_its_wishes() -> None:
    assert undecayed(lw.tree(Picky())["table"]) == {"table.weight"}


def test_models_inside_of_models_have_wishes_too() -> None:
    outer = Picky({"inner.layers.0.mix.weight"})
    outer.inner = Picky()
    assert undecayed(outer) == {"inner.layers.0.mix.weight", "inner.positions", "inner.table.weight"}


@pytest.mark.parametrize("name", ["table.weight", "head.weight"])
def test_a_wish_for_one_name_of_a_shared_leaf_holds_for_the_leaf(name: str) -> None:
    model = Picky({name})
    model.head = nn.Linear(4, 7, bias=False)
    model.head.weight = model.table.weight
    assert undecayed(model) == {"table.weight"}


@pytest.mark.parametrize("wishes", ["positions", None, {1, 2}, 5])
def test_wishes_that_are_not_names_are_an_error(wishes: Any) -> None:
    with pytest.raises(
        lw.RuleError, match=r"no_decay\(\): Picky\.no_weight_decay\(\) at \(root\) failed: .*not a set of names"
    ):
        undecayed(Picky(wishes))
