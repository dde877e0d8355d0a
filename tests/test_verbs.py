"""One way in and one way out: argument names, parts of models, what is returned, what is closed, old spellings."""

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.open_files import DESCRIPTORS, open_files
from torch import nn

import leafwise as lw
from leafwise.core.verbs import opened

CHANGING = ["freeze", "initialize", "keep_ties", "load", "release_ties", "thaw", "tie", "untie"]
LIVE = [*CHANGING, "clip", "flat", "plan", "shard_units", "trainable", "uses"]
ANYTHING = ["check", "edit", "groups", "image", "save", "stats", "ties", "tree", "verify", "view"]


class Halves(nn.Module):
    """Two halves, each with a tie of its own, and a tie between them."""

    def __init__(self) -> None:
        super().__init__()
        for half in ("left", "right"):
            layers = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("a", "b", "c")})
            layers["b"].weight = layers["a"].weight
            self.add_module(half, layers)
        self.right["c"].weight = self.left["c"].weight  # type: ignore[index, union-attr]


def lost_ties(model: nn.Module) -> set[str]:
    """The names that are no longer tied after a trip to meta and back, which unties all that is not kept."""
    before = {str(name.path) for tie in lw.tree(model).ties for name in tie.names}
    model.to("meta").to_empty(device="cpu")
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lw.TieWarning)
        return before - {str(name.path) for tie in lw.tree(model).ties for name in tie.names}


# -- argument names ----------------------------------------------------------------------------------------


def parameters(verb: str) -> list[inspect.Parameter]:
    return list(inspect.signature(getattr(lw, verb)).parameters.values())


@pytest.mark.parametrize("verb", LIVE)
def test_what_must_be_live_is_called_model(verb: str) -> None:
    assert parameters(verb)[0].name == "model"


@pytest.mark.parametrize("verb", ANYTHING)
def test_what_may_be_anything_is_called_source(verb: str) -> None:
    assert parameters(verb)[0].name == "source"


def test_every_verb_is_in_one_of_the_lists() -> None:
    functions = {name for name in lw.__all__ if inspect.isfunction(getattr(lw, name))}
    others = {"add_roles", "diff", "layer_decay", "no_decay", "open", "register", "where"}
    assert {*LIVE, *ANYTHING, *others} == functions


def test_queries_are_called_where_and_follow_what_is_queried() -> None:
    for verb in ("freeze", "thaw", "tie", "untie", "uses"):
        assert parameters(verb)[1].name == "where", verb
    for verb in ("clip", "layer_decay", "save"):
        assert "where" in [parameter.name for parameter in parameters(verb)], verb
    for method in (lw.Tree.select, type(lw.stats({"a": torch.ones(1)})).select):
        assert list(inspect.signature(method).parameters) == ["self", "where"]


def test_options_that_several_verbs_have_are_spelled_the_same_everywhere() -> None:
    """One name, one default; and flags by keyword alone."""
    defaults: dict[str, set[object]] = {}
    for verb in (*LIVE, *ANYTHING, "diff"):
        for parameter in parameters(verb)[1:]:
            if parameter.name in ("progress", "rename", "strict", "optimizer", "of", "allow", "rules"):
                defaults.setdefault(parameter.name, set()).add(repr(parameter.default))
            if isinstance(parameter.default, bool) and parameter.name != "histogram":
                assert parameter.kind == inspect.Parameter.KEYWORD_ONLY, (verb, parameter.name)
    assert defaults.pop("strict") == {
        "True",
        "False",
    }  # clip refuses what is not finite; groups allows what is uncovered
    assert {name: len(values) for name, values in defaults.items()} == dict.fromkeys(defaults, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: lw.clip(model, 1.0, "leaf"), 'write per="leaf"'),
        (lambda model: lw.clip(model, 1.0, per="a.**"), "pass queries as where='a.**'"),
    ],
)
def test_arguments_of_clip_in_the_wrong_place_are_refused_with_the_right_one(call: Any, message: str) -> None:
    with pytest.raises(lw.ArgumentError) as caught:
        call(nn.Linear(2, 2))
    assert message in str(caught.value)
    assert isinstance(caught.value, TypeError)


# -- parts -------------------------------------------------------------------------------------------------


