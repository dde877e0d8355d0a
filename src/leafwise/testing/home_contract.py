"""What every home must do, as tests over a fixture `case`. `tests/contract/test_contract.py` runs them over PyTorch, a
toy and files, and `tests/jax/test_contract.py` over JAX."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leafwise as lw
from leafwise.files.arrays.stored import Stored
from leafwise.files.stored_file import StoredFile
from leafwise.testing import Case, same_bytes


def names_of(tree: lw.Tree) -> dict[str, list[tuple[str, str]]]:
    return {str(leaf.path): [(str(name.path), str(name.op)) for name in leaf.names[1:]] for leaf in tree}


def test_the_leaves_come_in_order_with_all_their_names(case: Case) -> None:
    names = names_of(lw.tree(case.build()))
    assert names == case.leaves
    assert list(names) == list(case.leaves)


def test_a_second_walk_gives_the_same_result(case: Case) -> None:
    obj = case.build()
    assert lw.tree(obj).json() == lw.tree(obj).json()


def test_every_name_can_be_fetched_evaluated_and_parsed(case: Case) -> None:
    obj = case.build()
    tree = lw.tree(obj)
    for leaf in tree:
        for name in leaf.names:
            there = tree[name.path]
            assert there == leaf
            assert there is tree[str(name.path)]
            assert lw.Path.parse(str(name.path)) == name.path
            fetched = name.path.fetch(obj)
            assert same_array(fetched, there.value)
            assert same_array(eval(name.path.code("obj"), {"obj": obj, "jax": sys.modules.get("jax")}), fetched)


def same_array(a: Any, b: Any) -> bool:
    """Whether two arrays are the same object or, for views made at each access, the same memory; for files, equal."""
    if isinstance(a, Stored):
        a = a.read()
    if isinstance(a, np.ndarray):
        b = b.read() if isinstance(b, Stored) else b
        return bool(np.array_equal(a, b))
    torch = sys.modules.get("torch")
    if a is b or torch is None or not isinstance(a, torch.Tensor):
        return a is b
    return bool(a.shape == b.shape and a.stride() == b.stride() and a.data_ptr() == b.data_ptr())


def test_counts_agree_with_the_leaves(case: Case) -> None:
    tree = lw.tree(case.build())
    counts = tree.counts
    assert counts.names == sum(len(leaf.names) for leaf in tree) == sum(len(v) + 1 for v in case.leaves.values())
    assert counts.leaves == len(tree) == len(case.leaves)
    assert counts.parameters == case.parameters
    assert counts.parameters == sum(leaf.size for leaf in tree if leaf.kind == "parameter")
    assert counts.unknown == sum(leaf.shape is None for leaf in tree)
    overlapping = {leaf for shared in tree.shared_memory for leaf in shared.leaves}
    assert counts.bytes <= sum(leaf.nbytes for leaf in tree)
    if not overlapping:
        assert counts.bytes == sum(leaf.nbytes for leaf in tree)


def test_ties_are_the_leaves_with_several_names(case: Case) -> None:
    ties = lw.tree(case.build()).ties
    expected = {path: names for path, names in case.leaves.items() if names}
    assert {str(tie.leaf.path): [(str(n.path), str(n.op)) for n in tie.names[1:]] for tie in ties} == expected


def test_shared_memory_that_is_not_a_tie_is_reported_separately(case: Case) -> None:
    shared = lw.tree(case.build()).shared_memory
    assert tuple(tuple(str(leaf.path) for leaf in group.leaves) for group in shared) == case.shared_memory


def test_the_name_of_a_view_gives_the_view(case: Case) -> None:
    tree = lw.tree(case.build())
    for tie in tree.ties:
        for name in tie.names[1:]:
            seen = tree[name.path]
            if name.op == "same":
                assert seen is tie.leaf
            else:
                assert seen.path == name.path
                assert seen == tie.leaf
                assert seen.size <= tie.leaf.size
                if name.op == "transpose":
                    assert seen.shape == tuple(reversed(tie.leaf.shape or ()))


def test_a_selection_is_a_tree(case: Case) -> None:
    tree = lw.tree(case.build())
    assert names_of(tree.select("**")) == case.leaves
    assert len(tree.select("nothing.of.the.kind")) == 0
    for path, others in case.leaves.items():
        for name in [path, *(other for other, _ in others)]:
            assert names_of(tree.select(name)) == {path: others}
            assert names_of(tree.select(lw.Path.parse(name))) == {path: others}


def test_indexing_by_a_node_gives_a_subtree_with_absolute_paths(case: Case) -> None:
    tree = lw.tree(case.build())
    for node in tree.nodes:
        below = tree[node.path]
        assert isinstance(below, lw.Tree)
        for path, leaf in below.items():
            assert path.names[: len(node.path)] == node.path.names
            assert leaf == tree[path]
            assert below[lw.Path(path.entries[len(node.path.entries) :])] == leaf


def test_the_printed_tree_shows_every_leaf_and_has_at_most_sixty_lines(case: Case) -> None:
    tree = lw.tree(case.build())
    picture = tree.text(full=True)
    for leaf in tree:
        for name in leaf.names:
            assert name.path.name in picture
    assert len(tree.text().splitlines()) <= 60
    assert "\x1b" not in picture


def test_json_and_html_contain_the_same_facts(case: Case) -> None:
    tree = lw.tree(case.build())
    data = json.loads(json.dumps(tree.json()))
    assert {leaf["path"]: [(n["path"], n["op"]) for n in leaf["names"][1:]] for leaf in data["leaves"]} == case.leaves
    assert data["counts"]["parameters"] == case.parameters
    page = tree._repr_html_()
    assert "<script" not in page
    assert page.count("<details") == page.count("</details>")
    assert page.count("<div") == page.count("</div>")


def test_the_error_for_a_missing_path_suggests_similar_names(case: Case) -> None:
    tree = lw.tree(case.build())
    first = next(iter(case.leaves))
    with pytest.raises(lw.PathError, match=r'did you mean .*"'):
        tree[first[:-1] + first[-1] + "x"]
    assert "no.such.leaf" not in tree
    assert first in tree


def test_a_write_is_visible_under_every_name(case: Case) -> None:
    tree = lw.tree(case.build())
    for leaf in tree:
        for name in leaf.names:
            seen = tree[name.path]
            if not case.mutable:
                with pytest.raises(lw.Unsupported):
                    seen.write([0.0])
            elif not case.holds_values:
                if leaf.shape is None or leaf.device == "meta":
                    with pytest.raises(lw.WriteError, match=str(seen.path)):
                        seen.write([0.0])
            else:
                before = seen.numpy().copy()
                seen.write(before * 0 + 3)
                assert (seen.numpy() == 3).all()
                fetched = name.path.fetch(tree.columns.node_objects[0])
                assert (tree.columns.home(fetched).read(fetched) == 3).all()
                with pytest.raises(lw.WriteError, match="nothing was changed"):
                    seen.write(before[None])
                with pytest.raises(lw.WriteError, match="nothing was changed"):
                    seen.write(before.astype("int8"))
                assert (seen.numpy() == 3).all()


def test_a_saved_tree_loads_again_with_its_ties(case: Case, tmp_path: Path) -> None:
    obj = case.build()
    t = lw.tree(obj)
    if not case.holds_values or any(leaf.shape is None for leaf in t):
        with pytest.raises(lw.WalkError, match=r"cannot save .*: (it is on meta|its shape is not known yet)"):
            lw.save(obj, tmp_path / "a.safetensors")
        return
    wanting = [leaf for leaf in t if leaf.dtype in ("complex128", "float6_e2m3fn", "float4_e2m1fn")]
    if wanting:
        with pytest.raises(lw.WalkError, match=r"safetensors cannot store"):
            lw.save(obj, tmp_path / "a.safetensors")
        return
    saved = lw.open(lw.save(obj, tmp_path / "a.safetensors"))
    names = [name.path for leaf in t if leaf.persistent for name in leaf.names]
    for path in names:
        assert same_bytes(saved[path].numpy(), t[path].numpy()), path
    assert {frozenset(leaf.paths) for leaf in saved} == {frozenset(leaf.paths) for leaf in t if leaf.persistent}
    target = case.build()
    if isinstance(target, StoredFile):
        with pytest.raises(lw.LoadError, match=r"cannot load into a file"):
            lw.load(target, saved)
        return
    loaded = lw.load(target, saved)
    assert (loaded is target) == case.mutable
    again = lw.tree(loaded)
    assert names_of(again) == case.leaves
    for path in names:
        assert same_bytes(again[path].numpy(), t[path].numpy()), path
