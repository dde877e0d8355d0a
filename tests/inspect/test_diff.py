"""`lw.diff`: every kind of change between two trees, wherever they live."""

import copy
import gc
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from tests.contract import toy
from tests.files.writers import WRITERS, arrays
from tests.inspect.helpers import Tied, kinds, state
from tests.open_files import open_files
from torch import nn

import leafwise as lw
from leafwise.inspect.diff import renames

# -- the same --------------------------------------------------------------------------------------------------------


def test_a_model_is_the_same_as_its_copy_its_state_dict_and_its_file(tmp_path: Path) -> None:
    net = Tied()
    path = lw.save(net, tmp_path / "net.safetensors")
    torch.save(net.state_dict(), tmp_path / "net.pt")
    for other in (copy.deepcopy(net), net.state_dict(), path, tmp_path / "net.pt"):
        for a, b in ((net, other), (other, net)):
            found = lw.diff(a, b)
            assert found.same
            assert found.counts == {"same": 7}
    assert lw.diff(path, tmp_path / "net.pt").same


def test_an_optimizer_is_the_same_as_its_file_until_it_steps(tmp_path: Path) -> None:
    net = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    both = {"net": net, "optimizer": optimizer, "epoch": 3}
    path = lw.save(both, tmp_path / "run.safetensors")
    assert lw.diff(both, path).same
    optimizer.param_groups[0]["lr"] = 0.05
    optimizer.step()
    both["epoch"] = 4
    found = lw.diff(path, both)
    assert not found.same
    changed = {change.path: change.values for change in found.of("changed") if change.is_plain}
    assert changed["epoch"] == (3, 4)
    assert (0.1, 0.05) in changed.values()
    assert found["net.weight"].kind == "changed"


def test_two_empty_trees_are_the_same() -> None:
    assert lw.diff({}, {}).same
    assert lw.diff({}, {"a": torch.zeros(2)}).counts == {"added": 1}


def test_only_the_same_bits_are_the_same() -> None:
    a = torch.tensor([0.0, 1.0, float("nan")])
    b = torch.tensor([-0.0, 1.0, float("nan")])
    assert lw.diff({"a": a}, {"a": a.clone()}).same
    found = lw.diff({"a": a}, {"a": b})["a"]
    assert found.kind == "changed"
    assert found.comparison.changed == 1
    assert found.comparison.relative_l2 == 0


# -- changed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("where", ["memory", "files", "model and file", "strided"])
def test_the_figures_are_those_of_torch(dtype: torch.dtype, where: str, tmp_path: Path) -> None:
    a = torch.randn(301, 211).to(dtype)
    b = (a.float() * 1.01 + 0.001).to(dtype)
    b[:5] = a[:5]
    ones: Any = {"a": a}
    others: Any = {"a": b}
    if where == "strided":
        ones = {"a": a.T.contiguous().T}
    if where in ("files", "model and file"):
        save_file(others, tmp_path / "b.safetensors")
        others = tmp_path / "b.safetensors"
    if where == "files":
        save_file({"a": a}, tmp_path / "a.safetensors")
        ones = tmp_path / "a.safetensors"
    found = lw.diff(ones, others)["a"]
    x, y = a.double(), b.double()
    assert found.kinds == ("changed",)
    assert found.comparison.changed == int((a != b).sum())
    assert found.comparison.share == found.comparison.changed / a.numel()
    assert found.comparison.relative_l2 == pytest.approx(float((x - y).norm() / x.norm()), rel=1e-12)
    cosine = torch.nn.functional.cosine_similarity(x.reshape(1, -1), y.reshape(1, -1)).item()
    assert found.comparison.cosine == pytest.approx(cosine, rel=1e-12)
    assert found.comparison.largest == float((x - y).abs().max())


def test_memory_layout_does_not_change_a_bit(tmp_path: Path) -> None:
    a, b = torch.randn(700, 900), torch.randn(700, 900)
    save_file({"a": a}, tmp_path / "a.safetensors")
    assert lw.diff({"a": a}, {"a": a})["a"] == lw.diff({"a": a.T.contiguous().T}, {"a": a})["a"]
    right = lw.diff({"a": a}, {"a": b})["a"].comparison
    assert lw.diff(tmp_path / "a.safetensors", {"a": b.numpy()})["a"].comparison == right
    assert lw.diff({"a": a.T.contiguous().T}, {"a": b})["a"].comparison == right
    torch.save({"a": a.T.contiguous().T}, tmp_path / "a.pt")
    assert lw.diff(tmp_path / "a.pt", {"a": b})["a"].comparison == right