def test_every_changing_verb_returns_the_part_it_was_given(tmp_path: Path) -> None:
    model: Any = Halves()
    left = model.left

    def part() -> lw.Tree:
        tree: lw.Tree = lw.tree(model)["left"]
        return tree

    path = lw.save(left, tmp_path / "left.safetensors")
    with pytest.warns(lw.TieWarning, match="outside this part"):
        kept = lw.keep_ties(part())
    results = {
        "freeze": lw.freeze(part(), "**"),
        "initialize": lw.initialize(part()),
        "keep_ties": kept,
        "load": lw.load(part(), path),
        "release_ties": lw.release_ties(part()),
        "thaw": lw.thaw(part(), "**"),
        "tie": lw.tie(part(), "b.bias", to="a.bias", keep="source"),
        "untie": lw.untie(part(), "b.bias"),
    }
    assert sorted(results) == CHANGING
    assert {verb for verb, result in results.items() if result is not left} == set()


def test_paths_and_queries_are_read_from_the_part() -> None:
    model: Any = Halves()
    lw.tie(lw.tree(model)["right"], "c.bias", to="a.bias", keep="source")
    assert model.right["c"].bias is model.right["a"].bias
    assert model.left["c"].bias is not model.left["a"].bias
    lw.untie(lw.tree(model)["left"], "b.weight")
    assert model.left["b"].weight is not model.left["a"].weight
    assert model.right["b"].weight is model.right["a"].weight
    with pytest.raises(lw.PathError, match="nothing at"):
        lw.tie(lw.tree(model)["left"], "left.a.bias", to="a.bias")


def test_keeping_the_ties_of_a_part_keeps_no_other() -> None:
    model: Any = Halves()
    with pytest.warns(lw.TieWarning, match=r"left\.c\.weight is tied to right\.c\.weight, outside this part") as caught:
        lw.keep_ties(lw.tree(model)["left"])
    assert caught[0].filename == __file__
    marked = {name for name, module in model.named_modules() if "_leafwise_keeper" in vars(module)}
    assert marked == {"left", "left.a", "left.b"}
    assert lost_ties(model) == {"left.c.weight", "right.c.weight", "right.a.weight", "right.b.weight"}


def test_keeping_the_ties_of_a_part_leaves_the_ties_of_the_whole_kept() -> None:
    model: Any = lw.keep_ties(Halves())
    lw.keep_ties(lw.tree(model)["left"])
    assert lost_ties(model) == set()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state["right.c.weight"] = state["right.c.weight"] + 1
    with pytest.raises(lw.TieError, match=r"c\.weight"):
        model.load_state_dict(state)


def test_releasing_the_ties_of_a_part_releases_no_other() -> None:
    model: Any = lw.keep_ties(Halves())
    model.extra = nn.Linear(4, 4)
    lw.tie(model, "extra.weight", to="left.c.weight", keep="source")
    lw.release_ties(lw.tree(model)["left"])
    assert lost_ties(model) == {"left.a.weight", "left.b.weight", "left.c.weight"}


def test_a_selection_is_a_part_too() -> None:
    model: Any = Halves()
    lw.keep_ties(lw.tree(model).select("right.{a,b}.weight"))
    assert lost_ties(model) == {"left.a.weight", "left.b.weight", "left.c.weight", "right.c.weight"}
    model = lw.keep_ties(Halves())
    lw.release_ties(lw.tree(model).select("left.b.*"))
    assert lost_ties(model) == {"left.a.weight", "left.b.weight"}


def test_a_tie_made_in_a_part_is_kept_with_the_names_in_that_part() -> None:
    model: Any = Halves()
    lw.tie(lw.tree(model)["left"], "a.bias", to="b.bias", keep="source")
    marked = {name for name, module in model.named_modules() if "_leafwise_keeper" in vars(module)}
    assert marked == {"left", "left.a", "left.b"}


# -- what is opened is closed ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not DESCRIPTORS.exists(), reason="needs /proc to count open files")
@pytest.mark.parametrize(
    "verb",
    [
        lw.stats,
        lw.check,
        lw.ties,
        lw.groups,
        lw.verify,
        lambda path: lw.image(path, "weight"),
        lambda path: lw.diff(path, path),
        lambda path: lw.plan(nn.Linear(4, 4), path),
        lambda path: lw.plan(path, path),
        lambda path: lw.load(nn.Linear(4, 4), path),
        lambda path: lw.save(path, f"{path}.copy"),
        lambda path: lw.save(path, f"{path}.copy", background=True).wait(),
    ],
)
def test_a_verb_closes_the_file_it_opened(verb: Any, tmp_path: Path) -> None:
    path = lw.save(nn.Linear(4, 4), tmp_path / "a.safetensors")
    with lw.open(path):
        assert open_files(tmp_path), "the test sees files that are open"
    result = verb(path)
    assert open_files(tmp_path) == []
    str(result)  # and what it returned can still be printed


