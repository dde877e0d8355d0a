"""Ties of parts of a model: what `lw.keep_ties` and `lw.release_ties` do there, and what they leave alone."""

import pickle

import pytest
import torch
from tests.share.models import Parts, names, undone_names
from torch import nn

import leafwise as lw


def test_keeping_the_ties_of_a_part_again_adds_nothing() -> None:
    model = lw.tie(Parts(), "part.{a,b}.weight", to="src.weight", keep="source")
    sizes = {len(pickle.dumps(lw.keep_ties(lw.tree(model)["part"]) and model)) for _ in range(3)}
    assert len(sizes) == 1


def test_a_name_that_is_kept_in_a_part_loads_the_names_outside_of_it() -> None:
    model = lw.tie(Parts(), "part.a.weight", to="src.weight", keep="source")
    model.part["b"].weight = model.part["a"].weight
    lw.keep_ties(lw.tree(model)["part"])
    model.load_state_dict({"part.b.weight": torch.ones(4, 4)})
    assert model.src.weight.eq(1).all()
    model.to("meta").to_empty(device="cpu")
    assert names(model) == [["src.weight", "part.a.weight", "part.b.weight"]]


def test_the_ties_of_a_part_are_not_expected_of_what_replaces_the_part() -> None:
    def build() -> nn.ModuleDict:
        return nn.ModuleDict({name: nn.Linear(2, 2, bias=False) for name in "ab"})

    model = nn.ModuleDict({"part": lw.tie(build(), "b.weight", to="a.weight", keep="source")})
    lw.keep_ties(lw.tree(model)["part"])
    model["part"] = build()
    assert undone_names(model) == []


def test_keeping_the_ties_of_a_part_says_nothing_about_ties_elsewhere() -> None:
    model = Parts()
    model.part["b"].weight = model.part["a"].weight
    lw.keep_ties(lw.tree(model)["src"])  # a warning would be an error
    model.to("meta").to_empty(device="cpu")
    assert names(model) == []


def test_a_part_that_has_only_views_keeps_no_tie_and_warns() -> None:
    model = nn.Module()
    model.table = nn.Parameter(torch.arange(12.0).reshape(4, 3))
    model.part = nn.Module()
    for name in ("first", "second"):
        model.part.register_buffer(name, model.table.detach()[:2])
    with pytest.warns(lw.TieWarning, match="part.first, part.second is tied to table, outside this part"):
        lw.keep_ties(lw.tree(model)["part"])
    model.part.first = torch.zeros(2, 3)
    assert undone_names(model) == []


def test_ties_that_are_not_selected_are_still_kept_when_others_are_released() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in "ab"})
    lw.tie(model, "b", to="a", keep="source")
    lw.release_ties(lw.tree(model).select("**.weight"))
    model.to("meta").to_empty(device="cpu")
    assert names(model) == [["a.bias", "b.bias"]]