def test_trees_of_different_homes_are_compared() -> None:
    with toy.registered():
        a = toy.Model(w=toy.matrix(3, 4), deep=toy.Model(v=toy.matrix(2, 2)))
        b = {
            "w": torch.arange(12.0, dtype=torch.float64).reshape(3, 4),
            "deep": {"v": np.array([[0.0, 1.0], [2.0, 7.0]])},
        }
        found = lw.diff(a, b)
        assert kinds(found) == {"deep.v": ("changed",)}
        assert found["deep.v"].comparison.largest == 4
        turned = lw.diff(a, toy.Model(w=toy.transposed(toy.matrix(3, 4)), deep=a.deep))
        assert kinds(turned) == {"w": ("transposed",)}


def test_complex_and_whole_numbers_are_compared() -> None:
    a = {"c": torch.tensor([3 + 4j, 1j]), "i": torch.tensor([2**60, 1]), "b": torch.tensor([True, False])}
    b = {"c": torch.tensor([3 + 4j, 1 + 1j]), "i": torch.tensor([2**60 + 1, 1]), "b": torch.tensor([True, True])}
    assert lw.diff(a, a).same
    found = lw.diff(a, b)
    assert [found[name].comparison.largest for name in "cib"] == [1, 1, 1]
    assert [found[name].comparison.changed for name in "cib"] == [1, 1, 1]


# -- cast, transposed, reshaped --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_a_cast_is_found_both_ways(dtype: torch.dtype) -> None:
    wide = torch.randn(3, 100)
    narrow = wide.to(dtype)
    for a, b in ((wide, narrow), (narrow, wide)):
        found = lw.diff({"a": a}, {"a": b})["a"]
        assert found.kinds == ("cast",)
        assert found.dtype == str(a.dtype).removeprefix("torch.")
        assert found.other_dtype == str(b.dtype).removeprefix("torch.")
    changed = narrow.clone()
    changed[1, 1] = 30.0
    found = lw.diff({"a": wide}, {"a": changed})["a"]
    assert found.kinds == ("changed",)
    assert found.comparison.largest >= 1


def test_nan_stays_itself_in_a_cast() -> None:
    wide = torch.tensor([1.0, float("nan"), float("inf"), 1e9])
    assert lw.diff({"a": wide}, {"a": wide.half()})["a"].kinds == ("cast",)


def test_whole_numbers_may_be_cast() -> None:
    a = torch.arange(10)
    assert lw.diff({"a": a}, {"a": a.float()})["a"].kinds == ("cast",)
    assert lw.diff({"a": a}, {"a": a.int()})["a"].kinds == ("cast",)
    assert lw.diff({"a": a}, {"a": a.float() + 0.5})["a"].kinds == ("changed",)


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (1, 7), (1500, 1100), (1300, 1300)])
def test_a_transposed_leaf_is_recognized(shape: tuple[int, ...], tmp_path: Path) -> None:
    a = torch.randn(shape)
    turned = a.T.clone(memory_format=torch.contiguous_format)
    save_file({"a": turned}, tmp_path / "a.safetensors")
    assert lw.diff({"a": a}, {"a": turned})["a"].kinds == ("transposed",)
    assert lw.diff(tmp_path / "a.safetensors", {"a": a})["a"].kinds == ("transposed",)
    turned[-1, -1] += 1
    found = lw.diff({"a": a}, {"a": turned})["a"]
    assert found.kind == ("changed" if shape[0] == shape[1] else "reshaped")


def test_a_transpose_is_the_same_bit_by_bit_too() -> None:
    a = torch.randn(3, 5)
    a[1, 2] = float("nan")
    other = a.T.clone(memory_format=torch.contiguous_format)
    assert lw.diff({"a": a}, {"a": other})["a"].kinds == ("transposed",)
    other.view(torch.int32)[2, 1] ^= 1
    assert lw.diff({"a": a}, {"a": other})["a"].kinds == ("reshaped",)


