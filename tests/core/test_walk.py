"""The walk over unusual models: cycles, diamonds, deep nesting, modules that raise."""

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leafwise as lw
from leafwise.core import registry
from leafwise.core.home import Home


def paths(tree: lw.Tree) -> list[str]:
    return [str(path) for path, _ in tree.items()]


def test_a_cycle_through_module_references_ends() -> None:
    parent, child = nn.Linear(2, 2), nn.Linear(2, 2)
    parent.child = child
    child.parent = parent
    tree = lw.tree(parent)
    assert paths(tree) == ["weight", "bias", "child.weight", "child.bias"]
    assert paths(tree) == [name for name, _ in parent.named_parameters()]
    # The name that closes the cycle is not listed again, but it still leads there.
    assert tree["child.parent.weight"] is tree["weight"]
    assert tree["child.parent.child.bias"] is tree["child.bias"]
    assert paths(tree["child.parent"]) == paths(tree)
    assert "→ the root" in tree.text()


def test_the_modules_of_a_cycle_are_listed_once_wherever_else_they_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the record of what is on a cycle, the walk would go round until this limit.
    monkeypatch.setattr("leafwise.core.walk.MAX_REPEATED_NODES", 100)
    parent, child = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
    parent.child = child
    child.parent = parent
    tree = lw.tree(nn.ModuleDict({"first": parent, "second": parent, "third": child}))
    assert [str(path) for leaf in tree for path in leaf.paths] == ["first.weight", "first.child.weight"]
    assert tree["second.child.weight"] is tree["third.weight"] is tree["first.child.weight"]


def test_modules_that_all_refer_to_each_other_are_walked_once() -> None:
    layers = [nn.Linear(1, 1) for _ in range(40)]
    for layer in layers:
        layer.others = nn.ModuleList([other for other in layers if other is not layer])
    tree = lw.tree(nn.ModuleList(layers))
    assert len(tree) == 80
    assert [leaf.value for leaf in tree] == list(nn.ModuleList(layers).parameters())
    assert len(tree.text().splitlines()) <= 60


def test_a_module_reachable_by_very_many_paths_does_not_explode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leafwise.core.walk.MAX_REPEATED_NODES", 1000)
    module: nn.Module = nn.Linear(2, 2)
    for _ in range(40):
        module = nn.Sequential(module, module)
    tree = lw.tree(module)
    assert len(tree) == 2
    assert tree.counts.parameters == 6
    assert tree[".".join("1" * 40) + ".weight"].value.shape == (2, 2)


def test_every_path_to_a_shared_submodule_is_a_name() -> None:
    inner = nn.Linear(1, 1, bias=False)
    middle = nn.Sequential(inner, inner)
    tree = lw.tree(nn.Sequential(middle, middle))
    assert [str(path) for path in tree["0.0.weight"].paths] == ["0.0.weight", "0.1.weight", "1.0.weight", "1.1.weight"]
    assert tree.counts.names == 4


@pytest.mark.slow
def test_containers_nest_deeper_than_python_recurses() -> None:
    deep: Any = [torch.zeros(1)]
    for _ in range(2000):
        deep = [deep]
    tree = lw.tree(deep)
    assert len(tree) == 1
    assert len(tree.text().splitlines()) <= 60
    assert len(tree.text(full=True).splitlines()) > 2000
    assert tree.json()["counts"]["leaves"] == 1


def test_a_list_that_holds_itself_ends() -> None:
    loop: list[Any] = [torch.zeros(2)]
    loop.append(loop)
    assert paths(lw.tree(loop)) == ["0"]


def test_recycled_ids_never_look_tied() -> None:
    class Fresh(dict[str, Any]):
        """Makes a new tensor at each look, so that ids of dead ones are free to be used again."""

        def items(self) -> Any:
            for number in range(200):
                yield f"t{number}", torch.full((1,), float(number))
                gc.collect(0)

    tree = lw.tree({"fresh": list(Fresh().items())})
    assert len(tree) == 200
    assert tree.ties == []


def test_an_interned_empty_container_is_not_a_shared_node() -> None:
    tree = lw.tree({"a": {}, "b": torch.zeros(1), "c": (), "d": ()})
    assert "→" not in tree.text()


