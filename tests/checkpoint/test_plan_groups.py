"""Plans and load errors list what is similar in one line, and their numbers add up."""

import re
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw


class Backbone(nn.Module):
    def __init__(self, name: str = "backbone", layers: int = 6, width: int = 4, head: bool = True) -> None:
        super().__init__()
        blocks = [nn.ModuleDict({"attn": nn.Linear(width, width), "mlp": nn.Linear(width, 8)}) for _ in range(layers)]
        self.add_module(name, nn.ModuleDict({"layers": nn.ModuleList(blocks), "norm": nn.LayerNorm(width)}))
        if head:
            self.classifier = nn.Sequential(nn.Linear(width, width), nn.Linear(width, 2))


def counted(text: str) -> dict[str, int]:
    """The number of leaves in the lines of each kind of problem, and of those that get a value."""
    counts: dict[str, int] = {}
    for line in text.splitlines():
        kind = re.match(r"(missing|unexpected|shape|dtype)", line)
        is_value = "float" in line and not re.match(r"(\w+:|…)", line) and kind is None
        many = re.search(r"\(?([\d,]+) leaves\)?", line)
        if kind or is_value:
            name = kind[0] if kind else "value"
            counts[name] = counts.get(name, 0) + (int(many[1].replace(",", "")) if many else 1)
    return counts


def test_a_backbone_with_another_prefix_is_one_line_and_the_new_head_another() -> None:
    plan = lw.plan(Backbone(), Backbone("bert", head=False).state_dict(), rename="auto")
    lines = plan.text().splitlines()
    assert lines[0] == 'bert.* → backbone.*  (26 leaves)  float32  renamed  only "bert" becomes "backbone"'
    assert "missing: classifier.* (4 leaves) are in the model but not in the source" in lines
    assert len(lines) < 10
    assert counted(plan.text()) == {"value": 26, "missing": 4}
    with pytest.raises(lw.LoadError) as error:
        lw.load(Backbone(), Backbone("bert", head=False).state_dict(), rename="auto")
    assert "  missing: classifier.* (4 leaves) are in the model but not in the source" in str(error.value).splitlines()


def test_layers_that_the_checkpoint_lacks_are_a_range() -> None:
    plan = lw.plan(Backbone(layers=6), Backbone(layers=3).state_dict())
    assert "missing: backbone.layers.{3..5}.* (12 leaves) are in the model but not in the source" in plan.text()
    assert "0 missing" not in plan.text()
    other = lw.plan(Backbone(layers=3), Backbone(layers=6).state_dict())
    assert "unexpected: backbone.layers.{3..5}.* (12 leaves) are in the source but not in the model" in other.text()


def test_shapes_that_differ_in_the_same_way_share_a_line() -> None:
    plan = lw.plan(Backbone(width=6), Backbone(width=4).state_dict())
    text = plan.text()
    assert "shape: backbone.layers.{0..5}.attn.weight (6 leaves) are 6×6 in the model but 4×4 in the source" in text
    assert counted(text)["shape"] == len([problem for problem in plan.problems if problem.kind == "shape"])
    assert counted(plan.text(full=True)) == counted(text)


def test_a_plan_that_fails_only_by_precision_says_cast() -> None:
    half = {name: value.half() for name, value in Backbone().state_dict().items()}
    plan = lw.plan(Backbone(), half)
    assert plan.text().splitlines() == [
        "dtype: all 30 leaves are float32 in the model but float16 in the source; pass cast=True to cast them",
        "0 of 30 leaves, 0% of 398 parameters get a value · cannot be loaded: 30 dtype; cast=True would load it",
    ]
    assert [problem.kind for problem in plan.problems] == ["dtype"] * 30
    with pytest.raises(lw.LoadError, match="pass cast=True to cast them"):
        lw.load(Backbone(), half)
    cast = lw.plan(Backbone(), half, cast=True)
    assert cast.text().startswith("all leaves  (30 leaves)  float16 → float32  cast")
    assert cast.holds


def test_a_cast_and_other_problems_are_advised_together() -> None:
    half: dict[str, Any] = {name: value.half() for name, value in Backbone().state_dict().items()}
    del half["classifier.0.weight"]
    text = lw.plan(Backbone(), half).text()
    assert 'to load everything else, pass allow={"missing"} and cast=True' in text
    assert "(in a shell: --allow missing --cast)" in text
    whole = {name: torch.ones_like(value, dtype=torch.int32) for name, value in Backbone().state_dict().items()}
    assert "cast=True" not in lw.plan(Backbone(), whole).text()


def test_nothing_is_hidden_and_full_lists_each_leaf() -> None:
    plan = lw.plan(Backbone(), Backbone(layers=3, head=False).state_dict())
    full = plan.text(full=True)
    for name in (*plan.missing, *(feed.name for feed in plan.feeds)):
        assert name in full
    assert counted(plan.text()) == counted(full) == {"value": 14, "missing": 16}


def test_the_json_of_a_plan_has_each_problem_with_its_own_message() -> None:
    problems = lw.plan(Backbone(), Backbone("bert").state_dict()).json()["problems"]
    assert problems[0].keys() == {"kind", "name", "message"}
    assert all(problem["name"] in problem["message"] for problem in problems if problem["name"])


def test_a_python_class_in_a_checkpoint_is_named_as_such(tmp_path: Any) -> None:
    from collections import OrderedDict

    torch.save({"weight": OrderedDict, "bias": torch.ones(2)}, tmp_path / "a.pt")
    with pytest.raises(lw.LoadError, match="is an array in the model but a str in the checkpoint"):
        lw.load(nn.Linear(2, 2), tmp_path / "a.pt")
    with pytest.raises(lw.WalkError, match=r"does not save the Python class or function collections\.OrderedDict"):
        lw.save(lw.open(tmp_path / "a.pt"), tmp_path / "b.safetensors")