def test_a_transposed_leaf_of_a_compressed_file_is_recognized(tmp_path: Path) -> None:
    a = np.random.default_rng(0).normal(size=(40, 30))
    np.savez_compressed(tmp_path / "a.npz", a=a, b=a[:30] + 1)
    assert kinds(lw.diff(tmp_path / "a.npz", {"a": a.T.copy(), "b": (a[:30] + 1).T.copy()})) == {
        "a": ("transposed",),
        "b": ("transposed",),
    }


def test_a_leaf_that_is_transposed_and_cast_is_recognized() -> None:
    a = torch.randn(3, 5)
    assert lw.diff({"a": a}, {"a": a.T.half()})["a"].kinds == ("transposed", "cast")


def test_a_reshaped_leaf_is_recognized() -> None:
    a = torch.randn(4, 6)
    found = lw.diff({"a": a}, {"a": a.reshape(2, 12)})["a"]
    assert found.kinds == ("reshaped",)
    assert found.comparison.changed == 0
    assert (found.shape, found.other_shape) == ((4, 6), (2, 12))
    assert lw.diff({"a": a}, {"a": a.reshape(24).half()})["a"].kinds == ("reshaped", "cast")
    assert lw.diff({"a": a}, {"a": a.reshape(2, 12) + 1})["a"].comparison.changed == 24
    larger = lw.diff({"a": a}, {"a": torch.zeros(5, 6)})["a"]
    assert larger.kinds == ("reshaped",)
    assert larger.comparison is None


# -- added, removed, renamed -----------------------------------------------------------------------------------------


def test_leaves_that_were_added_or_removed_are_listed() -> None:
    a = {"a": torch.zeros(2), "b": torch.ones(3)}
    b = {"a": torch.zeros(2), "c": {"d": torch.ones(4)}}
    found = lw.diff(a, b)
    assert kinds(found) == {"b": ("removed",), "c.d": ("added",)}
    assert (found["b"].shape, found["c.d"].other_shape) == ((3,), (4,))


def test_renamed_leaves_are_paired_by_their_values(tmp_path: Path) -> None:
    net = Tied()
    old = state(net)
    new = {name.replace("body.", "trunk.block"): value for name, value in old.items()}
    for a, b in ((old, new), (net, lw.save(new, tmp_path / "new.safetensors"))):
        found = lw.diff(a, b)
        assert set(found.counts) <= {"renamed", "same", "tied", "untied"}
        assert {change.path: change.other for change in found.of("renamed")} == {
            name: name.replace("body.", "trunk.block") for name in old if name.startswith("body.")
        }
        assert not found.same
        assert not found.proposals


def test_a_leaf_that_is_renamed_and_transposed_is_recognized() -> None:
    a, b = torch.randn(3, 5), torch.randn(4, 4)
    found = lw.diff({"x": torch.ones(2), "a": a, "b": b}, {"x": torch.ones(2), "c": a.T.contiguous(), "d": b.clone()})
    assert kinds(found) == {"a": ("transposed", "renamed"), "b": ("renamed",)}
    assert found["a"].other == "c"


def test_leaves_with_equal_values_are_paired_by_their_neighbors() -> None:
    old, new = {}, {}
    for number in range(30):
        weight = torch.randn(4, 4)
        old |= {f"h.{number}.attn.w": weight, f"h.{number}.attn.b": torch.zeros(4), f"h.{number}.ln": torch.ones(4)}
        shuffled = 29 - number  # so that order alone would be wrong
        new |= {
            f"z.{number}.m.weight": weight.clone(),
            f"z.{number}.m.bias": torch.zeros(4),
            f"z.{number}.norm": torch.ones(4),
        }
        assert shuffled >= 0
    new = dict(reversed(new.items()))
    found = lw.diff(old, new)
    assert found.counts == {"renamed": 90}
    for change in found:
        number, last = change.path.split(".")[1], change.path.split(".")[-1]
        assert change.other == f"z.{number}.{ {'w': 'm.weight', 'b': 'm.bias', 'ln': 'norm'}[last] }"


def test_no_leaf_is_paired_twice() -> None:
    zeros = torch.zeros(3)
    found = lw.diff(
        {"x": torch.ones(1), "a": zeros, "b": zeros.clone(), "c": zeros.clone()},
        {"x": torch.ones(1), "d": zeros.clone(), "e": zeros.clone()},
    )
    others = [change.other for change in found.of("renamed")]
    assert len(set(others)) == len(others)
    assert len(found.of("renamed")) + len(found.of("removed")) == 3


