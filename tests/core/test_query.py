"""Queries: globs, regular expressions, callables, `lw.where`, and their combinations."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import leafwise as lw


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.ModuleDict({"q": nn.Linear(2, 2), "k": nn.Linear(2, 2)})
        self.norm = nn.LayerNorm(2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(3, 2)
        self.layers = nn.ModuleList([Block() for _ in range(12)])
        self.head = nn.Linear(2, 3, bias=False)
        self.head.weight = self.embed.weight


TREE = lw.tree(Model())


def paths(tree: lw.Tree) -> list[str]:
    return [str(path) for path, _ in tree.items()]


@pytest.mark.parametrize(
    ("glob", "count"),
    [
        ("**", 73),
        ("**.weight", 37),
        ("layers.*.norm.weight", 12),
        ("layers.{0..3}.norm.weight", 4),
        ("layers.{0..3,11}.norm.weight", 5),
        ("layers.{0..1,norm}.{attn.k,norm}.bias", 4),
        ("layers.{{0..3},11}.norm.weight", 5),
        ("layers.{1,3,11}.attn.{q,k}.bias", 6),
        ("layers.1?.norm.bias", 2),
        ("layers.0.{attn.q,norm}.weight", 2),
        ("**.attn.**.weight", 24),
        ("layers.*.weight", 0),
        ("*.weight", 1),
        ("head.weight", 1),
        ('"embed".weight', 1),
        ("**.n*m.w*", 12),
        ("nothing", 0),
        # Paths of nodes, which mean everything below them.
        ("layers", 72),
        ("layers.0", 6),
        ("layers.{0..3}", 24),
        ("layers.{0..3,11}", 30),
        ("layers.*.norm", 24),
        ("**.attn", 48),
        ("**.n?rm", 24),
        ("{embed,layers.0.norm}", 3),
        ("layers.0.norm.{weight,bias}", 2),
        ("layers.0.{norm.weight,attn}", 5),
        ("layers.*.{q,norm}", 24),
        ('"layers"."0"', 6),
        # The last entry `*` means leaves, as always.
        ("*", 0),
        ("layers.*", 0),
        ("layers.0.norm.*", 2),
    ],
)
def test_a_glob_selects_what_it_matches(glob: str, count: int) -> None:
    assert len(TREE.select(glob)) == count


@given(
    st.lists(
        st.sampled_from(["**", "*", "layers", "0", "1*", "attn", "q", "weight", "*a*", "norm"]), min_size=1, max_size=5
    )
)
def test_a_glob_selects_what_the_plain_reference_selects(words: list[str]) -> None:
    glob = ".".join(words)
    names = [(leaf, str(name.path).split(".")) for leaf in TREE for name in leaf.names]
    expected = {leaf for leaf, entries in names if reference(words, entries)}
    if words[-1] not in ("*", "**") and (not expected or not any("*" in word for word in words)):
        # It names nodes: an ancestor of the leaf has a path that matches.
        expected |= {leaf for leaf, names in names if any(reference(words, names[:n]) for n in range(1, len(names)))}
    assert set(TREE.select(glob)) == expected


def reference(words: list[str], names: list[str]) -> bool:
    if not words:
        return not names
    if words[0] == "**":
        return any(reference(words[1:], names[skip:]) for skip in range(len(names) + 1))
    matches = names and re.fullmatch(words[0].replace("*", ".*"), names[0])
    return bool(matches) and reference(words[1:], names[1:])


@pytest.mark.parametrize("glob", ["", "a..b", "{a", "a}", '"a', "**.{0..99999}", ".a", "{3..0}", "**weight", "a.b**"])
def test_a_glob_that_cannot_be_read_is_an_error(glob: str) -> None:
    with pytest.raises(lw.QueryError):
        TREE.select(glob)


def test_what_is_not_a_query_is_an_error_that_says_what_is() -> None:
    with pytest.raises(lw.QueryError, match="give a glob"):
        TREE.select(3)


def test_a_regex_is_searched_in_the_whole_path() -> None:
    assert len(TREE.select(re.compile(r"layers\.\d\.norm"))) == 20
    assert paths(TREE.select(re.compile("^head"))) == ["embed.weight"]


def test_a_callable_is_asked_once_for_each_leaf() -> None:
    asked = []
    found = TREE.select(lambda leaf: asked.append(leaf.path) or leaf.ndim == 1)
    assert len(asked) == len(set(asked)) == len(TREE)
    assert all(leaf.ndim == 1 for leaf in found)


def test_a_leaf_matches_if_any_of_its_names_does() -> None:
    assert paths(TREE.select("head.*")) == ["embed.weight"]
    assert paths(TREE.select(lw.where(role="linear.weight", owner="Linear", tied=True))) == ["embed.weight"]
    # Role and owner must hold for one and the same name.
    assert len(TREE.select(lw.where(role="linear.weight", owner="Embedding"))) == 0


def test_where_asks_for_facts() -> None:
    assert len(TREE.select(lw.where(role="norm.*"))) == 24
    assert len(TREE.select(lw.where(role=("norm.scale", "embedding.*")))) == 13
    assert len(TREE.select(lw.where(owner=nn.Linear))) == 49
    assert len(TREE.select(lw.where(owner="L*"))) == 73
    assert len(TREE.select(lw.where(kind="buffer"))) == 0
    assert len(TREE.select(lw.where(dtype="float*", ndim=2))) == 25
    assert len(TREE.select(lw.where(trainable=False))) == 0
    assert len(TREE.select(lw.where(role=None))) == 0
    import torch

    assert len(TREE.select(lw.where(dtype=torch.float32))) == 73


@pytest.mark.parametrize(
    "facts",
    [
        {"dtype": (torch.float32,)},
        {"dtype": [torch.float32, torch.int64]},
        {"dtype": np.float32},
        {"dtype": np.dtype("float32")},
        {"owner": (nn.Linear, nn.BatchNorm1d)},
        {"owner": (nn.Linear, "Batch*")},
        {"device": torch.device("cpu")},
    ],
)
def test_where_takes_dtypes_owners_and_devices_in_any_common_form(facts: dict[str, Any]) -> None:
    assert len(lw.tree(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))).select(lw.where(**facts))) >= 4


def test_where_refuses_what_it_cannot_ask_for() -> None:
    with pytest.raises(lw.QueryError, match=r"cannot select by ndim=2.5; give a number"):
        lw.where(ndim=2.5)
    with pytest.raises(lw.QueryError, match=r"lw.where\(owner=Linear\)"):
        lw.tree(nn.Linear(1, 1)).select(nn.Linear)


def test_queries_combine() -> None:
    norms = lw.where(role="norm.*")
    assert len(TREE.select(norms & "**.bias")) == 12
    assert len(TREE.select("**.bias" & norms)) == 12
    assert len(TREE.select(norms | "embed.*")) == 25
    assert len(TREE.select("embed.*" | norms)) == 25
    assert len(TREE.select(~norms)) == 49
    assert repr(norms & ~lw.Query.of("*.a")) == "Query((where(role='norm.*') & ~'*.a'))"


def test_a_glob_is_read_from_the_root_of_the_tree_it_selects_from() -> None:
    below = TREE["layers.3"]
    assert paths(below.select("norm.weight")) == ["layers.3.norm.weight"]
    assert len(below.select("layers.3.**")) == 0


def test_selections_select_again_and_index() -> None:
    weights = TREE.select("**.weight")
    assert paths(weights.select("layers.0.**"))[0] == "layers.0.attn.q.weight"
    assert "layers.0.attn.q.bias" not in weights
    assert paths(weights["layers.0"]) == [
        "layers.0.attn.q.weight",
        "layers.0.attn.k.weight",
        "layers.0.norm.weight",
    ]
    assert [str(node.path) for node in weights.select("layers.0.norm.*").nodes] == [
        "",
        "layers",
        "layers.0",
        "layers.0.norm",
    ]


def with_an_optimizer() -> lw.Tree:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return lw.tree({"model": net, "optimizer": optimizer})


def test_a_glob_with_wildcards_that_matches_leaves_does_not_name_nodes_of_the_same_name() -> None:
    # The state of an optimizer is below nodes that are named after the weights.
    t = with_an_optimizer()
    assert paths(t.select("**.weight")) == ["model.0.weight", "model.1.weight"]
    assert len(t.select("optimizer.state.model.0.weight")) == 3
    # There is no leaf called weight below the optimizer, so there the glob names the nodes.
    assert len(t.select("optimizer.**.weight")) == len(t["optimizer"].select("**.weight")) == 6


def test_selecting_twice_and_selecting_by_both_queries_agree() -> None:
    t = with_an_optimizer()
    for first, second in (("optimizer", "**.weight"), ("**.weight", "model.0"), ("model", "**.bias")):
        twice, both = t.select(first).select(second), t.select(lw.Query.of(first) & second)
        assert paths(twice) == paths(both)


def test_each_alternative_of_the_last_entry_names_leaves_or_nodes() -> None:
    class Vision(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cls_token = nn.Parameter(torch.zeros(1, 4))
            self.patch = nn.Linear(4, 4)
            self.head = nn.Linear(4, 2)

    t = lw.tree(Vision())
    assert paths(t.select("{cls_token,patch}")) == ["cls_token", "patch.weight", "patch.bias"]
    assert paths(t.select("**.{cls_token,patch}")) == ["cls_token", "patch.weight", "patch.bias"]


def test_a_path_that_is_both_a_leaf_and_a_node_means_both() -> None:
    t = lw.tree({"a": torch.ones(1), "a.b": torch.ones(2), "c": torch.ones(3)})
    assert paths(t.select("a")) == ["a", "a.b"]
    assert paths(t.select("a.*")) == ["a.b"]


def test_a_path_object_of_a_node_means_everything_below_it() -> None:
    assert len(TREE.select(lw.Path("layers.0"))) == 6
    assert len(TREE["layers"].select(lw.Path("layers.0"))) == 6  # absolute
    assert len(TREE.select(lw.Path("layers.0.norm.weight"))) == 1
    assert len(TREE.select(lw.Path(""))) == len(TREE)


def test_a_module_that_is_used_twice_is_named_by_both_of_its_paths() -> None:
    shared = nn.Linear(2, 2)
    t = lw.tree({"a": {"layer": shared}, "b": {"layer": shared}})
    assert paths(t.select("a.layer")) == paths(t.select("b.layer")) == ["a.layer.weight", "a.layer.bias"]
    container = {"x": torch.ones(2)}
    t = lw.tree({"a": container, "b": container})
    assert paths(t.select("a")) == paths(t.select("b")) == ["a.x"]


def test_a_wrapper_is_named_by_its_path_and_everything_in_it_is_selected() -> None:
    t = lw.tree(nn.ModuleDict({"net": nn.DataParallel(nn.Linear(2, 2))}))
    assert paths(t.select("net")) == ["net.weight", "net.bias"]


def test_tie_and_untie_take_a_node_as_a_module() -> None:
    net = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    with pytest.raises(lw.TieError, match="one is a module, the other a leaf"):
        lw.tie(net, "b", to="a.weight")


def test_find_takes_parts_of_paths() -> None:
    assert len(TREE.find("attn.q")) == 24
    assert len(TREE.find("attn", "bias")) == 24
    assert len(TREE.find("ATTN")) == 0
    assert paths(TREE.find("head")) == ["embed.weight"]
    assert len(TREE.find("1")) == 18  # layers 1, 10 and 11
    assert len(TREE.find("layers.1")) == 6  # the path of a node
    assert len(TREE.find("layers.1*", "norm")) == 6  # a glob
    assert len(TREE.find("nothing")) == 0
    assert len(TREE["layers.0"].find("layers")) == 0  # relative to the root of the part
    for wrong in ((), ("",), (3,)):
        with pytest.raises(lw.QueryError, match="give one or more parts of a path"):
            TREE.find(*wrong)


def test_find_distinguishes_case_only_if_the_word_does() -> None:
    t = lw.tree({"LayerNorm": {"weight": torch.ones(1)}, "layernorm": {"weight": torch.ones(1)}})
    assert len(t.find("layern")) == 2
    assert paths(t.find("LayerN")) == ["LayerNorm.weight"]


def test_where_contains_takes_alternatives_and_combines_with_facts() -> None:
    assert len(TREE.select(lw.where(contains=("attn.q", "norm")))) == 48
    assert len(TREE.select(lw.where(contains="norm", role="norm.bias"))) == 12
    for wrong in ("", (), 3, ("a", "")):
        with pytest.raises(lw.QueryError, match=r"cannot select by contains="):
            lw.where(contains=wrong)


def test_a_query_that_matches_nothing_suggests_one_that_does() -> None:
    s = lw.stats(TREE)
    for where, message in {
        "q": 'did you mean "**.q", which matches 24 leaves?',
        "attn.k": 'did you mean "**.attn.k", which matches 24 leaves?',
        "layers.*": 'it matches only nodes: write "layers.**" for the leaves below them',
        "attnn": "did you mean attn?",
        "tn.q": 'find("tn.q") finds 24 leaves: layers.0.attn.q.weight',
    }.items():
        with pytest.raises(lw.PathError) as raised:
            s.fold(where)
        assert message in str(raised.value)


def test_a_tied_leaf_is_not_selected_by_what_excludes_one_of_its_names() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4)})
    model["head"].weight = model["embed"].weight
    selected = lw.tree(model).select(~lw.Query.of("head.weight"))
    assert [str(path) for path, _ in selected.items()] == ["head.bias"]


def test_queries_combined_with_and_match_every_name_of_a_tied_leaf() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(4, 2), "head": nn.Linear(2, 4)})
    model["head"].weight = model["embed"].weight
    both = lw.where(ndim=2) & "**"
    part = lw.tree(model)["head"]  # which does not have the first name of the leaf
    assert [str(path) for path, _ in part.select(both).items()] == ["head.weight"]
    # A rule for only one of the names would contradict the options of the other.
    assert [group["param_names"] for group in lw.groups(model, [lw.Rule(both, lr=0.1)], lr=1.0)] == [
        ["embed.weight"],
        ["head.bias"],
    ]
