"""Trees: indexing, subtrees, names, containers and flat mappings."""

import copy
import dataclasses
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.trees import paths
from torch import nn

import leafwise as lw
from leafwise.core.parts import first_rows


@pytest.fixture
def net() -> nn.Sequential:
    shared = nn.Linear(8, 8)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), shared, nn.ReLU(), shared, nn.Linear(8, 1))


def test_a_tree_of_a_tree_is_that_tree(net: nn.Sequential) -> None:
    tree = lw.tree(net)
    assert lw.tree(tree) is tree


def test_indexing_is_relative_and_paths_are_absolute(net: nn.Sequential) -> None:
    tree = lw.tree({"model": net})
    assert tree["model"]["2"]["weight"].path == lw.Path.parse("model.2.weight")
    assert tree["model"]["2"].path == lw.Path.parse("model.2")
    assert tree["model"][2]["weight"] is tree["model.2.weight"]


def test_a_subtree_reached_by_a_second_name_shows_that_name(net: nn.Sequential) -> None:
    below = lw.tree(net)["4"]
    assert [str(path) for path, _ in below.items()] == ["4.weight", "4.bias"]
    assert below["weight"].path == lw.Path.parse("2.weight")
    assert below.counts.parameters == 72
    assert "72" in below.text()


def test_shared_memory_is_reported_for_subtrees_too() -> None:
    weight = torch.zeros(3)
    model = nn.Module()
    model.a = nn.Parameter(weight)
    model.s = nn.ParameterList([nn.Parameter(weight), nn.Parameter(weight)])
    assert [len(shared.leaves) for shared in lw.tree(model).shared_memory] == [3]
    assert [len(shared.leaves) for shared in lw.tree(model)["s"].shared_memory] == [2]


def test_the_root_of_a_part_of_a_state_dict_has_its_name() -> None:
    tree = lw.tree(nn.Sequential(nn.Linear(2, 2)).state_dict())
    assert tree["0"].text().splitlines()[0].startswith("0 ")


def test_a_tree_takes_its_own_paths() -> None:
    below = lw.tree({"model": nn.Linear(2, 2)})["model"]
    path, leaf = below.items()[0]
    assert below[path] is leaf
    assert path in below
    assert paths(below.select(path)) == [str(path)]
    assert below["weight"] is leaf


def test_leaves_are_made_once(net: nn.Sequential) -> None:
    tree = lw.tree(net)
    assert tree["0.weight"] is tree["0.weight"]
    assert next(iter(tree)) is tree["0.weight"]
    assert len(set(tree)) == 6


def test_the_gradient_is_none_before_backward_and_live_after(net: nn.Sequential) -> None:
    tree = lw.tree(net)
    assert tree["2.weight"].grad is None
    net(torch.randn(3, 4)).sum().backward()
    assert tree["2.weight"].grad is net[2].weight.grad


def test_facts_are_live(net: nn.Sequential) -> None:
    tree = lw.tree(net)
    net[0].requires_grad_(False)
    assert tree["0.weight"].trainable is False
    assert "frozen" in tree.text()
    assert tree.counts.trainable == 81


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("2.wieght", 'nothing at "2.wieght"; did you mean "2.weight"?'),
        ("6", 'nothing at "6"; below the root there are: 0, 1, 2, 3, 4, 5'),
        ("encoder.2.weight", 'nothing at "encoder.2.weight"; did you mean "2.weight"?'),
        ("1.weight", 'nothing at "1.weight"; there is nothing below 1'),
    ],
)
def test_a_path_that_is_not_there_gets_the_nearest_names(net: nn.Sequential, path: str, message: str) -> None:
    with pytest.raises(lw.PathError) as caught:
        lw.tree(net)[path]
    assert str(caught.value) == message
    assert isinstance(caught.value, KeyError)