def test_equal_statistics_alone_do_not_pair_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    a = torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = lw.diff({"x": torch.ones(1), "a": a}, {"x": torch.ones(1), "b": a.flip(0)})
    assert kinds(found) == {"a": ("removed",), "b": ("added",)}
    monkeypatch.setattr(renames, "_by_all_moments", lambda leaf: 0)
    found = lw.diff({"x": torch.ones(1), "a": a}, {"x": torch.ones(1), "b": a + 1})
    assert kinds(found) == {"a": ("removed",), "b": ("added",)}


def test_leaves_with_the_same_statistics_are_paired_by_values_and_not_by_names() -> None:
    p, r = torch.arange(1000.0), torch.arange(1000.0).flip(0)
    found = lw.diff({"a.p": p, "a.q": r}, {"b.q": p, "b.p": r})
    assert {change.path: change.other for change in found} == {"a.p": "b.q", "a.q": "b.p"}
    many = [torch.arange(1000.0).roll(number) for number in range(9)]
    found = lw.diff({f"a.{n}": value for n, value in enumerate(many)}, {f"b.{8 - n}": v for n, v in enumerate(many)})
    assert {change.path: change.other for change in found} == {f"a.{n}": f"b.{8 - n}" for n in range(9)}


def test_a_renamed_leaf_that_is_tied_on_one_side_is_paired_once() -> None:
    p = torch.randn(3, 3)
    found = lw.diff({"e": p, "h": p}, {"x": p.clone(), "y": p.clone()})
    assert kinds(found) == {"e": ("renamed",), "y": ("added",)}
    found = lw.diff({"x": p.clone(), "y": p.clone()}, {"e": p, "h": p})
    assert kinds(found) == {"x": ("renamed",), "y": ("removed",)}


@pytest.mark.parametrize("inside", [False, True])
def test_an_optimizer_and_its_numbered_state_dict_do_not_differ(inside: bool) -> None:
    net = nn.Linear(3, 3)
    optimizer = torch.optim.AdamW([{"params": [net.weight]}, {"params": [net.bias], "lr": 0.5}])
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    one: Any = {"net": net, "optimizer": optimizer} if inside else optimizer
    other: Any = optimizer.state_dict()
    other = {"net": net.state_dict(), "optimizer": other} if inside else other
    for a, b in ((one, other), (other, one)):
        assert lw.diff(a, b).of("changed") == []
        assert lw.diff(a, b).same != inside  # inside a model, the state is named after the parameters


def test_a_rename_may_be_a_mapping_patterns_a_function_or_auto() -> None:
    a = {"old.w": torch.ones(2), "old.b": torch.zeros(2)}
    b = {"new.w": torch.ones(2), "new.b": torch.zeros(2) + 1}
    for rename in ({"old": "new"}, [(r"^old\.", "new.")], lambda name: name.replace("old", "new"), "auto"):
        found = lw.diff(a, b, rename=rename)
        assert kinds(found) == {"old.b": ("changed",)}
        assert found["old.w"].other == "new.w"
        assert found["new.w"] is found["old.w"]
    assert lw.diff(a, b, rename="auto").applied
    assert lw.diff({**a, "x": torch.ones(1)}, {"x": torch.ones(1)}, rename={"old": None}).same
    with pytest.raises(lw.QueryError, match="rename="):
        lw.diff(a, b, rename=3)
    assert "matches no name" in lw.diff(a, a, rename={"nothing": "other"}).notes[0]


def test_well_known_prefixes_are_not_a_difference() -> None:
    net = nn.Linear(2, 2)
    found = lw.diff({f"module.{name}": value for name, value in net.state_dict().items()}, net)
    assert found.same
    assert found.prefixes[0].source == "module."
    assert found["module.weight"].other == "weight"


def test_possible_renames_are_proposed() -> None:
    a = {"x": torch.ones(1), "old.weight": torch.randn(3, 4)}
    b = {"x": torch.ones(1), "new.weight": torch.randn(3, 4)}
    found = lw.diff(a, b)
    assert found.proposals[0].pairs == (("old.weight", "new.weight"),)
    assert 'rename="auto"' in found.text()


# -- plain values, metadata, passing buffers -------------------------------------------------------------------------