def test_a_tree_that_was_passed_in_stays_open(tmp_path: Path) -> None:
    with lw.open(lw.save(nn.Linear(4, 4), tmp_path / "a.safetensors")) as t:
        lw.stats(t), lw.check(t), lw.ties(t), lw.verify(t), lw.save(t, tmp_path / "b.safetensors")
        assert t["weight"].numpy().shape == (4, 4)


def test_a_missing_package_of_leafwise_is_explained_and_any_other_is_not() -> None:
    with pytest.raises(lw.Error, match=r"lw\.stats needs numpy: pip install numpy"), opened({}, "stats"):
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy.linalg")
    with pytest.raises(ModuleNotFoundError, match="mine"), opened({}, "stats"):
        raise ModuleNotFoundError("No module named 'mine'", name="mine")


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("part", ["left", "right", "right.c"])
def test_a_part_on_meta_is_loaded_without_breaking_ties_that_lead_out_of_it(
    part: str, kept: bool, tmp_path: Path
) -> None:
    whole: Any = Halves()
    path = lw.save(whole.get_submodule(part), tmp_path / "part.safetensors")
    with torch.device("meta"):
        model: Any = Halves()
    if kept:
        lw.keep_ties(model)
    assert lw.load(lw.tree(model)[part], path) is model.get_submodule(part)
    assert model.right["c"].weight is model.left["c"].weight
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name.startswith(part) or name.endswith("c.weight"):
            assert torch.equal(parameter, whole.get_parameter(name)), name
        else:
            assert parameter.is_meta, name


@pytest.mark.parametrize("part", ["encoder", "decoder"])
def test_a_transposed_tie_that_leads_out_of_a_part_on_meta_is_loaded(part: str, tmp_path: Path) -> None:
    def tied() -> Any:
        layers = {"encoder": nn.Linear(3, 5, bias=False), "decoder": nn.Linear(5, 3, bias=False)}
        return lw.tie(nn.ModuleDict(layers), "decoder.weight", to="encoder.weight", transpose=True, keep="source")

    whole = tied()
    path = lw.save(whole[part], tmp_path / "part.safetensors")
    model = tied().to("meta")
    lw.load(lw.tree(model)[part], path)
    assert torch.equal(model["encoder"].weight, whole["encoder"].weight)
    assert torch.equal(model["decoder"].weight, whole["encoder"].weight.T)


LIVE_CALLS: dict[str, Any] = {
    "tie": lambda path: lw.tie(path, "bias", to="weight"),
    "untie": lambda path: lw.untie(path, "bias"),
    "keep_ties": lw.keep_ties,
    "release_ties": lw.release_ties,
    "freeze": lambda path: lw.freeze(path, "**"),
    "thaw": lambda path: lw.thaw(path, "**"),
    "initialize": lw.initialize,
    "clip": lambda path: lw.clip(path, 1.0),
    "flat": lw.flat,
    "uses": lw.uses,
    "Average": lw.Average,
    "trainable": lw.trainable,
}


@pytest.mark.parametrize("verb", LIVE_CALLS)
def test_verbs_that_need_a_model_say_so_if_they_are_given_a_file(verb: str, tmp_path: Path) -> None:
    path = lw.save(nn.Linear(4, 4), tmp_path / "a.safetensors")
    message = (
        rf"a file cannot .*: lw\.{verb} needs a model in memory; load the file into one first: lw\.load\(model, path\)"
    )
    with lw.open(path) as t:
        for file in (path, t):
            with pytest.raises(lw.Unsupported, match=message):
                LIVE_CALLS[verb](file)
        assert t["weight"].numpy().shape == (4, 4)  # a tree that was passed in stays open


def test_advice_about_a_part_is_spelled_as_the_part_needs_it() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones(3))

    model = nn.ModuleDict({"a": nn.ModuleDict({"own": Own()})})
    with pytest.raises(lw.RuleError, match=r'Rule\("own\.gain", init="normal"'):
        lw.initialize(lw.tree(model)["a"])
    with pytest.raises(lw.PathError, match=r"no leaf matches 'a\.\*' in a; paths are relative to it"):
        lw.freeze(lw.tree(model)["a"], "a.*")
    with pytest.raises(lw.PathError, match=r"below a, to which paths are relative, there are: own"):
        lw.tree(model)["a"]["zzz"]
    assert lw.diff(lw.tree(model)["a"], lw.tree(model)["a"]).names == ("ModuleDict: a", "ModuleDict: a")