def test_paths_that_cannot_be_are_not_in_a_tree() -> None:
    tree = lw.tree(nn.Linear(2, 2))
    assert "a..b" not in tree
    assert None not in tree
    with pytest.raises(lw.QueryError, match="a path is a string such as"):
        tree[None]


def test_containers_of_every_kind_are_nodes(net: nn.Sequential) -> None:
    @dataclasses.dataclass
    class State:
        model: nn.Module
        step: int

    class Pair(NamedTuple):
        a: Any
        b: Any

    obj = {"state": State(net, 3), "pair": Pair(torch.zeros(2), [np.ones(3), "text"]), 7: {"x": None}}
    tree = lw.tree(obj)
    assert [str(path) for path, _ in tree.items()][-2:] == ["pair.a", "pair.b.0"]
    assert {str(path): value for path, value in tree.scalars.items()} == {
        "state.step": 3,
        "pair.b.1": "text",
        "7.x": None,
    }
    assert tree["state.step"] == 3
    assert tree["7.x"] is None
    for path, leaf in tree.items():
        assert path.fetch(obj) is leaf.value
        assert eval(path.code("obj"), {"obj": obj}) is leaf.value
    for path, value in tree.scalars.items():
        assert path.fetch(obj) == value


def test_an_object_nobody_walks_is_shown_as_itself() -> None:
    tree = lw.tree({"w": torch.zeros(1), "fn": print, "cfg": object()})
    assert "fn = <builtin_function_or_method>" in tree.text()
    assert tree["fn"] is print


def test_keys_that_print_alike_have_names_of_their_own() -> None:
    obj = {1: torch.zeros(1), "1": torch.ones(1), True + 1: torch.zeros(2), "True": 5}
    tree = lw.tree({**obj, False: "no", "False": "text"})
    assert {str(path): leaf.shape for path, leaf in tree.items()} == {"1": (1,), "1 (int)": (1,), "2": (2,)}
    assert tree["1"].value is obj["1"]
    assert tree["1 (int)"].value is obj[1]
    assert (tree["False"], tree["False (bool)"], tree["True"]) == ("text", "no", 5)


def test_a_flat_mapping_is_split_and_keeps_its_raw_names() -> None:
    state = {"a.b.weight": torch.zeros(1), "a.b.weight.scale": torch.ones(1), "top": torch.zeros(2), "a.n": 3}
    tree = lw.tree(state)
    assert [str(path) for path, _ in tree.items()] == ["a.b.weight", "a.b.weight.scale", "top"]
    assert tree["a.b.weight"].value is state["a.b.weight"]
    assert tree["a.b.weight.scale"].path.code("sd") == "sd['a.b.weight.scale']"
    assert tree["a.n"] == 3


def test_one_key_that_is_not_a_string_does_not_keep_others_from_splitting() -> None:
    state = {"a.w": torch.zeros(1), 0: 1}
    tree = lw.tree(state)
    assert tree["a.w"].path.names == ("a", "w")
    assert tree["a.w"].path.fetch(state) is state["a.w"]
    assert tree["0"] == 1


def test_dotted_keys_beside_nested_ones_are_left_whole() -> None:
    obj = {"a.b": torch.zeros(1), "a": {"b": torch.ones(1)}}
    tree = lw.tree(obj)
    assert [str(path) for path, _ in tree.items()] == ['"a.b"', "a.b"]
    for path, leaf in tree.items():
        assert path.fetch(obj) is leaf.value


@pytest.mark.parametrize("key", [".a", "a.", "..", "a..b", "."])
def test_odd_dots_in_raw_names_split_and_come_back(key: str) -> None:
    state = {key: torch.zeros(1), "plain.x": torch.zeros(2)}
    tree = lw.tree(state)
    path = tree.items()[0][0]
    assert path.names == tuple(key.split("."))
    assert path.fetch(state) is state[key]
    assert tree[str(path)].value is state[key]