def test_metadata_of_files_is_only_noted(tmp_path: Path) -> None:
    for name, said in (("a", "1"), ("b", "2")):
        save_file({"w": torch.ones(2)}, tmp_path / f"{name}.safetensors", metadata={"step": said})
    found = lw.diff(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert found.same
    assert found.notes == ["the metadata of the files differs: step"]


def test_buffers_that_are_never_saved_do_not_count_as_missing() -> None:
    net = nn.Linear(2, 2)
    net.register_buffer("cache", torch.ones(3), persistent=False)
    assert lw.diff(net, net.state_dict()).same
    other = copy.deepcopy(net)
    other.cache = torch.zeros(3)
    assert kinds(lw.diff(net, other)) == {"cache": ("changed",)}


# -- what cannot be compared -----------------------------------------------------------------------------------------


def test_meta_is_an_error_that_says_what_to_do() -> None:
    net, shape = nn.Linear(2, 2), nn.Linear(2, 2, device="meta")
    with pytest.raises(lw.WalkError, match=r"weight: a meta tensor .* values=False"):
        lw.diff(net, shape)
    assert lw.diff(net, shape, values=False).same
    some = {"a": torch.ones(2), "b": torch.ones(2, device="meta")}
    found = lw.diff(some, {"a": torch.ones(2), "b": torch.ones(2)})
    assert kinds(found) == {"b": ("unknown",)}
    assert not found.same
    assert "meta" in found["b"].notes[0]


def test_lazy_layers_are_an_error_unless_only_structure_is_compared() -> None:
    with pytest.raises(lw.WalkError, match="lazy"):
        lw.diff(nn.LazyLinear(3), nn.Linear(2, 3))
    found = lw.diff(nn.LazyLinear(3), nn.Linear(2, 3), values=False)
    assert set(found.counts) == {"unknown"}


def test_structure_alone_reads_no_value() -> None:
    a = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3)).to("meta")
    b = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 4)).to("meta", torch.float16)
    found = lw.diff(a, b, values=False)
    assert found["0.weight"].kinds == ("cast",)
    assert found["1.weight"].kinds == ("reshaped", "cast")
    assert found["0.weight"].comparison is None
    assert "values were not compared" in found.text()


def test_nothing_in_common_is_an_error_that_shows_both_sides() -> None:
    with pytest.raises(lw.QueryError, match=r"a has one; b has two\.a, two\.b.*rename="):
        lw.diff({"one": torch.ones(3)}, {"two": {"a": torch.zeros(2), "b": torch.ones(4)}})
    same = torch.randn(3, 3)
    assert lw.diff({"one": same}, {"two": same.clone()}).counts == {"renamed": 1}  # the values are in common


def test_masks_objects_and_sparse_tensors_are_unknown() -> None:
    a = {
        "x": torch.ones(1),
        "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
        "sparse": torch.eye(3).to_sparse(),
        "records": np.zeros(2, [("a", "f4"), ("b", "i4")]),
        "words": np.array(["a", "b"]),
    }
    found = lw.diff(a, {**a, "sparse": torch.eye(3), "records": np.ones(2, [("a", "f4"), ("b", "i4")])})
    assert {change.path for change in found.of("unknown")} == {"masked", "sparse", "records", "words"}


def test_unknown_paths_and_kinds_are_an_error() -> None:
    found = lw.diff({"a": torch.ones(1)}, {"a": torch.ones(1)})
    assert "a" in found
    assert "b" not in found
    with pytest.raises(lw.PathError, match="b"):
        found["b"]
    with pytest.raises(lw.QueryError, match="'nonsense' is not a kind of change; the kinds are removed"):
        found.of("nonsense")
    with pytest.raises(lw.QueryError, match="depth"):
        found.text(depth=-1)


# -- files -----------------------------------------------------------------------------------------------------------


def test_files_that_are_opened_are_closed_and_others_stay_open(tmp_path: Path) -> None:
    path = lw.save({"a": torch.zeros(1_000)}, tmp_path / "a.safetensors")
    for _ in range(3):
        lw.diff(path, path)
        with pytest.raises(lw.FileError):
            lw.diff(path, tmp_path / "nothing.safetensors")
    assert open_files(tmp_path) == []
    with lw.open(path) as t:
        assert open_files(tmp_path) == [str(path)]
        assert lw.diff(t, path).same
        assert t["a"].numpy().shape == (1_000,)


def test_a_file_that_is_truncated_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = lw.save({"a": torch.zeros(300_000)}, tmp_path / "a.safetensors")
    with lw.open(path) as t:
        os.truncate(path, 5_000)
        with pytest.raises(lw.FileError, match=r"a\.safetensors.*shorter than when it was opened"):
            lw.diff(t, {"a": torch.zeros(300_000)})