def pair() -> Any:
    return nn.ModuleDict({name: nn.Linear(4, 4) for name in "abc"})


def test_module_paths_respect_a_selection() -> None:
    model = pair()
    lw.tie(lw.tree(model).select("**.weight"), "b", to="a", keep="source")
    assert model["b"].weight is model["a"].weight
    assert model["b"].bias is not model["a"].bias
    with pytest.raises(lw.PathError, match=r"nothing at|no leaf matches|is a node"):
        lw.tie(lw.tree(model).select("{a,b}.**"), "c", to="a", keep="source")
    model = lw.tie(pair(), "b", to="a", keep="source")
    lw.untie(lw.tree(model).select("**.weight"), "b")
    assert model["b"].weight is not model["a"].weight
    assert model["b"].bias is model["a"].bias
    for selection in ("c.**", "nothing.**"):
        with pytest.raises(lw.PathError):
            lw.untie(lw.tree(model).select(selection), "b")
    assert model["b"].bias is model["a"].bias


def test_part_of_a_shared_module_cannot_be_untied() -> None:
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": shared})
    with pytest.raises(lw.TieError, match="only some of its leaves are selected"):
        lw.untie(lw.tree(model).select("**.weight"), "b")
    assert model["a"] is model["b"]
    lw.untie(lw.tree(model), lw.tree(model)["b"].path)
    assert model["a"] is not model["b"]


@pytest.mark.parametrize(
    "verb",
    [
        lambda part: lw.initialize(part, [lw.Rule("**", init="ones")]),
        lw.stats,
        lw.check,
        lambda part: lw.clip(part, 0.1),
        lw.flat,
        lw.groups,
        lw.Average,
        lambda part: lw.freeze(part, "**"),
        lambda part: lw.thaw(part, "**"),
    ],
)
def test_a_slice_of_a_leaf_outside_a_part_is_not_taken_for_the_whole_leaf(verb: Any) -> None:
    model = nn.ModuleDict({"qkv": nn.Linear(4, 12, bias=False), "q": nn.Linear(4, 4, bias=False)})
    lw.tie(model, "q.weight", to="qkv.weight", slice=slice(0, 4), keep="source")
    model["qkv"].weight.grad = torch.ones(12, 4)
    before = model["qkv"].weight.clone()
    with pytest.raises(lw.WalkError, match=r"q\.weight is qkv\.weight\[0:4, :\], outside this part; use a part that"):
        verb(lw.tree(model)["q"])
    assert torch.equal(model["qkv"].weight, before)
    assert torch.equal(model["qkv"].weight.grad, torch.ones(12, 4))
    assert model["qkv"].weight.requires_grad
    verb(lw.tree(model))  # of the whole model, it is that leaf


def test_an_empty_selection_does_not_replace_a_checkpoint(tmp_path: Path) -> None:
    path = lw.save(pair(), tmp_path / "a.safetensors")
    with pytest.raises(lw.QueryError, match="the selection contains no leaf; nothing was saved"):
        lw.save(lw.tree(pair()).select("typo.**"), path)
    assert len(lw.open(path)) == 6
    assert lw.save(nn.ReLU(), tmp_path / "b.safetensors")  # a model without parameters may be saved


@pytest.mark.parametrize("kept", [False, True])
def test_several_files_into_a_model_on_meta_keep_its_ties(kept: bool, tmp_path: Path) -> None:
    whole: Any = Halves()
    files = {half: lw.save(whole.get_submodule(half), tmp_path / f"{half}.safetensors") for half in ("left", "right")}
    with torch.device("meta"):
        model: Any = Halves()
    if kept:
        lw.keep_ties(model)
    lw.load(model, files)
    assert model.right["c"].weight is model.left["c"].weight
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, whole.get_parameter(name)), name


def test_results_of_a_part_have_the_names_of_the_part() -> None:
    model: Any = Halves()
    part = lw.tree(model)["right"]
    with lw.uses(part) as uses:
        model.right["c"](torch.ones(1, 4)).sum().backward()
    assert {str(path): bool(gradients) for path, gradients in uses.items()}["right.c.weight"]
    assert "right.c.weight" in uses.json()["leaves"]
    assert set(lw.clip(part, 1.0)) == {"right.c.weight", "right.c.bias"}
    with uses, pytest.raises(lw.TieError, match="recorded already"), uses:
        pass