def test_an_optimizer_state_dict_holds_state_and_no_parameters(net: nn.Sequential) -> None:
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    tree = lw.tree({"model": net.state_dict(), "optimizer": optimizer.state_dict()})
    assert tree.counts.parameters == 121
    assert tree.counts.state == 2 * 121 + 6
    assert {leaf.kind for leaf in tree["optimizer"]} == {"state"}


def test_numpy_arrays_are_tied_as_tensors_are() -> None:
    base = np.zeros((4, 4), np.float32)
    tree = lw.tree({"a": base, "b": base.T, "c": base[1:], "d": np.zeros(0), "e": np.zeros(0)})
    assert [(str(n.path), str(n.op)) for n in tree["a"].names] == [("a", "same"), ("b", "transpose"), ("c", "view")]
    assert len(tree) == 3
    tree["b"].write(np.ones((4, 4), np.float32))
    assert (base == 1).all()
    raw = bytes(16)
    assert len(lw.tree([np.frombuffer(raw, np.uint8), np.frombuffer(raw, np.uint8)])) == 1
    base.flags.writeable = False
    with pytest.raises(lw.WriteError, match="read-only"):
        lw.tree([base])["0"].write(base)
    with pytest.raises(lw.WriteError, match="float64 of shape"):
        lw.tree({"z": np.zeros(3, np.float32)})["z"].write(np.zeros(3))


def test_all_names_of_a_view_become_names_of_the_array_that_contains_it() -> None:
    def build(whole: torch.Tensor, view: torch.Tensor, again: torch.Tensor) -> nn.Module:
        model = nn.Module()
        for name, buffer in (("view", view), ("again", again), ("whole", whole)):
            model.register_buffer(name, buffer)
        return model

    whole = torch.arange(8.0)
    view = whole[4:]
    model, other = build(whole, view, view), build(torch.zeros(8), torch.zeros(4), torch.zeros(4))
    lw.load(other, model)  # which gets the ties, too
    for tied in (model, other):
        [tie] = lw.ties(tied)
        assert [f"{name.path}{name.op.describe()}" for name in tie.names] == ["whole", "view[4:8]", "again[4:8]"]


def test_a_part_that_knows_a_parameter_as_a_buffer_still_has_a_parameter() -> None:
    model = nn.ModuleDict({"layer": nn.Linear(2, 2, bias=False), "cache": nn.Module()})
    model["cache"].register_buffer("weight", model["layer"].weight.detach())
    [group] = lw.groups(lw.tree(model)["cache"])
    assert group["param_names"] == ["cache.weight"]
    assert group["params"][0] is model["layer"].weight


def test_trees_paths_and_leaves_can_be_copied_and_pickled() -> None:
    net = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.Adam(net.parameters())
    net(torch.zeros(1, 2)).sum().backward()
    optimizer.step()
    tree = lw.tree({"model": net, "optimizer": optimizer})
    before = paths(tree)
    for again in (pickle.loads(pickle.dumps(tree)), copy.deepcopy(tree)):
        assert paths(again) == before


def test_batches_give_arrays_with_their_specs_and_paths_by_home() -> None:
    t = lw.tree({"net": nn.Linear(3, 2), "table": np.zeros((4, 5)), "more": [torch.ones(6)]})
    batches = t.columns.batches(first_rows(t))
    assert {batch.home.name: batch.paths for batch in batches} == {
        "torch": ["net.weight", "net.bias", "more.0"],
        "numpy": ["table"],
    }
    for batch in batches:
        for position, row, value, spec, path in zip(
            batch.positions, batch.rows, batch.values, batch.specs, batch.paths, strict=True
        ):
            leaf = t[path]
            assert row == leaf.row == first_rows(t)[position]
            assert value is leaf.value
            assert (spec.shape, spec.dtype) == (leaf.shape, leaf.dtype)
    [own] = t.columns.batches([0, 1], [torch.zeros(2), torch.zeros(3)])
    assert [len(value) for value in own.values] == [2, 3]