def test_a_file_that_is_written_to_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = lw.save({"a": torch.zeros(300)}, tmp_path / "a.safetensors")
    with lw.open(path) as t:
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\1")
        os.utime(path, ns=(1, 1))
        with pytest.raises(lw.FileError, match="was changed while"):
            lw.diff(t, {"a": torch.zeros(300)})


def test_parts_of_trees_are_compared(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[1].bias.add_(1)
    assert lw.diff(lw.tree(net).select("**.weight"), lw.tree(other).select("**.weight")).same
    assert lw.diff(lw.tree(net)["0"], lw.tree(other)["0"]).same
    found = lw.diff(lw.tree(net)["0"], lw.tree(net)["1"])
    assert found["0.weight"].other == "1.weight"
    assert found.counts == {"changed": 2}


@pytest.mark.slow
def test_fifty_thousand_leaves_are_compared_in_a_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    a = {f"l.{number}.w": np.full(3, number, np.float32) for number in range(5_000)}
    b = {f"m{name[1:]}": value.copy() for name, value in a.items()}
    assert lw.diff({"x": np.ones(1), **a}, {"x": np.ones(1), **b}).counts["renamed"] == 5_000


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_is_the_same_as_what_was_written(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / "model", arrays())
    assert lw.diff(tmp_path / "model", tmp_path / "model").same
    found = lw.diff(tmp_path / "model", arrays())
    assert set(found.counts) <= {"same", "reshaped"}  # some formats have no arrays without axes
    assert not any(change.comparison.changed for change in found)


def test_a_file_behind_a_url_is_compared(tmp_path: Path) -> None:
    value = torch.randn(1_000, 300)
    path = lw.save({"a": value}, tmp_path / "a.safetensors")
    fsspec.filesystem("memory").pipe("/diff.safetensors", Path(path).read_bytes())
    assert lw.diff("memory://diff.safetensors", path).same
    assert lw.diff({"a": value + 1}, "memory://diff.safetensors")["a"].comparison.changed > 299_000


def zeros(path: Path, **arrays: tuple[str, list[int], int]) -> Path:
    """A sparse file of zeros, of which only the header takes disk space."""
    header, end = {}, 0
    for name, (dtype, shape, nbytes) in arrays.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + nbytes]}
        end += nbytes
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + end)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("how", ["same", "cast", "transposed", "renamed"])
def test_memory_is_bounded_whatever_the_files_are(how: str, tmp_path: Path) -> None:
    size = 1 << 28
    one = zeros(tmp_path / "one", x=("F32", [1], 4), a=("F32", [1 << 12, 1 << 14], size))
    kinds = {
        "same": ("a", "F32", [1 << 12, 1 << 14], size),
        "cast": ("a", "BF16", [1 << 12, 1 << 14], size // 2),
        "transposed": ("a", "F32", [1 << 14, 1 << 12], size),
        "renamed": ("b", "F32", [1 << 12, 1 << 14], size),
    }
    name, *facts = kinds[how]
    other = zeros(tmp_path / "other", x=("F32", [1], 4), **{name: tuple(facts)})  # type: ignore[arg-type]
    script = (
        "import leafwise as lw, sys; found = lw.diff(sys.argv[1], sys.argv[2]);"
        "[most] = [line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM')];"
        "print(found['a'].kind, int(most) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", script, one, other], capture_output=True, encoding="utf-8", check=True)
    kind, megabytes = done.stdout.split()
    assert kind == how
    assert int(megabytes) < 200


def test_a_diff_does_not_keep_models_in_memory() -> None:
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    weights = weakref.ref(a.weight), weakref.ref(b.weight)
    d = lw.diff(a, b)
    del a, b
    gc.collect()
    assert [weight() for weight in weights] == [None, None]
    assert [change.path for change in d] == ["weight", "bias"]  # which are made only now


def test_changes_are_listed_in_the_order_of_the_first_tree_and_what_was_added_comes_last() -> None:
    before = {name: torch.zeros(2) for name in "abcd"}
    after = {"new": torch.ones(3), "a": torch.ones(2), "c": torch.zeros(2), "d": torch.ones(2)}
    assert [change.path for change in lw.diff(before, after)] == ["a", "b", "c", "d", "new"]
