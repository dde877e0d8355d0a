"""What reviews of `lw.diff` found: things that differ and were called the same, figures that were wrong, and words that
said too little."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leafwise as lw


def kinds(found: Any) -> dict[str, tuple[str, ...]]:
    return {change.path: change.kinds for change in found if change.kinds != ("same",)}


# -- views and ties --------------------------------------------------------------------------------------------------


def test_other_views_of_the_same_leaf_are_not_the_same(tmp_path: Path) -> None:
    q = torch.randn(8, 4)
    r = q.clone()
    one = {"qkv": q, "k": q[2:6]}
    assert lw.diff(one, {"qkv": r, "k": r[2:6]}).same
    for other in ({"qkv": q, "k": q[3:7]}, {"qkv": r, "k": r[3:7]}, {"qkv": r, "k": r[:2]}):
        torch.save(one, tmp_path / "one.pt")
        torch.save(other, tmp_path / "other.pt")
        assert not lw.diff(one, other).same
        assert not lw.diff(tmp_path / "one.pt", tmp_path / "other.pt").same
    found = lw.diff(one, {"qkv": r, "k": r[3:7]})["k"]
    assert found.kinds == ("changed", "untied", "tied")
    assert found.notes == ("in a it is qkv[2:6, :]", "in b it is qkv[3:7, :]")


def test_other_orders_of_axes_are_not_the_same() -> None:
    c = torch.randn(3, 3, 3)
    r = c.clone()
    one = {"w": c, "p": c.permute(0, 2, 1)}
    assert lw.diff(one, {"w": r, "p": r.permute(0, 2, 1)}).same
    assert kinds(lw.diff(one, {"w": r, "p": r.permute(2, 1, 0)})) == {"p": ("changed", "untied", "tied")}


def test_a_buffer_that_is_a_view_of_a_parameter() -> None:
    class Viewed(nn.Module):
        def __init__(self, start: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(32.0).reshape(8, 4))
            self.register_buffer("part", self.weight.data[start : start + 4])

    assert lw.diff(Viewed(2), Viewed(2)).same
    assert "changed" in lw.diff(Viewed(2), Viewed(3))["part"].kinds


def test_views_of_which_nobody_can_say_how_are_compared() -> None:
    w = torch.randn(4, 6)
    r = w.clone()
    for order in (["w", "flat"], ["flat", "w"]):
        one = {name: {"w": w, "flat": w.view(-1)}[name] for name in order}
        assert lw.diff(one, {name: {"w": r, "flat": r.view(-1)}[name] for name in order}).same
    assert kinds(lw.diff({"w": w, "x": w.view(-1)}, {"w": r, "x": r.view(-1).flip(0)}))["x"] == ("changed", "untied")


def test_a_leaf_is_gone_although_a_part_of_it_is_left() -> None:
    q = torch.randn(8, 4)
    whole, part = {"qkv": q, "k": q[2:6]}, {"k": q[2:6].clone()}
    assert kinds(lw.diff(whole, part)) == {"qkv": ("removed",)}
    assert kinds(lw.diff(part, whole)) == {"qkv": ("added",)}
    three = {"v": q[6:], **whole}
    assert kinds(lw.diff(three, part)) == {"qkv": ("removed",)}


def test_views_and_turned_names_that_are_left_are_noted() -> None:
    w, q = torch.randn(4, 6), torch.randn(8, 4)
    found = lw.diff({"w": w, "wt": w.t()}, {"w": w})
    assert found.same
    assert found.notes == ["wt is only in a, where it is w.T"]
    assert lw.diff({"wt": w.t()}, {"w": w, "wt": w.t()}).notes == ["w is only in b, where it is one with wt"]
    found = lw.diff({"k": q[:6].clone()}, {"k": q[:6], "z": q[:2]})
    assert found.same
    assert found.notes == ["z is only in b, where it is k[0:2, :]"]


def test_a_note_names_the_leaf_that_was_found() -> None:
    net = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    net["head"].weight = net["embed"].weight
    found = lw.diff(net, {"head.weight": net["head"].weight.detach().clone()})
    assert found.same
    assert found.notes == ["embed.weight is only in a, where it is another name of head.weight"]