class Raises(nn.Module):
    @property
    def _buffers(self) -> Any:
        raise RuntimeError("no buffers today")

    @_buffers.setter
    def _buffers(self, value: Any) -> None:
        pass


def test_a_module_that_raises_in_an_attribute_is_named_by_its_path() -> None:
    net = nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.ReLU()))
    net[1].append(Raises())
    with pytest.raises(lw.WalkError, match=r"cannot walk 1\.1: .*RuntimeError: no buffers today"):
        lw.tree(net)


def test_a_module_that_was_never_initialized_is_named() -> None:
    class Forgetful(nn.Module):
        def __init__(self) -> None:
            pass

    with pytest.raises(lw.WalkError, match=r"cannot walk model: .*does not call super\(\).__init__\(\)"):
        lw.tree({"model": Forgetful()})


@pytest.mark.parametrize("obj", [3, None, object(), 2.5, print])
def test_the_error_for_an_object_that_cannot_be_walked_lists_what_can_be(obj: Any) -> None:
    with pytest.raises(lw.WalkError, match=r"leafwise walks: torch\.nn\.Module, .*dicts, lists, tuples"):
        lw.tree(obj)


def test_the_list_of_what_can_be_walked_has_registered_homes_and_only_imported_frameworks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pages(Home):
        walks = "pages of a book"

        def handles(self, cls: type) -> None:
            return None

    monkeypatch.setattr(registry, "_registered", [Pages()])
    frameworks = {name: modules for name, modules in registry.FRAMEWORKS.items() if name != "torch"}
    monkeypatch.setattr(registry, "FRAMEWORKS", frameworks)
    with pytest.raises(lw.WalkError, match=r"cannot walk builtins\.int; leafwise walks: pages of a book, .*dicts"):
        lw.tree(3)
    with pytest.raises(lw.WalkError) as raised:
        lw.tree(3)
    assert "torch.optim" not in str(raised.value)


@pytest.mark.parametrize("array", [torch.zeros(2), nn.Parameter(torch.zeros(2)), np.zeros(2)])
def test_an_array_is_not_a_tree_and_the_error_says_what_to_pass(array: Any) -> None:
    with pytest.raises(lw.WalkError, match=r"cannot walk .*: it is a single array, not a tree; put it into a dict"):
        lw.tree(array)


def test_a_class_is_not_a_tree_and_the_error_says_what_to_pass() -> None:
    with pytest.raises(lw.WalkError, match="cannot walk the class Linear; pass an instance of it"):
        lw.tree(nn.Linear)


def test_walking_runs_no_hooks_and_no_forward() -> None:
    class Loud(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise AssertionError("nobody asked")

    net = Loud(2, 2)
    net.register_forward_pre_hook(lambda *_: pytest.fail("nobody asked"))
    before = {key: value.clone() for key, value in net.state_dict().items()}
    str(lw.tree(net))
    assert all(torch.equal(value, net.state_dict()[key]) for key, value in before.items())


def test_an_empty_root_has_no_leaves_and_a_root_of_plain_values_is_an_error() -> None:
    assert len(lw.tree([])) == 0
    with pytest.raises(lw.WalkError, match="cannot walk this list: it contains no arrays, only plain values"):
        lw.tree([1, 2])


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_buffer_that_is_persistent_under_any_of_its_names_is_saved(name: str, tmp_path: Path) -> None:
    mask = torch.ones(3)
    model = nn.ModuleDict({"a": nn.Module(), "b": nn.Module()})
    for module, owner in model.items():
        owner.register_buffer("mask", mask, persistent=module == name)
    assert lw.tree(model)["a.mask"].persistent
    file = lw.tree(lw.save(model, tmp_path / "m.safetensors"))
    assert [[str(path) for path in leaf.paths] for leaf in file] == [["a.mask", "b.mask"]]


def test_an_optimizer_before_its_model_names_its_state_by_the_parameters_of_the_model() -> None:
    net = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before, after = lw.tree({"optimizer": optimizer, "net": net}), lw.tree({"net": net, "optimizer": optimizer})
    assert "optimizer.state.net.weight.momentum_buffer" in before
    assert sorted(paths(before)) == sorted(paths(after))
