"""The largest leaves, and totals by a property of the leaves."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.embed = nn.Embedding(100, 8)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(3)])
        self.head = nn.Linear(8, 100, bias=False)
        self.head.weight = self.embed.weight
        self.layers[2].to(torch.bfloat16)


def checkpoint() -> dict[str, Any]:
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    for parameter in net.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"model": net, "optimizer": optimizer, "epoch": 3}


TREE = lw.tree(checkpoint())


def summed(t: lw.Tree, name_of: Callable[[lw.Leaf], str]) -> dict[str, tuple[int, int, int, int]]:
    """The sums by a loop over the leaves."""
    sums: dict[str, tuple[int, int, int, int]] = {}
    for leaf in t:
        before = sums.get(name_of(leaf), (0, 0, 0, 0))
        own = (1, leaf.size if leaf.kind == "parameter" else 0, leaf.size, leaf.nbytes)
        sums[name_of(leaf)] = tuple(a + b for a, b in zip(before, own, strict=True))  # type: ignore[assignment]
    return sums


@pytest.mark.parametrize(
    ("what", "name_of"),
    [
        ("dtype", lambda leaf: leaf.dtype),
        ("kind", lambda leaf: leaf.kind),
        ("section", lambda leaf: leaf.section),
        ("role", lambda leaf: leaf.role or "(no role)"),
        ("type", lambda leaf: leaf.owner or "(unknown)"),
        ("device", lambda leaf: leaf.device),
        ("depth", lambda leaf: str(len(leaf.path))),
        ("module", lambda leaf: leaf.path.names[0]),
    ],
)
def test_totals_are_those_of_a_loop_and_add_up_to_the_counts(what: str, name_of: Callable[[lw.Leaf], str]) -> None:
    totals = TREE.by(what)
    assert {row.name: row[1:5] for row in totals if row.leaves} == summed(TREE, name_of)
    counts = TREE.counts
    assert sum(row.leaves for row in totals) == counts.leaves == totals.leaves
    assert sum(row.parameters for row in totals) == counts.parameters == totals.parameters
    assert sum(row.bytes for row in totals) == counts.bytes == totals.bytes
    assert sum(row.share for row in totals) == pytest.approx(1)
    if what != "depth":
        assert [row.bytes for row in totals] == sorted((row.bytes for row in totals), reverse=True)


def test_modules_are_the_nodes_below_the_root_or_as_deep_as_asked() -> None:
    net = TREE["model"]
    assert {row.name for row in net.by("module")} == {"embed", "layers", "head", "(root)"}
    assert {row.name for row in net.by("module", depth=2)} == {
        "embed", "layers.0", "layers.1", "layers.2", "head", "(root)"
    }  # fmt: skip
    # A single key above everything is not a group of its own.
    assert {row.name for row in lw.tree({"model": Net()}).by("module")} == {
        "model", "model.embed", "model.layers", "model.head"
    }  # fmt: skip


def test_a_tied_name_is_counted_in_one_group_and_listed_in_the_other() -> None:
    rows = {row.name: row for row in TREE["model"].by("module")}
    assert (rows["embed"].leaves, rows["embed"].tied) == (1, 0)
    assert (rows["head"].leaves, rows["head"].bytes, rows["head"].tied) == (0, 0, 1)
    assert "1 tied" in TREE["model"].by("module").text()
    assert all(row.tied == 0 for row in TREE.by("dtype"))  # both names are in the same group


def test_memory_that_several_leaves_share_is_counted_once_in_the_total() -> None:
    memory = torch.zeros(10)
    a, b = nn.Parameter(memory[:6]), nn.Parameter(memory[4:])
    t = lw.tree({"a": a, "b": b})
    totals, top = t.by("dtype"), t.top()
    assert totals.bytes == top.bytes == t.counts.bytes == 40
    assert [row.bytes for row in totals] == [48]
    assert totals.shared_bytes == top.shared_bytes == 8
    assert "8 B of memory is shared by several leaves" in totals.text()


def test_the_groups_beyond_the_largest_become_one_row() -> None:
    whole, limited = TREE.by("type"), TREE.by("type", top=2)
    assert limited[:2] == whole[:2]
    assert limited[2].name == f"… {len(whole) - 2} others"
    assert limited[2].bytes == sum(row.bytes for row in whole[2:])
    assert limited.others == len(whole) - 2
    assert TREE.by("type", top=99).others == 0
    assert limited.bytes == whole.bytes


def test_the_largest_leaves_come_first_and_tied_leaves_once() -> None:
    top = TREE["model"].top(3)
    sizes = sorted((leaf.nbytes for leaf in TREE["model"]), reverse=True)
    assert [row.bytes for row in top] == sizes[:3]
    assert (top[0].path, top[0].shape, top[0].dtype) == ("model.embed.weight", (100, 8), "float32")
    assert top[0].tied == ("model.head.weight",)
    assert "2 names" in top.text()
    assert "→ model.head.weight" in top.text(full=True)
    assert len(TREE.top(10_000)) == len(TREE)
    assert sum(row.share for row in TREE.top(10_000)) == pytest.approx(1)


def test_a_selection_is_totaled_by_itself() -> None:
    biases = TREE.select("model.**.bias")
    totals = biases.by("dtype")
    assert totals.leaves == len(biases)
    assert totals.bytes == biases.counts.bytes
    assert all(row.path.endswith("bias") for row in biases.top(99))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TREE.by("size"), "cannot total by 'size'; give one of dtype, kind"),
        (lambda: TREE.by("dtype", depth=2), "cannot total by dtype with depth="),
        (lambda: TREE.by("module", depth=0), "depth= takes a whole number of at least 1"),
        (lambda: TREE.by("module", top=0), "top= takes a whole number of at least 1"),
        (lambda: TREE.top(0), "count= takes a whole number of at least 1"),
        (lambda: TREE.by("file"), "cannot total by file: this tree is in memory, not a checkpoint"),
    ],
)
def test_what_cannot_be_totaled_is_an_error(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(lw.QueryError, match=message.replace("(", r"\(")):
        call()


def test_an_empty_tree_has_empty_tables() -> None:
    empty = TREE.select("nothing")
    assert len(empty.top()) == len(empty.by("dtype")) == len(empty.by("module")) == 0
    assert "0 groups" in empty.by("dtype").text()
    json.dumps([empty.top().json(), empty.by("dtype").json()], allow_nan=False)
    assert len(empty.by("dtype").pandas()) == 0


def test_leaves_without_a_shape_count_as_leaves() -> None:
    t = lw.tree(nn.LazyLinear(3))
    assert [(row.leaves, row.bytes) for row in t.by("type")] == [(2, 0)]
    assert len(t.top().text()) > 0


def test_totals_by_file_are_the_sizes_of_the_shards(tmp_path: Path) -> None:
    lw.save(Net(), tmp_path / "sharded", shard_size=2000)
    with lw.open(tmp_path / "sharded") as t:
        totals = t.by("file")
        assert len(totals) > 2
        assert totals.bytes == t.counts.bytes == sum(row.bytes for row in totals)
        for row in totals:
            with lw.open(tmp_path / row.name) as shard:
                assert row.bytes == shard.counts.bytes
    torch.save(Net().state_dict(), tmp_path / "net.pt")
    with lw.open(tmp_path / "net.pt") as t:
        assert [row.name for row in t.by("file")] == ["net.pt"]


def test_a_long_table_is_cut_unless_everything_is_asked_for() -> None:
    t = lw.tree({f"layer{number}": {"weight": torch.ones(number + 1)} for number in range(100)})
    assert "… 45 more" in t.by("module").text()
    assert len(t.by("module").text().splitlines()) <= 60
    assert len(t.by("module").text(full=True).splitlines()) > 100
