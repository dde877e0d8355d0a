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
    names = [(leaf, str(name.path)) for leaf in TREE for name in leaf.names]
    expected = {leaf for leaf, text in names if reference(words, text.split("."))}
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
