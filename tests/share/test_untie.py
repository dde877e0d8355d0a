"""`lw.untie`: what becomes independent, and what stays tied."""

import copy
from typing import Any

import pytest
import torch
from tests.share.models import Parts, names, tied_autoencoder, undone_names, view_model
from tools.tie_table import LanguageModel, SharedLayers
from torch import nn

import leafwise as lw


def test_untie_gives_an_independent_copy_with_equal_values() -> None:
    model, x = view_model()
    expected = model(x)
    source = model.encoder.weight
    assert lw.untie(model, "decoder.weight") is model
    assert type(model.decoder) is nn.Linear
    assert names(model) == []
    assert torch.equal(model(x), expected)
    assert model.encoder.weight is source
    assert list(model.state_dict()) == ["encoder.weight", "encoder.bias", "decoder.weight", "decoder.bias"]
    assert not any(key.startswith("_leafwise") for module in model.modules() for key in vars(module))
    model.decoder.weight = nn.Parameter(torch.zeros(4, 3))
    assert lw.tree(model).undone == []


def test_untying_one_of_three_leaves_the_others_tied() -> None:
    model = nn.Sequential(*[nn.Linear(3, 3, bias=False) for _ in range(3)])
    lw.tie(model, "{1,2}.weight", to="0.weight", keep="source")
    lw.untie(model, "0.weight")
    assert names(model) == [["1.weight", "2.weight"]]
    assert torch.equal(model[0].weight, model[1].weight)
    model.to("meta").to_empty(device="cpu")
    assert names(model) == [["1.weight", "2.weight"]]
    state = {f"{n}.weight": torch.full((3, 3), float(n > 0)) for n in range(3)}
    model.load_state_dict(state)
    assert not model[0].weight.any()


def test_untying_a_source_hands_its_views_on() -> None:
    model: Any = nn.ModuleDict({name: nn.Linear(3, 3, bias=False) for name in "abc"})
    lw.tie(model, "b.weight", to="a.weight", keep="source")
    lw.tie(model, "c.weight", to="a.weight", transpose=True, keep="source")
    lw.untie(model, "a.weight")
    assert names(model) == [["b.weight", "c.weight.T"]]
    assert names(copy.deepcopy(model).to("meta").to_empty(device="cpu")) == names(model)
    b = model["b"].weight
    lw.untie(model, "b.weight")
    assert names(model) == []
    assert model["b"].weight is b


def test_modules_are_untied_leaf_by_leaf() -> None:
    shared = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    model: Any = nn.ModuleDict({"a": shared, "b": shared})
    with pytest.raises(lw.TieError, match=r'one parameter of one module, .* lw.untie\(model, "b"\)'):
        lw.untie(model, "b.0.weight")
    lw.keep_ties(model)
    lw.untie(model, "b")
    assert model["a"] is shared
    assert names(model) == []
    assert torch.equal(model["a"][0].weight, model["b"][0].weight)
    assert lw.tree(model).undone == []
    layers = lw.tie(SharedLayers(), "layers.*.attn", to="layers.0.attn", keep="source")
    lw.untie(layers, "layers.1.attn")
    assert names(layers)[0] == ["layers.0.attn.0.weight", "layers.2.attn.0.weight"]
    lw.untie(layers, "**")
    assert names(layers) == []


def test_what_is_not_tied_cannot_be_untied() -> None:
    model = LanguageModel()
    with pytest.raises(lw.TieError, match=r'cannot untie "block.weight": it is not tied to anything'):
        lw.untie(model, "block.weight")
    with pytest.raises(lw.PathError, match=r'did you mean "head.weight"'):
        lw.untie(model, "head.wieght")


def test_a_tie_to_a_name_outside_the_tree_is_not_broken() -> None:
    model = lw.tie(Parts(), "part.a.weight", to="src.weight", keep="source")
    with pytest.raises(lw.TieError, match=r"it is already tied to src.weight"):
        lw.tie(model.part, "a.weight", to="b.weight", keep="source")
    lw.untie(model.part, "a.weight")
    assert model.part["a"].weight is not model.src.weight
    assert undone_names(model) == []
    view = tied_autoencoder()
    lw.untie(view.decoder, "weight")
    assert type(view.decoder) is nn.Linear
    assert undone_names(view) == []


def test_a_module_inside_one_that_is_shared_is_untied_from_the_outside() -> None:
    shared = nn.Sequential(nn.Linear(3, 3))
    weight = shared[0].weight
    model = nn.ModuleDict({"a": shared, "b": shared})
    with pytest.raises(
        lw.TieError, match=r'it is in a, which is used in several places itself; lw.untie\(model, "a"\)'
    ):
        lw.untie(model, "a.0")
    assert shared[0].weight is weight
    lw.untie(model, "a")
    assert len(lw.ties(model)) == 0


def test_a_module_of_which_only_some_leaves_are_selected_is_not_copied() -> None:
    shared = nn.Linear(2, 2)
    model = nn.ModuleDict({"a": shared, "b": shared})
    with pytest.raises(lw.TieError, match=r'only some of its leaves are selected; lw.untie\(model, "b"\)'):
        lw.untie(lw.tree(model).select("**.weight"), "b")
    assert model["a"] is model["b"] is shared
    lw.untie(lw.tree(model).select("b.*"), "b")
    assert names(model) == []


def test_only_the_selected_leaves_of_a_module_are_untied() -> None:
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in "ab"})
    model["b"].weight, model["b"].bias = model["a"].weight, model["a"].bias
    lw.untie(lw.tree(model).select("**.weight"), "b")
    assert names(model) == [["a.bias", "b.bias"]]


def test_ties_inside_a_module_stay_when_it_is_untied_from_the_others() -> None:
    model: Any = nn.ModuleDict({"src": nn.Linear(2, 2, bias=False), "part": nn.Sequential()})
    model["part"].extend(nn.Linear(2, 2, bias=False) for _ in range(3))
    model["part"][0].weight = model["src"].weight
    model["part"][2].weight = model["part"][1].weight
    lw.untie(model, "part")
    assert names(model) == [["part.1.weight", "part.2.weight"]]


def test_untying_every_name_leaves_the_first_the_parameter_that_an_optimizer_has() -> None:
    model = nn.Sequential(*[nn.Linear(2, 2, bias=False) for _ in range(3)])
    first = model[0].weight
    model[1].weight = model[2].weight = first
    lw.untie(model, "**")
    assert names(model) == []
    assert model[0].weight is first


def test_a_tie_that_was_undone_can_be_given_up() -> None:
    model = lw.tie(Parts(), "part.a.weight", to="src.weight", keep="source")
    model.part["a"].weight = nn.Parameter(torch.ones(4, 4))
    assert undone_names(model) == ["part.a.weight"]
    with pytest.warns(lw.TieWarning, match=r"part\.a\.weight"):
        lw.untie(model, "part.a.weight")
    assert undone_names(model) == []
    assert model.part["a"].weight.eq(1).all()
